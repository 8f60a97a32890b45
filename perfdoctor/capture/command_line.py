"""What the user typed behind `perfdoctor run`, as the command line to execute."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from perfdoctor.errors import CaptureError, UsageError

PYTHON = re.compile(r"python[0-9.]*$")


def parse_target(argv: Sequence[str]) -> list[str]:
    """The command line of `script.py args...`, `-m module args...` or `-- command args...`.

    Args:
        argv: Everything behind perfdoctor's options.

    Returns:
        A command line. Scripts and modules are run by the Python that runs perfdoctor.

    Raises:
        UsageError: There is nothing to run, or `argv` begins with an option that perfdoctor does not have.
        CaptureError: The script does not exist.
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
        raise UsageError(f"{first} is no option of run; the program's own options go behind the program.")
    if not os.path.exists(first):
        raise CaptureError(f"{first}: no such file; for a command that is no Python script, put -- before it.")
    return [sys.executable, *argv]


def is_python(word: str) -> bool:
    """Whether a word of a command line is a Python interpreter."""
    return PYTHON.match(Path(word).name) is not None


def script_name(command: Sequence[str]) -> str:
    """A short name of the program for the capture folder: the script, the module, or the command.

    Args:
        command: What `parse_target` returned.
    """
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
