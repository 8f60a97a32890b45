"""An Expectation as text or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from perfdoctor.reporters.clean_text import clean_line, shorten_path
from perfdoctor.reporters.device_comparison_text import NAMES_OF_SCALING
from perfdoctor.reporters.json_ import render_plain
from perfdoctor.reporters.output import write_stdout
from perfdoctor.reporters.render_blocks import render_blocks, strip_lines
from perfdoctor.reporters.terminal_text import hanging
from perfdoctor.reporters.write_report import terminal_for
from perfdoctor.units import format_count, format_duration, format_number, format_range, format_share

if TYPE_CHECKING:
    from perfdoctor.expectation import Expectation
    from perfdoctor.savings.expected_step import ExpectationGround, ScalingPart

_NAMES = NAMES_OF_SCALING | {"link": "links"}
_AMD_NAMES = {"tensor_cores": "matrix cores", "cuda_cores": "vector units"}
_VERDICTS = {
    "as usual": ("as usual on", "bold green"),
    "slower": ("longer than usual on", "bold red"),
    "faster": ("shorter than usual on", "bold green"),
    "unknown": ("too little is known of its work to judge it on", "bold yellow"),
}
_MIN_SHARE = 0.005


def render_expectation(made: Expectation, *, as_json: bool = False, width: int = 80, color: bool = False) -> str:
    """The expectation as JSON, or as text in `width` columns."""
    if as_json:
        return render_plain(made.to_dict())
    return strip_lines(render_blocks(_blocks(made), width, color=color))


def print_expectation(made: Expectation, *, color: bool | None = None) -> None:
    """Print the expectation to standard output; see `terminal_for` for the colour."""
    terminal = terminal_for(sys.stdout, color=color)
    write_stdout(render_expectation(made, width=terminal.width, color=terminal.color))


def _blocks(made: Expectation) -> Iterator[RenderableType]:
    yield _headline(made)
    step = made.step
    what = "Comparable kernels make it" if made.is_own_device else "Expected:"
    times = format_range(step.low_ns, step.high_ns)
    yield Text(f"{what} {times}, most likely {format_duration(step.expected_ns)} ({step.basis})")
    yield Text()
    yield _parts_table(made)
    yield Text()
    for ground in made.rests_on:
        yield hanging("-", Text(_describe_ground(made, ground)))
    for note in made.notes:
        yield hanging("!", Text(clean_line(note), "yellow"))


def _headline(made: Expectation) -> Text:
    unit, now = made.unit_name, format_duration(made.step.now_ns)
    source = f"{shorten_path(clean_line(made.path), 40)}: "
    if made.verdict is not None:
        words, style = _VERDICTS[made.verdict]
        return Text(f"{source}a {unit} of {now}, {words} {clean_line(made.device)}", style)
    ratio = made.step.expected_ns / max(made.step.now_ns, 1)
    here = f"a {unit} of {now} on {clean_line(made.device)}"
    times = "" if format_number(ratio) in ("1", "1.00") else f"{format_number(ratio)} times "
    return Text(f"{source}{here} takes {times}as long on {clean_line(made.on)}", "bold")


def _parts_table(made: Expectation) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    for _ in range(2):
        table.add_column(justify="right")
    table.add_column()
    there = "usual here" if made.is_own_device else "times as long there"
    table.add_row(*(Text(name, "dim") for name in ("scales with", "now", "share", there)))
    for part in made.step.parts:
        if part.now_ns > _MIN_SHARE * made.step.now_ns:
            share = format_share(part.now_ns / max(made.step.now_ns, 1))
            table.add_row(_name(made, part), format_duration(part.now_ns), share, _describe_ratio(part))
    return table


def _name(made: Expectation, part: ScalingPart) -> str:
    names = _NAMES | _AMD_NAMES if "AMD" in made.device else _NAMES
    return names[part.scales_with]


def _describe_ratio(part: ScalingPart) -> str:
    low, expected, high = (format_number(ratio) for ratio in (part.low_ratio, part.expected_ratio, part.high_ratio))
    return expected if low == high else f"{expected} ({low} to {high})"


def _describe_ground(made: Expectation, ground: ExpectationGround) -> str:
    kind = ground.family if ground.dtype == "any" else f"{ground.family} in {ground.dtype}"
    of_generation = f", {ground.of_generation:,} on {made.generation}" if made.generation else ""
    return (
        f"{kind} ({format_share(ground.share)} of GPU time): {format_count(ground.kinds, 'recorded kernel')}, "
        f"{format_count(ground.programs, 'program')}{of_generation}"
    )
