"""qevict info and bench on the default model."""
import csv
import io
import json
import unittest

from program import MODEL, ProgramTest


class Info(ProgramTest):
    def test_the_default_model(self):
        facts = self.json_of("info")
        model = facts["model"]
        self.assertEqual((model["architecture"], model["n_layers"], model["n_heads"], model["n_kv_heads"], model["head_dim"]),
                         ("llama", 30, 9, 3, 64))
        self.assertEqual(model["kv_bytes_per_token"], 2 * 30 * 3 * 64 * 2)
        self.assertEqual(model["n_ctx_train"], 8192)
        self.assertGreaterEqual(model["weight_bytes"], max(model["mapped_bytes"], model["repacked_bytes"]))
        self.assertIn(facts["simd"], facts["simd_available"])
        text = self.run_program("info", code=0).text
        for part in (facts["simd"], "llama", model["weights"], model["backend"]):
            self.assertIn(part, text)

    def test_a_forced_instruction_set_is_the_one_in_use(self):
        for name in self.json_of("info")["simd_available"]:
            with self.subTest(simd=name):
                self.assertEqual(self.json_of("info", "--simd", name)["simd"], name)
                self.assertEqual(self.json_of("info", env={"QEVICT_SIMD": name})["simd"], name)

    def test_path_by_flag_beats_the_variable(self):
        self.assertEqual(self.json_of("info", "-m", MODEL, env={"QEVICT_MODEL": "/nonexistent"})["model"]["path"], MODEL)


class Bench(ProgramTest):
    ARGUMENTS = ["bench", "-p", 48, "-n", 4, "-r", 2, "-t", 2, "--kv-method", "full,qevict-paper", "--kv-budget", "50%"]

    def test_json(self):
        rows = self.run_program(*self.ARGUMENTS, "-d", "0,64", "-o", "json", code=0).json()
        self.assertEqual([(row["method"], row["depth"]) for row in rows],
                         [("full", 0), ("qevict-paper", 0), ("full", 64), ("qevict-paper", 64)])
        for row in rows:
            for field in ("ttft_ms", "prefill_tps", "decode_tps"):
                self.assertGreater(row[field]["median"], 0)
                self.assertGreaterEqual(row[field]["sd"], 0)
            self.assertEqual((row["engine"], row["n_prompt"], row["n_gen"]), ("qevict", 48, 4))
            self.assertLessEqual(row["kv_bytes_peak"], max(row["kv_budget_effective"], row["kv_bytes_full"]))

    def test_other_forms(self):
        table = self.run_program(*self.ARGUMENTS, "-o", "md", code=0).text.splitlines()
        self.assertEqual(len(table), 4)
        self.assertEqual(len({line.count("|") for line in table}), 1)
        rows = list(csv.DictReader(io.StringIO(self.run_program(*self.ARGUMENTS, "-o", "csv", code=0).text)))
        self.assertEqual([row["method"] for row in rows], ["full", "qevict-paper"])
        self.assertGreater(float(rows[0]["decode_tps.median"]), 0)
        lines = self.run_program(*self.ARGUMENTS, "-o", "jsonl", code=0).text.splitlines()
        self.assertEqual([json.loads(line)["method"] for line in lines], ["full", "qevict-paper"])

    def test_prompt_only_and_decode_only(self):
        self.assertNotIn("decode_tps", self.run_program(*self.ARGUMENTS[:1], "-p", 16, "-n", 0, "-r", 1, "-o", "json", code=0).json()[0])
        self.assertNotIn("ttft_ms", self.run_program(*self.ARGUMENTS[:1], "-p", 0, "-n", 2, "-r", 1, "-o", "json", code=0).json()[0])

    def test_refusals(self):
        self.assert_error(2, "bench", "-p", 0, "-n", 0, says="nothing to measure")
        self.assert_error(2, "bench", "-d", "1,x", says="'x'")
        self.assert_error(2, "bench", "-d", "-5", says="-5")
        self.assert_error(2, "bench", "-r", 0)
        self.assert_error(2, "bench", "-o", "xml", says="xml")
        self.assert_error(2, "bench", "--kv-method", "full,magic", says="magic")
        self.assert_error(1, "bench", "-d", 4000, "-c", 1000, says=["1000"])


if __name__ == "__main__":
    unittest.main()
