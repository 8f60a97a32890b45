"""What blocks a fix comes before it: no CUDA graph captures a sync, so the sync goes first, however little it saves.

All other findings are ordered by what their fixes save.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfdoctor import pipeline
from perfdoctor.rank import Rank
from perfdoctor.report import pricers
from perfdoctor.report.finding import Finding
from perfdoctor.report.reduce_ranks import from_rank
from perfdoctor.rules import registry
from perfdoctor.savings.edits import Edit, remove_waits, shorten_launches
from perfdoctor.savings.fix_order import order_fixes_greedily
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.rows import CallRows

POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"


def launching_steps(*, reads_last: bool = False, steps: int = 3) -> TraceBuilder:
    """Steps that launch 20 + 40 short kernels, with a value of a product read between them, or after the last one."""
    trace = TraceBuilder()
    for number in range(steps):
        at = 4000 * number
        trace.step(at, 4000)
        middle = at + (2600 if reads_last else 800)
        for row in range(60):
            launch = at + 40 * row + (0 if reads_last or row < 20 else 400)
            trace.kernel(POINTWISE, launch + 8, 10, launch_us=launch)
        trace.kernel(GEMM, middle + 10, 200, launch_us=middle)
        trace.op("aten::item", middle + 10, 220)
        trace.memcpy("DtoH", middle + 211, 2, launch_us=middle + 12)
        trace.call("cudaStreamSynchronize", middle + 20, 200)
    return trace


def find(trace: TraceBuilder) -> list[Finding]:
    rules = registry.choose_analyzers(registry.load_analyzers(), ["PD102", "PD104"])
    summary = pipeline.summarize_rank(Rank(trace.trace()), rules)
    return list(pipeline.report_on_summaries([from_rank(summary)], rules).findings)


def expected_ns(finding: Finding) -> int:
    return finding.saving.expected_ns or 0


def test_a_sync_within_the_step_comes_before_the_graph_that_saves_more() -> None:
    sync, graph = find(launching_steps())
    assert (sync.rule, graph.rule) == ("PD102", "PD104")
    assert expected_ns(graph) > 3 * expected_ns(sync) > 0


def test_a_sync_behind_the_last_launch_blocks_nothing() -> None:
    found = find(launching_steps(reads_last=True))
    assert found[0].rule == "PD104"
    assert [expected_ns(each) for each in found] == sorted(map(expected_ns, found), reverse=True)


@pytest.mark.parametrize("trusts_replay", [True, False])
def test_without_the_relation_worth_alone_decides(trusts_replay: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not trusts_replay:
        monkeypatch.setattr("perfdoctor.savings.what_if.MIN_KNOWN_LAUNCHES", 1.1)
    assert [each.rule for each in find(launching_steps())] == ["PD102", "PD104"]
    monkeypatch.setattr(Edit, "unblocks", lambda *_: False)
    monkeypatch.setattr(pricers, "_put_before_blocked", lambda _: None)
    assert [each.rule for each in find(launching_steps())] == ["PD104", "PD102"]


def test_the_order_of_replays_prices_the_blocked_fix_after_what_blocks_it() -> None:
    rank = Rank(launching_steps().trace())
    calls, replay = rank.trace.calls, rank.replay
    assert replay is not None
    syncs = CallRows(calls, rank.trace.match_rows(calls, "cudaStreamSynchronize"))
    launches = CallRows(calls, np.unique(rank.trace.gpu.call[rank.trace.gpu.call >= 0]))
    graph = shorten_launches(launches, rank.window, 0.1, is_upper_bound=False)
    edits = {0: replace(graph, blocked_by=syncs), 1: remove_waits(syncs)}
    first, second = order_fixes_greedily(replay, edits)
    assert (first.number, first.needed_by, second.number) == (1, 0, 0)
    together_ns = replay.step_ns([(each, 1.0) for each in edits.values()])
    saved_ns = first.in_turn.expected_ns + second.in_turn.expected_ns
    assert replay.baseline_step_ns - saved_ns == pytest.approx(together_ns, abs=2)
    assert [each.number for each in order_fixes_greedily(replay, edits | {0: graph})] == [0, 1]
