"""Rules are chosen by id and family."""

from __future__ import annotations

import pytest

from perfdoctor.errors import UsageError
from perfdoctor.rules import registry

ALL = registry.load_analyzers()


def ids(*, select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()) -> list[str]:
    return [analyzer.rule for analyzer in registry.choose_analyzers(ALL, select, ignore)]


def test_all_rules_are_chosen_by_default_and_in_order() -> None:
    assert ids() == sorted(analyzer.rule for analyzer in ALL)
    assert registry.find_broken_plugins() == ()


def test_a_family_is_the_beginning_of_its_ids() -> None:
    assert {"PD101", "PD102", "PD103", "PD104", "PD107"} <= set(ids(select=("PD1",)))
    assert all(rule.startswith("PD1") for rule in ids(select=("PD1",)))


def test_ignoring_is_stronger_than_selecting() -> None:
    assert "PD104" not in ids(select=("PD1",), ignore=("PD104",))
    assert ids(select=("PD201",), ignore=("PD2",)) == []


@pytest.mark.parametrize("selector", ["", "XX999", "pd101", "PD1011"])
def test_a_selector_that_fits_no_rule_is_refused(selector: str) -> None:
    for arguments in ({"select": (selector,)}, {"ignore": (selector,)}):
        with pytest.raises(UsageError, match=f"no rule is called '{selector}'"):
            ids(**arguments)
