"""A baseline as a file: small JSON in a fixed order, to be kept in git and read in a review."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfdoctor.analysis.step_noise import StepSample
from perfdoctor.comparison.baseline import Baseline
from perfdoctor.comparison.seen_finding import Promised, SeenFinding
from perfdoctor.errors import InputError
from perfdoctor.report.finding import SEVERITIES

_ANY_SCHEMA = re.compile(r"perfdoctor\.baseline/\d+")
_NOTHING_PROMISED = Promised(None, None, None, "unknown")
# So many digits of a cost are kept: more are noise, which a review would show as a change.
_DIGITS = 3
# What the file has of a finding, in this order, and the types of it.
_OF_FINDING: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("rule", "name", "severity", "title", "subject"), (str,)),
    "file": (str, type(None)),
    "line": (int, type(None)),
    "function": (str, type(None)),
    "source": (str, type(None)),
    "cost_ns": (int,),
}


def format_baseline(baseline: Baseline, version: str) -> str:
    """The text of the file; `version` is that of perfdoctor."""
    steps = baseline.steps
    plain = {
        "schema": Baseline.SCHEMA,
        "perfdoctor": version,
        "program": baseline.program,
        "device": baseline.device,
        "phase": baseline.phase,
        "step": {
            "ns": None if steps.median_ns is None else _round(steps.median_ns),
            "count": steps.count if baseline.has_steps else 0,
            "variation": None if steps.variation is None else round(steps.variation, 3),
        },
        "files": list(baseline.files),
        "findings": [_plain_finding(finding) for finding in baseline.findings],
    }
    return json.dumps(plain, indent=2) + "\n"


def _plain_finding(finding: SeenFinding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in _OF_FINDING} | {"cost_ns": _round(finding.cost_ns)}


def _round(ns: float) -> int:
    return int(float(f"{ns:.{_DIGITS - 1}e}"))


def read_baseline(path: str | os.PathLike[str]) -> Baseline:
    """The baseline that a file holds.

    Raises:
        InputError: It is missing, cannot be read, is damaged, or of another schema.
    """
    try:
        plain = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise InputError(f"the baseline {path} does not exist: make it with --update-baseline") from None
    except OSError as error:
        raise InputError(f"the baseline {path} cannot be read ({error.strerror or error}); check the path") from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"the baseline {path} is damaged ({error}): restore it from version control, or delete it and make another "
            "with --update-baseline"
        ) from None
    schema = plain.get("schema") if isinstance(plain, dict) else None
    if schema != Baseline.SCHEMA:
        _refuse_schema(path, schema)
    try:
        return _parse(plain, str(path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the baseline {path} does not hold what a baseline has to ({error!r}): restore it from version control, "
            "or delete it and make another with --update-baseline"
        ) from None


def _refuse_schema(path: str | os.PathLike[str], schema: object) -> None:
    if isinstance(schema, str) and _ANY_SCHEMA.fullmatch(schema):
        raise InputError(
            f"the baseline {path} is of schema '{schema}', and this version reads '{Baseline.SCHEMA}': use the version "
            "of perfdoctor that made it, or delete it and make another with --update-baseline"
        )
    raise InputError(f"{path} is not a baseline of perfdoctor: make one with --update-baseline, in a file of its own")


def _parse(plain: Mapping[str, Any], path: str) -> Baseline:
    step = plain["step"]
    count = _typed(step, "count", int)
    return Baseline(
        path=path,
        program=_typed(plain, "program", str, type(None)),
        device=_typed(plain, "device", str, type(None)),
        phase=_typed(plain, "phase", str),
        steps=StepSample(
            (), _typed(step, "ns", int, type(None)), max(count, 1), _typed(step, "variation", int, float, type(None))
        ),
        has_steps=count > 0,
        files=tuple(map(str, _typed(plain, "files", list))),
        findings=tuple(map(_parse_finding, _typed(plain, "findings", list))),
    )


def _parse_finding(plain: Mapping[str, Any]) -> SeenFinding:
    if plain["severity"] not in SEVERITIES or _typed(plain, "cost_ns", int) < 0:
        raise ValueError("a severity or a cost that does not exist")
    known = {name: _typed(plain, name, *kinds) for name, kinds in _OF_FINDING.items()}
    none = _NOTHING_PROMISED
    return SeenFinding(**known, promised=none, promised_alone=none, covered_by=None, is_one_off=False)


def _typed(plain: Mapping[str, Any], name: str, *kinds: type) -> Any:
    """A member of an object, of one of these types.

    Raises:
        TypeError: It has another type.
    """
    value = plain[name]
    if type(value) not in kinds:
        raise TypeError(f"{name} is {value!r}")
    return value
