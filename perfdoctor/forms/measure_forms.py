"""Measure what a capture recorded beside its other forms, and write what came of it into facts.json."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from perfdoctor.errors import InputError
from perfdoctor.forms.match_forms import Match, find_matches
from perfdoctor.forms.name_operands import Written, fill_in, read_written
from perfdoctor.forms.recorded_calls import RecordedCall, RecordedCalls, read_calls
from perfdoctor.frozen_dataclass import frozen_dataclass

# Loading torch and making the first tensors is no measuring.
_START_S = 30.0
# Calls that take less of the step, as the CPU saw it, are not worth a form; and the dearest of very many kinds.
_MIN_SHARE, _MAX_CASES = 0.01, 40
# Run so, it needs no perfdoctor in the Python of the program.
_START = "import sys; sys.path.insert(0, sys.argv[1]); from process.measure_cases import main; main()"
_LINE = r"@(?P<file>.+):(?P<line>\d+) (?P<function>.+)"


@frozen_dataclass(eq=False)
class Case:
    """Equal matches of a form in a step.

    Attributes:
        match: One of them.
        times: For each match of the step the time of its calls on the CPU, in ns.
    """

    match: Match
    times: tuple[int, ...]


def choose_cases(recorded: RecordedCalls) -> list[Case]:
    """What is worth measuring of a step: equal matches are one case, the dearest come first."""
    total_ns = sum(call.dur_ns for call in recorded.calls)
    cases: dict[Any, list[Match]] = defaultdict(list)
    for match in find_matches(recorded):
        cases[_kind_of(recorded, match)].append(match)
    found = [
        Case(matches[0], tuple(sum(recorded.calls[row].dur_ns for row in each.rows) for each in matches))
        for matches in cases.values()
    ]
    dear = [case for case in found if sum(case.times) >= _MIN_SHARE * total_ns]
    # What changes results is measured in the time that is left.
    return sorted(dear, key=lambda case: (case.match.form.results != "equal", -sum(case.times)))[:_MAX_CASES]


def _kind_of(recorded: RecordedCalls, match: Match) -> Any:
    """What equal matches have in common: the lines, the functions, and what they get beside the numbers of tensors."""
    numbers: dict[int, int] = {}

    def mask(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and value and value[0] == "tensor":
            sizes, strides, kind, device, *_ = recorded.tensors[value[1]]
            return numbers.setdefault(value[1], len(numbers)), tuple(sizes), tuple(strides or ()), kind, device
        if isinstance(value, dict):
            return tuple((key, mask(each)) for key, each in sorted(value.items()))
        return tuple(map(mask, value)) if isinstance(value, (list, tuple)) else (type(value).__name__, value)

    calls = [recorded.calls[row] for row in match.rows]
    return match.form.id, tuple((call.line, call.function, mask(call.args), mask(call.kwargs)) for call in calls)


def to_job(recorded: RecordedCalls, cases: Sequence[Case], budget_s: float) -> dict[str, Any]:
    """The cases as the process that measures gets them."""
    on_gpu = any(recorded.on_gpu(case.match.rows) for case in cases)
    return {
        "threads": recorded.threads,
        "device": "cuda" if on_gpu else "cpu",
        "budget_s": budget_s,
        "cases": [_to_plain(recorded, number, case.match) for number, case in enumerate(cases)],
    }


def _to_plain(recorded: RecordedCalls, number: int, match: Match) -> dict[str, Any]:
    calls = [recorded.calls[row] for row in match.rows]
    tensors = {each for call in calls for each in call.tensors}
    keys = ("id", "when", "each", "before", "form", "compare", "results", "write")
    return {
        "id": number,
        "tensors": {str(each): recorded.tensors[each] for each in sorted(tensors)},
        "calls": [[c.function, ["tuple", *c.args], dict(c.kwargs), c.result, c.with_grad] for c in calls],
        "bound": dict(match.bound),
        "output": match.output,
        "form": {key: match.form.plain[key] for key in keys if key in match.form.plain},
    }


def run_job(job: dict[str, Any], python: str, budget_s: float) -> Iterator[dict[str, Any]]:
    """What the process that measures answers to each case, as it comes.

    Raises:
        InputError: That Python cannot be started, or has no torch.
    """
    folder_of_package = str(resources.files("perfdoctor.forms"))
    with tempfile.TemporaryDirectory(prefix="perfdoctor-", ignore_cleanup_errors=True) as folder:
        try:
            process = subprocess.Popen(
                [python, "-c", _START, folder_of_package],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env={**os.environ, "PERFDOCTOR_DISABLE": "1"},
                text=True,
            )
        except OSError as error:
            raise InputError(f"{python} cannot be started: {error.strerror}") from None
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(budget_s + _START_S, process.kill)
        timer.start()
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()))
        reader.start()
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                json.dump(job, process.stdin)
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    yield json.loads(line)
            process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            reader.join()
            process.stdout.close()
            if process.stderr is not None:
                process.stderr.close()
        if any("No module named 'torch'" in line for line in errors):
            raise InputError(f"{python} has no torch: name the Python of the program")


def measure_capture(
    folder: Path,
    rank: int,
    budget_s: float,
    python: str | None = None,
    *,
    announce: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Measure the dearest calls of a rank beside their other forms, and write the results into its facts.json.

    Args:
        folder: The capture folder.
        rank: The rank.
        budget_s: Seconds of measuring, beside those for loading torch.
        python: The Python that measures; None for this one.
        announce: Called with a sentence before it begins; None says nothing.

    Returns:
        A row for each case in the order of their time, refused ones with the reason; empty where the capture has no
        calls that take long, or none at all.

    Raises:
        InputError: That Python cannot be started, or has no torch.
    """
    recorded = read_calls(folder / f"rank{rank}" / "calls.json")
    cases = choose_cases(recorded) if recorded is not None else []
    if recorded is None or not cases:
        return []
    if announce is not None:
        announce(f"measuring cheaper forms of what takes longest, {budget_s:.0f} s at most; --no-measure leaves it out")
    job = to_job(recorded, cases, budget_s)
    rows = [
        _to_row(recorded, cases[answer.pop("case")], answer, job["device"])
        for answer in run_job(job, python or sys.executable, budget_s)
    ]
    write_forms(folder / f"rank{rank}" / "facts.json", rows)
    return rows


