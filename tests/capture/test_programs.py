"""Whole programs, really started: output and exit code are unchanged, and what was recorded is true."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import WORK_FOLDER

pytest.importorskip("torch")


THREADED = """
import threading
def work():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(data, batch_size=4):
        train_step(batch, optimizer)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.fixture(scope="module")
def ordinary(launcher: Any, capture_kit: dict[str, Any]) -> tuple[Any, Any]:
    """One ordinary program, plain and recorded."""
    path = launcher.write(
        capture_kit["ORDINARY"]
        + """
print("loss", loss.item(), "args", sys.argv[1:])
print(sum(p.double().sum().item() for p in model.parameters()))
print("path", [entry for entry in sys.path if "inject" in entry], torch.cuda.is_initialized())
sys.stderr.write("to stderr\\n")
"""
    )
    return launcher.run_plain(path.name, "--token", "hunter2"), launcher.run(path.name, "--token", "hunter2")


def test_output_and_results_are_identical(ordinary: tuple[Any, Any]) -> None:
    plain, recorded = ordinary
    assert plain.returncode == recorded.exit_code == 0
    assert recorded.stdout == plain.stdout
    assert recorded.stderr == plain.stderr == "to stderr\n"


def test_all_files_are_there_and_nothing_else(ordinary: tuple[Any, Any]) -> None:
    recorded = ordinary[1]
    assert recorded.files() == {"timing.json.gz", "evidence.json.gz", "calls.json", "facts.json", "steps.jsonl"}
    assert {path.name for path in recorded.out.iterdir()} == {"rank0"}
    assert recorded.notes == ""


def test_every_step_is_streamed_with_its_window(ordinary: tuple[Any, Any]) -> None:
    steps = ordinary[1].steps()
    windows = ["skip"] * 2 + ["base"] * 2 + ["warm"] + ["timing"] * 3 + ["warm"] + ["evidence"] * 2 + ["after"] * 3
    assert [each["window"] for each in steps] == windows
    assert [each["step"] for each in steps] == list(range(14))
    assert all(0 < each["loader_wait_ns"] < each["dur_ns"] for each in steps)


def test_the_traces_hold_whole_annotated_steps(ordinary: tuple[Any, Any]) -> None:
    recorded = ordinary[1]
    assert recorded.annotated_steps("timing") == [5, 6, 7]
    assert recorded.annotated_steps("evidence") == [9, 10]
    events = [e for e in recorded.trace("timing")["traceEvents"] if e.get("ph") == "X"]
    ranges = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("ProfilerStep#"))
    for name in ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "Optimizer.step#SGD.step"):
        inside = [[e for e in events if e["name"] == name and a <= e["ts"] < b] for a, b in ranges]
        assert [len(each) for each in inside] == [1, 1, 1]
    assert "perfdoctor::backward" in recorded.names("timing")


def test_durations_in_steps_and_trace_agree(ordinary: tuple[Any, Any]) -> None:
    recorded = ordinary[1]
    events = {e["name"]: e for e in recorded.trace("timing")["traceEvents"]}
    for step in recorded.steps()[5:8]:
        assert events[f"ProfilerStep#{step['step']}"]["dur"] * 1000 == pytest.approx(step["dur_ns"], rel=0.2, abs=2e5)


def test_exact_lines_and_shapes_are_in_the_evidence_window_alone(ordinary: tuple[Any, Any]) -> None:
    recorded = ordinary[1]
    source = (recorded.out.parent / "program.py").read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if "cross_entropy" in text)
    assert any(name.endswith(f"program.py:{line} train_step") and name[0] == "@" for name in recorded.names("evidence"))
    assert not any(name.startswith("@") for name in recorded.names("timing"))
    step = next(number for number, text in enumerate(source, 1) if "optimizer.step()" in text)
    events = [e for e in recorded.trace("evidence")["traceEvents"] if e.get("ph") == "X"]
    of_ops = [e for e in events if e["name"].endswith(f"program.py:{step} train_step") and "Ev Idx" in e["args"]]
    lines = [(e["ts"], e["ts"] + e["dur"]) for e in of_ops]
    updates = [e["ts"] for e in events if e["name"] == "Optimizer.step#SGD.step"]
    assert len(lines) == len(updates) == 3, "one line for all that the optimizer does, the warm-up step included"
    assert all(begin <= at < end for (begin, end), at in zip(sorted(lines), sorted(updates), strict=True))
    shapes = [e for e in recorded.trace("evidence")["traceEvents"] if "Input Dims" in e.get("args", {})]
    assert shapes
    assert not [e for e in recorded.trace("timing")["traceEvents"] if "Input Dims" in e.get("args", {})]


