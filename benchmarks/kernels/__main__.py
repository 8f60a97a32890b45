"""`python -m benchmarks.kernels [CSV]`, `python -m benchmarks.kernels traces [FOLDER]`, `... counter`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kernels import confusion, counter, traces

_FOR_SPEED = "mi300x-resnet18-ddp.json.gz"  # nearly every launch has recorded shapes: the dear case


def main(arguments: Sequence[str]) -> int:
    """Run the part that the first word names; names with known answers when there is none."""
    if arguments[:1] == ["counter"]:
        counter.print_agreement()
        return 0
    if arguments[:1] != ["traces"]:
        return confusion.main(arguments)
    folder = Path(arguments[1]) if len(arguments) > 1 else traces.DEFAULT_FOLDER
    if not folder.is_dir():
        print(f"{folder} is not there: name a folder of traces", file=sys.stderr)
        return 2
    named = list(traces.runs(folder))
    traces.print_confusion(traces.confusion(named))
    print()
    found = traces.print_self_check(named)
    print()
    if (folder / _FOR_SPEED).is_file():
        traces.print_speed(folder / _FOR_SPEED)
    return 1 if found else 0


raise SystemExit(main(sys.argv[1:]))
