"""The line of the user's code at an instant of a trace."""

from __future__ import annotations

import linecache
from pathlib import Path

import numpy as np
import pytest

from perfdoctor.analysis.host.locations import SourceLocation, find_locations, most_common_location
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.report.quote_lines import with_source_lines
from perfdoctor.savings.saving import Saving
from perfdoctor.testing import TraceBuilder

LIBRARY = "/opt/site-packages/torch/nn/modules/linear.py(114): forward"


def location_at(trace: TraceBuilder, at_us: float) -> SourceLocation | None:
    built = trace.trace()
    return find_locations(built, np.zeros(1, np.int32), np.array([round(1000 * at_us)]))[0]


def nested_frames() -> TraceBuilder:
    trace = TraceBuilder(device=None)
    outer = trace.frame("train.py(3): main", 0, 100)
    inner = trace.frame("model.py(40): forward", 10, 50, parent=outer)
    trace.frame(LIBRARY, 20, 20, parent=inner)
    return trace


def test_the_location_is_that_of_the_innermost_frame_of_no_library() -> None:
    assert location_at(nested_frames(), 30) == SourceLocation("model.py", 40, "forward")
    assert location_at(nested_frames(), 70) == SourceLocation("train.py", 3, "main")
    assert location_at(nested_frames(), 150) is None


def test_a_captured_line_is_exact_and_comes_first() -> None:
    trace = nested_frames().range("@train.py:17", 25, 10)
    assert location_at(trace, 30) == SourceLocation("train.py", 17)
    assert location_at(trace, 22) == SourceLocation("model.py", 40, "forward")


def test_builtins_and_frozen_modules_are_no_location() -> None:
    trace = TraceBuilder(device=None)
    trace.frame("<built-in method item of Tensor object>", 0, 10)
    trace.frame("<frozen importlib._bootstrap>(1176): _find_and_load", 20, 10)
    assert location_at(trace, 5) is None
    assert location_at(trace, 25) is None


@pytest.mark.parametrize(
    "frame",
    [
        "vllm/model_executor/parameter.py(122): __torch_function__",
        "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py(1594): event_loop_overlap",
        "torchrec/distributed/train_pipeline.py(10): progress",
        "deepspeed/runtime/engine.py(10): forward",
        "megatron/core/pipeline_parallel/schedules.py(10): forward_step",
        "flash_attn/flash_attn_interface.py(10): forward",
        "timm/models/vision_transformer.py(10): forward",
        "PIL/Image.py(10): resize",
        "enum.py(10): __call__",
        "json/decoder.py(10): decode",
        "logging/__init__.py(10): info",
        "datasets/arrow_dataset.py(10): __getitem__",
        "/tmp/torchinductor_me/4o/c4o.py(10): call",
    ],
)
def test_frames_of_libraries_are_no_location(frame: str) -> None:
    trace = TraceBuilder(device=None)
    trace.frame(frame, 10, 10, parent=trace.frame("train.py(3): main", 0, 100))
    assert location_at(trace, 15) == SourceLocation("train.py", 3, "main")


@pytest.mark.parametrize(
    "file",
    ["profile.py", "project/datasets/faces.py", "/home/me/ray/train.py", "my_vllm/run.py", "types.py", "models.py"],
)
def test_files_of_users_are_locations(file: str) -> None:
    trace = TraceBuilder(device=None)
    trace.frame(f"{file}(3): main", 0, 100)
    assert location_at(trace, 15) == SourceLocation(file, 3, "main")


def test_a_line_of_5000_digits_is_no_location() -> None:
    trace = TraceBuilder(device=None).range("@a.py:" + "9" * 5000, 0, 10)
    trace.frame("a.py(" + "9" * 5000 + "): f", 0, 10)
    assert location_at(trace, 5) is None


def test_frames_on_a_separate_thread_count_for_all_threads() -> None:
    trace = TraceBuilder(device=None).op("aten::mm", 0, 100, thread=1)
    trace.frame("train.py(3): main", 0, 100, thread=2)
    assert Rank(trace.trace()).places.line_of_named("^aten::mm$") == SourceLocation("train.py", 3, "main")


def test_the_evidence_trace_is_used_where_the_timing_trace_has_no_frames() -> None:
    timing = TraceBuilder(device=None).op("aten::mm", 0, 100).trace()
    evidence = TraceBuilder(device=None).op("aten::mm", 500, 100)
    evidence.frame("train.py(8): step", 400, 300)
    assert Rank(timing).places.line_of_named("^aten::mm$") is None
    assert Rank(timing, evidence_trace=evidence.trace()).places.line_of_named("^aten::mm$") == SourceLocation(
        "train.py", 8, "step"
    )