def test_facts_name_the_loader_and_its_lines(ordinary: tuple[Any, Any]) -> None:
    recorded = ordinary[1]
    facts = recorded.facts()
    source = (recorded.out.parent / "program.py").read_text().splitlines()
    (loader,) = facts["loaders"]
    assert (loader["dataset"], loader["num_workers"], loader["batch_size"]) == ("TensorDataset", 0, 4)
    assert loader["batches"] == 15
    assert "in enumerate(loader)" in source[loader["location"]["line"] - 1]
    assert "DataLoader(data" in source[loader["created"]["line"] - 1]
    assert loader["location"]["file"].endswith("program.py")
    assert loader["location"]["function"] == "<module>"


def test_facts_describe_the_run(ordinary: tuple[Any, Any]) -> None:
    facts = ordinary[1].facts()
    assert facts["schema"] == "perfdoctor.facts/1"
    assert (facts["rank"], facts["world_size"], facts["script"]) == (0, 1, "program.py")
    assert (facts["steps_seen"], facts["step_source"], facts["exit"]) == (14, "loader", "exit")
    assert facts["windows"]["timing"] == {"steps": 3, "complete": True, "file": "timing.json.gz", "first_step": 5}
    assert facts["base_step_ns"] == [step["dur_ns"] for step in ordinary[1].steps()[2:4]]
    assert facts["optimizers"][0]["class"] == "SGD"
    assert facts["models"][0]["parameters"] == 8 * 16 + 16 + 16 * 2 + 2
    assert facts["devices"] == []
    assert facts["cpu"]["count"] == os.cpu_count()


def test_facts_hold_neither_arguments_nor_environment(ordinary: tuple[Any, Any]) -> None:
    text = json.dumps(ordinary[1].facts())
    assert "hunter2" not in text
    assert os.environ["PATH"] not in text


def test_a_capture_is_not_overwritten_unasked(ordinary: tuple[Any, Any], launcher: Any) -> None:
    before = ordinary[1].steps()
    again = launcher.run("program.py", out=ordinary[1].out)
    assert again.exit_code == 2
    assert "is not empty" in again.result["message"]
    assert "--force" in again.result["message"]
    assert ordinary[1].steps() == before


def test_a_module_with_sitecustomize_and_safe_path(launcher: Any, capture_kit: dict[str, Any]) -> None:
    package = launcher.folder / "lib" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text(
        "import sys\nsys.path.clear()\nsys.path.extend(sys.orig_path)\n" + capture_kit["TRAIN"] + "\nsys.exit(3)\n"
    )
    (launcher.folder / "lib" / "sitecustomize.py").write_text("import sys\nsys.orig_path = list(sys.path)\n")
    env = {"PYTHONPATH": str(launcher.folder / "lib"), "PYTHONSAFEPATH": "1"}
    recorded = launcher.run("-m", "package.train", env=env, evidence=0)
    assert recorded.exit_code == 3
    assert recorded.facts()["windows"]["timing"]["complete"]
    assert recorded.files() == {"timing.json.gz", "facts.json", "steps.jsonl"}


