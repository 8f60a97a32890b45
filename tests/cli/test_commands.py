from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import perfdoctor as package
from perfdoctor.cli import main as main_module
from perfdoctor.reporters.manual_page import reflow
from perfdoctor.rules.registry import load_analyzers
from perfdoctor.rules.reserved_rules import RESERVED_RULES


def test_the_version_is_the_packages(perfdoctor):
    assert perfdoctor("--version").out == f"perfdoctor {package.__version__}\n"


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(perfdoctor, argv):
    ended = perfdoctor(*argv)
    assert ended.code == 0
    for command in ("run", "analyze", "compare", "export", "rules", "explain", "check"):
        assert f"\n│ {command} " in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80


@pytest.mark.parametrize("command", ["run", "analyze", "compare", "export", "rules", "explain", "check"])
def test_every_command_has_its_own_help(perfdoctor, command):
    ended = perfdoctor(command, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert f"Usage: perfdoctor {command}" in ended.out


@pytest.mark.parametrize(
    "argv", [["frobnicate"], ["--frobnicate"], ["analyze"], ["explain"], ["run"], ["export", "x.json"]]
)
def test_wrong_usage_is_one_line_and_exit_code_2(perfdoctor, argv):
    ended = perfdoctor(*argv)
    assert ended.code == 2
    assert ended.line
    assert ended.out == ""


def test_a_misspelled_command_gets_the_nearest_one(perfdoctor):
    assert "No such command 'analyse'. Did you mean 'analyze'?" in perfdoctor("analyse", "x").line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["analyze", "x.json", "--fial-on", "high"], "No such option: --fial-on"),
        (["analyze", "x.json", "--fail-on", "bad"], "'--fail-on': 'bad' is not one of 'info', 'low', 'medium', 'high'"),
        (["analyze", "x.json", "-o"], "Option '-o' requires an argument; see perfdoctor analyze --help"),
        (["show", "kernels", "x.json", "--top", "-1"], "Invalid value for '--top'"),
    ],
)
def test_an_option_that_cannot_be_read_says_what_is_wrong_with_it(perfdoctor, argv, words):
    ended = perfdoctor(*argv)
    assert ended.code == 2
    assert words in ended.line


@pytest.mark.parametrize("command", list(main_module.COMMANDS))
def test_help_has_no_mark_of_a_parser(perfdoctor, command):
    text = perfdoctor(command, "--help").out
    assert "\b" not in text
    assert "\\b" not in text


def test_rules_lists_all_that_are_registered(perfdoctor):
    ended = perfdoctor("rules")
    assert ended.code == 0
    for analyzer in load_analyzers():
        assert f"{analyzer.rule}  {analyzer.name}" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80


@pytest.mark.parametrize("wanted", ["PD101", "pd101", "dataloader-stall"])
def test_explain_finds_a_rule_by_id_or_name(perfdoctor, wanted):
    ended = perfdoctor("explain", wanted)
    assert ended.code == 0
    assert ended.out.startswith("PD101 dataloader-stall\n")
    assert "How to fix:" in ended.out
    assert "--set PD101.min_share=" in ended.out


def test_explain_knows_the_engines_own_finding(perfdoctor):
    assert "A rule crashed" in perfdoctor("explain", "PD901").out


@pytest.mark.parametrize("rule", RESERVED_RULES)
def test_explain_says_why_there_is_no_rule_of_a_reserved_id(perfdoctor, rule):
    ended = perfdoctor("explain", rule.lower())
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"There is no rule {rule}, and no other takes its id.")
    assert RESERVED_RULES[rule] in " ".join(ended.out.split())
    assert rule not in perfdoctor("rules").out


@pytest.mark.parametrize(
    ("wanted", "near"), [("PD1O1", "PD101"), ("dataloder", "dataloader-stall"), ("xyzzy", "perfdoctor rules")]
)
def test_explain_names_what_is_near_an_unknown_rule(perfdoctor, wanted, near):
    ended = perfdoctor("explain", wanted)
    assert ended.code == 2
    assert near in ended.line


