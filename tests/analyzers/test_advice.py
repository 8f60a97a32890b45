"""Whatever program a finding is made on, its advice fits it: the rules' own cases under other contexts."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from advice_contexts import DDP_SETTINGS, LOADER_WORDS, PROGRAMS
from all_cases import CASES

from perfdoctor import pipeline
from perfdoctor.analysis.context.context import UNKNOWN_CONTEXT, Context
from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.report.finding import Finding
from perfdoctor.reporters.terminal_text import SENTENCE_END
from perfdoctor.rules import Run, advise, read_advice, read_texts
from perfdoctor.rules.registry import load_analyzers
from perfdoctor.testing.rule_cases import RuleCase

RULES = {rule.rule: rule for rule in load_analyzers()}
CONTEXTS = ("inference", "FSDP", "torchrec", "vLLM", "training without DDP")
# What these rules find proves what the advice is about, so that they never fire in programs of the other kind.
SEEN = {
    "PD405": r"DistributedDataParallel\.forward",
    "PD406": r"DistributedDataParallel\.forward and a backward pass",
    "PD516": r"DistributedDataParallel around a model",
    "PD303": r"the step of an optimizer",
    "PD304": r"gradients",
    "PD520": r"a backward pass and optimizers",
    "PD101": r"a DataLoader",
}
_MAX_CASES = 2


def firing_cases() -> list[RuleCase]:
    """The first few firing cases of each rule about programs."""
    counts: Counter[str] = Counter()
    found = []
    for case in CASES:
        if (
            case.expected
            and not case.rule.startswith("PD0")
            and case.rule not in SEEN
            and counts[case.rule] < _MAX_CASES
        ):
            counts[case.rule] += 1
            found.append(case)
    return found


def has_loader(case: RuleCase, run: Run) -> bool:
    """Whether the program of a case shows a DataLoader."""
    captured = any(facts.loaders for facts in case.facts_of_ranks(len(run.ranks)))
    return captured or any(len(rank.loader_waits) for rank in run.ranks)


def findings_in(case: RuleCase, run: Run, context: Context) -> list[Finding]:
    """What a rule reports on the ranks of a case, as if they were of another program."""
    for rank in run.ranks:  # no other fact of theirs depends on the context
        vars(rank)["context"] = replace(context, graph_share=rank.context.graph_share)
    report = pipeline.diagnose_run(run, [RULES[case.rule]], AnalysisOptions(tables=()))
    return [finding for finding in report.findings if finding.rule == case.rule]


@pytest.mark.parametrize("case", firing_cases(), ids=str)
def test_no_rule_offers_a_fix_that_the_program_cannot_use(case: RuleCase) -> None:
    run = case.run()
    is_of_loader = has_loader(case, run)
    for name in CONTEXTS:
        context, forbidden = PROGRAMS[name]
        if is_of_loader:
            forbidden = forbidden.replace(f"|{LOADER_WORDS}", "")
        elif name == "training without DDP":
            forbidden = f"{forbidden}|{LOADER_WORDS}"
        for finding in findings_in(case, run, context):
            said = f"{finding.advice}\n{finding.fix}"
            assert not re.search(forbidden, said), (name, said)


def test_the_patterns_find_what_they_forbid() -> None:
    assert re.search(DDP_SETTINGS, "DistributedDataParallel(model, bucket_cap_mb=25)")
    assert re.search(LOADER_WORDS, "DataLoader(..., num_workers=4)")
    assert re.search(PROGRAMS["vLLM"][1], 'model = torch.compile(model, mode="reduce-overhead")')
    assert re.search(PROGRAMS["inference"][1], "optimizer.zero_grad(set_to_none=True)")


@pytest.mark.parametrize("situation", ["float32 products: float16", "float32 convolutions: float16"])
@pytest.mark.parametrize("phase", ["training", "inference", "unknown"])
def test_half_precision_is_the_first_line_where_a_device_has_nothing_else(situation: str, phase: Any) -> None:
    """On a T4 channels_last gives nothing in float32, so it cannot be the line that is shown."""
    first = (advise(situation, replace(UNKNOWN_CONTEXT, phase=phase)).code or "").splitlines()[0]
    assert "torch.float16" in first
    assert ("GradScaler" in first) == (phase == "training")


@pytest.mark.parametrize("generation", ["Volta", "Turing"])
@pytest.mark.parametrize("situation", ["float32 products", "float32 convolutions"])
def test_kernels_that_prove_an_old_device_get_half_precision_first(situation: str, generation: str) -> None:
    """Of a device that is not named its kernels tell that it has neither TF32 nor bfloat16."""
    code = advise(situation, replace(UNKNOWN_CONTEXT, device_generations=(generation,))).code or ""
    assert "torch.float16" in code.splitlines()[0]
    assert "bfloat16" not in code
    assert not advise(situation, replace(UNKNOWN_CONTEXT, device_generations=("Ampere",))).code


COMMON = read_texts("advice")
# An advice begins with what to do.
VERBS = frozenset(
    {
        "Bring",
        "Call",
        "Collect",
        "Compare",
        "Compute",
        "Copy",
        "Delete",
        "Detach",
        "Find",
        "Give",
        "Keep",
        "Leave",
        "Let",
        "Look",
    }
    | {"Load", "Make", "Measure", "Move", "Raise", "Record", "Run", "Set", "Try", "Unscale", "Use", "Work", "Write"}
)
# Of programs that train alone, as what they are about is.
OF_TRAINING = re.compile(
    r"gradient|logits|loss in float16|optimizer|ranks|evaluation|results that live on|every rank saves"
)


@pytest.mark.parametrize("name", COMMON)
def test_advice_for_any_program_is_as_good_as_that_of_a_table(name: str) -> None:
    advice = read_advice(name)
    first, *more = SENTENCE_END.split(advice.sentence)
    assert first.split()[0] in VERBS
    assert advice.sentence.endswith(".")
    assert len(more) < 3
    assert len((advice.code or "").splitlines()) < 4
    assert advice.source.startswith("https://")
    assert not re.search(LOADER_WORDS, f"{advice.sentence}\n{advice.code}")


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_program_gets_common_advice_that_it_cannot_use(program: str) -> None:
    context, forbidden = PROGRAMS[program]
    for name in COMMON:
        if context.phase == "training" or not OF_TRAINING.search(name):
            advice = read_advice(name)
            said = f"{advice.sentence}\n{advice.code}".replace("perfdoctor run train.py", "")
            assert not re.search(forbidden, said), name


def test_common_advice_is_what_rules_ask_for() -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (Path(__file__).parents[2] / "analyzers").glob("*.py")
    )
    assert [name for name in COMMON if name.partition(" by the ")[0] not in sources] == []


def test_what_a_rule_knows_of_common_advice_is_filled_in() -> None:
    assert "x.split(4096)])" in (read_advice("large passes", rows=4096).code or "")
    with pytest.raises(KeyError):
        read_advice("nothing of the kind")
