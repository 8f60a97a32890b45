"""The base classes of all rules, built-in ones and those of third parties."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analysis.timeline.recurrence import Recurrence
from perfdoctor.errors import UsageError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.memory.memory_edits import MemoryEdit
from perfdoctor.rank import Rank
from perfdoctor.remedies.advice import Advice
from perfdoctor.report.finding import ONCE, Action, Evidence, Finding, FindingScope
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.savings.edits import Edit
from perfdoctor.savings.saved_bytes import SavedBytes
from perfdoctor.savings.saving import Claim, Saving

RULE_ID = re.compile(r"[A-Z]{2,10}\d{3}")
RULE_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# A one-off that takes less of a trace without steps leaves enough of what repeats to judge that first.
_MIN_SHARE_OF_TRACE = 0.5
_NO_SAVING, _NO_CLAIM = Saving(), Claim()


@frozen_dataclass
class Run:
    """All ranks of an analysis that are in this process."""

    ranks: tuple[Rank, ...]

    @cached_property
    def available_data(self) -> frozenset[str]:
        """The requirements that at least one rank meets, and "ranks" when there are several."""
        several = {"ranks"} if len(self.ranks) > 1 else set()
        return frozenset().union(*(rank.available_data for rank in self.ranks), several)


class Analyzer(ABC):
    """One rule: analyses a run and yields findings. Pure: no input or output, deterministic, the run is not changed.

    A subclass sets `rule` ("PD101"), `name` ("dataloader-stall"), `needs` (see `REQUIREMENTS`) and `defaults` (the
    thresholds, which users change by ``--set RULE.name=value`` or in pyproject.toml). The manual page of the rule lies
    beside its file, as pd101.md, or is the docstring of the subclass. Rules are found through the entry point group
    ``perfdoctor.analyzers``.

    `analyze` sees all ranks at once while they are in one process. Where several processes share the ranks (``--jobs``,
    ``--dask``), it sees each rank as a run of its own, and a rule that needs "ranks" is skipped. `RankAnalyzer` and
    `FleetAnalyzer` give the same findings however many processes there are.

    Raises:
        TypeError: A subclass lacks one of these members, or one has the wrong type.
    """

    rule: ClassVar[str]
    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({})
    references: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if inspect.isabstract(cls) or getattr(cls, "__abstractmethods__", None) or "rule" not in vars(cls):
            return
        rule, name = cls.rule, getattr(cls, "name", None)
        if not (isinstance(rule, str) and RULE_ID.fullmatch(rule)) or not (
            isinstance(name, str) and RULE_NAME.fullmatch(name)
        ):
            raise TypeError(
                f"{cls.__name__} needs a rule like 'PD101' and a name like 'dataloader-stall'; they are {rule!r} and "
                f"{name!r}"
            )
        if not isinstance(cls.needs, frozenset | set) or not all(isinstance(need, str) for need in cls.needs):
            raise TypeError(f"{cls.__name__}.needs must be a frozenset of names of requirements, not {cls.needs!r}")
        if not isinstance(cls.defaults, Mapping) or not all(
            isinstance(key, str) and isinstance(value, int | float) for key, value in cls.defaults.items()
        ):
            raise TypeError(f"{cls.__name__}.defaults must map names of thresholds to numbers, not {cls.defaults!r}")
        cls.defaults = MappingProxyType(dict(cls.defaults))
        if not isinstance(cls.references, tuple) or not all(isinstance(each, str) for each in cls.references):
            raise TypeError(f"{cls.__name__}.references must be a tuple of texts, not {cls.references!r}")

    @classmethod
    def read_manual(cls) -> str:
        """The manual page of the rule: the file of its id beside that of the class, else the docstring of the class."""
        try:
            page = Path(inspect.getfile(cls)).with_name(f"{cls.rule.lower()}.md")
            return page.read_text(encoding="utf-8").rstrip("\n")
        except (OSError, TypeError):  # no such file, or a class without any
            return inspect.getdoc(cls) or ""

    def __init__(self, settings: Mapping[str, float] | None = None) -> None:
        """Set the thresholds of the rule: its defaults, with those in `settings` replaced.

        Raises:
            UsageError: `settings` names a threshold that the rule does not have.
        """
        unknown = sorted(set(settings or ()) - set(self.defaults))
        if unknown:
            known = ", ".join(sorted(self.defaults)) or "none"
            raise UsageError(f"{self.rule} has no setting '{unknown[0]}'; its settings are: {known}")
        self.settings = {**self.defaults, **(settings or {})}

    @abstractmethod
    def analyze(self, run: Run) -> Iterable[Finding]:
        """Yield the findings of this rule in any order; the pipeline orders them."""

    def exceeds_min_share(self, rank: Rank | RankSummary, cost_ns: int, min_share: float = 0.0) -> bool:
        """Whether a cost per step is at least `min_share` of the step, and at least `min_share` (0 to 1) of it.

        For rules with a threshold `min_share`. The step is the median one where that is shorter than the mean: a slow
        step hides nothing of the others. In an empty window the share is unknown and counts as 0.
        """
        whole_ns = rank.usual_step_ns
        return (cost_ns / whole_ns if whole_ns else 0) >= max(self.settings["min_share"], min_share)

    def finding(
        self,
        rank: Rank | RankSummary,
        *,
        title: str,
        advice: str | Advice,
        cost_ns: int = 0,
        saving: Saving = _NO_SAVING,
        claim: Claim = _NO_CLAIM,
        confidence: float = 1.0,
        location: SourceLocation | None = None,
        evidence: tuple[Evidence, ...] = (),
        fix: str | None = None,
        actions: tuple[Action, ...] = (),
        subject: str = "",
        topics: tuple[str, ...] = (),
        edit: Edit | None = None,
        memory_edit: MemoryEdit | None = None,
        saved_bytes: SavedBytes | None = None,
        recurrence: Recurrence | None = None,
        happens_once: bool = False,
        occurs_once: bool = False,
        makes_results_wrong: bool = False,
        is_symptom: bool = False,
    ) -> Finding:
        """A finding of this rule on one rank.

        `cost_ns` and `saving` are per step; what is about memory, or only to be known, has neither. With an `edit` a
        replay decides what the cause costs and what the fix saves; both count only where the trace cannot be replayed.
        With a `memory_edit` a sum over the recording decides how many bytes it saves; `saved_bytes` says it where none
        can. Severity follows from what the fix is worth. `advice` from the table brings its code and actions along.
        `per {unit}` in a label becomes "per step", or "in the recording" without steps. `count_recurrence` counts the
        recurrence of some time. What `happens_once` is for information, as nothing to come is faster without it, unless
        the trace holds hardly anything else; with `occurs_once` the title says that it is a single event. What
        `makes_results_wrong` is high and stands first, whatever it costs: say "wrong" in the title, with a cost of 0
        unless time was measured. `is_symptom` is what the line at `location` brings about, such as page faults: another
        finding there covers it.

        Raises:
            TypeError, ValueError: See `Finding`.
        """
        share = rank.share(cost_ns)
        is_main = makes_results_wrong or (cost_ns and (not happens_once or (share or 0) >= _MIN_SHARE_OF_TRACE))
        per_unit = "per step" if rank.steps.count else "in the recording"
        if isinstance(advice, Advice):
            fix, actions, advice = advice.code, advice.actions, advice.sentence
        number = rank.trace.rank
        return Finding(
            rule=self.rule,
            name=self.name,
            title=f"{ONCE if occurs_once else ''}{title}",
            cost_ns=cost_ns,
            share_of_step=share,
            # The highest that it may get: pricing says what the fix is worth.
            severity="high" if is_main else "info",
            saving=saving,
            advice=advice,
            confidence=confidence,
            rank=number,
            location=location,
            evidence=tuple(replace(each, label=each.label.replace("per {unit}", per_unit)) for each in evidence),
            fix=fix,
            actions=actions,
            references=self.references,
            claim=replace(claim, rank=number) if claim.rank is None else claim,
            subject=subject,
            topics=topics,
            occurs_once=occurs_once,
            edit=edit,
            memory_edit=memory_edit,
            saved_bytes=saved_bytes,
            scope=scope_of(rank) if isinstance(rank, Rank) else None,
            recurrence=recurrence,
            makes_results_wrong=makes_results_wrong,
            is_symptom=is_symptom,
        )


def scope_of(rank: Rank) -> FindingScope:
    """The limits of findings on a rank."""
    return FindingScope(rank.mean_step_ns, rank.window, len(rank.trace.gpu), len(rank.trace.calls))


class RankAnalyzer(Analyzer):
    """A rule that looks at one rank at a time; ranks that lack what it needs are skipped."""

    def analyze(self, run: Run) -> Iterator[Finding]:
        """Yield the findings on every rank that has what the rule needs."""
        for rank in run.ranks:
            if self.needs <= rank.available_data:
                yield from self.analyze_rank(rank)

    @abstractmethod
    def analyze_rank(self, rank: Rank) -> Iterable[Finding]:
        """Yield the findings on one rank."""


class FleetAnalyzer(Analyzer):
    """A rule that compares ranks by their summaries: two or ten thousand, whichever processes read them."""

    def analyze(self, run: Run) -> Iterable[Finding]:
        """Not supported: such a rule gets summaries, by `analyze_fleet`."""
        raise NotImplementedError("a FleetAnalyzer is asked by analyze_fleet, with the summaries of the ranks")

    @abstractmethod
    def analyze_fleet(self, fleet: Fleet) -> Iterable[Finding]:
        """Yield the findings on all ranks."""
