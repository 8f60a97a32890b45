"""What `--memory` records: of programs on the CPU for real, of CUDA's allocator by fakes of torch's functions."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import perfdoctor

torch = pytest.importorskip("torch")

from perfdoctor.capture.inject._perfdoctor_inject import host_memory, memory_watch, proc_files, process_memory  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.loader_records import describe_objects  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.memory_watch import AllocatorHistory  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.process_memory import CudaPeaks, StepMemory  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.watched_calls import watch_calls  # noqa: E402

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MB = 1_000_000
# glibc keeps up to 64 MiB at the top of its heap, from which it serves smaller requests without new memory.
LARGE = 80 * MB


# Control groups and /proc ------------------------------------------------------------------------------------------


def write_group(root: Path, name: str, files: dict[str, str]) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (root / name / file).write_text(text)


def test_group_of_version_2(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    groups.write_text("0::/pod/job\n")
    usage = {"memory.current": "900", "memory.stat": "anon 500\nfile 300\ninactive_file 200\n"}
    write_group(tmp_path, "pod/job", {**usage, "memory.max": "max\n", "memory.events": "oom 1\noom_kill 2\n"})
    write_group(tmp_path, "pod", {**usage, "memory.max": "1000\n", "memory.events": "oom_kill 3\n"})
    found = host_memory.find_group(str(tmp_path), str(groups))
    assert found == (2, f"{tmp_path}/pod")  # the limit binds, wherever it is
    assert host_memory.read_limit(*found) == 1000
    assert host_memory.read_group(*found) == (700, 300)
    assert host_memory.read_oom_kills(found[1]) == 3


def test_group_of_version_1_without_a_limit(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    groups.write_text("4:memory:/job\n1:cpu:/other\n")
    write_group(
        tmp_path,
        "memory/job",
        {
            "memory.limit_in_bytes": "9223372036854771712",
            "memory.usage_in_bytes": "900",
            "memory.stat": "cache 1\ntotal_cache 300\ntotal_inactive_file 250\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
        },
    )
    found = host_memory.find_group(str(tmp_path), str(groups))
    assert found == (1, f"{tmp_path}/memory/job")
    assert host_memory.read_limit(*found) is None
    assert host_memory.read_group(*found) == (650, 300)
    assert host_memory.read_oom_kills(found[1]) == 4


def test_a_group_that_tells_nothing_is_not_zero(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    groups.write_text("0::/job\n")
    assert host_memory.find_group(str(tmp_path), str(groups)) is None
    write_group(tmp_path, "job", {"memory.current": "900"})
    assert host_memory.read_group(2, f"{tmp_path}/job") == (None, None)
    assert host_memory.read_oom_kills(f"{tmp_path}/job") is None


@linux_only
def test_sizes_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = host_memory.read_sizes(os.getpid())
    assert sizes is not None
    assert 0 < sizes["Private_Dirty"] <= sizes["Pss"] <= sizes["Rss"]
    assert host_memory.read_sizes(2**22 + 1) is None

    def deny(path: str, *args: Any, **kwargs: Any) -> Any:
        if path.endswith("smaps_rollup"):
            raise PermissionError
        return open(path, *args, **kwargs)

    monkeypatch.setattr(proc_files, "open", deny, raising=False)
    denied = host_memory.read_sizes(os.getpid())
    assert denied is not None
    assert set(denied) == {"Rss"}
    assert denied["Rss"] == pytest.approx(sizes["Rss"], rel=0.1)


@linux_only
def test_the_sampler_sees_memory_that_is_taken() -> None:
    watch = host_memory.HostMemory(lambda: ())
    watch.start()
    time.sleep(0.05)  # a first look
    taken = bytearray(os.urandom(1024)) * (LARGE // 1024)
    watch.stop()
    facts = watch.to_dict()
    assert len(taken) > LARGE - 1024
    assert facts["status"] == "sampled"
    assert facts["samples"] == 2
    [own] = [each for each in facts["processes"] if each["kind"] == "program"]
    assert own["pid"] == os.getpid()
    assert own["private_last_bytes"] - own["private_first_bytes"] > 0.8 * LARGE
    assert facts["tree_peak_bytes"] >= own["peak_bytes"] > LARGE
    assert facts["killed_workers"] == []


def test_an_error_of_the_sampler_is_noted_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(host_memory, "find_tree", lambda _: 1 / 0)
    watch = host_memory.HostMemory(lambda: ())
    watch.start()
    watch.stop()
    facts = watch.to_dict()
    assert (facts["status"], facts["samples"], facts["tree_peak_bytes"]) == ("failed", 0, None)
    assert "ZeroDivisionError" in facts["why"]


def test_elsewhere_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    watch = host_memory.HostMemory(lambda: ())
    watch.start()
    watch.stop()
    facts = watch.to_dict()
    assert (facts["status"], facts["samples"], facts["processes"]) == ("not linux", 0, [])
    assert facts["tree_peak_bytes"] is None


# Data sets ---------------------------------------------------------------------------------------------------------


class Holder:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __getitem__(self, number: int) -> Any:
        raise AssertionError("no code of a data set runs")

    def __len__(self) -> int:  # torch's ConcatDataset asks for it
        return 100


def test_objects_of_data_sets() -> None:
    rows = [[float(number), str(number)] for number in range(20_000)]
    found = describe_objects(Holder(rows=rows, small=[1, 2], array=torch.zeros(100_000, 3)))
    assert found is not None
    assert (found["attribute"], found["type"], found["length"]) == ("rows", "list", 20_000)
    each = sys.getsizeof(rows[1000]) + sys.getsizeof(rows[1000][0]) + sys.getsizeof(rows[1000][1])
    assert found["bytes"] == pytest.approx(20_000 * each, rel=0.3)
    split = torch.utils.data.Subset(torch.utils.data.ConcatDataset([Holder(rows=rows)]), range(100))
    assert describe_objects(split) == found
    labels = describe_objects(Holder(labels={str(number): number for number in range(20_000)}))
    assert labels is not None
    assert labels["type"] == "dict"
    assert describe_objects(rows) == {**found, "attribute": "dataset"}


def test_data_sets_without_objects() -> None:
    assert describe_objects(Holder(rows=torch.zeros(100_000), names=["a"] * 100)) is None
    assert describe_objects(torch.utils.data.TensorDataset(torch.zeros(100_000))) is None
    assert describe_objects(object()) is None
    loop = Holder()
    loop.inner = loop  # type: ignore[attr-defined]
    assert describe_objects(loop) is None


# Peaks -------------------------------------------------------------------------------------------------------------


class FakeAllocator:
    """Torch's functions on the memory of GPU 0, in Python."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = self.peak = 0
        self.resets = 0
        for module in (process_memory, memory_watch):
            monkeypatch.setattr(module, "cuda_is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch._C, "_cuda_memoryStats", self.statistics, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_resetPeakMemoryStats", self.reset, raising=False)

    def take(self, size: int) -> None:
        self.current += size
        self.peak = max(self.peak, self.current)

    def statistics(self, _: int = 0) -> dict[str, Any]:
        return {"allocated_bytes": {"all": {"current": self.current, "peak": self.peak}}, "num_ooms": 0}

    def reset(self, _: int = 0) -> None:
        self.resets += 1
        self.peak = self.current


