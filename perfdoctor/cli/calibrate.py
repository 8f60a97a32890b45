"""`perfdoctor calibrate`: measure this machine's device and store the rates for later analyses."""

from __future__ import annotations

import json
import math
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdoctor.cli import parameters
from perfdoctor.errors import GateError, UsageError
from perfdoctor.gpu.calibration import ADDITION, BANDWIDTH, LAUNCH, MAX_SPREAD
from perfdoctor.reporters.output import save_text, write_stdout

if TYPE_CHECKING:
    from perfdoctor.gpu.calibration import Calibration, SweepPoint
    from perfdoctor.gpu.devices import Device

_DOUBLING_WIDTH = 3  # columns: ten doublings fit beside the figures in 80
# What "Making Deep Learning Go Brrrr From First Principles" (Horace He, 2022) measured.
QUOTED_OPS_PER_S, QUOTED_ADDITIONS_PER_S = 280_000, 32_000_000
_NOT_FUSED = (
    "Without a C compiler (cc, gcc, clang or $CC) the multiplications are ops of their own, on blocks in the cache: a "
    "fused kernel does more of them."
)


@parameters.command(
    "perfdoctor calibrate",
    "perfdoctor calibrate --seconds 90 -o rates.json",
    "perfdoctor calibrate --cpu --no-store    # look, and store nothing",
)
def calibrate(
    *,
    cpu: Annotated[bool, parameters.flag("--cpu", help="Measure the CPU, even if there is a GPU.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", metavar="N", help="How long to measure; the default is 40 on a GPU, and 10 on a CPU."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Also write FILE, as .html (the plot) or .json."),
    ] = None,
    store: Annotated[bool, typer.Option("--store/--no-store", help="Store the rates for later analyses.")] = True,
) -> None:
    """Measure this machine's GPU or CPU: gemms by type, copies, launches, and where compute begins to bind.

    It also measures what the framework and Python take by themselves: small ops and additions per second.

    Each rate is measured in rounds until three of them lie within 10 % of each other. A rate that never does is shown
    but not stored. If none does, the exit code is 1.
    """
    from perfdoctor.gpu.calibration import store_calibration
    from perfdoctor.gpu.devices import find_device
    from perfdoctor.gpu.measure_device import measure_device

    if seconds is not None and not 0 < seconds <= 3600:
        raise UsageError("--seconds must be between 0 and 3600")
    path = _output_path(output)
    calibration = measure_device(gpu=False if cpu else None, seconds=seconds, progress=_print_progress)
    write_stdout(format_rates(calibration, find_device(calibration.device)))
    write_stdout(format_overhead(calibration))
    write_stdout(format_sweep(calibration.sweep, is_fused=calibration.is_fused))
    if path is not None:
        _write(calibration, path)
    stable = calibration.without_unstable()
    if calibration.unstable:
        write_stdout(f"\n{_describe_unstable(calibration, 'and not stored, ' if store else '')}\n")
    if store and stable.is_empty:
        raise GateError("nothing was stored: every rate varied by more than 10 %; close other programs and try again")
    if store:
        path = store_calibration(stable)
        write_stdout(f"\nstored in {path}: analyses of traces from this device use these rates\n")


def _describe_unstable(calibration: Calibration, consequence: str) -> str:
    """Return a sentence about the rates that varied too much, and what to do."""
    rates = ", ".join(f"{name} by {calibration.spread[name]:.0%}" for name in calibration.unstable)
    return (
        f"not to be relied on, {consequence}because it varied by more than {MAX_SPREAD:.0%}: {rates}; close other "
        "programs and try again, or measure for longer with --seconds"
    )


def _print_progress(what: str) -> None:
    typer.echo(f"measuring {what}", err=True)


def _output_path(name: str | None) -> Path | None:
    """Return the path to write to; raises UsageError for a suffix that cannot be written."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix not in (".html", ".json"):
        raise UsageError(f"-o {name} must end in .html or .json")
    return path


def format_rates(calibration: Calibration, device: Device | None) -> str:
    """Return the measured rates as a table, beside the peaks of the device where they are known."""
    from perfdoctor.cli.plain_table import format_table

    rows = []
    for dtype, rate in calibration.flops.items():
        peak = _peak(device, dtype)
        share = f"{rate / peak:.0%} of {peak / 1e12:,.1f}" if peak else "n/a"
        rows.append((f"product, {dtype}", f"{rate / 1e12:,.2f} TFLOP/s", _spread(calibration, dtype), share))
    if calibration.bandwidth_bytes_per_s is not None:
        peak = device.memory_bandwidth_bytes_per_s if device else None
        share = f"{calibration.bandwidth_bytes_per_s / peak:.0%} of {peak / 1e9:,.0f}" if peak else "n/a"
        rate = calibration.bandwidth_bytes_per_s
        rows.append(("copy", f"{rate / 1e9:,.1f} GB/s", _spread(calibration, BANDWIDTH), share))
    if calibration.launch_s is not None:
        rows.append(("launch", f"{calibration.launch_s * 1e6:,.2f} us", _spread(calibration, LAUNCH), "n/a"))
    if calibration.addition_s is not None:
        rows.append(("addition", f"{calibration.addition_s * 1e9:,.1f} ns", _spread(calibration, ADDITION), "n/a"))
    return f"{calibration.device}, measured on {calibration.measured_on}\n\n" + format_table(
        ("what", "measured", "spread", "share of the peak"), rows
    )


def _spread(calibration: Calibration, name: str) -> str:
    share = calibration.spread.get(name)
    return "n/a" if share is None else f"{share:.1%}"


def _peak(device: Device | None, dtype: str) -> float | None:
    if device is None:
        return None
    if dtype == "fp64":
        return device.peak_flops("fp64_matrix") or device.peak_flops("fp64")
    return device.peak_flops(dtype)


def format_overhead(calibration: Calibration) -> str:
    """Return how many small ops and additions a second this machine makes, beside figures that the field quotes."""
    from perfdoctor.cli.plain_table import format_table

    rows = []
    for what, seconds, quoted in (
        ("small ops of PyTorch", calibration.launch_s, QUOTED_OPS_PER_S),
        ("additions in Python", calibration.addition_s, QUOTED_ADDITIONS_PER_S),
    ):
        if seconds is not None:
            rows.append((what, f"{1 / seconds:,.0f}/s", f"{quoted:,}/s"))
    if not rows:
        return ""
    table = format_table(("overhead", "this machine", "Brrrr (2022)"), rows)
    fastest = max(calibration.flops.items(), key=lambda each: each[1], default=None)
    if fastest is None or calibration.launch_s is None:
        return f"\n{table}"
    dtype, rate = fastest
    text = (
        f"While PyTorch makes one small op, products in {dtype} do {_in_words(rate * calibration.launch_s)} operations:"
        " ops with less to do wait for the framework."
    )
    return f"\n{table}\n{wrap(text)}\n"


def _in_words(number: float) -> str:
    for name, size in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:.3g}"


def wrap(text: str) -> str:
    """The text in lines of at most 80 columns."""
    return "\n".join(textwrap.wrap(text, 80))


def format_sweep(sweep: tuple[SweepPoint, ...], *, is_fused: bool = True) -> str:
    """Return the sweep as a bar chart of time: flat while memory binds, and twice as long each row when maths does."""
    if not sweep:
        return "\nno sweep: this device cannot compile a kernel here\n"
    ridge = ridge_of(sweep)
    elements = round(sweep[0].bytes_per_s * sweep[0].seconds / 8)
    heading = f"Each of {elements:,} float32 times a number, k times in one pass over memory"
    lines = ["", heading, f"   k       time  x k=1   GFLOP/s     GB/s  time, {_DOUBLING_WIDTH} columns a doubling"]
    shortest = min(point.seconds for point in sweep)
    for point in sweep:
        bar = ("▓" if ridge is None or point.k < ridge else "█") * (
            _DOUBLING_WIDTH + round(_DOUBLING_WIDTH * math.log2(point.seconds / shortest))
        )
        ratio = point.seconds / sweep[0].seconds
        rates = f"{point.flops_per_s / 1e9:9,.1f}  {point.bytes_per_s / 1e9:7,.1f}"
        lines.append(f"{point.k:4}  {_format_seconds(point.seconds):>9}  {ratio:5.3g} {rates}  {bar}")
    lines += ["      ▓ memory binds   █ maths binds", wrap(describe_ridge_point(sweep))]
    if not is_fused:
        lines.append(wrap(_NOT_FUSED))
    return "\n".join(lines) + "\n"


def _format_seconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms"


def ridge_of(sweep: tuple[SweepPoint, ...]) -> int | None:
    """The smallest `k` from which maths binds: twice as many take more than 1.5 times as long; None where none does."""
    return next((after.k for before, after in pairwise(sweep) if after.seconds > 1.5 * before.seconds), None)


def describe_ridge_point(sweep: tuple[SweepPoint, ...]) -> str:
    """Return where maths begins to bind, and what that means."""
    ridge = ridge_of(sweep)
    if ridge is None:
        return "memory binds throughout: more maths on each element costs nothing here"
    flat = [point.k for point in sweep if point.k < ridge and point.seconds <= 1.2 * sweep[0].seconds]
    free = max(flat, default=1)
    cost = f"{free} multiplications cost as much as 1: " if free > 1 else ""
    last = max((point.k for point in sweep if point.k < ridge), default=1)
    return (
        f"{cost}memory binds up to {last} multiplications ({last / 8:g} FLOP/byte), maths from {ridge} on. An op that "
        f"does less than {ridge / 8:g} FLOP for each byte takes as long as its tensors take to be read and written: "
        "fuse it with its neighbours, as faster maths would not help it."
    )


def _write(calibration: Calibration, path: Path) -> None:
    if path.suffix == ".json":
        text = json.dumps(calibration.to_dict(), indent=1) + "\n"
    else:
        from perfdoctor.reporters.html.sweep_page import make_sweep_page

        text = make_sweep_page(calibration, describe_ridge_point(calibration.sweep), ridge_of(calibration.sweep))
    save_text(path, text)
