"""Rules are chosen by id and family."""

from __future__ import annotations

import re

import pytest

from build_backend.list_rules import make_table
from perfdoctor.errors import UsageError
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import RULE_ID
from perfdoctor.rules.reserved_rules import RESERVED_RULES

ALL = registry.load_analyzers()


def ids(*, select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()) -> list[str]:
    return [analyzer.rule for analyzer in registry.choose_analyzers(ALL, select, ignore)]


def test_all_rules_are_chosen_by_default_and_in_order() -> None:
    assert ids() == sorted(analyzer.rule for analyzer in ALL)
    assert registry.find_broken_plugins() == ()


def test_the_table_of_our_rules_says_what_their_classes_say() -> None:
    assert registry.TABLE.read_text(encoding="utf-8") == make_table(), "run python -m build_backend.list_rules"


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


def test_no_rule_takes_a_reserved_id() -> None:
    assert {analyzer.rule for analyzer in ALL}.isdisjoint(RESERVED_RULES)


@pytest.mark.parametrize(("rule", "why"), RESERVED_RULES.items())
def test_a_reserved_id_says_what_tells_the_same_in_a_sentence(rule: str, why: str) -> None:
    assert RULE_ID.fullmatch(rule)
    assert re.fullmatch(r"[A-Z].*[a-z]\.", why)
    assert ". " not in why
    assert set(re.findall(r"PD\d{3}", why)) <= set(ids())


def test_a_reserved_id_may_be_ignored_and_is_explained_where_it_is_selected() -> None:
    assert ids(ignore=("PD802", "PD101")) == ids(ignore=("PD101",))
    with pytest.raises(UsageError, match=r"there is no rule PD802\. The rule went, .* the account by place"):
        ids(select=("PD801", "PD802"))
