"""Where the time of a step went: the account of an average step, with a label for each part. No layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from perfdoctor.analysis.timeline.account import BUCKETS, DETAILS, Account
from perfdoctor.data_rows import read_rows
from perfdoctor.gpu import has_tensor_cores
from perfdoctor.report.report import Report
from perfdoctor.reporters.report_facts import gpu_not_recorded, has_gpu, has_steps, step_length_ns
from perfdoctor.units import format_count, format_duration, format_share

# A smaller share of the step is not shown: the same 1 % from which a finding counts as low.
_MIN_SHARE = 0.01
# A share of the matrix time that reads as all of it.
_FULLY_KNOWN = 0.995
# Steps whose variation (standard deviation over mean) is smaller are not said to vary.
_MIN_VARIATION = 0.10


def labels_of_details(words: str) -> Mapping[str, str]:
    """What details.csv has of each part of the account in one of its columns."""
    return {row["detail"]: row[words] for row in _DETAILS}


_DETAILS = read_rows("reporters/details.csv")
# Without GPU items the account is about the program on the CPU.
DETAIL_LABELS, CPU_DETAIL_LABELS, _SHORT_LABELS, _SHORT_CPU_LABELS = map(
    labels_of_details, ("gpu", "cpu", "short_gpu", "short_cpu")
)
# Details that are a whole bucket, or the largest part of one: the bar shows them already.
_SHOWN_IN_BAR = ("compute", "bandwidth", "communication")
_TENSOR_CORE_LABELS = (("used", "used"), ("slow_path", "slow path"), ("not_used", "not used"), ("unknown", "unknown"))


class TimeSlice(NamedTuple):
    """One part of a step: its label, its ns (per step where there are steps), and its share of the step.

    `roof` says of a bucket how near its kernels are to their limit: "54% of roof"; "" where that is not known.
    """

    label: str
    ns: float
    share: float
    roof: str = ""

    @property
    def label_with_roof(self) -> str:
        """The label, and how near its kernels are to their limit where that is known: "compute (54% of roof)"."""
        return f"{self.label} ({self.roof})" if self.roof else self.label


class TimeSplit(NamedTuple):
    """Where the time of an average step went, or of the window where there are no steps.

    Attributes:
        window_ns: The average step.
        title: The heading.
        buckets: The four buckets in the order of the bar; they add up to `window_ns`.
        details: Parts of the buckets that take a share worth showing, the largest first.
        tensor_cores: A line about the use of Tensor Cores; None where nothing is known.
        rates: A line about MFU and memory bandwidth; None where nothing is known of them.
        by_detail: Every detail by its name in the account, in the account's order; they add up to `window_ns`.
    """

    window_ns: float
    title: str
    buckets: tuple[TimeSlice, ...]
    details: tuple[TimeSlice, ...]
    tensor_cores: str | None
    rates: str | None = None
    by_detail: Mapping[str, TimeSlice] = MappingProxyType({})


def detail_labels(report: Report, *, short: bool = False) -> Mapping[str, str]:
    """The labels of the account's details, by the name of the detail; `short` for what stands in a line with others."""
    if short:
        return _SHORT_LABELS if has_gpu(report) else _SHORT_CPU_LABELS
    return DETAIL_LABELS if has_gpu(report) else CPU_DETAIL_LABELS


def time_split_of(report: Report) -> TimeSplit | None:
    """The account of an average step; None without an account, or where GPU time was not recorded.

    Of several ranks the shares are those of all their time, and the times are these shares of the longest step.
    """
    window_ns = sum(account.window_ns for account in report.account)
    if not window_ns or gpu_not_recorded(report):
        return None
    step_ns = step_length_ns(report)
    detail = {name: sum(account.detail.get(name, 0) for account in report.account) for name in DETAILS}

    def slice_of(label: str, ns: int) -> TimeSlice:
        return TimeSlice(label, step_ns * ns / window_ns, ns / window_ns)

    # Where no device has Tensor Cores it is no news that they are not used.
    may_have_cores = any(has_tensor_cores(each.device, None, each.vendor) is not False for each in report.traces)
    labels = detail_labels(report)
    by_detail = {name: slice_of(labels[name], ns) for name, ns in detail.items()}
    details = [part for name, part in by_detail.items() if name not in _SHOWN_IN_BAR]
    return TimeSplit(
        step_ns,
        _title(report, step_ns),
        tuple(
            slice_of(bucket, sum(detail[name] for name in names))._replace(roof=_describe_roof(report, bucket))
            for bucket, names in BUCKETS.items()
        ),
        tuple(sorted((part for part in details if part.share >= _MIN_SHARE), key=lambda part: -part.ns)),
        describe_tensor_cores(report, window_ns / step_ns) if may_have_cores else None,
        _describe_rates(report),
        by_detail,
    )


