"""The peaks of memory of two recordings: the difference, what it is made of, and silence where one side has none."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfdoctor
from perfdoctor.comparison.memory_changes import SeenPeak, compare_peaks
from perfdoctor.memory.categories import CATEGORIES
from perfdoctor.reporters.comparison_markdown import render_comparison_markdown
from perfdoctor.reporters.comparison_terminal import ComparisonTerminal
from perfdoctor.reporters.json_ import load_schema
from perfdoctor.testing import TraceBuilder

MB = 1_000_000


def write(path: Path, megabytes: int, *, device: int | None = 0) -> Path:
    """Three steps, each with one activation of so many megabytes; without memory events for 0."""
    trace = TraceBuilder(device=None)
    for number in range(3):
        at = 1000.0 * number
        trace.step(at, 1000)
        trace.frame("nn.Module: Net_0", at + 100, 200)
        trace.op("aten::linear", at + 100, 100, sequence=number)
        trace.op("autograd::engine::evaluate_function: AddmmBackward0", at + 400, 150, sequence=number)
        if megabytes:
            trace.memory(at + 150, megabytes * MB, 5, device=device)
            trace.memory(at + 450, -megabytes * MB, 5, device=device)
    return trace.write(path)


def test_a_smaller_peak_is_told_with_what_it_is_made_of(tmp_path: Path) -> None:
    comparison = perfdoctor.compare(write(tmp_path / "a.json", 300), write(tmp_path / "b.json", 180))
    (change,) = comparison.memory
    assert (change.device, change.before_bytes, change.after_bytes) == (0, 300 * MB, 180 * MB)
    (part,) = change.by_category
    assert (part.category, part.difference_bytes) == ("activations", -120 * MB)
    text = ComparisonTerminal().render(comparison)
    assert "The peak of memory on GPU 0: 300 MB before, 180 MB after (-120 MB, 40%)." in text
    assert "300 MB     180 MB  activations" in text
    for other in (render_comparison_markdown(comparison), comparison._repr_html_()):
        assert "-120 MB" in other
        assert "is made of" in other
    jsonschema.validate(comparison.to_dict(), load_schema("comparison"))


def test_a_report_that_was_saved_is_compared_as_its_trace(tmp_path: Path) -> None:
    before, after = write(tmp_path / "a.json", 300), write(tmp_path / "b.json", 180)
    saved = tmp_path / "report.json"
    perfdoctor.analyze(before).save(saved)
    assert perfdoctor.compare(saved, after).memory == perfdoctor.compare(before, after).memory


@pytest.mark.parametrize(("before", "after", "note"), [(300, 0, "before"), (0, 300, "after"), (0, 0, None)])
def test_a_side_without_memory_is_not_compared(tmp_path: Path, before: int, after: int, note: str | None) -> None:
    comparison = perfdoctor.compare(write(tmp_path / "a.json", before), write(tmp_path / "b.json", after))
    said = [each for each in comparison.notes if "peak of memory" in each]
    assert comparison.memory == ()
    assert said == ([] if note is None else [said[0]])
    assert note is None or f"is known {note} alone" in said[0]


def test_the_same_peak_has_no_table(tmp_path: Path) -> None:
    before, after = write(tmp_path / "a.json", 300), write(tmp_path / "b.json", 300)
    text = ComparisonTerminal().render(perfdoctor.compare(before, after))
    assert "300 MB before, 300 MB after (the same)." in text
    assert "made of" not in text


def test_other_devices_are_not_compared(tmp_path: Path) -> None:
    before, after = write(tmp_path / "a.json", 300), write(tmp_path / "b.json", 300, device=1)
    assert perfdoctor.compare(before, after).memory == ()


PEAKS = st.lists(
    st.builds(
        lambda rank, device, parts: SeenPeak(rank, device, sum(parts), dict(zip(CATEGORIES, parts, strict=True))),
        st.integers(0, 2),
        st.none() | st.integers(0, 2),
        st.lists(st.integers(0, 1 << 40), min_size=len(CATEGORIES), max_size=len(CATEGORIES)),
    )
)


@given(before=PEAKS, after=PEAKS)
def test_parts_add_up_to_the_peaks_and_turning_round_turns_signs(before: list[SeenPeak], after: list[SeenPeak]) -> None:
    forth, back = compare_peaks(before, after), compare_peaks(after, before)
    assert [(each.rank, each.device, -each.difference_bytes) for each in back] == [
        (each.rank, each.device, each.difference_bytes) for each in forth
    ]
    for change in forth:
        assert sum(part.difference_bytes for part in change.by_category) == change.difference_bytes
        assert change.before_bytes in [each.allocated_bytes for each in before]
        assert sum(part.before_bytes for part in change.by_category) == change.before_bytes
