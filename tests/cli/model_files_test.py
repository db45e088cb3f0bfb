"""Missing, damaged and wrong model files: one line, exit code 1, no signal."""
import os
import unittest

from program import MODEL, ProgramTest


class ModelFiles(ProgramTest):
    def refuse(self, path, *says):
        for command in (["generate", "-p", "x", "-n", "1"], ["info"], ["chat"], ["bench", "-p", "1", "-n", "1", "-r", "1"]):
            with self.subTest(command=command[0]):
                self.assert_error(1, *command, "-m", path, says=[str(path), *says])

    def test_missing(self):
        self.refuse(self.folder / "absent.gguf")

    def test_a_folder(self):
        self.refuse(self.folder)

    @unittest.skipIf(os.geteuid() == 0, "root may read anything")
    def test_unreadable(self):
        path = self.folder / "secret.gguf"
        path.write_bytes(b"GGUF")
        path.chmod(0)
        self.refuse(path)

    def test_empty(self):
        path = self.folder / "empty.gguf"
        path.write_bytes(b"")
        self.refuse(path)

    def test_text_renamed(self):
        path = self.folder / "text.gguf"
        path.write_text("This is not a model.\n" * 100)
        self.refuse(path)

    def test_cut(self):
        size = os.path.getsize(MODEL)
        for length in (4, 1000, size // 2, size - 1):
            with self.subTest(length=length):
                path = self.folder / "cut.gguf"
                with open(MODEL, "rb") as whole, open(path, "wb") as part:
                    part.write(whole.read(length))
                self.refuse(path)

    def test_lying_header(self):
        with open(MODEL, "rb") as whole:
            head = bytearray(whole.read(1 << 20))
        for name, at, value in [("version", 4, 0xFFFFFFFF), ("tensors", 8, 0xFFFFFFFFFFFF), ("keys", 16, 0xFFFFFFFFFFFF)]:
            with self.subTest(lie=name):
                lying = bytearray(head)
                lying[at:at + (4 if name == "version" else 8)] = value.to_bytes(4 if name == "version" else 8, "little")
                path = self.folder / "lying.gguf"
                path.write_bytes(lying)
                self.refuse(path)


if __name__ == "__main__":
    unittest.main()
