"""`perfdoctor.compare`: what it says of recordings with planted changes, and of those without any."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from programs import ADAM, COUNT, DROPOUT, LAYER_NORM, NORM_OF_INFERENCE, NORM_OF_TRAINING, SGEMM, TENSOR_GEMM, Program

import perfdoctor
from perfdoctor.compare_traces import Comparison
from perfdoctor.comparison.comparison import TABLES
from perfdoctor.errors import InputError, UsageError
from perfdoctor.reporters.json_ import load_schema

BEFORE, AGAIN = Program(), Program(seed=1)
CHANGES = {
    "a slower kernel": Program(seed=1, norm_us=420.0),
    "a faster kernel": Program(seed=1, gemm_us=600.0),
    "a kernel replaced": Program(seed=1, gemm=TENSOR_GEMM, gemm_us=200.0),
    "a kernel gone": Program(seed=1, with_norm=False),
    "a slow loader": Program(seed=1, loader_us=1500.0),
}

Compare = Callable[..., Comparison]
Record = Callable[[Program], Path]


def first_row(comparison: Comparison, table: str = "kernels") -> tuple[str, str, int]:
    row = comparison.table(table).rows[0]
    return row.name, row.status, round(row.difference_ns / 1000)


def test_a_recording_of_the_same_program_is_the_same(compare: Compare) -> None:
    comparison = compare(BEFORE, AGAIN)
    assert comparison.comparable
    assert comparison.step.verdict == "same"
    assert {row.status for row in comparison.kernels.rows} == {"same"}
    assert {change.status for change in comparison.findings} <= {"still there"}
    assert comparison.promises == ()


@pytest.mark.parametrize(
    ("change", "verdict", "name", "status", "difference_us"),
    [
        ("a slower kernel", "slower", LAYER_NORM, "slower", 300),
        ("a faster kernel", "faster", SGEMM, "faster", -900),
        ("a kernel replaced", "faster", SGEMM, "replaced", -2100),
        ("a kernel gone", "faster", LAYER_NORM, "went", -120),
        ("a slow loader", "slower", "idle_dataloader", "slower", 1480),
    ],
)
def test_the_planted_change_is_the_first_row(
    compare: Compare, change: str, verdict: str, name: str, status: str, difference_us: int
) -> None:
    comparison = compare(BEFORE, CHANGES[change])
    assert comparison.comparable
    assert comparison.step.verdict == verdict
    found_name, found_status, found_us = first_row(comparison)
    assert (found_name, found_status) == (name, status)
    assert found_us == pytest.approx(difference_us, rel=0.05)
    assert comparison.step.difference_ns == pytest.approx(1000 * difference_us, rel=0.1)
    assert {row.name for row in comparison.kernels.rows if row.name in (ADAM,) and row.status != "same"} == set()


def test_every_table_and_the_account_add_up_to_the_difference(compare: Compare) -> None:
    for change in CHANGES.values():
        comparison = compare(BEFORE.change(with_modules=True), change.change(with_modules=True))
        difference_ns = comparison.after.mean_ns - comparison.before.mean_ns
        assert sum(row.difference_ns for row in comparison.account) == difference_ns
        assert sum(row.before_ns for row in comparison.account) == comparison.before.mean_ns
        for name in ("kernels", "ops", "modules"):
            table = comparison.table(name)
            assert table.is_known, name
            assert sum(row.difference_ns for row in table.rows) + (table.remainder_ns or 0) == difference_ns, name
        assert not comparison.collectives.is_known


def test_the_figures_are_those_of_the_raw_trace(compare: Compare, record: Record) -> None:
    """By the events of the file itself: kernels of one name over the number of steps."""
    after = CHANGES["a slower kernel"]
    comparison = compare(BEFORE, after)
    for program, of_row in ((BEFORE, "before_ns"), (after, "after_ns")):
        events = json.loads(record(program).read_text())["traceEvents"]
        norm_us = sum(event["dur"] for event in events if event.get("cat") == "kernel" and event["name"] == LAYER_NORM)
        (row,) = (each for each in comparison.kernels.rows if each.name == LAYER_NORM)
        assert getattr(row, of_row) == pytest.approx(1000 * norm_us / program.steps, abs=2)
        assert (row.before_count, row.after_count) == (1, 1)


def test_modules_are_compared_where_both_recorded_them(compare: Compare) -> None:
    comparison = compare(BEFORE.change(with_modules=True), Program(seed=1, norm_us=420.0, with_modules=True))
    assert first_row(comparison, "modules") == ("LayerNorm_0", "slower", pytest.approx(300, rel=0.05))
    assert not compare(BEFORE, AGAIN).modules.is_known


def test_several_recordings_see_a_difference_that_one_cannot(compare: Compare) -> None:
    before = [Program(seed=seed) for seed in range(3)]
    after = [Program(seed=seed, norm_us=150.0) for seed in range(3, 6)]
    assert compare(before[0], after[0]).step.verdict == "same"
    comparison = compare(before, after)
    assert comparison.step.verdict == "slower"
    assert len(comparison.before.paths) == 3
    assert comparison.before.steps == 36
    assert first_row(comparison) == (LAYER_NORM, "slower", pytest.approx(30, rel=0.1))
    difference_ns = comparison.after.mean_ns - comparison.before.mean_ns
    assert sum(row.difference_ns for row in comparison.kernels.rows) == difference_ns


# --- comparable or not ---------------------------------------------------------------------------------------------

_CONV = {"op": "aten::conv2d", "gemm": "cudnn_infer_ampere_scudnn_128x64_relu_medium_nn_v1"}


@pytest.mark.parametrize(
    ("before", "after", "aspect", "words"),
    [
        ({}, {"device": "Tesla V100-SXM2-16GB"}, "device", "A100-SXM4-40GB and Tesla V100"),
        ({}, {"op": "aten::conv2d"}, "model", "gemm: 3 times a step before, 0 after"),
        ({}, {"batch": 128}, "shapes", "[[64,512],[512,512]]: 3 times a step before, 0 after"),
        ({"rank": 0, "world_size": 2}, {"rank": 0, "world_size": 4}, "ranks", "(2 and 4)"),
        ({}, {"with_steps": False}, "steps", "has no steps, and the other side has"),
        ({"with_steps": False}, {"with_steps": False}, "steps", "neither side has steps"),
        ({}, {"with_modules": True}, "recorder", "with shapes and the other with shapes, stacks"),
    ],
)
def test_what_differs_is_said_and_not_judged(
    compare: Compare, before: dict[str, object], after: dict[str, object], aspect: str, words: str
) -> None:
    comparison = compare(BEFORE.change(**before), AGAIN.change(**after))
    assert not comparison.comparable
    reason = comparison.reasons[0]
    assert reason.aspect == aspect
    assert words in reason.sentence
    assert ": record" in reason.sentence or ": compare" in reason.sentence


def test_what_is_alike_is_no_reason(compare: Compare) -> None:
    for changes in (
        {"rank": 0, "world_size": 2},
        {"with_shapes": False},
        {"with_modules": True},
        {"device": "Tesla V100-SXM2-16GB"},
        {"batch": 128},
    ):
        assert compare(BEFORE.change(**changes), AGAIN.change(**changes)).reasons == (), changes
    # Without shapes on either side a larger batch cannot be seen, and more layers can.
    assert compare(BEFORE.change(with_shapes=False), AGAIN.change(with_shapes=False, batch=128)).comparable


def test_a_device_that_only_the_kernels_tell_differs_from_no_name(record: Record, tmp_path: Path) -> None:
    """A report says where the name of the device is from."""
    report = tmp_path / "report.json"
    perfdoctor.analyze(record(BEFORE)).save(report)
    content = json.loads(report.read_text())
    content["traces"][0] |= {"device": "A100 (by its kernels)", "device_from": "kernels"}
    report.write_text(json.dumps(content))
    assert perfdoctor.compare(report, record(AGAIN)).reasons == ()
    content["traces"][0] |= {"device": "Tesla V100-SXM2-16GB", "device_from": "trace"}
    report.write_text(json.dumps(content))
    assert [reason.aspect for reason in perfdoctor.compare(report, record(AGAIN)).reasons] == ["device"]


def test_compiled_code_is_compared_with_the_same_model_in_eager_mode(compare: Compare) -> None:
    compiled = AGAIN.change(op="Torch-Compiled Region: 0/0", gemm_us=500.0, batch=32)
    comparison = compare(BEFORE, compiled)
    assert comparison.comparable
    assert any("one side runs compiled code" in note for note in comparison.notes)
    assert comparison.step.verdict == "faster"
    # Both compiled, the shapes count.
    assert [reason.aspect for reason in compare(compiled, compiled.change(seed=2, batch=64)).reasons] == ["shapes"]


def test_fused_ops_in_place_of_others_are_no_other_work(compare: Compare) -> None:
    """A whole encoder layer is one op in inference; without an op in common shapes cannot be compared."""
    comparison = compare(BEFORE, AGAIN.change(op="aten::_addmm_activation", gemm_us=700.0))
    assert comparison.comparable
    assert any("no matrix op in common" in note for note in comparison.notes)
    assert not any("no matrix op in common" in note for note in compare(BEFORE, AGAIN).notes)


def test_training_mode_that_went_is_explained_by_its_ops(compare: Compare) -> None:
    trains, evaluates = (AGAIN.change(infers=f"in {mode} mode", gemm_us=300.0) for mode in ("training", "eval"))
    comparison = compare(trains, evaluates.change(seed=3))
    rows = {row.name: row for row in comparison.kernels.rows}
    assert first_row(comparison) == (DROPOUT, "went", pytest.approx(-300, rel=0.1))
    assert rows[COUNT].status == "went"
    assert (rows[NORM_OF_TRAINING].status, rows[NORM_OF_TRAINING].new_name) == ("replaced", NORM_OF_INFERENCE)
    assert rows[NORM_OF_TRAINING].difference_ns / 1000 == pytest.approx(-60, rel=0.2)
    assert [(each.status, each.rule) for each in comparison.findings if each.rule == "PD519"] == [("fixed", "PD519")]
    (promise,) = (each for each in comparison.promises if each.rule == "PD519")
    assert promise.promised.expected_ns == pytest.approx(304_000, rel=0.1)  # what batch norm gains is not known before


def test_whole_recordings_are_compared_where_neither_side_has_steps(compare: Compare) -> None:
    before, after = BEFORE.change(with_steps=False), CHANGES["a slower kernel"].change(with_steps=False)
    comparison = compare(before, after)
    assert comparison.step.difference_ns is None
    assert first_row(comparison) == (LAYER_NORM, "slower", pytest.approx(3600, rel=0.05))
    one_sided = compare(BEFORE, after)
    assert not one_sided.kernels.is_known
    assert one_sided.account == ()


# --- findings and promises -----------------------------------------------------------------------------------------


def test_a_fixed_finding_has_its_promise_and_what_came(compare: Compare) -> None:
    comparison = compare(CHANGES["a slow loader"], BEFORE)
    fixed = [change for change in comparison.findings if change.status == "fixed"]
    assert "PD101" in {change.rule for change in fixed}
    (promise,) = comparison.promises  # the other one that went is covered by it
    assert promise.came_ns == -(comparison.step.difference_ns or 0)
    assert promise.outcome == "kept"
    assert promise.promised.expected_ns == pytest.approx(1.4e6, rel=0.05)


def test_the_other_way_it_is_new_and_promises_nothing(compare: Compare) -> None:
    comparison = compare(BEFORE, CHANGES["a slow loader"])
    assert "PD101" in {change.rule for change in comparison.findings if change.status == "new"}
    assert "PD101" not in {promise.rule for promise in comparison.promises}


# --- reports, and what they lack -----------------------------------------------------------------------------------


def test_a_report_is_compared_by_what_it_holds(record: Record, tmp_path: Path) -> None:
    report, after = tmp_path / "report.json", record(CHANGES["a slower kernel"])
    perfdoctor.analyze(record(BEFORE)).save(report)
    comparison = perfdoctor.compare(report, after)
    assert comparison.comparable
    assert comparison.step.verdict == "slower"
    assert "holds no single steps, kernels, shapes" in comparison.notes[0]
    assert not comparison.kernels.is_known
    row = comparison.ops.rows[0]
    assert (row.name, round(row.difference_ns / 1000)) == ("native_layer_norm", pytest.approx(300, rel=0.05))
    difference_ns = comparison.after.mean_ns - comparison.before.mean_ns
    assert comparison.ops.difference_ns == difference_ns
    assert sum(each.difference_ns for each in comparison.account) == difference_ns
    direct = perfdoctor.compare(record(BEFORE), after)
    assert comparison.before.mean_ns == pytest.approx(direct.before.mean_ns, abs=2)
    assert {(c.rule, c.status) for c in comparison.findings} == {(c.rule, c.status) for c in direct.findings}


def test_two_reports_are_compared_without_any_trace(record: Record, tmp_path: Path) -> None:
    paths = [tmp_path / "before" / "report.json", tmp_path / "after" / "report.json"]
    for path, program in zip(paths, (BEFORE, CHANGES["a slow loader"]), strict=True):
        path.parent.mkdir()
        perfdoctor.analyze(record(program)).save(path)
    comparison = perfdoctor.compare(paths[0].parent, paths[1])
    assert comparison.step.verdict == "slower"
    assert "PD101" in {change.rule for change in comparison.findings if change.status == "new"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"schema": "perfdoctor.report/1", "steps": {}}, "a report of schema 'perfdoctor.report/1'"),
        ({"schema": "perfdoctor.report/2", "steps": {}}, "does not hold what a report has to"),
        ({"schema": "perfdoctor.report/2", "steps": [1]}, "does not hold what a report has to"),
    ],
)
def test_a_report_that_cannot_be_used_is_refused(
    record: Record, tmp_path: Path, content: dict[str, object], words: str
) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="analyze the trace again") as refused:
        perfdoctor.compare(path, record(BEFORE))
    assert words in str(refused.value)


def test_the_same_file_twice_is_refused(record: Record, tmp_path: Path) -> None:
    path = record(BEFORE)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    for other in (path, link):
        with pytest.raises(UsageError, match="given twice, so there is nothing to compare: give two recordings"):
            perfdoctor.compare(path, other)
    with pytest.raises(UsageError, match="needs a recording before and one after"):
        perfdoctor.compare([], path)


# --- JSON, Markdown, text ------------------------------------------------------------------------------------------


def test_every_comparison_fits_the_schema(compare: Compare, record: Record, tmp_path: Path) -> None:
    validator = jsonschema.Draft202012Validator(load_schema("comparison"))
    validator.check_schema(load_schema("comparison"))
    report = tmp_path / "report.json"
    perfdoctor.analyze(record(BEFORE)).save(report)
    comparisons = [compare(BEFORE, program) for program in CHANGES.values()]
    comparisons += [compare(CHANGES["a slow loader"], BEFORE), compare(BEFORE, AGAIN.change(with_steps=False))]
    comparisons += [perfdoctor.compare(report, record(AGAIN)), compare([BEFORE, AGAIN], [CHANGES["a kernel gone"]])]
    for comparison in comparisons:
        plain = comparison.to_dict()
        validator.validate(json.loads(json.dumps(plain)))
        assert plain["schema"] == "perfdoctor.compare/1"
        assert set(TABLES) < plain.keys()


def test_it_prints_within_80_columns_and_saves_every_format(
    compare: Compare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = compare(BEFORE, CHANGES["a kernel replaced"])
    comparison.print(color=False)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "became faster by" in text
    assert f"addmm: {SGEMM} ->" in " ".join(text.split())
    for suffix in (".json", ".md", ".txt"):
        comparison.save(tmp_path / f"out{suffix}")
    assert json.loads((tmp_path / "out.json").read_text()) == comparison.to_dict()
    assert "## perfdoctor compare" in (tmp_path / "out.md").read_text()
    assert "became faster by" in (tmp_path / "out.txt").read_text()
    assert repr(comparison) == "<perfdoctor.Comparison: faster; comparison.print() shows it>"
    assert set(comparison._repr_mimebundle_()) == {"text/html", "text/markdown", "text/plain"}
    html = comparison._repr_html_()
    assert html.startswith("<div style=")
    assert "became faster by" in html
    assert f"addmm: {SGEMM} -&gt;" in html
    assert "<script" not in html
    with pytest.raises(UsageError, match="suffix of a comparison"):
        comparison.save(tmp_path / "out.html")
