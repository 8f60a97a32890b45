"""What a comparison says of two devices, in lines of text: every format shows the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perfdoctor.comparison.device_comparison import DeviceComparison, LoneWork, LostShare, ScalingPart
from perfdoctor.gpu.kernel_names import short_kernel_name
from perfdoctor.reporters.clean_text import clean_line, shorten_end
from perfdoctor.units import format_duration, format_share

NAMES_OF_SCALING = {
    "tensor_cores": "Tensor Cores",
    "cuda_cores": "CUDA cores",
    "bandwidth": "memory bandwidth",
    "link": "copies, links",
    "cpu": "the CPU",
    "nothing": "nothing",
}
_REASONS = {
    "older_kernels": "its kernels were built for an older generation: a newer PyTorch, CUDA or library has its own",
    "no_tensor_cores": "it runs without Tensor Cores there, and with them on the first device",
    "tf32_off": "TF32 is off there: torch.set_float32_matmul_precision('high')",
    "other_path": "another library or algorithm runs there",
    "small_work": "too short, or in too few blocks, to fill the larger device: a larger batch",
    "all_alike": "as all its kernels: lower clocks, a power cap, or others on the GPU",
    "unknown": "no reason is seen in the recordings",
}
_WIDTH, _MAX_WORK, _MAX_SHAPE = 10, 60, 30
_MAX_ALONE = 2
# From this share of its side on a part is worth a row or a sentence of its own.
_LARGE = 0.1


def head_of_devices(made: DeviceComparison, unit: str) -> str:
    """How many times as fast the second device is, and what is usual, in a sentence."""
    low, high = (_ratio(made.before_ns, ns) for ns in (made.usual_high_ns, made.usual_low_ns))
    usual = f"{low} times" if low == high else f"{low} to {high} times"
    return (
        f"{_name(made.after)} takes {format_duration(made.after_ns)} a {unit}, {_name(made.before)} "
        f"{format_duration(made.before_ns)}: {_ratio(made.before_ns, made.after_ns)} times as fast; by their rates "
        f"{usual} would be usual."
    )


def device_lines(made: DeviceComparison) -> Iterator[str]:
    """A table of what the time follows, then what did not get its share, each with its reason."""
    after = _name(made.after)
    names = "".join(f"{shorten_end(name, _WIDTH - 1):>{_WIDTH}}" for name in (_name(made.before), after))
    yield f"  {'':<18}{names}  faster   usually"
    for label, parts in _rows(made):
        yield _line_of_parts(label, parts)
    if made.alike_ratio is not None:
        yield f"All kernels alike take {made.alike_ratio:.2g} times the usual on {after}."
    cpu = next((part for part in made.parts if part.scales_with == "cpu"), None)
    if cpu is not None and cpu.after_ns > max(cpu.before_ns, _LARGE * made.after_ns):
        share = format_share(cpu.after_ns / made.after_ns)
        yield f"The GPU waits for the CPU for {share} of the time on {after}: perfdoctor analyze says where."
    if made.lost:
        yield f"Longer than usual on {after}, work paired by {made.pairs_by}"
    for each in made.lost:
        yield _line_of_share(each)
    link = next((part for part in made.parts if part.scales_with == "link"), None)
    if link is not None and link.before_ns and link.after_ns - link.usual_high_ns > _LARGE * made.after_ns:
        yield (
            f"Copies and links take {format_duration(link.after_ns)} on {after}, {format_duration(link.usual_high_ns)} "
            "at most is usual: other ranks, other routes or pageable memory."
        )
    large = [each for each in made.alone if each.time_ns > _LARGE * made.after_ns]
    if made.paired_share < 1 - _LARGE or large:
        alone = format_share(1 - made.paired_share)
        yield f"{alone} of the GPU's time on {after} has no partner, and is not judged. Longest without one"
        for work in made.alone[:_MAX_ALONE]:
            device = _name(made.before) if work.side == "before" else after
            yield f"  {_describe_work(work)}: {format_duration(work.time_ns)} on {device}"


def _describe_work(work: LostShare | LoneWork) -> str:
    words = (work.op, shorten_end(work.shape, _MAX_SHAPE), work.module and f"in {work.module}")
    return shorten_end(clean_line(" ".join(filter(None, words))), _MAX_WORK)


def _name(device: str) -> str:
    """What people call a device, such as "A100"."""
    return re.sub(r"^(NVIDIA|AMD|Tesla|Instinct)\s+|\s*\(.*\)", "", device)


def _ratio(one: int, other: int) -> str:
    return f"{one / other:.2f}" if one and other else "-"


def _rows(made: DeviceComparison) -> Iterator[tuple[str, Sequence[ScalingPart]]]:
    """The rows of the table: work that runs on another unit on the second device is one row with what runs there."""
    parts = {part.scales_with: part for part in made.parts}
    units = [parts.pop(name) for name in ("tensor_cores", "cuda_cores") if name in parts]
    little = [min(part.before_ns, part.after_ns) < _LARGE * max(part.before_ns, part.after_ns) for part in units]
    if len(units) > 1 and any(little):
        yield "compute", units
    else:
        yield from ((NAMES_OF_SCALING[part.scales_with], [part]) for part in units)
    yield from ((NAMES_OF_SCALING[name], [part]) for name, part in parts.items())


def _line_of_parts(label: str, parts: Sequence[ScalingPart]) -> str:
    before, after = (sum(getattr(part, name) for part in parts) for name in ("before_ns", "after_ns"))
    low, high = (sum(getattr(part, name) for part in parts) for name in ("usual_low_ns", "usual_high_ns"))
    times = f"{format_duration(before):>{_WIDTH}}{format_duration(after):>{_WIDTH}}"
    if not before or not after:
        return f"  {label:<18}{times}"
    usual = f"{_ratio(before, high)} to {_ratio(before, low)}" if low != high else ""
    return f"  {label:<18}{times}  {_ratio(before, after):>6}   {usual}".rstrip()


def _line_of_share(share: LostShare) -> str:
    kernel = short_kernel_name(clean_line(share.kernel_after))
    usual = f"{format_duration(share.usual_ns)}, {format_duration(share.usual_high_ns)} at most"
    return (
        f"  {_describe_work(share)}: {format_duration(share.after_ns)}, usual is {usual} "
        f"({format_duration(share.before_ns)} before); {_REASONS[share.reason]} ({shorten_end(kernel, _MAX_WORK)})"
    )
