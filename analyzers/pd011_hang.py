"""PD011: the ranks of a job wait for one that does not come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfdoctor.rules import Evidence, Finding, Fleet, FleetAnalyzer, Hang, HangKind, Saving, format_ranges

_ADVICE: Mapping[HangKind, tuple[str, str | None]] = {
    "dead": (
        "Look at the end of this rank's own log, at the system's (dmesg: out of memory, Xid of the GPU), and for an "
        "error that was raised; the other ranks do what they should, and wait.",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1   # the default: the others end with an error in place of waiting for ever",
    ),
    "slow": (
        "Let the others wait for less, or longer: move what this rank does alone (saving, evaluation, downloads) out "
        "of the step or to all ranks, or give the group a longer timeout.",
        "torch.distributed.init_process_group(timeout=datetime.timedelta(minutes=30))",
    ),
    "mismatch": (
        "Let all ranks of a group take the same branch: no collective inside of `if rank == 0`, of a condition that "
        "depends on the data, or of a loop whose length differs; and tensors of the same shape and type.",
        "with torch.distributed.algorithms.join.Join([model]): ...   # where ranks have different numbers of batches",
    ),
    "blocked": (
        "Make the call at this line end: a timeout for what it waits for, and no lock or pipe that another process or "
        "thread holds; in a loader, DataLoader(timeout=...) raises an error in place of waiting.",
        "DataLoader(..., timeout=60)",
    ),
    "missing": (
        "See why this rank does not come to the collective: a branch that only some ranks take, fewer batches, or a "
        "call that does not return. Stacks of it say more.",
        "perfdoctor run -- torchrun ... train.py   # stacks of all ranks; or: py-spy dump --pid PID",
    ),
    "unknown": (
        "All ranks have come, with the same calls: look at the links between them and at the GPUs.",
        "NCCL_DEBUG=INFO torchrun ... train.py",
    ),
}


class HangFound(FleetAnalyzer):
    """The ranks of a job wait in a collective for a rank that does not come."""

    rule = "PD011"
    name = "hang"
    needs = frozenset({"hang"})
    references = ("https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html",)

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """At most one finding, on the rank at fault."""
        hang = None if fleet.hang is None else fleet.hang.hang
        if hang is None:
            return
        advice, fix = _ADVICE[hang.kind]
        yield Finding(
            rule=self.rule,
            name=self.name,
            title=hang.sentence,
            cost_ns=0,
            share_of_step=None,
            severity="high",
            saving=Saving(),
            advice=advice,
            fix=fix,
            rank=hang.ranks[0] if len(hang.ranks) == 1 else None,
            location=hang.location,
            evidence=tuple(_list_evidence(hang)),
            references=self.references,
            # What stands still comes before all that is slow.
            order_key_ns=float(fleet.longest_step_ns + 1),
        )


def _list_evidence(hang: Hang) -> Iterator[Evidence]:
    yield Evidence("kind", hang.kind)
    yield Evidence("ranks at fault", format_ranges(hang.ranks))
    call = hang.collective
    if call is None:
        return
    yield Evidence("collective", f"{call.name} {call.number} of {call.group}")
    if call.types:
        shapes = (f"{kind} {list(size)}" for size, kind in zip(call.sizes, call.types, strict=False))
        yield Evidence("its input there", ", ".join(shapes))
    yield Evidence("ranks that wait in it", format_ranges(call.waiting))
