"""Completion in the shells themselves: what they offer when Tab is pressed, and what that may load."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfdoctor.cli.main import COMMANDS
from perfdoctor.trials.load_changes import load_changes

pytestmark = pytest.mark.process

# The completion function is called as bash calls it, which looks for files where that answers nothing (-o default).
BASH = """
source <(perfdoctor completion bash)
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_perfdoctor_completion perfdoctor
if [[ ${#COMPREPLY[@]} = 0 && $(complete -p perfdoctor) = *" -o default "* ]]; then COMPREPLY=("files"); fi
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { }
_files() { print files }
_arguments() { grep -oE '[( ]"[^"]+"' <<< "$1" | tr -d '( "' }
source <(perfdoctor completion zsh)
words=("$@") CURRENT=$#
_perfdoctor_completion
"""
FISH = """
perfdoctor completion fish | source
complete -C (string join ' ' -- $argv)
"""
CASES = [
    (["exp"], {"expect", "export", "explain"}),
    (["dem"], {"demo"}),
    (["explain", "pd10"], {f"pd10{number}" for number in range(1, 10)}),
    (["analyze", "--select", "PD20"], {f"PD20{number}" for number in (1, 2, 3, 4, 5, 6, 9)}),
    (["analyze", "--ignore", "PD4"], {"PD4", *(f"PD4{number:02}" for number in (1, 2, 4, 5, 6, 8, 9, 10))}),
    (["analyze", "trace.json", "--fail-on", ""], {"info", "low", "medium", "high"}),
    (["analyze", "--sel"], {"--select"}),
    (["try", "--only", "pin"], {"pin-memory"}),
    (["show", "ker"], {"kernels"}),
    (["gui"], {"guide"}),
    (["guide", "trace.json", "--only", "a"], {"applies"}),
]
PATHS = [
    ["analyze", "rep"],
    ["run", "rep"],
    ["export", "rep"],
    ["compare", "before", "rep"],
    ["analyze", "-o", "rep"],
    ["show", "ops", "rep"],
    ["guide", "rep"],
]
# What stands behind a program is the program's: its options are not ours.
PATHS += [["run", "train.py", "--rep"], ["try", "train.py", "rep"]]


def complete(shell: str, words: Sequence[str], cwd: Path) -> set[str]:
    """What a shell offers for the last word of a line; for paths "files", where the shell looks for them itself."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    # As the user's shell finds it: by its name, before a completion of another environment.
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"HOME": str(cwd), "XDG_CONFIG_HOME": str(cwd), "XDG_DATA_HOME": str(cwd)}
    if shell == "bash":
        command = [path, "--norc", "-c", BASH, "bash", "perfdoctor", *words]
    elif shell == "zsh":
        command = [path, "-f", "-c", ZSH, "zsh", "perfdoctor", *words]
    else:
        command = [path, "--no-config", "-c", FISH, "perfdoctor", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=60)
    assert done.stderr == ""
    return {line.partition("\t")[0] for line in done.stdout.splitlines() if line}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("words", "offered"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_a_shell_offers_what_can_follow(shell: str, words: list[str], offered: set[str], tmp_path: Path) -> None:
    assert complete(shell, words, tmp_path) == offered


@pytest.mark.parametrize("words", PATHS, ids=" ".join)
def test_paths_are_left_to_the_shell(words: list[str], tmp_path: Path) -> None:
    assert complete("bash", words, tmp_path) == {"files"}


def test_zsh_finds_the_function_in_a_file_of_its_path(perfdoctor) -> None:
    assert perfdoctor("completion", "zsh").out.startswith("#compdef perfdoctor\n")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_find_the_file(shell: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").touch()
    (tmp_path / "other.json").touch()
    assert complete(shell, ["analyze", "rep"], tmp_path) == {"files" if shell == "zsh" else "report.json"}


def test_a_rule_behind_a_comma_keeps_those_before_it(tmp_path: Path) -> None:
    assert complete("bash", ["analyze", "--select", "PD4,pd20"], tmp_path) == {
        f"PD4,pd20{number}" for number in (1, 2, 3, 4, 5, 6, 9)
    }


@pytest.mark.parametrize("words", [["frobnicate", "x"], ["explain", "XX"]])
def test_what_nobody_knows_is_no_error_in_the_middle_of_a_line(words: list[str], tmp_path: Path) -> None:
    assert complete("bash", words, tmp_path) <= {*COMMANDS, "files"}


def test_every_change_is_offered(tmp_path: Path) -> None:
    assert complete("bash", ["try", "--only", ""], tmp_path) == {each.name for each in load_changes()[0]}


@pytest.mark.parametrize("line", ["perfdoctor ", "perfdoctor explain PD", "perfdoctor analyze --select PD"])
def test_completing_loads_nothing_heavy(line: str) -> None:
    code = (
        "import sys\nfrom perfdoctor.cli.main import main\nsys.argv = ['perfdoctor']\nmain()\n"
        "sys.stderr.write(' '.join(sys.modules))"
    )
    environment = os.environ | {
        "_PERFDOCTOR_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout
    assert not set(done.stderr.split()) & {"torch", "numba", "numpy", "dask", "rich", "orjson", "perfdoctor.rules"}
