"""`perfdoctor run`: its gate, its rules, and what it says of programs that it cannot run."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from perfdoctor.cli.capture_report import announce_long_analysis

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

torch = pytest.importorskip("torch")


def rules_in(path: str) -> set[str]:
    return {finding["rule"] for finding in json.loads(Path(path).read_bytes())["findings"]}


def test_a_gate_that_fails_ends_a_good_program_in_1_and_leaves_a_failed_one_its_code(perfdoctor, training, short):
    # No finding is more than medium where other tests have the cores.
    gated = perfdoctor("run", *short, "--out", "a", "--fail-on", "medium", training)
    assert gated.code == 1
    assert "--fail-on medium: " in gated.err
    assert "(PD101" in gated.err
    assert "PD101" in rules_in("a/report.json")
    assert perfdoctor("run", *short, "--out", "b", "--fail-on", "high", training, "5").code == 5


def test_a_gate_passes_what_was_ignored_and_rules_are_chosen_as_in_analyze(perfdoctor, training, short):
    options = ["--select", "PD1,PD003", "--ignore", "PD101", "--set", "PD104.min_share=0.99", "--fail-on", "high"]
    ended = perfdoctor("run", *short, "--out", "a", *options, training)
    assert ended.code == 0, ended.err
    assert "PD101" not in rules_in("a/report.json")
    outcomes = json.loads(Path("a/report.json").read_bytes())["outcomes"]
    assert {outcome["rule"][:3] for outcome in outcomes} <= {"PD1", "PD0"}


def test_a_baseline_of_one_run_lets_the_next_one_pass(perfdoctor, training, short):
    select = ["--select", "PD101", "--baseline", "known.json"]
    made = perfdoctor("run", *short, "--out", "a", *select, "--update-baseline", "--output-format", "github", training)
    assert made.code == 0, made.err
    assert "trained\n::notice title=perfdoctor::" in made.out
    # On a busy machine it is a warning: then nothing is sure enough for an error.
    assert re.search(r"\n::(error|warning) file=training.py,line=15,title=PD101 dataloader-stall::", made.out)
    assert made.err.splitlines()[-1] == "wrote known.json: 1 finding accepted"
    baseline = json.loads(Path("known.json").read_bytes())
    (known,) = baseline["findings"]
    line = "for x, y in DataLoader(Slow(), batch_size=2):"
    assert (known["rule"], known["file"], known["source"]) == ("PD101", "training.py", line)
    known["cost_ns"] *= 5  # whatever else this machine does meanwhile
    Path("known.json").write_text(json.dumps(baseline))
    again = perfdoctor("run", *short, "--out", "b", *select, "--fail-on", "low", "--output-format", "github", training)
    assert again.code == 0, again.err
    assert "::notice title=perfdoctor::" in again.out
    assert not re.search(r"\n::(error|warning) file=", again.out)


OTHER_BASELINE = """\
{"schema": "perfdoctor.baseline/1", "perfdoctor": "0.1.0", "program": "other.py", "device": null, "phase": "training",
 "step": {"ns": 1000, "count": 8, "variation": 0.1}, "files": [], "findings": []}
