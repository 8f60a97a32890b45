"""What `perfdoctor expect` says of programs on two devices, and of programs on their own, against what is true.

    python -m benchmarks.expect [SHARED]

What is predicted is the GPU's time without collectives: the two sides of a pair have other CPUs and numbers of ranks.
The table of efficiencies is made anew without the program that is predicted. Two recordings of DLRM differ in their
jobs (8 and 2 ranks), so only ops of the same sizes are compared, by the median of each.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.kernels.efficiencies import DEFAULT_FOLDER, Sample, make_table, read_samples
from perfdoctor import read
from perfdoctor.analysis.kernels.device_scaling import LINK, device_ratios_of, usual_ratios_of
from perfdoctor.gpu.roofline.efficiencies import Cell, Efficiency
from perfdoctor.rank import Rank
from perfdoctor.trace.arrays import FloatArray


class Pair(NamedTuple):
    """Two recordings of a program, with how many steps each holds; 0 where ops of the same sizes are compared."""

    what: str
    first: str
    first_steps: int
    second: str
    second_steps: int


PAIRS = (
    Pair("ResNet training", "a100-nccl-config/rank0", 3, "v100-ns-resolution/rank0", 5),
    Pair("DLRM training, 152 kinds of ops", "a100-ddp-control/rank3", 0, "v100-ddp-test/rank1", 0),
    Pair("Qwen3-30B decoding in a graph", "b300-decode-graph", 1, "mi300x-decode-graph", 1),
)
_DIGITS = set("123456789")


def main(arguments: Sequence[str]) -> int:
    """Print both tables."""
    shared = Path(arguments[0]) if arguments else DEFAULT_FOLDER
    samples = list(read_samples([shared]))
    columns = f"{'now ms':>9}{'range':>18}{'expected':>9}{'true':>8}{'ratio':>7}{'inside':>8}"
    print(f"{'program':34}{'from':>10}{'to':>10}{columns}")
    for pair in PAIRS:
        for first, second, steps in (
            (pair.first, pair.second, (pair.first_steps, pair.second_steps)),
            (pair.second, pair.first, (pair.second_steps, pair.first_steps)),
        ):
            print_pair(pair.what, *(Rank(read(path_of(shared, name))) for name in (first, second)), steps, samples)
    print_own(samples)
    return 0


def path_of(shared: Path, name: str) -> Path:
    """The file of a recording."""
    return shared / "traces" / f"{name}.json.gz"


def table_without(samples: Sequence[Sample], programs: set[int]) -> Mapping[Cell, Efficiency]:
    """The efficiencies without some programs."""
    return {cell: row[0] for cell, row in make_table(s for s in samples if s.program not in programs).items()}


def print_pair(what: str, rank: Rank, other: Rank, steps: tuple[int, int], samples: Sequence[Sample]) -> None:
    """Print what is expected of a recording on the device of another one, and what that took; the steps of both."""
    assert rank.device is not None
    assert other.device is not None
    paths = {Path(each.trace.path) for each in (rank, other)}
    table = table_without(samples, {sample.program for sample in samples if sample.path in paths})
    ratios = device_ratios_of(*facts_of(rank), rank.device, other.device, table)
    predicted_ns = ratios * rank.trace.gpu.dur_ns[:, None]
    if all(steps):
        now, true = (
            each.trace.gpu.dur_ns[each.scaling != LINK].sum() / count
            for each, count in zip((rank, other), steps, strict=True)
        )
        times = predicted_ns[rank.scaling != LINK].sum(axis=0) / steps[0]
    else:
        now, true, times = sum_common_ops(rank, other, predicted_ns)
    low, expected, high = times / 1e6
    print(
        f"{what:34}{short_name(rank):>10}{short_name(other):>10}{now / 1e6:9.1f}{f'{low:.1f} to {high:.1f}':>18}"
        f"{expected:9.1f}{true / 1e6:8.1f}{expected * 1e6 / true:7.2f}{'yes' if low <= true / 1e6 <= high else 'no':>8}"
    )


def facts_of(rank: Rank) -> tuple[object, ...]:
    """What `device_ratios_of` and `usual_ratios_of` take of a rank."""
    return rank.kernel_classes, rank.kernel_costs, rank.verdicts, rank.roof_shares.roof, rank.scaling


def short_name(rank: Rank) -> str:
    """The model of a device, such as "V100"."""
    assert rank.device is not None
    return rank.device.name.split()[1]


def sum_common_ops(rank: Rank, other: Rank, predicted_ns: FloatArray) -> tuple[float, float, FloatArray]:
    """The time of the ops that both have, as often as the first calls them: now, on the other device, as predicted."""
    now = true = 0.0
    predicted = np.zeros(3)
    theirs = dict(ops_by_size(other))
    for kind, calls in ops_by_size(rank):
        if kind in theirs:
            now += sum(float(rank.trace.gpu.dur_ns[rows].sum()) for rows in calls)
            true += len(calls) * float(np.median([other.trace.gpu.dur_ns[rows].sum() for rows in theirs[kind]]))
            predicted += len(calls) * np.median([predicted_ns[rows].sum(axis=0) for rows in calls], axis=0)
    return now, true, predicted


def ops_by_size(rank: Rank) -> Iterator[tuple[tuple[str, ...], list[list[int]]]]:
    """The ops of one name, sizes and types, with the GPU items of each call; without collectives and lists."""
    trace, gpu, ops = rank.trace, rank.trace.gpu, rank.trace.ops
    calls: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero((gpu.op >= 0) & (rank.scaling != LINK)).tolist():
        calls[int(gpu.op[row])].append(row)
    kinds: dict[tuple[str, ...], list[list[int]]] = defaultdict(list)
    for op, rows in calls.items():
        kind = (trace.strings[int(ops.name[op])], *(trace.text(int(each[op])) or "" for each in (ops.dims, ops.types)))
        if _DIGITS & set(kind[1]):
            kinds[kind].append(rows)
    yield from kinds.items()


def print_own(samples: Sequence[Sample]) -> None:
    """Print for each recording what comparable kernels of other programs would take of its time, as shares of it."""
    print(f"\n{'recording':48}{'generation':>11}{'known':>7}{'usual':>7}{'range':>15}{'inside':>8}")
    inside = count = 0
    for path, sample in {sample.path: sample for sample in samples}.items():
        rank = Rank(read(path))
        assert rank.device is not None
        ratios = usual_ratios_of(*facts_of(rank), rank.device, table_without(samples, {sample.program}))
        dur_ns, known = rank.trace.gpu.dur_ns, (ratios != 1).any(axis=1)
        if known.any():
            low, usual, high = np.average(ratios[known], axis=0, weights=dur_ns[known])
            share = dur_ns[known].sum() / max(dur_ns[rank.scaling != LINK].sum(), 1)
            count, inside = count + 1, inside + (low <= 1 <= high)
            print(
                f"{'/'.join(path.parts[-2:]):48}{sample.cell.generation:>11}{share:7.0%}{usual:7.2f}"
                f"{f'{low:.2f} to {high:.2f}':>15}{'yes' if low <= 1 <= high else 'no':>8}"
            )
    print(f"{inside} of {count} inside")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
