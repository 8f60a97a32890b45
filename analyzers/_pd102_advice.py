"""What to write instead of each line that makes the CPU wait for the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from perfdoctor.analyzers import _pd102_blocking_calls as causes


class SyncAdvice(NamedTuple):
    """What to do about one cause of waits.

    Attributes:
        code: What was written, for titles.
        advice: What to do.
        fix: A line of code for it; "" where no one line does.
    """

    code: str
    advice: str
    fix: str = ""


_COPY_BACK = "Leave it on the GPU, or copy without blocking and read it after the next step was launched."

ADVICE: Mapping[str, SyncAdvice] = MappingProxyType(
    {
        causes.ITEM: SyncAdvice(
            ".item()",
            "Keep the value on the GPU: add up tensors and call .item() once every N steps.",
            "running_loss += loss.detach()              # instead of loss.item()",
        ),
        causes.IF: SyncAdvice(
            "`if tensor:`",
            "`if tensor:` and `while tensor:` copy the value to the CPU: use torch.where, or decide every N steps.",
            "x = torch.where(condition, a, b)           # instead of `if condition:`",
        ),
        causes.NONZERO: SyncAdvice(
            "nonzero()",
            "The CPU needs the size of the result: multiply by the mask, or use torch.where with three arguments.",
            "loss = (loss * mask).sum() / mask.sum()    # instead of loss[mask.nonzero()].mean()",
        ),
        causes.MASK: SyncAdvice(
            "a boolean mask",
            "For a boolean index the CPU needs the number of hits: multiply by the mask, or use torch.where.",
            "x = torch.where(mask, x, 0)                # instead of x[mask]",
        ),
        causes.UNIQUE: SyncAdvice(
            "torch.unique",
            "The CPU needs the number of different values: count them in the data set, or every N steps.",
            "counts = torch.zeros(num_classes, device=x.device).scatter_add_(0, x, ones)",
        ),
        causes.REPEAT: SyncAdvice(
            "repeat_interleave without output_size",
            "Without output_size the size of the result is read from the GPU.",
            "x.repeat_interleave(n, output_size=total)",
        ),
        causes.COMPARE: SyncAdvice(
            "torch.equal or allclose",
            "They answer on the CPU. Leave the check out of training, or keep its result on the GPU.",
            "same = (a == b).all()                      # stays on the GPU",
        ),
        causes.PRINT: SyncAdvice(
            "print(tensor)",
            "Printing picks out the finite values and reads each. Print every N steps, a copy that is on the CPU.",
            "if step % 100 == 0: print(loss.item())",
        ),
        causes.CLIP: SyncAdvice(
            "clip_grad_norm_(error_if_nonfinite=True)",
            "The check reads the norm on the CPU before it clips. Leave it off; a norm that is not finite shows in the "
            "loss.",
            "torch.nn.utils.clip_grad_norm_(parameters, max_norm)   # error_if_nonfinite=False, foreach=True",
        ),
        causes.SCALER: SyncAdvice(
            "GradScaler.step",
            "It reads whether a gradient overflowed. A fused optimizer decides that on the GPU; bfloat16 needs no "
            "scaler.",
            "optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
        ),
        causes.TO_CPU: SyncAdvice(
            ".cpu(), .numpy() or .tolist()",
            _COPY_BACK,
            "host.copy_(x, non_blocking=True); ...; event.synchronize()   # host in pinned memory",
        ),
        causes.PINNED: SyncAdvice(
            "A blocking .to(device)",
            "The memory is pinned already: without non_blocking the CPU waits for the copy all the same.",
            "x = x.to(device, non_blocking=True)",
        ),
        causes.PAGEABLE: SyncAdvice(
            ".to(device) from pageable memory",
            "Copy from pinned memory without blocking.",
            "x = x.to(device, non_blocking=True)        # with DataLoader(..., pin_memory=True)",
        ),
        causes.COPY: SyncAdvice(
            "A copy between CPU and GPU",
            "Copy from pinned memory without blocking; a copy back belongs after the next step's launch.",
            "x = x.to(device, non_blocking=True)        # with DataLoader(..., pin_memory=True)",
        ),
        causes.DEVICE: SyncAdvice(
            "torch.cuda.synchronize()",
            "Training needs none: PyTorch keeps the order of streams. For timing use events, every N steps.",
            "start = torch.cuda.Event(enable_timing=True)",
        ),
        causes.EVENT: SyncAdvice(
            "event.synchronize()",
            "Let the GPU's stream wait instead of the CPU, or ask for the event a step later.",
            "torch.cuda.current_stream().wait_event(event)",
        ),
        causes.STREAM: SyncAdvice(
            "stream.synchronize()",
            "Let the GPU's stream wait instead of the CPU.",
            "torch.cuda.current_stream().wait_stream(stream)",
        ),
    }
)


def advice_for(cause: str) -> SyncAdvice:
    """The advice for a cause; for an op that is not in the table its name and what applies to any."""
    return ADVICE.get(cause) or SyncAdvice(cause, "Remove the wait from the step, or do it every N steps.")
