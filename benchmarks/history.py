"""The speed of perfdoctor from commit to commit: measures ratios, adds them to a file, and draws that file as a page.

    python -m benchmarks.history measure history.jsonl [--rounds 7] [--megabytes 30]
    python -m benchmarks.history render history.jsonl history.html

A ratio is ours over something that stays what it is (orjson, pip), measured in turns in one run: machines of a CI
service differ by more than a commit does, and both sides of a ratio see the same one. Lower is better in all of them.
Each run is a line of JSON; the page needs no network.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path

import jinja2

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "sample_traces" / "host-device-sync.json.gz"
WIDTH, HEIGHT = 760, 160
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 10, 22
# The last run is compared with the median of so many before it, which one noisy run does not move.
BEFORE = 10
# Ratios of one commit differ by up to 13 % from run to run (benchmarks/README.md).
NOISE = 0.15
_LOADS = "import orjson, sys; orjson.loads(open(sys.argv[1], 'rb').read())"

Task = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the history.

    Attributes:
        date: When it was measured, as 2026-11-23.
        commit: The commit's hash, shortened.
        version: Of perfdoctor.
        machine: What it ran on; runs of different machines are drawn as different lines.
        ratios: By name, ours over theirs.
    """

    date: str
    commit: str
    version: str
    machine: str
    ratios: dict[str, float]


@dataclass(frozen=True, slots=True)
class Point:
    """A run in a chart: where it is drawn, and what it says when it is pointed at."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One ratio over all runs.

    Attributes:
        name: The ratio.
        lines: The points of each machine, in the order of the runs.
        top: The value at the top of the axis; its bottom is 0.
        last: The value of the last run.
        median: Of the runs before it on the same machine; None where there is none.
    """

    name: str
    lines: tuple[tuple[Point, ...], ...]
    top: float
    last: float
    median: float | None

    @property
    def change(self) -> float | None:
        """By which share the last run is above what was usual; None where nothing came before."""
        return None if not self.median else self.last / self.median - 1

    @property
    def is_slower(self) -> bool:
        """Whether that is more than noise."""
        return self.change is not None and self.change > NOISE


PAGE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>perfdoctor: benchmarks from commit to commit</title>
<style>{{ css|safe }}
svg { width: 100%; height: auto; max-width: {{ width }}px; display: block; }
svg text { fill: var(--quiet); font: 12px system-ui, sans-serif; }
.axis { stroke: var(--line); } .run { fill: none; stroke-width: 2; }
{% for colour in colours %}
.m{{ loop.index0 }} { stroke: var(--{{ colour }}); } circle.m{{ loop.index0 }} { fill: var(--{{ colour }}); }
{% endfor %}
</style></head>
<body><main><h1>Benchmarks from commit to commit</h1>
<p>Ours over something that stays what it is, measured in turns; lower is better. Last run: {{ last.date }}, commit
{{ last.commit }}, version {{ last.version }}, {{ last.machine }}.</p>
{% for chart in charts %}
<h2>{{ chart.name }}</h2>
<p>{{ "%.3f"|format(chart.last) }}{% if chart.change is not none %}, {{ "%+.0f %%"|format(100 * chart.change) }} \
against the median of the runs before{% if chart.is_slower %}: <strong>slower, by more than the noise\
</strong>{% endif %}{% endif %}</p>
<svg viewBox="0 0 {{ width }} {{ height }}" role="img" aria-label="{{ chart.name }}, over {{ runs }} runs">
{% for y, text in [(top, "%.3g"|format(chart.top)), (bottom, "0")] %}
<line class="axis" x1="{{ left }}" x2="{{ right }}" y1="{{ y }}" y2="{{ y }}"/>
<text x="{{ left - 6 }}" y="{{ y + 4 }}" text-anchor="end">{{ text }}</text>
{% endfor %}
{% for line in chart.lines %}
{% set colour = "m%d"|format(loop.index0 % colours|length) %}
<polyline class="run {{ colour }}" points="{% for p in line %}{{ p.x }},{{ p.y }} {% endfor %}"/>
{% for p in line %}
<circle class="{{ colour }}" cx="{{ p.x }}" cy="{{ p.y }}" r="3"><title>{{ p.text }}</title></circle>
{% endfor %}
{% endfor %}
<text x="{{ left }}" y="{{ height - 6 }}">{{ first.date }}</text>
<text x="{{ right }}" y="{{ height - 6 }}" text-anchor="end">{{ last.date }}</text>
</svg>
{% endfor %}
{% if machines|length > 1 %}
<p>Machines, in the order of the lines' colours: {{ machines|join("; ") }}.</p>
{% endif %}
</main></body></html>
""")
COLOURS = ("blue", "orange", "green", "pink")


def take_turns(ours: Task, theirs: Task, rounds: int) -> float:
    """The median of our seconds over the median of theirs: one after the other in each round, a first one uncounted."""
    seconds: dict[Task, list[float]] = {ours: [], theirs: []}
    for _ in range(rounds + 1):
        for task, taken in seconds.items():
            start = time.perf_counter()
            task()
            taken.append(time.perf_counter() - start)
    return statistics.median(seconds[ours][1:]) / statistics.median(seconds[theirs][1:])


def measure_ratios(folder: Path, rounds: int, text_bytes: int) -> dict[str, float]:
    """Every ratio of the history, on a sample repeated to `text_bytes` in `folder`."""
    # Whoever only draws needs neither pytest, which these import, nor a trace.
    import orjson

    import perfdoctor
    from benchmarks.lengthen_trace import lengthen_trace
    from benchmarks.measure import measure_peak_bytes, run_perfdoctor, run_process

    trace = folder / "trace.json"
    lengthen_trace(SAMPLE, trace, text_bytes)
    pip = (sys.executable, "-m", "pip", "--version")
    return {
        "read a trace / orjson.loads": take_turns(
            lambda: perfdoctor.read(trace), lambda: orjson.loads(trace.read_bytes()), rounds
        ),
        "perfdoctor analyze / a process that calls orjson.loads": take_turns(
            lambda: run_perfdoctor("analyze", trace, "-q"),
            lambda: run_process(sys.executable, "-c", _LOADS, trace),
            rounds,
        ),
        "perfdoctor --help / pip --version": take_turns(
            lambda: run_perfdoctor("--help"), lambda: run_process(*pip), rounds
        ),
        "peak memory of perfdoctor analyze / size of the text": measure_peak_bytes("analyze", trace, "-q")
        / trace.stat().st_size,
    }


def describe_machine() -> str:
    """The system, processor, cores and Python that runs have in common which are compared."""
    names = {"machine": platform.machine(), "system": platform.system(), "python": platform.python_version()}
    return "{system} {machine}, {cores} cores, Python {python}".format(**names, cores=os.cpu_count())


def find_commit() -> str:
    """The commit that is checked out, shortened; "unknown" outside of a repository."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def load_runs(path: Path) -> list[Run]:
    """All runs of a file, in its order.

    Raises:
        SystemExit: A line is no run; the message names it.
    """
    runs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            run = Run(**json.loads(line))
            valid = all(isinstance(value, int | float) and value >= 0 for value in run.ratios.values())
        except (ValueError, TypeError, AttributeError):
            valid = False
        if not valid:
            raise SystemExit(f"{path}:{number} is no run: it needs {', '.join(Run.__dataclass_fields__)}")
        runs.append(run)
    return runs


