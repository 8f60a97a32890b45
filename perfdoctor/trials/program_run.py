"""ProgramRun: what one run of the program gave, read from the files that each rank leaves."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from perfdoctor.frozen_dataclass import frozen_dataclass

# "ValueError: no such file", "torch.cuda.OutOfMemoryError: ...", behind the prefix of a launcher.
_EXCEPTION = re.compile(r"^(?:\[?(?:rank|default)?\d*\]?:\s*)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Fault)\b.*)$")
# What a launcher raises when a rank has failed says nothing of the reason.
_OF_LAUNCHER = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError")
_MAX_ERROR = 200
# A thread that has its core all the time waits for it for some tenths of a percent, up to 2 % beside a few daemons.
UNDISTURBED = 0.95
# The steps of a run are judged in so many blocks: the lower quartile is then the second or third one.
BLOCKS = 8


@frozen_dataclass
class MetChange:
    """What became of a change in the program: how often its hook was met, where, and its error.

    Attributes:
        met: How often the hook was met, in all ranks; 0 where the change does not apply.
        locations: File, line and function of where.
        detail: What was changed.
        refused: Why it does not fit the program; "" where it does.
        error: What the change itself raised; None where nothing.
    """

    met: int = 0
    locations: tuple[tuple[str, int | None, str | None], ...] = ()
    detail: str = ""
    error: str | None = None
    refused: str = ""


@frozen_dataclass
class ProgramRun:
    """One run of the program, plain or changed.

    Attributes:
        exit_code: The exit code of the program.
        seconds: How long the run took, start and end included.
        step_ns: The timed steps by their numbers; of several ranks, each step takes as long as in its latest rank.
        losses: The losses of rank 0 by step numbers.
        error: Why the run broke, in a line; None where it did not.
        timed_out: Whether it was ended because it took too long.
        peak_memory_bytes: The most of any rank; None where no rank says it.
        memory_kind: "cuda" or "rss"; "" where it is not known.
        skipped_ns: Time of the steps before the timed ones, of the latest rank.
        changes: What became of each change, by its name.
        saves: Where the program calls torch.save.
        ranks: How many ranks have left anything.
        steps_made: How many steps the program made.
        core_share: Of the time for which the training thread asked for a core in the timed steps, the share (0 to 1)
            for which it had one, of the rank that had least; None where the system does not say it.
        cpu_ns: CPU time of the process in the median timed step, of rank 0; None where the system does not say it.
        rare_steps: The timed steps that hold more than a usual one, such as a checkpoint or an evaluation.
        workers: The most worker processes of a loader: they hand out batches in bursts.
    """

    exit_code: int
    seconds: float
    step_ns: Mapping[int, int] = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)
    error: str | None = None
    timed_out: bool = False
    peak_memory_bytes: int | None = None
    memory_kind: str = ""
    skipped_ns: int | None = None
    changes: Mapping[str, MetChange] = field(default_factory=dict)
    saves: tuple[str, ...] = ()
    ranks: int = 0
    steps_made: int = 0
    core_share: float | None = None
    cpu_ns: int | None = None
    rare_steps: tuple[int, ...] = ()
    workers: int = 0

    @property
    def mean_step_ns(self) -> float | None:
        """The mean of the timed steps; None where there is none.

        The mean and not the median: what happens every few steps, such as a checkpoint, is part of what a step takes,
        and loaders with workers hand out batches in bursts.
        """
        return statistics.fmean(self.step_ns.values()) if self.step_ns else None

    @property
    def usual_step_ns(self) -> float | None:
        """The mean of the timed steps of a run that had its core, else their typical step; None where there is none."""
        if not self.step_ns or self.is_undisturbed:
            return self.mean_step_ns
        return self.typical_step_ns(self.step_ns, self.rare_steps, count_in_block(len(self.step_ns), self.workers))

    @property
    def is_undisturbed(self) -> bool:
        """Whether its thread is known to have had its core whenever it asked for one."""
        return self.core_share is not None and self.core_share >= UNDISTURBED

    def typical_step_ns(self, numbers: Collection[int], rare: Collection[int], block: int) -> float:
        """How long a step takes on average where nothing from outside disturbs it.

        A disturbed step is longer, never shorter. So usual steps count by the lower quartile of blocks of them, in
        which bursts even out, and rare ones as they are.

        Args:
            numbers: The timed steps to look at, at least one.
            rare: Those of them that hold more than a usual one.
            block: How many steps make a block.
        """
        usual = [self.step_ns[number] for number in sorted(numbers) if number not in rare]
        blocks = [statistics.fmean(usual[at : at + block]) for at in range(0, len(usual) - block + 1, block)]
        quartile = sorted(blocks)[(len(blocks) - 1) // 4] if blocks else statistics.fmean(usual) if usual else 0.0
        return (quartile * len(usual) + sum(self.step_ns[number] for number in numbers if number in rare)) / len(
            numbers
        )

    def to_dict(self) -> dict[str, Any]:
        """The run as plain data, for state.json."""
        plain = asdict(self)
        return plain | {
            "losses": {number: loss if math.isfinite(loss) else str(loss) for number, loss in self.losses.items()}
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> ProgramRun:
        """The run that `to_dict` gave, read back from JSON.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        changes = {
            name: MetChange(**{**each, "locations": tuple(tuple(place) for place in each["locations"])})
            for name, each in plain["changes"].items()
        }
        numbers = {"step_ns": _by_number(plain["step_ns"]), "losses": _by_number(plain["losses"])}
        tuples = {name: tuple(plain[name]) for name in ("saves", "rare_steps")}
        return cls(**{**plain, **numbers, **tuples, "changes": changes})


