"""What is tried: what findings advise, what was asked for, and what each change says of the program."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fake_program import FakeChange, choice, loaded

from perfdoctor.errors import UsageError
from perfdoctor.facts.captured import NO_FACTS, CapturedFacts
from perfdoctor.installed_packages import EntryPoint
from perfdoctor.report.finding import USED_AT
from perfdoctor.trials import load_changes as loading
from perfdoctor.trials.change import ENTRY_POINT_GROUP
from perfdoctor.trials.choose_candidates import choose_candidates, explain_need, match_findings
from perfdoctor.trials.load_changes import choose_changes, load_changes, wrap_change

MS = 1_000_000
CHANGE_OF = {"PD1": "a", "PD2": "b", "PD3": "c", "PD101": "workers"}


def finding(
    rule: str, expected_ms: float | None = 10, line: int | None = 12, used: str | None = None, **changes
) -> dict:
    ns = None if expected_ms is None else round(expected_ms * MS)
    return {
        "rule": rule, "confidence": 0.5, "actions": [{"id": CHANGE_OF.get(rule, "another"), "value": None}],
        "saving": {"alone": {"low_ns": 0, "expected_ns": ns, "high_ns": 20 * MS}},
        "location": None if line is None else {"file": "/a/b/train.py", "line": line, "function": "main"},
        "evidence": [] if used is None else [{"id": USED_AT, "label": "used at", "value": used, "unit": ""}],
    } | changes  # fmt: skip


def chosen(*changes, findings=(), facts=None, only_advised=True, **more) -> list[str]:
    wanted = [(each, None) for each in changes]
    captured = CapturedFacts.parse(facts)
    choices, _ = choose_candidates(wanted, captured, findings, only_advised=only_advised, **more)
    return [each.label for each in choices]


def test_what_findings_promise_most_is_tried_first():
    changes = [loaded("a"), loaded("b"), loaded("c")]
    findings = [finding("PD1", 5), finding("PD2", 30), finding("PD3", None)]
    assert chosen(*changes, findings=findings) == ["b=2", "a=2", "c=2"]  # half of 20 ms with a confidence of 0.5


def test_what_no_finding_advises_is_tried_only_when_all_are_wanted():
    changes = [loaded("a"), loaded("b")]
    assert chosen(*changes, findings=[finding("PD1")]) == ["a=2"]
    assert chosen(*changes, findings=[finding("PD1")], only_advised=False) == ["a=2", "b=2"]
    assert chosen(*changes) == []


def test_a_sweep_is_tried_as_a_whole_but_not_without_end():
    change = loaded("workers", tries=("1", "2", "4", "8", "16"))
    assert chosen(change, findings=[finding("PD101")]) == ["workers=1", "workers=2", "workers=4", "workers=8"]
    assert len(chosen(change, findings=[finding("PD101")], max_settings=9)) == 5


def test_a_setting_that_was_asked_for_is_taken_as_it_is():
    choices, refused = choose_candidates([(loaded("workers", tries=()), "16")], NO_FACTS, (), only_advised=False)
    assert ([each.label for each in choices], refused) == (["workers=16"], [])


class Failing(FakeChange):
    def settings(self, facts, findings):
        raise KeyError("no such fact" if facts is not None else findings)


@pytest.mark.parametrize(
    ("change", "facts", "verdict", "why"),
    [
        (loaded("a", needs="cuda"), {"devices": [], "world_size": 1}, "not applicable", "it needs a GPU"),
        (loaded("a", needs="ranks"), {"world_size": 1}, "not applicable", "it needs a job of several ranks"),
        (loaded("a", tries=()), {"world_size": 1}, "not applicable", "there is nothing to try on this program"),
        (
            loaded("a", tries=()),
            {},
            "not applicable",
            "its settings are chosen by a recording, and there is none: name one, as a=SETTING, or record first",
        ),
        (loading.LoadedChange(Failing("a"), "a.py", "Failing"), {}, "broke", "KeyError: 'no such fact'"),
    ],
)
def test_what_cannot_be_tried_says_why_where_it_was_asked_for(change, facts, verdict, why):
    captured = CapturedFacts.parse(facts)
    choices, refused = choose_candidates([(change, None)], captured, [finding("PD101")], only_advised=False)
    assert choices == []
    assert [(each.verdict, each.why) for each in refused] == [(verdict, why)]
    assert choose_candidates([(change, None)], captured, [finding("PD101")], only_advised=True) == ([], [])


@pytest.mark.parametrize("need", ["cuda", "ranks"])
def test_without_facts_nothing_is_refused(need):
    assert explain_need(need, NO_FACTS) == ""
    assert explain_need(need, CapturedFacts.parse({"devices": [{"name": "H200"}], "world_size": 8})) == ""


# Which findings a trial answers ---------------------------------------------------------------------------------------


def test_of_two_loaders_the_finding_about_the_changed_one_is_answered():
    findings = [finding("PD101", line=12), finding("PD101", line=99), finding("PD104", line=12)]
    assert match_findings(choice(), [("/elsewhere/train.py", 12, "main")], findings) == (0,)
    assert match_findings(choice(), [("train.py", 12, None), ("train.py", 99, None)], findings) == (0, 1)


def test_a_finding_may_name_the_line_where_the_thing_is_used():
    findings = [finding("PD101", line=40, used="train.py:12"), finding("PD101", line=99)]
    assert match_findings(choice(), [("train.py", 12, "main")], findings) == (0,)


@pytest.mark.parametrize("places", [[], [("train.py", 500, "main")], [("train.py", None, None)]])
def test_where_no_line_agrees_the_change_decides(places):
    findings = [finding("PD101", line=12), finding("PD104"), finding("PD101", line=None)]
    assert match_findings(choice(), places, findings) == (0, 2)


@pytest.mark.parametrize(
    ("actions", "answered"),
    [
        ([{"id": "workers", "value": 2}], (0,)),
        ([{"id": "workers", "value": None}], (0,)),
        ([{"id": "workers", "value": ["2", "4"]}], (0,)),
        ([{"id": "workers", "value": 4}], ()),
        ([{"id": "threads", "value": 2}], ()),
        ([{"id": "workers", "value": 2}, {"id": "threads", "value": 1}], ()),  # it asks for more
        ([], ()),
    ],
)
def test_a_change_answers_the_finding_whose_fix_does_it_and_no_more(actions, answered):
    assert match_findings(choice(), [], [finding("PD101", actions=actions)]) == answered


# Loading -------------------------------------------------------------------------------------------------------------


def test_every_change_of_ours_loads_by_its_entry_point():
    changes, broken = load_changes()
    assert broken == ()
    assert [each.name for each in changes] == sorted(each.name for each in changes)
    assert {"workers", "fused", "threads", "zero-grad"} <= {each.name for each in changes}


def test_a_change_that_does_not_load_costs_only_itself(monkeypatch):
    points = [
        EntryPoint("good", "fake_program:FakeChange"),
        EntryPoint("gone", "no_such_module:Change"),
        EntryPoint("half", "collections:OrderedDict"),
        EntryPoint("twin", "fake_program:FakeChange"),
    ]
    monkeypatch.setattr(loading, "find_entry_points", lambda group: points if group == ENTRY_POINT_GROUP else ())
    load_changes.cache_clear()
    try:
        changes, broken = load_changes()
    finally:
        load_changes.cache_clear()
    assert [each.name for each in changes] == ["workers"]
    whys = {each.name: each.why for each in broken}
    assert "No module named 'no_such_module'" in whys["gone"]
    assert "OrderedDict needs a text name" in whys["half"]
    assert "claims the name workers, which is taken" in whys["twin"]


def test_a_need_that_does_not_exist_is_refused():
    with pytest.raises(TypeError, match="needs of Greedy is one of"):
        wrap_change(type("Greedy", (FakeChange,), {"__init__": lambda self: FakeChange.__init__(self, needs="money")}))


def test_names_and_settings_that_were_asked_for_are_found_in_their_order():
    changes = [loaded("fused"), loaded("workers")]
    found = choose_changes(["workers=4", "fused", "workers", "fused"], changes)
    assert [(each.name, setting) for each, setting in found] == [("workers", "4"), ("fused", None), ("workers", None)]


@pytest.mark.parametrize(("name", "hint"), [("worker", "did you mean workers?"), ("zzz", "perfdoctor try --list")])
def test_a_name_that_does_not_exist_is_refused_with_a_hint(name, hint):
    with pytest.raises(UsageError, match=f"there is no change '{name}'") as caught:
        choose_changes([name], [loaded("workers")])
    assert hint in str(caught.value)


@pytest.mark.process
def test_choosing_needs_no_torch():
    code = "import sys; from perfdoctor.trials import try_program, load_changes; load_changes.load_changes()"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert done.stdout.strip() == "False", done.stderr