def make_chart(name: str, runs: Sequence[Run]) -> Chart:
    """The chart of a ratio; runs that did not measure it leave a gap. At least one has."""
    measured = [(number, run, run.ratios[name]) for number, run in enumerate(runs) if name in run.ratios]
    last_run, last = measured[-1][1:]
    before = [value for _, run, value in measured[:-1] if run.machine == last_run.machine]
    top = max(value for *_, value in measured) * 1.1 or 1.0
    step = (WIDTH - LEFT - RIGHT) / max(len(runs) - 1, 1)

    def place(number: int, run: Run, value: float) -> Point:
        y = TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)
        return Point(round(LEFT + number * step, 1), round(y, 1), f"{run.date}, {run.commit}: {value:.3f}")

    lines = tuple(
        tuple(place(*each) for each in measured if each[1].machine == machine) for machine in list_machines(runs)
    )
    return Chart(name, lines, top, last, statistics.median(before[-BEFORE:]) if before else None)


def list_machines(runs: Sequence[Run]) -> list[str]:
    """Every machine once, in the order in which they come."""
    return list(dict.fromkeys(run.machine for run in runs))


def render_page(runs: Sequence[Run]) -> str:
    """The history as a page of its own: a chart for each ratio, in the order in which they came to be measured."""
    names = dict.fromkeys(name for run in runs for name in run.ratios)
    css = resources.files("perfdoctor.reporters.html").joinpath("assets", "page.css").read_text(encoding="utf-8")
    return PAGE.render(
        css=css,
        charts=[make_chart(name, runs) for name in names],
        colours=COLOURS,
        machines=list_machines(runs),
        runs=len(runs),
        first=runs[0],
        last=runs[-1],
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
    )


def main(arguments: Sequence[str]) -> int:
    """Measure and add a line, or draw the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description="The speed over commits.")
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("measure", help="measure, and add a line to HISTORY")
    measure.add_argument("history", type=Path)
    measure.add_argument("--rounds", type=int, default=7)
    measure.add_argument("--megabytes", type=float, default=30)
    render = commands.add_parser("render", help="draw HISTORY as a page")
    render.add_argument("history", type=Path)
    render.add_argument("page", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "render":
        runs = load_runs(options.history)
        if not runs:
            parser.error(f"{options.history} has no runs")
        options.page.write_text(render_page(runs), encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        ratios = measure_ratios(Path(folder), options.rounds, int(options.megabytes * 1e6))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    run = Run(today, find_commit(), version("perfdoctor"), describe_machine(), ratios)
    with options.history.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run)) + "\n")
    print("\n".join(f"{value:8.3f}  {name}" for name, value in ratios.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
