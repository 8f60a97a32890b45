"""The table of advice: every row can be chosen, the most particular one is, and no program gets a fix it cannot use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from advice_contexts import DDP_SETTINGS, INFERENCE, LOADER_WORDS, PROGRAMS, TRAINING, VLLM

from perfdoctor.analysis.context.context import UNKNOWN_CONTEXT, Context
from perfdoctor.analysis.context.name_signs import FRAMEWORK_SIGNS, PARALLELISM_SIGNS
from perfdoctor.remedies.advice import Row, When, is_older
from perfdoctor.remedies.choose_advice import advise, find_row
from perfdoctor.remedies.read_causes import read_all_rows
from perfdoctor.reporters.terminal_text import SENTENCE_END
from perfdoctor.trace import activity_kinds

IN_PLACE = "in place of torch.autocast"
REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = read_all_rows()
SITUATIONS = sorted({row.situation for row in TABLE})
FRAMEWORKS = {sign.title for sign in FRAMEWORK_SIGNS}
KINDS_OF_PARALLELISM = {sign.title for sign in PARALLELISM_SIGNS} | {"data parallel"}

# An action begins with a verb; words in braces do, too, and what follows another advice may begin with "Or".
ACTION = re.compile(
    r"$|\{(ahead|stream|Way)\}|(First |Or )?(?i:allocate|allow|balance|bring|broadcast|build|call|capture|cast|change|"
    r"checkpoint|choose|collect|combine|compare|compile|compute|copy|count|cut|deal|decode|delete|detach|do|evaluate|expand|factor|"
    r"factor|fetch|find|freeze|fuse|give|halve|keep|launch|leave|let|load|log|look|make|move|multiply|offload|overlap|pad|pass|pin|post|"
    r"prefetch|prepare|print|put|record|reduce|remove|replace|run|save|scale|schedule|see|send|serve|set|shard|shorten|"
    r"solve|start|step|sum|train|try|turn|update|use|wait|warm|work|write)\b"
)

# Rules append these to the name of a situation.
ENDINGS = re.compile(
    r"(, (beside a DataLoader( that pins)?|on an AMD device)|: (larger batch|other ways|bfloat16|float16"
    r"|data|default type|model|Adagrad|Adam|SGD|another optimizer))+$"
)
# These are found by what only training does, so no forward pass asks for them.
OF_TRAINING = re.compile(
    r"^(unfused (Ada|SGD|optimizer)|optimizer|pause: the optimizer|gradients|sync: (clip|scaler)|"
    r"needless matrix work: penalty)"
)
# These are found on the CPU, and by what is compiled.
NOT_BEFORE_VOLTA = re.compile(r"^(bound by ops on the CPU|recompiles)$")
# These are found by ranges that DistributedDataParallel writes.
OF_WRAPPERS = re.compile(r"^(DDP |gradients reduced)")

# Rules that find what only training does.
RULES_OF_TRAINING = (
    "pd520_unused_gradients",
    "pd701_peak_owner",  # but for its advice to run without a graph
    "pd702_large_logits",
    "pd704_optimizer_memory",
    "pd705_kept_values",
)


def programs_of(when: When) -> list[Context]:
    """Programs that just meet the conditions of a row: one for each framework or kind of parallelism that it names."""
    base = replace(
        UNKNOWN_CONTEXT,
        phase=when.phases[0] if when.phases else "unknown",
        compiled_share=when.min_compiled or None,
        graph_share=when.min_graphed or None,
        device_generations=when.generations[:1],
        decodes=when.decodes,
        lacks_triton=when.lacks_triton,
        lacks_bfloat16=when.lacks_bfloat16,
        torch_version=when.torch_from or ("1.8.0" if when.torch_before else None),
    )
    return [
        replace(
            base,
            frameworks=(name,) if name in FRAMEWORKS else (),
            parallelism=(name,) if name in KINDS_OF_PARALLELISM else (),
        )
        for name in when.uses
    ] or [base]


# The table has hundreds of rows: one test asks them all the same and names the rows that answer wrong.
def describe_rows(rows: Iterable[Row]) -> list[str]:
    return [f"{row.situation}: {row.when.describe()}" for row in rows]


def test_a_row_is_chosen_where_its_conditions_hold() -> None:
    never_chosen = (
        row for row in TABLE if not any(find_row(row.situation, program) is row for program in programs_of(row.when))
    )
    assert describe_rows(never_chosen) == []


def test_a_row_is_not_chosen_where_nothing_is_known() -> None:
    particular = [row for row in TABLE if row.when != When()]
    assert len(particular) > 300
    assert describe_rows(row for row in particular if find_row(row.situation, UNKNOWN_CONTEXT) is row) == []


def test_the_last_row_of_a_situation_alone_holds_for_any_program() -> None:
    for situation in SITUATIONS:
        rows = [row for row in TABLE if row.situation == situation]
        assert [row.when == When() for row in rows] == [False] * (len(rows) - 1) + [True], situation
        assert find_row(situation, UNKNOWN_CONTEXT) is rows[-1], situation
        if len(rows) > 1:
            assert find_row(situation, programs_of(rows[0].when)[0]) is not rows[-1], situation


def test_a_row_names_known_programs_in_whole_sentences() -> None:
    known = FRAMEWORKS | KINDS_OF_PARALLELISM
    assert describe_rows(row for row in TABLE if not set(row.when.uses) | set(row.when.lacks) <= known) == []
    assert describe_rows(row for row in TABLE if row.sentence and not row.sentence.endswith((".", ".{limit}"))) == []


def test_the_first_sentence_is_the_action_and_what_is_said_is_short() -> None:
    said = [(row, SENTENCE_END.split(row.sentence)) for row in TABLE]
    assert describe_rows(row for row, sentences in said if not ACTION.match(sentences[0])) == []
    assert describe_rows(row for row, sentences in said if len(sentences) > 3) == []
    assert describe_rows(row for row in TABLE if len((row.code or "").splitlines()) > 2) == []


class RuleAdvice(NamedTuple):
    """An advice whose text a rule has itself: its file, and its texts, where "{}" is filled in later."""

    file: str
    sentence: str
    code: str
    source: str


@cache
def find_advice_of_rules() -> tuple[RuleAdvice, ...]:
    """Every text that an `Advice` of a rule can have, without those that begin with what is filled in."""
    found: dict[RuleAdvice, None] = {}
    for path in sorted((REPOSITORY / "analyzers").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = {ast.unparse(each.targets[0]): each.value for each in tree.body if isinstance(each, ast.Assign)}
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Advice":
                given = dict(zip(("sentence", "code", "source"), call.args, strict=False))
                given |= {each.arg: each.value for each in call.keywords if each.arg}
                texts = [_texts_of(given.get(name, ast.Constant("")), named) for name in ("sentence", "code", "source")]
                found |= dict.fromkeys(RuleAdvice(path.stem, *each) for each in product(*texts))
    return tuple(each for each in found if each.sentence and not each.sentence.startswith("{}"))


def _texts_of(value: ast.expr, named: Mapping[str, ast.expr]) -> list[str]:
    """The texts that an expression can make; `{}` in them is what nobody knows before."""
    if isinstance(value, ast.Constant):
        return [str(value.value or "")]
    if isinstance(value, ast.FormattedValue):
        return _texts_of(value.value, named)
    if isinstance(value, ast.IfExp):
        return [*_texts_of(value.body, named), *_texts_of(value.orelse, named)]
    if isinstance(value, ast.JoinedStr):
        return ["".join(parts) for parts in product(*(_texts_of(each, named) for each in value.values))]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return ["".join(parts) for parts in product(_texts_of(value.left, named), _texts_of(value.right, named))]
    return _texts_of(named[name], named) if (name := ast.unparse(value)) in named else ["{}"]


def test_advice_that_a_rule_makes_itself_is_as_good_as_a_row() -> None:
    found = find_advice_of_rules()
    assert len(found) > 40
    for file, sentence, code, source in found:
        first, *more = SENTENCE_END.split(sentence)
        assert ACTION.match(first), (file, sentence)
        assert sentence.endswith((".", ".{}")), (file, sentence)
        assert len(more) < 3, (file, sentence)
        assert len(code.splitlines()) < 3, (file, code)
        assert file.startswith("pd114") or re.fullmatch(r"https://\S+|\{\}", source), (file, source)
        assert "loader" in sentence or not re.search(LOADER_WORDS, f"{sentence}\n{code}"), (file, sentence)


@pytest.mark.parametrize(
    "sentence",
    ["It reads whether a gradient overflowed.", "`if tensor:` copies the value.", "The CPU needs it.", "They answer."],
)
def test_what_is_no_action_is_known(sentence: str) -> None:
    assert not ACTION.match(sentence)


def is_found_in(situation: str, context: Context) -> bool:
    """Whether a rule can find the situation in such a program."""
    return not (
        (OF_TRAINING.search(situation) and context.phase != "training")
        or (NOT_BEFORE_VOLTA.search(situation) and context.lacks_triton)
        or (OF_WRAPPERS.search(situation) and "DDP" not in context.parallelism)
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_program_gets_a_fix_that_it_cannot_use(program: str) -> None:
    context, forbidden = PROGRAMS[program]
    without_loader = forbidden.replace(f"|{LOADER_WORDS}", "")
    wrong = []
    for situation in SITUATIONS:
        is_of_loader = "DataLoader" in situation or situation.startswith("loader")
        advice = advise(situation, context)
        text = f"{advice.sentence}\n{advice.code}".replace("training=self.training", "")  # F.dropout's argument
        said = re.search(without_loader if is_of_loader else forbidden, text)
        if said and is_found_in(situation, context):
            wrong.append((situation, advice))
    assert wrong == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_program_gets_a_fix_of_a_rule_that_it_cannot_use(program: str) -> None:
    context, forbidden = PROGRAMS[program]
    for each in find_advice_of_rules():
        if each.file not in RULES_OF_TRAINING or context.phase == "training":
            assert not re.search(forbidden, f"{each.sentence}\n{each.code}"), each


def test_without_a_loader_no_advice_is_about_one() -> None:
    wrong = []
    for context in (UNKNOWN_CONTEXT, TRAINING, INFERENCE, *(context for context, _ in PROGRAMS.values())):
        for situation in SITUATIONS:
            advice = advise(situation, context)
            if "oader" not in situation and re.search(LOADER_WORDS, f"{advice.sentence}\n{advice.code}"):
                wrong.append((situation, context, advice))
    assert wrong == []


@pytest.mark.parametrize("situation", [s for s in SITUATIONS if s.startswith(("exposed", "small "))])
def test_nothing_but_ddp_gets_settings_of_ddp_for_a_collective(situation: str) -> None:
    of_ddp = advise("exposed all_reduce", replace(TRAINING, parallelism=("DDP",)))
    assert re.search(DDP_SETTINGS, f"{of_ddp.sentence}\n{of_ddp.code}")
    if situation not in ("exposed all_reduce", "small all_reduce", "small broadcast"):
        for parallelism in ("DDP", "FSDP", "embedding sharding", "pipeline parallel"):
            advice = advise(situation, replace(TRAINING, parallelism=(parallelism,)))
            assert not re.search(DDP_SETTINGS, f"{advice.sentence}\n{advice.code}")


def test_reducing_by_hand_is_where_ddp_is_the_advice() -> None:
    by_hand = replace(TRAINING, parallelism=("data parallel",))
    for situation in ("exposed all_reduce", "small all_reduce"):
        assert "DistributedDataParallel(model" in (advise(situation, by_hand).code or "")
        assert "DistributedDataParallel" not in (advise(situation, TRAINING).code or "")


@pytest.mark.parametrize(
    ("situation", "release", "ending"),
    [
        ("unfused SGD", None, " It needs PyTorch 2.3."),
        ("unfused SGD", "2.2.1+cu118", " It needs PyTorch 2.3; this program has 2.2.1+cu118."),
        ("unfused SGD", "2.3.0", "once."),
        ("unfused SGD", "2.10.0a0+git1", "once."),
        ("unfused Adagrad", "2.11.0", " It needs PyTorch 2.12; this program has 2.11.0."),
        ("unfused Adam or AdamW", "2.0", "once."),
    ],
)
def test_an_older_or_unknown_release_is_named(situation: str, release: str | None, ending: str) -> None:
    assert advise(situation, replace(TRAINING, torch_version=release)).sentence.endswith(ending)


@pytest.mark.parametrize(
    ("release", "code"),
    [
        ("2.13.0", "DistributedDataParallel(model, forward_sync_buffers=False)"),
        ("2.12.1", "DistributedDataParallel(model, broadcast_buffers=False)"),
        (
            None,
            "DistributedDataParallel(model, broadcast_buffers=False)   # from PyTorch 2.13: forward_sync_buffers=False",
        ),
    ],
)
def test_a_setting_that_was_renamed_has_the_name_of_the_release(release: str | None, code: str) -> None:
    assert advise("DDP broadcasts buffers", replace(TRAINING, torch_version=release)).code == code


def test_an_old_device_gets_no_bfloat16() -> None:
    old, inference = replace(TRAINING, lacks_bfloat16=True), replace(INFERENCE, lacks_bfloat16=True)
    for situation in ("sync: scaler", "weights cast at every step"):
        assert "float16" in f"{advise(situation, TRAINING)}".lower()
        assert "bfloat16" not in f"{advise(situation, old)}".lower()
    assert advise("weights cast at every step", INFERENCE).code == "model = model.to(torch.bfloat16)   # " + IN_PLACE
    assert advise("weights cast at every step", inference).code == "model = model.to(torch.float16)   # " + IN_PLACE


@pytest.mark.parametrize(
    "situation", ["exposed all_to_all", "sync: to-cpu", "pageable copies to the device", "copies of input"]
)
def test_the_pipeline_of_torchrec_is_offered_only_where_training_lacks_it(situation: str) -> None:
    without = replace(TRAINING, frameworks=("PyTorch", "torchrec"))
    assert "TrainPipelineSparseDist" in str(advise(situation, without))
    for context in (
        replace(without, frameworks=(*without.frameworks, "torchrec train pipeline")),
        replace(without, phase="inference"),
    ):
        assert "TrainPipelineSparseDist" not in str(advise(situation, context))


@pytest.mark.parametrize("phase", ["training", "inference"])
@pytest.mark.parametrize("pipeline", [(), ("torchrec train pipeline",)])
@pytest.mark.parametrize("situation", ["exposed all_to_all", "exposed all_gather or reduce_scatter"])
def test_half_precision_is_advised_only_where_lookups_travel_in_more(
    situation: str, pipeline: tuple[str, ...], phase: Literal["training", "inference"]
) -> None:
    program = replace(TRAINING, phase=phase, frameworks=("PyTorch", "torchrec", *pipeline))
    quantized = replace(program, frameworks=(*program.frameworks, "torchrec 8-bit exchange"))
    assert "CommType.FP16" in str(advise(situation, program))
    in_8_bits = advise(situation, quantized)
    assert "CommType" not in str(in_8_bits)
    assert "sharding plan" in in_8_bits.sentence or "row-wise" in in_8_bits.sentence


@pytest.mark.parametrize("situation", ["pause: nothing recorded", "pause: a range"])
def test_python_stacks_are_for_programs_of_pytorch(situation: str) -> None:
    assert "with_stack=True" in (advise(situation, TRAINING).code or "")
    assert "--sample" in (advise(situation, UNKNOWN_CONTEXT).code or "")
    assert not re.search(r"(?i)torch|stack", str(advise(situation, UNKNOWN_CONTEXT)))


def test_no_row_on_pointwise_kernels_names_attention() -> None:
    rows = [row for row in TABLE if row.situation == "unfused pointwise kernels"]
    assert rows
    assert not [row for row in rows if re.search(r"(?i)scaled_dot_product|sdpa|attention", f"{row}")]


def test_models_of_hugging_face_are_not_told_to_load_what_they_lack() -> None:
    model = replace(INFERENCE, frameworks=("PyTorch", "Hugging Face Transformers"))
    advice = advise("unfused attention", model, where="TimesformerSelfAttention")
    assert "in TimesformerSelfAttention by scaled_dot_product_attention" in advice.sentence
    assert "attn_implementation" not in f"{advice}"


def test_first_the_syncs_and_no_fix_that_is_another() -> None:
    advice = advise("launch-bound, syncs within", TRAINING, syncs="2 syncs (PD102)", unit="step")
    assert advice.sentence.startswith("First remove the 2 syncs (PD102) in each step")
    assert advice.code is None


def test_rocm_gets_expandable_segments_from_the_release_that_has_them() -> None:
    situation = "allocator calls the driver, on an AMD device"
    assert advise(situation, replace(TRAINING, torch_version="2.11.0")).code is None
    assert "expandable_segments" in (advise(situation, replace(TRAINING, torch_version="2.12.0")).code or "")


def test_the_release_of_a_framework_is_always_named() -> None:
    assert advise("unfused attention", VLLM).sentence.endswith(" It needs vLLM 0.14.")


def test_what_the_rule_knows_is_filled_in() -> None:
    advice = advise("loader too slow", UNKNOWN_CONTEXT, workers=4, pin=", pin_memory=True")
    assert advice.code == "DataLoader(..., num_workers=4, persistent_workers=True, pin_memory=True)"


PREFIXES = re.compile(r"^(pause|sync|slow kernels|needless matrix work): ")


def test_every_situation_is_one_that_a_rule_asks_for() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "analyzers").glob("*.py"))
    kinds = "".join(value for value in vars(activity_kinds).values() if isinstance(value, str))
    unused = [
        situation
        for situation in SITUATIONS
        if not re.search(ENDINGS.sub("", PREFIXES.sub("", situation)), f"{sources}{kinds}")
    ]
    assert not unused


def test_an_unknown_situation_is_refused() -> None:
    with pytest.raises(KeyError):
        advise("nothing of the kind", UNKNOWN_CONTEXT)


@pytest.mark.parametrize(
    ("release", "than", "expected"),
    [("1.13", "2.0", True), ("2.9.1", "2.12", True), ("2.12", "2.9", False), ("2.3.0.dev2024", "2.3", False)],
)
def test_releases_compare_by_their_numbers(release: str, than: str, expected: bool) -> None:
    assert is_older(release, than) is expected
