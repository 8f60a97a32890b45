"""What each cause of waits for the GPU is called in a title, and what to do about it in this program."""

from __future__ import annotations

from collections.abc import Mapping

from perfdoctor.analyzers import _blocking_calls as causes
from perfdoctor.rules import Advice, Rank, advise

_CODE: Mapping[str, str] = {
    causes.ITEM: ".item()",
    causes.IF: "`if tensor:`",
    causes.NONZERO: "nonzero()",
    causes.MASK: "Indexing with a boolean mask",
    causes.UNIQUE: "torch.unique",
    causes.REPEAT: "repeat_interleave without output_size",
    causes.COMPARE: "torch.equal or allclose",
    causes.PRINT: "print(tensor)",
    causes.CLIP: "clip_grad_norm_(error_if_nonfinite=True)",
    causes.SCALER: "GradScaler.step",
    causes.TO_CPU: ".cpu(), .numpy() or .tolist()",
    causes.PINNED: "A blocking .to(device)",
    causes.PAGEABLE: ".to(device) from pageable memory",
    causes.COPY: "A copy between CPU and GPU",
    causes.DEVICE: "torch.cuda.synchronize()",
    causes.EVENT: "event.synchronize()",
    causes.STREAM: "stream.synchronize()",
}


def name_cause(cause: str) -> str:
    """The cause as it is written in code; an op that is not in the table by its own name."""
    return _CODE.get(cause, cause)


def advise_on_cause(rank: Rank, cause: str) -> Advice:
    """What to do about a cause in this program."""
    situation = f"sync: {cause if cause in _CODE else 'other'}"
    if cause == causes.PAGEABLE and len(rank.loader_waits):
        situation += ", beside a DataLoader"
    return advise(situation, rank.context)
