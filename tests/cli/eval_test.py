"""qevict eval on the default model, with tiny sizes."""
import unittest

from program import MODEL, SOURCE, ProgramTest

TEXT = SOURCE / "tests" / "data" / "prose.txt"
KV_FIELDS = "kv_ratio_peak kv_ratio_mean kv_ratio_final kv_bytes_peak kv_bytes_full kv_budget_bytes kv_budget_effective promotions demotions evictions settings".split()


class EvalTest(ProgramTest):
    def check_results(self, result, labels):
        self.assertEqual([row["label"] for row in result["results"]], labels)
        for row in result["results"]:
            for field in KV_FIELDS:
                self.assertIn(field, row)
            self.assertEqual(row["method"], row["label"].split(":")[0])
            if row["method"] != "full":
                self.assertLessEqual(row["kv_ratio_peak"], float(row["settings"]["kv-budget"].rstrip("%")) / 100)


class Perplexity(EvalTest):
    ARGUMENTS = ["eval", "perplexity", "--text", TEXT, "-c", 288, "--prefill", 256, "--chunks", 2, "-t", 2, "--kv-recent", 16]

    def test_methods_with_options_of_their_own(self):
        labels = ["full", "qevict:budget=50%", "qevict:budget=30%", "qevict-paper:window=16:ranking=recency:no-promotion"]
        result = self.json_of(*self.ARGUMENTS, "--kv-method", ",".join(labels), "--kv-budget", "40%")
        self.check_results(result, labels)
        full, half, third, other = result["results"]
        self.assertEqual((full["kld_mean"], full["same_top"]), (0, 1))
        self.assertLess(half["kld_mean"], third["kld_mean"])
        self.assertEqual(other["settings"]["kv-window"], "16")
        self.assertEqual(other["settings"]["kv-ranking"], "recency")
        self.assertEqual(other["promotions"], 0)
        for row in result["results"]:
            self.assertEqual(row["tokens"], 2 * 31)

    def test_table(self):
        run = self.run_program(*self.ARGUMENTS, "--kv-method", "r2", code=0)
        self.assertEqual(len(run.text.splitlines()), 3)
        self.assertEqual(len({line.count("|") for line in run.text.splitlines()}), 1)
        self.assertIn("288", run.notes)


class Facts(EvalTest):
    ARGUMENTS = ["eval", "facts", "--text", TEXT, "-c", 320, "--samples", 2, "--facts", 3, "--questions", 2, "-t", 2,
                 "--kv-recent", 16, "--kv-budget", "30%", "--kv-method", "full,qevict,streaming-llm"]

    def test_json(self):
        result = self.json_of(*self.ARGUMENTS)
        self.check_results(result, ["full", "qevict", "streaming-llm"])
        for row in result["results"]:
            self.assertEqual(row["facts"], 6)
            self.assertTrue(6 * 7 <= row["digit_tokens"] <= 6 * 8)
            self.assertLessEqual(row["digits_greedy"], row["digits_teacher_forced"])
            self.assertLessEqual(row["facts_greedy"], row["digits_greedy"])
            self.assertEqual(len(row["digits_teacher_forced_by_quarter"]), 3)
        full, ours, streaming = result["results"]
        self.assertGreater(full["digits_teacher_forced"], 0.8)
        self.assertEqual(full["digits_minus_full"], 0)
        self.assertAlmostEqual(streaming["digits_minus_full"], streaming["digits_teacher_forced"] - full["digits_teacher_forced"])
        self.assertGreater(ours["digits_teacher_forced"], streaming["digits_teacher_forced"])

    def test_table(self):
        run = self.run_program(*self.ARGUMENTS[:4], "-c", 240, "--samples", 1, "--facts", 2, "--kv-method", "r2", code=0)
        self.assertEqual([line.split("|")[1].strip() for line in run.text.splitlines()[2:]], ["full", "r2"])

    def test_refusals(self):
        self.assert_error(2, *self.ARGUMENTS[:4], "-c", 2048, says=["the text has", "4 documents of 2048 need 8192"])
        self.assert_error(2, *self.ARGUMENTS[:4], "-c", 256, "--samples", 1, says=["16 facts take", "256"])
        self.assert_error(2, *self.ARGUMENTS, "--chunks", 3, says="--chunks is not an option of eval facts")


class Generation(EvalTest):
    ARGUMENTS = ["eval", "generation", "--text", TEXT, "--prefill", 300, "-n", 40, "-t", 2]

    def test_json(self):
        result = self.json_of(*self.ARGUMENTS, "--kv-method", "qevict-paper:budget=100%,streaming-llm:budget=15%")
        self.check_results(result, ["full", "qevict-paper:budget=100%", "streaming-llm:budget=15%"])
        full, everything, streaming = result["results"]
        for row in (full, everything):
            self.assertEqual((row["first_difference"], row["equal_first_64"], row["distinct_4grams_vs_full"]), (40, 1, 1))
        self.assertEqual(full["text"], everything["text"])
        self.assertLess(streaming["first_difference"], 40)
        self.assertAlmostEqual(streaming["before_first_difference"], streaming["first_difference"] / 40)
        self.assertGreater(streaming["decode_tps"], 0)

    def test_table(self):
        lines = self.run_program(*self.ARGUMENTS, "--kv-method", "r2", code=0).text.splitlines()
        self.assertEqual(len(lines), 4)
        self.assertIn("| none |", lines[2])

    def test_too_short_a_text(self):
        self.assert_error(2, *self.ARGUMENTS[:4], "--prefill", 5000, says="5000")


class Usage(EvalTest):
    def test_tasks_and_options(self):
        self.assert_error(2, "eval", "perplexty", "--text", TEXT, says="did you mean perplexity?")
        self.assert_error(2, "eval", "facts", says="--text FILE is missing")
        self.assert_error(1, "eval", "facts", "--text", "/nonexistent", says="/nonexistent")
        self.assert_error(2, "eval", "perplexity", "--text", TEXT, "--kv-method", "qevict:windw=8", says="qevict:windw=8")
        self.assert_error(2, "eval", "perplexity", "--text", TEXT, "--kv-method", "qevict:window=x", says=["qevict:window=x", "'x'"])
        self.assert_error(2, "eval", "perplexity", "--text", TEXT, "--kv-method", "full:budget=20%", says="contradicts")
        self.assert_error(2, "eval", "perplexity", "--text", TEXT, "--kv-method", "r2,magic", says="magic")
        help_text = self.run_program("eval", "--help", code=0).text
        for task in ("perplexity", "facts", "generation", "f32-copy"):
            self.assertIn(task, help_text)

    def test_f32_copy_refusals(self):
        self.assert_error(2, "eval", "f32-copy", says="--out FILE is missing")
        self.assert_error(1, "eval", "f32-copy", "--out", MODEL, says="exists")
        self.assert_error(1, "eval", "f32-copy", "--out", "/nonexistent/copy.gguf", says="/nonexistent/copy.gguf")


if __name__ == "__main__":
    unittest.main()
