"""qevict eval codec, on synthetic data and on the default model."""
import unittest

from program import SOURCE, ProgramTest

PROSE = SOURCE / "tests" / "data" / "prose.txt"


class EvalCodec(ProgramTest):
    def test_synthetic_data_needs_no_model(self):
        run = self.json_of("eval", "codec", "--ctx-size", 64, env={"QEVICT_MODEL": "/nonexistent"})
        self.assertEqual([result["data"] for result in run["results"]], ["gaussian", "outliers", "means x10", "means x100"])
        for result in run["results"]:
            rows = {row["codec"]: row for row in result["codecs"]}
            self.assertEqual(rows["f16"]["bits_per_element"], 16)
            self.assertEqual(rows["k3v2"]["bytes_per_token"], 42)
            self.assertEqual(rows["q8_0"]["bits_per_element"], 8.5)
            self.assertLess(rows["q8_0"]["kl"], rows["q4_0"]["kl"])
            self.assertTrue(all(row["kl"] >= 0 and row["output_cosine"] <= 1.000001 for row in rows.values()))

    def test_keys_and_values_of_a_text(self):
        run = self.json_of("eval", "codec", "--text", PROSE, "--ctx-size", 69)
        self.assertEqual(len(run["results"]), 6)
        kept = run["results"][0]
        self.assertEqual((kept["head_dim"], kept["n_kv_heads"], kept["n_tokens"]), (64, 90, 69))
        rows = {row["codec"]: row for row in kept["codecs"]}
        self.assertEqual(rows["f16"]["kl"], 0)  # the cache's own f16
        self.assertLess(rows["int4"]["output_error"], rows["int2"]["output_error"])
        table = self.run_program("eval", "codec", "--text", PROSE, "--ctx-size", 69, code=0).text
        self.assertIn("| kivi-2 | 32 | 48 | 3 |", table)

    def test_calibration(self):
        path = self.folder / "model.nuq"
        calibrate = ["eval", "calibrate", "--text", PROSE, "--ctx-size", 128, "--chunks", 3, "-t", 2, "--out", path]
        run = self.json_of(*calibrate)
        self.assertEqual((run["tokens"], run["file"]), (3 * 128, str(path)))
        self.assertEqual(run["file_bytes"], path.stat().st_size)
        self.assert_error(1, *calibrate, says=[str(path), "exists"])
        codec = ["eval", "codec", "--text", PROSE, "--ctx-size", 101, "-t", 2]
        plain, calibrated = ({row["codec"]: row for row in self.json_of(*arguments)["results"][0]["codecs"]}
                             for arguments in (codec, codec + ["--calibration", path]))
        self.assertEqual(plain["k3v2"], calibrated["k3v2"])
        self.assertEqual(plain["zip42"]["window_tokens"], 95)
        for name in ("nuq2", "nuq3", "nuq4"):
            self.assertEqual(plain[name]["bytes_per_token"], calibrated[name]["bytes_per_token"])
            self.assertLess(calibrated[name]["output_error"], plain[name]["output_error"])
        damaged = self.folder / "damaged.nuq"
        damaged.write_bytes(path.read_bytes()[:-1])
        self.assert_error(1, *codec, "--calibration", damaged, says=[str(damaged), "cut or damaged"])
        self.assert_error(1, *codec, "--calibration", PROSE, says="not a KVQuant calibration")

    def test_calibration_refusals(self):
        self.assert_error(2, "eval", "calibrate", says="--text FILE is missing")
        out = self.folder / "none.nuq"
        self.assert_error(2, "eval", "calibrate", "--text", PROSE, "--ctx-size", 10, "--out", out, says="10 tokens")
        self.assert_error(2, "eval", "codec", "--calibration", out, says="--text")
        self.assert_error(1, "eval", "codec", "--text", PROSE, "--calibration", out, says=str(out))
        self.assertFalse(out.exists())

    def test_errors(self):
        self.assert_error(2, "eval", "codec", "--ctx-size", 10, says=["--ctx-size 10", "64"])
        self.assert_error(1, "eval", "codec", "--text", "/nonexistent", says="/nonexistent")


if __name__ == "__main__":
    unittest.main()
