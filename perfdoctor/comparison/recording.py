"""A recording as a comparison sees it: its steps, its rows, its account and its findings, from a Report or its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from perfdoctor.analysis.device_work import DeviceWork
from perfdoctor.analysis.match_rows import RowTime, rows_of_table
from perfdoctor.analysis.step_breakdown import RowKey
from perfdoctor.analysis.step_noise import StepSample
from perfdoctor.analysis.timeline.account import DETAILS
from perfdoctor.comparison.memory_changes import SeenPeak, peaks_of_json
from perfdoctor.comparison.seen_finding import SeenFinding, finding_of_json
from perfdoctor.errors import InputError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.report import Report
from perfdoctor.report.to_plain import to_plain

SCHEMA_PREFIX = "perfdoctor.report/"


@frozen_dataclass(eq=False)
class Recording:
    """What one recording says; all times are of one step, or of the recording where it has no steps.

    Attributes:
        path: Where it is from.
        steps: Its steps; without any figures where it has none.
        has_steps: Whether it has steps.
        mean_ns: The mean step, of the window where there are no steps; rows and account add up to it.
        is_unprofiled: Whether its times are those without the profiler.
        time_scale: What recorded time was multiplied by for that.
        account_ns: By detail of the account its time; empty where the account is not known.
        tables: By name the rows of each table.
        device: The name of the device; None where not known.
        is_device_inferred: Whether that is only what its kernels say.
        device_kind: "gpu", "cpu" or "gpu_not_recorded"; None where not known.
        ranks: The number of ranks of the job.
        rank: The rank whose steps these are, the slowest one; None where not known.
        phase: "training", "inference", "evaluation" or "unknown".
        matrix_ops: See `StepBreakdown`; empty where not known.
        has_varying_shapes: See `StepBreakdown`.
        recorded: What the profiler recorded beside times; None where not known.
        findings: The findings, in order.
        peaks: The peak of each device's memory, where it is known.
        missing: What cannot be compared because this recording lacks it, a sentence each.
        device_work, scaling_ns: See `StepBreakdown`, in recorded time; empty where not known.
    """

    path: str
    steps: StepSample
    has_steps: bool
    mean_ns: float
    is_unprofiled: bool
    time_scale: float
    account_ns: Mapping[str, float]
    tables: Mapping[str, Mapping[RowKey, RowTime]]
    device: str | None
    is_device_inferred: bool
    device_kind: str | None
    ranks: int
    rank: int | None
    phase: str
    matrix_ops: Mapping[tuple[str, str], float] = field(default_factory=dict)
    has_varying_shapes: bool = False
    recorded: tuple[str, ...] | None = None
    findings: tuple[SeenFinding, ...] = ()
    peaks: tuple[SeenPeak, ...] = ()
    missing: tuple[str, ...] = ()
    device_work: tuple[DeviceWork, ...] = ()
    scaling_ns: Mapping[str, float] = field(default_factory=dict)


def has_unprofiled_steps(source: Report | Mapping[str, Any]) -> bool:
    """Whether a report, or one as JSON, knows the steps without the profiler."""
    if isinstance(source, Report):
        return bool(source.breakdowns) and all(each.unprofiled_step_ns for each in source.breakdowns)
    steps = source["steps"]
    return steps.get("median_ns") is not None and steps.get("median_ns") != steps.get("recorded_median_ns")


def recording_of_report(report: Report, path: str, *, unprofiled: bool) -> Recording:
    """The recording that a report with breakdowns is of: that of the rank whose mean step is longest.

    With `unprofiled` its times are those without the profiler; `has_unprofiled_steps` says whether these are known.
    """
    scales = [each.time_scale if unprofiled else 1.0 for each in report.breakdowns]
    means = [scale * each.mean_step_ns for scale, each in zip(scales, report.breakdowns, strict=True)]
    longest = int(np.argmax(means))
    breakdown, scale, account = report.breakdowns[longest], scales[longest], report.account[longest]
    steps = max(len(breakdown.step_ns), 1)
    sample_ns = breakdown.unprofiled_step_ns if unprofiled else tuple((scale * breakdown.step_ns).tolist())
    return Recording(
        path=path,
        steps=_sample_of(sample_ns) if breakdown.has_steps else StepSample((), None, 0),
        has_steps=breakdown.has_steps,
        mean_ns=means[longest],
        is_unprofiled=unprofiled,
        time_scale=scale,
        account_ns={name: scale * account.detail[name] / steps for name in DETAILS},
        tables={
            **_tabulate_places(to_plain(report.places), account.rank, means[longest]),
            **{name: rows_of_table(table, scale) for name, table in breakdown.tables.items()},
        },
        device_kind=breakdown.device_kind,
        ranks=max([len(report.breakdowns), *(trace.world_size or 1 for trace in report.traces)]),
        rank=breakdown.rank if len(report.breakdowns) > 1 else None,
        matrix_ops=breakdown.matrix_ops,
        has_varying_shapes=breakdown.has_varying_shapes,
        recorded=breakdown.recorded,
        missing=tuple(warning for trace in report.missing for warning in trace.warnings[:1]),
        device_work=breakdown.device_work,
        scaling_ns=breakdown.scaling_ns,
        **_facts_of({name: to_plain(getattr(report, name)) for name in ("traces", "context", "findings", "memory")}),
    )


def _facts_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a recording says beside its times, from a report as plain data."""
    trace = next((trace for trace in report["traces"] if trace["device"]), None)
    return {
        "device": None if trace is None else trace["device"],
        "is_device_inferred": trace is not None and trace["device_from"] == "kernels",
        "phase": str(report["context"]["phase"]),
        "findings": tuple(map(finding_of_json, report["findings"])),
        "peaks": peaks_of_json(report.get("memory", ())),
    }


