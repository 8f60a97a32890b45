"""The table of efficiencies: made from recorded kernels with known work, and checked on recordings that it left out.

    python -m benchmarks.kernels efficiencies [FOLDER] [--write]

One sample is one kind of kernel (name, sizes and types) of one recording: the median of its launches' efficiencies, so
that a kernel launched a thousand times counts once. Left out are kernels on a slow path (PD202), vector products,
depthwise and Winograd convolutions, kernels of unknown unit, and whatever is faster than the peaks (its data was
cached). Recordings that share over half of their sizes are of one program: they leave the table together when it is
checked on one of them.
"""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfdoctor import TraceError, read
from perfdoctor.analyzers._kernel_ranges import find_roofs, generation_of, roof_times_ns
from perfdoctor.gpu.roofline.efficiencies import SIZES, Cell, Efficiency, find_efficiency, size_classes
from perfdoctor.gpu.roofline.kernel_bounds import PEAK_TOLERANCE
from perfdoctor.rank import Rank
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables.model import KERNEL

DEFAULT_FOLDER = Path(__file__).resolve().parents[3] / "shared"
TABLE = Path(__file__).resolve().parents[2] / "perfdoctor" / "gpu" / "data" / "efficiencies.csv"
FAMILIES = ("gemm", "convolution", "attention", "memory")
MIN_KINDS = 5
MIN_PROGRAMS = 2
"""Quartiles of fewer kinds, or of one program, say little of other programs: such a cell is left to the wider ones."""

_FEWER_PRODUCTS = ("winograd", "fft", "cgemm", "sp3asm")
_SAME_PROGRAM = 0.5
_NEAR = (0.6, 1.6)  # expected over measured, as promises are judged
_QUARTILES = (25, 50, 75)


class Sample(NamedTuple):
    """One kind of kernel of one recording.

    Attributes:
        program: Number of the program.
        cell: The most special cell of the table to which it belongs.
        roof_ns: Its time at the roof.
        efficiency: The median of its launches.
        total_ns: The time of all its launches.
        path: The recording.
    """

    program: int
    cell: Cell
    roof_ns: float
    efficiency: float
    total_ns: float
    path: Path = Path()


def main(arguments: Sequence[str]) -> int:
    """Print the check of the table; with --write also write the table that ships with the package."""
    folders = [Path(argument) for argument in arguments if argument != "--write"] or [DEFAULT_FOLDER]
    samples = list(read_samples(folders))
    print(f"{len(samples)} kinds of kernels of {len({sample.program for sample in samples})} programs")
    print_check(samples)
    if "--write" in arguments:
        write_table(samples, TABLE)
        print(f"written: {TABLE}")
    return 0


