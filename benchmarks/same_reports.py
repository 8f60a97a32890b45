"""Compares what two states of the code say, to the byte.

::

    python -m benchmarks.programs --keep .recordings   # once: captures to analyse; the clinic has --keep, too
    python -m benchmarks.same_reports save before      # in the old state
    python -m benchmarks.same_reports compare before   # in the new one; exit code 1 when a text differs

Each trace, each capture below .recordings, each snapshot of memory and each dump of a flight recorder is analysed by
the command line, as users do: JSON report, text (short and long), Markdown, annotated trace, and for captures the
answers of the field guide. Pairs of recordings are compared, and expected on another device; each command prints its
help, each rule its page. Only the seconds that rules took are left out.

Programs that are started (`run`, `try`, `fix`, `watch`) take other times in each run: of their texts the words are
compared, without figures and bars. What the machine does meanwhile still shows there (a low finding more, a warning of
noise): a person reads what differs.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# The traces of the repository, and the shared traces where they are beside it.
FOLDERS = ("sample_traces", "../shared/traces", "../shared/recordings", "../shared/nsight", "../shared/pairs")
SUFFIXES = (".json", ".json.gz", ".sqlite")
CAPTURES = REPOSITORY / ".recordings"
"""Captures of programs, such as benchmarks.programs and benchmarks.clinic keep them; git leaves them alone."""
_PROGRAM = "examples/slow_dataset.py"
_MAX_LINES = 20
# Seconds differ from run to run: in JSON, of one job or in lines of several, and in the terminal's list of rules.
_SECONDS = re.compile(r'("seconds": ?|^ +[A-Z]+[0-9]{3} +ran +)[0-9.e-]+', re.MULTILINE)
# What differs between runs of one program: figures with their units, how much steps vary, bars.
_FIGURES = re.compile(r"(, varying by )?[\d.,:+-]*\d[\d.,:]*( (ns|us|ms|s|kB|MB|GB)\b)?%?|[▁-▟─]+")


@dataclass(frozen=True)
class Case:
    """A command whose output is kept.

    Attributes:
        name: The folder of its texts.
        arguments: Of perfdoctor.
        suffixes: Of the files that it writes with `-o`, besides what it prints.
        masked: Whether figures are masked, as the command starts a program.
    """

    name: str
    arguments: tuple[str, ...]
    suffixes: tuple[str, ...] = ()
    masked: bool = False


def list_cases() -> list[Case]:
    """Every case, those that start a program last."""
    return [*_traces(), *_captures(), *_memory_and_hangs(), *_pairs(), *_pages(), *_programs()]


def find_targets(folders: Sequence[str] = FOLDERS) -> list[str]:
    """Every trace, and every folder with several traces, relative to the repository."""
    found: set[str] = set()
    for folder in folders:
        for path in (REPOSITORY / folder).rglob("*"):
            if path.name.endswith(SUFFIXES) and "expected" not in path.parts:
                found.add(os.path.relpath(path, REPOSITORY))
                traces = [other for other in path.parent.iterdir() if other.name.endswith(SUFFIXES)]
                if len(traces) > 1 and path.parent.parent.name != "shared" and path.parent.name != "sample_traces":
                    found.add(os.path.relpath(path.parent, REPOSITORY))
    return sorted(found)


def _traces() -> Iterator[Case]:
    for target in find_targets():
        # Only a single Chrome trace can be annotated: no Nsight export, and no folder of ranks.
        annotated = ("json.gz",) if target.endswith((".json", ".gz")) else ()
        yield Case(_plain(target), ("analyze", target, "-v"), ("json", "md", "txt", *annotated))


def _captures() -> Iterator[Case]:
    for folder in sorted(rank.parent for rank in CAPTURES.rglob("rank0")):
        target = os.path.relpath(folder, REPOSITORY)
        name = "+".join(folder.relative_to(CAPTURES).parts)
        yield Case(f"capture+{name}", ("analyze", target, "-v"), ("json", "md", "txt"))
        yield Case(f"guide+{name}", ("guide", target))


def _memory_and_hangs() -> Iterator[Case]:
    shared = REPOSITORY / "../shared"
    for path in sorted([*shared.glob("memory/*.pickle"), *shared.glob("flight_recorder/*/")]):
        target = os.path.relpath(path, REPOSITORY)
        yield Case(_plain(target), ("analyze", target, "-v"), ("json", "md", "txt"))


def _pairs() -> Iterator[Case]:
    for folder in sorted((REPOSITORY / "../shared/pairs").glob("*/")):
        before, after = (os.path.relpath(next(folder.glob(f"{side}.*")), REPOSITORY) for side in ("before", "after"))
        yield Case(f"compare+{folder.name}", ("compare", before, after, "-v"), ("json", "md", "txt"))
        yield Case(f"expect+{folder.name}", ("expect", before))
        yield Case(f"expect+{folder.name}+B200", ("expect", before, "--on", "B200", "--json"))


def _pages() -> Iterator[Case]:
    yield Case("help", ("--help",))
    yield Case("rules", ("rules",))
    for command in sorted(set(re.findall(r"^│ ([a-z-]+) ", _run("--help"), re.MULTILINE))):
        yield Case(f"help+{command}", (command, "--help"))
    for rule in sorted(set(re.findall(r"\bPD\d{3}\b", _run("rules")))):
        yield Case(f"explain+{rule}", ("explain", rule))


def _programs() -> Iterator[Case]:
    """A program whose step is its data set's, so that each run says the same; `watch` looks at a capture of it."""
    yield Case("run", ("run", "--force", "--out", "{out}/capture", _PROGRAM), masked=True)
    yield Case("watch", ("watch", "{out}/../run/capture", "--once"), masked=True)
    yield Case("try+list", ("try", "--list", _PROGRAM))
    short = ("--pairs", "3", "--wait", "0", "--skip", "5", "--base", "25", "--out", "{out}/kept", _PROGRAM)
    yield Case("try", ("try", "--no-diagnose", "--only", "workers=1", *short), masked=True)
    yield Case("fix", ("fix", *short), masked=True)


