"""The GitHub Action, its steps run as a runner would, and the examples of docs/ci.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from perfdoctor.cli.main import load_command
from perfdoctor.testing import TraceBuilder

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
_INPUT = re.compile(r"\$\{\{ inputs\.([\w-]+)")

pytestmark = [pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here"), pytest.mark.process]


class Step(NamedTuple):
    """What a step left: its exit code, its log, the summary of the job, and its outputs."""

    code: int
    log: str
    summary: str
    outputs: dict[str, str]


@pytest.fixture(scope="module")
def action() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8")))


@pytest.fixture
def stalled(tmp_path) -> Path:
    builder = TraceBuilder()
    for at in (0, 1000, 2000):
        builder.step(at, 1000).range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 600)
        builder.op("aten::mm", at + 605, 20).kernel("ampere_sgemm_128x64_tn", at + 620, 375, launch_us=at + 608)
    return builder.write(tmp_path / "stalled trace.json")


def run_step(action: dict[str, Any], number: int, folder: Path, **inputs: str) -> Step:
    """Runs a step in a folder, with the inputs in the environment as the action maps them."""
    step = action["runs"]["steps"][number]
    values = {name: str(declared.get("default", "")) for name, declared in action["inputs"].items()}
    values |= {name.replace("_", "-"): value for name, value in inputs.items()}
    mapped = {name: values[_INPUT.search(text)[1]] for name, text in step["env"].items()}
    files = {name: folder / f".{name}" for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    runner = {"RUNNER_TEMP": str(folder), "GITHUB_ACTION_PATH": str(ROOT), **{k: str(v) for k, v in files.items()}}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        # As GitHub runs bash.
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), **runner, **mapped},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    log = done.stdout + done.stderr
    return Step(done.returncode, log, files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8"), outputs)


def analyse(action: dict[str, Any], folder: Path, trace: Path | str, **inputs: str) -> Step:
    return run_step(action, 1, folder, traces=str(trace), install="false", **inputs)


def test_every_input_and_output_is_declared_and_used(action):
    steps = action["runs"]["steps"]
    used = {
        name for step in steps for text in (*step["env"].values(), step.get("if", "")) for name in _INPUT.findall(text)
    }
    assert used == set(action["inputs"])
    written = set(re.findall(r'echo "([\w-]+)=', steps[1]["run"]))
    assert written == set(action["outputs"])
    assert all(
        output["value"] == f"${{{{ steps.analyze.outputs.{name} }}}}" for name, output in action["outputs"].items()
    )


def test_inputs_reach_scripts_as_environment_only(action):
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"
        assert all(f"${name}" in step["run"] for name in step["env"])


def test_a_trace_without_a_gate_leaves_all_reports_and_passes(action, stalled, tmp_path):
    step = analyse(action, tmp_path, stalled)
    assert step.code == 0, step.log
    assert "::warning title=PD101 dataloader-stall::" in step.log
    assert step.summary.startswith("<!-- perfdoctor -->")
    assert step.outputs.pop("exit-code") == "0"
    assert set(step.outputs) == {"sarif", "pull-request", "junit", "json"}
    assert all((tmp_path / path).stat().st_size for path in step.outputs.values())


def test_the_text_for_people_holds_no_commands(action, stalled, tmp_path):
    log = analyse(action, tmp_path, stalled).log
    token = re.search(r"^::stop-commands::(perfdoctor-[0-9a-f]{32})$", log, re.M)[1]
    text = log.split(f"::stop-commands::{token}\n")[1].split(f"::{token}::\n")[0]
    assert text.startswith("Your step takes 1.00 ms")
    assert "::warning" not in text


def test_a_gate_fails_the_step_after_the_reports(action, stalled, tmp_path):
    step = analyse(action, tmp_path, stalled, fail_on="medium")
    assert step.code == 1
    assert "perfdoctor: --fail-on medium: " in step.log
    assert step.outputs["exit-code"] == "1"
    assert (tmp_path / step.outputs["sarif"]).is_file()
    assert "DataLoader" in step.summary


def test_a_baseline_lets_known_findings_pass(action, stalled, tmp_path):
    made = analyse(action, tmp_path, stalled, baseline="known findings.json", args="--update-baseline")
    assert made.code == 0, made.log
    assert analyse(action, tmp_path, stalled, baseline="known findings.json", fail_on="info").code == 0


def test_annotations_and_summary_can_be_left_out(action, stalled, tmp_path):
    step = analyse(action, tmp_path, stalled, annotations="false", summary="false")
    assert (step.code, step.summary) == (0, "")
    assert "::error" not in step.log


def test_several_traces_and_options_are_words_of_their_own(action, stalled, tmp_path):
    (tmp_path / "jobs").mkdir()
    for name in ("a b", "c"):
        shutil.copy(stalled, tmp_path / "jobs" / f"{name}.json")
    step = analyse(action, tmp_path, "\n  jobs/*.json \n\n", args="--select PD101  --device H100", output="out folder")
    assert step.code == 0, step.log
    assert sorted(path.name for path in (tmp_path / "out folder").glob("*.sarif")) == [
        "perfdoctor-a-b.sarif",
        "perfdoctor-c.sarif",
    ]
    assert step.summary.count("<!-- perfdoctor -->") == 2


@pytest.mark.parametrize("trace", ["missing.json", "$(touch pwned)", "; touch pwned", "`touch pwned`"])
def test_a_trace_that_cannot_be_read_is_exit_code_2_and_never_a_command(action, tmp_path, trace):
    step = analyse(action, tmp_path, trace)
    assert (step.code, step.outputs["exit-code"]) == (2, "2")
    assert "perfdoctor: " in step.log
    assert not (tmp_path / "pwned").exists()


def test_it_installs_itself_in_an_environment_of_its_own(action, tmp_path):
    # A Python that writes down what it is asked for, and makes an environment with another one of its kind.
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/bash\necho "$@" >> "$RUNNER_TEMP/asked"\n'
        'if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; fi\n'
    )
    python.chmod(0o755)
    step = run_step(action, 0, tmp_path, python=str(python))
    assert step.code == 0, step.log
    venv, install = (tmp_path / "asked").read_text().splitlines()
    assert venv == f"-m venv {tmp_path}/perfdoctor-venv"
    assert install == f"-m pip install --quiet {ROOT}"
    assert (ROOT / "pyproject.toml").is_file()


def _fences(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.S)


def test_workflows_of_the_guide_use_the_inputs_and_outputs_that_there_are(action):
    workflow, gitlab = (yaml.safe_load(text) for text in _fences("yaml"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    (own,) = (step for step in steps if step.get("uses", "").startswith("perfdoctor/perfdoctor@"))
    assert set(own["with"]) <= set(action["inputs"])
    assert set(re.findall(r"perfdoctor\.outputs\.([\w-]+)", GUIDE)) <= set(action["outputs"])
    assert gitlab["performance"]["artifacts"]["reports"]["junit"] in gitlab["performance"]["script"][0]


def test_the_table_of_the_guide_names_every_input(action):
    rows = GUIDE.partition("| input | what |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z-]+)`", " ".join(row.split("|")[1] for row in rows.splitlines()[2:])))
    assert named == set(action["inputs"])


def test_commands_of_the_guide_exist():
    commands = re.findall(r"(?m)(?:^    |run: |- |sh ')perfdoctor (\w+)([^#\n']*)", GUIDE)
    assert len(commands) >= 8
    for name, rest in commands:
        known = {option for parameter in load_command(name).params for option in parameter.opts}
        before_program = re.split(r"\S+\.py", rest)[0]
        assert set(re.findall(r"(?<!\S)--?[a-z-]+", before_program)) <= known, rest
