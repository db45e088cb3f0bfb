#!/usr/bin/env python3
"""Writes docs/methods.md from `qevict methods --json`: every method with its paper, parameters and exact bytes.

    tools/methods_page.py build/qevict > docs/methods.md
"""
import json
import subprocess
import sys

GROUPS = [
    ("Full cache", lambda m: not m["compresses"]),
    ("Recoverable: full, quantized and evicted windows",
     lambda m: m["compresses"] and m["codec"] and not m["quantizes_everything"]),
    ("Eviction only", lambda m: m["compresses"] and not m["codec"]),
    ("Quantization only", lambda m: m["quantizes_everything"]),
]

HEAD = """# Methods

Written by `tools/methods_page.py build/qevict`; a test compares. All run on the same cache, kernels and byte counter
([design.md](design.md), "Rivals", says where a row differs from its paper's program). Any part can be changed:
`--kv-ranking`, `--kv-codec`, `--kv-allocator`, `--kv-weight`, `--kv-window`, `--kv-recent`, ... (`qevict generate --help`; `qevict methods`
lists rankings, codecs and so on by name). `eval` also compares variants of one row: `--kv-method qevict,qevict:window=16:budget=10%`.

Bytes are of one token of one KV head, metadata included, for heads of 64 channels with 3 query heads each | heads of 128 with 4;
f16 alone takes 256 | 512. "Per head": frozen parameters and kept queries. Recent: newest tokens at full precision, at most so
many and so much of a head's bytes."""


def number(value):
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def both(method, field):
    small, large = method["bytes_per_token"]["head_dim_64"], method["bytes_per_token"]["head_dim_128"]
    return f"{number(small[field])} \\| {number(large[field])}" if field in small and small[field] else ""


def parameters(method):
    if not method["compresses"]:
        return ""
    parts = [f"window {method['window_tokens']}", f"sinks {method['sink_tokens']}"]
    most, share = method["recent_tokens"], method["recent_per_mille"] / 10
    if method["quantizes_everything"]:
        parts.append(f"recent {most}")
    else:
        parts.append(f"recent {share:g} %" if most > 1 << 20 else f"recent {most}, {share:g} %")
    parts.append(f"every {method['interval_steps']} steps")
    if method["codec"]:
        parts.append(f"codec {method['codec']}")
        if not method["quantizes_everything"]:
            parts.append("split by gain" if method["spending"] == "by_gain" else f"{method['quantized_per_mille'] / 10:g} % to codes")
            parts.append("promotion" if method["promotion"] else "no promotion")
    if not method["quantizes_everything"] or method["ranking"] != "recency":
        parts.append(f"ranking {method['ranking']}")
    if method["weight"] != "none":
        parts.append(f"weight {method['weight']}")
    if method["first_stage_per_mille"]:
        parts.append(f"{method['first_stage_per_mille'] / 10:g} % by score alone")
    if method["allocator"] != "equal":
        floor = f", floor {method['floor']:g}" if method["allocator"] in ("head-adaptive", "layer-adaptive", "head-mixed") else ""
        shared = {0: ", frozen while decoding", 1: ""}.get(method["split_events"], f", anew every {method['split_events']} routings")
        parts.append(f"allocator {method['allocator']}{floor}" + (shared if method["allocator"] != "one-set" else ""))
    if method["in_cache_positions"]:
        parts.append("positions in the cache")
    return "; ".join(parts)


def main():
    table = json.loads(subprocess.run([sys.argv[1], "methods", "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout)
    lines = [HEAD]
    for title, holds in GROUPS:
        lines += ["", f"## {title}", "", "| method | what it keeps | paper | parameters | f16 token | coded token | per head |", "|---" * 7 + "|"]
        for m in filter(holds, table):
            lines.append(f"| `{m['name']}` | {m['summary']} | {m['paper']} | {parameters(m)} | {both(m, 'full')} | "
                         f"{both(m, 'quantized')} | {both(m, 'per_head')} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