def _title(report: Report, step_ns: float) -> str:
    ranks = f" over {format_count(len(report.account), 'rank')}" if len(report.account) > 1 else ""
    if not has_steps(report):
        return f"Where the {format_duration(step_ns)} went{ranks and ' (mean' + ranks + ')'}"
    steps = format_count(report.steps.count, "step")
    inferred = ", inferred" if report.steps.source == "inferred" else ""
    variation = report.steps.variation
    varying = f", varying by {format_share(variation)}" if variation is not None and variation >= _MIN_VARIATION else ""
    mean = "mean of " if report.steps.count > 1 or ranks else ""
    return f"Where a step's {format_duration(step_ns)} go ({mean}{steps}{ranks}{inferred}{varying})"


def _describe_roof(report: Report, bucket: str) -> str:
    """The share of its roof that a bucket reaches, over all ranks; "" where less than half of its work is known."""
    known_ns = reached_ns = whole_ns = 0.0
    for account in report.account:
        roof, bucket_ns = account.roofs.get(bucket), account.detail.get(bucket, 0)
        whole_ns += bucket_ns
        if roof is not None:
            known_ns += roof.known_share * bucket_ns
            reached_ns += roof.share * roof.known_share * bucket_ns
    return f"{format_share(reached_ns / known_ns)} of roof" if known_ns and 2 * known_ns >= whole_ns else ""


def _describe_rates(report: Report) -> str | None:
    """How much of the device the steps use, on the mean of all ranks; None where nothing is known of it."""
    if not has_gpu(report):
        return None
    mfu = _describe_mfu(report.account)
    rates = [a.achieved_bytes_per_s for a in report.account if a.achieved_bytes_per_s is not None]
    moved = f"memory-bound kernels move {sum(rates) / len(rates) / 1e9:,.0f} GB/s" if rates else None
    return "; ".join(filter(None, (mfu, moved))) or None


def _describe_mfu(accounts: Iterable[Account]) -> str | None:
    """The FLOPs achieved over one peak, on the mean of the ranks where they are known, and over which peak."""
    known = [account for account in accounts if account.mfu is not None and account.mfu_peak_flops_per_s is not None]
    if not known:
        return None
    mfu = sum(account.mfu or 0 for account in known) / len(known)
    known_share = min(account.mfu_known_share or 0 for account in known)
    peak = f"of {known[0].mfu_peak_name} at {(known[0].mfu_peak_flops_per_s or 0) / 1e12:,.0f} TFLOP/s"
    if known_share >= _FULLY_KNOWN:
        return f"MFU {format_share(mfu)} {peak}"
    return f"MFU at least {format_share(mfu)} {peak} (work known for {format_share(known_share)} of the matrix time)"


def describe_tensor_cores(report: Report, steps: float) -> str | None:
    """How much of the matrix work runs on Tensor Cores, per step; None where nothing is known about any of it.

    AMD calls them matrix cores.
    """
    totals: dict[str, int] = {}
    for account in report.account:
        for use, ns in account.tensor_core.items():
            totals[use] = totals.get(use, 0) + (ns or 0)
    whole_ns = sum(totals.values())
    if not whole_ns or totals.get("unknown", 0) == whole_ns:
        return None
    uses = [
        f"{label} {format_share(totals.get(use, 0) / whole_ns)}"
        for use, label in _TENSOR_CORE_LABELS
        if totals.get(use, 0) >= _MIN_SHARE * whole_ns
    ]
    cores = "Matrix cores" if all(trace.vendor == "amd" for trace in report.traces) else "Tensor Cores"
    return f"{cores} in {format_duration(whole_ns / steps)} of matrix work: {', '.join(uses)}"
