"""Law 3: a cold start is called one. What happens once is left out, by cause, and nothing of it is priced.

A cold start before a steady loop changes nothing but its own account: the report on the rest is that on the loop alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_traces import read_once
from recordings import list_recordings, name_recording

import perfdoctor
from perfdoctor.analysis.timeline import first_use
from perfdoctor.rank import Rank
from perfdoctor.report.report import Report
from perfdoctor.reporters.write_report import render_report
from perfdoctor.savings.edits import remove_cpu_time
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.split_ranks import split_ranks
from perfdoctor.trace.vocabulary import NCCL_KERNEL

MS = 1000.0
GEMM = "ampere_sgemm_128x64_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
# Recordings that hold first uses, by their raw files; all others are steady, or say nothing of the CPU.
COLD = (
    *("traces/a100-cupti-counters", "traces/a100-vit-graph-bf16", "traces/mi250-minitoy", "traces/rtx4090-llama"),
    *("traces/v100-legacy", "recordings/a100-hta-alexnet", "recordings/a100-moe-before", "recordings/a4000-trace"),
    *("recordings/l40-triforce", "recordings/rtx4060-default", "recordings/rtx4090d-break"),
    *("recordings/v100-torchrec-opt4", "nsight/mock", "traces/v100-torchrec-4ranks"),
)


class Event(NamedTuple):
    """A long call of a cold start: its name, how long it takes, and whether it launches a kernel of its own."""

    call: str
    ms: float
    cause: str
    launches: bool = False


EVENTS = st.one_of(
    st.builds(Event, st.just("cudaLaunchKernel"), st.floats(1.5, 4000), st.just("module_loading"), st.just(True)),
    st.builds(Event, st.just("cuModuleLoadData"), st.floats(1.5, 400), st.just("module_loading")),
    st.builds(Event, st.just("cudaStreamCreateWithFlags"), st.floats(1.5, 900), st.just("library_start")),
    st.builds(
        Event,
        st.just("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"),
        st.floats(1.5, 20),
        st.just("library_start"),
    ),
    st.builds(Event, st.just("cudaFree"), st.floats(100, 6000), st.just("library_start")),
)


def starts(min_size: int, max_size: int) -> st.SearchStrategy[list[Event]]:
    """Cold starts; more than three calls that free memory for long are an allocator without memory."""
    few_frees = st.lists(EVENTS, min_size=min_size, max_size=max_size)
    return few_frees.filter(lambda events: sum(event.call == "cudaFree" for event in events) <= 3)


def add_cold_start(trace: TraceBuilder, events: list[Event], at_us: float = 0.0) -> float:
    """Long calls one after another, each before a kernel of 20 us; returns when the start is over."""
    for number, event in enumerate(events):
        long = trace.call(event.call, at_us, event.ms * MS)
        at_us += event.ms * MS
        kernel = f"{ADD}_{number}"
        if event.launches:
            trace.kernel(kernel, at_us, 20, correlation=long)
        else:
            trace.kernel(kernel, at_us + 10, 20, launch_us=at_us + 3)
        at_us += 40
    return at_us


def add_loop(trace: TraceBuilder, at_us: float, *, steps: int, idle_us: float, marked: bool = True) -> None:
    """Steps of ten products of 300 us; before each product the GPU waits `idle_us` for its launch."""
    for _ in range(steps):
        begin = at_us
        for _ in range(10):
            trace.kernel(GEMM, at_us + idle_us, 300, launch_us=at_us + idle_us - 6)
            at_us += idle_us + 300
        if marked:
            trace.step(begin, at_us - begin)


def report_on(trace: TraceBuilder, tmp_path: Path, name: str = "trace.json") -> Report:
    return perfdoctor.analyze(trace.write(tmp_path / name))


def figures(report: Report) -> list[Any]:
    """What a report says of a step: account, findings, worth, ladder; not when it was."""
    findings = [
        (f.rule, f.severity, f.cost_ns, f.saving.low_ns, f.saving.expected_ns, f.saving.high_ns)
        for f in report.findings
        if f.rule not in ("PD001", "PD002")
    ]
    steps = replace(report.steps, one_off_ns=None)
    return [[(a.window_ns, dict(a.detail)) for a in report.account], findings, steps, report.limit]


def first_use_of(trace: TraceBuilder) -> first_use.FirstUse:
    return Rank(trace.trace()).first_use


# --- over generated cold starts ---------------------------------------------------------------------------------------


@given(events=starts(1, 8), steps=st.integers(3, 6), idle_us=st.sampled_from([6.0, 40.0, 200.0]))
def test_a_cold_start_before_a_steady_loop_adds_its_own_account_and_changes_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], steps: int, idle_us: float
) -> None:
    folder = tmp_path_factory.mktemp("cold")
    cold, alone = TraceBuilder(), TraceBuilder()
    add_loop(cold, add_cold_start(cold, events), steps=steps, idle_us=idle_us)
    add_loop(alone, 0.0, steps=steps, idle_us=idle_us)
    with_start, without = report_on(cold, folder), report_on(alone, folder, "alone.json")
    assert figures(with_start) == figures(without)
    assert without.once == ()
    total_ns = sum(event.ms for event in events) * 1e6
    for once in with_start.once:
        assert once.left_out_ns == 0
        assert sum(part.time_ns for part in once.parts) == once.time_ns
        assert once.time_ns >= 0.9 * total_ns
    if total_ns > with_start.account[0].window_ns:
        assert {part.cause for part in with_start.once[0].parts} >= {
            event.cause for event in events if event.ms * 1e6 > 0.1 * total_ns
        }


@given(events=starts(1, 5), warm=st.integers(2, 5))
def test_a_cold_first_step_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], warm: int
) -> None:
    """The start lies in the first step: the others are judged, and the step that is said is theirs."""
    folder = tmp_path_factory.mktemp("cold")
    cold, alone = TraceBuilder(), TraceBuilder()
    end = add_cold_start(cold, [*events, Event("cudaStreamCreate", 30, "library_start")])
    cold.step(0, end)
    add_loop(cold, end, steps=warm, idle_us=40.0)
    add_loop(alone, 0.0, steps=warm, idle_us=40.0)
    with_start, without = report_on(cold, folder), report_on(alone, folder, "alone.json")
    assert figures(with_start) == figures(without)
    assert with_start.once[0].cold_steps == 1
    assert with_start.steps.count == warm


@given(events=starts(2, 10))
def test_a_single_cold_pass_is_a_first_run_and_promises_nothing_once_only(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event]
) -> None:
    trace = TraceBuilder()
    trace.kernel(GEMM, 0, 300, launch_us=-8)
    add_loop(trace, add_cold_start(trace, events, 400), steps=1, idle_us=6.0, marked=False)
    report = report_on(trace, tmp_path_factory.mktemp("pass"))
    once, account = report.once[0], report.account[0]
    start_ns = sum(event.ms for event in events) * 1e6
    assert once.time_ns >= 0.95 * start_ns
    assert once.left_out_ns + account.window_ns == report.timeline[0].window_ns
    assert sum(account.detail.values()) == account.window_ns
    for finding in report.findings:
        assert (finding.saving.high_ns or 0) <= finding.cost_ns <= account.window_ns
    if start_ns > account.window_ns * 2:
        assert once.is_first_run
        assert "first run" in render_report(report, ".txt").replace("\n", " ")


# --- cases that are cold, and as many that are not --------------------------------------------------------------------


def pass_with(*calls: tuple[str, float], kernels: int = 40, name: str = "cuda") -> TraceBuilder:
    """A pass without steps: kernels 100 us apart, and after the fifth of them some calls, one after another."""
    trace, at = TraceBuilder(), 0.0
    for number in range(kernels):
        if number == 5:
            for call, dur_us in calls:
                trace.call(call, at, dur_us)
                at += dur_us
        trace.kernel(f"{GEMM}_{name}", at + 20, 50, launch_us=at + 10)
        at += 100
    return trace


def launch_of(kernel: str, dur_us: float, queued: int = 0) -> TraceBuilder:
    """A long launch in a pass, of a kernel that is new or not, behind so many launches that wait for the GPU."""
    trace, at = pass_with(), 4000.0
    for number in range(queued):
        trace.kernel(f"{GEMM}_cuda", at + 50 * number + 20, 50, launch_us=at + 0.5 * number)
    begin = at + 0.5 * queued
    long = trace.call("cudaLaunchKernel", begin, dur_us)
    return trace.kernel(kernel, max(begin + dur_us, at + 50 * queued) + 30, 50, correlation=long)


def launch_under_a_collective(kernel: str, queued: int = 0) -> TraceBuilder:
    """A launch of 9 ms while a collective of 9 ms waits for other ranks, behind so many launches in the queue."""
    trace, at = pass_with(), 4000.0
    trace.kernel("ncclDevKernel_SendRecv", at + 10, 9 * MS, launch_us=at, stream=20)
    for number in range(queued):
        trace.kernel(f"{GEMM}_cuda", at + 9 * MS + 20 + 50 * number, 50, launch_us=at + 1 + 0.1 * number)
    begin = at + 2 + 0.1 * queued
    long = trace.call("cudaLaunchKernel", begin, 9 * MS)
    return trace.kernel(kernel, begin + 9 * MS + 60 * (queued + 1), 50, correlation=long)


def hundred_launches() -> TraceBuilder:
    """A cold start may also be a hundred launches of 3 ms: each loads the code of another kernel."""
    trace, at = TraceBuilder().kernel(GEMM, 0, 10, launch_us=0), 100.0
    for number in range(100):
        long = trace.call("cudaLaunchKernel", at, 3 * MS)
        trace.kernel(f"{ADD}_{number}", at + 3 * MS, 20, correlation=long)
        at += 3 * MS + 40
    return trace


def in_every_step(call: str, dur_us: float) -> TraceBuilder:
    trace = TraceBuilder()
    for step in range(5):
        at = 10 * MS * step
        trace.step(at, 10 * MS)
        trace.call(call, at + 100, dur_us)
        trace.kernel(GEMM, at + dur_us + 200, 3 * MS, launch_us=at + dur_us + 150)
    return trace


def flushed_before(*, every: bool) -> TraceBuilder:
    """A step that gives all memory back, and two that ask for it again; or that give it back as well."""
    trace = TraceBuilder()
    for step in range(3):
        at = 10 * MS * step
        trace.step(at, 10 * MS).call("cudaMalloc", at + 100, 2 * MS)
        trace.kernel(GEMM, at + 3 * MS, 3 * MS, launch_us=at + 3 * MS - 50)
        if every or step == 0:
            trace.call("cudaFree", at + 7 * MS, 2 * MS)
    return trace


def warm_up_before(measured: bool) -> TraceBuilder:
    """A pass that the program calls its warm-up, and one that it measures, if it does."""
    trace = TraceBuilder()
    for number in range(10):
        trace.kernel(f"{GEMM}_{number}", 1000 * number, 500, launch_us=1000 * number - 10)
    trace.range("## warmup|forward ##", -20, 10_000)
    for number in range(10 if measured else 0):
        trace.kernel(GEMM, 10_000 + 600 * number, 500, launch_us=9_990 + 600 * number)
    return trace


def server(*requests: str) -> TraceBuilder:
    """An engine loads weights, profiles a run, makes its cache, and answers; requests are frames around 10 kernels."""
    trace, at = TraceBuilder(), 0.0
    for name in ("load_model", "determine_available_memory", "initialize_kv_cache", *requests):
        trace.frame(f"vllm/v1/worker/gpu_worker.py(200): {name}", at, 40 * MS)
        for number in range(10):
            trace.kernel(GEMM, at + 20 + 3 * MS * number, 2 * MS, launch_us=at + 10 + 3 * MS * number)
        at += 40 * MS + 10
    return trace


def compiled(*, in_every: bool) -> TraceBuilder:
    trace = TraceBuilder()
    for step in range(5):
        at = 10 * MS * step
        trace.step(at, 10 * MS).kernel(GEMM, at + 6000, 3 * MS, launch_us=at + 5990)
        if in_every or step == 0:
            trace.range("entire_frame_compile (dynamo_timed)", at + 50, 5 * MS)
    return trace


def captured() -> TraceBuilder:
    trace = pass_with()
    trace.call("cudaStreamBeginCapture", 5000, 5)
    trace.call("cudaStreamEndCapture", 25_000, 5)
    trace.call("cudaGraphInstantiate", 25_010, 2000)
    return trace.kernel(GEMM, 27_100, 50, launch_us=27_050)


def first_collective() -> TraceBuilder:
    trace = pass_with()
    trace.range("nccl:all_reduce", 5000, 40_000).call("cudaStreamCreateWithFlags", 5010, 30_000)
    return trace.kernel("ncclDevKernel_AllReduce", 45_010, 50, launch_us=44_990)


COLD_CASES: dict[str, tuple[Callable[[], TraceBuilder], str]] = {
    "first-launch": (lambda: launch_of(ADD, 3 * MS), "module_loading"),
    "first-launch-while-a-collective-waits": (lambda: launch_under_a_collective(ADD), "module_loading"),
    "hundred-launches": (hundred_launches, "module_loading"),
    "module-load": (lambda: pass_with(("cuModuleLoadData", 4 * MS)), "module_loading"),
    "library-load-of-amd": (lambda: pass_with(("hipModuleLoad", 4 * MS), name="hip"), "module_loading"),
    "stream": (lambda: pass_with(("cudaStreamCreateWithFlags", 60 * MS)), "library_start"),
    "occupancy": (lambda: pass_with(("cudaOccupancyMaxActiveBlocksPerMultiprocessor", 7 * MS)), "library_start"),
    "free-of-an-empty-pool": (lambda: pass_with(("cudaFree", 600 * MS)), "library_start"),
    "first-memory": (lambda: pass_with(*[("cudaMalloc", 1 * MS)] * 8), "allocator_growth"),
    "memory-asked-for-again": (lambda: flushed_before(every=False), "allocator_growth"),
    "capture": (captured, "graph_capture"),
    "first-collective": (first_collective, "first_collective"),
    "warm-up": (lambda: warm_up_before(measured=True), "warm_up"),
    "start-of-a-server": (lambda: server("answer", "answer"), "warm_up"),
    "compiled-in-the-first-step": (lambda: compiled_first(), "compilation"),
    "weights-on-the-cpu": (lambda: made_model(*["aten::uniform_", "aten::normal_"] * 4), "initial_weights"),
    "weights-in-the-first-step": (lambda: made_model(*["aten::uniform_"] * 4, steps=4), "initial_weights"),
}
STEADY_CASES: dict[str, Callable[[], TraceBuilder]] = {
    "launch-of-a-known-kernel": lambda: launch_of(f"{GEMM}_cuda", 3 * MS),
    "launch-behind-a-full-queue": lambda: launch_of(ADD, 20 * MS, queued=1000),
    "launch-behind-a-queue-that-waits-for-ranks": lambda: launch_under_a_collective(ADD, queued=1000),
    "short-launch": lambda: launch_of(ADD, 200),
    "sync": lambda: pass_with(("cudaStreamSynchronize", 60 * MS)),
    "blocking-copy": lambda: pass_with(("cudaMemcpyAsync", 60 * MS)),
    "graph-launch": lambda: pass_with(("cudaGraphLaunch", 60 * MS)),
    "pinning": lambda: pass_with(("cudaHostAlloc", 60 * MS)),
    "churn": lambda: pass_with(*[("cudaMalloc", 1 * MS), ("cudaFree", 1 * MS)] * 4),
    "allocation-in-every-step": lambda: in_every_step("cudaMalloc", 4 * MS),
    "churn-in-three-steps": lambda: flushed_before(every=True),
    "stream-in-every-step": lambda: in_every_step("cudaStreamCreate", 4 * MS),
    "compilation-in-every-step": lambda: compiled(in_every=True),
    "nothing-but-the-start-of-a-server": server,
    "noise-for-the-data": lambda: made_model("aten::normal_"),
    "noise-between-products": lambda: made_model(*["aten::mm", "aten::normal_"] * 6),
    "nothing-but-a-warm-up": lambda: warm_up_before(measured=False),
}


def made_model(*fills: str, steps: int = 0) -> TraceBuilder:
    """Ops of 5 ms on the CPU, and products after them, one in each step: the first step has the ops before, too."""
    trace = TraceBuilder(device=None)
    for number, name in enumerate((*fills, *["aten::mm"] * max(steps, 4))):
        trace.op(name, 5 * MS * number, 5 * MS)
    for step in range(steps):
        first = 0 if not step else len(fills) + step
        trace.step(5 * MS * first, 5 * MS * (len(fills) + step + 1 - first))
    return trace


def compiled_first() -> TraceBuilder:
    """A first step that compiles for 50 ms, and four that do not."""
    trace = TraceBuilder().step(0, 60 * MS).range("entire_frame_compile (dynamo_timed)", 50, 50 * MS)
    trace.kernel(GEMM, 55 * MS, 3 * MS, launch_us=54 * MS)
    add_loop(trace, 60 * MS, steps=4, idle_us=40)
    return trace


@pytest.mark.parametrize("name", COLD_CASES)
def test_a_first_use_has_its_cause_and_is_left_out(name: str) -> None:
    build, cause = COLD_CASES[name]
    rank = Rank(build().trace())
    found = rank.first_use
    assert max(found.parts, key=lambda each: iv.total(found.parts[each])) == cause
    assert found.is_in_window
    assert not len(iv.intersect(rank.window, found.time))
    assert rank.window_ns < iv.total(rank.recorded_window)
    assert sum(rank.account.detail.values()) == rank.window_ns


@pytest.mark.parametrize("name", STEADY_CASES)
def test_what_is_no_first_use_stays_in_the_account(name: str) -> None:
    rank = Rank(STEADY_CASES[name]().trace())
    assert rank.first_use.parts == {}
    assert rank.window_ns == iv.total(rank.recorded_window)


def test_as_many_cases_fire_as_stay_quiet() -> None:
    assert len(COLD_CASES) == len(STEADY_CASES)


def test_the_steps_that_a_user_chose_are_all_judged() -> None:
    trace = compiled_first().trace()
    assert Rank(trace).steps.count == 4
    assert Rank(trace, step_slice=slice(0, 3)).steps.count == 3


def test_without_recorded_launches_only_what_stands_out_among_the_calls_of_its_name_counts() -> None:
    trace = TraceBuilder(device=None)
    for number in range(20):
        trace.call("cudaLaunchKernel", 100 * number, 20)
    trace.call("cudaLaunchKernel", 3000, 40 * MS)
    found = first_use_of(trace)
    assert found.calls["module_loading"] == 1
    slow = TraceBuilder(device=None)
    for number in range(20):
        slow.call("cudaLaunchKernel", 30 * MS * number, 20 * MS)
    assert first_use_of(slow).parts == {}


@pytest.mark.parametrize("compiling_ms", [5, 300, 5000])
def test_passes_on_the_cpu_come_back_however_long_compiling_takes(compiling_ms: float) -> None:
    """Compiling fills most of a recording without GPU items, and the passes after it are no part of that."""
    trace = TraceBuilder(device=None).op("entire_frame_compile (dynamo_timed)", 0, compiling_ms * MS)
    for number in range(20):
        trace.op("aten::addmm", compiling_ms * MS + 1000 * number, 1000)
    rank = Rank(trace.trace())
    assert iv.total(rank.first_use.time) == compiling_ms * 1e6
    assert rank.window_ns == 20e6


def test_the_replay_is_of_what_comes_back() -> None:
    rank = Rank(launch_of(ADD, 30 * MS).trace())
    assert rank.replay is not None
    assert rank.replay.gates.reason is None
    assert abs(rank.replay.step_ns() - rank.window_ns) <= 0.01 * rank.window_ns


def test_work_of_the_cpu_right_after_a_warm_up_can_be_removed() -> None:
    """The analysed time begins amid the CPU's work: its first launch comes earlier without a part of it."""
    trace = warm_up_before(measured=False)
    trace.kernel(GEMM, 40 * MS, 500, launch_us=39.9 * MS)
    rank = Rank(trace.trace())
    replay = rank.replay
    assert replay is not None
    assert len(rank.window) == 1
    begin = int(rank.window[0, 0])
    thread, span = np.array([rank.launching_thread], np.int32), (np.array([begin]), np.array([begin + 20_000_000]))
    edit = remove_cpu_time(thread, span, rank.window)
    assert abs(replay.step_ns() - replay.step_ns([(edit, 1.0)]) - 20e6) < 1e4


