"""The patch: a diff that `git apply` takes, with what was measured in front of it; how it is applied, and undone."""

from __future__ import annotations

import difflib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perfdoctor.errors import InputError, UsageError
from perfdoctor.fixes.choose_edits import apply_edits
from perfdoctor.fixes.project import find_root
from perfdoctor.fixes.source_edit import SourceEdit

PATCH_FILE = "perfdoctor.patch"
_NO_NEWLINE = b"\\ No newline at end of file\n"


def make_patch(edits: Sequence[SourceEdit], message: str) -> bytes:
    """The patch of some edits, each file in its own encoding, with paths from the repository's folder.

    Args:
        edits: Edits of it that fit one another.
        message: What stands in front of the diff; git passes over it.
    """
    before = {each.source.name: each.source.data for each in edits}
    lines = [f"{line}\n".encode() for line in message.splitlines()]
    for name, after in sorted(apply_edits(edits).items()):
        lines.append(f"\ndiff --git a/{name} b/{name}\n".encode())
        lines += difflib.diff_bytes(
            difflib.unified_diff,
            list(_lines_of(before[name])),
            list(_lines_of(after)),
            f"a/{name}".encode(),
            f"b/{name}".encode(),
        )
    return b"".join(lines)


def check_clean(root: Path) -> None:
    """Check that the files of a git tree are as they were committed.

    Raises:
        UsageError: There is no git tree, or it has changes that are not committed.
    """
    ended = run_git(_repository_of(root), "status", "--porcelain", "--untracked-files=no")
    changed = ended.stdout.decode(errors="replace").strip()
    if changed:
        first = changed.splitlines()[0].split(maxsplit=1)[-1]
        raise UsageError(f"{first} has changes that are not committed: commit or stash them, then --apply.")


def apply_patch(patch: Path, root: Path) -> list[str]:
    """Apply a patch to the files of a project whose git tree is clean; returns the files that it changed.

    Raises:
        UsageError: There is no git tree, or it has changes that are not committed.
        InputError: The patch does not fit any more.
    """
    check_clean(root)
    return _apply(patch, _repository_of(root))


def undo_patch(patch: Path, root: Path) -> list[str]:
    """Take a patch back that was applied; returns the files that it changed.

    Raises:
        UsageError: There is no git tree.
        InputError: The files are not as the patch has left them.
    """
    return _apply(patch, _repository_of(root), "--reverse")


def _apply(patch: Path, root: Path, *options: str) -> list[str]:
    if not patch.is_file():
        raise InputError(f"{patch}: no such file; perfdoctor fix writes it.")
    names = run_git(root, "apply", "--numstat", *options, str(patch.absolute()))
    ended = names if names.returncode else run_git(root, "apply", *options, str(patch.absolute()))
    if ended.returncode:
        why = explain_git(ended)
        raise InputError(f"{patch} does not fit the files any more ({why}): make it again with perfdoctor fix.")
    return [line.split("\t", 2)[-1] for line in names.stdout.decode(errors="replace").splitlines()]


def _repository_of(root: Path) -> Path:
    folder = find_root(root)
    if not (folder / ".git").exists():
        raise UsageError(f"{root} is in no git repository: apply the patch by hand, with patch -p1.")
    return folder


def run_git(
    root: Path, *arguments: str, given: bytes | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """What git says in a folder, of what is given to it.

    Raises:
        InputError: It cannot be started.
    """
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=False, input=given, env=environment)
    except OSError as error:
        raise InputError(
            f"git cannot be started ({error.strerror}): apply the patch by hand, with patch -p1."
        ) from None


def explain_git(ended: subprocess.CompletedProcess[bytes]) -> str:
    """Why git has failed, in the first line that it says."""
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    return lines[0] if lines else "git failed"


def _lines_of(data: bytes) -> Iterator[bytes]:
    """The lines of a file as a diff has them: only a line feed ends one, and a last one without it says so."""
    *whole, last = data.split(b"\n")
    yield from (line + b"\n" for line in whole)
    if last:
        yield last + b"\n" + _NO_NEWLINE
