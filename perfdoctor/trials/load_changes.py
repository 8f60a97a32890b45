"""Finds changes by entry point, our own and those of others, and chooses among them by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Sequence
from functools import lru_cache

from perfdoctor.errors import UsageError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.installed_packages import find_entry_points
from perfdoctor.trials.change import ENTRY_POINT_GROUP, NEEDS, Change, ChangeDefaults

_TEXTS = ("name", "summary", "effect_on_results")
_METHODS = ("settings", "apply")


@frozen_dataclass
class LoadedChange:
    """A change, and where the program finds it.

    Attributes:
        change: An object of its class.
        file: The file that the user's program loads.
        class_name: The class in it.
    """

    change: Change
    file: str
    class_name: str

    @property
    def name(self) -> str:
        """The name of the change."""
        return self.change.name


@frozen_dataclass
class BrokenChange:
    """The name of an entry point that gives no change, and why."""

    name: str
    why: str


@lru_cache(maxsize=1)
def load_changes() -> tuple[tuple[LoadedChange, ...], tuple[BrokenChange, ...]]:
    """All changes by name, and the entry points that give none."""
    found: dict[str, LoadedChange] = {}
    broken: list[BrokenChange] = []
    for point in sorted(find_entry_points(ENTRY_POINT_GROUP)):
        try:
            loaded = wrap_change(point.load())
        except Exception as error:  # a stranger's module may raise anything at import
            broken.append(BrokenChange(point.name, f"{point.value} does not load: {error!r}"))
            continue
        if loaded.name in found:
            broken.append(BrokenChange(point.name, f"{point.value} claims the name {loaded.name}, which is taken"))
            continue
        found[loaded.name] = loaded
    return tuple(found[name] for name in sorted(found)), tuple(broken)


def wrap_change(kind: type) -> LoadedChange:
    """A class of a change with its file, and with the defaults of what it does not say.

    Raises:
        TypeError: It is no class, or lacks a member of a change.
    """
    if not isinstance(kind, type):
        raise TypeError("it is not a class")
    change = type(kind.__name__, (kind, ChangeDefaults), {})()
    for name in _TEXTS:
        if not isinstance(getattr(change, name, None), str):
            raise TypeError(f"{kind.__name__} needs a text {name}")
    for name in _METHODS:
        if not callable(getattr(change, name, None)):
            raise TypeError(f"{kind.__name__} needs a method {name}")
    if not callable(getattr(kind, "fix", None)) and not getattr(kind, "code", ""):
        raise TypeError(f"{kind.__name__} needs a text code, or a method fix")
    if change.needs not in NEEDS:
        raise TypeError(f"needs of {kind.__name__} is one of {', '.join(map(repr, NEEDS))}, not {change.needs!r}")
    return LoadedChange(change, inspect.getfile(kind), kind.__name__)


def choose_changes(
    wanted: Sequence[str], changes: Sequence[LoadedChange]
) -> tuple[tuple[LoadedChange, str | None], ...]:
    """The changes that `--only` names, each with its setting where one is given.

    Args:
        wanted: Names such as "workers" or "workers=4", in the order to try them.
        changes: All that there are.

    Raises:
        UsageError: There is no change of a name.
    """
    by_name = {each.name: each for each in changes}
    chosen: list[tuple[LoadedChange, str | None]] = []
    for text in wanted:
        name, equals, setting = text.partition("=")
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=1)
            hint = f"did you mean {near[0]}?" if near else "perfdoctor try --list names those that there are."
            raise UsageError(f"there is no change {name!r}: {hint}")
        if (by_name[name], setting if equals else None) not in chosen:
            chosen.append((by_name[name], setting if equals else None))
    return tuple(chosen)
