"""`compare` on real recordings before and after a change, and its figures against the events of the raw files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

import perfdoctor
from perfdoctor.compare_traces import Comparison

pytestmark = pytest.mark.corpus

Event = dict[str, Any]


@pytest.fixture(scope="module")
def compare(shared: Path) -> Callable[[str, str], Comparison]:
    return cache(lambda before, after: perfdoctor.compare(shared / before, shared / after))


@lru_cache(maxsize=2)
def read_events(path: Path) -> list[Event]:
    content = json.loads(gzip.decompress(path.read_bytes()))
    return content if isinstance(content, list) else content["traceEvents"]


def profiler_steps_us(events: list[Event]) -> list[float]:
    marks = [event for event in events if event.get("ph") == "X" and event["name"].startswith("ProfilerStep#")]
    return [event["dur"] for event in sorted(marks, key=lambda event: event["ts"])]


def check_sums(comparison: Comparison) -> None:
    difference_ns = comparison.after.mean_ns - comparison.before.mean_ns
    assert sum(row.difference_ns for row in comparison.account) == difference_ns
    for name in ("kernels", "ops", "modules", "collectives"):
        table = comparison.table(name)
        if table.is_known:
            assert sum(row.difference_ns for row in table.rows) + (table.remainder_ns or 0) == difference_ns, name


def test_workers_for_a_loader_without_any(shared: Path, compare: Callable[[str, str], Comparison]) -> None:
    names = [f"traces/v100-bare-list-workers{workers}.json.gz" for workers in (0, 4)]
    comparison = compare(*names)
    check_sums(comparison)
    assert comparison.comparable
    assert comparison.step.verdict == "faster"
    # PAIRS.csv: 211.7 -> 173.8 ms by the marks; the steps here end when the GPU has done what they launched.
    marked = [profiler_steps_us(read_events(shared / name)) for name in names]
    assert comparison.step.before_ns == pytest.approx(1000 * median(marked[0]), rel=0.01)
    assert comparison.step.after_ns == pytest.approx(1000 * median(marked[1]), rel=0.01)
    assert comparison.before.mean_ns == pytest.approx(1000 * mean(marked[0]), rel=0.03)
    row = comparison.kernels.rows[0]
    assert row.kind == "idle_dataloader"
    loading_us = [
        sum(event["dur"] for event in read_events(shared / name) if "DataLoaderIter.__next__" in event.get("name", ""))
        for name in names
    ]
    # The GPU idles for most of what the loop waits for the loader: it finishes what was launched before.
    assert 0.75 <= row.difference_ns / (1000 * (loading_us[1] - loading_us[0]) / 6) <= 1.0
    assert {change.rule for change in comparison.findings if change.status == "fixed"} == {"PD101"}
    (promise,) = comparison.promises
    assert (promise.rule, promise.outcome) == ("PD101", "kept")


def test_another_recording_of_the_same_change(compare: Callable[[str, str], Comparison]) -> None:
    comparison = compare("pairs/v100-dgxs-workers-b/before.json.gz", "pairs/v100-dgxs-workers-b/after.json.gz")
    check_sums(comparison)
    assert comparison.comparable
    # First and last step of `after` are as slow as those before: with two of six steps slow it may be more than noise.
    assert comparison.step.difference_ns == pytest.approx(-51.2e6, rel=0.1)
    assert comparison.kernels.rows[0].kind == "idle_dataloader"


def test_two_recordings_of_one_program_are_the_same(compare: Callable[[str, str], Comparison]) -> None:
    comparison = compare("pairs/h100-null/before.json.gz", "pairs/h100-null/after.json.gz")
    check_sums(comparison)
    assert comparison.comparable
    assert comparison.step.verdict == "same"
    assert (comparison.step.before_ns, comparison.step.after_ns) == (797_000, 860_000)
    assert {change.status for change in comparison.findings} == {"still there"}
    assert comparison.promises == ()


def test_other_precision_and_compiled_code_by_what_replaced_what(
    shared: Path, compare: Callable[[str, str], Comparison]
) -> None:
    folder = "pairs/a100-sam-9566500-fp32-fast"
    comparison = compare(f"{folder}/before.json.gz", f"{folder}/after.json.gz")
    check_sums(comparison)
    assert [reason.aspect for reason in comparison.reasons] == ["steps"]
    assert any("one side runs compiled code" in note for note in comparison.notes)
    # PAIRS.csv: 1377.1 -> 498.8 ms from the first to the last GPU item.
    for side, name in ((comparison.before, "before"), (comparison.after, "after")):
        items = [event for event in read_events(shared / folder / f"{name}.json.gz") if is_gpu_item(event)]
        span_us = max(event["ts"] + event["dur"] for event in items) - min(event["ts"] for event in items)
        assert side.mean_ns == pytest.approx(1000 * span_us, abs=2000)
    replaced = [row for row in comparison.kernels.rows if row.status == "replaced" and "sgemm" in row.name]
    assert any("bf16" in (row.new_name or "") for row in replaced)
    assert "PD201" in {change.rule for change in comparison.findings if change.status == "fixed"}


def is_gpu_item(event: Event) -> bool:
    return event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")


def test_recordings_that_are_no_pair_are_not_judged(compare: Callable[[str, str], Comparison]) -> None:
    """MANIFEST.csv: other machine or part of the program."""
    comparison = compare("traces/a100-sam-fp32.json.gz", "traces/a100-sam-bf16.json.gz")
    check_sums(comparison)
    assert [reason.aspect for reason in comparison.reasons] == ["steps"]
    assert comparison.step.difference_ns is None
    assert comparison.after.mean_ns < comparison.before.mean_ns


@pytest.mark.parametrize(
    ("before", "after", "aspect"),
    [
        ("pairs/rtx3060-batch4-32/before.json.gz", "pairs/rtx3060-batch4-32/after.json.gz", "shapes"),
        ("pairs/a100-part-batch2-64/before.json.gz", "pairs/a100-part-batch2-64/after.json.gz", "shapes"),
        ("traces/h100-timesformer-bf16.json.gz", "traces/mi250-minitoy.json.gz", "device"),
        ("traces/v100-bare-list-workers0.json.gz", "traces/h100-transformer-steps.json.gz", "model"),
        ("traces/a100-ddp-control", "traces/v100-ddp-test", "ranks"),
    ],
)
def test_what_differs_is_said(compare: Callable[[str, str], Comparison], before: str, after: str, aspect: str) -> None:
    comparison = compare(before, after)
    check_sums(comparison)
    assert aspect in {reason.aspect for reason in comparison.reasons}


def test_a_loader_bound_step_is_not_faster_for_a_faster_gpu(compare: Callable[[str, str], Comparison]) -> None:
    comparison = compare("pairs/t4-mlp-fp32-amp/before.json.gz", "pairs/t4-mlp-fp32-amp/after.json.gz")
    check_sums(comparison)
    assert comparison.step.verdict in ("same", "slower")
    assert comparison.step.difference_ns is not None
    assert comparison.step.difference_ns > 0


def busy_us(events: list[Event]) -> float:
    """How long the GPU works in a recording; what runs side by side counts once."""
    items = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    total, end = 0.0, 0.0
    for item in sorted(items, key=lambda item: item["ts"]):
        begin, until = max(item["ts"], end), item["ts"] + item["dur"]
        total, end = total + max(until - begin, 0.0), max(until, end)
    return total


@pytest.mark.parametrize(
    ("before", "after", "steps", "waits_for_cpu"),
    [
        # A ResNet in fp32 on one V100, and with TF32 on two A100, whose launches take 135 us each: slower there.
        ("v100-ns-resolution/rank0.json.gz", "a100-nccl-config/rank0.json.gz", (5, 3), True),
        # DLRM, 2 and 8 ranks: a part of the work alone has a partner.
        ("v100-ddp-test/rank1.json.gz", "a100-ddp-control/rank3.json.gz", (6, 6), False),
        # One pass of a decoder in a graph, bound by the memory.
        ("mi300x-decode-graph.json.gz", "b300-decode-graph.json.gz", (1, 1), False),
    ],
)
def test_one_program_on_two_devices(
    shared: Path,
    compare: Callable[[str, str], Comparison],
    before: str,
    after: str,
    steps: tuple[int, int],
    waits_for_cpu: bool,
) -> None:
    names = [f"traces/{name}" for name in (before, after)]
    made = compare(*names).devices
    assert made is not None
    for side, name, count in zip(("before_ns", "after_ns"), names, steps, strict=True):
        works_ns = sum(getattr(part, side) for part in made.parts if part.scales_with not in ("cpu", "nothing"))
        idle_or_short_ns = sum(getattr(part, side) for part in made.parts) - works_ns
        raw_ns = 1000 * busy_us(read_events(shared / name)) / count
        assert works_ns <= 1.02 * raw_ns
        assert works_ns + idle_or_short_ns >= 0.98 * raw_ns
    cpu = next(part for part in made.parts if part.scales_with == "cpu")
    assert (cpu.after_ns > 0.5 * made.after_ns) == waits_for_cpu
    assert made.usual_low_ns <= made.usual_ns <= made.usual_high_ns
