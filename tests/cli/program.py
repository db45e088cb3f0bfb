"""Runs build/qevict as its users do. Every run is checked to end without a signal."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["QEVICT_TEST_PROGRAM"]
MODEL = os.environ["QEVICT_TEST_MODEL"]
SOURCE = pathlib.Path(__file__).resolve().parents[2]
SCRATCH = pathlib.Path(os.environ["QEVICT_TEST_SCRATCH"])
DEMO = SOURCE / "apps" / "qevict" / "demo.txt"
TIMEOUT = 240
# A run's fixed part: everything about it repeatable, and two threads at most.
GREEDY = ["--temp", "0", "-t", "2"]


def environment(extra=None):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("QEVICT_")}
    return clean | {"QEVICT_MODEL": MODEL} | (extra or {})


class Run:
    def __init__(self, code, stdout, stderr):
        self.code, self.stdout, self.stderr = code, stdout, stderr

    @property
    def text(self):
        return self.stdout.decode("utf-8")

    @property
    def notes(self):
        return self.stderr.decode("utf-8")

    def json(self):
        return json.loads(self.text)


class ProgramTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        SCRATCH.mkdir(parents=True, exist_ok=True)
        cls._folder = tempfile.TemporaryDirectory(dir=SCRATCH)
        cls.folder = pathlib.Path(cls._folder.name)

    @classmethod
    def tearDownClass(cls):
        cls._folder.cleanup()

    def run_program(self, *arguments, stdin=b"", env=None, close=(), code=None):
        def close_descriptors():
            for descriptor in close:
                os.close(descriptor)

        done = subprocess.run([PROGRAM, *map(str, arguments)], input=stdin, capture_output=True, timeout=TIMEOUT,
                              env=environment(env), preexec_fn=close_descriptors if close else None)
        run = Run(done.returncode, done.stdout, done.stderr)
        self.assertGreaterEqual(run.code, 0, f"ended by a signal: {arguments}\n{run.stderr!r}")
        if code is not None:
            self.assertEqual(run.code, code, f"{arguments}\n{run.stderr!r}")
        return run

    def json_of(self, *arguments, **options):
        return self.run_program(*arguments, "--json", code=0, **options).json()

    def assert_error(self, code, *arguments, says=(), **options):
        """The whole of stderr is one error line that contains each of `says`; nothing on stdout."""
        run = self.run_program(*arguments, code=code, **options)
        lines = run.notes.splitlines()
        self.assertEqual(len(lines), 1, run.notes)
        self.assertTrue(lines[0].startswith("qevict: error: "), lines[0])
        self.assertEqual(run.stdout, b"")
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, lines[0])
        return lines[0]

    def start(self, *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE):
        return subprocess.Popen([PROGRAM, *map(str, arguments)], stdin=stdin, stdout=stdout, stderr=subprocess.PIPE,
                                env=environment(), restore_signals=True)

    def finish(self, process, sent=signal.SIGINT):
        """Sends the signal and returns the ended run."""
        process.send_signal(sent)
        stdout, stderr = process.communicate(timeout=30)
        return Run(process.returncode, stdout or b"", stderr)


def words(count):
    """A prompt of that many tokens of the default model."""
    return " ".join(["the"] * count)


def summary_numbers(notes):
    """("prompt", "generated") token counts of the end-of-run summary."""
    prompt = re.search(r"^prompt +([\d,]+) tokens", notes, re.M)
    generated = re.search(r"^generated +([\d,]+) tokens", notes, re.M)
    return tuple(int(match[1].replace(",", "")) for match in (prompt, generated))
