"""qevict generate on the default model."""
import os
import signal
import subprocess
import time
import unittest

from program import DEMO, GREEDY, PROGRAM, ProgramTest, Run, environment, summary_numbers, words

FIELDS = """text stop_reason prompt_tokens output_tokens ttft_ms ttft_text_ms prefill_ms prefill_tps decode_ms decode_tps tpot_ms
kv_budget_bytes kv_budget_effective kv_bytes_prefill_end kv_bytes_peak kv_bytes_final kv_bytes_full kv_ratio_peak kv_ratio_mean
kv_ratio_prefill_end kv_ratio_final tokens_evicted promotions demotions evictions workspace_peak_bytes rss_peak_bytes
settings""".split()


class Ordinary(ProgramTest):
    def test_text_on_stdout_summary_on_stderr(self):
        run = self.run_program("generate", "-p", "The capital of France is", "-n", 8, *GREEDY, code=0)
        self.assertIn("Paris", run.text)
        self.assertNotIn("The capital", run.text)
        self.assertEqual(summary_numbers(run.notes), (5, 8))
        for part in ("KV cache", "promotions", "demotions", "evictions", "seed"):
            self.assertIn(part, run.notes)
        self.assertNotIn("\x1b", run.notes)  # no progress bar where there is no terminal

    def test_json_is_the_same_as_text(self):
        arguments = ["generate", "-f", DEMO, "-n", 40, "--seed", 5, "-t", 2, "--kv-budget", "20%"]
        text = self.run_program(*arguments, code=0)
        run = self.run_program(*arguments, "--json", code=0)
        self.assertEqual(run.stderr, b"")
        result = run.json()
        self.assertEqual(result["text"], text.text)
        for field in FIELDS:
            self.assertIn(field, result)
        self.assertEqual(result["settings"]["seed"], "5")
        self.assertEqual((result["prompt_tokens"], result["output_tokens"]), summary_numbers(text.notes))

    def test_the_cache_is_compressed_and_says_so(self):
        result = self.json_of("generate", "-f", DEMO, "-n", 40, *GREEDY, "--kv-budget", "20%")
        self.assertLessEqual(result["kv_bytes_peak"], result["kv_budget_effective"])
        self.assertLessEqual(result["kv_ratio_peak"], 0.2)
        self.assertGreater(result["kv_ratio_peak"], 0.15)
        self.assertEqual(result["kv_budget_bytes"], result["kv_budget_effective"])
        self.assertEqual(sum(result["kv_bytes_tiers"].values()), result["kv_bytes_final"])
        for count in ("tokens_evicted", "evictions", "demotions"):
            self.assertGreater(result[count], 0)
        self.assertEqual(result["tokens_evicted"], result["evictions"] * 8)

    def test_a_budget_for_everything_gives_the_text_of_full(self):
        arguments = ["generate", "-f", DEMO, "-n", 24, *GREEDY]
        full = self.run_program(*arguments, "--kv-method", "full", code=0)
        for method in ("qevict-paper", "r2", "streaming-llm"):
            with self.subTest(method=method):
                self.assertEqual(self.run_program(*arguments, "--kv-method", method, "--kv-budget", "100%").text, full.text)

    def test_every_method_runs(self):
        for row in self.json_of("methods"):
            for tokens, budget in ((9, "1%"), (400, "10%")):
                with self.subTest(method=row["name"], tokens=tokens, budget=budget):
                    flags = ["--kv-budget", budget] if row["compresses"] and not row["quantizes_everything"] else []
                    result = self.json_of("generate", "-p", words(tokens), "-n", 12, "--ignore-eos", *GREEDY,
                                          "--kv-method", row["name"], *flags)
                    self.assertEqual(result["output_tokens"], 12)
                    self.assertLessEqual(result["kv_bytes_peak"],
                                         max(result["kv_budget_effective"], result["kv_bytes_full"]))

    def test_quantizers_take_no_budget(self):
        self.assert_error(2, "generate", "-p", "a", "-n", 2, "--kv-method", "kivi-2", "--kv-budget", "20%")
        result = self.json_of("generate", "-f", DEMO, "-n", 8, *GREEDY, "--kv-method", "q8_0")
        self.assertAlmostEqual(result["kv_ratio_peak"], 0.53, delta=0.03)

    def test_seeds(self):
        arguments = ["generate", "-p", "Once upon a time", "-n", 24, "-t", 2]
        first = self.json_of(*arguments)
        again = self.json_of(*arguments, "--seed", first["settings"]["seed"])
        other = self.json_of(*arguments)
        self.assertEqual(first["text"], again["text"])
        self.assertNotEqual(first["settings"]["seed"], other["settings"]["seed"])

    def test_every_cache_option_is_in_force(self):
        chosen = {"kv-window": "16", "kv-sinks": "3", "kv-recent": "32", "kv-quant-share": "50%", "kv-interval": "4",
                  "kv-ranking": "recency"}
        flags = [part for name, value in chosen.items() for part in (f"--{name}", value)]
        result = self.json_of("generate", "-f", DEMO, "-n", 8, *GREEDY, *flags, "--no-promotion", "--kv-budget", "30%")
        for name, value in chosen.items():
            self.assertEqual(result["settings"][name].rstrip("%"), value.rstrip("%"), name)
        self.assertEqual(result["promotions"], 0)

    def test_print_settings(self):
        run = self.run_program("generate", "-p", "x", "-n", 1, "--seed", 77, "--print-settings", code=0)
        self.assertRegex(run.notes, r"(?m)^seed +77$")
        self.assertRegex(run.notes, r"(?m)^kv-method +qevict$")

    def test_valid_utf8_whatever_is_sampled(self):
        for seed in range(4):
            arguments = ["generate", "-p", "日本語 emoji 🎉 and", "-n", 60, "--temp", "2.5", "--top-k", 0, "--top-p", 1, "--min-p", 0,
                         "--seed", seed, "--ignore-eos", "-t", 2]
            with self.subTest(seed=seed):
                self.assertEqual(self.run_program(*arguments, code=0).text, self.json_of(*arguments)["text"])

    def test_n_minus_one_ends_at_the_context(self):
        result = self.json_of("generate", "-p", "x", "-n", -1, "-c", 64, "--ignore-eos", *GREEDY)
        self.assertEqual(result["stop_reason"], "context_full")
        self.assertIn(result["prompt_tokens"] + result["output_tokens"], (64, 65))


