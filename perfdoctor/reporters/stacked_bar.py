"""One bar of fixed width, cut in proportion."""

from __future__ import annotations

from collections.abc import Sequence


def cells(shares: Sequence[float], width: int) -> list[int]:
    """Cells for each share of a bar: they add up to `width` exactly, and what is not nothing gets at least one.

    Largest remainders, so no segment is more than one cell off. All shares zero: no cells at all.
    """
    whole = sum(shares)
    if whole <= 0:
        return [0] * len(shares)
    exact = [width * s / whole for s in shares]
    given = [max(int(e), 1) if s > 0 else 0 for e, s in zip(exact, shares, strict=True)]
    while sum(given) < width:
        given[max(range(len(given)), key=lambda i: exact[i] - given[i])] += 1
    while sum(given) > width and max(given) > 1:
        given[min((i for i in range(len(given)) if given[i] > 1), key=lambda i: exact[i] - given[i])] -= 1
    return given
