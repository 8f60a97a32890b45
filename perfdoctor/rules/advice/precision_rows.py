"""Advice about the precision of products and convolutions: PD201, PD203, PD204.

How a program gets half precision depends on what it is, whatever the kernels are: the ways stand here once.
"""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import AdviceRow, Row, When
from perfdoctor.rules.advice.framework_settings import LIGHTNING, TRAINER
from perfdoctor.rules.advice.programs import ANY, ENGINES, FORWARD, ZERO, any_program, rows_of

_TF32 = "https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere"
_MIOPEN = "https://docs.pytorch.org/docs/stable/miopen_environment_variables.html"
_LIGHTNING = "https://lightning.ai/docs/pytorch/stable/common/precision_basic.html"


_CHANNELS_LAST = "model = model.to(memory_format=torch.channels_last)"
_BENCHMARK = f"{_CHANNELS_LAST}\ntorch.backends.cudnn.benchmark = True"
_AUTOCAST, _TF32_ON, _LAYOUT_ON = Action("autocast-bf16"), Action("tf32"), Action("channels-last")
_WITHOUT_TF32 = ("Volta", "Turing")
_AUTOCAST_FLOAT16_TRAINING = 'with torch.autocast("cuda", dtype=torch.float16): ...   # and a torch.amp.GradScaler'


class _Way(NamedTuple):
    """How a program gets half precision: the end of a sentence, code, where that is documented, and what it does."""

    when: When
    sentence: str
    code: str | None
    source: str
    actions: tuple[Action, ...] = ()


def _ways(dtype: str, short: str) -> tuple[_Way, ...]:
    """The ways to a type such as "bfloat16", "bf16"; the last is for any program."""
    scaler = "" if short == "bf16" else " with a GradScaler"
    autocast = f'with torch.autocast("cuda", dtype=torch.{dtype}): ...'
    does = (_AUTOCAST,) if short == "bf16" else ()
    lightning = "bf16-mixed" if short == "bf16" else "16-mixed"
    return (
        _Way(When(uses=("vLLM",)), f"serve the model in {dtype}", f"vllm serve ... --dtype {dtype}", pages.VLLM),
        _Way(
            When(uses=("SGLang",)),
            f"serve the model in {dtype}",
            f"python -m sglang.launch_server ... --dtype {dtype}",
            pages.SGLANG,
        ),
        _Way(When(uses=ENGINES), f"build the engine in {dtype}", None, pages.TENSORRT),
        _Way(
            When(phases=FORWARD),
            f"run the model in {dtype}, cast once, before the loop",
            f"model = model.to(torch.{dtype})",
            pages.AMP,
        ),
        _Way(TRAINER, f"train in {dtype}", f"TrainingArguments(..., {short}=True)", pages.TRAINER, does),
        _Way(LIGHTNING, f"train in {dtype}", f'Trainer(precision="{lightning}")', _LIGHTNING, does),
        _Way(When(uses=ZERO), f"train in {dtype}", f'"{short}": {{"enabled": true}}', pages.DEEPSPEED),
        _Way(
            When(phases=("training",)),
            f"train under autocast in {dtype}{scaler}",
            autocast if short == "bf16" else _AUTOCAST_FLOAT16_TRAINING,
            pages.AMP,
            does,
        ),
        _Way(ANY, f"run under autocast in {dtype}", autocast, pages.AMP, does),
    )


_BFLOAT16, _FLOAT16 = _ways("bfloat16", "bf16"), _ways("float16", "fp16")


def _insert_way(sentence: str, way: _Way) -> str:
    """A sentence with the way in place of "{way}" or "{Way}"."""
    begun = way.sentence[0].upper() + way.sentence[1:]
    return sentence.replace("{way}", way.sentence).replace("{Way}", begun)


def _rows(
    situation: str,
    sentence: str,
    ways: tuple[_Way, ...],
    *,
    code: str | None = "{code}",
    source: str = "",
    actions: tuple[Action, ...] = (),
    generations: tuple[str, ...] = (),
) -> tuple[AdviceRow, ...]:
    """A row for each way.

    Args:
        situation: The situation.
        sentence: What to do, with "{way}" in it, or "{Way}" where it begins the sentence.
        ways: How programs get half precision.
        code: The lines to write, with "{code}" in it where the way's own belong; engines get only their own.
        source: Where it is documented; the way's own where this is empty.
        actions: What these lines do; of a way whose code is in them all that both do, if that is known.
        generations: The kernels prove that the device is of one of these; of any where this is empty.
    """

    def row_of(way: _Way) -> Row:
        is_engine = way.when.uses and set(way.when.uses) <= set(ENGINES)
        lines, does = None, tuple[Action, ...]()
        if code is not None and way.code is not None:
            lines = way.code if is_engine else code.replace("{code}", way.code)
            if not is_engine:
                does = actions if "{code}" not in code else (*actions, *way.actions) if way.actions else ()
        return Row(
            way.when._replace(generations=generations),
            _insert_way(sentence, way),
            lines,
            source or way.source,
            actions=does,
        )

    return rows_of(situation, *map(row_of, ways))


