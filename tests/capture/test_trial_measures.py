"""What a trial keeps to compare results by: losses, else what a model returns."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from perfdoctor.capture.inject._perfdoctor_inject.trial_recorder import Losses  # noqa: E402


class _Promised(torch.Tensor):
    """A tensor of somebody's own kind: to look at it would compute it."""

    def is_floating_point(self) -> bool:
        raise AssertionError


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (torch.ones(2), True),
        ({"ids": torch.ones(2, dtype=torch.long), "logits": [torch.ones(3)]}, True),
        ((None, "text"), False),
        (torch.ones(2, device="meta"), False),
        (torch.ones(2).as_subclass(_Promised), False),
    ],
)
def test_the_first_plain_tensor_of_an_output_is_found(output: Any, found: bool) -> None:
    losses = Losses()
    losses.add_output(3, output)
    assert bool(losses.to_dict()) is found
    losses.add(4, torch.tensor(2.0))
    assert losses.to_dict() == {"4": 2.0}