class Settings(ProgramTest):
    def test_variables_do_what_flags_do_and_flags_win(self):
        arguments = ["generate", "-p", "x", "-n", 2, "-t", 2]
        result = self.json_of(*arguments, env={"QEVICT_KV_METHOD": "r2", "QEVICT_TEMP": "0.5", "QEVICT_SEED": "3"})
        self.assertEqual([result["settings"][name] for name in ("kv-method", "temp", "seed")], ["r2", "0.5", "3"])
        result = self.json_of(*arguments, "--kv-method", "full", env={"QEVICT_KV_METHOD": "r2"})
        self.assertEqual(result["settings"]["kv-method"], "full")
        self.json_of(*arguments, "--kv-method", "full", env={"QEVICT_KV_BUDGET": "20%"})

    def test_a_typed_prompt_beats_a_variable(self):
        result = self.json_of("generate", "-p", words(3), "-n", 1, env={"QEVICT_FILE": "/nonexistent"})
        self.assertEqual(result["prompt_tokens"], 3)

    def test_json_by_variable(self):
        run = self.run_program("generate", "-p", "x", "-n", 1, env={"QEVICT_JSON": "1", "QEVICT_IGNORE_EOS": "true"}, code=0)
        self.assertEqual(run.json()["output_tokens"], 1)


class Prompts(ProgramTest):
    def test_lengths_around_a_window(self):
        for count in (1, 2, 7, 8, 9, 17):
            with self.subTest(tokens=count):
                result = self.json_of("generate", "-p", words(count), "-n", 20, "--ignore-eos", *GREEDY)
                self.assertEqual((result["prompt_tokens"], result["output_tokens"]), (count, 20))

    def test_empty(self):
        self.assert_error(2, "generate", "-p", "", says="prompt")
        self.assert_error(2, "generate", "-f", "/dev/null", says="prompt")
        self.assert_error(2, "generate", stdin=b"", says="prompt")

    def test_from_a_file_and_from_standard_input(self):
        arguments = ["generate", "-n", 8, *GREEDY]
        expected = self.run_program(*arguments, "-p", DEMO.read_text(), code=0).text
        self.assertEqual(self.run_program(*arguments, "-f", DEMO).text, expected)
        self.assertEqual(self.run_program(*arguments, "-f", "-", stdin=DEMO.read_bytes()).text, expected)
        self.assertEqual(self.run_program(*arguments, stdin=DEMO.read_bytes()).text, expected)

    def test_closed_standard_input_does_not_matter_with_a_prompt(self):
        self.run_program("generate", "-p", "x", "-n", 2, close=[0], code=0)

    def test_taken_verbatim(self):
        result = self.json_of("generate", "-p", r"a\nb", "-n", 1)
        self.assertGreater(result["prompt_tokens"], 2)
        for prompt in ("-n", "--", "[a,b]", "{}", "%%"):
            with self.subTest(prompt=prompt):
                self.json_of("generate", "-p", prompt, "-n", 1)

    def test_invalid_utf8(self):
        path = self.folder / "latin1.txt"
        path.write_bytes(b"caf\xe9 au lait")
        self.assert_error(2, "generate", "-f", path, says="UTF-8")

    def test_longer_than_the_context(self):
        self.assert_error(1, "generate", "-p", words(65), "-c", 64, "-n", 1, says=["65", "64"])
        self.assert_error(1, "generate", "-p", words(9000), "-n", 1, says=["9000", "8192"])
        self.assertEqual(self.json_of("generate", "-p", words(63), "-c", 64, "-n", 1)["output_tokens"], 1)

    def test_a_context_beyond_the_models_is_refused_or_held(self):
        run = self.run_program("generate", "-p", "x", "-n", 1, "-c", 1000000000)
        self.assertIn(run.code, (0, 1, 2))


