"""`perfdoctor calibrate`: measure the device at hand and remember the rates for later analyses."""

from __future__ import annotations

import json
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfdoctor.errors import InputError, UsageError
from perfdoctor.reporters.output import write_stdout

if TYPE_CHECKING:
    from perfdoctor.gpu.calibration import Calibration, SweepPoint
    from perfdoctor.gpu.devices import Device

_BAR = 40


@click.command(short_help="Measure this machine's GPU or CPU for later analyses.")
@click.option("--cpu", is_flag=True, help="Measure the CPU, even if there is a GPU.")
@click.option(
    "--seconds", type=float, metavar="N", help="How long to measure; the default is 40 on a GPU, and 10 on a CPU."
)
@click.option("-o", "--output", metavar="FILE", help="Also write FILE, as .html (the plot) or .json.")
@click.option("--store/--no-store", default=True, show_default=True, help="Remember the rates for later analyses.")
def calibrate(cpu: bool, seconds: float | None, output: str | None, store: bool) -> None:
    """Measure the device at hand: products by type, copies, launches, and where maths begins to bind."""
    from perfdoctor.gpu.calibration import store_calibration
    from perfdoctor.gpu.devices import find_device
    from perfdoctor.gpu.measure_device import calibrate as measure

    if seconds is not None and not 0 < seconds <= 3600:
        raise UsageError("--seconds must be between 0 and 3600")
    path = _output(output)
    found = measure(gpu=False if cpu else None, seconds=seconds, progress=_said)
    write_stdout(rates(found, find_device(found.device)))
    write_stdout(plot(found.sweep))
    if path is not None:
        _write(found, path)
    if store:
        write_stdout(f"\nstored in {store_calibration(found)}: analyses of traces from this device use these rates\n")


def _said(what: str) -> None:
    click.echo(f"measuring {what}", err=True)


def _output(name: str | None) -> Path | None:
    if name is None:
        return None
    path = Path(name)
    if path.suffix not in (".html", ".json"):
        raise UsageError(f"-o {name} must end in .html or .json")
    if path.suffix == ".html" and find_spec("plotly") is None:
        raise UsageError(f"-o {name} needs plotly: pip install 'perfdoctor[plot]', or write .json")
    return path


def rates(found: Calibration, device: Device | None) -> str:
    """What was measured as a table, beside the peaks of the device where they are known."""
    from perfdoctor.cli.plain_table import format_table

    rows = []
    for dtype, rate in found.flops.items():
        peak = _peak(device, dtype)
        share = f"{rate / peak:.0%} of {peak / 1e12:,.1f}" if peak else "n/a"
        rows.append((f"product, {dtype}", f"{rate / 1e12:,.2f} TFLOP/s", share))
    if found.bandwidth_bytes_per_s is not None:
        peak = device.memory_bandwidth_bytes_per_s if device else None
        share = f"{found.bandwidth_bytes_per_s / peak:.0%} of {peak / 1e9:,.0f}" if peak else "n/a"
        rows.append(("copy", f"{found.bandwidth_bytes_per_s / 1e9:,.1f} GB/s", share))
    if found.launch_s is not None:
        rows.append(("launch", f"{found.launch_s * 1e6:,.2f} us", "n/a"))
    return f"{found.device}, measured on {found.measured_on}\n\n" + format_table(
        ("what", "measured", "share of the peak"), rows
    )


def _peak(device: Device | None, dtype: str) -> float | None:
    if device is None:
        return None
    if dtype == "fp64":
        return device.peak_flops("fp64_matrix") or device.peak_flops("fp64")
    return device.peak_flops(dtype)


def plot(sweep: tuple[SweepPoint, ...]) -> str:
    """The sweep as bars: the rate grows with the multiplications until maths binds."""
    if not sweep:
        return "\nno sweep: this device cannot compile a kernel here\n"
    most = max(point.flops_per_s for point in sweep)
    lines = ["", "multiplications for each float32 that is read and written", "   k  FLOP/byte    GFLOP/s     GB/s"]
    for point in sweep:
        bar = "#" * max(1, round(_BAR * point.flops_per_s / most))
        rate, moved = point.flops_per_s / 1e9, point.bytes_per_s / 1e9
        lines.append(f"{point.k:4}  {point.k / 8:9.3f}  {rate:9,.1f}  {moved:7,.1f}  {bar}")
    return "\n".join([*lines, _turning_point(sweep)]) + "\n"


def _turning_point(sweep: tuple[SweepPoint, ...]) -> str:
    """Where twice the multiplications begin to take more than half as long again."""
    for before, after in pairwise(sweep):
        if after.seconds > 1.5 * before.seconds:
            return (
                f"memory binds up to {before.k} multiplications ({before.k / 8:g} FLOP/byte), maths from {after.k} on"
            )
    return "memory binds throughout"


def _write(found: Calibration, path: Path) -> None:
    text = json.dumps(found.to_dict(), indent=1) + "\n" if path.suffix == ".json" else _html(found)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); name another file with -o") from None


def _html(found: Calibration) -> str:
    import plotly.graph_objects as go

    points = found.sweep
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
        title=f"{found.device}, {found.measured_on}",
        xaxis={"type": "log", "title": "arithmetic intensity, FLOP/byte"},
        yaxis={"type": "log", "title": "GFLOP/s"},
    )
    page: Any = figure.to_html(include_plotlyjs=True, full_html=True)
    return str(page)
