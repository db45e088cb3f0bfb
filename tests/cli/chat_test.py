"""qevict chat with piped input and on a terminal."""
import os
import pty
import select
import signal
import subprocess
import time
import unittest

from program import DEMO, GREEDY, PROGRAM, TIMEOUT, ProgramTest, environment


class Piped(ProgramTest):
    def talk(self, *lines, flags=(), **options):
        length = () if "-n" in flags else ("-n", 16)
        return self.run_program("chat", *GREEDY, *length, *flags, stdin="".join(line + "\n" for line in lines).encode(), **options)

    def talk_json(self, *lines, flags=()):
        return self.talk(*lines, flags=[*flags, "--json"], code=0).json()

    def test_answers_and_summary(self):
        run = self.talk("What is the capital of France?", code=0)
        self.assertTrue(run.text.strip())
        self.assertIn("KV cache", run.notes)
        self.assertNotIn(">", run.notes.split("prompt", 1)[0])  # no input prompt where there is no terminal

    def test_each_turn_feeds_only_the_new_text(self):
        one = self.talk_json("Hello there.")
        three = self.talk_json("Hello there.", "Hello there.", "Hello there.")
        self.assertEqual(three["turns"], 3)
        self.assertEqual([m["role"] for m in three["messages"]], ["user", "assistant"] * 3)
        later = (three["prompt_tokens"] - one["prompt_tokens"]) / 2
        self.assertTrue(5 < later < one["prompt_tokens"], (one["prompt_tokens"], three["prompt_tokens"]))

    def test_what_was_said_stays_in_the_cache(self):
        result = self.talk_json("Hello there.", "And what else?", flags=["--kv-method", "full"])
        per_token = self.json_of("info")["model"]["kv_bytes_per_token"]
        fed = result["prompt_tokens"] + result["output_tokens"] - result["turns"]
        self.assertGreaterEqual(result["kv_bytes_final"], fed * per_token)
        self.assertLess(fed, result["prompt_tokens"] + 16 * result["turns"])

    def test_clear_starts_anew(self):
        lines = self.talk("Name a fruit.", "/clear", "Name a fruit.", code=0).text.splitlines()
        self.assertEqual(len(lines) % 2, 0)
        half = len(lines) // 2
        self.assertEqual(lines[:half], lines[half:])

    def test_commands(self):
        run = self.talk("/help", "/stats", "/exit", "never read", code=0)
        self.assertEqual(run.text, "")
        self.assertIn("/clear", run.notes)
        self.assertIn("/nonsense", self.talk("/nonsense", code=1).notes)

    def test_no_messages(self):
        self.assertEqual(self.talk(code=0).stdout, b"")
        self.assertEqual(self.talk("", "   ", code=0).stdout, b"")
        self.assertEqual(self.talk_json()["turns"], 0)

    def test_first_message_by_flag_and_last_line_without_newline(self):
        by_flag = self.talk(flags=["-p", "Name a fruit."], code=0)
        by_line = self.run_program("chat", *GREEDY, "-n", 16, stdin=b"Name a fruit.", code=0)
        self.assertEqual(by_flag.text, by_line.text)
        self.assertEqual(self.run_program("chat", *GREEDY, "-n", 16, stdin=b"Name a fruit.\r\n").text, by_line.text)

    def test_system_message(self):
        plain = self.talk_json("Hi")
        told = self.talk_json("Hi", flags=["--system", "You are a pirate who likes to talk about the sea and parrots."])
        self.assertEqual(told["messages"][0]["role"], "system")
        self.assertNotEqual(plain["prompt_tokens"], told["prompt_tokens"])

    def test_templates(self):
        self.talk_json("Hi", flags=["--chat-template", "chatml"])
        self.assert_error(2, "chat", "--chat-template", "no-such-template", stdin=b"Hi\n", says="no-such-template")

    def test_the_context_ends_with_a_line_naming_clear(self):
        run = self.talk("Tell me a story.", "And then?", "/clear", "Hi", flags=["-c", "96", "-n", "-1", "--ignore-eos"], code=1)
        lines = run.notes.splitlines()
        self.assertTrue(any("full" in line and "/clear" in line and "96" in line for line in lines), run.notes)
        self.assertTrue(any(line.startswith("qevict: error: ") and "/clear" in line for line in lines), run.notes)

    def test_a_first_message_that_is_too_long(self):
        run = self.talk("word " * 200, flags=["-c", "64"], code=1)
        self.assertIn("/clear", run.notes)

    def test_the_cache_stays_compressed_over_turns(self):
        story = "Tell me more about the lighthouse, the keeper, the storm and the ledger on the shelf. " * 8
        result = self.talk_json(story, story, story, flags=["--kv-budget", "20%"])
        self.assertLessEqual(result["kv_bytes_peak"], result["kv_budget_effective"])
        self.assertGreater(result["tokens_evicted"], 0)
        self.assertLess(result["kv_ratio_final"], 0.25)

    def test_interrupt_ends_a_piped_chat(self):
        process = self.start("chat", "-n", 4000, "--ignore-eos", "-t", 2, stdin=subprocess.PIPE)
        process.stdin.write(b"Tell me a story.\n")
        process.stdin.flush()
        self.assertTrue(os.read(process.stdout.fileno(), 1))
        run = self.finish(process)
        self.assertEqual(run.code, 130)
        self.assertIn("KV cache", run.notes)

    def test_invalid_utf8_is_refused_and_the_talk_goes_on(self):
        run = self.run_program("chat", *GREEDY, "-n", 16, stdin=b"caf\xe9\nName a fruit.\n", code=1)
        self.assertIn("UTF-8", run.notes)
        self.assertTrue(run.text.strip())


