"""The base classes of every rule, ours and third parties' alike."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar

from perfdoctor.analysis.captured_facts import captured_median_ns
from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.errors import UsageError
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding, FindingScope, severity_of
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.savings.edits import Edit
from perfdoctor.savings.saving import Claim, Saving

RULE_ID = re.compile(r"[A-Z]{2,10}\d{3}")
RULE_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Run:
    """All ranks of one analysis that are in this process."""

    ranks: tuple[Rank, ...]

    @cached_property
    def available_data(self) -> frozenset[str]:
        """What at least one rank has, and "ranks" when there are several."""
        several = {"ranks"} if len(self.ranks) > 1 else set()
        return frozenset().union(*(rank.available_data for rank in self.ranks), several)


class Analyzer(ABC):
    """One rule: looks at a run and yields findings. Pure: no input or output, deterministic, the run is never changed.

    A subclass sets `rule` ("PD101"), `name` ("dataloader-stall"), `needs` (see `REQUIREMENTS`) and `defaults` (its
    thresholds, which users change by ``--set RULE.name=value`` or in pyproject.toml), and its docstring is its manual
    page. It is found through the entry point group ``perfdoctor.analyzers``.

    `analyze` sees all ranks while they are in one process. Where several processes share the ranks (``--jobs``,
    ``--dask``) it sees them one by one, each as a run of its own, and is skipped if it needs "ranks":
    `RankAnalyzer` and `FleetAnalyzer` say the same however many processes there are.

    Raises:
        TypeError: a subclass lacks one of these, or sets it to something else.
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
        if not isinstance(cls.references, tuple) or not all(isinstance(each, str) for each in cls.references):
            raise TypeError(f"{cls.__name__}.references must be a tuple of texts, not {cls.references!r}")

    def __init__(self, settings: Mapping[str, float] | None = None) -> None:
        """Make the analyzer with its defaults, changed by `settings`.

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
        """Yield the findings of this rule; the order does not matter, they are put in order later."""

    def exceeds_min_share(self, rank: Rank | RankSummary, cost_ns: int, least: float = 0.0) -> bool:
        """Whether a cost a step is worth a word: `min_share` of the step, or `least` (0 to 1) where that is more.

        For rules with a threshold `min_share`. A share that is not known, because the window is empty, counts as 0.
        """
        return (rank.share(cost_ns) or 0) >= max(self.settings["min_share"], least)

    def finding(
        self,
        rank: Rank | RankSummary,
        *,
        title: str,
        cost_ns: int,
        advice: str,
        saving: Saving,
        claim: Claim,
        confidence: float = 1.0,
        location: SourceLocation | None = None,
        evidence: tuple[Evidence, ...] = (),
        fix: str | None = None,
        subject: str = "",
        edit: Edit | None = None,
    ) -> Finding:
        """A finding of this rule on one rank.

        `cost_ns` and `saving` are per step already; share and severity follow from the cost. With an `edit` the saving
        only counts where the trace cannot be replayed. Where the capture has timed steps without a profiler, their
        length is added to the evidence; where there are no steps, evidence "per step" is labelled "per trace".

        Raises:
            TypeError, ValueError: see `Finding`.
        """
        share = rank.share(cost_ns)
        unprofiled_ns = captured_median_ns(rank.facts, "base")
        if unprofiled_ns is not None:
            evidence = (*evidence, Evidence("step without the profiler", unprofiled_ns, "ns"))
        if not rank.steps.count:
            evidence = tuple(replace(each, label=each.label.replace("per step", "per trace")) for each in evidence)
        number = rank.trace.rank
        return Finding(
            rule=self.rule,
            name=self.name,
            title=title,
            cost_ns=cost_ns,
            share_of_step=share,
            severity=severity_of(share),
            saving=saving,
            advice=advice,
            confidence=confidence,
            rank=number,
            location=location,
            evidence=evidence,
            fix=fix,
            references=self.references,
            claim=replace(claim, rank=number) if claim.rank is None else claim,
            subject=subject,
            edit=edit,
            scope=scope_of(rank) if isinstance(rank, Rank) else None,
        )


def scope_of(rank: Rank) -> FindingScope:
    """What findings on a rank have to fit into."""
    return FindingScope(rank.per_step(rank.window_ns), rank.window, len(rank.trace.gpu), len(rank.trace.calls))


class RankAnalyzer(Analyzer):
    """An analyzer that looks at one rank at a time; ranks that lack what it needs are passed over."""

    def analyze(self, run: Run) -> Iterator[Finding]:
        """The findings of every rank that has what the rule needs."""
        for rank in run.ranks:
            if self.needs <= rank.available_data:
                yield from self.analyze_rank(rank)

    @abstractmethod
    def analyze_rank(self, rank: Rank) -> Iterable[Finding]:
        """Yield the findings of one rank."""


class FleetAnalyzer(Analyzer):
    """An analyzer that compares ranks by their summaries: two or ten thousand, whichever processes read them."""

    def analyze(self, run: Run) -> Iterable[Finding]:
        """Not for such a rule: it is given the summaries of the ranks."""
        raise NotImplementedError("a FleetAnalyzer is asked by analyze_fleet, with the summaries of the ranks")

    @abstractmethod
    def analyze_fleet(self, fleet: Fleet) -> Iterable[Finding]:
        """Yield the findings over all ranks."""
