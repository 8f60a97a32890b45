"""Finds analyzers by entry point: the built-in rules and those of third parties alike.

An analysis imports a rule of ours when a trace has what it needs, and those of third parties, which no table lists,
at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar, cast

from perfdoctor.data_rows import read_rows
from perfdoctor.errors import UsageError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.installed_packages import EntryPoint, find_entry_points
from perfdoctor.rules.analyzer import Analyzer, FleetAnalyzer, RankAnalyzer
from perfdoctor.rules.reserved_rules import RESERVED_RULES

GROUP = "perfdoctor.analyzers"
TABLE = Path(__file__).with_name("our_rules.csv")
"""Of each of our rules what `ListedRule` says; `python -m build_backend.list_rules` writes it."""
Scope: TypeAlias = Literal["rank", "fleet", "run"]
_OURS = "perfdoctor.analyzers."


@frozen_dataclass
class BrokenPlugin:
    """The name of an entry point that does not load, and why it does not."""

    name: str
    why: str


@frozen_dataclass
class ListedRule:
    """What is known of a rule before it is imported.

    Attributes:
        rule: The id.
        name: The name.
        scope: What it looks at: one "rank" at a time, the "fleet" by its summaries, or a "run" as a whole.
        needs: The requirements without which it is skipped.
        source: The class, or where it is.
    """

    rule: str
    name: str
    scope: Scope
    needs: frozenset[str]
    source: EntryPoint | type[Analyzer]

    def load(self) -> type[Analyzer]:
        """The class, imported now if it was not before."""
        return _load_analyzer(self.source) if isinstance(self.source, EntryPoint) else self.source


_Rule = TypeVar("_Rule", ListedRule, type[Analyzer])


def list_rule(rule: ListedRule | type[Analyzer]) -> ListedRule:
    """What the table would say of a class; a rule that is listed as it is."""
    if isinstance(rule, ListedRule):
        return rule
    scope: Scope = "fleet" if issubclass(rule, FleetAnalyzer) else "rank" if issubclass(rule, RankAnalyzer) else "run"
    return ListedRule(rule.rule, rule.name, scope, frozenset(rule.needs), rule)


def list_rules() -> tuple[ListedRule, ...]:
    """All rules, sorted by id: ours by our_rules.csv, so that those that a trace cannot feed are not imported."""
    return _list_all()[0]


def load_analyzers() -> tuple[type[Analyzer], ...]:
    """All analyzers that load, sorted by rule id."""
    return tuple(rule.load() for rule in list_rules())


def find_broken_plugins() -> tuple[BrokenPlugin, ...]:
    """The entry points that do not load."""
    return _list_all()[1]


@lru_cache(maxsize=1)
def _list_all() -> tuple[tuple[ListedRule, ...], tuple[BrokenPlugin, ...]]:
    rows = {row["rule"]: row for row in read_rows("rules/our_rules.csv")}
    found: dict[str, ListedRule] = {}
    failed: list[BrokenPlugin] = []
    for point in sorted(find_entry_points(GROUP)):
        if point.value.startswith(_OURS) and point.name in rows:
            row = rows[point.name]
            scope, needs = cast("Scope", row["scope"]), frozenset(row["needs"].split())
            found[point.name] = ListedRule(point.name, row["name"], scope, needs, point)
            continue
        try:
            rule = list_rule(_load_analyzer(point))
        except Exception as error:  # a stranger's module may raise anything at import
            failed.append(BrokenPlugin(point.name, f"{point.value} does not load: {error!r}"))
            continue
        if rule.rule in found and found[rule.rule].source is not rule.source:
            failed.append(BrokenPlugin(point.name, f"{point.value} claims rule {rule.rule}, which is taken"))
            continue
        found[rule.rule] = rule
    return tuple(found[rule] for rule in sorted(found)), tuple(failed)


def _load_analyzer(point: EntryPoint) -> type[Analyzer]:
    analyzer = point.load()
    if not (isinstance(analyzer, type) and issubclass(analyzer, Analyzer)):
        raise TypeError("it is not a subclass of perfdoctor.Analyzer")
    if not hasattr(analyzer, "rule") or not hasattr(analyzer, "name"):
        raise TypeError(f"{analyzer.__name__} needs a rule like 'PD101' and a name like 'dataloader-stall'")
    return analyzer


def choose_analyzers(
    analyzers: Iterable[_Rule], select: Iterable[str] = (), ignore: Iterable[str] = ()
) -> tuple[_Rule, ...]:
    """The analyzers whose rule id starts with one of `select` (all when empty) and with none of `ignore`.

    A reserved id may be ignored, as before its rule went.

    Raises:
        UsageError: A selector fits no rule.
    """
    known = tuple(analyzers)
    select, ignore = tuple(select), tuple(ignore)
    for selector in (*select, *(each for each in ignore if each not in RESERVED_RULES)):
        if selector in RESERVED_RULES:
            raise UsageError(f"there is no rule {selector}. {RESERVED_RULES[selector]}")
        if not selector or not any(a.rule.startswith(selector) for a in known):
            raise UsageError(f"no rule is called '{selector}' or belongs to that family; `perfdoctor rules` lists them")
    return tuple(
        a for a in known if (not select or a.rule.startswith(select)) and not (ignore and a.rule.startswith(ignore))
    )
