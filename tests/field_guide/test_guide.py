"""The field guide: each row has one answer, for any recording, and each answer has what it rests on."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from real_traces import analyze_once

import perfdoctor
from perfdoctor import pipeline
from perfdoctor.errors import PerfdoctorError, UsageError
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.field_guide.answer_rows import answer_row, make_guide
from perfdoctor.field_guide.guide_answers import ANSWER_KINDS, Guide, GuideAnswer
from perfdoctor.field_guide.guide_row import DOCUMENTS
from perfdoctor.field_guide.guide_table import ROWS, make_row
from perfdoctor.field_guide.program_traits import traits_of
from perfdoctor.field_guide.render_guide import load_guide_schema, render_guide
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Outcome
from perfdoctor.report.trial_result import Trial
from perfdoctor.rules.analyzer import Run
from perfdoctor.rules.registry import load_analyzers
from perfdoctor.savings.saved_bytes import SavedBytes
from perfdoctor.savings.saving import Saving
from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_tiny_traces
from perfdoctor.trace.tables.model import EndState

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
SAMPLES = ROOT / "sample_traces"
ANALYZERS = load_analyzers()
REGISTERED = {rule.rule for rule in ANALYZERS}
BY_NUMBER = {row.number: row for row in ROWS}

HALF_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
SLOW_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn_align1"
SGEMM = "ampere_sgemm_128x64_nn"
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nchw_tilesize128x128x32_stage4_warpsize2x2x1"
DEPTHWISE = "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def training(*kernels: str, ops: tuple[str, ...] = (), wait_us: float = 0, gpu: bool = True) -> TraceBuilder:
    """Three steps of 1 ms of a training, which fill the GPU with kernels, and have ops of these names."""
    trace = TraceBuilder(device="NVIDIA A100-SXM4-80GB" if gpu else None)
    for step in range(3):
        at = 1000 * step
        trace.step(at, 1000)
        if wait_us:
            trace.range(LOADER, at, wait_us)
        for row, name in enumerate(("aten::mm", *ops)):
            trace.op(name, at + wait_us + 5 * row, 4)
        trace.op("autograd::engine::evaluate_function: MmBackward0", at + wait_us + 150, 10)
        trace.range("Optimizer.step#SGD.step", at + wait_us + 170, 20)
        for row, name in enumerate(kernels if gpu else ()):
            length = (998 - wait_us) / len(kernels)
            trace.kernel(name, at + wait_us + 1 + row * length, length, launch_us=at + wait_us + 1 + 0.1 * row)
    return trace


def guide_of(trace: TraceBuilder, facts: Mapping[str, Any] | None = None, **changes: Any) -> Guide:
    """The guide for a trace, with changes to its report."""
    rank = Rank(trace.trace(), facts=CapturedFacts.parse(facts))
    report = pipeline.diagnose_run(Run((rank,)), ANALYZERS)
    return make_guide(replace(report, **changes), rank)


def answer_of(number: int, trace: TraceBuilder, facts: Mapping[str, Any] | None = None, **changes: Any) -> GuideAnswer:
    return guide_of(trace, facts, **changes).answers[number - 1]


FACTS: dict[str, Any] = {"world_size": 1, "flags": {}, "loaders": [], "amp": {"scaled": 0, "clipped": 0, "autocast": 0}}


def facts(**parts: Any) -> dict[str, Any]:
    return {**FACTS, **parts}


def on_gpu(*ops: str) -> TraceBuilder:
    return training(HALF_GEMM, POINTWISE, ops=ops)


def with_copies(*, pinned: bool) -> TraceBuilder:
    trace = on_gpu()
    for at in (200, 1200, 2200):
        trace.memcpy("HtoD", at, 5, 1000, stream=9, pinned=pinned, launch_us=at - 5)
    return trace


def in_ddp() -> TraceBuilder:
    trace = on_gpu()
    for at in (0, 1000, 2000):
        trace.range("DistributedDataParallel.forward", at + 1, 140)
    return trace


def in_data_parallel() -> TraceBuilder:
    trace = on_gpu().range("DataParallel.forward", 1, 140)
    return trace.kernel(HALF_GEMM, 5, 100, launch_us=2, device=1)


def on_cpu(*ops: str) -> TraceBuilder:
    return training(ops=ops, gpu=False)


def loader_facts(**loader: Any) -> dict[str, Any]:
    whole = {"num_workers": 2, "batch_size": 32, "wait_ns": 1}
    return facts(loaders=[{**whole, **loader}])


APPLIES, DONE, ABSENT, UNKNOWN = ANSWER_KINDS
# Of each answer cases that give it and cases that do not: number of the row, trace, facts, answer, words of the reason.
CASES: list[tuple[int, Callable[[], TraceBuilder], dict[str, Any] | None, str, str]] = [
    (1, on_gpu, None, ABSENT, "no GradScaler"),
    (1, lambda: on_gpu("aten::_amp_foreach_non_finite_check_and_unscale_"), None, DONE, "unscales"),
    (1, lambda: TraceBuilder().kernel(HALF_GEMM, 5, 100, launch_us=1), None, UNKNOWN, "record"),
    (2, on_gpu, facts(amp={"scaled": 9, "clipped": 0}), ABSENT, "not clipped"),
    (2, on_gpu, facts(amp={"scaled": 9, "clipped": 9, "clipped_before_unscale": 0}), DONE, "PD505 found nothing"),
    (2, lambda: on_gpu("aten::_amp_foreach_non_finite_check_and_unscale_"), None, UNKNOWN, "perfdoctor run"),
    (3, on_gpu, None, ABSENT, "one process"),
    (5, on_gpu, None, DONE, "100% of the matrix work"),
    (5, lambda: training(SGEMM), None, APPLIES, "0% of the matrix work"),
    (6, on_gpu, None, DONE, "100% of the matrix work's time, and PD202"),
    (6, lambda: training(SLOW_GEMM), None, APPLIES, "slow path"),
    (6, lambda: training(SGEMM), None, ABSENT, "row 38 comes first"),
    (6, on_cpu, None, ABSENT, "no GPU"),
    (7, on_gpu, None, DONE, "PD202 found nothing"),
    (8, on_gpu, None, ABSENT, "no recurrent"),
    (8, lambda: on_gpu("aten::_cudnn_rnn"), None, DONE, "PD202 found nothing"),
    (9, on_gpu, None, ABSENT, "no convolutions"),
    (9, lambda: training(CONVOLUTION), None, DONE, "PD203 and PD202 found nothing"),
    (11, on_gpu, None, ABSENT, "no convolutions"),
    (11, lambda: training(CONVOLUTION), facts(flags={"cudnn_benchmark": True}), DONE, "benchmark is on"),
    (11, lambda: training(CONVOLUTION), facts(flags={"cudnn_benchmark": False}), UNKNOWN, "or a trial"),
    (11, on_cpu, None, ABSENT, "no GPU"),
    (12, on_gpu, None, ABSENT, "no recurrent"),
    (13, lambda: training(CONVOLUTION), None, DONE, "no convolution is depthwise"),
    (13, lambda: training(CONVOLUTION, DEPTHWISE), None, UNKNOWN, "50% of their time is in depthwise ones"),
    (16, lambda: training(HALF_GEMM, wait_us=5), None, DONE, "waits 0.5% of the step"),
    (16, lambda: training(HALF_GEMM, wait_us=5), loader_facts(), DONE, "PD101 found nothing"),
    (16, lambda: training(HALF_GEMM, wait_us=600), None, APPLIES, "waits"),
    (16, on_gpu, None, ABSENT, "no DataLoader"),
    (18, lambda: with_copies(pinned=True), None, DONE, "3 copies go to the GPU, and PD105"),
    (18, on_gpu, None, ABSENT, "nothing is copied"),
    (18, on_cpu, None, ABSENT, "no GPU"),
    (20, on_gpu, None, UNKNOWN, "record with"),
    (20, on_gpu, loader_facts(), ABSENT, "the batch of 32"),
    (20, on_gpu, {**loader_facts(batch_size=8192), "optimizers": [{"class": "FusedLAMB"}]}, DONE, "FusedLAMB"),
    (
        21,
        lambda: training(CONVOLUTION, ops=("aten::batch_norm",)),
        facts(models=[{"conv_bias_before_norm": []}]),
        DONE,
        "no",
    ),
    (21, lambda: training(CONVOLUTION), None, ABSENT, "no norms"),
    (22, on_gpu, facts(zero_grad_to_zero=0, optimizers=[{"steps": 3}]), DONE, "PD304 found nothing"),
    (22, lambda: TraceBuilder().kernel(HALF_GEMM, 5, 100, launch_us=1), None, UNKNOWN, "record"),
    (24, on_gpu, None, ABSENT, "one process on one GPU"),
    (27, on_gpu, None, ABSENT, "one process"),
    (27, on_gpu, facts(world_size=8), UNKNOWN, "traces of all ranks"),
    (28, lambda: on_gpu("aten::_fused_adamw_"), None, DONE, "PD303 and PD301 found nothing"),
    (29, on_gpu, None, UNKNOWN, "whether memory is short"),
    (
        29,
        on_gpu,
        facts(cuda_memory={"reserved_bytes.all.peak": 10}, devices=[{"memory_bytes": 100}]),
        ABSENT,
        "memory is not short",
    ),
    (30, on_gpu, None, ABSENT, "no GELU"),
    (30, lambda: on_gpu("aten::gelu"), None, DONE, "(aten::gelu), and PD301"),
    (30, lambda: on_cpu("aten::erf"), None, DONE, "PD301 found nothing to change"),
    (32, on_gpu, None, DONE, "binds: "),
    (32, on_cpu, None, DONE, "binds: "),
    (33, on_gpu, None, UNKNOWN, "record_shapes"),
    (35, on_gpu, None, DONE, "float32 FLOPs in the time of a byte"),
    (35, lambda: TraceBuilder(device="NVIDIA Unheard-of").kernel(HALF_GEMM, 5, 9), None, UNKNOWN, "--device"),
    (36, on_gpu, None, DONE, "for launches"),
    (38, on_gpu, None, DONE, "PD201 and PD203 found nothing"),
    (38, lambda: training(SGEMM), None, APPLIES, "fp32"),
    (38, lambda: training(HALF_GEMM, gpu=False), None, ABSENT, "no GPU"),
    (39, on_gpu, None, DONE, "100% on Tensor Cores"),
    (40, on_gpu, None, DONE, "100% on Tensor Cores"),
    (40, lambda: training(POINTWISE), None, ABSENT, "there are no products"),
    (41, on_gpu, None, UNKNOWN, "perfdoctor run"),
    (42, on_cpu, facts(cpu={"numa_nodes": 1}), ABSENT, "one NUMA node"),
    (42, on_cpu, None, UNKNOWN, "not known"),
    (42, on_gpu, None, ABSENT, "the GPU computes"),
    (44, on_cpu, facts(libraries={"openmp": ["libiomp5.so"], "allocators": []}), DONE, "PD513 found nothing"),
    (44, on_cpu, None, UNKNOWN, "perfdoctor run"),
    (45, on_cpu, facts(libraries={"openmp": [], "allocators": ["libjemalloc.so.2"]}), DONE, "PD513 found nothing"),
    (46, on_cpu, None, ABSENT, "one process"),
    (47, on_gpu, None, DONE, "the GPU idles 0% of the step"),
    (47, lambda: TraceBuilder().kernel(HALF_GEMM, 5, 9), None, UNKNOWN, "launch"),
    (48, on_gpu, None, ABSENT, "nothing is copied"),
    (49, on_gpu, None, DONE, "PD107 found nothing"),
    (24, in_ddp, facts(world_size=2), DONE, "2 processes, and nothing is DataParallel"),
    (24, in_data_parallel, None, UNKNOWN, "DataParallel drives 2 GPUs from one process"),
    (25, in_ddp, facts(world_size=2), DONE, "PD402 and PD404 and PD405 found nothing"),
    (50, on_gpu, None, ABSENT, "no all-reduce to save"),
    (50, in_ddp, facts(world_size=2, base_backwards=[4, 4]), DONE, "PD406 found nothing"),
    (51, on_gpu, None, ABSENT, "one process"),
    (51, in_ddp, facts(world_size=2, models=[{"ddp": {"static_graph": True}}]), DONE, "PD405 found nothing"),
]


@pytest.mark.parametrize(
    ("number", "build", "captured", "answer", "words"), CASES, ids=[f"{i}-row{case[0]}" for i, case in enumerate(CASES)]
)
def test_a_row_is_answered_by_what_the_program_shows(
    number: int, build: Callable[[], TraceBuilder], captured: dict[str, Any] | None, answer: str, words: str
) -> None:
    found = answer_of(number, build(), captured)
    assert (found.answer, words in found.why) == (answer, True), found.why


def test_inference_has_no_optimizer() -> None:
    trace = TraceBuilder().step(0, 1000)
    for row in range(20):
        trace.op("aten::mm", 10 * row, 5)
    trace.kernel(HALF_GEMM, 300, 600, launch_us=200)
    guide = guide_of(trace)
    for number in (1, 2, 3, 19, 20, 22, 28, 29):
        answer = guide.answers[number - 1]
        assert (answer.answer, answer.why) == (ABSENT, "inference: no weights are updated")


# --- what holds for every guide -----------------------------------------------------------------------------------


def check_guide(guide: Guide) -> None:
    """Each row has one answer with a reason, and its JSON follows the schema."""
    assert [answer.number for answer in guide.answers] == list(range(1, 52))
    assert sum(guide.counts.values()) == 51
    for answer in guide.answers:
        assert answer.answer in ANSWER_KINDS
        assert answer.why
        assert bool(answer.findings) == (answer.answer == APPLIES) == (answer.saving is not None)
    for suffix in (".json", ".md", ".txt"):
        assert render_guide(guide, suffix)
    jsonschema.validate(json.loads(render_guide(guide, ".json")), load_guide_schema())


def test_every_row_has_rules_or_something_else_that_answers_it() -> None:
    assert [row.number for row in ROWS] == list(range(1, 52))
    for row in ROWS:
        assert row.rules or row.checked_by
        assert row.needs
        assert row.advice.endswith(".")
        assert set(row.sources) <= DOCUMENTS.keys()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"subject": ["nothing_of_the_kind"]}, "'nothing_of_the_kind' is missing, or no function"),
        ({"concerns": "is_about_it"}, "'is_about_it' is missing, or no function"),
        ({"advise": "Do."}, "'advise'"),
        ({}, "'needs'"),
    ],
)
def test_a_wrong_row_is_named_in_one_sentence(wrong: dict[str, object], said: str) -> None:
    needs = {"needs": "facts"} if wrong else {}
    with pytest.raises(
        PerfdoctorError, match=r"guide_rows\.toml, row 1: .*; compare it with the rows beside it\.$"
    ) as error:
        make_row({"number": 1, "sources": "A", "advice": "Do.", "rules": [], "subject": ["gpu"], **needs, **wrong})
    assert said in str(error.value)


def test_the_rules_of_every_row_exist() -> None:
    assert {rule for row in ROWS for rule in row.rules} <= REGISTERED


@pytest.mark.parametrize("name", build_tiny_traces())
def test_no_trace_is_too_small(name: str) -> None:
    (trace, *_) = build_tiny_traces()[name]
    check_guide(guide_of(trace))


@pytest.mark.parametrize("value", [0, "x", True, [], {}, [0], [{}], [[]], -1, 2**70, None])
def test_no_fact_is_too_odd(value: object) -> None:
    names = (
        *("world_size", "flags", "loaders", "amp", "models", "optimizers", "cpu", "cores", "libraries", "devices"),
        *("cuda_memory", "nvml", "base_step_ns", "base_loader_wait_ns", "base_backwards", "zero_grad_to_zero"),
        *("compile", "parameter_checksums"),
    )
    rank = Rank(on_gpu().trace(), facts=CapturedFacts.parse(dict.fromkeys(names, value)))
    report = pipeline.diagnose_run(Run((Rank(on_gpu().trace()),)), ANALYZERS)
    check_guide(make_guide(report, rank))
    inner = {"num_workers": value, "batch_size": value, "steps": value, "ddp": value, "openmp": value, "clipped": value}
    lists = {name: [inner] for name in ("loaders", "models", "optimizers", "devices")}
    parts = dict.fromkeys(("amp", "cpu", "cores", "libraries", "cuda_memory", "flags"), inner)
    check_guide(make_guide(report, Rank(on_cpu().trace(), facts=CapturedFacts.parse({**lists, **parts}))))


def test_a_rule_that_did_not_run_never_makes_a_row_done() -> None:
    rank = Rank(on_gpu().trace())
    report = pipeline.diagnose_run(Run((rank,)), ANALYZERS)
    ruled = {row.number for row in ROWS if row.rules and row.evidence(traits_of(report, rank)) is None}
    for status in ("skipped", "failed"):
        outcomes = tuple(Outcome(rule.rule, status, "why not") for rule in ANALYZERS)
        traits = traits_of(replace(report, outcomes=outcomes), rank)
        assert not [n for n in ruled if answer_row(BY_NUMBER[n], traits).answer == DONE]
    traits = traits_of(replace(report, outcomes=()), rank)
    assert not [n for n in ruled if answer_row(BY_NUMBER[n], traits).answer == DONE]


def memory_finding(rule: str, severity: str = "high", topics: tuple[str, ...] = ("copies", "gradients")) -> Finding:
    return Finding(
        rule=rule,
        name="test",
        title="What holds the memory",
        cost_ns=0,
        share_of_step=None,
        severity=severity,  # type: ignore[arg-type]
        saving=Saving(),
        advice="",
        topics=topics,
        saved_bytes=SavedBytes(2 * 10**9, 3 * 10**9, 4 * 10**9, 3 * 10**9),
    )


@pytest.mark.parametrize(("number", "rule"), [(22, "PD705"), (28, "PD704"), (29, "PD701"), (49, "PD706")])
def test_what_a_rule_of_memory_finds_applies_and_says_how_many_bytes(number: int, rule: str) -> None:
    answer = answer_of(number, on_gpu(), findings=(memory_finding(rule),))
    assert answer.answer == "applies"
    assert answer.rules[-1] == rule
    assert f"({rule}); lowers the peak by about 3.00 GB" in answer.why


@pytest.mark.parametrize(("number", "rule"), [(22, "PD705"), (28, "PD704"), (29, "PD701"), (49, "PD706")])
def test_memory_that_is_not_short_needs_no_advice(number: int, rule: str) -> None:
    without = answer_of(number, on_gpu())
    assert answer_of(number, on_gpu(), findings=(memory_finding(rule, "info"),)) == without
    assert without.answer != "applies"


@pytest.mark.parametrize(("number", "rule", "topic"), [(22, "PD705", "results"), (28, "PD704", "states")])
def test_what_another_fix_gives_is_another_advice(number: int, rule: str, topic: str) -> None:
    found = memory_finding(rule, topics=(topic,))
    assert answer_of(number, on_gpu(), findings=(found,)) == answer_of(number, on_gpu())


def test_a_graph_that_is_never_used_is_no_case_for_checkpointing() -> None:
    forward = TraceBuilder(device="NVIDIA A100-SXM4-80GB").op("aten::mm", 0, 9).kernel(SGEMM, 10, 90, launch_us=5)
    assert answer_of(29, forward, findings=(memory_finding("PD701"),)).answer != "applies"


def test_a_row_is_done_without_memory_if_its_other_rules_found_nothing() -> None:
    answer = answer_of(49, on_gpu())
    assert "PD706" in answer.rules
    assert answer.answer == "done already"
    assert "PD706" not in answer.why


def test_a_snapshot_of_gpu_memory_is_no_program_of_the_cpu() -> None:
    trace = on_cpu().trace()
    end = EndState(0, 0, is_consistent=True, opening_events=0)
    answers = [
        make_guide(pipeline.diagnose_run(Run((rank,)), ANALYZERS), rank).answers[5]
        for rank in (Rank(trace), Rank(replace(trace, memory_ends={0: end})))
    ]
    assert [each.answer for each in answers] == ["does not apply", "cannot tell"]


def test_a_trial_answers_how_many_workers() -> None:
    trial = Trial("workers", "num_workers=4", "slower", 1100, 1000)
    answer = answer_of(17, training(HALF_GEMM, wait_us=5), loader_facts(), trials=(trial,))
    assert (answer.answer, answer.why) == (DONE, "`perfdoctor try` has measured it: num_workers=4 slower")


def test_answers_that_apply_come_in_the_order_of_their_worth(tmp_path: Path) -> None:
    guide = perfdoctor.guide(training(SGEMM, wait_us=600).write(tmp_path / "trace.json"))
    chosen = guide.select(APPLIES)
    worth = [answer.saving.alone.likely_ns for answer in chosen if answer.saving]
    assert worth == sorted(worth, reverse=True) != []
    assert {answer.number for answer in guide.select()} == set(range(1, 52))
    assert guide.select("applies", "cannot tell")[0].answer == "applies"


def test_a_guide_prints_and_saves_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guide = perfdoctor.analyze(SAMPLES / "launch-bound.json.gz").guide()
    guide.print("applies")
    shown = capsys.readouterr().out
    assert "Applies (" in shown
    assert "Done" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    for suffix in ("json", "md", "txt"):
        guide.save(tmp_path / f"guide.{suffix}")
        assert (tmp_path / f"guide.{suffix}").stat().st_size > 1000
    with pytest.raises(UsageError, match=r"must be one of \.json, \.md, \.txt"):
        guide.save(tmp_path / "guide.html")
    assert repr(guide).startswith("<perfdoctor.Guide: ")


def test_a_guide_needs_the_traces_of_its_report() -> None:
    report = perfdoctor.analyze(SAMPLES / "launch-bound.json.gz")
    with pytest.raises(UsageError, match="analyze them again"):
        replace(report, trials=()).guide()


# --- examples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["launch-bound", "cpu-training"])
def test_the_guide_of_an_example_is_as_it_was_read(name: str, pytestconfig: pytest.Config) -> None:
    guide = perfdoctor.guide(SAMPLES / f"{name}.json.gz")
    check_guide(guide)
    text, golden = render_guide(guide, ".txt", verbosity=0), HERE / "golden" / f"{name}.txt"
    if pytestconfig.getoption("update_golden"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_guide", ROOT / "docs" / "make_guide.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    assert page == module.describe_guide(), "run python docs/make_guide.py"


@pytest.mark.corpus
def test_every_real_trace_has_a_guide(corpus: Path) -> None:
    for path in sorted(path for path in corpus.iterdir() if path.name != "MANIFEST.csv"):
        check_guide(analyze_once(path).guide())
