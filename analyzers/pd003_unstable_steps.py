"""PD003: a few slow steps hide in the mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analyzers._pd003_slow_steps import SlowSteps, did_more_of, growth, held_more_of, slow_steps
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables import intervals as iv

# What slow steps hold more of, in words, and what to do about it.
_CAUSES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "compute": ("more GPU work", "Is it larger inputs? Group batches by length, or cap it. Or an evaluation?"),
        "bandwidth": ("more GPU work", "Is it larger inputs? Group batches by length, or cap it. Or an evaluation?"),
        "memcpy": ("more copying", "A checkpoint or a log copies tensors: do it rarely, from pinned memory."),
        "communication": ("longer collectives", "Another rank is late in these steps: analyse the ranks together."),
        "kernel_latency": ("more small kernels", "An evaluation or a log runs in these steps: do it less often."),
        "idle_dataloader": (
            "waits for the loader",
            "persistent_workers=True and a larger prefetch_factor even it out.",
        ),
        "idle_sync": ("waits for the GPU", "Something reads values back in these steps: read them less often."),
        "idle_allocator": ("memory allocation", "Warm up with the largest input; keep sizes few."),
        "idle_communication": (
            "waits for other ranks",
            "Another rank is late in these steps: analyse the ranks together.",
        ),
    }
)
_HOST = ("work on the CPU", "A checkpoint, an evaluation or a log: do it less often, or on a thread of its own.")
# Details whose names say little, for evidence.
_IN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "memcpy": "copying",
        "kernel_latency": "time in short kernels or ops",
        "idle_dataloader": "wait for the loader",
        "idle_sync": "wait for the GPU",
        "idle_launch": "time between launches or ops",
        "idle_communication": "wait for other ranks",
        "idle_allocator": "memory allocation",
        "idle_unexplained": "unexplained time",
    }
)


class UnstableSteps(RankAnalyzer):
    """Most steps take their usual time, and a few take much longer.

    What it finds:
        Steps of more than one and a half times the median that add up to a share of the time, in the trace; and in the
        step times of a whole captured run, which holds the rare ones.

    Why it costs time:
        A checkpoint, an evaluation, a log or a batch of unusual size every N steps is invisible in a median and looks
        like a slightly slower step in a mean.

    How it is measured:
        Excess of slow steps over the median. What they hold more of is the detail of the account, and the op or
        annotation, in which they differ most from the usual steps. The first step of a trace does not count (recording
        it takes up to three times as long), nor do steps of a capture that ran under the profiler.

    How to fix:
        By what they hold: evaluate and save less often, save on a thread of its own, keep workers alive between
        epochs, group batches by length.

    When it is wrong:
        Slow steps that are meant (an evaluation every 1000) are a price, no fault: the saving has no lower bound. On a
        machine shared with others they are nobody's doing.

    Needs:
        Steps. Captured step times (`perfdoctor run`) for those outside of the trace.

    References:
        PyTorch Performance Tuning Guide; Dean and Barroso, "The Tail at Scale".
    """

    rule: ClassVar[str] = "PD003"
    name: ClassVar[str] = "unstable-steps"
    needs: ClassVar[frozenset[str]] = frozenset({"steps"})
    # slow_factor: steady steps of the real traces stay within 1.2 of their median, and of this project's own benchmarks
    # on a shared machine within 1.4. most_share: more slow ones than this are no exception. min_share: half of what a
    # medium finding costs is noise of a few steps. min_steps: the trace's without its first, min_run_steps: the run's.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"slow_factor": 1.5, "most_share": 0.34, "min_share": 0.05, "min_steps": 4, "min_run_steps": 20}
    )
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        "https://research.google/pubs/the-tail-at-scale/",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding: of slow steps in the trace, else of those in the run, else of steps that keep growing."""
        found = self._in_trace(rank) or self._in_run(rank) or self._growing(rank)
        if found is not None:
            yield found

    def _slow(self, dur_ns: Int64Array, least: str) -> SlowSteps | None:
        """The slow ones of some steps, if they cost enough."""
        if len(dur_ns) < self.settings[least]:
            return None
        slow = slow_steps(dur_ns, self.settings["slow_factor"], self.settings["most_share"])
        return slow if slow is not None and slow.excess_ns >= self.settings["min_share"] * int(dur_ns.sum()) else None

    def _in_trace(self, rank: Rank) -> Finding | None:
        steps = rank.steps.intervals[1:]
        slow = self._slow(steps[:, 1] - steps[:, 0], "min_steps")
        if slow is None:
            return None
        is_slow = np.zeros(rank.steps.count, bool)
        is_slow[slow.rows + 1] = True
        detail, more_ns = held_more_of(rank, is_slow)
        what, advice = _CAUSES.get(detail, _HOST)
        if rank.device_kind == "cpu":
            what = what.replace("GPU work", "work in the ops")
        op = did_more_of(rank, is_slow)
        excess = iv.union(steps[slow.rows, 0] + slow.usual_ns, steps[slow.rows, 1])
        cost = rank.per_step(iv.total(excess))
        longest = int((steps[:, 1] - steps[:, 0]).max())
        return self.finding(
            rank,
            title=f"{_slow_of(slow, len(steps), longest, 'steps')}: {what}",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice=advice,
            claim=Claim(excess),
            confidence=0.6,
            evidence=(
                Evidence("usual step", slow.usual_ns, "ns"),
                Evidence("longest step", longest, "ns"),
                Evidence(f"more {_IN_WORDS.get(detail, detail)} in a slow step", more_ns, "ns"),
                Evidence("most more time in", op[0] if op else None),
                Evidence("that is, in a slow step", op[1] if op else None, "ns"),
            ),
            subject="trace",
        )

    def _in_run(self, rank: Rank) -> Finding | None:
        run = rank.run_steps
        slow = None if run is None else self._slow(run.dur_ns, "min_run_steps")
        if run is None or slow is None:
            return None
        count = len(run.dur_ns)
        cost = min(round(slow.excess_ns / count), rank.per_step(rank.window_ns))
        every = slow.every(run.number)
        usual = np.ones(count, bool)
        usual[slow.rows] = False
        waited = int(run.loader_wait_ns[slow.rows].mean() - np.median(run.loader_wait_ns[usual]))
        loading = waited > slow.excess_ns / len(slow.rows) / 2
        what, advice = _CAUSES["idle_dataloader"] if loading else _HOST
        if not loading and every is None:
            advice += " Where other programs share the machine, steps that are slow now and then are nobody's doing."
        longest = int(run.dur_ns.max())
        return self.finding(
            rank,
            title=f"{_slow_of(slow, count, longest, 'steps of the run')}"
            f"{f', every {every} steps' if every else ''}{f': it {what}' if loading else ''}",
            cost_ns=cost,
            saving=Saving(),  # none of it lies in the trace, and some of it may be meant
            advice=advice,
            claim=Claim(),
            confidence=0.7,
            evidence=(
                Evidence("usual step", slow.usual_ns, "ns"),
                Evidence("longest step", longest, "ns"),
                Evidence("share of the run's time", round(100 * slow.excess_ns / int(run.dur_ns.sum()), 1), "%"),
                Evidence("first slow step", int(run.number[slow.rows[0]]), "count"),
                Evidence("more wait for the loader in a slow step", waited, "ns"),
            ),
            subject="run",
        )

    def _growing(self, rank: Rank) -> Finding | None:
        run = rank.run_steps
        if run is None or len(run.dur_ns) < self.settings["min_run_steps"]:
            return None
        grown = growth(run.dur_ns)
        first = float(np.median(run.dur_ns[: len(run.dur_ns) // 4]))
        cost = min(round(float(run.dur_ns.mean()) - first), rank.per_step(rank.window_ns))
        if grown < self.settings["slow_factor"]:
            return None
        return self.finding(
            rank,
            title=f"Steps keep growing: the last quarter of the run takes {grown:.1f} times as long as the first",
            cost_ns=cost,
            saving=Saving(),
            advice="Something grows with the run: inputs (a curriculum), a list of losses that keeps its graphs, a "
            "buffer that is searched. Detach what is kept.",
            claim=Claim(),
            confidence=0.6,
            evidence=(Evidence("median step of the first quarter", round(first), "ns"),),
            subject="growth",
        )


def _slow_of(slow: SlowSteps, count: int, longest_ns: int, steps: str) -> str:
    take = "takes" if len(slow.rows) == 1 else "take up to"
    return f"{len(slow.rows)} of {count:,} {steps} {take} {longest_ns / slow.usual_ns:.1f} times the median"
