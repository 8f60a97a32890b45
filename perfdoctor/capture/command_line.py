"""What the user typed behind `perfdoctor run`, as the command line to execute."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from perfdoctor.errors import CaptureError, UsageError

PYTHON = re.compile(r"python[0-9.]*$")
SHELL_SUFFIXES = (".sh", ".bash", ".zsh", ".slurm", ".sbatch")


def parse_target(argv: Sequence[str], command: str = "run") -> list[str]:
    """The command line of `script.py args...`, `-m module args...` or `-- command args...`.

    Args:
        argv: Everything behind perfdoctor's options.
        command: The command of perfdoctor, for what its messages suggest to type.

    Returns:
        A command line. Scripts and modules are run by the Python that runs perfdoctor.

    Raises:
        UsageError: There is nothing to run, or `argv` begins with an option that perfdoctor does not have.
        CaptureError: The script does not exist, or is not a Python script.
    """
    if not argv:
        raise UsageError("Nothing to run: give a script, -m module, or -- command.")
    first, *rest = argv
    if first == "--":
        if not rest:
            raise UsageError("Nothing to run behind --: give a command, such as -- torchrun train.py.")
        return rest
    if first == "-m":
        if not rest:
            raise UsageError("-m needs the name of a module, such as -m package.train.")
        return [sys.executable, "-m", *rest]
    if first.startswith("-"):
        raise UsageError(f"{first} is not an option of {command}; the program's own options follow the program.")
    check_script(first, rest, command)
    return [sys.executable, *argv]


def check_script(script: str, arguments: Sequence[str], command: str = "run") -> None:
    """Check before anything runs that Python can run a script; what it cannot run gets a sentence on what to do.

    Args:
        script: What stands where the script is expected.
        arguments: What follows it.
        command: The command of perfdoctor.

    Raises:
        CaptureError: There is no such file, or it is not a Python script.
    """
    typed = f"perfdoctor {command} --"
    path = Path(script)
    if not path.exists():
        if shutil.which(script) and os.sep not in script:
            raise CaptureError(
                f"{script} is a command, not a Python script: {typed} {shlex.join([script, *arguments])}"
            )
        near = difflib.get_close_matches(path.name, list_scripts(path.parent), n=1)
        hint = f"did you mean {path.with_name(near[0])}?" if near else "for a command, put -- before it."
        raise CaptureError(f"{script}: no such file; {hint}")
    if path.is_dir():
        if not (path / "__main__.py").exists():
            raise CaptureError(f"{script} is a folder without __main__.py: name the script in it.")
        return
    if path.suffix == ".ipynb":
        raise CaptureError(
            f"{script} is a notebook: record in one of its cells, with perfdoctor.profile() as session, and with "
            "session.step() around each step; then session.report() shows the report."
        )
    try:
        with path.open("rb") as file:
            first_line = file.readline(256)
    except OSError as error:
        raise CaptureError(f"{script} cannot be read ({error.strerror}): check its permissions.") from None
    # A .py may name a runner of scripts that is not called python.
    starts_other = path.suffix != ".py" and first_line.startswith(b"#!") and b"python" not in first_line
    if path.suffix in SHELL_SUFFIXES or starts_other:
        runner = "" if os.access(path, os.X_OK) and first_line.startswith(b"#!") else "bash "
        path_typed = script if os.sep in script or runner else f"./{script}"
        line = shlex.join([path_typed, *arguments])
        raise CaptureError(f"{script} is not a Python script: {typed} {runner}{line}")


def list_scripts(folder: Path) -> list[str]:
    """The names of the Python scripts in a folder."""
    try:
        return [path.name for path in folder.iterdir() if path.suffix == ".py"]
    except OSError:
        return []


def is_python(word: str) -> bool:
    """Whether a word of a command line is a Python interpreter."""
    return PYTHON.match(Path(word).name) is not None


def script_name(command: Sequence[str]) -> str:
    """A short name of the program for the capture folder: the script, the module, or the command."""
    words = list(command)
    if is_python(words[0]):
        words = words[1:]
        if "-m" in words[:-1]:
            return to_file_name(words[words.index("-m") + 1].rpartition(".")[2])
    scripts = [word for word in words if word.endswith(".py")]
    return to_file_name(Path(scripts[0]).stem if scripts else Path(words[0]).name if words else "python")


def to_file_name(text: str) -> str:
    """The text with every character replaced that is awkward in a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "program"


def find_isolating_flag(command: Sequence[str]) -> str | None:
    """The interpreter option that stops Python from loading a sitecustomize (-I, -E, -S), or None."""
    for index, word in enumerate(command):
        if not is_python(word):
            continue
        for option in command[index + 1 :]:
            if not option.startswith("-") or option in ("-m", "-c"):
                break
            for letter in "IES":
                if re.fullmatch(rf"-[A-Za-z]*{letter}[A-Za-z]*", option) and not option.startswith(("-X", "-W")):
                    return f"-{letter}"
    return None