def test_peaks_of_phases_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, steps = FakeAllocator(monkeypatch), StepMemory()
    gpu.take(900)
    gpu.take(-800)
    steps.begin_step()
    gpu.take(50)
    gpu.take(-50)
    gpu.take(20)
    steps.enter("backward")
    gpu.take(70)
    gpu.take(-90)
    steps.enter("forward")
    steps.enter("optimizer")
    gpu.take(5)
    steps.enter("forward")
    assert steps.end_step("base") == {"forward": 150, "backward": 190, "optimizer": 105, "step": 190}
    read = watch_calls(gpu.statistics, steps.cuda.watch_reader)
    assert read()["allocated_bytes"]["all"] == {"current": 105, "peak": 1000 - 100}  # as if nobody had reset it
    flat = watch_calls(lambda _: {"allocated_bytes.all.peak": gpu.peak, "other": 1}, steps.cuda.watch_reader)
    assert flat("cuda:0") == {"allocated_bytes.all.peak": 900, "other": 1}
    assert steps.to_dict()["windows"]["base"]["backward_bytes"] == 190


def test_the_programs_own_resets_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, peaks = FakeAllocator(monkeypatch), CudaPeaks()
    gpu.take(900)
    gpu.take(-800)
    assert peaks.take() == 900
    watch_calls(gpu.reset, peaks.watch_reset)()
    resets = gpu.resets
    gpu.take(50)
    gpu.take(-50)
    assert peaks.take() == 150
    assert peaks.take() == 150
    assert gpu.resets == resets
    assert watch_calls(gpu.statistics, peaks.watch_reader)()["allocated_bytes"]["all"]["peak"] == 150


