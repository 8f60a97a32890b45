"""Report: the one value that every reporter renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from perfdoctor.analysis.context.context import UNKNOWN_CONTEXT, Context
from perfdoctor.analysis.context.where_it_ran import DeviceKind
from perfdoctor.analysis.kernels.hardware import DeviceSource
from perfdoctor.analysis.step_breakdown import StepBreakdown
from perfdoctor.analysis.timeline.account import Account
from perfdoctor.analysis.timeline.first_use import OnceCause
from perfdoctor.analysis.timeline.timeline import Timeline
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.devices import Vendor
from perfdoctor.places.place import Place
from perfdoctor.report.chart_data import RankCharts
from perfdoctor.report.finding import Finding
from perfdoctor.report.memory_summary import MemorySummary
from perfdoctor.report.pass_summary import PassSummary
from perfdoctor.report.table_rows import ReportTables
from perfdoctor.report.to_plain import to_plain
from perfdoctor.report.trial_result import Trial, TrialSummary
from perfdoctor.run_watch.hang import Hang, HangReading
from perfdoctor.run_watch.run_series import RunSeries
from perfdoctor.value_limits import Amount, Positive, Share

StepSource: TypeAlias = Literal["annotated", "inferred", "none"]

TABLES = ("kernels", "ops", "lines", "modules", "collectives")
SHORT_TEXT_TABLES = ("ops", "lines")
"""The tables that the short text shows; longer ones and files show all."""


@frozen_dataclass
class TraceSummary:
    """One trace file in the report.

    `base_ns` plus a time of the trace is nanoseconds since the epoch. It is not part of the schema: it aligns what was
    recorded beside the trace by another clock.

    Attributes:
        device_from: Where the name of the device is from.
        ran_on: What computed, which need not be the device that the file names; None for a file that was not read. Not
            part of the schema.
        complete: False when the file was cut short.
        core_share: Of the time for which a thread of the program asked for a core, the share for which it had one,
            where other programs took a fifth and more; null where they took less, or where nobody measured it.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = (
        *("path", "rank", "world_size", "device", "device_from", "vendor", "complete", "events", "span_ns", "warnings"),
        "core_share",
    )

    path: str
    rank: int | None
    world_size: Positive | None
    device: str | None
    vendor: Annotated[str, ("enum", get_args(Vendor))] | None
    complete: bool
    events: int
    span_ns: int
    warnings: tuple[str, ...] = ()
    base_ns: int = 0
    device_from: DeviceSource | None = None
    ran_on: DeviceKind | None = None
    core_share: Share | None = None


@frozen_dataclass
class StepSummary:
    """The steps of a trace: median, mean and variation (standard deviation over mean); None without steps.

    `one_off_ns` is the time of what happens once, which no step of those to come will repeat: in the window, and in the
    start of the process before it; None where it is not known.

    Median and mean are those of the step without the profiler where a capture timed such steps, as all costs and
    savings are; `recorded_median_ns` is the median of the recorded steps, which timeline and account are of.

    Attributes:
        median_ns: Without the profiler, where a capture timed steps without it, as all costs and savings are.
        recorded_median_ns: The median step as it was recorded; timeline, account and unexplained are recorded time.
        variation: Standard deviation over mean.
        one_off_ns: Time of what happens once and does not come back.
        timed_median_ns: Without the profiler, and with what other programs took, where that is much.
        between_ns: Mean time from the end of a step to the start of the next, as recorded, which no step and no other
            figure has; None with fewer than two steps.
    """

    count: int = 0
    source: StepSource = "none"
    median_ns: int | None = None
    mean_ns: int | None = None
    recorded_median_ns: int | None = None
    variation: Amount | None = None
    one_off_ns: int | None = None
    timed_median_ns: int | None = None
    between_ns: int | None = None


@frozen_dataclass
class Outcome:
    """What became of one rule: ran, skipped (`why` says what to capture) or failed (`why` is the error)."""

    rule: str
    status: Literal["ran", "skipped", "failed"]
    why: str | None = None
    seconds: Amount = 0.0


@frozen_dataclass
class Limit:
    """How short a step can get: now `StepSummary.median_ns`, then `after_fixes_ns`, at the limit `step_ns`.

    Attributes:
        step_ns: The step when every kernel runs at its roof and nothing waits; None where too little is known.
        known_share: The share (0 to 1) of the kernel time whose roof is known; other kernels keep their time.
        after_fixes_ns: The step after all fixes of the report, as expected; None where no fix has a figure.
        basis: How these are known, in words.
    """

    step_ns: int | None = None
    known_share: Share | None = None
    after_fixes_ns: int | None = None
    basis: str = ""


UNKNOWN_LIMIT = Limit()


@frozen_dataclass
class OncePart:
    """What happens once in a recording by one cause.

    Attributes:
        time_ns: Its time, which no other cause shares.
        share: Its share (0 to 1) of the recording.
        calls: How many calls or ranges it is; of "other" how many gaps.
        longest: The longest of them, and the op around it; None where there is none with a name.
        longest_ns: How long that takes.
    """

    cause: OnceCause
    time_ns: int
    share: Share
    calls: int
    longest: str | None = None
    longest_ns: int | None = None