def test_a_name_with_special_characters_is_no_pattern() -> None:
    trace = TraceBuilder(device=None).op("mm.*", 0, 10).op("mm_x", 20, 10)
    trace.frame("a.py(1): f", 0, 12)
    trace.frame("b.py(2): g", 19, 12)
    assert Rank(trace.trace()).places.line_of_named(r"^mm\.\*$") == SourceLocation("a.py", 1, "f")


def test_the_most_common_location_is_the_one_found_most_often() -> None:
    a, b = SourceLocation("a.py", 1), SourceLocation("b.py", 2)
    assert most_common_location([a, None, b, None, b, None]) == b
    assert most_common_location([None]) is None
    assert (str(a), str(SourceLocation("c.py"))) == ("a.py:1", "c.py")


def test_a_captured_line_may_name_its_function() -> None:
    trace = nested_frames().range("@train.py:17 step", 25, 10).range("@dir name/a:b.py:3 <lambda>", 60, 10)
    assert location_at(trace, 30) == SourceLocation("train.py", 17, "step")
    assert location_at(trace, 65) == SourceLocation("dir name/a:b.py", 3, "<lambda>")


def test_lines_recorded_among_the_operators_are_locations_and_no_operators() -> None:
    trace = TraceBuilder(device=None).op("@train.py:17 step", 0, 100).op("aten::mm", 10, 50).trace()
    assert Rank(trace).places.line_of_named("^aten::mm$") == SourceLocation("train.py", 17, "step")


def finding_at(file: str | None, line: int | None = 2) -> Finding:
    return Finding(
        rule="PD102",
        name="host-device-sync",
        title="",
        cost_ns=1,
        share_of_step=None,
        severity="info",
        saving=Saving(),
        advice="",
        location=SourceLocation(file, line) if file else None,
        evidence=(Evidence("waits per step", 1),),
    )


def test_the_source_line_is_evidence_where_the_file_can_be_read(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("for batch in loader:\n    running += loss.item()  # every step\ndef main():\n")
    (quoted,) = with_source_lines([finding_at(str(source))], linecache.getline)
    assert quoted.evidence == (
        Evidence("source line", "running += loss.item()  # every step", id="source-line"),
        Evidence("waits per step", 1),
    )


def test_definitions_other_files_and_missing_lines_are_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, other = tmp_path / "train.py", tmp_path / "secrets.txt"
    source.write_text("def main():\n@torch.no_grad()\nloss.item()\n")
    monkeypatch.chdir(tmp_path)
    other.write_text("a\npassword\n")
    plain = [finding_at(str(source), line) for line in (1, 2, 99, None)]
    plain += [
        finding_at(str(other)),
        finding_at(str(tmp_path / "gone.py")),
        finding_at(None),
        finding_at("train.py", 3),
    ]
    assert with_source_lines(plain, linecache.getline) == tuple(plain)


def test_a_phase_of_the_evidence_trace_has_the_line_of_the_code_around_it() -> None:
    """Compiling is recorded as ops by some versions of PyTorch and as ranges by others."""
    timing = TraceBuilder(device=None).step(0, 100).op("compile", 10, 50)
    lines = "@/home/me/train.py:28 main"
    ops = TraceBuilder(device=None).range(lines, 0, 100).op("compile", 10, 50)
    ranges = TraceBuilder(device=None).range(lines, 0, 100).range("compile", 10, 50)
    for evidence in (ops, ranges):
        places = Rank(timing.trace(), evidence_trace=evidence.trace()).places
        assert places.line_of_named("^compile$") == SourceLocation("/home/me/train.py", 28, "main")
        assert places.line_of_named("^link$") is None
    unmarked = TraceBuilder(device=None).op("compile", 10, 50)
    assert Rank(timing.trace(), evidence_trace=unmarked.trace()).places.line_of_named("^compile$") is None


@pytest.mark.parametrize("callers", [(1,), (2, 1), (3, 1, 2)])
def test_frames_that_call_each_other_in_a_circle_end(callers: tuple[int, ...]) -> None:
    trace = TraceBuilder(device=None)
    trace.op("aten::add", 0, 10)
    for caller in callers:
        trace.frame(LIBRARY, 0, 100, parent=caller)
    assert location_at(trace, 50) is None


def test_a_caller_that_began_later_is_none() -> None:
    trace = TraceBuilder(device=None)
    trace.frame(LIBRARY, 10, 50, parent=2)
    trace.frame("other.py(3): main", 20, 100)
    assert location_at(trace, 15) is None