def test_a_crash_keeps_its_traceback_and_its_partial_window(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(capture_kit["TRAIN"] + '    if number == 7: raise RuntimeError("boom")\n')
    assert recorded.exit_code == 1
    assert "RuntimeError: boom" in recorded.stderr
    assert "perfdoctor" not in recorded.stderr
    assert recorded.annotated_steps("timing") == [5, 6]
    assert "perfdoctor::partial_step" in recorded.names("timing")
    assert "the timing window has 2 of 3 steps, because the program ended after 7 steps" in recorded.notes


def test_os_exit_saves_like_any_exit(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(capture_kit["TRAIN"] + "    if number == 8: os._exit(7)\n")
    assert recorded.exit_code == 7
    assert recorded.facts()["exit"] == "os._exit"
    assert recorded.annotated_steps("timing") == [5, 6, 7]


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "exit"), (signal.SIGHUP, 129, None)],
)
def test_signals_are_forwarded(
    launcher: Any, capture_kit: dict[str, Any], number: signal.Signals, code: int, reason: str | None
) -> None:
    ready = launcher.folder / f"ready{number}"
    wait = f"    if number == 7: open({str(ready)!r}, 'w').close(); time.sleep(300)\n"
    recorded = launcher.record(
        capture_kit["TRAIN"] + wait, while_running=capture_kit["signal_when_ready"](ready, number)
    )
    assert recorded.exit_code == code
    assert len(recorded.steps()) == 7
    if reason:
        assert recorded.facts()["exit"] == reason
        assert recorded.annotated_steps("timing") == [5, 6]
    assert ("KeyboardInterrupt" in recorded.stderr) == (number == signal.SIGINT)


