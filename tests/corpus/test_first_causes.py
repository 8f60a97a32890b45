"""The first cause of each shared recording, the fixes that belong to it, and those that would be wrong there.

first_causes.toml was filled in from the raw recordings, not from reports. Where a report differs, the report is wrong
until somebody shows from the raw recording that the table is.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from real_traces import analyze_once

from perfdoctor.report.finding import STEP_AFTER, Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters.once_only import is_first_run, once_text_of
from perfdoctor.reporters.pass_rows import pass_text_of
from perfdoctor.trace.tables import intervals as iv

pytestmark = pytest.mark.corpus

TABLE = Path(__file__).with_name("first_causes.toml")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "first_causes.md"

# Notes on the recording itself, which may stand above the first cause.
NOTES = ("PD001", "PD002")
# A correctness finding is high whatever it costs.
CORRECTNESS = ("PD505", "PD506", "PD516")
TRAINING = r"zero_grad|set_to_none|GradScaler|\boptimizer|\bbackward\b|gradient"
DDP = r"DistributedDataParallel|\bDDP\b|bucket_cap|gradient_as_bucket_view|find_unused|static_graph|broadcast_buffers"
LOADER = r"num_workers|DataLoader|persistent_workers|prefetch_factor"
# How a report calls what happens once.
ONE_OFF = r"\bonce\b|one-off|warm-?up|start-?up|first (launch|use|call|step)"
MIN_HIGH_SHARE = 0.03
LARGE_SLICE = 0.05
# Kernels at their roof need no words. Some of such a slice may be known to be there, so only large slices count, and
# only where most of its roofs are unknown.
LARGE_SLICE_AT_A_ROOF = 0.1
MIN_PROMISES_ABOVE_0 = 0.6
STEP_TOLERANCE = 0.02
# What PD209 advises is to be tried, so that its savings are "up to" by design.
ONLY_UP_TO = frozenset({"PD209"})


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table; first_causes.toml says what its columns are."""

    path: str
    phase: Literal["training", "forward", "unknown"]
    cause: str
    first: Sequence[str]
    why: str
    loader: bool = False
    ddp: bool = False
    one_off: bool = False
    words: Sequence[str] = ()
    says: Sequence[str] = ()
    offer: Sequence[str] = ()
    never: Sequence[str] = ()
    saves_ms: Sequence[float] = ()
    steps: tuple[int, float] | None = None
    misread: Sequence[str] = ()

    def forbidden(self) -> Iterator[str]:
        """The regular expressions that no advice may match: the row's own, and those that its context implies."""
        yield from self.never
        if self.phase != "training":
            yield TRAINING
        if not self.ddp:
            yield DDP
        if not self.loader:
            yield LOADER