def compare_steps(changed: ProgramRun, plain: ProgramRun) -> float | None:
    """The step of a changed run over that of a plain one, of the step numbers that both have timed.

    The mean of all steps where both runs had their core all the time, else the typical steps, which disturbances
    lengthen less (`ProgramRun.typical_step_ns`).

    Returns:
        The ratio, below 1 where the changed run is faster; None where fewer than half of the steps are common.
    """
    common = changed.step_ns.keys() & plain.step_ns.keys()
    if not common or 2 * len(common) < len(plain.step_ns):
        return None
    if changed.is_undisturbed and plain.is_undisturbed:
        before_ns = float(sum(plain.step_ns[number] for number in common))
        return sum(changed.step_ns[number] for number in common) / before_ns if before_ns else None
    rare = {*changed.rare_steps, *plain.rare_steps}
    block = count_in_block(len(common), max(changed.workers, plain.workers))
    before_ns = plain.typical_step_ns(common, rare, block)
    return changed.typical_step_ns(common, rare, block) / before_ns if before_ns else None


def count_in_block(steps: int, workers: int) -> int:
    """How many of some timed steps make a block: a burst of batches of all workers, and an eighth of the steps."""
    return max(workers, math.ceil(steps / BLOCKS))


def compare_losses(run: ProgramRun, other: ProgramRun) -> float | None:
    """The largest relative difference of losses at the same step numbers.

    Returns:
        |a - b| / max(|a|, |b|); None where there is no common step with finite losses.
    """
    pairs = [(run.losses[number], other.losses[number]) for number in run.losses.keys() & other.losses.keys()]
    finite = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    return max((abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0 for a, b in finite), default=None)


def find_lost_loss(changed: ProgramRun, plain: ProgramRun) -> int | None:
    """The first step whose loss is NaN or infinite with the change, and finite without it; None where there is none."""
    lost = (
        number
        for number, loss in changed.losses.items()
        if not math.isfinite(loss) and math.isfinite(plain.losses.get(number, math.nan))
    )
    return min(lost, default=None)