@linux_only
def test_peaks_of_phases_on_the_cpu() -> None:
    steps = StepMemory()
    assert steps.end_step("base") is None
    steps.begin_step()
    taken = torch.ones(LARGE // 4)
    steps.enter("backward")
    del taken
    steps.enter("optimizer")
    peaks = steps.end_step("base")
    assert peaks is not None
    assert peaks["step"] >= peaks["forward"] == peaks["backward"] > peaks["optimizer"] > 0


def test_steps_are_left_out_until_the_last_look_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, steps, now = FakeAllocator(monkeypatch), StepMemory(), [0]
    cpu_ns = iter(range(0, 10**9, 100))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(cpu_ns))

    def run_step(at_ns: int) -> dict[str, int] | None:
        now[0] = at_ns
        steps.begin_step()
        steps.enter("backward")
        gpu.take(10)
        return steps.end_step("base")

    assert run_step(0) is not None
    resets = gpu.resets
    assert run_step(60_000 - 1) is None  # three parts of 100 ns, 200 times
    assert gpu.resets == resets
    assert run_step(60_000) is not None
    assert steps.to_dict()["windows"]["base"]["steps"] == 2


# CUDA's allocator --------------------------------------------------------------------------------------------------


class FakeHistory:
    """Torch's functions on the history of the allocator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, enabled: bool = False) -> None:
        self.calls: list[Any] = []
        self.notes: list[str] = []
        self.observers: list[Any] = []
        monkeypatch.setattr(memory_watch, "cuda_is_initialized", lambda: True)
        self.history = AllocatorHistory(1_000_000, self.notes.append)
        record = watch_calls(
            lambda *args, **options: self.calls.append((args, options)), self.history.on_program_records
        )
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
        monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: Path(path).write_text("snapshot"))
        monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: enabled, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", self.observers.append, raising=False)


def test_history_of_a_window(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeHistory(monkeypatch)
    fake.history.start()
    fake.history.stop(str(tmp_path))
    fake.history.stop(str(tmp_path))
    on, off = fake.calls
    assert on == (("all",), {"context": "all", "stacks": "python", "max_entries": 500})  # a part of --max-evidence
    assert off == ((None,), {})
    assert fake.history.file == "memory.pickle"
    assert [path.name for path in tmp_path.iterdir()] == ["memory.pickle"]
    assert fake.notes == []


def test_a_history_of_the_programs_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeHistory(monkeypatch, enabled=True)
    fake.history.start()
    fake.history.stop(str(tmp_path))
    assert (fake.calls, fake.history.file, len(fake.notes)) == ([], None, 1)
    later = FakeHistory(monkeypatch)
    later.history.start()
    torch.cuda.memory._record_memory_history("all")
    later.history.stop(str(tmp_path))
    assert len(later.calls) == 2  # ours, and the program's, which nobody has ended
    assert (list(tmp_path.iterdir()), len(later.notes)) == ([], 1)


def test_a_history_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeHistory(monkeypatch)
    fake.history.start()
    fake.history.stop(str(tmp_path / "missing"))
    assert fake.calls[-1] == ((None,), {})
    assert (fake.history.file, len(fake.notes)) == (None, 1)


def test_a_request_that_fails_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeHistory(monkeypatch)
    for _ in range(2):
        fake.history.observe_failures(lambda: str(tmp_path))
    [observer] = fake.observers
    for _ in range(5):
        (tmp_path / "oom.pickle").unlink(missing_ok=True)
        observer(0, 4096, 8192, 100)  # line
    known = fake.history.out_of_memory
    assert known is not None
    assert (known["times"], known["requested_bytes"], known["free_bytes"], known["device_bytes"]) == (
        5,
        4096,
        100,
        8192,
    )
    assert known["location"]["function"] == "test_a_request_that_fails_on_a_gpu"
    assert not (tmp_path / "oom.pickle").exists()  # a program that goes on pays for three
    assert fake.history.note_error(torch.OutOfMemoryError("passes through"))
    assert fake.history.out_of_memory == known


def test_an_observer_that_fails_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeHistory(monkeypatch)
    fake.history.observe_failures(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    fake.observers[0](0, 4096, 8192, 100)
    assert len(fake.notes) == 1


# Programs ----------------------------------------------------------------------------------------------------------

MEMORY_ENDS = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, batch in enumerate(DataLoader(data, batch_size=4)):
    if number == STOP:
        torch.empty(10 ** 15)  # here
    train_step(batch, optimizer)
"""

KILLED = """
class Dies(torch.utils.data.Dataset):
    def __len__(self):
        return 56
    def __getitem__(self, number):
        if number == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        return data[number]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Dies(), batch_size=4, num_workers=1):
    train_step(batch, optimizer)
"""

