"""The sweep of `perfdoctor calibrate` as a page of its own that needs no network: a picture in SVG, light and dark."""

from __future__ import annotations

import math
from html import escape
from importlib import resources

from perfdoctor.gpu.calibration import Calibration, SweepPoint

_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 20, 50
_STYLE = """
svg { width: 100%; height: auto; max-width: 900px; display: block; }
svg text { fill: var(--quiet); font: 13px system-ui, sans-serif; }
.axis { stroke: var(--line); } .memory { fill: var(--orange); } .maths { fill: var(--blue); }
.curve { fill: none; stroke: var(--quiet); stroke-width: 2; }
td, th { padding: .2rem .9rem .2rem 0; text-align: right; font-variant-numeric: tabular-nums; }
"""


def make_sweep_page(calibration: Calibration, text: str, ridge: int | None) -> str:
    """The page: time over multiplications, a table of the same, and a text that says what it means.

    From `ridge` multiplications on maths binds; None where memory binds throughout.
    """
    css = resources.files("perfdoctor.reporters.html").joinpath("assets", "page.css").read_text(encoding="utf-8")
    title = escape(f"{calibration.device}, measured on {calibration.measured_on}")
    picture = _draw(calibration.sweep, ridge) if calibration.sweep else "<p>No sweep was measured.</p>"
    rows = "".join(
        f"<tr><td>{point.k}</td><td>{point.seconds * 1e3:,.3f}</td><td>{point.k / 8:g}</td>"
        f"<td>{point.flops_per_s / 1e9:,.1f}</td><td>{point.bytes_per_s / 1e9:,.1f}</td></tr>"
        for point in calibration.sweep
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{css}{_STYLE}</style></head>
<body><main><h1>{title}</h1>
<p>Each float32 of a large tensor times a number, k times in one pass over memory: how long that takes.</p>
{picture}
<p>{escape(text)}</p>
<table><thead><tr><th>k</th><th>time, ms</th><th>arithmetic intensity, FLOP/byte</th><th>GFLOP/s</th><th>GB/s</th></tr>
</thead><tbody>{rows}</tbody></table>
</main></body></html>
"""


def _draw(sweep: tuple[SweepPoint, ...], ridge: int | None) -> str:
    """Both axes are logarithmic: memory is a flat line, maths a slope."""
    ks, times = [point.k for point in sweep], [point.seconds * 1e3 for point in sweep]
    low, high = 10 ** math.floor(math.log10(min(times))), 10 ** math.ceil(math.log10(max(times) * 1.01))
    steps = max(len(sweep) - 1, 1)

    def x_of(index: float) -> float:
        return _LEFT + index / steps * (_WIDTH - _LEFT - _RIGHT)

    def y_of(ms: float) -> float:
        return _TOP + math.log(high / ms) / math.log(high / low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    ms = low
    while ms <= high * 1.01:
        y = y_of(ms)
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{ms:g} ms</text>')
        ms *= 10
    points = [(x_of(index), y_of(each)) for index, each in enumerate(times)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline class="curve" points="{line}"/>')
    for (x, y), k, each in zip(points, ks, times, strict=True):
        name = "memory" if ridge is None or k < ridge else "maths"
        parts.append(
            f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="6"><title>k = {k}: {each:,.3f} ms</title></circle>'
        )
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 20}" text-anchor="middle">{k}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">k, multiplications</text>')
    for number, (name, label) in enumerate((("memory", "memory binds"), ("maths", "maths binds"))):
        y = _TOP + 12 + 20 * number
        parts.append(f'<circle class="{name}" cx="{_LEFT + 20}" cy="{y}" r="6"/>')
        parts.append(f'<text x="{_LEFT + 34}" y="{y + 4}">{label}</text>')
    label = "Time over multiplications of each element, both logarithmic"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
