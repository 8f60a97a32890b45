"""Agreement of our FLOPs with torch.utils.flop_counter, op by op. Needs torch, on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from perfdoctor.gpu.roofline import FORMULAS, cost_of_op

_HALF = "c10::BFloat16"


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
    from perfdoctor.gpu.op_costs_matrix import MATRIX_COSTS

    return name in MATRIX_COSTS


def _cases(torch: Any) -> list[tuple[str, list[Any], list[str], Callable[[], object]]]:
    aten = torch.ops.aten

    def new(*size: int) -> Any:
        return torch.empty(*size, dtype=torch.bfloat16, device="meta")

    x, w, out = (8, 64, 28, 28), (128, 64, 3, 3), (8, 128, 14, 14)
    settings: list[Any] = [[2, 2], [1, 1], [1, 1], False, [0, 0], 1]
    texts = [str(part) for part in settings]
    q = (2, 16, 512, 64)
    attention = [("False", False), ("True", True)]
    cases: list[tuple[str, list[Any], list[str], Callable[[], object]]] = [
        ("aten::mm", [(96, 64), (64, 32)], ["", ""], lambda: aten.mm(new(96, 64), new(64, 32))),
        (
            "aten::addmm",
            [(32,), (96, 64), (64, 32), [], []],
            [""] * 5,
            lambda: aten.addmm(new(32), new(96, 64), new(64, 32)),
        ),
        ("aten::bmm", [(4, 96, 64), (4, 64, 32)], ["", ""], lambda: aten.bmm(new(4, 96, 64), new(4, 64, 32))),
        (
            "aten::baddbmm",
            [(4, 96, 32), (4, 96, 64), (4, 64, 32)],
            [""] * 3,
            lambda: aten.baddbmm(new(4, 96, 32), new(4, 96, 64), new(4, 64, 32)),
        ),
        (
            "aten::convolution",
            [x, w, *[[]] * 7],
            ["", "", "", *texts],
            lambda: aten.convolution(new(*x), new(*w), None, *settings),
        ),
        (
            "aten::convolution_backward",
            [out, x, w, *[[]] * 8],
            ["", "", "", "", *texts, "[True, True, False]"],
            lambda: aten.convolution_backward(new(*out), new(*x), new(*w), [128], *settings, [True, True, False]),
        ),
    ]
    for text, causal in attention:
        cases.append(
            (
                "aten::_scaled_dot_product_flash_attention",
                [q, q, q, [], [], [], []],
                ["", "", "", "0.", text, "False", ""],
                lambda causal=causal: aten._scaled_dot_product_flash_attention(new(*q), new(*q), new(*q), 0.0, causal),
            )
        )
        cases.append(
            (
                "aten::_scaled_dot_product_efficient_attention",
                [q, q, q, *[[]] * 5],
                ["", "", "", "", "True", "0.", text, ""],
                lambda causal=causal: aten._scaled_dot_product_efficient_attention(
                    new(*q), new(*q), new(*q), None, True, 0.0, causal
                ),
            )
        )
        cases.append(
            (
                "aten::_scaled_dot_product_cudnn_attention",
                [q, q, q, *[[]] * 6],
                ["", "", "", "", "True", "0.", text, "False", ""],
                lambda causal=causal: aten._scaled_dot_product_cudnn_attention(
                    new(*q), new(*q), new(*q), None, True, 0.0, causal, False
                ),
            )
        )
    return cases
