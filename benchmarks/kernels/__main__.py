"""What the kernel classifier and the cost formulas get right, and how fast they are.

python -m benchmarks.kernels [CSV]               names with known answers
python -m benchmarks.kernels traces [FOLDER]     verdicts, FLOP/s and speed over real traces
python -m benchmarks.kernels counter             FLOPs against torch.utils.flop_counter
python -m benchmarks.kernels efficiencies [FOLDER ...] [--write]
                                                 which share of the roof kernels reach; the table in gpu/data
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kernels import confusion, counter, efficiencies, traces

_SPEED_TRACE = "mi300x-resnet18-ddp.json.gz"  # nearly every launch has recorded shapes: the expensive case


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the first argument names; without one, names with known answers."""
    if arguments[:1] == ["counter"]:
        counter.print_agreement()
        return 0
    if arguments[:1] == ["efficiencies"]:
        return efficiencies.main(arguments[1:])
    if arguments[:1] != ["traces"]:
        return confusion.main(arguments)
    folder = Path(arguments[1]) if len(arguments) > 1 else traces.DEFAULT_FOLDER
    if not folder.is_dir():
        print(f"{folder} is not there: name a folder of traces", file=sys.stderr)
        return 2
    ranks = list(traces.read_ranks(folder))
    traces.print_verdicts(traces.count_verdicts(ranks))
    print()
    violations = traces.print_self_check(ranks)
    print()
    if (folder / _SPEED_TRACE).is_file():
        traces.print_speed(folder / _SPEED_TRACE)
    return 1 if violations else 0


raise SystemExit(main(sys.argv[1:]))
