"""qevict info and bench on the default model."""
import csv
import io
import json
import pathlib
import subprocess
import sys
import time
import unittest

from program import MODEL, PROGRAM, ProgramTest


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


class MethodsPage(ProgramTest):
    def test_it_is_up_to_date(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        page = subprocess.run([sys.executable, root / "tools" / "methods_page.py", PROGRAM], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.assertEqual((root / "docs" / "methods.md").read_text(encoding="utf-8"), page,
                         "run tools/methods_page.py build/qevict > docs/methods.md")


class Bench(ProgramTest):
    BASE = ["bench", "-p", 48, "-n", 4, "-t", 2, "--kv-method", "full,qevict-paper", "--kv-budget", "50%"]
    ARGUMENTS = [*BASE, "-r", 2]

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

    def test_beside_llama_cpp(self):
        rows = self.run_program("bench", "-p", 8, "-n", 4, "-d", 0, "-r", 1, "-t", 2, "--vs", "llama.cpp:f16:nofa", "--rss",
                                "-o", "json", code=0).json()
        self.assertEqual([(row["engine"], row["method"], row["kv_type"], row["flash_attn"]) for row in rows],
                         [("qevict", "qevict", "f16+k4v2", "n/a"), ("llama.cpp", "full", "f16", "off")])
        for row in rows:
            self.assertEqual((row["depth"], row["decode_depth"], row["n_prompt"], row["n_gen"]), (0, 0, 8, 4))
            for field in ("ttft_ms", "prefill_tps", "decode_tps", "tpot_ms", "itl_first_ms"):
                self.assertEqual(set(row[field]), {"median", "mean", "sd"})
                self.assertGreater(row[field]["median"], 0)
            for field in ("ttft_ms", "prefill_tps", "decode_tps"):
                ratio = row["vs"][field]
                self.assertEqual(ratio["flash_attn"], "off")
                self.assertLessEqual(ratio["min"], ratio["median"])
                self.assertLessEqual(ratio["median"], ratio["max"])
            self.assertLessEqual(row["itl_ms"]["p50"], row["itl_ms"]["max"])
            self.assertGreater(row["kv_bytes_peak"], 0)
            self.assertGreater(row["rss_peak_bytes"], 0)
            self.assertIn("itl_routing_ms", row)
        ours, rival = rows
        self.assertAlmostEqual(sum(ours["share"].values()), 1)
        self.assertGreater(ours["workspace_peak_bytes"], 0)
        self.assertIsNone(rival["workspace_peak_bytes"])
        self.assertIsNone(rival["share"])
        self.assertEqual(rival["vs"]["decode_tps"]["median"], 1)

    def test_cheaper_runs(self):
        base = ["bench", "-n", 2, "-r", 1, "-t", 2, "--kv-method", "full", "--vs", "llama.cpp:q8_0", "-o", "json"]
        for row in self.run_program(*base, "-p", 16, "--after-prompt", code=0).json():
            self.assertEqual((row["depth"], row["decode_depth"]), (0, 16))
            self.assertNotIn("fill_ms", row)
        ours, rival = self.run_program(*base, "-p", 0, "-d", 24, "--keep-fill", code=0).json()
        self.assertEqual(ours["kv_base_tokens"], 24 + 2 * (1 + 1))
        # llama.cpp went back to the depth before its last two steps.
        self.assertEqual(rival["kv_bytes_full"], 26 * 2 * 30 * 3 * 64 * 2)
        self.assertAlmostEqual(rival["kv_ratio_peak"], 34 / 64, places=6)

    def test_an_interrupted_run_reports_its_whole_repetitions(self):
        process = self.start(*self.BASE, "-r", 5000, "-o", "json")
        self.assertIn(b"-r 5000", process.stderr.readline())
        time.sleep(4)
        run = self.finish(process)
        self.assertEqual(run.code, 130)
        rows = run.json()
        self.assertEqual([row["method"] for row in rows], ["full", "qevict-paper"])
        self.assertEqual(len({row["repetitions"] for row in rows}), 1)
        self.assertTrue(1 <= rows[0]["repetitions"] < 5000)
        self.assertIn(f"error: interrupted: depth 0 has {rows[0]['repetitions']} of 5000 repetitions", run.notes)

    def test_a_raised_budget_is_said(self):
        run = self.run_program("bench", "-p", 64, "-n", 2, "-r", 1, "-t", 2, "--kv-method", "r4", "--kv-budget", "10%", "-o", "json", code=0)
        row, = run.json()
        self.assertGreater(row["kv_budget_effective"], row["kv_budget_bytes"])
        self.assertIn("r4 at 0: budget raised", run.notes)

    def test_kernels(self):
        rows = self.run_program("bench", "--kernels", "-d", 256, "-r", 1, "-t", 2, "-o", "json", code=0).json()
        self.assertEqual({row["engine"] for row in rows}, {"qevict", "ggml"})
        for row in rows:
            self.assertGreater(row["ms"]["median"], 0)
            self.assertGreater(row["vs_ggml"], 0)
            self.assertLess(row["output_error"], 0.02)
            self.assertEqual((row["head_dim"], row["group"], row["n_tokens"]), (64, 3, 256))
        simd = rows[0]["target"]
        only = self.run_program("bench", "--kernels", "-d", 64, "-r", 1, "--simd", simd, "-o", "json", code=0).json()
        self.assertEqual({row["target"] for row in only}, {simd, "ggml"})

    def test_refusals(self):
        for rival, says in [("vllm", "'vllm'"), ("llama.cpp:q5_1", "'q5_1'"), ("llama.cpp:q8_0:nofa", "flash attention"),
                            ("llama.cpp:f16:on", "'on'"), ("llama.cpp,llama.cpp:fa", "twice"), ("", "llama.cpp")]:
            with self.subTest(rival=rival):
                self.assert_error(2, "bench", "--vs", rival, says=["--vs", says])
        self.assert_error(2, "bench", "--after-prompt", "-p", 0, says="--after-prompt")
        self.assert_error(2, "bench", "--keep-fill", says="--keep-fill")
        self.assert_error(2, "bench", "-p", 0, "-n", 0, says="nothing to measure")
        self.assert_error(2, "bench", "-d", "1,x", says="'x'")
        self.assert_error(2, "bench", "-d", "-5", says="-5")
        self.assert_error(2, "bench", "-d", "8,8", says="names 8 twice")
        self.assert_error(2, "bench", "--kv-method", "full,r2:window=16", says=["r2:window=16", "for eval"])
        self.assert_error(2, "bench", "-r", 0)
        self.assert_error(2, "bench", "-o", "xml", says="xml")
        self.assert_error(2, "bench", "--kv-method", "full,magic", says="magic")
        self.assert_error(2, "bench", "--kv-method", "full,r2,full", says="names full twice")
        self.assert_error(1, "bench", "-d", 4000, "-c", 1000, says=["1000"])


if __name__ == "__main__":
    unittest.main()
