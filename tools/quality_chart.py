#!/usr/bin/env python3
"""Draws divergence from the full cache against measured bytes from the output of `qevict eval perplexity --json`
(docs/quality.svg).

    build/qevict eval perplexity --json -m f32.gguf --text book.txt -c 1152 --prefill 1024 --chunks 4 --kv-method \\
        qevict:budget=5%,qevict:budget=10%,qevict:budget=20%,r2:budget=5%,r2:budget=10%,r2:budget=20% > quality.json
    tools/quality_chart.py quality.json > docs/quality.svg

One line a method (with its options other than the budget), one point a budget, at the ratio that was measured, not the one
asked for. Bars are the uncertainty of the mean. Several files are taken together; the later of two equal points wins.
"""
import html
import json
import math
import sys

from decode_chart import BOTTOM, HEIGHT, LEFT, RIGHT, STYLES, TOP, WIDTH, round_step, spread_labels


class LogChart:
    """KL on a logarithmic axis over the KV ratio in per cent, in the house's style (tools/decode_chart.py)."""

    def __init__(self, title, caption, ratios, kls):
        self.title, self.caption = title, caption
        self.step = round_step(max(ratios) * 100, 8)
        self.most = max(math.ceil(max(ratios) * 100 / self.step), 1) * self.step
        self.low, self.high = math.floor(math.log10(min(kls)) * 4) / 4, math.ceil(math.log10(max(kls)) * 4) / 4
        if self.high - self.low < 0.5:
            self.high = self.low + 0.5
        self.marks = []

    def x(self, ratio):
        return LEFT + ratio * 100 / self.most * (WIDTH - LEFT - RIGHT)

    def y(self, kl):
        share = (math.log10(max(kl, 10 ** self.low)) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def point(self, style, ratio, kl, uncertainty=0.0, radius=3, hint=""):
        style %= len(STYLES)
        x, low, high = self.x(ratio), self.y(kl - uncertainty), self.y(kl + uncertainty)
        if low - high > 9:  # more than the dot hides
            self.marks.append(f'<line class="line{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{high:.1f}" y2="{low:.1f}" stroke-width="1"/>')
        hint = f"<title>{html.escape(hint)}</title>" if hint else ""
        self.marks.append(f'<circle class="ink{style}" cx="{x:.1f}" cy="{self.y(kl):.1f}" r="{radius}">{hint}</circle>')

    def line(self, style, points):
        style %= len(STYLES)
        path = " ".join(f"{self.x(ratio):.1f},{self.y(kl):.1f}" for ratio, kl in points)
        dashes = f' stroke-dasharray="{STYLES[style][2]}"' if STYLES[style][2] else ""
        self.marks.append(f'<polyline class="line{style}" points="{path}" stroke-width="2.2" stroke-linejoin="round"{dashes}/>')

    def labels(self, names, ends=None):
        """names: of styles 0, 1, ...; ends: where each line ends, or None for a plain legend from the top."""
        wanted = [self.y(kl) for _, kl in ends] if ends else [TOP] * len(names)
        placed = spread_labels(wanted, TOP, HEIGHT - BOTTOM) if ends else [TOP + 17 * i for i in range(len(names))]
        for i, name in enumerate(names):
            style = i % len(STYLES)
            if ends:
                self.marks.append(f'<line class="line{style}" x1="{self.x(ends[i][0]) + 4:.1f}" y1="{wanted[i]:.1f}" '
                                  f'x2="{WIDTH - RIGHT + 12}" y2="{placed[i]:.1f}" stroke-width="0.8"/>')
            else:
                self.marks.append(f'<circle class="ink{style}" cx="{WIDTH - RIGHT + 8}" cy="{placed[i]:.1f}" r="3"/>')
            self.marks.append(f'<text class="ink{style}" x="{WIDTH - RIGHT + 15}" y="{placed[i] + 4:.1f}" font-size="12">'
                              f"{html.escape(name)}</text>")

    def svg(self):
        light, dark = ("".join(f".line{i}{{stroke:{style[ground]};fill:none}}.ink{i}{{fill:{style[ground]}}}"
                               for i, style in enumerate(STYLES)) for ground in (0, 1))
        out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
               f'role="img" aria-label="{html.escape(self.title)}" font-family="system-ui, sans-serif" font-size="13">',
               "<style>", ".ground{fill:#fff}.ink{fill:#1c1c1c}.soft{fill:#5a5a5a}.grid{stroke:#e2e2e2}.axis{stroke:#8a8a8a}",
               light,
               "@media(prefers-color-scheme:dark){.ground{fill:#0d1117}.ink{fill:#eaeaea}.soft{fill:#a8a8a8}"
               ".grid{stroke:#2a2f37}.axis{stroke:#6e7681}" + dark + "}", "</style>",
               f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
               f'<text class="ink" x="20" y="28" font-size="16" font-weight="600">{html.escape(self.title)}</text>',
               f'<text class="soft" x="20" y="47">{html.escape(self.caption)}</text>']
        for power in range(math.floor(self.low), math.ceil(self.high) + 1):
            for unit in (1, 2, 5):
                kl = unit * 10.0 ** power
                if not 10 ** self.low <= kl * 1.0001 <= 10 ** self.high * 1.001:
                    continue
                at = self.y(kl)
                out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
                           f'<text class="soft" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{kl:g}</text>')
        floor = HEIGHT - BOTTOM
        out.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
        for i in range(round(self.most / self.step) + 1):
            at = self.x(i * self.step / 100)
            out.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{floor}" y2="{floor + 5}"/>'
                       f'<text class="soft" x="{at:.1f}" y="{floor + 20}" text-anchor="middle">{i * self.step:g} %</text>')
        out.append(f'<text class="soft" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">'
                   "bytes of the cache at their peak, of an f16 cache</text>")
        return "\n".join(out + self.marks + ["</svg>"]) + "\n"


def line_name(result):
    return ":".join(part for part in result.get("label", result["method"]).split(":") if not part.startswith("budget="))


def caption_of(run):
    model = run["model"]
    return (f"mean KL divergence from the full cache; {model['name']}, {model['weights']}, {run['prefill']} tokens read, "
            f"{run['ctx_size'] - run['prefill']} decoded")


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    runs = []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            runs.append(json.load(file))
    lines = {}
    for run in runs:
        for result in run["results"]:
            if result["kld_mean"] > 0 and result["method"] != "full":
                lines.setdefault(line_name(result), {})[round(result["kv_ratio_peak"], 3)] = result
    if not lines:
        sys.exit("quality_chart: no result differs from the full cache")
    everything = [result for points in lines.values() for result in points.values()]
    chart = LogChart("Quality against bytes", caption_of(runs[0]), [result["kv_ratio_peak"] for result in everything],
                     [result["kld_mean"] for result in everything])
    ends = []
    for style, points in enumerate(lines.values()):
        ordered = [points[ratio] for ratio in sorted(points)]
        chart.line(style, [(result["kv_ratio_peak"], result["kld_mean"]) for result in ordered])
        for result in ordered:
            chart.point(style, result["kv_ratio_peak"], result["kld_mean"], result["kld_mean_uncertainty"])
        ends.append((ordered[-1]["kv_ratio_peak"], ordered[-1]["kld_mean"]))
    chart.labels(list(lines), ends)
    sys.stdout.write(chart.svg())


if __name__ == "__main__":
    main()
