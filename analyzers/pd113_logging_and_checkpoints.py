"""PD113: the training waits for logs, checkpoints and copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from perfdoctor.analyzers._cpu_evidence import report_work
from perfdoctor.analyzers._host_pauses import (
    DEEPCOPY,
    FSYNC,
    MIN_SHARE,
    PRINT,
    SAVE,
    HostPause,
    claim_of,
    cost_of,
    find_calls,
    is_in_loader,
    is_of_model,
)
from perfdoctor.analyzers._pd113_evaluation import MIN_SAVED, USUALLY_SAVED, find_evaluation
from perfdoctor.rules import Evidence, Finding, Rank, RankAnalyzer, Saving, advise

_SELDOM = 10


# What is said of one kind of calls: what it does, and its situation in the table of advice.
_KINDS: Mapping[str, tuple[str, str]] = {
    SAVE: ("Saving checkpoints", "the step saves a checkpoint"),
    FSYNC: ("Waiting for files to reach the disk (os.fsync)", "the step waits until a file is on disk"),
    DEEPCOPY: ("Copying models or their state (copy.deepcopy)", "the step copies a model"),
    PRINT: ("Printing", "the step prints"),
}


def _kind_of(rank: Rank, pause: HostPause) -> tuple[str, str]:
    """What is said of calls. That a model is copied is said where it is known: a data set copies its records."""
    if pause.call != DEEPCOPY or is_of_model(rank, pause):
        return _KINDS[pause.call]
    what = f" of {pause.copied}" if pause.copied else ""
    if is_in_loader(rank, pause):
        return (f"Copying records while a batch is made (copy.deepcopy{what})", "the step copies objects")
    return (f"Copying objects (copy.deepcopy{what})", "the step copies objects")


class LoggingAndCheckpoints(RankAnalyzer):
    """The training waits while it saves, logs or copies its model or its records."""

    rule = "PD113"
    name = "logging-and-checkpoints"
    needs = frozenset({"cpu"})
    # min_share: of the steps' time; CheckFreq (FAST 2021) takes 3.5 % as what checkpoints may cost.
    # min_share_of_stacks: the profiler makes Python that it records slower, twice as slow and more.
    defaults = {"min_share": MIN_SHARE, "min_share_of_stacks": 0.1}
    references = (
        "https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html",
        "https://www.usenix.org/conference/fast21/presentation/mohan",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each kind of calls that takes `min_share` of the steps' time."""
        for call in _KINDS:
            pause = find_calls(rank, call)
            if pause is None or not pause.comes_back or (call == SAVE and _leaves_saves_to_rank_0(rank)):
                continue
            min_share = 0.0 if pause.is_timed else self.settings["min_share_of_stacks"]
            if self.exceeds_min_share(rank, cost_of(rank, pause), min_share):
                yield self._report(rank, pause, *_kind_of(rank, pause))
        yield from report_work(self, rank, find_evaluation(rank))

    def _report(self, rank: Rank, pause: HostPause, does: str, situation: str) -> Finding:
        cost_ns = cost_of(rank, pause)
        saving = Saving(0, None, cost_ns, "bounded")
        if pause.is_timed:
            low_ns, expected_ns = round(MIN_SAVED * cost_ns), round(USUALLY_SAVED * cost_ns)
            saving = Saving(low_ns, expected_ns, cost_ns, "bounded")
        count = pause.calls / pause.steps
        calls = f"{count:,.0f}" if count >= 100 else f"{count:.3g}"
        finding = self.finding(
            rank,
            title=f"{does} takes {rank.share(cost_ns):.0%} of the time: "
            f"{pause.length_on(rank)}" + (f", in {calls} calls" if calls != "1" else ""),
            cost_ns=cost_ns,
            saving=saving,
            advice=advise(situation, rank.context, steps=round(_SELDOM * pause.of / pause.steps)),
            claim=claim_of(rank, (pause.call,), cost_ns),
            confidence=0.9 if pause.is_timed else 0.6,
            location=pause.location,
            evidence=(
                Evidence(f"calls of {pause.call}", pause.calls, "count"),
                Evidence("steps with one", f"{pause.steps:,} of {pause.of:,}"),
                Evidence("in such a step", pause.step_ns, "ns"),
                Evidence("most of a step", pause.largest_ns, "ns"),
                Evidence("written by a call", None if pause.bytes is None else pause.bytes // pause.calls, "bytes"),
                Evidence("other lines that call it", pause.lines - 1 or None, "count"),
            ),
            subject=pause.call,
            recurrence=pause.recurrence,
        )
        if pause.call == SAVE:  # where every rank saves the same, that comes first
            run = rank.run_steps
            seen_in = () if run is None or not pause.is_timed else run.numbers_of(run.which_contain("save"))
            return replace(finding, covering_key=("PD515", "", str(pause.location)), seen_in=seen_in)
        return finding


def _leaves_saves_to_rank_0(rank: Rank) -> bool:
    """Whether checkpoints are reported on another rank: what each rank saves itself all of them wait for."""
    return rank.rank not in (None, 0) and (rank.facts.world_size or 1) > 1
