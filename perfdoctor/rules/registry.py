"""Finds analyzers by entry point: the built-in rules and those of third parties alike."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from perfdoctor.errors import UsageError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.installed_packages import EntryPoint, find_entry_points
from perfdoctor.rules.analyzer import Analyzer
from perfdoctor.rules.reserved_rules import RESERVED_RULES

GROUP = "perfdoctor.analyzers"


@frozen_dataclass
class BrokenPlugin:
    """The name of an entry point that does not load, and why it does not."""

    name: str
    why: str


def load_analyzers() -> tuple[type[Analyzer], ...]:
    """All analyzers that load, sorted by rule id."""
    return _load_all()[0]


def find_broken_plugins() -> tuple[BrokenPlugin, ...]:
    """The entry points that do not load."""
    return _load_all()[1]


@lru_cache(maxsize=1)
def _load_all() -> tuple[tuple[type[Analyzer], ...], tuple[BrokenPlugin, ...]]:
    found: dict[str, type[Analyzer]] = {}
    failed: list[BrokenPlugin] = []
    for point in sorted(find_entry_points(GROUP)):
        try:
            analyzer = _load_analyzer(point)
        except Exception as error:  # a stranger's module may raise anything at import
            failed.append(BrokenPlugin(point.name, f"{point.value} does not load: {error!r}"))
            continue
        if analyzer.rule in found and found[analyzer.rule] is not analyzer:
            failed.append(BrokenPlugin(point.name, f"{point.value} claims rule {analyzer.rule}, which is taken"))
            continue
        found[analyzer.rule] = analyzer
    return tuple(found[rule] for rule in sorted(found)), tuple(failed)


def _load_analyzer(point: EntryPoint) -> type[Analyzer]:
    analyzer = point.load()
    if not (isinstance(analyzer, type) and issubclass(analyzer, Analyzer)):
        raise TypeError("it is not a subclass of perfdoctor.Analyzer")
    if not hasattr(analyzer, "rule") or not hasattr(analyzer, "name"):
        raise TypeError(f"{analyzer.__name__} needs a rule like 'PD101' and a name like 'dataloader-stall'")
    return analyzer


def choose_analyzers(
    analyzers: Iterable[type[Analyzer]], select: Iterable[str] = (), ignore: Iterable[str] = ()
) -> tuple[type[Analyzer], ...]:
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