"""


def test_a_baseline_of_another_program_costs_the_exit_code_and_not_the_report(perfdoctor, training, short):
    Path("known.json").write_text(OTHER_BASELINE)
    options = ["--force", "--out", "a", "--select", "PD101", "--baseline", "known.json"]
    ended = perfdoctor("run", *short, *options, "-o", "r.xml", training)
    assert ended.code == 2
    assert ended.err.splitlines()[-1].startswith(
        "perfdoctor: known.json is a baseline of other.py, and the recording is of training.py: give it"
    )
    assert "PD101" in ended.out
    assert Path("r.xml").is_file()
    assert perfdoctor("run", *short, *options, "--update-baseline", training, "5").code == 5
    assert Path("known.json").read_text() == OTHER_BASELINE


def test_a_gate_without_a_report_could_not_be_judged(perfdoctor, tmp_path):
    (tmp_path / "nothing.py").write_text("print('no training')\n")
    ended = perfdoctor("run", "--fail-on", "low", "nothing.py")
    assert (ended.code, ended.out) == (1, "no training\n")
    assert ended.err.splitlines()[-1] == (
        "perfdoctor: --fail-on low could not be judged: there is no report on this run"
    )
    assert perfdoctor("run", "nothing.py").code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--select", "PD999"], "no rule is called 'PD999'"),
        (["--ignore", "nonsense"], "no rule is called 'NONSENSE'"),
        (["--set", "PD101.min_share"], "must be RULE.name=number"),
        (["--set", "PD101.no_such=1"], "no_such"),
        (["--fail-on", "enormous"], "enormous"),
        (["--fail-on", "high", "--no-report"], "--fail-on needs a report, and --no-report leaves it out"),
        (["-o", "r.md", "--no-report"], "-o needs a report"),
        (["--json", "--nvtx-only"], "--json needs a report, and --nvtx-only"),
        (["--output-format", "github", "--no-report"], "--output-format needs a report, and --no-report"),
        (["--json", "--output-format", "pr"], "--json and --output-format pr exclude each other"),
        (["--baseline", "missing.json"], "missing.json does not exist: make it with --update-baseline"),
        (["--baseline", "no/b.json", "--update-baseline"], "its folder does not exist"),
        (["--update-baseline"], "--update-baseline needs the file to write"),
    ],
)
def test_wrong_options_are_refused_before_the_program_runs(perfdoctor, tmp_path, options, words):
    (tmp_path / "nothing.py").write_text("print('no training')\n")
    ended = perfdoctor("run", *options, "nothing.py")
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.line


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["trian.py"], "trian.py: no such file; did you mean train.py?"),
        (["quite_another.py"], "quite_another.py: no such file; for a command, put -- before it."),
        (["sh", "-c", "true"], "sh is a command, not a Python script: perfdoctor run -- sh -c true"),
        (["explore.ipynb"], "explore.ipynb is a notebook: record in one of its cells, with perfdoctor.profile()"),
        (["launch.sh", "8"], "launch.sh is not a Python script: perfdoctor run -- bash launch.sh 8"),
        (["start"], "start is not a Python script: perfdoctor run -- ./start"),
        (["sub"], "sub is a folder without __main__.py"),
        (["--", "./launch.sh", "8"], "it is not executable; perfdoctor run -- bash ./launch.sh 8, or chmod +x"),
        (["--", "./train.py"], "it is not executable; perfdoctor run ./train.py, or chmod +x ./train.py"),
        (["--", "no-such-command"], "no-such-command cannot be started (No such file or directory)"),
    ],
)
def test_what_is_no_python_script_gets_one_sentence(perfdoctor, tmp_path, argv, words):
    write(tmp_path / "train.py", "print(1)\n")
    write(tmp_path / "explore.ipynb", "{}\n")
    write(tmp_path / "launch.sh", "python train.py\n")
    write(tmp_path / "start", "#!/bin/sh\npython train.py\n", 0o755)
    (tmp_path / "sub").mkdir()
    ended = perfdoctor("run", *argv)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.line
    assert not list(tmp_path.glob("perfdoctor-*"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", "print('ran')\n"),
        ("shebang", "#!/usr/bin/env python3\nprint('ran')\n"),
        ("package/__main__.py", "print('ran')\n"),
    ],
)
def test_python_scripts_need_neither_suffix_nor_permission_to_execute(perfdoctor, tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    ended = perfdoctor("run", str(path.parent if path.name == "__main__.py" else path))
    assert (ended.code, ended.out) == (0, "ran\n")


def test_without_a_report_the_command_for_it_is_named(perfdoctor, training, short):
    ended = perfdoctor("run", *short, "--out", "capture", "--no-report", training)
    assert "perfdoctor: recorded in capture; for the report: perfdoctor analyze capture\n" in ended.err
    assert perfdoctor("analyze", "-q", "capture").code == 0


def test_a_long_analysis_is_announced_and_timed(capsys, tmp_path):
    with announce_long_analysis(tmp_path, enabled=True, after_s=0.02):
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("perfdoctor: still analysing the recording (0 MB); it stays in ")
    assert lines[1].startswith("perfdoctor: the analysis took 0 s; --no-report leaves it out")


def test_a_short_analysis_says_nothing(capsys, tmp_path):
    with announce_long_analysis(tmp_path, enabled=True):
        pass
    assert capsys.readouterr().err == ""


def test_help_lists_each_option_under_a_title() -> None:
    from perfdoctor.cli.run import run

    titles = {option.name: option.rich_help_panel for option in run.params if hasattr(option, "rich_help_panel")}
    assert titles.pop("target") is None  # arguments have a list of their own
    assert len(titles) > 25
    assert None not in titles.values()
