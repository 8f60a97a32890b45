"""The log of all runs of one `try`: each is kept in state.json as it ends, and one that is kept is not made again.

What to run next follows from the runs before it alone. So `--resume` goes through the same decisions once more, and
the log answers for what was run already.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from perfdoctor.errors import InputError, UsageError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trials.load_changes import LoadedChange
from perfdoctor.trials.program_run import ProgramRun
from perfdoctor.trials.trial_statistics import measure_noise

STATE_FILE = "state.json"
_SCHEMA = "perfdoctor.trials/1"


@frozen_dataclass
class Choice:
    """A change with the setting to try."""

    loaded: LoadedChange
    setting: str

    @property
    def label(self) -> str:
        """What `--only` takes: "workers=2"."""
        return f"{self.loaded.name}={self.setting}" if self.setting else self.loaded.name


Arm: TypeAlias = tuple[Choice, ...]
"""The changes of one run; () is the plain program."""
RunProgram: TypeAlias = Callable[[str, Arm], ProgramRun]
"""Runs the program with the changes of an arm; the text names the run, and its folder."""


def label_of(arm: Arm) -> str:
    """The changes of a run as one reads them: "plain", "workers=2", "workers=2 + fused"."""
    return " + ".join(choice.label for choice in arm) or "plain"


@dataclass(slots=True)
class RunLog:
    """All runs so far, and the time that is left.

    Attributes:
        run_program: Runs the program.
        path: state.json; None keeps nothing.
        identity: What must be the same to go on with these runs: command, changes, steps.
        budget_s: Seconds in which to begin runs; None for no limit.
        wait: Called before each run: returns when it may begin.
        on_start, on_end: Called with the label of a run before it begins, and with its result.
        runs: The runs by their names, as they ended.
        clock: Returns the time in seconds.
    """

    run_program: RunProgram
    path: Path | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    budget_s: float | None = None
    wait: Callable[[], None] = lambda: None
    on_start: Callable[[str], None] = lambda _label: None
    on_end: Callable[[str, ProgramRun], None] = lambda _label, _run: None
    runs: dict[str, ProgramRun] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    began_s: float = field(init=False)
    _plain_steps_ns: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.began_s = self.clock()

    def run(self, key: str, arm: Arm) -> ProgramRun:
        """The run of a name: the one that is kept, else a new one.

        Args:
            key: The name, unique in this log: which round, and which changes.
            arm: The changes.
        """
        label = label_of(arm)
        name = f"{key}-{label.replace(' ', '')}"
        run, is_new = self.runs.get(name), False
        if run is None:
            self.wait()
            self.on_start(label)
            self.runs[name] = run = self.run_program(name, arm)
            self.save()
            is_new = True
        if not arm and run.error is None and run.usual_step_ns:
            self._plain_steps_ns.append(run.usual_step_ns)
        if is_new:
            self.on_end(label, run)
        return run

    @property
    def noise(self) -> float:
        """The noise floor, by all plain runs so far."""
        return measure_noise(self._plain_steps_ns)

    @property
    def plain_step_ns(self) -> int | None:
        """The step of the plain program: the median of its runs so far; None before the first."""
        return round(statistics.median(self._plain_steps_ns)) if self._plain_steps_ns else None

    @property
    def seconds(self) -> float:
        """How long all runs took."""
        return sum(run.seconds for run in self.runs.values())

    def has_time_for(self, count: int, share: float = 1.0) -> bool:
        """Whether so many runs of usual length end within a share of the budget."""
        if self.budget_s is None:
            return True
        usual_s = self.seconds / len(self.runs) if self.runs else 0.0
        return self.clock() - self.began_s + count * usual_s <= share * self.budget_s

    def save(self) -> None:
        """Write state.json, whole or not at all.

        Raises:
            InputError: It cannot be written.
        """
        if self.path is None:
            return
        plain = {
            "schema": _SCHEMA,
            "identity": dict(self.identity),
            "runs": {name: run.to_dict() for name, run in self.runs.items()},
        }
        unfinished = self.path.with_suffix(".part")
        try:
            unfinished.write_text(json.dumps(plain, indent=1), encoding="utf-8")
            unfinished.replace(self.path)
        except OSError as error:
            raise InputError(f"{self.path} cannot be written ({error.strerror or error}): free some space.") from None


def read_state(folder: Path) -> dict[str, Any]:
    """The state that an earlier `try` has left in its folder.

    Raises:
        UsageError: There is none, or it is not of this version.
    """
    path = folder / STATE_FILE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(state, dict) or state.get("schema") != _SCHEMA:
            raise ValueError
        state["runs"] = {name: ProgramRun.from_dict(each) for name, each in state["runs"].items()}
    except OSError:
        raise UsageError(f"{folder} holds no trials to go on with: give the folder that try has written.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is not of this version of perfdoctor: start again without --resume.") from None
    return state


def check_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that trials go on with what they began with.

    Raises:
        UsageError: Something differs.
    """
    now = json.loads(json.dumps(now))
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            was = json.dumps(before.get(name))
            raise UsageError(
                f"--resume continues with the same program and options, but {name} was {was}: "
                "repeat the command as it was, or start again without --resume."
            )