def save_case(case: Case, folder: Path) -> None:
    """Write what a command prints, and its files, to a folder of its own."""
    out = folder / case.name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    files = [out / f"report.{suffix}" for suffix in case.suffixes]
    arguments = (argument.format(out=out) for argument in case.arguments)
    text = _run(*arguments, *(word for file in files for word in ("-o", str(file)))).replace(str(folder), "")
    (out / "verbose.txt").write_text(mask_figures(text) if case.masked else text, encoding="utf-8")
    for file in out.glob("*.*"):
        if file.name.endswith(".gz"):
            digest = hashlib.sha256(gzip.decompress(file.read_bytes())).hexdigest()
            (out / "annotated.sha256").write_text(digest + "\n", encoding="utf-8")
            file.unlink()
        else:
            text = remove_seconds(file.read_text(encoding="utf-8"))
            file.write_text(text.replace(str(folder), ""), encoding="utf-8")


def remove_seconds(text: str) -> str:
    """The text of a report without the seconds that rules took."""
    return _SECONDS.sub(r"\g<1>0", text)


def mask_figures(text: str) -> str:
    """The words of a text, a line each, as lines break elsewhere when figures are longer; runs of figures are one."""
    words = _FIGURES.sub(" # ", " ".join(text.split())).split()
    return (
        "\n".join(word for word, before in zip(words, ["", *words], strict=False) if word != "#" or before != "#")
        + "\n"
    )


def _plain(target: str) -> str:
    return target.replace("../", "").replace("/", "+")


def _run(*arguments: str) -> str:
    """The standard output of perfdoctor; if it fails, with the exit code and standard error."""
    environment = os.environ | {"COLUMNS": "100", "PERFDOCTOR_CALIBRATION_DIR": os.devnull}
    command = [sys.executable, "-m", "perfdoctor", *arguments]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return done.stdout if done.returncode == 0 else f"{done.stdout}\nexit code {done.returncode}\n{done.stderr}"


def compare_folders(before: Path, after: Path) -> Iterator[str]:
    """Yield a diff, cut to some lines, for each file that differs between two folders of texts."""
    names = sorted({path.relative_to(folder) for folder in (before, after) for path in folder.glob("*/*.*")})
    for name in names:
        old, new = (_lines(folder / name) for folder in (before, after))
        if old != new:
            diff = list(difflib.unified_diff(old, new, f"before/{name}", f"after/{name}", n=0, lineterm=""))
            yield "\n".join([*diff[:_MAX_LINES], *(["..."] if len(diff) > _MAX_LINES else [])])


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else ["(there is none)"]


def save_all(folder: Path, cases: Sequence[Case], jobs: int) -> None:
    """Write the texts of all cases; programs are started one at a time, after everything else."""
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(partial(save_case, folder=folder), [case for case in cases if not case.masked]))
    for case in (case for case in cases if case.masked):
        save_case(case, folder)


def main() -> int:
    """Save texts or compare them with saved ones; returns 1 when one differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_reports", description=__doc__)
    parser.add_argument("action", choices=("save", "compare"))
    parser.add_argument("folder", type=Path, help="the texts of the old state")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="only cases with this in their name, such as a file's or explain+")
    options = parser.parse_args()
    options.folder = options.folder.resolve()  # as outputs name it
    cases = [case for case in list_cases() if options.only in case.name]
    if options.action == "save":
        save_all(options.folder, cases, options.jobs)
        print(f"{len(cases)} cases saved in {options.folder}")
        return 0
    after = options.folder.with_name(options.folder.name + "-now")
    save_all(after, cases, options.jobs)
    diffs = [text for text in compare_folders(options.folder, after) if options.only in text.splitlines()[0]]
    print(*diffs, sep="\n\n")
    print(f"{len(cases)} cases: {len(diffs)} texts differ")
    return 1 if diffs else 0


if __name__ == "__main__":
    sys.exit(main())
