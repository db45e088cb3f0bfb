#!/usr/bin/env python3
"""Measures what each part of a method is worth: `qevict eval perplexity` (and facts) over many settings.

    build/qevict eval f32-copy --out build/smol-f32.gguf
    tools/ablation.py --text book.txt -m build/smol-f32.gguf                  # one axis at a time, around the method's row
    tools/ablation.py --text book.txt -m build/smol-f32.gguf --grid codec=k3v2,k4v4 --grid allocator=equal,head-adaptive

Without --grid each axis of AXES is varied alone. Each --grid AXIS=a,b,... puts an axis into a full product instead; an axis
is any --kv-... option without its --kv-, and the value - leaves the method's own. Variants are measured in groups, in one
process each, so that the full cache beside them is computed once a group. Every finished variant is a line of the runs
file; a later call with the same text, model and sizes takes it from there and goes on. Settings the program refuses are kept
as such and listed. At the end docs/ablation.md and docs/ablation.svg are written (--report: only that).
"""
import argparse
import itertools
import json
import pathlib
import re
import shlex
import subprocess
import sys
import time

from quality_chart import LogChart

AXES = {
    "codec": ["int2", "int4", "k2v2", "k3v2", "k3v3", "k4v2", "k4v3", "k4v4"],
    "ranking": ["cumulative", "decayed", "observed", "blended", "expected", "pnorm", "snapkv", "key-norm", "recency", "random"],
    "decay": ["0.97", "0.995", "1"],
    "weight": ["value-norm", "projected-norm"],
    "allocator": ["head-adaptive", "head-adaptive:floor=0.5", "layer-adaptive", "layer-adaptive:floor=0.5"],
    "quant-share": ["50%", "70%", "90%", "100%"],
    "quant-loss": ["0.1", "0.4"],
    "coverage": ["0", "0.1", "0.6", "1"],
    "window": ["8", "16", "32"],
    "interval": ["4", "8", "16", "32"],
}
ROOT = pathlib.Path(__file__).resolve().parents[1]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("-m", "--model", help="the f32 copy (default: the program's own default model)")
    parser.add_argument("--binary", default=str(ROOT / "build" / "qevict"))
    parser.add_argument("--method", default="qevict", help="whose parts are varied")
    parser.add_argument("--budgets", default="20%,10%")
    parser.add_argument("--grid", action="append", default=[], metavar="AXIS=a,b,...")
    parser.add_argument("--fixed", action="append", default=[], metavar="AXIS=value", help="in all variants")
    parser.add_argument("-c", "--ctx-size", type=int, default=1152)
    parser.add_argument("--prefill", type=int, default=1024)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--facts", type=int, default=0, metavar="SAMPLES", help="also eval facts, on so many documents")
    parser.add_argument("--group", type=int, default=24, help="variants of one process")
    parser.add_argument("--runs", default="ablation.jsonl")
    parser.add_argument("--out", default=str(ROOT / "docs" / "ablation"), help="without .md and .svg")
    parser.add_argument("--report", action="store_true", help="run nothing")
    return parser.parse_args()


def axis_of(text):
    name, equals, values = text.partition("=")
    if not name or not equals or not values:
        sys.exit(f"ablation: '{text}' is not AXIS=value,value")
    return name, values.split(",")


def variants_of(options):
    """Variants in the program's own notation: qevict:codec=k3v2:budget=20%."""
    fixed = [f"{name}={values[0]}" for name, values in map(axis_of, options.fixed)]
    if options.grid:
        axes = [[f"{name}={value}" if value != "-" else "" for value in values] for name, values in map(axis_of, options.grid)]
        parts = [list(chosen) for chosen in itertools.product(*axes)]
    else:
        parts = [[]] + [
            [f"{name}={value}" if value else name] for name, values in AXES.items() for value in values
        ]
    result = []
    for budget in options.budgets.split(","):
        for chosen in parts:
            result.append(":".join([options.method, *fixed, *filter(None, chosen), f"budget={budget}"]))
    return list(dict.fromkeys(result))


