"""run.sh, which is started blind on machines with a GPU: limits, failures, results, with stages that take no time."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "benchmarks" / "gpu"

# What a stage `environment` would leave for the others.
FACTS = {"facts": {"has": {"torch": True, "gpu": False}, "torch": "torch 9.9", "environment": {"SEEN": "yes"}}}


def stage(name: str, code: str, **settings: Any) -> dict[str, Any]:
    """A stage that runs a line of Python, with its folder as first argument and its seconds as second."""
    command = ["{python}", "-c", code, "{folder}", "{seconds}"]
    return {"name": name, "title": name.title(), "command": command, "limit_s": 30, "min_s": 0.1, **settings}


def run_script(
    folder: Path, stages: list[dict[str, Any]], *arguments: str
) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Run the script with these stages; returns what it printed, and summary.json (None if there is none)."""
    file = folder / "stages.json"
    file.write_text(json.dumps(stages))
    out = folder / "out"
    done = subprocess.run(
        [str(GPU / "run.sh"), str(out), "--stages", str(file), *arguments],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    summary = out / "summary.json"
    return done, json.loads(summary.read_text()) if summary.exists() else None


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, float]:
    """One run of stages that do all that stages do: the folder of the results, the summary, and its seconds."""
    folder = tmp_path_factory.mktemp("gpu")
    write = f"import json, sys; open(sys.argv[1] + '/figures.json', 'w').write({json.dumps(FACTS)!r})"
    hang = "import subprocess, sys, time; subprocess.Popen(['sleep', '97.531']); time.sleep(60)"
    report = (
        "import os, sys; open(sys.argv[1] + '/report.md', 'w').write('a report'); "
        "open(sys.argv[1] + '/big.bin', 'wb').write(bytes(5_000_000)); print(os.environ['SEEN'], sys.argv[2])"
    )
    stages = [
        stage("environment", write),
        stage("breaks", "import sys; print('it broke'); sys.exit(3)"),
        stage("hangs", hang, limit_s=1),
        {"name": "absent", "title": "Absent", "command": ["/no/such/program"], "limit_s": 5, "min_s": 0.1},
        stage("needs_gpu", "raise SystemExit('was run')", needs=["torch", "gpu"]),
        stage("good", report, needs=["torch"]),
        stage("none_collected", "raise SystemExit(5)", good_codes=[0, 5]),
        stage("too_long", "raise SystemExit('was run')", min_s=1000),
    ]
    began = time.monotonic()
    done, summary = run_script(folder, stages, "--device", "cpu", "--deadline", "25")
    assert done.returncode == 0, done.stderr
    return folder / "out", summary, time.monotonic() - began


def row_of(summary: Any, name: str) -> dict[str, Any]:
    (row,) = [row for row in summary["stages"] if row["name"] == name]
    return row


@pytest.mark.parametrize(
    ("name", "status", "why"),
    [
        ("environment", "done", ""),
        ("breaks", "failed", "it broke"),
        ("hangs", "timed out", "ended after 1 s"),
        ("absent", "failed", "/no/such/program cannot be started: No such file or directory"),
        ("needs_gpu", "left out", "needs gpu, and this machine has none that works"),
        ("good", "done", ""),
        ("none_collected", "done", ""),
    ],
)
def test_each_stage_has_its_status_and_none_stops_the_next(
    finished: tuple[Path, Any, float], name: str, status: str, why: str
) -> None:
    row = row_of(finished[1], name)
    assert (row["status"], row["why"]) == (status, why)


def test_a_stage_that_has_too_little_time_is_not_begun(finished: tuple[Path, Any, float]) -> None:
    row = row_of(finished[1], "too_long")
    assert row["status"] == "left out"
    assert "out of time" in row["why"]
    assert "needs 1000" in row["why"]


def test_what_a_stage_started_ends_with_it(finished: tuple[Path, Any, float]) -> None:
    assert finished
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert [line for line in lines if b"97.531" in line and line.startswith(b"sleep")] == []


