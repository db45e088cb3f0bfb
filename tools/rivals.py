#!/usr/bin/env python3
"""Every method of the table on the same kernels at the same measured bytes: writes docs/rivals.md and docs/rivals.svg.

    build/qevict eval f32-copy --out build/smol-f32.gguf
    tools/rivals.py --text book.txt -m build/smol-f32.gguf            # 2 hours on two cores

Four measurements a method: divergence from the full cache while decoding (`eval perplexity`) at each budget, facts asked for
after the prompt was compressed (`eval facts`) at each budget, and decode speed at depth 7,680 (`bench`, the default model).
Quantizers take no budget: they are measured once, where they are. Each finished command is a JSON file in --runs, which a
later call takes instead of running it again (--report: run nothing).
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import time

from quality_chart import LogChart

ROOT = pathlib.Path(__file__).resolve().parents[1]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("-m", "--model", help="the f32 copy (default: the program's own default model)")
    parser.add_argument("--binary", default=str(ROOT / "build" / "qevict"))
    parser.add_argument("--methods", help="comma-separated (default: all)")
    parser.add_argument("--prompt-only", default="snapkv,adakv,criticalkv,defensivekv,layer-defensivekv",
                        help="also measured in their native form, which compresses the prompt alone")
    parser.add_argument("--budgets", default="20%,10%,5%")
    parser.add_argument("--chunks", default="8,8,4", help="for each budget: of 2,048 + 256 tokens, below 10 %% of 4,096 + 256")
    parser.add_argument("--samples", type=int, default=4, help="documents of 16 facts")
    parser.add_argument("--depth", type=int, default=7680)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--calibration", metavar="TEXT", help="calibrate kvquant-* on this text, not one measured on (a file "
                        "beside each model; default: what is there, else NormalFloat)")
    parser.add_argument("--no-bench", action="store_true")
    parser.add_argument("--runs", default="rivals-runs", help="folder")
    parser.add_argument("--out", default=str(ROOT / "docs" / "rivals"), help="without .md and .svg")
    parser.add_argument("--report", action="store_true", help="run nothing")
    return parser.parse_args()


def run(options, name, command):
    """The JSON that the command writes, from the runs folder if it is there."""
    file = pathlib.Path(options.runs) / f"{name}.json"
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    if options.report:
        return None
    start = time.monotonic()
    print(f"{name} ...", end="", file=sys.stderr, flush=True)
    done = subprocess.run([options.binary, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"\nrivals: {shlex.join(command)}\n{done.stderr.strip()}")
    print(f" {time.monotonic() - start:.0f} s", file=sys.stderr)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(done.stdout, encoding="utf-8")
    return json.loads(done.stdout)


def sizes(budget, options):
    """Tokens read, chunks."""
    small = float(budget.rstrip("%")) < 10
    return 4096 if small else 2048, int(options.chunks.split(",")[options.budgets.split(",").index(budget)])


def measure(options, table):
    model = ["-m", options.model] if options.model else []
    common = ["--json", "--text", options.text, "-t", str(options.threads), *model]
    with_budget = [row["name"] for row in table if row["compresses"] and not row["quantizes_everything"]]
    quantizers = [row["name"] for row in table if row["quantizes_everything"]]
    native = [f"{name}:budget-base=prompt" for name in options.prompt_only.split(",") if name in with_budget]
    results = {}
    for i, of_model in enumerate([[], model] if options.calibration else []):
        run(options, f"calibrate-{i}", ["eval", "calibrate", "--json", "--text", options.calibration, *of_model])
    for i, budget in enumerate(options.budgets.split(",")):
        prefill, chunks = sizes(budget, options)
        methods = with_budget + native + (quantizers if i == 0 else [])
        results["perplexity", budget] = run(
            options, f"perplexity-{budget.rstrip('%')}",
            ["eval", "perplexity", *common, "-c", str(prefill + 256), "--prefill", str(prefill), "--chunks", str(chunks),
             "--kv-budget", budget, "--kv-method", ",".join(methods)])
        results["facts", budget] = run(
            options, f"facts-{budget.rstrip('%')}",
            ["eval", "facts", "--json", "--text", options.text, "-t", str(options.threads), "-c", str(prefill),
             "--samples", str(options.samples), "--kv-budget", budget, "--kv-method", ",".join(methods)])
    if not options.no_bench:
        results["bench"] = bench(options, ["full", *with_budget, *quantizers])
    return results


def bench(options, methods, at_once=6):
    """The rows of `methods`, a few to a run: each run has its own llama.cpp beside it, and a stopped one costs minutes."""
    rows = [row for file in sorted(pathlib.Path(options.runs).glob("bench-*.json")) for row in json.loads(file.read_text())]
    missing = [name for name in methods if name not in {row["method"] for row in rows}]
    for group in (missing[i:i + at_once] for i in range(0, len(missing), at_once)):
        rows += run(options, f"bench-{group[0]}",
                    ["bench", "-t", str(options.threads), "-p", "0", "-n", "32", "-r", "5", "-d", str(options.depth),
                     "--keep-fill", "--kv-budget", options.budgets.split(",")[0], "--kv-method", ",".join(group),
                     "--vs", "llama.cpp", "-o", "json"]) or []
    return rows


def rows_of(result):
    return {row["label"]: row for row in result["results"]} if result else {}


def line(name, perplexity, facts, speed):
    cells = [name]
    if perplexity:
        cells += [f"{perplexity['kv_ratio_mean']:.4f}", f"{perplexity['kv_ratio_peak']:.4f}", f"{perplexity['kv_ratio_final']:.4f}",
                  f"{perplexity['kld_mean']:.4f} ± {perplexity['kld_mean_uncertainty']:.4f}", f"{perplexity['same_top']:.3f}"]
    else:
        cells += [""] * 5
    cells.append(f"{facts['digits_teacher_forced']:.3f} ± {facts['digits_teacher_forced_uncertainty']:.3f}" if facts else "")
    cells.append(speed)
    return "| " + " | ".join(cells) + " |"


def machine(results):
    """Where the speeds were taken."""
    row = next(iter(results.get("bench") or []), None)
    return f" ({row['n_threads']} threads, SIMD target {row['simd']})" if row else ""


HEADER = ["| method | ratio mean | peak | end | mean KL | same top | facts | decode tokens/s (÷ llama.cpp, spread) |", "|---" * 8 + "|"]


def report(options, table, results):
    benched = {row["method"]: row for row in results.get("bench") or [] if row["engine"] == "qevict"}

    def speed(name):
        row = benched.get(name)
        if not row:
            return ""
        ratio = (row.get("vs") or {}).get("decode_tps") or {}
        over = f" ({ratio['median']:.2f}, {ratio['min']:.1f}–{ratio['max']:.1f})" if "median" in ratio else ""
        return f"{row['decode_tps']['median']:.1f}{over}"

    command = " ".join(shlex.quote(part) for part in ["tools/rivals.py", *sys.argv[1:]] if part != "--report")
    first = next((r for (task, *_), r in results.items() if task == "perplexity" and r), None)
    if first is None:
        sys.exit("rivals: nothing was measured")
    out = ["# Every method at the same bytes", "", f"Written by `{command}`.", "",
           f"Divergence: {first['model']['name']} ({first['model']['weights']}), {pathlib.Path(first['text']).name}; the text is "
           "read exactly, compressed, and the rest decoded with the true tokens and routing live, beside the full cache. Facts: share of "
           f"the digits of {16 * options.samples} made-up numbers that the default model still gives when asked after the compression "
           "(the answers are fed). Ratios are measured bytes over an f16 cache: over the tokens so far (mean), of the whole sequence "
           "(peak, end). `:budget-base=prompt`: the method's native form, which compresses the prompt and keeps all that follows; its "
           "end ratio is the one to compare. Sorted by KL, quantizers by their bytes.", "",
           f"Speed: tokens/s at depth {options.depth:,}, medians of five times 32 tokens, `qevict bench --keep-fill` on the default model; in "
           "brackets over llama.cpp's with an f16 cache in the same run, the better of its flash attention on and off: median, least and "
           f"most{machine(results)}. The full cache: {speed('full')}.", ""]
    quantizers = {row["name"] for row in table if row["quantizes_everything"]}
    budgets = options.budgets.split(",")
    points = []
    for budget in budgets:
        perplexity, facts = rows_of(results.get(("perplexity", budget))), rows_of(results.get(("facts", budget)))
        if not perplexity:
            continue
        prefill, chunks = sizes(budget, options)
        tokens = next(iter(perplexity.values()))["tokens"]
        out += [f"## {budget}", "", f"{chunks} chunks of {prefill:,} + 256 tokens, {tokens:,} scored; facts in documents of {prefill:,} tokens"
                + (f" (the full cache: {facts['full']['digits_teacher_forced']:.3f})" if "full" in facts else "") + ".", "", *HEADER]
        for name in sorted((n for n in perplexity if n not in quantizers), key=lambda n: perplexity[n]["kld_mean"]):
            out.append(line(name, perplexity[name], facts.get(name), speed(name) if budget == budgets[0] else ""))
            points.append((name, perplexity[name]))
        out.append("")
        if budget == budgets[0] and any(name in quantizers for name in perplexity):
            out += ["## Quantization alone, at its own bytes", ""]
            if options.calibration:
                out += [f"`kvquant-*`: key ranges and levels from {pathlib.Path(options.calibration).name} (`eval calibrate`).", ""]
            out += HEADER
            for name in sorted((n for n in perplexity if n in quantizers), key=lambda n: perplexity[n]["kv_ratio_final"]):
                out.append(line(name, perplexity[name], facts.get(name), speed(name)))
                points.append((name, perplexity[name]))
            out.append("")
    pathlib.Path(options.out + ".md").write_text("\n".join(out), encoding="utf-8")
    pathlib.Path(options.out + ".svg").write_text(chart(first, points, quantizers), encoding="utf-8")
    print(f"{options.out}.md and .svg", file=sys.stderr)


def chart(run, points, quantizers):
    def group(name):
        if name.startswith("qevict"):
            return name.split(":")[0] if name in ("qevict", "qevict-paper") else "qevict's variants"
        return "quantization" if name in quantizers else "native, prompt only" if ":" in name else "eviction"

    points = [(name, result) for name, result in points if result["kld_mean"] > 0]
    names = ["qevict", "qevict-paper", "qevict's variants", "eviction", "native, prompt only", "quantization"]
    drawing = LogChart("Every method at its measured bytes",
                       f"mean KL divergence from the full cache; {run['model']['name']}, {run['model']['weights']}",
                       [result["kv_ratio_final"] for _, result in points], [result["kld_mean"] for _, result in points])
    for name, result in points:
        drawing.point(names.index(group(name)), result["kv_ratio_final"], result["kld_mean"],
                      radius=4 if name == "qevict" else 3, hint=name)
    drawing.labels(names)
    return drawing.svg()


def main():
    options = arguments()
    table = json.loads(subprocess.run([options.binary, "methods", "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout)
    if options.methods:
        table = [row for row in table if row["name"] in options.methods.split(",")]
    try:
        results = measure(options, table)
    except KeyboardInterrupt:
        sys.exit("\nrivals: stopped; the same command goes on from here")
    report(options, table, results)


if __name__ == "__main__":
    main()
