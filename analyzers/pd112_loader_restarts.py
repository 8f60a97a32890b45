"""PD112: the DataLoader starts its workers anew in each epoch."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._loader_texts import evidence_of_use, find_loader_place, format_ms
from perfdoctor.analyzers._pd112_restarts import Restarts, captured_restarts, find_restarts, measure_excess
from perfdoctor.rules import (
    Claim,
    Edit,
    Evidence,
    Finding,
    LoaderFacts,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    count_recurrence,
    is_rare,
    remove_cpu_time,
)
from perfdoctor.rules import intervals as iv

# Handing a batch of two tensors over takes 1.1 to 1.3 ms (`_shared_cores`).
_EASY_BATCH_NS = 1_000_000


class LoaderRestarts(RankAnalyzer):
    """Worker processes are ended after each epoch and started again for the next one."""

    rule = "PD112"
    name = "loader-restarts"
    needs = frozenset({"cpu"})
    # min_share: as in PD101: below 3 % of the step a change of workers is lost in the noise of the steps.
    defaults = {"min_share": 0.03}
    references = ("https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding about all starts of workers in the window, from `min_share` of the step on."""
        if rank.device_kind == "gpu_not_recorded":
            return
        loader = _restarting_loader(rank)
        restarts = find_restarts(rank)
        if not len(restarts.waits) or not _may_restart(loader):
            return
        if self.exceeds_min_share(rank, rank.per_step(iv.total(restarts.idle))):
            yield self._report(rank, loader, restarts)

    def _report(self, rank: Rank, loader: LoaderFacts, restarts: Restarts) -> Finding:
        place, captured = find_loader_place(rank, loader), captured_restarts(loader)
        idle_ns, count = iv.total(restarts.idle), max(restarts.epochs, 1)
        comes_back = restarts.epochs > 1 or (loader.iterations or 0) > 1
        once = not comes_back and is_rare(restarts.steps, rank.steps.count)
        claim, cost_ns = restarts.idle, rank.per_step(idle_ns)
        saving = Saving(0, None, cost_ns, "bounded")
        edit: Edit | None = _remove(rank, restarts)
        excess = measure_excess(rank, restarts) if captured is not None else None
        if once:
            cost_ns, saving, edit = 0, Saving(), None
        elif excess is not None and captured is not None:
            claim = excess.time
            cost_ns = min(excess.per_step_ns, rank.per_step(iv.total(claim)))
            remains_ns = min(excess.rate * captured.remains_ns, cost_ns)
            low_ns = max(min(excess.rate * captured.own_ns, cost_ns) - remains_ns, 0)
            # What is known of the copied pages is the difference of steps, which other programs make uneven, too.
            saving = Saving(round(0.7 * low_ns), round(cost_ns - remains_ns), round(cost_ns), "bounded")
            edit = None
        elif captured is not None:
            remains_ns = round(min(cost_ns * captured.remains_ns / max(captured.own_ns, 1), cost_ns))
            saving = Saving(round(0.7 * (cost_ns - remains_ns)), cost_ns - remains_ns, cost_ns, "bounded")
            edit = None
        where = f" at {place.short}" if place else ""
        who = "GPU" if rank.device_kind == "gpu" else "training loop"
        title = f"{'the' if once else 'The'} {who} waits {format_ms(idle_ns // count)} at the start of an epoch{where}"
        title += ", while the DataLoader starts its workers" + (" anew" if comes_back else "")
        if excess is not None and not once:
            title += f"; the step with it is {format_ms(excess.restart_ns)} longer"
        advice = advise("loader starts its workers anew", rank.context)
        return self.finding(
            rank,
            title=title,
            occurs_once=once,
            cost_ns=cost_ns,
            saving=saving,
            advice=advice.extend(_say_more(loader, once, captured is not None)),
            claim=Claim(claim),
            edit=edit,
            confidence=0.5 if captured is None else 0.9,
            location=place,
            evidence=(
                evidence_of_use(loader),
                Evidence("epochs that began", restarts.epochs, "count"),
                Evidence("iterations", loader.iterations),
                Evidence("num_workers", loader.num_workers, "count"),
                *(captured.evidence() if captured is not None else ()),
                Evidence("steps that start workers", round(100 * excess.rate, 1) if excess else None, "%"),
            ),
            # Where the rate is known the cost is spread over all steps of the run: it is none of a few steps.
            recurrence=None if excess else count_recurrence(restarts.idle, rank.steps, rank.profiler_factor),
        )


def _restarting_loader(rank: Rank) -> LoaderFacts:
    """The loader whose workers' starts took longest; the one that was waited for longest where that is not known."""

    def spent_ns(loader: LoaderFacts) -> float:
        captured = captured_restarts(loader)
        return 0.0 if captured is None else captured.times * captured.own_ns

    longest = max(rank.facts.loaders, key=spent_ns, default=LoaderFacts())
    return longest if spent_ns(longest) else rank.facts.main_loader


def _may_restart(loader: LoaderFacts) -> bool:
    """Whether workers may start anew: not where they persist, or where there was one epoch."""
    return loader.persistent_workers is not True and loader.iterations != 1


def _remove(rank: Rank, restarts: Restarts) -> Edit:
    """The edit in which the waits for workers that start and end vanish."""
    waits = rank.loader_waits
    spans = waits.start_ns[restarts.waits], waits.end_ns[restarts.waits]
    return remove_cpu_time(waits.thread[restarts.waits], spans, rank.window, is_upper_bound=True)


def _say_more(loader: LoaderFacts, once: bool, is_measured: bool) -> str:
    """What the saving depends on, and whether workers are worth it at all."""
    if once:
        return "How much it saves depends on how long an epoch is: no step within it costs anything."
    if not is_measured:
        return "How much it saves depends on how long an epoch is: here its cost is spread over the recorded steps."
    fetch_ns = loader.fetch.median_ns
    if fetch_ns is not None and fetch_ns < _EASY_BATCH_NS:
        return (
            f"A batch takes {format_ms(fetch_ns)} to load, which is less than handing it over costs: num_workers=0 "
            "may do as well."
        )
    return ""
