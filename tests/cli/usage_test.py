"""Options, environment, and everything refused before a model is loaded."""
import unittest

from program import DEMO, ProgramTest


class Usage(ProgramTest):
    def test_no_or_wrong_command(self):
        self.assert_error(2, says="no command")
        self.assert_error(2, "genrate", says="did you mean generate?")
        self.assert_error(2, "--frobnicate", says="unknown command")

    def test_help_and_version(self):
        for arguments in (["--help"], ["-h"], ["help"], ["generate", "--help"], ["chat", "-h"], ["bench", "--help"],
                          ["info", "--help"], ["methods", "--help"]):
            run = self.run_program(*arguments, code=0)
            self.assertIn("qevict", run.text)
            self.assertEqual(run.stderr, b"")
        self.assertIn("QEVICT_KV_BUDGET", self.run_program("generate", "--help").text)
        self.assertRegex(self.run_program("--version", code=0).text, r"^qevict \d+\.\d+\.\d+\n$")

    def test_unknown_options(self):
        self.assert_error(2, "generate", "-p", "x", "--kv-bugdet", "20%", says=["--kv-bugdet", "did you mean --kv-budget?"])
        self.assert_error(2, "generate", "-p", "x", "-z", says="-z")
        self.assert_error(2, "generate", "x", says="'x'")
        self.assert_error(2, "generate", "-p", "x", "--system", "y", says="--system")
        self.assert_error(2, "generate", "-p", says="--prompt")

    def test_bad_values(self):
        for flag, value in [("-n", "abc"), ("-n", "-2"), ("-n", "99999999999999"), ("-n", "1.5"), ("-n", ""), ("-c", "-1"),
                            ("-c", "x"), ("-t", "0"), ("-t", "-4"), ("-t", "100000"), ("-s", "x"), ("-s", "4294967296"),
                            ("--temp", "-0.1"), ("--temp", "nan"), ("--temp", "warm"), ("--temp", "inf"),
                            ("--top-k", "-1"), ("--top-p", "0"), ("--top-p", "1.01"), ("--min-p", "-0.1"),
                            ("--min-p", "2"), ("--repeat-penalty", "0"), ("--kv-window", "0"), ("--kv-window", "257"),
                            ("--kv-sinks", "-1"), ("--kv-sinks", "5000"), ("--kv-recent", "x"), ("--kv-recent", "-1"),
                            ("--kv-quant-share", "101%"), ("--kv-quant-share", "70"), ("--kv-quant-share", "x"),
                            ("--kv-interval", "0"), ("--kv-ranking", "best"), ("--budget-base", "always"),
                            ("--kv-method", "magic"), ("--simd", "MMX")]:
            with self.subTest(flag=flag, value=value):
                self.assert_error(2, "generate", "-p", "x", flag, value)

    def test_bad_budgets(self):
        for budget in ["0%", "-5%", "200%", "100.1%", "abc", "", "0", "-1", "%", "20%%", "nan%", "inf", "1e400%", "12XB", "64 MiB x",
                       "99999999999999999999999999"]:
            with self.subTest(budget=budget):
                self.assert_error(2, "generate", "-p", "x", "--kv-budget", budget, says="--kv-budget")

    def test_an_option_given_twice(self):
        self.assert_error(2, "generate", "-p", "x", "-n", "5", "-n", "6", says="--n-predict is given more than once")

    def test_contradictions(self):
        for arguments in [["-p", "x", "-f", DEMO], ["-p", "x", "--kv-method", "r2", "--no-promotion"],
                          ["-p", "x", "--kv-method", "full", "--no-promotion"],
                          ["-p", "x", "--kv-method", "r2", "--kv-quant-share", "50%"],
                          ["-p", "x", "--kv-method", "full", "--kv-window", "8"],
                          ["-p", "x", "--kv-method", "full", "--kv-budget", "20%"],
                          ["-p", "x", "--kv-budget", "1MiB", "--budget-base", "current"],
                          ["-p", "x", "-n", "-1", "--budget-base", "request"]]:
            with self.subTest(arguments=arguments):
                self.assert_error(2, "generate", *arguments, says="contradict" if "-1" not in arguments else "-n is -1")
        self.assert_error(2, "chat", "-f", "-", says="contradicts")

    def test_unknown_method_lists_the_known_ones(self):
        self.assert_error(2, "generate", "-p", "x", "--kv-method", "qevict-papre",
                          says=["did you mean qevict-paper?", "streaming-llm"])


class Environment(ProgramTest):
    def test_unknown_variables_are_errors(self):
        self.assert_error(2, "methods", env={"QEVICT_KV_BUGDET": "20%"}, says=["QEVICT_KV_BUGDET", "QEVICT_KV_BUDGET?"])
        self.assert_error(2, "info", env={"QEVICT_NONSENSE_AT_ALL": "1"}, says="QEVICT_NONSENSE_AT_ALL")

    def test_variables_of_the_build_and_the_tests_are_not(self):
        self.run_program("methods", code=0, env={"QEVICT_SYSTEM_LLAMA": "1", "QEVICT_TEST_MODEL": "x"})

    def test_bad_values_name_the_variable(self):
        self.assert_error(2, "generate", "-p", "x", env={"QEVICT_KV_BUDGET": "abc"}, says="QEVICT_KV_BUDGET")
        self.assert_error(2, "generate", "-p", "x", env={"QEVICT_TEMP": "-1"}, says="QEVICT_TEMP")
        self.assert_error(2, "generate", "-p", "x", env={"QEVICT_JSON": "perhaps"})

    def test_contradictions_between_variables(self):
        self.assert_error(2, "generate", env={"QEVICT_PROMPT": "x", "QEVICT_FILE": str(DEMO)}, says="contradict")


class Prompts(ProgramTest):
    def test_files_that_cannot_be_read(self):
        self.assert_error(1, "generate", "-f", "/nonexistent/prompt.txt", says="/nonexistent/prompt.txt")
        self.assert_error(1, "generate", "-f", self.folder, says=str(self.folder))
        self.assert_error(1, "chat", "-f", "/nonexistent/prompt.txt", says="/nonexistent/prompt.txt")

    def test_closed_standard_input(self):
        self.assert_error(1, "generate", close=[0], says="standard input")


class Tables(ProgramTest):
    def test_methods(self):
        run = self.run_program("methods", code=0)
        rows = self.json_of("methods")
        names = [row["name"] for row in rows]
        for name in ("full", "qevict-paper", "qevict-paper-int4", "r1", "r2", "r4", "streaming-llm"):
            self.assertIn(name, names)
        self.assertEqual(len(names), len(set(names)))
        for row in rows:
            self.assertTrue(row["summary"])
            self.assertIn(row["name"], run.text)

    def test_closed_standard_output(self):
        run = self.run_program("methods", close=[1], code=1)
        self.assertTrue(run.notes.startswith("qevict: error: cannot write to standard output"), run.notes)


if __name__ == "__main__":
    unittest.main()
