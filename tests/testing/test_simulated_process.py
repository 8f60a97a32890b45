"""SimulatedProcess obeys the laws of a CPU with a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from perfdoctor.testing import SimulatedProcess, TraceBuilder
from perfdoctor.trace import Trace


def exact_process(**options: object) -> SimulatedProcess:
    """A process whose durations do not vary."""
    return SimulatedProcess(seed=0, jitter=0, **options)  # type: ignore[arg-type]


def trace_of(process: SimulatedProcess) -> Trace:
    return process.write(TraceBuilder()).trace()


def train(process: SimulatedProcess, steps: int = 3) -> SimulatedProcess:
    for step in range(steps):
        with process.frame("train.py(5): main", "train.py(9): step"), process.annotation(f"ProfilerStep#{step}"):
            with process.op("aten::mm", shapes=[[64, 64], []], dtype="float"):
                process.kernel("gemm", 400)
            process.copy("DtoH", 4)
            process.synchronize()
    return process


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    texts = [train(SimulatedProcess(seed)).write(TraceBuilder()).to_bytes() for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_program_is_recorded_with_steps_shapes_launches_and_frames() -> None:
    events = train(exact_process()).write(TraceBuilder()).to_dict()["traceEvents"]
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    names = [event["name"] for event in events]
    assert [name for name in names if name.startswith("ProfilerStep#")] == [f"ProfilerStep#{n}" for n in range(3)]
    product = next(event for event in events if event["name"] == "aten::mm")
    assert product["args"]["Input type"] == ["float", "Scalar"]
    caller, callee, *_ = [event for event in events if event["cat"] == "python_function"]
    assert (caller["args"]["Python parent id"], callee["args"]["Python parent id"]) == (None, 1)
    assert caller["ts"] < callee["ts"]
    trace = trace_of(train(exact_process()))
    assert (trace.gpu.call >= 0).all()


def test_without_stacks_there_are_no_frames() -> None:
    events = train(exact_process(record_stacks=False)).write(TraceBuilder()).to_dict()["traceEvents"]
    assert not [event for event in events if event["cat"] == "python_function"]


def test_the_cpu_runs_ahead_and_a_stream_works_through_its_items_in_order() -> None:
    process = exact_process()
    ends_ns = [process.kernel("gemm", 400) for _ in range(3)]
    assert process.now_ns < ends_ns[0]
    gpu = trace_of(process).gpu
    assert gpu.end_ns.tolist() == ends_ns
    assert (gpu.start_ns[1:] - gpu.end_ns[:-1]).tolist() == [1100, 1100]


def test_synchronize_returns_when_the_gpu_is_done() -> None:
    process = exact_process()
    end_ns = process.kernel("gemm", 400)
    process.synchronize()
    assert process.now_ns == end_ns + 6000
    assert process.gpu_done_ns() == end_ns


def test_a_full_queue_blocks_the_next_launch() -> None:
    process = exact_process()
    ends_ns = [process.kernel("gemm", 10_000) for _ in range(1025)]
    assert process.now_ns == ends_ns[0]


def test_backward_runs_on_another_thread() -> None:
    process = exact_process()
    process.ops("aten::t")
    with process.autograd_thread():
        process.ops("aten::mm")
    process.ops("aten::add")
    threads = trace_of(process).ops.thread.tolist()
    assert threads[0] == threads[2] != threads[1]


@pytest.mark.parametrize("known_end_ns", [0, 5_000_000])
def test_a_collective_starts_after_the_kernels_before_it_and_delays_those_after_it(known_end_ns: int) -> None:
    process = exact_process(collective_ends_ns=[known_end_ns] if known_end_ns else [])
    end_ns = process.kernel("gemm", 400)
    process.collective("ncclAllReduce", 100)
    process.wait_for_collectives()
    process.kernel("optimizer", 10)
    gpu = trace_of(process).gpu
    assert gpu.start_ns[1] == end_ns == process.collective_starts_ns[0]
    assert gpu.end_ns[1] == (known_end_ns + 5000 if known_end_ns else end_ns + 100_000)
    assert gpu.start_ns[2] == gpu.end_ns[1] + 1100


def test_processes_meet_at_a_collective() -> None:
    early, late = exact_process(), exact_process()
    late.run_cpu(300)
    arrivals_ns = [process.launch_collective("ncclAllReduce") for process in (early, late)]
    for process in (early, late):
        process.end_collective(max(arrivals_ns) + 50_000)
    durations_ns = [trace_of(process).gpu.end_ns - trace_of(process).gpu.start_ns for process in (early, late)]
    assert np.concatenate(durations_ns).tolist() == [350_000, 50_000]
    assert early.collective_starts_ns == arrivals_ns[:1]


def test_a_collective_cannot_end_before_it_is_launched() -> None:
    with pytest.raises(ValueError, match="call launch_collective first"):
        exact_process().end_collective(1)


def test_the_clock_of_the_host_shifts_all_events() -> None:
    process = train(exact_process())
    here, ahead = (process.write(TraceBuilder(), offset_ns).trace() for offset_ns in (0, 5_000_000))
    assert (ahead.gpu.start_ns + ahead.base_ns - here.gpu.start_ns - here.base_ns == 5_000_000).all()