def read_program_run(
    folder: Path, exit_code: int, seconds: float, *, timed_out: bool = False, stderr_tail: str = ""
) -> ProgramRun:
    """What a run has left in its folder.

    Args:
        folder: The folder with the ranks' folders.
        exit_code: The exit code of the program.
        seconds: How long the run took.
        timed_out: Whether it was ended because it took too long.
        stderr_tail: The end of what it wrote to stderr.
    """
    ranks = sorted(
        (path for path in folder.glob("rank*") if path.name[4:].isdigit()), key=lambda path: int(path.name[4:])
    )
    trials = [_read_json(path / "trial.json") for path in ranks]
    rows = [_read_rows(path / "steps.jsonl") for path in ranks]
    timed = [[row for row in each if row.get("window") == "base"] for each in rows]
    error = None
    if timed_out:
        error = f"ended after {seconds:.0f} s"
    elif exit_code:
        error = find_error(stderr_tail) or f"exit code {exit_code}"
    peaks = [peak for trial in trials if isinstance(peak := trial.get("peak_memory_bytes"), int)]
    skipped = [ns for trial in trials if isinstance(ns := trial.get("skipped_ns"), int)]
    return ProgramRun(
        exit_code=exit_code,
        seconds=seconds,
        step_ns=_latest_steps([{int(row["step"]): int(row["dur_ns"]) for row in each} for each in timed]),
        losses=_by_number(trials[0].get("losses", {})) if trials else {},
        error=error,
        timed_out=timed_out,
        peak_memory_bytes=max(peaks, default=None),
        memory_kind=next((str(trial["memory_kind"]) for trial in trials if trial.get("memory_kind")), ""),
        skipped_ns=max(skipped, default=None),
        changes=_merge_changes([trial.get("changes", {}) for trial in trials]),
        saves=tuple(sorted({str(place) for trial in trials for place in trial.get("saves", ())})),
        ranks=len(ranks),
        steps_made=max(map(len, rows), default=0),
        core_share=min(filter(None, map(_core_share, timed)), default=None),
        cpu_ns=_median_cpu_ns(timed[0]) if timed else None,
        rare_steps=tuple(sorted({int(row["step"]) for each in timed for row in each if row.get("contains")})),
        workers=max((each for trial in trials if isinstance(each := trial.get("workers"), int)), default=0),
    )


def _core_share(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The share (0 to 1) of the time it asked for a core for which the training thread had one; None for unknown."""
    times = [(row.get("cpu_ns"), row.get("queued_ns")) for row in rows]
    known = [(cpu_ns, queued_ns) for cpu_ns, queued_ns in times if cpu_ns is not None and queued_ns is not None]
    had_ns, lacked_ns = sum(each[0] for each in known), sum(each[1] for each in known)
    return had_ns / (had_ns + lacked_ns) if had_ns and len(known) == len(rows) else None


def _median_cpu_ns(rows: Sequence[Mapping[str, Any]]) -> int | None:
    known = [ns for row in rows if (ns := row.get("process_cpu_ns")) is not None]
    return round(statistics.median(known)) if known else None


def find_error(stderr_tail: str) -> str | None:
    """The line that names the exception in the end of a program's stderr; None where there is none.

    The last exception is the one that ended the program; of several ranks under a launcher, any rank's.
    """
    found = [match[1] for line in stderr_tail.splitlines() if (match := _EXCEPTION.match(line.strip()))]
    own = [line for line in found if not line.partition(":")[0].endswith(_OF_LAUNCHER)]
    return own[-1][:_MAX_ERROR] if own else None


def _latest_steps(ranks: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """The steps of a job: each as long as in the rank where it took longest, as far as all ranks have made it.

    Ranks wait for one another within a step, so that the job goes at the pace of the latest one.
    """
    ranks = [each for each in ranks if each]
    common = set.intersection(*(set(each) for each in ranks)) if ranks else set()
    return {number: max(each[number] for each in ranks) for number in sorted(common)}


def _merge_changes(ranks: Sequence[Mapping[str, Any]]) -> dict[str, MetChange]:
    """What became of each change in all ranks."""
    found: dict[str, MetChange] = {}
    for rank in ranks:
        for name, each in rank.items():
            before = found.get(name, MetChange())
            places = [(str(at["file"]), at.get("line"), at.get("function")) for at in each.get("locations", ())]
            found[name] = MetChange(
                before.met + int(each.get("met", 0)),
                tuple(dict.fromkeys((*before.locations, *places))),
                before.detail or str(each.get("detail") or ""),
                before.error or each.get("error"),
                before.refused or str(each.get("refused") or ""),
            )
    return found


def _by_number(values: Mapping[Any, Any]) -> dict[int, Any]:
    """Values by step number; JSON has texts as keys, and NaN and infinity as words."""
    return {int(key): float(value) if isinstance(value, str) else value for key, value in values.items()}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of steps.jsonl; a line that was cut off by the end of the process is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