def test_facts_reach_later_stages_and_the_summary(finished: tuple[Path, Any, float]) -> None:
    assert row_of(finished[1], "good")["log_tail"][0].split()[0] == "yes"
    assert finished[1]["facts"]["torch"] == "torch 9.9"
    assert finished[1]["facts"]["device"] == "cpu"


def test_there_are_three_files_and_the_archive_has_logs_and_nothing_large(finished: tuple[Path, Any, float]) -> None:
    out, summary, _ = finished
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "results.tar.gz", "summary.json"]
    with tarfile.open(out / "results.tar.gz") as archive:
        names = archive.getnames()
    assert {"good/report.md", "good/log.txt", "breaks/log.txt", "hangs/log.txt"} <= set(names)
    assert "good/big.bin" not in names
    assert summary["left_out_of_the_archive"] == ["good/big.bin (5,000,000 bytes)"]
    assert sum(path.stat().st_size for path in out.iterdir()) < 20_000_000


def test_the_readme_says_what_ran_what_did_not_and_why(finished: tuple[Path, Any, float]) -> None:
    text = (finished[0] / "README.md").read_text()
    assert "| breaks: Breaks | failed |" in text
    assert "needs gpu" in text
    assert "a report" in text
    assert "it broke" in text


def test_the_deadline_is_kept_and_later_stages_get_their_least(tmp_path: Path) -> None:
    greedy = stage("greedy", "import time; time.sleep(50)", limit_s=50, min_s=0.5)
    last = stage("last", "pass", limit_s=5, min_s=2.0)
    began = time.monotonic()
    _, summary = run_script(tmp_path, [greedy, last], "--deadline", "3.5")
    assert time.monotonic() - began < 8
    assert row_of(summary, "greedy")["status"] == "timed out"
    assert row_of(summary, "greedy")["limit_s"] <= 1.5
    assert row_of(summary, "last")["status"] == "done"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "usage: run.sh OUT"),
        (["out", "/no/such/wheels"], "is no folder"),
        (["out", "--only", "moon"], "no stage moon"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(arguments: list[str], says: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(GPU / "run.sh"), *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The files of benchmarks/gpu, which import each other by their bare names, as variables by file name."""
    monkeypatch.syspath_prepend(str(GPU))
    return lambda name: runpy.run_path(str(GPU / f"{name}.py"))


def test_the_stages_fit_the_time_and_their_programs_exist(modules: Any) -> None:
    stages = modules("stages")["list_stages"]("cuda", dry=False, wheels=None, install=True)
    assert sum(each.min_s for each in stages) < modules("run_stages")["DEADLINE_S"] < 540
    for each in stages:
        values = dict.fromkeys(("python", "base_python", "folder", "work", "seconds", "begin_seconds"), "x")
        command = [part.format(root=ROOT, **values) for part in each.command]
        scripts = [Path(part) for part in command if part.endswith(".py")]
        names = [command[at + 1] for at, part in enumerate(command) if part == "-m" and command[at + 1][0] == "b"]
        found = [ROOT.joinpath(*name.split(".")) for name in names]
        assert [path for path in scripts if not (ROOT / path).is_file()] == []
        assert [path for path in found if not (path.is_dir() or path.with_suffix(".py").is_file())] == []


def test_all_files_with_gpu_tests_are_run(modules: Any) -> None:
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark.gpu" in path.read_text(encoding="utf-8") and path != Path(__file__).resolve()
    }
    assert marked == set(modules("stages")["GPU_TESTS"])


def test_the_tree_is_known_with_its_rules_without_being_built(modules: Any, tmp_path: Path) -> None:
    environment = modules("make_environment")
    requirements, entry_points, scripts, version = environment["read_project"]()
    environment["write_metadata"](tmp_path, entry_points, version)
    environment["write_scripts"](tmp_path, sys.executable, scripts)
    code = "from importlib.metadata import entry_points as e; print(len(e(group='perfdoctor.analyzers')))"
    path = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONNOUSERSITE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(entry_points["perfdoctor.analyzers"])
    assert any(each.startswith("numpy") for each in requirements)
    assert os.access(tmp_path / "perfdoctor", os.X_OK)


@pytest.mark.parametrize(
    ("carried", "builder", "says", "is_there"),
    [
        (b"carried", "raise SystemExit('was called')", "carried with the wheels", b"carried"),
        (None, "open('perfdoctor/trace/scanner/libperfdoctor.so', 'w').write('built')", "built here", b"built"),
        (None, "raise SystemExit('no C compiler works here')", "none: no C compiler works here", None),
    ],
)
def test_the_c_library_is_carried_or_built_in_the_tree(
    modules: Any, tmp_path: Path, carried: bytes | None, builder: str, says: str, is_there: bytes | None
) -> None:
    root, wheels = tmp_path / "tree", tmp_path / "wheels"
    for folder in (root / "perfdoctor" / "trace" / "scanner", root / "build_backend", wheels):
        folder.mkdir(parents=True)
    (root / "build_backend" / "core_library.py").write_text(builder)
    if carried:
        (wheels / "libperfdoctor.so").write_bytes(carried)
    assert modules("make_environment")["provide_library"](root, sys.executable, wheels, 30) == says
    library = root / "perfdoctor" / "trace" / "scanner" / "libperfdoctor.so"
    assert (library.read_bytes() if library.exists() else None) == is_there


@pytest.mark.parametrize(
    ("name", "as_name", "usable", "why"),
    [
        ("launch-bound", "launch-bound", True, ""),
        ("healthy", "healthy", True, ""),
        ("healthy", "launch-bound", False, "shows None first, not PD104"),
        ("cpu-training", "dataloader-stall", False, "no kernel of a GPU in it"),
    ],
)
def test_a_recording_is_a_candidate_only_if_it_shows_what_the_sample_shows(
    modules: Any, tmp_path: Path, name: str, as_name: str, usable: bool, why: str
) -> None:
    folder = tmp_path / "samples" / "sample_traces"
    folder.mkdir(parents=True)
    target = folder / f"{as_name}.json.gz"
    target.write_bytes((ROOT / "sample_traces" / f"{name}.json.gz").read_bytes())
    into = tmp_path / "into"
    into.mkdir()
    (row,) = modules("take_samples")["take_samples"](tmp_path / "samples", into, take=True)
    assert (row["usable"], row["why"]) == (usable, why)
    assert (into / target.name).exists() == (into / "recorded.json").exists() == usable


def test_a_trimmed_trace_says_nothing_of_its_machine(modules: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    source.write_text(json.dumps({"host_name": "h", "trace_id": "t", "traceName": "/n", "traceEvents": [{"ph": "X"}]}))
    modules("trim_trace")["trim_trace"](source, target)
    modules("trim_trace")["trim_trace"](target, target)  # a compressed one too
    import gzip

    assert json.loads(gzip.decompress(target.read_bytes())) == {"traceEvents": [{"ph": "X"}]}


def test_turns_alternate_and_ratios_are_taken_round_by_round(modules: Any) -> None:
    pytest.importorskip("torch")
    experiments = modules("experiments")
    order: list[str] = []
    setting = experiments["Setting"]("cpu", True, 3, time.monotonic() + 60)
    variants = {name: lambda name=name: order.append(name) or float(len(order)) for name in "ab"}
    times = experiments["take_turns"](variants, setting)
    assert "".join(order) == "ba" + "ab" + "ba" + "ab"  # the first round only warms up
    assert times == {"a": [3.0, 6.0, 7.0], "b": [4.0, 5.0, 8.0]}
    assert experiments["ratios"](times, "b", "a") == [4 / 3, 5 / 6, 8 / 7]
    late = experiments["Setting"]("cpu", True, 3, time.monotonic() - 1)
    assert [len(each) for each in experiments["take_turns"](variants, late).values()] == [1, 1]
