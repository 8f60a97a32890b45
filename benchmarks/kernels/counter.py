"""Agreement of our FLOPs with torch.utils.flop_counter, op by op. Needs torch, on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from perfdoctor.gpu.roofline.cost_of_op import FORMULAS, cost_of_op

_HALF = "c10::BFloat16"
_Case: TypeAlias = tuple[str, list[Any], list[str], Callable[[], object]]


def print_agreement() -> None:
    """A line for each op that the counter knows and an aten op can be made of; says where there is no formula."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    print(f"{'op':60}{'ours':>14}{'counter':>14}")
    for name, sizes, concrete, call in _cases(torch):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            call()
        theirs = counter.get_total_flops()
        types = [_HALF if size else "" for size in sizes]
        found = cost_of_op(name, json.dumps(sizes), json.dumps(types), None, json.dumps(concrete))
        ours = found.flops if found else None
        note = "" if ours == theirs else "  causal: half" if ours is not None and 2 * ours == theirs else "  DIFFERS"
        print(f"{name:60}{ours!s:>14}{theirs:14}{note}")
    known = {str(op).replace("aten.", "aten::") for op in flop_registry}
    print("without a formula of ours:", ", ".join(sorted(known - set(FORMULAS))))
    print("beside them we have:", ", ".join(sorted(n for n in FORMULAS if n not in known and _is_matrix(n))))


def _is_matrix(name: str) -> bool:
    from perfdoctor.gpu.roofline.matrix_formulas import MATRIX_FORMULAS

    return name in MATRIX_FORMULAS


def _cases(torch: Any) -> Iterator[_Case]:
    """The op, its input sizes and concrete inputs as a trace records them, and a call of it."""
    yield from _products(torch.ops.aten, _new(torch))
    yield from _convolutions(torch.ops.aten, _new(torch))
    for causal in (False, True):
        yield from _attentions(torch.ops.aten, _new(torch), causal)


def _new(torch: Any) -> Callable[..., Any]:
    return lambda *size: torch.empty(*size, dtype=torch.bfloat16, device="meta")


def _products(aten: Any, new: Callable[..., Any]) -> Iterator[_Case]:
    bias, left, right = (32,), (96, 64), (64, 32)
    yield "aten::mm", [left, right], [""] * 2, lambda: aten.mm(new(*left), new(*right))
    sizes = [bias, left, right, [], []]
    yield "aten::addmm", sizes, [""] * 5, lambda: aten.addmm(new(*bias), new(*left), new(*right))
    added, many, more = (4, 96, 32), (4, 96, 64), (4, 64, 32)
    yield "aten::bmm", [many, more], [""] * 2, lambda: aten.bmm(new(*many), new(*more))
    sizes = [added, many, more]
    yield "aten::baddbmm", sizes, [""] * 3, lambda: aten.baddbmm(new(*added), new(*many), new(*more))


def _convolutions(aten: Any, new: Callable[..., Any]) -> Iterator[_Case]:
    x, w, out = (8, 64, 28, 28), (128, 64, 3, 3), (8, 128, 14, 14)
    settings: list[Any] = [[2, 2], [1, 1], [1, 1], False, [0, 0], 1]
    texts = [str(part) for part in settings]
    sizes: list[Any] = [x, w, *[[]] * 7]
    yield (
        "aten::convolution",
        sizes,
        [*[""] * 3, *texts],
        lambda: aten.convolution(new(*x), new(*w), None, *settings),
    )
    wanted = [True, True, False]
    yield (
        "aten::convolution_backward",
        [out, *sizes, []],
        [*[""] * 4, *texts, str(wanted)],
        lambda: aten.convolution_backward(new(*out), new(*x), new(*w), [128], *settings, wanted),
    )


def _attentions(aten: Any, new: Callable[..., Any], causal: bool) -> Iterator[_Case]:
    q, text = (2, 16, 512, 64), str(causal)

    def given() -> list[Any]:
        return [new(*q) for _ in range(3)]

    yield (
        "aten::_scaled_dot_product_flash_attention",
        [q, q, q, *[[]] * 4],
        ["", "", "", "0.", text, "False", ""],
        lambda: aten._scaled_dot_product_flash_attention(*given(), 0.0, causal),
    )
    yield (
        "aten::_scaled_dot_product_efficient_attention",
        [q, q, q, *[[]] * 5],
        ["", "", "", "", "True", "0.", text, ""],
        lambda: aten._scaled_dot_product_efficient_attention(*given(), None, True, 0.0, causal),
    )
    yield (
        "aten::_scaled_dot_product_cudnn_attention",
        [q, q, q, *[[]] * 6],
        ["", "", "", "", "True", "0.", text, "False", ""],
        lambda: aten._scaled_dot_product_cudnn_attention(*given(), None, True, 0.0, causal, False),
    )