def test_several_ranks_that_start_alike_leave_out_the_same(tmp_path: Path) -> None:
    for number in range(2):
        trace = TraceBuilder(rank=number, world_size=2)
        end = add_cold_start(trace, [Event("cudaStreamCreate", 50, "library_start")] * 2)
        trace.step(0, end)
        add_loop(trace, end, steps=3, idle_us=40)
        trace.write(tmp_path / f"rank{number}.json")
    report = perfdoctor.analyze(tmp_path)
    assert [once.cold_steps for once in report.once] == [1, 1]
    assert [once.rank for once in report.once] == [0, 1]
    assert report.steps.count == 3


def test_without_the_law_a_cold_start_is_sold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The mutation: with its one home switched off the cold start is back in the account."""
    trace = launch_of(ADD, 30 * MS)
    with_law = report_on(trace, tmp_path)
    monkeypatch.setattr(first_use, "_find_uses", lambda *_, **__: iter(()))
    without_law = report_on(trace, tmp_path)
    assert with_law.once
    assert not without_law.once
    assert without_law.account[0].window_ns - with_law.account[0].window_ns > 29e6


# --- over every recording ---------------------------------------------------------------------------------------------


@pytest.mark.corpus
@pytest.mark.parametrize("path", list_recordings(), ids=name_recording)
def test_recordings_are_cold_or_steady_as_their_raw_files_are(path: Path) -> None:
    files = [path] if path.is_file() else sorted(path.rglob("*.json.gz"))[:2]
    for rank in (Rank(trace) for file in files for trace in split_ranks(read_once(file))):
        found = rank.first_use
        first_uses = set(found.parts) - {"unrecorded_work"}  # law 6
        assert bool(first_uses) == name_recording(path).startswith(COLD)
        assert not len(iv.intersect(rank.window, found.time)) or not found.is_in_window
        assert sum(rank.account.detail.values()) == rank.window_ns
        gpu = rank.trace.gpu
        computes = ~rank.trace.match_rows(gpu, NCCL_KERNEL)
        whole = iv.union_of(found.parts.get(cause, iv.EMPTY) for cause in ("warm_up", "autotuning", "compilation"))
        rest = iv.subtract(found.time, whole)
        # No time of a GPU item is once-only, but that of a collective while the code of what follows it is loaded.
        assert not len(iv.intersect(rest, iv.union(gpu.start_ns[computes], gpu.end_ns[computes])))
        rest = iv.subtract(rest, found.parts.get("module_loading", iv.EMPTY))
        assert not len(iv.intersect(rest, iv.union(gpu.start_ns, gpu.end_ns)))
