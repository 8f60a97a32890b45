"""Python objects that a data set holds: each has a count of its references, which reading it writes to.

So a forked worker copies the page of every object that it reads, and a spawned one has all of them from the start.
Arrays and tensors are one object for all of their values, whose pages stay shared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

MIN_OBJECTS = 10_000
# Of each container, spread over a list: as many are enough for a mean size, and take 0.1 ms.
SAMPLES = 64
# Of data sets in data sets: a split of a concatenation of the program's own.
MAX_DEPTH = 4
# Python gives out memory in multiples of this.
ALIGNMENT = 16
# Beside its count of references a larger object fills pages that nobody writes to.
PAGE_BYTES = 4096
CONTAINERS = (list, tuple, dict, set)


def describe_objects(dataset: Any) -> dict[str, Any] | None:
    """The largest container of Python objects in the attributes of a data set.

    The attribute, the type and the length of the container, and about how many bytes a worker copies that reads all of
    it; None where none has `MIN_OBJECTS` objects. No code of the data set runs.
    """
    found: list[dict[str, Any]] = [
        {"attribute": name, "type": type(each).__name__, "length": len(each), "bytes": estimate_bytes(each)}
        for name, each in find_containers(dataset, MAX_DEPTH)
    ]
    large = [each for each in found if each["length"] >= MIN_OBJECTS]
    return max(large, key=lambda each: each["bytes"], default=None)


def find_containers(holder: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """The containers in the attributes of an object, and in those of the data sets in it, with their attributes."""
    try:
        attributes = dict(vars(holder))
    except TypeError:  # it has slots, or is a container itself
        attributes = {"dataset": holder}
    for name, value in attributes.items():
        if type(value) in CONTAINERS:
            yield name, value
            parts = list(value) if type(value) in (list, tuple) and len(value) <= SAMPLES else ()
        else:
            parts = [value]
        for part in parts if depth else ():
            if hasattr(type(part), "__getitem__") and isinstance(getattr(part, "__dict__", None), dict):
                yield from find_containers(part, depth - 1)


def estimate_bytes(container: Any) -> int:
    """About how many bytes the objects of a container take, as far as reading them writes to their pages."""
    count = len(container)
    if not count:
        return 0
    if type(container) in (list, tuple):
        chosen = [container[number * count // SAMPLES] for number in range(min(SAMPLES, count))]
    else:
        chosen = list(islice(container.items() if type(container) is dict else container, SAMPLES))
    return sum(measure(each, MAX_DEPTH) for each in chosen) * count // len(chosen)


def measure(value: Any, depth: int) -> int:
    """The bytes of an object and of those in it that have counts of references of their own."""
    if value is None or isinstance(value, bool | type):  # one object for the whole program
        return 0
    size = min(-(-sys.getsizeof(value, 64) // ALIGNMENT) * ALIGNMENT, PAGE_BYTES)
    if not depth or type(value) not in CONTAINERS:
        return size
    parts = [part for pair in value.items() for part in pair] if type(value) is dict else value
    inner = list(islice(parts, SAMPLES))
    if not inner:
        return size
    return size + sum(measure(each, depth - 1) for each in inner) * len(parts) // len(inner)
