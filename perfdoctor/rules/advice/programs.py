"""Groups of phases, frameworks and kinds of parallelism that rows of the table share."""

from __future__ import annotations

from perfdoctor.analysis.context.name_signs import SERVING_ENGINES
from perfdoctor.analysis.context.program_phase import FORWARD_ONLY
from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import AdviceRow, Row, When

ANY = When()
TOO_OLD_TO_COMPILE = When(lacks_triton=True)
WITHOUT_BFLOAT16 = When(lacks_bfloat16=True)
FORWARD = FORWARD_ONLY
ENGINES = tuple(sorted(SERVING_ENGINES))
ZERO = ("DeepSpeed", "ZeRO")
TORCHREC = ("torchrec", "embedding sharding")
TORCHREC_PIPELINE = ("torchrec train pipeline",)
TORCHREC_QUANTIZED = ("torchrec 8-bit exchange",)
TORCHREC_UNPIPELINED = When(phases=("training",), uses=TORCHREC, lacks=TORCHREC_PIPELINE)
TENSOR_PARALLEL = ("tensor parallel", "sequence parallel")
MAIN_SHARE = 0.5
"""From this share of the kernels on a program counts as compiled, or as run by graphs."""
PARTLY = 0.05
"""Below this share of the kernels a program counts as not compiled, though some region of it may be."""
ENGINE_KERNELS = (
    When(uses=ENGINES),
    "Try a newer release of the engine, or another backend of it: its own kernels run here, and others may be fused.",
    None,
    pages.VLLM,
)
"""The row about kernels of a serving engine, which its users do not write."""


def rows_of(situation: str, *rows: Row | tuple[When, str, str | None, str]) -> tuple[AdviceRow, ...]:
    """The rows of a situation, the most particular program first.

    The table of perfdoctor is made of these, and a rule can hold rows of its own, which `advise` takes in place of a
    situation. A row is a `Row`, or its first four members: (when, sentence, code, source).
    """
    return tuple(AdviceRow(situation, *row) for row in rows)


def any_program(
    situation: str, sentence: str, code: str | None, source: str, since: str = "", actions: tuple[Action, ...] = ()
) -> AdviceRow:
    """The only row of a situation whose advice is the same for any program."""
    return AdviceRow(situation, ANY, sentence, code, source, since, actions)
