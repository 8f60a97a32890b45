"""Cases of the rules about wrong results: PD505, PD506, PD516."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rule_cases import ALL_REDUCE, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder

CLIP_LINE = {"file": "/home/me/train.py", "line": 12, "function": "train"}


def amp(**counts: Any) -> dict[str, Any]:
    """Facts of a training with an enabled scaler, which unscales in each of 40 steps."""
    usual = {
        "autocast": 40,
        "scaled": 40,
        "unscaled": 40,
        "clipped": 40,
        "clipped_before_unscale": 0,
        "clip_location": None,
        "scaler_steps": 40,
        "scale_was_read": 0,
    }
    return {"amp": usual | counts, "optimizers": [{"class": "SGD", "steps": 40, "location": CLIP_LINE}]}


def no_scaler_step(optimizer: str = "SGD", steps: int = 40, **counts: Any) -> dict[str, Any]:
    """Facts of a training whose optimizer steps without the scaler."""
    facts = amp(**{"unscaled": 0, "scaler_steps": 0} | counts)
    return facts | {"optimizers": [{"class": optimizer, "steps": steps, "location": CLIP_LINE}]}


def add_training(trace: TraceBuilder, start_us: float) -> TraceBuilder:
    """The rest of a step: without gradients and an optimizer no result could be wrong."""
    trace.op("autograd::engine::evaluate_function: AddmmBackward0", start_us, 100)
    return trace.range("Optimizer.step#SGD.step", start_us + 100, 50)


def one_step() -> TraceBuilder:
    return add_training(TraceBuilder(device=None).step(0, 1000).op("aten::addmm", 0, 400), 400)


def losses(
    backward: str | None,
    forward: str = "aten::nll_loss_forward",
    types: Sequence[str] | None = ("c10::Half", "c10::Half", "long int"),
) -> TraceBuilder:
    """Two steps that compute a loss and, unless it is None, its gradient from inputs of some types."""
    trace = TraceBuilder()
    for number in range(2):
        start = 1000.0 * number
        trace.step(start, 1000).op("aten::mm", start, 20).kernel(TENSOR_GEMM, start + 30, 800, launch_us=start + 10)
        trace.op(forward, start + 30, 20, types=types and types[1:])
        if backward:
            trace.op(backward, start + 60, 20, types=types)
            add_training(trace, start + 200)
    return trace


def in_a_criterion(trace: TraceBuilder) -> TraceBuilder:
    """The forward ops of the losses are called on a line."""
    for start in (0, 1000):
        trace.frame("seg.py(12): criterion", start + 28, 24)
    return trace


FLOAT = ("float", "float", "long int")


def job(world: int = 2, reductions: int = 2, device: str = "NVIDIA A100-SXM4-80GB") -> list[TraceBuilder]:
    """Ranks that all-reduce in each of two steps."""
    ranks = []
    for rank in range(world):
        trace = TraceBuilder(rank=rank, world_size=world, device=device if rank else "NVIDIA A100-SXM4-80GB")
        for number in range(2):
            start = 1000.0 * number
            trace.step(start, 1000).op("aten::mm", start, 20)
            add_training(trace, start + 200)
            trace.kernel(TENSOR_GEMM, start + 30, 500, launch_us=start + 10)
            if number < reductions:
                trace.kernel(ALL_REDUCE, start + 600, 100, launch_us=start + 15)
        ranks.append(trace)
    return ranks


def checksums(*ranks: Sequence[int], step: int = 42, **model: Any) -> list[Mapping[str, Any]]:
    """For each rank facts with the checksums of its tensors a, b, c."""
    usual = {"class": "Net", "ddp": True, "group": [], "reduces_each_step": True, "sharded": False}
    return [
        {
            "models": [{"class": "DistributedDataParallel", "ddp": {"created": CLIP_LINE}}],
            "parameter_checksums": [
                {
                    "step": step,
                    "models": [
                        usual
                        | model
                        | {"tensors": [{"name": n, "checksum": c} for n, c in zip("abc", sums, strict=False)]}
                    ],
                }
            ],
        }
        for sums in ranks
    ]


def at_two_steps(before: list[Mapping[str, Any]], after: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [
        {**late, "parameter_checksums": [*early["parameter_checksums"], *late["parameter_checksums"]]}
        for early, late in zip(before, after, strict=True)
    ]


def both_models(one: list[Mapping[str, Any]], other: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Facts of ranks with two models, compared at the same step."""
    both = []
    for first, second in zip(one, other, strict=True):
        (sample,), (more,) = first["parameter_checksums"], second["parameter_checksums"]
        both.append({**first, "parameter_checksums": [{**sample, "models": [*sample["models"], *more["models"]]}]})
    return both