class Runs:
    """Finished variants, one JSON object a line: what was asked (`key`) and the result or the refusal."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.rows = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # cut off by an interrupt: run again
                self.rows[json.dumps(row["key"], sort_keys=True)] = row

    def get(self, key):
        return self.rows.get(json.dumps(key, sort_keys=True))

    def add(self, key, **row):
        row = {"key": key} | row
        self.rows[json.dumps(key, sort_keys=True)] = row
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def tasks_of(options):
    """{task: arguments after `eval TASK`}"""
    common = ["--json", "--text", options.text, "-t", str(options.threads)] + (["-m", options.model] if options.model else [])
    tasks = {"perplexity": common + ["-c", str(options.ctx_size), "--prefill", str(options.prefill), "--chunks", str(options.chunks)]}
    if options.facts:
        tasks["facts"] = common + ["-c", str(options.prefill), "--samples", str(options.facts)]
    return tasks


def key_of(task, arguments_of_task, variant):
    return {"task": task, "arguments": arguments_of_task, "variant": variant}


def measure(options, task, task_arguments, variants):
    """(JSON object, "") or (None, the program's error line)."""
    command = [options.binary, "eval", task, *task_arguments, "--kv-method", ",".join(variants)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout), ""
    if done.returncode != 2 and len(variants) == 1:
        sys.exit(f"ablation: {shlex.join(command)}\n{done.stderr.strip()}")
    return None, done.stderr.strip().removeprefix("qevict: error: ")


class Progress:
    def __init__(self, total):
        self.total, self.done, self.refused, self.start = total, 0, 0, time.monotonic()

    def show(self, task, variants):
        spent = time.monotonic() - self.start
        left = spent / self.done * (self.total - self.done) if self.done else None
        clock = lambda seconds: f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"
        line = (f"[{self.done}/{self.total}] {clock(spent)} gone, {clock(left) + ' left' if left else '...'}, "
                f"{self.refused} refused; {task} of {len(variants)}: {variants[0]}")
        print(("\r\x1b[K" if sys.stderr.isatty() else "") + line, end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


def run_all(options, runs, variants):
    tasks = tasks_of(options)
    missing = [(task, variant) for task in tasks for variant in variants if not runs.get(key_of(task, tasks[task], variant))]
    progress = Progress(len(missing))
    for task in tasks:
        todo = [variant for name, variant in missing if name == task]
        queue = [todo[at : at + options.group] for at in range(0, len(todo), options.group)]
        while queue:
            group = queue.pop(0)
            progress.show(task, group)
            result, error = measure(options, task, tasks[task], group)
            if result is None and len(group) > 1:  # one of them is refused: halve until it is found
                queue[:0] = [group[: len(group) // 2], group[len(group) // 2 :]]
                continue
            if result is None:
                runs.add(key_of(task, tasks[task], group[0]), error=error)
                progress.refused += 1
            else:
                head = {name: value for name, value in result.items() if name != "results"}
                rows = [row for row in result["results"] if row["label"] in group]
                for row in rows:
                    runs.add(key_of(task, tasks[task], row["label"]), run=head, result=row)
                if task == "facts":
                    runs.add(key_of(task, tasks[task], "full"), run=head, result=result["results"][0])
            progress.done += len(group)
    if sys.stderr.isatty() and missing:
        print(file=sys.stderr)


def settings_of(variant):
    """"codec=k3v2, window=16" of a variant, without its budget."""
    parts = [part for part in variant.split(":")[1:] if not part.startswith("budget=")]
    return ", ".join(parts) or "the method's own"


def axes_in(variants):
    return list(dict.fromkeys(part.split("=")[0] for variant in variants for part in variant.split(":")[1:]
                              if not part.startswith("budget=")))


def report(options, runs, variants):
    tasks = tasks_of(options)
    rows = [(variant, runs.get(key_of("perplexity", tasks["perplexity"], variant))) for variant in variants]
    measured = [(variant, row["result"]) for variant, row in rows if row and "result" in row]
    refused = [(variant, row["error"]) for variant, row in rows if row and "error" in row]
    if not measured:
        sys.exit("ablation: nothing was measured" + "".join(f"\n  {variant}: {error}" for variant, error in refused))
    run = next(row["run"] for _, row in rows if row and "run" in row)
    facts = {variant: row["result"] for variant in variants if options.facts
             for row in [runs.get(key_of("facts", tasks["facts"], variant))] if row and "result" in row}

    command = " ".join(shlex.quote(part) for part in ["tools/ablation.py", *sys.argv[1:]] if part != "--report")
    out = ["# Ablation", "", f"Written by `{command}`.", "",
           f"Model {run['model']['name']} ({run['model']['weights']}), text {pathlib.Path(run['text']).name}; {options.chunks} chunks at "
           f"most of {run['ctx_size']} tokens, {run['prefill']} of them read, the rest decoded with routing live "
           f"({measured[0][1]['tokens']} scored tokens). KL and same top: against the full cache in lock-step. Sorted by KL; "
           f"method `{options.method}`, settings not named are its own.", ""]
    if facts:
        full = runs.get(key_of("facts", tasks["facts"], "full"))
        out += [f"Facts: digits right when the answers are fed, {options.facts} documents of {options.prefill} tokens with 16 facts"
                + (f"; the full cache: {full['result']['digits_teacher_forced']:.3f}." if full else "."), ""]
    for budget in options.budgets.split(","):
        out += [f"## {budget}", "", "| settings | KV ratio peak | mean | mean KL | 99 % | same top | ln(PPL/full) | cache ms/token |"
                + (" digits |" if facts else ""), "|---" * (8 + bool(facts)) + "|"]
        of_budget = [pair for pair in measured if pair[0].endswith(f":budget={budget}")]
        for variant, result in sorted(of_budget, key=lambda pair: pair[1]["kld_mean"]):
            line = (f"| {settings_of(variant)} | {result['kv_ratio_peak']:.4f} | {result['kv_ratio_mean']:.4f} | "
                    f"{result['kld_mean']:.5f} ± {result['kld_mean_uncertainty']:.5f} | {result['kld_p99']:.3f} | "
                    f"{result['same_top']:.3f} | {result['ln_ppl_ratio']:+.4f} ± {result['ln_ppl_ratio_uncertainty']:.4f} | "
                    f"{result['cache_ms_per_token']:.1f} |")
            if facts:
                line += f" {facts[variant]['digits_teacher_forced']:.3f} |" if variant in facts else " |"
            out.append(line)
        out.append("")
    if refused:
        out += ["## Refused by the program", ""] + [f"- `{variant}`: {re.sub(r'^--kv-method [^:]*(:[^ ]*)?: ', '', error)}" for variant, error in refused] + [""]
    pathlib.Path(options.out + ".md").write_text("\n".join(out), encoding="utf-8")
    pathlib.Path(options.out + ".svg").write_text(chart(run, measured), encoding="utf-8")
    print(f"{options.out}.md and .svg: {len(measured)} variants, {len(refused)} refused", file=sys.stderr)


def chart(run, measured):
    """KL against ratio, coloured by the axis that was varied (one at a time), or by the first axis of the grid."""
    def group(variant):
        own = [part.split("=")[0] for part in variant.split(":")[1:] if not part.startswith("budget=")]
        return own[0] if own else "the method's own"

    axes = axes_in([variant for variant, _ in measured])
    one_at_a_time = all(len(settings_of(variant).split(", ")) <= 1 for variant, _ in measured)
    if not one_at_a_time:
        def group(variant):  # noqa: F811
            return next((part for part in variant.split(":") if part.startswith(axes[0] + "=")), f"{axes[0]}: its own")
    names = list(dict.fromkeys(group(variant) for variant, _ in measured))
    model = run["model"]
    drawing = LogChart("Parts of the method", f"mean KL divergence from the full cache; {model['name']}, {model['weights']}",
                       [result["kv_ratio_peak"] for _, result in measured],
                       [max(result["kld_mean"], 1e-6) for _, result in measured])
    for variant, result in measured:
        drawing.point(names.index(group(variant)), result["kv_ratio_peak"], result["kld_mean"],
                      radius=4 if group(variant) == "the method's own" else 3, hint=settings_of(variant))
    drawing.labels(names)
    return drawing.svg()


def main():
    options = arguments()
    variants = variants_of(options)
    runs = Runs(options.runs)
    try:
        if not options.report:
            run_all(options, runs, variants)
    except KeyboardInterrupt:
        sys.exit("\nablation: stopped; the same command goes on from here")
    report(options, runs, variants)


if __name__ == "__main__":
    main()
