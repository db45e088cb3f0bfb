#!/usr/bin/env python3
"""Runs `qevict generate` for methods x budgets on one prompt and prints a Markdown table (docs/measurements.md).

    tools/generate_table.py --text FILE [--bytes N] [-n 256] [--methods a,b] [--budgets 20%,10%]

Each run is a process of its own; peak RSS is the kernel's for that process, weights included.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile


def run(binary, prompt, method, budget, n):
    command = [binary, "generate", "-f", prompt, "-n", str(n), "--temp", "0", "--ignore-eos", "--json", "--kv-method", method]
    if budget:
        command += ["--kv-budget", budget]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"generate_table: {' '.join(command)} failed")
    return json.loads(output), usage.ru_maxrss * 1024


def mib(count):
    return f"{count / 2**20:.2f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/qevict")
    parser.add_argument("--text", required=True)
    parser.add_argument("--bytes", type=int, help="use only the first bytes of the text")
    parser.add_argument("-n", type=int, default=256)
    parser.add_argument("--methods", default="full,r2,streaming-llm,qevict-paper")
    parser.add_argument("--budgets", default="20%,10%")
    options = parser.parse_args()

    with open(options.text, "rb") as text, tempfile.NamedTemporaryFile(suffix=".txt") as prompt:
        prompt.write(text.read(options.bytes))
        prompt.flush()
        print("| method | budget | prompt tokens | TTFT s | decode tok/s | KV MiB: f16 | full | quantized | ledger | metadata | "
              "peak | ratio | promotions | evictions | peak RSS MiB |")
        print("|---" * 15 + "|")
        for method in options.methods.split(","):
            for budget in [None] if method == "full" else options.budgets.split(","):
                result, rss = run(options.binary, prompt.name, method, budget, options.n)
                tiers = result["kv_bytes_tiers"]
                print(f"| {method} | {budget or '-'} | {result['prompt_tokens']} | {result['ttft_ms'] / 1000:.2f} | "
                      f"{result['decode_tps']:.1f} | " + " | ".join(mib(tiers[t]) for t in
                      ("f16", "full", "quantized", "ledger", "metadata")) +
                      f" | {mib(result['kv_bytes_peak'])} | {result['kv_ratio_peak']:.4f} | {result['promotions']} | "
                      f"{result['evictions']} | {mib(rss)} |", flush=True)


if __name__ == "__main__":
    main()
