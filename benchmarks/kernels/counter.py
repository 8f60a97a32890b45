"""Comparison of our FLOPs with torch.utils.flop_counter, op by op. Needs torch; runs on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from perfdoctor.gpu.roofline.cost_of_op import FORMULAS, cost_of_op

_HALF = "c10::BFloat16"
_Case: TypeAlias = tuple[str, list[Any], list[str], Callable[[], object]]


def print_agreement() -> None:
    """Print a line for each op that both know, then the ops that only one of them knows."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    print(f"{'op':60}{'ours':>14}{'counter':>14}")
    for name, sizes, concrete, call in _cases(torch):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            call()
        theirs = counter.get_total_flops()
        types = [_HALF if size else "" for size in sizes]
        cost = cost_of_op(name, json.dumps(sizes), json.dumps(types), None, json.dumps(concrete))
        ours = cost.flops if cost else None
        note = "" if ours == theirs else "  causal: half" if ours is not None and 2 * ours == theirs else "  DIFFERS"
        print(f"{name:60}{ours!s:>14}{theirs:14}{note}")
    known = {str(op).replace("aten.", "aten::") for op in flop_registry}
    print("without a formula of ours:", ", ".join(sorted(known - set(FORMULAS))))
    print("beside them we have:", ", ".join(sorted(n for n in FORMULAS if n not in known and _is_matrix(n))))


def _is_matrix(name: str) -> bool:
    from perfdoctor.gpu.roofline.matrix_formulas import MATRIX_FORMULAS

    return name in MATRIX_FORMULAS


def _cases(torch: Any) -> Iterator[_Case]:
    """Yield ops with input sizes and concrete inputs as a trace records them, and a call of each op."""
    yield from _gemms(torch.ops.aten, _empty_bf16(torch))
    yield from _convolutions(torch.ops.aten, _empty_bf16(torch))
    for causal in (False, True):
        yield from _attentions(torch.ops.aten, _empty_bf16(torch), causal)


def _empty_bf16(torch: Any) -> Callable[..., Any]:
    """Return a function that makes a bfloat16 tensor of given sizes, without memory."""
    return lambda *size: torch.empty(*size, dtype=torch.bfloat16, device="meta")


def _gemms(aten: Any, new: Callable[..., Any]) -> Iterator[_Case]:
    bias, left, right = (32,), (96, 64), (64, 32)
    yield "aten::mm", [left, right], [""] * 2, lambda: aten.mm(new(*left), new(*right))
    sizes = [bias, left, right, [], []]
    yield "aten::addmm", sizes, [""] * 5, lambda: aten.addmm(new(*bias), new(*left), new(*right))
    batch_bias, batch_left, batch_right = (4, 96, 32), (4, 96, 64), (4, 64, 32)
    yield "aten::bmm", [batch_left, batch_right], [""] * 2, lambda: aten.bmm(new(*batch_left), new(*batch_right))
    sizes = [batch_bias, batch_left, batch_right]
    yield "aten::baddbmm", sizes, [""] * 3, lambda: aten.baddbmm(new(*batch_bias), new(*batch_left), new(*batch_right))


def _convolutions(aten: Any, new: Callable[..., Any]) -> Iterator[_Case]:
    x, w, out = (8, 64, 28, 28), (128, 64, 3, 3), (8, 128, 14, 14)
    settings: list[Any] = [[2, 2], [1, 1], [1, 1], False, [0, 0], 1]
    texts = [str(part) for part in settings]
    sizes: list[Any] = [x, w, *[[]] * 7]
    yield ("aten::convolution", sizes, [*[""] * 3, *texts], lambda: aten.convolution(new(*x), new(*w), None, *settings))
    output_mask = [True, True, False]
    yield (
        "aten::convolution_backward",
        [out, *sizes, []],
        [*[""] * 4, *texts, str(output_mask)],
        lambda: aten.convolution_backward(new(*out), new(*x), new(*w), [128], *settings, output_mask),
    )


def _attentions(aten: Any, new: Callable[..., Any], causal: bool) -> Iterator[_Case]:
    q, text = (2, 16, 512, 64), str(causal)

    def make_qkv() -> list[Any]:
        return [new(*q) for _ in range(3)]

    yield (
        "aten::_scaled_dot_product_flash_attention",
        [q, q, q, *[[]] * 4],
        ["", "", "", "0.", text, "False", ""],
        lambda: aten._scaled_dot_product_flash_attention(*make_qkv(), 0.0, causal),
    )
    yield (
        "aten::_scaled_dot_product_efficient_attention",
        [q, q, q, *[[]] * 5],
        ["", "", "", "", "True", "0.", text, ""],
        lambda: aten._scaled_dot_product_efficient_attention(*make_qkv(), None, True, 0.0, causal),
    )
    yield (
        "aten::_scaled_dot_product_cudnn_attention",
        [q, q, q, *[[]] * 6],
        ["", "", "", "", "True", "0.", text, "False", ""],
        lambda: aten._scaled_dot_product_cudnn_attention(*make_qkv(), None, True, 0.0, causal, False),
    )