MANY_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Many(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, number):  # here
        return data[number % len(data)]
kept = []
for batch in DataLoader(Many(), batch_size=4, num_workers=1):
    train_step(batch, optimizer)
    kept.append(batch)
    time.sleep(0.01)
"""


@linux_only
def test_a_program_on_the_cpu(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(capture_kit["TRAIN"], memory=True)
    assert recorded.exit_code == 0, recorded.stderr
    assert recorded.stdout == launcher.run_plain(f"program{launcher._count}.py").stdout
    memory = recorded.facts()["memory"]
    assert memory["peaks"]["kind"] == "rss"
    assert sum(each["steps"] for each in memory["peaks"]["windows"].values()) >= 1
    assert memory["host"]["status"] == "sampled"
    assert memory["host"]["processes"][0]["kind"] == "program"
    assert (memory["snapshot"], memory["out_of_memory"]) == (None, None)
    seen = [step["memory_bytes"] for step in recorded.steps()]  # null where its turn had not come
    assert any(seen)
    for peaks in filter(None, seen):
        assert peaks["step"] >= max(peaks["forward"], peaks["backward"], peaks["optimizer"]) > 0
    assert any(event["name"] == "[memory]" for event in recorded.trace("evidence")["traceEvents"])


@pytest.mark.parametrize("stop", [0, 6])
def test_a_program_that_runs_out_of_memory(launcher: Any, capture_kit: dict[str, Any], stop: int) -> None:
    source = capture_kit["PRELUDE"] + f"STOP = {stop}\n" + MEMORY_ENDS
    recorded = launcher.record(source, memory=True, is_forked=False)
    plain = launcher.run_plain(f"program{launcher._count}.py")
    assert recorded.exit_code == plain.returncode == 1
    lines = plain.stderr.splitlines()
    assert recorded.stderr.splitlines() == [line for line in lines if "fork_server" not in line]
    known = recorded.facts()["memory"]["out_of_memory"]
    assert (known["error"], known["times"], known["device"]) == ("RuntimeError", 1, None)
    assert source.splitlines()[known["location"]["line"] - 1].endswith("# here")


@linux_only
def test_a_worker_that_is_killed(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(capture_kit["PRELUDE"] + KILLED, memory=True)
    assert recorded.exit_code == 1
    [worker] = recorded.facts()["memory"]["host"]["killed_workers"]
    assert worker["signal"] == signal.SIGKILL


@linux_only
def test_a_program_that_has_no_file_descriptor_left(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = capture_kit["PRELUDE"] + MANY_FILES
    recorded = launcher.record(source, memory=True)
    assert recorded.exit_code == 1
    assert "Too many open files" in recorded.stderr
    host = recorded.facts()["memory"]["host"]
    assert host["open_files_limit"] == 128
    findings = perfdoctor.analyze(recorded.out).findings
    [finding] = [each for each in findings if each.rule == "PD709" and each.subject == "open files"]
    assert "of 128 were open" in finding.title
    line = None if finding.location is None else finding.location.line
    assert line is not None
    assert source.splitlines()[line - 1].endswith("# here")


def test_without_the_option_there_is_nothing(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(capture_kit["TRAIN"])
    assert "host" not in recorded.facts()["memory"]
    assert all("memory_bytes" not in step for step in recorded.steps())


@pytest.mark.process
@linux_only
def test_signals_of_workers_that_ended() -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=time.sleep, args=(seconds,)) for seconds in (0, 600)]
    for each in processes:
        each.start()
    assert host_memory.find_signal(processes[1]) is None
    assert set(host_memory.find_tree(os.getpid())) >= {os.getpid(), *(each.pid for each in processes)}
    processes[1].kill()
    until = time.monotonic() + 60
    while host_memory.find_signal(processes[1]) is None and time.monotonic() < until:
        time.sleep(0.01)
    assert host_memory.find_signal(processes[1]) == signal.SIGKILL
    for each in processes:
        each.join()  # nobody has waited for them
    assert [host_memory.find_signal(each) for each in processes] == [None, signal.SIGKILL]
    assert [each.exitcode for each in processes] == [0, -signal.SIGKILL]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists them")
def test_open_files_are_counted(tmp_path: Path) -> None:
    before = host_memory.count_open_files()
    assert before is not None
    files = [(tmp_path / str(number)).open("w") for number in range(7)]
    assert host_memory.count_open_files() == before + 7
    for file in files:
        file.close()
    assert host_memory.count_open_files() == before
    limit = host_memory.read_open_files_limit()
    assert limit is None or limit > before