@frozen_dataclass
class OnceOnly:
    """What happens once in the recording of a rank: first uses, which no step to come repeats.

    Attributes:
        recording_ns: How long the recording is.
        time_ns: All that happens once, in the analysed time or not.
        share: Its share (0 to 1) of the recording.
        is_first_run: Whether nothing comes back: there are no steps, and most of the time happens once.
        left_out_ns: What of it the account, the findings and the limit would be of, and are not.
        cold_steps: How many steps at the beginning are left out as a whole.
        parts: By cause, the longest first.
    """

    rank: int | None
    recording_ns: int
    time_ns: int
    share: Share
    is_first_run: bool
    left_out_ns: int
    cold_steps: int
    parts: tuple[OncePart, ...]


@frozen_dataclass
class UnexplainedSlice:
    """A slice of a rank's account that no finding claims, with what is known of it in a sentence.

    `detail` is the name of the slice in the account, `ns` its time in the window that no finding claims, and `share`
    (0 to 1) that time's share of the window.
    """

    rank: int | None
    detail: str
    ns: int
    share: Share
    sentence: str


@frozen_dataclass
class Report:
    """The result of an analysis: the findings in order, and a timeline and an account for each rank.

    `timeline` and `account` are in the order of `traces`. Ranks that could not be analysed stand at the end of `traces`
    and have neither. `late_ns` says by rank how much later than the second-latest it comes to the collectives of a
    step. It is empty where nobody waits or collectives could not be matched, and not part of the schema.

    `context` is that of the first rank: all ranks of a job run the same program. `limit` is that of the rank whose step
    is longest, and so are `tables`: "ops" and "lines" of the user's code with the most own time, the others for
    `perfdoctor show`. `trials` are those of `perfdoctor try`; `trial_summary` is what they have in common, and not part
    of the schema. `program_folders` are where the program lies and runs, as captured: people read paths relative to
    them. They are not part of the schema, nor is `program_name`, the name of the script. Nor are `breakdowns`, what
    the steps of each rank hold, which are there only for a comparison, and `charts`, those of the rank whose step is
    longest, which are there only for a page.

    Attributes:
        version: The version of perfdoctor that wrote it.
        findings: Ranked: what is expected to save most comes first.
        places: The places of each rank's step, the largest first; they add up to the step.
        once: What happens once on each rank, and is not in its account; empty where nothing does.
        memory: The memory of each device of each rank, where it was recorded.
        passes: The passes of a serving engine over its batch, by rank and kind; empty without one.
        hang: Why the job makes no step any more; None where its ranks move, or nothing was read that says it.
        run: The steps of the whole run, of the first rank that timed them; None where too few were timed.
        hang_reading: What was read for it; not part of the schema.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = (
        *("schema", "version", "traces", "context", "steps", "limit", "timeline", "account", "places", "once"),
        *("unexplained", "findings", "tables", "memory", "passes", "hang", "run", "trials", "outcomes"),
    )

    schema: ClassVar[str] = "perfdoctor.report/2"

    version: str
    traces: tuple[TraceSummary, ...]
    steps: StepSummary
    timeline: tuple[Timeline, ...]
    account: tuple[Account, ...]
    findings: tuple[Finding, ...]
    outcomes: tuple[Outcome, ...]
    places: tuple[Place, ...] = ()
    late_ns: Mapping[int | None, int] = field(default_factory=dict)
    context: Context = UNKNOWN_CONTEXT
    limit: Limit = UNKNOWN_LIMIT
    once: tuple[OnceOnly, ...] = ()
    unexplained: tuple[UnexplainedSlice, ...] = ()
    tables: Annotated[Mapping[str, tuple[Mapping[str, Any], ...]], ReportTables] = field(
        default_factory=lambda: dict.fromkeys(TABLES, ())
    )
    memory: tuple[MemorySummary, ...] = ()
    passes: tuple[PassSummary, ...] = ()
    hang: Hang | None = None
    run: RunSeries | None = None
    trials: tuple[Trial, ...] = ()
    trial_summary: TrialSummary | None = None
    program_folders: tuple[str, ...] = ()
    program_name: str | None = None
    breakdowns: tuple[StepBreakdown, ...] = field(default=(), repr=False, compare=False)
    charts: RankCharts | None = field(default=None, repr=False, compare=False)
    hang_reading: HangReading | None = field(default=None, repr=False, compare=False)

    @property
    def missing(self) -> tuple[TraceSummary, ...]:
        """The ranks that could not be analysed; their warnings say why."""
        return self.traces[len(self.timeline) :]

    @property
    def explains_everything(self) -> bool:
        """Whether findings, and kernels near their roof, fill the time of every rank, but for slices under 5 %.

        Only then a report without findings may say that nothing was found.
        """
        return bool(self.timeline) and not self.unexplained

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data by schema perfdoctor.report/2: times in int64 ns, None for unknown."""
        plain: dict[str, Any] = to_plain(self)
        return plain
