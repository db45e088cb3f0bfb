#!/usr/bin/env python3
"""The rules of the house (docs/design.md, "Rooms"), read from the sources: who may include whom, and file sizes.

Usage: rooms.py SOURCE_DIR. Prints one line per breach and fails if there is any.
"""
import pathlib
import re
import sys

# Lowest first: a room may include itself and those before it.
ROOMS = ["base", "codec", "kernels", "cache", "ranking", "routing", "method", "diag", "model", "engine", "eval", "server"]
# The one program file that looks into a room: it prints what the kernels' own benchmark measures.
MAY_SEE = {("apps/qevict/bench_kernels.cc", "kernels/kernel_bench.h")}
# Rooms that may use less than the order allows.
ONLY = {"model": {"base", "model"}}

GGML = re.compile(r"(ggml.*|gguf|llama.*|chat|common|jinja/.*)\.h$")
JSON = re.compile(r"nlohmann/")
HTTP = re.compile(r"httplib\.h$|curl/")
JSON_ROOMS = {"diag", "eval", "server"}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)

MAX_LINES = 600
# Longer files, each with its reason.
LONG_FILES: dict[str, str] = {}

SUFFIXES = {".cc", ".h", ".cpp", ".cu"}


def sources(root):
    for folder in ("include", "src", "apps", "tests", "benchmarks"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                yield path


def room_of(relative):
    """The room's name, "apps", "include" or "tests"; benchmarks and tests may include anything."""
    parts = relative.parts
    return parts[1] if parts[0] == "src" else parts[0]


def may_include_ggml(relative):
    # Rivals in benchmarks (the same model through libllama) and tests that compare with it.
    return (room_of(relative) in ("model", "tests", "benchmarks") or relative.name.startswith("rival_")
            or relative.name.endswith("_test.cc"))


def breaches_of(relative, text):
    room = room_of(relative)
    if room not in ROOMS and room not in ("apps", "include", "tests", "benchmarks"):
        yield f"a room that is not in the list of tests/rules/rooms.py: {room}"
    for quote, header in INCLUDE.findall(text):
        if GGML.match(header) and not may_include_ggml(relative):
            yield f"includes {header}; only src/model and rival_* may see ggml and llama"
        if JSON.match(header) and room in ROOMS and room not in JSON_ROOMS and not relative.name.endswith("_test.cc"):
            yield f"includes {header}; JSON belongs in diag, eval, server and apps"
        if HTTP.match(header) and room not in ("server", "tests"):
            yield f"includes {header}; HTTP belongs in server"
        target = header.split("/")[0]
        if room == "include" and quote == '"' and not header.startswith("qevict/"):
            yield f"includes {header}; public headers include only public headers"
        if room in ROOMS and target in ROOMS and quote == '"':
            allowed = ONLY.get(room, set(ROOMS[: ROOMS.index(room) + 1]))
            if target not in allowed:
                yield f"includes {header}: an arrow from {room} up to {target}"
        if (room == "apps" and quote == '"' and target in ROOMS and target not in ("eval", "server")
                and (str(relative), header) not in MAY_SEE):
            yield f"includes {header}; programs use the public headers, eval and server"
    lines = text.count("\n")
    if lines > MAX_LINES and str(relative) not in LONG_FILES:
        yield f"{lines} lines, more than {MAX_LINES}"


def self_test():
    """The checks must be able to fail."""
    cases = [
        ("src/cache/x.cc", '#include "engine/session.h"', True),
        ("src/cache/x.cc", '#include "codec/codec.h"', False),
        ("src/model/x.cc", '#include "cache/head_cache.h"', True),
        ("src/cache/x.cc", "#include <ggml.h>", True),
        ("src/cache/x.cc", '#include "llama.h"', True),
        ("src/model/x.cc", "#include <ggml-cpu.h>", False),
        ("apps/qevict/rival_llama.cc", "#include <llama.h>", False),
        ("apps/qevict/bench.cc", "#include <llama.h>", True),
        ("apps/qevict/bench.cc", '#include "kernels/kernel_bench.h"', True),
        ("apps/qevict/bench_kernels.cc", '#include "kernels/kernel_bench.h"', False),
        ("src/routing/x.h", "#include <nlohmann/json.hpp>", True),
        ("include/qevict/x.h", '#include "base/check.h"', True),
        ("include/qevict/x.h", '#include "qevict/result.h"', False),
        ("src/codec/x.cc", "\n" * 601, True),
    ]
    for name, text, expected in cases:
        found = list(breaches_of(pathlib.PurePosixPath(name), text))
        assert bool(found) == expected, f"{name} with {text.strip()!r}: {found}"


def main():
    self_test()
    root = pathlib.Path(sys.argv[1])
    files = list(sources(root))
    assert len(files) > 20, f"only {len(files)} sources under {root}"
    found = [f"{path.relative_to(root)}: {breach}" for path in files
             for breach in breaches_of(path.relative_to(root), path.read_text(encoding="utf-8"))]
    print("\n".join(found) if found else f"{len(files)} files keep the rules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
