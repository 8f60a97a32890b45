"""`perfdoctor calibrate`: measure this machine's device and store the rates for later analyses."""

from __future__ import annotations

import json
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfdoctor.cli import parameters
from perfdoctor.cli.shell_values import complete_files
from perfdoctor.errors import GateError, InputError, UsageError
from perfdoctor.gpu.calibration import BANDWIDTH, LAUNCH, MAX_SPREAD
from perfdoctor.reporters.output import write_stdout

if TYPE_CHECKING:
    from perfdoctor.gpu.calibration import Calibration, SweepPoint
    from perfdoctor.gpu.devices import Device

_BAR_WIDTH = 40


@click.command(
    short_help="Measure this machine's GPU or CPU for later analyses.",
    epilog=parameters.format_examples(
        "perfdoctor calibrate",
        "perfdoctor calibrate --seconds 90 -o rates.json",
        "perfdoctor calibrate --cpu --no-store    # look, and store nothing",
    ),
)
@click.option("--cpu", is_flag=True, help="Measure the CPU, even if there is a GPU.")
@click.option(
    "--seconds", type=float, metavar="N", help="How long to measure; the default is 40 on a GPU, and 10 on a CPU."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    shell_complete=complete_files,
    help="Also write FILE, as .html (the plot) or .json.",
)
@click.option("--store/--no-store", default=True, show_default=True, help="Store the rates for later analyses.")
def calibrate(cpu: bool, seconds: float | None, output: str | None, store: bool) -> None:
    """Measure this machine's GPU or CPU: gemms by type, copies, launches, and where compute begins to bind.

    Each rate is measured in rounds until three of them lie within 10 % of each other. A rate that does not come to that
    is shown, and not stored. Where nothing does, the exit code is 1.
    """
    from perfdoctor.gpu.calibration import store_calibration
    from perfdoctor.gpu.devices import find_device
    from perfdoctor.gpu.measure_device import measure_device

    if seconds is not None and not 0 < seconds <= 3600:
        raise UsageError("--seconds must be between 0 and 3600")
    path = _output_path(output)
    calibration = measure_device(gpu=False if cpu else None, seconds=seconds, progress=_print_progress)
    write_stdout(format_rates(calibration, find_device(calibration.device)))
    write_stdout(format_sweep(calibration.sweep))
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
    click.echo(f"measuring {what}", err=True)


def _output_path(name: str | None) -> Path | None:
    """Return the path to write to; raises UsageError for a suffix that cannot be written."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix not in (".html", ".json"):
        raise UsageError(f"-o {name} must end in .html or .json")
    if path.suffix == ".html" and find_spec("plotly") is None:
        raise UsageError(f"-o {name} needs plotly: pip install 'perfdoctor[plot]', or write .json")
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


def format_sweep(sweep: tuple[SweepPoint, ...]) -> str:
    """Return the sweep as a bar chart: FLOP/s grow with the arithmetic intensity up to the ridge point."""
    if not sweep:
        return "\nno sweep: this device cannot compile a kernel here\n"
    max_flops_per_s = max(point.flops_per_s for point in sweep)
    lines = ["", "multiplications for each float32 that is read and written", "   k  FLOP/byte    GFLOP/s     GB/s"]
    for point in sweep:
        bar = "#" * max(1, round(_BAR_WIDTH * point.flops_per_s / max_flops_per_s))
        gflops_per_s, gb_per_s = point.flops_per_s / 1e9, point.bytes_per_s / 1e9
        lines.append(f"{point.k:4}  {point.k / 8:9.3f}  {gflops_per_s:9,.1f}  {gb_per_s:7,.1f}  {bar}")
    return "\n".join([*lines, _describe_ridge_point(sweep)]) + "\n"


def _describe_ridge_point(sweep: tuple[SweepPoint, ...]) -> str:
    """Return a sentence about where maths begins to bind: where doubling `k` takes more than 1.5 times as long."""
    for before, after in pairwise(sweep):
        if after.seconds > 1.5 * before.seconds:
            return (
                f"memory binds up to {before.k} multiplications ({before.k / 8:g} FLOP/byte), maths from {after.k} on"
            )
    return "memory binds throughout"


def _write(calibration: Calibration, path: Path) -> None:
    text = json.dumps(calibration.to_dict(), indent=1) + "\n" if path.suffix == ".json" else _to_html(calibration)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); name another file with -o") from None


def _to_html(calibration: Calibration) -> str:
    """Return the sweep as a page with a roofline plot."""
    import plotly.graph_objects as go

    points = calibration.sweep
    figure = go.Figure(
        go.Scatter(
            x=[point.k / 8 for point in points],
            y=[point.flops_per_s / 1e9 for point in points],
            mode="lines+markers",
            name="multiplications",
            text=[f"{point.k} multiplications, {point.bytes_per_s / 1e9:,.1f} GB/s" for point in points],
        )
    )
    figure.update_layout(
        title=f"{calibration.device}, {calibration.measured_on}",
        xaxis={"type": "log", "title": "arithmetic intensity, FLOP/byte"},
        yaxis={"type": "log", "title": "GFLOP/s"},
    )
    page: Any = figure.to_html(include_plotlyjs=True, full_html=True)
    return str(page)