def _to_row(recorded: RecordedCalls, case: Case, answer: dict[str, Any], device: str) -> dict[str, Any]:
    """A case with its answer, as facts.json has it."""
    calls = [recorded.calls[row] for row in case.match.rows]
    parts: dict[str, list[Any]] = {}
    for call in calls:
        part = parts.setdefault(call.line, [0, set(), re.fullmatch(_LINE, call.line)])
        part[0] += call.dur_ns
        part[1].add(call.name)
    lines = [
        {"file": at["file"], "line": int(at["line"]), "function": at["function"], "ops": sorted(names)}
        for _, names, at in sorted(parts.values(), key=lambda part: -part[0])
        if at is not None
    ]
    if "write" in answer:
        written = read_written(case.match.pattern, [(at["file"], int(at["line"])) for at in _places_of(calls)])
        answer["write"] = fill_in(answer["write"], written.names)
        answer["statement"] = _rewrite(answer["write"], written)
    form, inputs = case.match.form, [each for call in calls for each in call.tensors]
    sizes = [recorded.tensors[each][0] for each in dict.fromkeys(inputs)]
    return {
        "form": form.id,
        "says": form.says,
        "results": form.results,
        "lines": lines,
        "calls": len(case.times),
        "ops": [call.name for call in calls][:MAX_OPS],
        "sizes": sizes[:MAX_OPS],
        "device": device,
        **answer,
    }


def _places_of(calls: Sequence[RecordedCall]) -> list[re.Match[str]]:
    found = (re.fullmatch(_LINE, call.line) for call in calls)
    return [each for each in found if each is not None]


def _rewrite(expression: str, written: Written) -> str | None:
    """The statement with the other form in it; None where the form is more than an expression, or a name is missing."""
    if written.rewrite is None or "#" in expression or "..." in expression:
        return None
    try:
        used = {each.id for each in ast.walk(ast.parse(expression, mode="eval")) if isinstance(each, ast.Name)}
        is_known = used <= {"torch", "F"} | {
            name for text in written.names.values() for name in re.findall(r"\w+", text)
        }
        return written.rewrite(expression) if is_known else None
    except (SyntaxError, ValueError):
        return None


MAX_OPS = 8
"""Of a long region the first calls and sizes are kept."""


def write_forms(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Replace what facts.json says of forms; nothing where it cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        facts = json.loads(path.read_text(encoding="utf-8"))
        facts["forms"] = [row for row in rows if "refused" not in row]
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        unfinished.replace(path)
