"""Changes and programs that exist in memory only: what would take minutes of processes takes none."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.trials.load_changes import LoadedChange
from perfdoctor.trials.program_run import MetChange, ProgramRun
from perfdoctor.trials.run_log import Arm, Choice, RunLog, label_of

MS = 1_000_000
PLACE = ("/home/me/train.py", 12, "main")


@dataclass
class FakeChange:
    name: str = "workers"
    tries: tuple[str, ...] = ("2",)
    rules: tuple[str, ...] = ("PD101",)
    needs: str = ""
    alters_numerics: bool = False
    effect_on_results: str = "none"
    is_what_if: bool = False
    intended_change: str = ""
    summary: str = "a change that is none"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        del facts, findings
        return self.tries

    def environment(self, setting: str) -> Mapping[str, str]:
        return {"FAKE": setting}

    def apply(self, setting: str, program: Any) -> None:
        raise AssertionError(f"{setting} of {program} is not applied in memory")

    def fix(self, setting: str) -> str:
        return f"{self.name}({setting})"


def loaded(name: str = "workers", **changes: Any) -> LoadedChange:
    return LoadedChange(FakeChange(name=name, **changes), f"/changes/{name}.py", "FakeChange")


def choice(name: str = "workers", setting: str = "2", **changes: Any) -> Choice:
    return Choice(loaded(name, **changes), setting)


def run_of(step_ms: float = 10.0, *, steps: range = range(5, 25), **changes: Any) -> ProgramRun:
    """A run whose steps all take the same time."""
    facts: dict[str, Any] = {
        "exit_code": 0, "seconds": 3.0, "step_ns": {number: round(step_ms * MS) for number in steps},
        "losses": {number: 1.0 / (1 + number) for number in steps}, "peak_memory_bytes": 100_000_000,
        "memory_kind": "rss", "skipped_ns": round(5 * step_ms * MS), "ranks": 1, "steps_made": steps.stop,
    }  # fmt: skip
    return ProgramRun(**(facts | changes))


@dataclass
class FakeProgram:
    """A program whose step is known: each change multiplies it, and each run differs a little.

    Attributes:
        factors: By the label of a change, what it makes of the step.
        step_ms: The plain step.
        noise: The largest deviation of a run, as a share.
        special: By the label of an arm, the run to return instead.
        runs: The labels of the runs made, in order.
        interrupt_at: The number of the run at which it is interrupted.
        interrupt: What the interruption raises.
    """

    factors: Mapping[str, float] = field(default_factory=dict)
    step_ms: float = 10.0
    noise: float = 0.0
    special: Mapping[str, ProgramRun] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    interrupt_at: int | None = None
    interrupt: BaseException = field(default_factory=KeyboardInterrupt)
    seed: int = 0
    losses_differ: bool = False

    def __call__(self, name: str, arm: Arm) -> ProgramRun:
        del name
        if self.interrupt_at == len(self.runs):
            raise self.interrupt
        label = label_of(arm)
        self.runs.append(label)
        if label in self.special:
            return self.special[label]
        source = random.Random(f"{self.seed} {len(self.runs)}")
        step_ms = self.step_ms * (1 + self.noise * source.uniform(-1, 1))
        for each in arm:
            step_ms *= self.factors.get(each.label, 1.0)
        met = {each.loaded.name: MetChange(1, (PLACE,), f"{each.loaded.name} -> {each.setting}") for each in arm}
        losses = {5: source.random()} if self.losses_differ else {5: 0.5}
        return run_of(step_ms, changes=met, losses=losses)


def make_log(program: Callable[[str, Arm], ProgramRun], **changes: Any) -> RunLog:
    """A log whose noise is known from two plain runs, as in `try_program`."""
    log = RunLog(program, **changes)
    log.run("plain1", ())
    log.run("plain2", ())
    return log