class Budgets(ProgramTest):
    def test_bytes_that_leave_no_window(self):
        self.assert_error(2, "generate", "-f", DEMO, "-n", 8, "--kv-budget", "1000", says=["leaves no window", "at least"])

    def test_a_recent_region_that_leaves_no_window(self):
        self.assert_error(2, "generate", "-f", DEMO, "-n", 8, "--kv-budget", "10%", "--kv-recent", 900)

    def test_a_tiny_percentage_is_raised_and_shown(self):
        run = self.run_program("generate", "-p", words(100), "-n", 12, "--ignore-eos", *GREEDY, "--kv-budget", "1%", code=0)
        self.assertIn("budget raised to", run.notes)
        result = self.json_of("generate", "-p", words(100), "-n", 12, "--ignore-eos", *GREEDY, "--kv-budget", "1%")
        self.assertGreater(result["kv_budget_effective"], result["kv_budget_bytes"])
        self.assertLessEqual(result["kv_bytes_peak"], result["kv_budget_effective"])


class Interrupts(ProgramTest):
    def long_prompt(self):
        path = self.folder / "long.txt"
        path.write_text("\n".join([DEMO.read_text()] * 7))
        return path

    def test_while_generating(self):
        process = self.start("generate", "-p", "Once", "-n", 4000, "--ignore-eos", "-t", 2)
        self.assertTrue(os.read(process.stdout.fileno(), 1))
        run = self.finish(process)
        self.assertEqual(run.code, 130)
        prompt, generated = summary_numbers(run.notes)
        self.assertEqual(prompt, 1)
        self.assertTrue(1 <= generated < 4000)
        self.assertIn("interrupted", run.notes)

    def test_while_reading_the_prompt(self):
        process = self.start("generate", "-f", self.long_prompt(), "-n", 1, "-t", 2, "--print-settings")
        self.assertTrue(process.stderr.readline())
        time.sleep(0.3)
        run = self.finish(process)
        self.assertEqual(run.code, 130)
        self.assertEqual(run.stdout, b"")

    def test_json_is_whole_after_an_interrupt(self):
        process = self.start("generate", "-p", "Once", "-n", 8000, "--ignore-eos", "-t", 2, "--json")
        time.sleep(2)
        run = self.finish(process)
        self.assertEqual(run.code, 130)
        self.assertEqual(run.json()["stop_reason"], "interrupted")

    def test_while_waiting_for_standard_input(self):
        process = self.start("generate", stdin=subprocess.PIPE)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=30), 130)
        process.communicate()


class Pipes(ProgramTest):
    def test_a_reader_that_leaves(self):
        process = self.start("generate", "-p", "Once", "-n", 4000, "--ignore-eos", "-t", 2)
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        process.stdout = None
        _, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn(b"qevict: error: cannot write to standard output", stderr)

    def test_closed_standard_output(self):
        run = self.run_program("generate", "-p", "x", "-n", 8, close=[1], code=1)
        self.assertIn("qevict: error: cannot write to standard output", run.notes)

    def test_full_disk(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, "generate", "-p", "x", "-n", "8"], stdout=full, stderr=subprocess.PIPE,
                                  stdin=subprocess.DEVNULL, env=environment(), timeout=60)
        self.assertEqual(done.returncode, 1)

    def test_closed_standard_error(self):
        run = self.run_program("generate", "-p", "x", "-n", 4, close=[2], code=0)
        self.assertTrue(run.stdout)


if __name__ == "__main__":
    unittest.main()