PRECISION_ROWS = (
    *_rows(
        "float32 products: TF32",
        "Allow TF32 for float32 products, or {way}: both use Tensor Cores.",
        _BFLOAT16,
        code='torch.set_float32_matmul_precision("high")',
        source=_TF32,
        actions=(_TF32_ON,),
    ),
    *_rows(
        "float32 products: TF32 is on",
        "Make M, N and K multiples of 8, or {way}: TF32 is allowed already, but the sizes or layouts of these "
        "products keep them off the Tensor Cores.",
        _BFLOAT16,
        code=None,
        source=pages.MATRIX_GUIDE,
    ),
    *_rows("float32 products: bfloat16", "{Way}: on this device TF32 is not faster than float32.", _BFLOAT16),
    *_rows("float32 products: float16", "{Way}: this device has Tensor Cores for float16 only.", _FLOAT16),
    *_rows(
        "float32 products",
        "{Way}: the kernels prove a device that has Tensor Cores for float16 only.",
        _FLOAT16,
        generations=_WITHOUT_TF32,
    ),
    any_program(
        "float32 products",
        "Use a precision for which the device has Tensor Cores: half precision, or TF32 where the device has it.",
        None,
        _TF32,
    ),
    *_rows(
        "float32 convolutions: TF32",
        "Allow TF32 for convolutions, use channels_last and let cuDNN choose by measuring; or {way}. TF32 is on for "
        "convolutions unless something turned it off.",
        _BFLOAT16,
        code=f"torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True\n{_CHANNELS_LAST}",
        source=_TF32,
        actions=(_TF32_ON, Action("cudnn-benchmark"), _LAYOUT_ON),
    ),
    *_rows(
        "float32 convolutions: TF32 is on",
        "Use channels_last and channel counts that are multiples of 8 (a first layer may have too few), and let "
        "cuDNN choose by measuring; or {way}. TF32 is allowed already: layout or channel counts keep these "
        "convolutions off the Tensor Cores.",
        _BFLOAT16,
        code=_BENCHMARK,
        actions=(Action("cudnn-benchmark"), _LAYOUT_ON),
        source=pages.CONVOLUTION_GUIDE,
    ),
    *_rows(
        "float32 convolutions: bfloat16",
        "{Way}, with channels_last.",
        _BFLOAT16,
        code=f"{{code}}\n{_CHANNELS_LAST}",
        actions=(_LAYOUT_ON,),
    ),
    *_rows(
        "float32 convolutions: float16",
        "{Way}, with channels_last and channel counts that are multiples of 8: this device has Tensor Cores for "
        "float16 only.",
        _FLOAT16,
        code=f"{{code}}\n{_CHANNELS_LAST}",
    ),
    *_rows(
        "float32 convolutions",
        "{Way}, with channels_last: the kernels prove a device that has Tensor Cores for float16 only.",
        _FLOAT16,
        code=f"{{code}}\n{_CHANNELS_LAST}",
        generations=_WITHOUT_TF32,
    ),
    any_program(
        "float32 convolutions",
        "Use a precision for which the device has Tensor Cores (half precision), with channels_last.",
        None,
        pages.CHANNELS_LAST,
    ),
    *rows_of(
        "half-precision convolutions",
        (
            When(uses=ENGINES),
            "Make channel counts multiples of 8 before the engine is built. These convolutions are in half precision "
            "already: layout or channel counts keep them off the Tensor Cores.",
            None,
            pages.TENSORRT,
        ),
        (
            ANY,
            "Use channels_last and channel counts that are multiples of 8 (a first layer may have too few), and let "
            "the library choose by measuring. These convolutions are in half precision already: layout or channel "
            "counts keep them off the Tensor Cores.",
            _BENCHMARK,
            pages.CHANNELS_LAST,
        ),
    ),
    any_program(
        "half-precision convolutions on an AMD device",
        "Use channels_last with PYTORCH_MIOPEN_SUGGEST_NHWC=1, and let MIOpen choose by measuring; or try "
        "bfloat16. These convolutions are in half precision already, but MIOpen chose kernels for the vector units "
        "(Winograd, direct, naive), not for the matrix cores.",
        f"{_CHANNELS_LAST}   # and PYTORCH_MIOPEN_SUGGEST_NHWC=1 python ...\ntorch.backends.cudnn.benchmark = True",
        _MIOPEN,
    ),
)
