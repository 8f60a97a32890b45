"""One bar of fixed width, divided in proportion."""

from __future__ import annotations

from collections.abc import Sequence


def allocate_cells(shares: Sequence[float], width: int) -> list[int]:
    """The number of cells for each share of a bar; they add up to `width`, and a share above zero gets at least one.

    The largest remainders are rounded up, so that no segment is more than one cell off. Without any share above zero
    there are no cells::

        shares 0.70 0.29 0.01, width 10  ->  7 2 1
    """
    whole = sum(shares)
    if whole <= 0:
        return [0] * len(shares)
    exact = [width * share / whole for share in shares]
    cells = [max(int(e), 1) if share > 0 else 0 for e, share in zip(exact, shares, strict=True)]
    while sum(cells) < width:
        cells[max(range(len(cells)), key=lambda i: exact[i] - cells[i])] += 1
    while sum(cells) > width and max(cells) > 1:
        cells[min((i for i in range(len(cells)) if cells[i] > 1), key=lambda i: exact[i] - cells[i])] -= 1
    return cells
