"""PD801: between two passes of a serving engine the GPU waits for the engine's own work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfdoctor.analyzers._engine_gaps import can_hide_cpu_work, find_engine_gaps
from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, Saving, activity_kinds, advise, remove_waits
from perfdoctor.rules import intervals as iv


class SchedulerGap(RankAnalyzer):
    """A serving engine schedules the next pass only when the GPU is through with the last one.

    What it finds:
        Idle time of the GPU between the passes of vLLM, SGLang or TensorRT-LLM in which the engine's thread schedules,
        prepares the inputs of the next pass, samples, tokenizes, or exchanges messages with other processes.

    Why it costs time:
        Decoding takes a few milliseconds a pass, and the engine's Python one or more between two of them. An engine
        that schedules ahead does that work while the GPU is busy.

    How it is measured:
        A pass is a range of the engine (execute_context_..., step[...], [Executor] _forward_step) with all that is
        launched until the next. Idle time is the engine's by its Python frames, or by the ranges that it puts around
        its parts. Waiting for requests is no part of it, nor is launching the model. The saving is a replay without the
        waits for the tokens of a pass, in which the CPU's own work remains; at most that, where some pass takes the CPU
        longer than the GPU, because engines look ahead by one pass only.

    How to fix:
        Schedule ahead: --async-scheduling of vLLM, the default from 0.14 on; no --disable-overlap-schedule for SGLang;
        disable_overlap_scheduler=False for TensorRT-LLM. More requests in a pass make each gap count less.

    When it is wrong:
        Python stacks make the engine's work longer than it is without them. Where the engine schedules ahead already,
        and waits all the same, its own work takes longer than the GPU's, which no option hides. Structured output,
        some kinds of speculative decoding and pipeline parallelism exclude scheduling ahead in some releases.

    Needs:
        Launches, and Python stacks or the engine's own ranges (VLLM_CUSTOM_SCOPES_FOR_PROFILING=1); three passes.

    References:
        vLLM, "Optimization and Tuning"; SGLang, "Server Arguments".
    """

    rule = "PD801"
    name = "scheduler-gap"
    needs = frozenset({"kernels", "launches"})
    # min_share: of the time of a pass; a healthy decoding server of the shared recordings has 0.3 % of it.
    defaults = {"min_share": 0.02}
    references = (
        "https://docs.vllm.ai/en/stable/configuration/optimization/",
        "https://docs.sglang.io/advanced_features/server_arguments.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when the engine's work takes at least `min_share` of the time, and the GPU none."""
        gaps = find_engine_gaps(rank)
        if gaps is None:
            return
        cost_ns = rank.per_step(iv.total(gaps.time))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        is_hidden_by_option = len(gaps.waits.index) > 0 and not rank.context.schedules_ahead
        edit = replace(remove_waits(gaps.waits), is_upper_bound=not can_hide_cpu_work(rank, gaps.waits))
        yield self.finding(
            rank,
            title=f"Between two passes the GPU waits while the engine {gaps.describe(rank)}",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advise(f"pause: {activity_kinds.BATCH_SCHEDULING}", rank.context),
            claim=Claim(gaps.time),
            edit=edit if is_hidden_by_option else None,
            confidence=0.8,
            evidence=(
                Evidence("passes", len(rank.engine_passes or ()), "count"),
                *(
                    Evidence(f"GPU idle in {work} per {{unit}}", rank.per_step(iv.total(idle)), "ns")
                    for work, idle in gaps.idle.items()
                    if len(idle)
                ),
            ),
        )