def test_sizes_of_the_user_are_kept_in_a_short_program(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(capture_kit["TRAIN"], skip=5, base=11, warmup=2, timing=8, evidence=3)
    assert recorded.exit_code == 0
    assert "the program ended after 14 steps, before the timing window begins at step 18" in recorded.notes
    assert "windows that fit: --skip" in recorded.notes
    assert recorded.facts()["base_step_ns"]
    assert recorded.files() == {"facts.json", "steps.jsonl"}


def test_the_users_own_profiler_keeps_working(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(
        capture_kit["TRAIN"]
        .replace(
            "    loss = train_step",
            """    if number == 6:
        own = torch.profiler.profile(with_stack=True)
        own.start()
    if number == 8:
        own.stop()
        own.export_chrome_trace("own.json")
        print("own", any(each.key == "aten::mm" for each in own.key_averages()))
    loss = train_step""",
        )
        .replace("STEPS = 14", "STEPS = 24")
    )
    assert recorded.exit_code == 0
    assert recorded.stdout == "own True\n"
    assert recorded.stderr == ""
    assert json.loads((launcher.folder / "own.json").read_text())["traceEvents"]
    assert "the program's own profiler took over" in recorded.notes
    timing = recorded.facts()["windows"]["timing"]
    assert timing["complete"]
    assert timing["first_step"] > 8
    assert {step["window"] for step in recorded.steps()[6:8]} <= {"user_profiler", "timing"}


def test_stop_after_ends_the_program_cleanly(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(capture_kit["TRAIN"].replace("STEPS = 14", "STEPS = 10000"), stop_after=True)
    assert recorded.exit_code == 0
    assert recorded.facts()["exit"] == "stopped"
    assert len(recorded.steps()) == capture_kit["NEEDED"]
    assert recorded.stderr == ""


def test_workers_and_helpers_never_record(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = (
        capture_kit["PRELUDE"]
        + """
def main():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for method in ("spawn", "fork"):
        for batch in DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context=method):
            train_step(batch, optimizer)
if __name__ == "__main__":
    main()
"""
    )
    recorded = launcher.record(source)
    assert recorded.exit_code == 0
    assert recorded.ranks == [0]
    facts = recorded.facts()
    assert facts["steps_seen"] == 28
    assert [loader["num_workers"] for loader in facts["loaders"]] == [1, 1]
    assert {loader["start_method"] for loader in facts["loaders"]} == {"spawn", "fork"}


def test_two_ranks_under_torchrun(launcher: Any, capture_kit: dict[str, Any], free_port: str) -> None:
    script = launcher.write(
        capture_kit["PRELUDE"]
        + """
import torch.distributed as dist
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(data, batch_size=4):
    train_step(batch, optimizer)
leave_group()
""",
        "ddp.py",
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port]
    recorded = launcher.run("--", *command, script.name)
    assert recorded.exit_code == 0, recorded.stderr
    assert recorded.ranks == [0, 1]
    for rank in (0, 1):
        facts = recorded.facts(rank)
        assert (facts["rank"], facts["world_size"]) == (rank, 2)
        assert facts["models"][0]["ddp"]["static_graph"] is False
        assert recorded.annotated_steps("timing", rank) == [5, 6, 7]
        assert recorded.trace("timing", rank)["distributedInfo"] == {"rank": rank, "world_size": 2, "backend": "gloo"}
        assert "gloo:all_reduce" in recorded.names("timing", rank)
    samples = [recorded.facts(rank)["parameter_checksums"] for rank in (0, 1)]
    assert samples[0] == samples[1]  # the ranks are in step
    (model,) = samples[0][0]["models"]
    assert (model["class"], model["ddp"], model["group"], model["reduces_each_step"]) == (
        "Sequential",
        True,
        [0, 1],
        True,
    )
    assert [each["name"] for each in model["tensors"]] == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize(("method", "chosen"), [("fork", [0, 2]), ("spawn", [1])])
def test_started_ranks_and_a_choice_of_them(
    launcher: Any, capture_kit: dict[str, Any], method: str, chosen: list[int]
) -> None:
    source = (
        capture_kit["PRELUDE"]
        + f"""
import torch.multiprocessing as mp
def work(rank):
    os.environ["RANK"] = str(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(data, batch_size=4):
        train_step(batch, optimizer)
if __name__ == "__main__":
    mp.start_processes(work, nprocs={max(chosen) + 1}, start_method={method!r})
"""
    )
    recorded = launcher.record(source, ranks=chosen)
    assert recorded.exit_code == 0, recorded.stderr
    assert recorded.ranks == chosen
    assert recorded.annotated_steps("timing", chosen[-1]) == [5, 6, 7]


def test_training_in_a_thread(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = capture_kit["PRELUDE"] + THREADED
    recorded = launcher.record(source)
    assert recorded.exit_code == 0
    assert recorded.annotated_steps("timing") == [5, 6, 7]


def test_training_in_a_thread_that_ends_in_a_window(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = capture_kit["PRELUDE"].replace("STEPS = 14", "STEPS = 10") + THREADED
    recorded = launcher.record(source + 'print("joined")\n')
    assert (recorded.exit_code, recorded.stdout) == (0, "joined\n")
    assert recorded.annotated_steps("timing") == [5, 6, 7]
    assert recorded.annotated_steps("evidence") == [9]
    assert "the evidence window (shapes, source lines) is incomplete" in recorded.notes


def test_a_training_thread_left_behind_in_a_window(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = capture_kit["PRELUDE"] + THREADED.replace(
        "thread.start()", "thread.daemon = True; thread.start()"
    ).replace("thread.join()", "while not reached: time.sleep(0.01)").replace(
        "import threading", "import threading; reached = []"
    ).replace(
        "        train_step", "        if steps == 10: reached.append(1); time.sleep(60)\n        train_step"
    ).replace("for batch in ", "for steps, batch in enumerate(").replace("batch_size=4):", "batch_size=4)):")
    recorded = launcher.record(source + 'print("left")\n')
    assert (recorded.exit_code, recorded.stdout) == (0, "left\n")
    assert recorded.annotated_steps("timing") == [5, 6, 7]
    assert "the evidence window was lost" in recorded.notes


def test_a_compiled_model_gets_no_graph_breaks(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = (
        capture_kit["PRELUDE"]
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = torch.compile(model, backend="aot_eager", fullgraph=True)
for batch in DataLoader(data, batch_size=4):
    train_step(batch, optimizer)
"""
    )
    recorded = launcher.record(source)
    assert recorded.exit_code == 0, recorded.stderr
    facts = recorded.facts()
    compiled = facts["compile"]
    assert (compiled["graphs"], compiled["graph_breaks"], compiled["recompiles"]) == (1, 0, 0)
    assert set(compiled["windows"]) <= {"skip"}
    rows = [e for e in recorded.trace("evidence")["traceEvents"] if e["name"].startswith("@")]
    assert not [row for row in rows if "Ev Idx" in row.get("args", {})], "a mode on the stack would compile it again"


def test_recompilations_are_counted_by_window(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = (
        capture_kit["PRELUDE"]
        + """
import torch._dynamo
torch._dynamo.config.automatic_dynamic_shapes = False
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = torch.compile(model, backend="eager", fullgraph=True)
for step, batch in enumerate(DataLoader(data, batch_size=4)):
    train_step([part[:3] for part in batch] if step == 6 else batch, optimizer)
"""
    )
    recorded = launcher.record(source)
    assert recorded.exit_code == 0, recorded.stderr
    compiled = recorded.facts()["compile"]
    assert (compiled["frames"], compiled["recompiles"]) == (2, 1)
    recompiled = compiled["windows"]["timing"]
    assert recompiled["frames"] == 1
    assert 0 < recompiled["ns"] < compiled["ns"]
    assert any(name == "dynamo" for name in recorded.names("timing"))


def test_a_folder_that_breaks_during_the_run_is_one_line(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = capture_kit["TRAIN"].replace(
        "    loss = train_step",
        """    if number == 4:
        import resource, sys
        sys.dont_write_bytecode = True  # Python does not notice that what it writes is cut off
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    loss = train_step""",
    )
    recorded = launcher.record(source + 'print("done", number)\n')
    assert recorded.exit_code == 0
    assert recorded.stdout == "done 13\n"
    lines = [line for line in recorded.stderr.splitlines() if line.startswith("perfdoctor: ")]
    assert len(lines) == 1
    assert "cannot write to" in lines[0]
    assert "the program runs on" in lines[0]


def test_a_program_without_steps_is_referred_to_the_session(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(capture_kit["PRELUDE"] + "print(model(data[0][0]).shape)\n")
    assert recorded.exit_code == 0
    assert recorded.result["folder"] is None
    assert not recorded.out.exists()
    assert "no training step was seen" in recorded.notes
    assert "session.step()" in recorded.notes


@pytest.mark.parametrize("name", ["train_image_classifier.py", "slow_dataset.py"])
def test_the_examples_wait_for_their_loader(launcher: Any, name: str) -> None:
    path = Path(__file__).resolve().parents[2] / "examples" / name
    source = path.read_text()
    assert "perfdoctor." not in source, "an example of an unmodified program"
    recorded = launcher.run(str(path), "--steps", "16", "--batch-size", "16", base=7, evidence=0)
    assert recorded.exit_code == 0, recorded.stderr
    facts = recorded.facts()
    (loader,) = facts["loaders"]
    assert loader["num_workers"] == 0
    assert "in loader:" in source.splitlines()[loader["location"]["line"] - 1]
    # Medians: on a busy machine single steps of some milliseconds take many times as long.
    assert median(facts["base_loader_wait_ns"]) > 0.1 * median(facts["base_step_ns"])


def test_every_rank_may_run_its_own_perfdoctor(launcher: Any, capture_kit: dict[str, Any]) -> None:
    command = [sys.executable, "-c", capture_kit["DRIVER"]]
    script = launcher.write(capture_kit["TRAIN"] + 'time.sleep(2 * int(os.environ["RANK"]))\n', "rank.py")
    shared = launcher.folder / "shared"
    sizes = json.dumps({"skip": 1, "base": 1, "warmup": 1, "timing": 2, "evidence": 0, "out": str(shared)})
    started = []
    for rank in (0, 1):
        environment = {**capture_kit["environment"](), "RANK": str(rank), "WORLD_SIZE": "2"}
        argv = [*command, str(launcher.folder / f"answer{rank}"), sizes, str(script)]
        started.append(subprocess.Popen(argv, env=environment, cwd=launcher.folder))
    assert [child.wait(timeout=600) for child in started] == [0, 0]
    answers = [json.loads((launcher.folder / f"answer{rank}").read_text()) for rank in (0, 1)]
    assert [answer["ranks"] for answer in answers] == [[0], [1]]
    assert [answer["folder"] for answer in answers] == [str(shared), None]
    assert {path.name for path in shared.iterdir()} == {"rank0", "rank1", WORK_FOLDER}
    reported, ended = launcher.folder / "answer0", shared / "rank1" / "facts.json"
    assert reported.stat().st_mtime >= ended.stat().st_mtime, "the first rank reports on all that is there"
