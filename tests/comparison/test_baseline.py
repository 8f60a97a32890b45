"""Which findings a baseline takes for known ones, and when one is dearer."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.context.context import UNKNOWN_CONTEXT
from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.comparison.baseline import Baseline, match_baseline, update_baseline
from perfdoctor.comparison.baseline_file import format_baseline, read_baseline
from perfdoctor.errors import InputError
from perfdoctor.report.finding import SOURCE_LINE, Evidence, Finding, finding_of_failure
from perfdoctor.report.report import Outcome, Report, StepSummary, TraceSummary
from perfdoctor.savings.saving import Saving

MS = 1_000_000
STEPS = StepSummary(20, "annotated", 100 * MS, variation=0.03, mean_ns=100 * MS)
LINE = "running += loss.item()"


def line_of(text: str) -> tuple[Evidence, ...]:
    return (Evidence("source line", text, id=SOURCE_LINE),)


def finding(cost_ms: float = 20, **changes: Any) -> Finding:
    """A wait at a line of train.py, in a step of 100 ms."""
    facts: dict[str, Any] = {
        "rule": "PD102", "name": "host-device-sync", "title": f"The CPU waits {cost_ms} ms for .item()",
        "cost_ns": round(cost_ms * MS), "share_of_step": cost_ms / 100, "severity": "high", "saving": Saving(),
        "advice": "Log less.", "location": SourceLocation("train.py", 41, "train"), "subject": ".item()",
        "evidence": line_of(LINE),
    }  # fmt: skip
    return Finding(**(facts | changes))


def at(line: int | None, function: str | None = "train", file: str = "train.py") -> SourceLocation:
    return SourceLocation(file, line, function)


def report(*findings: Finding, **changes: Any) -> Report:
    trace = TraceSummary("t.json", None, None, "NVIDIA A100-SXM4-40GB", "nvidia", True, 9, MS, device_from="trace")
    facts: dict[str, Any] = {
        "version": "0.1.0", "traces": (trace,), "steps": STEPS, "timeline": (), "account": (), "findings": findings,
        "outcomes": tuple(Outcome(rule, "ran") for rule in ("PD101", "PD102", "PD103")), "program_name": "train.py",
        "context": replace(UNKNOWN_CONTEXT, phase="training"),
    }  # fmt: skip
    return Report(**(facts | changes))


def baseline_of(*findings: Finding, **changes: Any) -> Baseline:
    return update_baseline(None, report(*findings, **changes), "b.json")


def state_of(new: Finding, old: Finding | None = None, **changes: Any) -> str:
    (state,) = match_baseline(baseline_of(old or finding()), report(new, **changes)).states
    return state.state


@pytest.mark.parametrize(
    "new",
    [
        finding(),
        finding(location=at(77)),
        finding(location=at(77), evidence=()),
        finding(location=at(77, "fit")),
        finding(location=at(77, file="/elsewhere/train.py"), evidence=()),
        finding(title="The CPU waits 7 times, 20 ms in all, for .item()"),
        finding(evidence=line_of("total += loss.item()")),
        finding(subject="other words for the same line"),
        finding(location=None),
        finding(3, severity="low"),
    ],
    ids=[
        "same",
        "moved",
        "moved, text unknown",
        "to another function",
        "folder",
        "title",
        "edited",
        "subject",
        "no place",
        "cheap",
    ],
)
def test_a_known_finding_is_known_again(new):
    assert state_of(new) == "accepted"


@pytest.mark.parametrize(
    "new",
    [
        finding(rule="PD103"),
        finding(location=at(90, "validate"), evidence=line_of("best = score.item()")),
        finding(location=at(41, "validate"), evidence=()),
        finding(location=at(41, "train", "eval.py")),
        finding(subject=".cpu()", title="The CPU waits for .cpu()", evidence=line_of("x = x.cpu()")),
    ],
    ids=["rule", "other line", "other function", "other file", "other call in the function"],
)
def test_another_finding_is_new(new):
    assert state_of(new) == "new"


def test_of_two_alike_one_is_new():
    match = match_baseline(baseline_of(finding()), report(finding(), finding(location=at(50))))
    assert sorted(state.state for state in match.states) == ["accepted", "new"]


def test_findings_of_one_function_keep_their_lines():
    first, second = (finding(20), finding(5, location=at(60), evidence=line_of("acc += hits.item()")))
    moved = [replace(each, location=at(each.location.line + 9)) for each in (second, first)]
    match = match_baseline(baseline_of(first, second), report(*moved))
    assert [(state.state, state.accepted_cost_ns) for state in match.states] == [
        ("accepted", 5 * MS),
        ("accepted", 20 * MS),
    ]


def test_findings_without_a_place_are_known_by_what_they_say():
    old = finding(20, location=None, evidence=(), subject="pauses 0", title="3 pauses, 20 ms a step")
    assert state_of(replace(old, subject="pauses 1", title="5 pauses, 21 ms a step"), old) == "accepted"
    assert state_of(replace(old, subject="copies", title="Copies wait"), old) == "new"


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "state"),
    [
        (20, 24, "accepted"),  # a fifth, and no more
        (20, 30, "dearer"),
        (50, 59, "accepted"),  # 18 %
        (2, 5, "accepted"),  # more than double, but within 4.3 ms of noise: 20 steps that vary by 3 %, and 2 %
        (2, 7, "dearer"),
        (0, 3, "accepted"),
        (0, 5, "dearer"),
        (30, 3, "accepted"),
    ],
)
def test_a_finding_is_dearer_by_a_fifth_beyond_the_noise(before_ms, after_ms, state):
    assert state_of(finding(after_ms), finding(before_ms)) == state


@pytest.mark.parametrize(
    ("steps", "state_at_8_ms_more", "state_at_12_ms_more"),
    [
        (replace(STEPS, variation=0.0), "dearer", "dearer"),
        (replace(STEPS, count=6, variation=0.2), "accepted", "dearer"),  # it varies by 29 ms: never more than 10 ms
        (replace(STEPS, count=2), "accepted", "dearer"),
        (replace(STEPS, variation=None), "accepted", "dearer"),
    ],
)
def test_noise_is_that_of_the_step_and_a_tenth_of_it_at_most(steps, state_at_8_ms_more, state_at_12_ms_more):
    baseline = baseline_of(finding(20), steps=steps)
    states = [match_baseline(baseline, report(finding(ms), steps=steps)).states[0].state for ms in (28, 32)]
    assert states == [state_at_8_ms_more, state_at_12_ms_more]


def test_without_steps_shares_of_the_window_are_compared():
    @dataclass(frozen=True)
    class Window:
        window_ns: int

    none = StepSummary()
    baseline = baseline_of(finding(20), steps=none, account=(Window(100 * MS),))
    longer = report(finding(50), steps=none, account=(Window(250 * MS),))
    dearer = report(finding(90), steps=none, account=(Window(250 * MS),))
    assert match_baseline(baseline, longer).states[0].state == "accepted"
    state = match_baseline(baseline, dearer).states[0]
    assert (state.state, round(state.growth or 0, 3)) == ("dearer", 0.8)


def test_what_went_away_and_what_was_not_judged_are_told_apart():
    lost = (finding(rule="PD101", subject="a"), finding(rule="PD201", subject="b"))
    match = match_baseline(baseline_of(*lost), report())
    assert [each.rule for each in match.gone] == ["PD101"]
    assert [each.rule for each in match.not_judged] == ["PD201"]


def test_a_failed_rule_is_no_finding():
    failed = finding_of_failure("PD101", "dataloader-stall", ValueError("x"))
    assert not baseline_of(failed).findings
    match = match_baseline(baseline_of(finding()), report(failed, finding()))
    assert [state.state for state in match.states] == ["accepted", "accepted"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"program_name": "serve.py"}, "is a baseline of train.py, and the recording is of serve.py"),
        (
            {"context": replace(UNKNOWN_CONTEXT, phase="inference")},
            "is a baseline of training, and the recording is of inference",
        ),
        ({"traces": (replace(report().traces[0], device="NVIDIA H100 PCIe"),)}, "and this one is on NVIDIA H100 PCIe"),
    ],
)
def test_a_baseline_of_another_program_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        match_baseline(baseline_of(finding()), report(finding(), **changes))
    with pytest.raises(InputError, match=words):
        update_baseline(baseline_of(finding()), report(finding(), **changes), "b.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"program_name": None},
        {"context": UNKNOWN_CONTEXT},
        {"traces": (replace(report().traces[0], device="H100", device_from="kernels"),)},
        {"traces": (replace(report().traces[0], device=None),)},
    ],
)
def test_what_a_recording_does_not_tell_makes_no_other_program(changes):
    assert match_baseline(baseline_of(finding()), report(finding(), **changes)).states[0].state == "accepted"


def test_bare_traces_of_programs_without_a_file_in_common_are_of_different_ones():
    old = baseline_of(finding(), program_name=None)
    other = report(finding(location=at(3, file="other.py")), program_name=None)
    with pytest.raises(InputError, match=r"of a program with train\.py, and the recording is of one with other\.py"):
        match_baseline(old, other)
    assert match_baseline(old, report(finding(location=None), program_name=None)).states[0].state == "accepted"


def test_an_update_takes_new_and_dearer_ones_in_and_what_went_out():
    old = baseline_of(finding(20), finding(10, rule="PD101", location=None, subject="a"))
    new = report(finding(40), finding(15, rule="PD103", location=None, subject="b"))
    updated = update_baseline(old, new, "b.json")
    assert [(each.rule, each.cost_ns // MS) for each in updated.findings] == [("PD102", 40), ("PD103", 15)]


@pytest.mark.parametrize(("cost_ms", "kept_ms"), [(22, 20), (18, 20), (23.9, 20), (15, 15), (40, 40)])
def test_an_update_keeps_a_cost_that_stayed(cost_ms, kept_ms):
    updated = update_baseline(baseline_of(finding(20)), report(finding(cost_ms, location=at(99))), "b.json")
    (kept,) = updated.findings
    assert (kept.cost_ns, kept.line) == (kept_ms * MS, 99)


def test_an_update_keeps_what_was_not_judged():
    old = baseline_of(finding(rule="PD201", subject="b"), finding())
    assert [each.rule for each in update_baseline(old, report(finding()), "b.json").findings] == ["PD102", "PD201"]


@given(st.permutations(range(5)))
def test_the_order_of_findings_changes_nothing(order):
    findings = [finding(10 + n, rule=f"PD10{n % 3}", location=at(10 * n, f"f{n}")) for n in range(5)]
    text = format_baseline(baseline_of(*(findings[n] for n in order)), "1")
    assert text == format_baseline(baseline_of(*findings), "1")


@given(st.text(), st.text(), st.integers(0, 2**62))
def test_a_file_holds_what_was_written_but_for_the_digits_of_costs(tmp_path_factory, title, name, cost_ns):
    old = finding(0, title=title, subject=name, cost_ns=cost_ns, location=at(None, name, f"x{name}"), evidence=())
    baseline = baseline_of(old, program_name=name)
    path = tmp_path_factory.mktemp("baseline") / "b.json"
    path.write_text(format_baseline(baseline, "1"), encoding="utf-8")
    read = read_baseline(path)
    assert read.findings[0].cost_ns == pytest.approx(cost_ns, rel=0.005)
    assert replace(read.findings[0], cost_ns=0) == replace(
        baseline.findings[0], cost_ns=0, promised=read.findings[0].promised, promised_alone=read.findings[0].promised
    )
    assert (read.program, read.device, read.phase, read.files) == (name, baseline.device, "training", baseline.files)


def test_the_file_is_small_sorted_and_read_by_people():
    text = format_baseline(baseline_of(finding(20.123456)), "0.1.0")
    plain = json.loads(text)
    assert list(plain) == ["schema", "perfdoctor", "program", "device", "phase", "step", "files", "findings"]
    assert plain["findings"][0]["cost_ns"] == 20_100_000
    assert plain["files"] == ["train.py"]
    assert text.endswith("}\n")
    assert text.isascii()
