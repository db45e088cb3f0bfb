#!/usr/bin/env python3
"""Draws decode speed against depth from the output of `qevict bench` (docs/decode-speed.svg).

    build/qevict bench -p 0 -n 32 -d 0,512,1024,2048,4096,7680 -t 2 --keep-fill --kv-method qevict-paper,full \\
        --vs llama.cpp,llama.cpp:q8_0 -o json > decode.json
    tools/decode_chart.py decode.json > docs/decode-speed.svg

Several files are taken together; the later of two rows for the same line and depth wins. Medians of the repetitions, with
bars of one standard deviation where they can be seen.
"""
import html
import json
import math
import sys

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 64, 196, 64, 52
# Of a line: colour on light and on dark ground, both readable and apart for colour-blind eyes too, and dashes.
STYLES = [("#0b6e4f", "#4fd1a5", ""), ("#1f5fbf", "#79b0ff", ""), ("#b3541e", "#ff9f5f", ""),
          ("#8a3b8f", "#dd8fe0", "7 4"), ("#6b6b6b", "#b0b0b0", "2 3"), ("#9a7d0a", "#e5c84a", "7 3 2 3")]
LABEL_GAP = 17  # pixels between labels at the lines' ends


def name_of(row):
    if row["engine"] == "qevict":
        if row["method"] == "full":
            return "qevict, full cache"
        return f"{row['method']} {row['kv_budget']}"
    return f"{row['engine']} {row['kv_type']}" + {"on": ", FA", "off": ", no FA"}.get(row["flash_attn"], "")


def read_lines(paths):
    """Rows of all files, and {name: {depth: (median, sd)}}, ours first."""
    rows = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            rows += [row for row in json.load(file) if "decode_tps" in row]
    if not rows:
        sys.exit("decode_chart: no row has decode_tps")
    lines = {}
    for row in sorted(rows, key=lambda row: row["engine"] != "qevict"):
        points = lines.setdefault(name_of(row), {})
        points[row["decode_depth"]] = (row["decode_tps"]["median"], row["decode_tps"]["sd"])
    return rows, lines


def round_step(largest, most):
    """A round distance between at most `most` grid lines up to `largest`."""
    power = 10 ** math.floor(math.log10(largest / most))
    return next(power * unit for unit in (1, 2, 2.5, 5, 10) if power * unit * most >= largest)


def spread_labels(wanted, low, high):
    """Moves label positions apart to LABEL_GAP, in their order, within low..high."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    at = low - LABEL_GAP
    for i in order:
        at = placed[i] = max(wanted[i], at + LABEL_GAP)
    at = high + LABEL_GAP
    for i in reversed(order):
        at = placed[i] = min(placed[i], at - LABEL_GAP)
    return placed


def svg(rows, lines):
    deepest = max(max(points) for points in lines.values()) or 1
    fastest = max(median + sd for points in lines.values() for median, sd in points.values())
    step = round_step(fastest, 8)
    top_speed = math.ceil(fastest / step) * step
    depth_step = 1024 if deepest > 3000 else 512 if deepest > 1200 else round_step(deepest, 8)
    while deepest / depth_step > 8:
        depth_step *= 2

    def x(depth):
        return LEFT + depth / deepest * (WIDTH - LEFT - RIGHT)

    def y(speed):
        return HEIGHT - BOTTOM - speed / top_speed * (HEIGHT - TOP - BOTTOM)

    light, dark = ("".join(f".line{i}{{stroke:{style[ground]};fill:none}}.ink{i}{{fill:{style[ground]}}}"
                           for i, style in enumerate(STYLES)) for ground in (0, 1))
    model = rows[0].get("model", {})
    caption = f"{model.get('name', 'model')}, {model.get('weights', '')}, {rows[0].get('n_threads', '?')} threads; FA: flash attention"
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           'role="img" aria-label="Decode speed against depth" font-family="system-ui, sans-serif" font-size="13">',
           "<style>", ".ground{fill:#fff}.ink{fill:#1c1c1c}.soft{fill:#5a5a5a}.grid{stroke:#e2e2e2}.axis{stroke:#8a8a8a}",
           light,
           "@media(prefers-color-scheme:dark){.ground{fill:#0d1117}.ink{fill:#eaeaea}.soft{fill:#a8a8a8}"
           ".grid{stroke:#2a2f37}.axis{stroke:#6e7681}" + dark + "}", "</style>",
           f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
           f'<text class="ink" x="20" y="28" font-size="16" font-weight="600">Decode speed against depth</text>',
           f'<text class="soft" x="20" y="47">tokens per second; {html.escape(caption)}</text>']
    for i in range(round(top_speed / step) + 1):
        at = y(i * step)
        out.append(f'<line class="{"grid" if i else "axis"}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
                   f'<text class="soft" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    for i in range(int(deepest // depth_step) + 1):
        at = x(i * depth_step)
        out.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 5}"/>'
                   f'<text class="soft" x="{at:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{i * depth_step:,.0f}</text>')
    out.append(f'<text class="soft" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">'
               "tokens in the cache</text>")
    ends = [(max(points), points[max(points)][0]) for points in lines.values()]
    labels = spread_labels([y(speed) for _, speed in ends], TOP, HEIGHT - BOTTOM)
    for i, (name, points) in enumerate(lines.items()):
        style = i % len(STYLES)
        dashes = f' stroke-dasharray="{STYLES[style][2]}"' if STYLES[style][2] else ""
        path = " ".join(f"{x(depth):.1f},{y(points[depth][0]):.1f}" for depth in sorted(points))
        out.append(f'<g><polyline class="line{style}" points="{path}" stroke-width="2.2" '
                   f'stroke-linejoin="round"{dashes}/>')
        for depth, (median, sd) in sorted(points.items()):
            if y(median - sd) - y(median + sd) > 9:  # more than the dot hides
                out.append(f'<line class="line{style}" x1="{x(depth):.1f}" x2="{x(depth):.1f}" y1="{y(max(0, median - sd)):.1f}" '
                           f'y2="{y(median + sd):.1f}" stroke-width="1"/>')
            out.append(f'<circle class="ink{style}" cx="{x(depth):.1f}" cy="{y(median):.1f}" r="3"/>')
        end_x, end_y = x(ends[i][0]), y(ends[i][1])
        if abs(labels[i] - end_y) > 3:
            out.append(f'<line class="line{style}" x1="{end_x + 4:.1f}" y1="{end_y:.1f}" x2="{WIDTH - RIGHT + 12}" '
                       f'y2="{labels[i]:.1f}" stroke-width="0.8"/>')
        weight = ' font-weight="600"' if not name.startswith("llama.cpp") else ""
        out.append(f'<text class="ink{style}" x="{WIDTH - RIGHT + 15}" y="{labels[i] + 4:.1f}" font-size="12"{weight}>'
                   f'<tspan font-weight="600">{ends[i][1]:.0f}</tspan>  {html.escape(name)}</text></g>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.stdout.write(svg(*read_lines(sys.argv[1:])))


if __name__ == "__main__":
    main()