def _sample_of(step_ns: Sequence[float]) -> StepSample:
    values = np.asarray(step_ns, np.float64)
    variation = float(values.std() / values.mean()) if len(values) > 1 and values.mean() else None
    return StepSample(tuple(values.tolist()), float(np.median(values)), len(values), variation)


def check_report(report: Mapping[str, Any], path: str) -> None:
    """Check that a report.json can be compared.

    Raises:
        InputError: It is not a report of the schema that this version reads, or damaged.
    """
    schema = report.get("schema")
    if schema != Report.schema:
        what = f"a report of schema '{schema}'" if isinstance(schema, str) else "not a report of perfdoctor"
        raise InputError(
            f"{path} is {what}, and this version compares '{Report.schema}': analyze the trace again, or give the trace"
        )
    try:
        recording_of_json(report, path, unprofiled=has_unprofiled_steps(report))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise InputError(f"{path} does not hold what a report has to: analyze the trace again") from None


def recording_of_json(report: Mapping[str, Any], path: str, *, unprofiled: bool) -> Recording:
    """The recording that a report.json is of, as far as it says; see `check_report`."""
    steps, traces, accounts = report["steps"], report["traces"], report["account"]
    median_ns = steps["median_ns"] if unprofiled else steps["recorded_median_ns"]
    has_steps = median_ns is not None
    lengths = [account["window_ns"] for account in accounts]
    longest = int(np.argmax(lengths)) if lengths else None
    mean_ns = float(lengths[longest]) if longest is not None else 0.0
    if has_steps:
        mean_ns = float(steps["mean_ns"])
        mean_ns *= 1.0 if unprofiled else steps["recorded_median_ns"] / max(steps["median_ns"], 1)
    detail = accounts[longest]["detail"] if longest is not None and lengths[longest] else {}
    account_ns = {name: mean_ns * detail[name] / lengths[longest or 0] for name in DETAILS if name in detail}
    ops = tabulate_ops(report["tables"]["ops"], mean_ns)
    rank = accounts[longest]["rank"] if longest is not None else None
    return Recording(
        path=path,
        steps=StepSample((), median_ns, int(steps["count"]), steps["variation"]),
        has_steps=has_steps,
        mean_ns=mean_ns,
        is_unprofiled=unprofiled,
        time_scale=1.0,
        account_ns=account_ns,
        tables={**({"ops": ops} if ops else {}), **_tabulate_places(report["places"], rank, mean_ns)},
        device_kind=None,
        ranks=max([len(accounts), *(trace["world_size"] or 1 for trace in traces)]),
        rank=None,
        missing=(
            f"{path} is a report: it holds no single steps, kernels, shapes, modules and collectives, and only its ten "
            "largest ops; give the trace or the capture folder for the rest",
        ),
        **_facts_of(report),
    )


def _tabulate_places(
    places: Iterable[Mapping[str, Any]], rank: int | None, mean_ns: float
) -> dict[str, dict[RowKey, RowTime]]:
    """The table of the places of a rank, given as plain data; no table where there are no places."""
    rows = {}
    for place in (each for each in places if each["rank"] == rank):
        file = (place["file"] or "").replace("\\", "/").rpartition("/")[2]
        name = f"{file}:{place['line']}" if file else place["module"] or place["annotation"] or place["function"]
        calls = ", ".join(sorted(each["name"] for each in place["within"]))
        owner = f"{place['function'] or ''} in {file}" if file else ""
        key = RowKey(name or "outside your code", owner, calls, place["kind"])
        rows[key] = RowTime(np.array([(place["share"] or 0.0) * mean_ns]), place["calls"])
    return {"places": rows} if rows else {}


def tabulate_ops(rows: Iterable[Mapping[str, Any]], mean_ns: float) -> dict[RowKey, RowTime]:
    """The table of ops from the rows that a report has of them."""
    return {RowKey(str(row["name"])): RowTime(np.array([float(row["share"]) * mean_ns]), row["count"]) for row in rows}
