"""PD503: switches for debugging are on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._debug_switches import (
    ANOMALY,
    GRADCHECK,
    Switch,
    find_nan_checks,
    find_new_nodes,
    find_switch,
    flags_of_trace,
)
from perfdoctor.rules import (
    Claim,
    Edit,
    Evidence,
    Finding,
    Intervals,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    read_advice,
    remove_sections,
)
from perfdoctor.rules import intervals as iv

# What is timed in the steps themselves comes back, but for what else would fill the time: cold caches, other programs.
_MIN_SAVED_SHARE = 0.8


class DebugApisOn(RankAnalyzer):
    """Something that helps to find an error is on in every step, and nobody looks for an error now."""

    rule = "PD503"
    name = "debug-apis-on"
    needs = frozenset({"cpu"})
    # min_share: where a low finding begins.
    defaults = {"min_share": 0.01}
    references = (
        "https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#disable-debugging-apis",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each switch that costs at least `min_share` of the step, or a cost that nobody knows."""
        yield from self._report_anomaly_detection(rank)
        yield from self._report_gradcheck(rank)
        environment = rank.facts.environment
        if environment.get("CUDA_LAUNCH_BLOCKING") == "1":
            yield from self._report_blocking_launches(rank)
        has_ranks = (rank.facts.world_size or 1) > 1
        if has_ranks and environment.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
            yield from self._report_checked_collectives(rank)

    def _report_anomaly_detection(self, rank: Rank) -> Iterator[Finding]:
        checks = iv.intersect(find_nan_checks(rank.trace), rank.window)
        switch = find_switch(rank, ANOMALY)
        if switch is None:
            if not len(checks) or flags_of_trace(rank.facts).anomaly_detection is False:
                return
            switch = Switch()
        stacks_ns, checks_ns = switch.step_ns, rank.per_step(iv.total(checks))
        step_ns = rank.mean_step_ns
        cost_ns = min((stacks_ns or 0) + checks_ns, step_ns)
        if not self.exceeds_min_share(rank, cost_ns):
            return
        claimed = iv.union_of((checks, _time_of_stacks(rank, stacks_ns)))
        rest_ns = max(_in_window(rank, cost_ns) - iv.total(claimed), 0)  # stacks of ops that the trace does not number
        # Of stacks that nobody timed, as in other recordings, the saving is larger by an unknown amount.
        saving, more = Saving(checks_ns, None, cost_ns, "bounded"), " and more"
        if stacks_ns is not None:
            more, saving = "", Saving(round(_MIN_SAVED_SHARE * cost_ns), cost_ns, cost_ns, "bounded")
        yield self.finding(
            rank,
            title=f"Anomaly detection is on: {rank.share(cost_ns):.0%} of the step{more}",
            cost_ns=cost_ns,
            saving=saving,
            advice=advise("anomaly detection", rank.context),
            claim=Claim(claimed, unshared_ns=rest_ns),
            edit=_edit_of_checks(rank, checks),
            location=switch.location,
            evidence=(
                Evidence("formatting stacks per {unit}, measured without the profiler", stacks_ns, "ns"),
                Evidence("checks for NaN per {unit}", checks_ns, "ns"),
                Evidence("gradients checked per {unit}", rank.count_per_step(len(checks)), "count"),
            ),
        )

    def _report_gradcheck(self, rank: Rank) -> Iterator[Finding]:
        switch = find_switch(rank, GRADCHECK)
        if switch is None or switch.step_ns is None or not self.exceeds_min_share(rank, switch.step_ns):
            return
        cost_ns = min(switch.step_ns, rank.mean_step_ns)
        advice = read_advice("gradcheck")
        yield self.finding(
            rank,
            title=f"torch.autograd.gradcheck runs in every step: {rank.share(cost_ns):.0%} of it",
            cost_ns=cost_ns,
            saving=Saving(round(_MIN_SAVED_SHARE * cost_ns), cost_ns, cost_ns, "bounded"),
            advice=advice,
            claim=Claim(_beginnings_of_steps(rank, cost_ns)),
            location=switch.location,
            evidence=(Evidence("gradcheck per {unit}, measured without the profiler", cost_ns, "ns"),),
        )

    def _report_blocking_launches(self, rank: Rank) -> Iterator[Finding]:
        if rank.device_kind != "gpu":
            return
        parts = rank.account.parts
        waits = iv.union_of(parts[name] for name in ("idle_launch", "idle_sync") if name in parts)
        cost_ns = rank.per_step(iv.total(waits))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        advice = read_advice("blocking launches")
        yield self.finding(
            rank,
            title=f"CUDA_LAUNCH_BLOCKING=1: the GPU waits {rank.share(cost_ns):.0%} of the step between kernels",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advice,
            claim=Claim(waits),
            confidence=0.9,
            evidence=(Evidence("kernels per {unit}", rank.count_per_step(len(rank.kernels.in_steps())), "count"),),
        )

    def _report_checked_collectives(self, rank: Rank) -> Iterator[Finding]:
        if not self.exceeds_min_share(rank, rank.per_step(iv.total(rank.account.parts["communication"]))):
            return
        advice = read_advice("compared collectives")
        yield self.finding(
            rank,
            title="TORCH_DISTRIBUTED_DEBUG=DETAIL: each collective is first compared among all ranks",
            advice=advice,
        )


def _in_window(rank: Rank, step_ns: int) -> int:
    """What time of a step without the profiler is in the whole window, as recorded."""
    return round(step_ns * max(rank.steps.count, 1) / rank.time_scale)


def _beginnings_of_steps(rank: Rank, step_ns: int) -> Intervals:
    """So much of each step, where nobody knows in which part of it the time goes."""
    steps = rank.steps.intervals if rank.steps.count else rank.window
    ends_ns = np.minimum(steps[:, 0] + _in_window(rank, step_ns) // max(len(steps), 1), steps[:, 1])
    return iv.intersect(iv.union(steps[:, 0], ends_ns), rank.window)


def _time_of_stacks(rank: Rank, stacks_ns: int | None) -> Intervals:
    """When stacks are formatted: at the beginning of each op that makes a node, as long as it takes on average."""
    ops, rows = rank.trace.ops, find_new_nodes(rank.trace)
    rows = rows[iv.contains(rank.window, ops.start_ns[rows])]
    if not len(rows) or not stacks_ns:
        return iv.EMPTY
    each_ns = _in_window(rank, stacks_ns) // len(rows)
    ends_ns = np.minimum(ops.start_ns[rows] + each_ns, ops.end_ns[rows])
    return iv.intersect(iv.union(ops.start_ns[rows], ends_ns), rank.window)


def _edit_of_checks(rank: Rank, checks: Intervals) -> Edit | None:
    """What vanishes without the checks, for the replay: they launch kernels and wait for them; None without a GPU."""
    if rank.device_kind != "gpu" or not len(checks):
        return None
    threads = rank.trace.ops.thread[rank.trace.match_rows(rank.trace.ops, r"^aten::isnan$")]
    return remove_sections(rank.trace, int(np.bincount(threads).argmax()), checks, rank.window)