@cache
def load_cases() -> tuple[Case, ...]:
    """The rows of the table."""
    rows: list[dict[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["trace"]
    return tuple(Case(**row) for row in rows)


@pytest.fixture(scope="session")
def report_on(shared: Path) -> Callable[[str], Report]:
    """The report on a file or folder of the shared material, by its path there; skipped where there is none."""
    return lambda path: analyze_once(shared / path)


each_case = pytest.mark.parametrize("case", load_cases(), ids=lambda case: case.path)


@pytest.fixture(autouse=True)
def expect_misreading(request: pytest.FixtureRequest) -> None:
    """Expect a test to fail that a row names in `misread`; strictly, so that a mended report has to leave the list."""
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    if case is not None and request.node.originalname.removeprefix("test_") in case.misread:
        request.applymarker(pytest.mark.xfail(reason=f"misread: {case.cause}", strict=True))


def find(pattern: str, texts: Iterable[str | None]) -> list[str]:
    """The texts that match."""
    return [text for text in texts if text and re.search(pattern, text, re.IGNORECASE)]


def advice_of(report: Report) -> list[str | None]:
    """What the report tells its reader to do."""
    return [text for finding in report.findings for text in (finding.advice, finding.fix)]


def texts_of(finding: Finding) -> list[str | None]:
    """All that a finding says."""
    place = finding.location
    where = f"{place.file}({place.line}): {place.function}" if place else None
    evidence = [f"{each.label}: {each.value}" for each in finding.evidence]
    return [finding.title, finding.advice, finding.fix, where, *evidence]


def once_texts(report: Report) -> list[str]:
    """What a report says of what happens once."""
    once = once_text_of(report)
    return [] if once is None else [once.title, once.advice, *(row.what for row in once.rows)]


def texts_in(report: Report) -> list[str | None]:
    """All that a report says."""
    of_findings = [text for finding in report.findings for text in texts_of(finding)]
    of_traces = [warning for trace in report.traces for warning in trace.warnings]
    of_rules = [outcome.why for outcome in report.outcomes]
    passes = pass_text_of(report)
    return [
        *of_findings,
        *once_texts(report),
        *(each.sentence for each in report.unexplained),
        *of_traces,
        *of_rules,
        *report.context.evidence,
        *(row.what for row in (passes.rows if passes else ())),
    ]


def step_ns_of(report: Report, finding: Finding) -> int:
    """What a finding's times are times of: the median step, without steps the window."""
    windows = [account.window_ns for account in report.account if finding.rank in (None, account.rank)]
    return report.steps.median_ns or max(windows, default=0) or 1


def head_of(report: Report) -> Finding | None:
    """The first finding on the program."""
    return next((finding for finding in report.findings if finding.rule not in NOTES), None)


def is_first(expected: str, report: Report) -> bool:
    """Whether the report begins with what a row's `first` names."""
    head = head_of(report)
    kind, _, argument = expected.partition(":")
    is_calm = head is None or head.severity in ("low", "info")
    if kind == "clean":
        return is_calm
    if kind == "first_run":
        return bool(report.once) and all(once.is_first_run for once in report.once)
    if kind == "unexplained":
        return is_calm and any(each.detail.startswith(argument) for each in report.unexplained)
    if kind == "once":
        return is_first_run(report) and any(once.parts[0].cause == argument for once in report.once)
    if kind == "unrecorded":
        return is_calm and bool(find(rf"record.*({argument})|({argument}).*record", texts_in(report)))
    return head is not None and head.rule == expected


def test_every_shared_recording_is_in_the_table(shared: Path) -> None:
    traces = {path.relative_to(shared) for path in (shared / "traces").iterdir() if path.suffix != ".csv"}
    nsight = {path.relative_to(shared) for path in (shared / "nsight").glob("*.sqlite")}
    before = {path.relative_to(shared) for path in (shared / "pairs").glob("*/before.json.gz")}
    brought = {path.relative_to(shared) for path in (shared / "recordings").iterdir() if path.suffix != ".csv"}
    assert {str(path) for path in traces | nsight | before | brought} == {case.path for case in load_cases()}


@each_case
def test_the_first_finding_is_the_first_cause(case: Case, report_on: Callable[[str], Report]) -> None:
    report = report_on(case.path)
    head = head_of(report)
    said = f"{head.rule}: {head.title}" if head else [each.sentence for each in report.unexplained]
    assert any(is_first(each, report) for each in case.first), f"{case.cause}\n  not {said}"
    assert head is not None or not case.words
    missing = [word for word in case.words if head and not find(word, texts_of(head))]
    assert not missing, f"{said} does not say {missing}"


@each_case
def test_what_the_reader_has_to_know_is_said(case: Case, report_on: Callable[[str], Report]) -> None:
    texts = texts_in(report_on(case.path))
    missing = [pattern for pattern in (*case.says, *([ONE_OFF] if case.one_off else ())) if not find(pattern, texts)]
    assert not missing, f"{case.cause}: nothing says {missing}"


@each_case
def test_the_fix_of_the_cause_is_offered(case: Case, report_on: Callable[[str], Report]) -> None:
    advice = advice_of(report_on(case.path))
    missing = [pattern for pattern in case.offer if not find(pattern, advice)]
    assert not missing, f"{case.cause}: nothing offers {missing}"


@each_case
def test_no_fix_is_offered_that_this_program_cannot_use(case: Case, report_on: Callable[[str], Report]) -> None:
    report = report_on(case.path)
    wrong = [
        f"{finding.rule} offers {pattern}: {text}"
        for finding in report.findings
        for pattern in case.forbidden()
        for text in find(pattern, (finding.advice, finding.fix))
    ]
    assert not wrong, "\n".join(wrong)


@each_case
def test_the_first_fix_is_worth_what_the_raw_file_allows(case: Case, report_on: Callable[[str], Report]) -> None:
    report = report_on(case.path)
    head = head_of(report)
    if not case.saves_ms or head is None:
        return
    low_ms, high_ms = case.saves_ms
    saving = head.saving.alone
    worth_ns = saving.high_ns if saving.expected_ns is None else saving.expected_ns
    assert low_ms * 1e6 <= (worth_ns or 0) <= high_ms * 1e6, f"{head.rule} saves {(worth_ns or 0) / 1e6:.1f} ms"


@each_case
def test_the_steps_are_those_of_the_raw_file(case: Case, report_on: Callable[[str], Report]) -> None:
    report = report_on(case.path)
    if case.steps is None:
        return
    count, step_ms = case.steps
    assert report.steps.count == count
    assert abs((report.steps.median_ns or 0) / 1e6 - step_ms) <= STEP_TOLERANCE * step_ms


@each_case
def test_high_is_worth_its_name(case: Case, report_on: Callable[[str], Report]) -> None:
    report = report_on(case.path)
    for finding in report.findings:
        if finding.severity == "high" and finding.rule not in CORRECTNESS:
            expected_ns = finding.saving.alone.expected_ns
            worth_ns = finding.cost_ns if expected_ns is None else expected_ns
            assert worth_ns >= MIN_HIGH_SHARE * step_ns_of(report, finding), finding.title


@each_case
def test_no_large_slice_stays_unsaid(case: Case, report_on: Callable[[str], Report]) -> None:
    report = report_on(case.path)
    explained = {(each.rank, each.detail) for each in report.unexplained}
    unsaid = []
    for account in report.account:
        claims = [f.claim.intervals for f in report.findings if account.rank in (f.rank, f.claim.rank)]
        claimed = iv.union_of(claims)
        for detail, part in account.parts.items():
            roof = account.roofs.get(detail)
            roofs_known = roof is not None and roof.known_share > 0.5
            share = iv.total(iv.subtract(part, claimed)) / max(account.window_ns, 1)
            at_a_roof = detail in ("compute", "bandwidth")
            if share <= (LARGE_SLICE_AT_A_ROOF if at_a_roof else LARGE_SLICE) or (at_a_roof and roofs_known):
                continue
            if (account.rank, detail) not in explained:
                unsaid.append(f"{detail} {share:.0%}")
    assert not unsaid, unsaid


@each_case
def test_the_ladder_goes_down(case: Case, report_on: Callable[[str], Report]) -> None:
    """Now, after each fix, after all fixes, at the limit: no step of the ladder is longer than the one before it."""
    report = report_on(case.path)
    after = [each.value for f in report.findings for each in f.evidence if each.id == STEP_AFTER and each.value]
    known = [each for each in after if isinstance(each, int)]
    assert known == sorted(known, reverse=True), [f"{each / 1e6:.2f} ms" for each in known]
    ladder = (report.steps.median_ns, report.limit.after_fixes_ns, report.limit.step_ns)
    rungs = [each for each in ladder if each is not None]
    assert rungs == sorted(rungs, reverse=True), f"now, after fixes, limit: {ladder}"


@each_case
def test_what_a_better_fix_covers_is_at_most_low(case: Case, report_on: Callable[[str], Report]) -> None:
    findings = report_on(case.path).findings
    for position, finding in enumerate(findings):
        if finding.covered_by is not None:
            assert 0 <= finding.covered_by < len(findings)
            assert finding.covered_by != position
            assert finding.severity in ("info", "low"), finding.title


def test_most_replayed_promises_begin_above_zero(report_on: Callable[[str], Report]) -> None:
    # First passes have few promises, and those of the single kind "up to": steady recordings are what this is about.
    steady = [case for case in load_cases() if not case.path.startswith("recordings/")]
    findings = [finding for case in steady for finding in report_on(case.path).findings]
    findings = [finding for finding in findings if finding.rule not in ONLY_UP_TO]
    replayed = [finding.saving for finding in findings if finding.saving.basis == "replayed" and finding.saving.high_ns]
    above = [saving for saving in replayed if saving.low_ns]
    assert len(above) >= MIN_PROMISES_ABOVE_0 * len(replayed), f"{len(above)} of {len(replayed)}"


def test_the_page_shows_the_table(request: pytest.FixtureRequest) -> None:
    page = write_page(load_cases())
    if request.config.getoption("--update-golden"):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page


def write_page(cases: Sequence[Case]) -> str:
    """The table as a page of docs/."""
    rows = [f"| {case.path} | {kind_of(case)} | {case.cause} | {quote(case.first)} |" for case in cases]
    fixes = [f"| {case.path} | {quote(case.offer)} | {quote(case.never)} |" for case in cases]
    figures = [f"- **{case.path}**: {case.why}" for case in cases]
    return "\n".join([HEAD, CAUSES, *rows, FIXES, *fixes, FIGURES, *figures, ""])


def kind_of(case: Case) -> str:
    """What program a recording is of, in words."""
    marks = {"loader": case.loader, "DDP": case.ddp, "a one-off": case.one_off}
    return ", ".join([case.phase, *(name for name, has in marks.items() if has)])


def quote(texts: Iterable[str]) -> str:
    """Texts as code in a cell of a table."""
    return ", ".join(f"`{text.replace('|', chr(92) + '|')}`" for text in texts) or "-"


HEAD = """# First causes

What is wrong in each shared recording, what a report has to offer there, and what it must not. Each row was decided
from the raw recording by scripts that share no code with perfdoctor, before anybody looked at a report; what was mended
afterwards was mended by the raw recording, and its commit says why.
`tests/corpus/first_causes.toml` is the source, `tests/corpus/test_first_causes.py` compares reports with it, and
`pytest tests/corpus/test_first_causes.py --update-golden` writes this page.
"""
CAUSES = """## Causes

The last column names the rules that may stand first. `once` is a head that calls the recording a first run, by its
largest cause, `unexplained` is a sentence about a part of the account and no
finding, `unrecorded` no finding but what to record, `clean` nothing above low.

| recording | program | first cause | first in the report |
|---|---|---|---|"""
FIXES = """
## Fixes

Regular expressions over advice and fixes. Beside those in the table, no advice speaks of training in a forward pass, of
DDP where there is none, or of loader workers where there is no loader.

| recording | offered | never offered |
|---|---|---|"""
FIGURES = """
## Figures
"""