def test_a_manual_page_is_reflowed_without_joining_its_lists():
    text = "Title:\n    one two\n    three\n    - item\n    - other item\n\n    next\n"
    assert reflow(text, 18).splitlines() == [
        "Title:", "    one two three", "    - item", "    - other item", "", "    next",
    ]  # fmt: skip


def test_export_writes_an_annotated_trace(perfdoctor, stalled):
    ended = perfdoctor("export", stalled, "-o", "out.json.gz")
    assert ended.code == 0
    assert "wrote out.json.gz" in ended.err
    events = json.loads(gzip.decompress(Path("out.json.gz").read_bytes()))["traceEvents"]
    assert "1. PD101 dataloader-stall" in {e["args"]["name"] for e in events if e["name"] == "thread_name"}


@pytest.mark.parametrize(
    ("output", "words"), [("out.html", ".json.gz or .json"), ("missing/out.json.gz", "does not exist")]
)
def test_export_refuses_what_it_cannot_write(perfdoctor, stalled, output, words):
    ended = perfdoctor("export", stalled, "-o", output)
    assert ended.code == 2
    assert words in ended.line


def test_export_never_overwrites_its_source(perfdoctor, stalled):
    before = stalled.read_bytes()
    assert perfdoctor("export", stalled, "-o", stalled).code == 2
    assert stalled.read_bytes() == before


def test_a_fault_of_ours_is_exit_code_3_and_says_how_to_report_it(perfdoctor, monkeypatch, stalled):
    def explode(*_args: object, **_options: object) -> None:
        raise KeyError("a\x1b[31mb")

    monkeypatch.setattr("perfdoctor.api.analyze_traces", explode)
    ended = perfdoctor("analyze", stalled)
    assert ended.code == 3
    assert "internal error" in ended.line
    assert "KeyError" in ended.line
    assert "PERFDOCTOR_DEBUG=1 and report what it prints at https://" in ended.line
    assert "\x1b" not in ended.err
    monkeypatch.setenv("PERFDOCTOR_DEBUG", "1")
    assert "Traceback" in perfdoctor("analyze", stalled).err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (BrokenPipeError, 141)])
def test_an_interrupt_or_a_closed_pipe_is_quiet(perfdoctor, monkeypatch, stalled, error, code):
    def stop(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(main_module, "_discard_stdout", lambda: None)
    monkeypatch.setattr("perfdoctor.api.analyze_traces", stop)
    ended = perfdoctor("analyze", stalled)
    assert ended.code == code
    assert ended.err.strip() == ""


def python(*argv: object, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    return subprocess.run(
        [sys.executable, *map(str, argv)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
        **options,
    )


@pytest.mark.process
def test_python_dash_m_runs_the_same_command_line(stalled):
    done = python("-m", "perfdoctor", "analyze", "-q", stalled)
    assert (done.returncode, done.stderr) == (0, "")
    assert "PD101" in done.stdout
    assert python("-m", "perfdoctor", "analyze", "nothing.json").returncode == 2


@pytest.mark.process
@pytest.mark.skipif(os.name == "nt", reason="needs a shell with pipes")
def test_a_reader_that_leaves_early_is_no_error():
    script = f'"{sys.executable}" -m perfdoctor rules | head -n 0'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr == ""


@pytest.mark.process
def test_check_judges_each_part_of_the_machine(perfdoctor):
    ended = perfdoctor("check")
    assert ended.code == 0, ended.out
    recorder = ["profiler"] if find_spec("torch") else []
    for what in ("Python", "GPU driver", "NVML", "torch", *recorder, "reader"):
        assert f"\n{what} " in ended.out
    assert "broken" not in ended.out


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "state", "words"),
    [
        ("raise ImportError('libcudart.so is not there')", "broken", "libcudart.so"),
        ("import os; os._exit(9)", "broken", "code 9"),
    ],
)
def test_check_finds_a_torch_that_does_not_import(perfdoctor, monkeypatch, tmp_path, module, state, words):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = perfdoctor("check")
    assert ended.code == 1
    assert state in ended.out
    assert words in ended.out
    assert "torch" in ended.line