class Terminal(ProgramTest):
    """A pseudo-terminal for input and errors; the text still comes through a pipe."""

    def open(self, *flags, command=("chat",)):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([PROGRAM, *map(str, command), *GREEDY, *map(str, flags)], stdin=slave, stderr=slave,
                                        stdout=subprocess.PIPE, env=environment() | {"TERM": "xterm"}, start_new_session=True)
        os.close(slave)
        self.addCleanup(os.close, self.master)
        self.addCleanup(self.process.stdout.close)
        self.addCleanup(lambda: self.process.poll() is None and self.process.kill())
        self.shown = b""

    def wait_for(self, text):
        deadline = time.monotonic() + TIMEOUT
        while text not in self.shown:
            self.assertLess(time.monotonic(), deadline, self.shown)
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self.master, 4096)
                except OSError:  # the other side is closed
                    self.assertIn(text, self.shown)
        self.shown = self.shown[self.shown.index(text) + len(text):]

    def type(self, line):
        os.write(self.master, line.encode() + b"\n")

    def test_prompt_answer_and_leaving(self):
        self.open("-n", 8)
        self.wait_for(b"> ")
        self.type("Name a fruit.")
        self.wait_for(b"> ")
        self.type("/exit")
        self.wait_for(b"KV cache")
        self.assertEqual(self.process.wait(timeout=30), 0)
        self.assertTrue(self.process.stdout.read().strip())

    def test_interrupt_stops_the_answer_then_leaves(self):
        self.open("-n", 4000, "--ignore-eos")
        self.wait_for(b"> ")
        self.type("Tell me a story.")
        self.assertTrue(os.read(self.process.stdout.fileno(), 1))
        self.process.send_signal(signal.SIGINT)
        self.wait_for(b"> ")
        self.process.send_signal(signal.SIGINT)
        self.wait_for(b"KV cache")
        self.assertEqual(self.process.wait(timeout=30), 130)

    def test_a_long_prompt_shows_its_progress(self):
        path = self.folder / "long.txt"
        path.write_text(DEMO.read_text() * 5)
        self.open(command=["generate", "-f", path, "-n", 1])
        self.wait_for(b"reading the prompt [")
        self.wait_for(b"KV cache")
        self.assertEqual(self.process.wait(timeout=30), 0)

    def test_end_of_input_leaves(self):
        self.open("-n", 8)
        self.wait_for(b"> ")
        os.write(self.master, b"\x04")
        self.assertEqual(self.process.wait(timeout=30), 0)


if __name__ == "__main__":
    unittest.main()