def read_samples(folders: Iterable[Path]) -> Iterator[Sample]:
    """Yield the samples of all recordings of some folders; a file that occurs twice counts once."""
    seen: set[str] = set()
    programs: list[set[object]] = []
    for path in sorted(path for folder in folders for path in folder.rglob("*.json.gz")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest in seen:
            continue
        seen.add(digest)
        try:
            trace = read(path)
        except TraceError:  # timelines of memory lie beside the traces
            continue
        if not (trace.gpu.kind == KERNEL).any():
            continue
        rank = Rank(trace)
        if rank.device is None:
            continue
        sizes: set[object] = {(cost.kind, cost.m, cost.n, cost.k, cost.flops) for cost in rank.kernel_costs.op_costs}
        if not sizes:
            continue
        program = _number_program(sizes, programs)
        yield from (sample._replace(path=path) for sample in _samples_of(rank, program))


def _number_program(sizes: set[object], programs: list[set[object]]) -> int:
    """The number of the program that has these sizes; a new one where no program shares over half of them."""
    for number, known in enumerate(programs):
        if len(sizes & known) > _SAME_PROGRAM * min(len(sizes), len(known)):
            known |= sizes
            return number
    programs.append(set(sizes))
    return len(programs) - 1


def _samples_of(rank: Rank, program: int) -> Iterator[Sample]:
    costs, dur_ns, generation = rank.kernel_costs, rank.trace.gpu.dur_ns, generation_of(rank)
    for family in FAMILIES:
        kernels = rank.kernels.where(costs.match_rows(family) & _match_comparable(rank) & (dur_ns > 0))
        rows = np.flatnonzero(kernels.mask)
        if family == "memory":
            roof_ns = roof_times_ns(rank, kernels, np.full(len(rows), np.inf), bytes_ratio=1.0)
            units = ["any"] * len(rows)
        else:
            roofs = find_roofs(rank, kernels)
            roof_ns, units = roofs.roof_ns, [roofs.units[code] for code in roofs.unit.tolist()]
        efficiency = roof_ns / np.maximum(dur_ns[rows], 1)
        launches: dict[tuple[int, str], list[int]] = defaultdict(list)
        for i in np.flatnonzero((efficiency > 0) & (efficiency <= PEAK_TOLERANCE)).tolist():
            launches[int(costs.kind[rows[i]]), units[i]].append(i)
        for (_, unit), members in launches.items():
            roof = float(np.median(roof_ns[members]))
            size = SIZES[int(size_classes(np.array([roof]))[0])]
            cell = Cell(family, unit, size, generation)
            total_ns = float(dur_ns[rows[members]].sum())
            yield Sample(program, cell, roof, float(np.median(efficiency[members])), total_ns)


def _match_comparable(rank: Rank) -> BoolArray:
    """For each GPU item whether it is a kernel that shows what a good one reaches."""
    return ~rank.kernel_classes.match_rows(
        lambda k: k.slow_path or k.gemv_like or k.depthwise
    ) & ~rank.trace.match_rows(rank.trace.gpu, "(?i)" + "|".join(_FEWER_PRODUCTS))


def make_table(samples: Iterable[Sample]) -> Mapping[Cell, tuple[Efficiency, int, int]]:
    """The quartiles of each cell and of all wider ones, with how many kinds and programs they come from."""
    members: dict[Cell, list[Sample]] = defaultdict(list)
    for sample in samples:
        for cell in dict.fromkeys(sample.cell.widen()):
            members[cell].append(sample)
    return {
        cell: (
            Efficiency(*np.percentile([min(s.efficiency, 1.0) for s in some], _QUARTILES).tolist()),
            len(some),
            len({s.program for s in some}),
        )
        for cell, some in sorted(members.items())
        if len(some) >= MIN_KINDS and len({s.program for s in some}) >= MIN_PROGRAMS
    }


def write_table(samples: Iterable[Sample], path: Path) -> None:
    """Write the table as a CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*Cell._fields, "kinds", "programs", *Efficiency._fields])
        for cell, (efficiency, kinds, programs) in make_table(samples).items():
            writer.writerow([*cell, kinds, programs, *(f"{share:.3f}" for share in efficiency)])


def print_check(samples: Sequence[Sample]) -> None:
    """Print, by family, how well the table tells the time of kernels of programs that were left out of it."""
    print(
        f"\n{'family':12}{'program':>8}{'cell':>28}{'kinds':>6}{'ms':>9}{'expected/ms':>12}{'low':>7}{'high':>7}{'inside':>8}"
    )
    for family in FAMILIES:
        ratios: list[float] = []
        inside = 0
        for program in sorted({s.program for s in samples}):
            table = {cell: row[0] for cell, row in make_table(s for s in samples if s.program != program).items()}
            own = [s for s in samples if s.program == program and s.cell.family == family]
            judged = [(s, e) for s in own if (e := find_efficiency(s.cell, table)) is not None]
            recorded_ns = sum(s.total_ns for s, _ in judged)
            if not judged:
                continue
            expected, slow, fast = (
                sum(s.total_ns * s.efficiency / getattr(e, quartile) for s, e in judged) / recorded_ns
                for quartile in ("expected", "low", "high")
            )
            inside += fast <= 1 <= slow
            ratios.append(expected)
            print(
                f"{family:12}{program:8}{judged[0][0].cell.generation:>28}{len(judged):6}{recorded_ns / 1e6:9.2f}"
                f"{expected:12.2f}{fast:7.2f}{slow:7.2f}{fast <= 1 <= slow!s:>8}"
            )
        near = sum(_NEAR[0] <= ratio <= _NEAR[1] for ratio in ratios)
        print(
            f"{family}: median {np.median(ratios):.2f}; {near} of {len(ratios)} within {_NEAR[0]} to {_NEAR[1]}, "
            f"{inside} inside the quartiles"
        )
