"""Passes of loops that are no serving engine: `generate` of transformers, and pipelines of diffusers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from perfdoctor.analysis.timeline.engine_passes import find_engine_passes
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv

UTILS = "transformers/generation/utils.py"
GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT"
STEP = "diffusers/schedulers/scheduling_euler_discrete.py(590): step"


class Loop:
    """A trace, and where its CPU is, in microseconds."""

    def __init__(self) -> None:
        self.trace, self.at = TraceBuilder(), 0.0

    def within(self, name: str, began: float) -> None:
        """A frame from then until now."""
        self.trace.frame(name, began, self.at - began)

    def call(self, module: str, gpu_us: float, shape: Sequence[int] | None = None, compiled: bool = False) -> None:
        """A call of a model, which launches one kernel and waits for it."""
        began = self.at
        if shape:
            self.trace.op("aten::embedding", began + 1, 5, shapes=[[256, 64], shape], types=["float", "long int"])
        self.trace.kernel(GEMM, began + 20, gpu_us, launch_us=began + 10)
        self.at += 20 + gpu_us
        wrapper = "torch/_dynamo/eval_frame.py(700): compile_wrapper"
        self.within(wrapper if compiled else f"nn.Module: {module}_0", began)

    def idle(self, name: str, dur: float) -> None:
        """Work of the CPU alone."""
        self.at += dur
        self.within(name, self.at - dur)

    def prepare(self) -> None:
        """What the loop of `generate` does before each pass."""
        self.idle("transformers/models/llama/modeling_llama.py(900): prepare_inputs_for_generation", 30)


def generate(tokens: int = 4, draft: int = 0, pieces: int = 1, compiled: bool = False) -> Loop:
    """Two calls of `generate`, on two prompts of 20 tokens each, as transformers 5 runs them."""
    loop = Loop()
    for _ in range(2):
        began = loop.at
        for _ in range(pieces):
            at = loop.at
            if draft:
                propose(loop, draft)
            loop.prepare()
            loop.call("LlamaForCausalLM", 400, [2, 20 // pieces])
            if pieces > 1:
                loop.within(f"{UTILS}(4269): _prefill", at)
        for _ in range(tokens - 1):
            loop.idle("transformers/generation/logits_process.py(70): __call__", 100)
            if draft:
                propose(loop, draft)
            loop.prepare()
            loop.call("LlamaForCausalLM", 200, [2, 1 + draft], compiled)
        loop.within(f"{UTILS}(3122): _sample", began)
        loop.within(f"{UTILS}(2562): generate", began)
        loop.idle("serve.py(10): answer", 50_000)
    return loop


def propose(loop: Loop, count: int) -> None:
    """A draft model that proposes tokens, by a `generate` of its own."""
    began = loop.at
    for _ in range(count):
        loop.prepare()
        loop.call("Draft", 20, [2, 1])
    loop.within(f"{UTILS}(2562): generate", began)
    loop.within("transformers/generation/candidate_generator.py(200): get_candidates", began)


def counts_of(loop: Loop) -> Mapping[str, int]:
    passes = find_engine_passes(loop.trace.trace())
    return Counter(each.kind for each in passes.passes) if passes else {}


@pytest.mark.parametrize("compiled", [False, True])
def test_generate_reads_prompts_and_decodes(compiled: bool) -> None:
    rows = {row.kind: row for row in Rank(generate(compiled=compiled).trace.trace()).pass_summary}
    found = {kind: (row.passes, row.requests, row.tokens) for kind, row in rows.items()}
    assert found == {"prefill": (2, 2, 40), "decode": (6, 2, 2)}
    decode = rows["decode"]
    assert decode.busy_ns == pytest.approx(200_000, abs=1)
    assert decode.idle_ns["no_requests"] == 0
    assert decode.idle_ns["sampling"] == pytest.approx(100_000 * 4 / 6, rel=0.01)  # none after the last token
    assert decode.time_ns < 400_000  # what the program does between two calls is no part of it


def test_a_prompt_in_pieces() -> None:
    assert counts_of(generate(pieces=2)) == {"prefill": 4, "decode": 6}


def test_a_draft_model_has_passes_of_its_own() -> None:
    rows = {row.kind: row for row in Rank(generate(draft=3).trace.trace()).pass_summary}
    assert {kind: row.passes for kind, row in rows.items()} == {"draft": 8, "prefill": 2, "decode": 6}
    assert rows["decode"].tokens == 8


def test_generation_has_no_engine() -> None:
    rank = Rank(generate().trace.trace())
    assert rank.passes is not None
    assert rank.engine_passes is None


def paint(steps: int, guided: bool = False, control: bool = False, scheduler: bool = True) -> Loop:
    """Two pictures of a pipeline: a text encoder, steps of a model, and a decoder."""
    loop = Loop()
    for _ in range(2):
        began = loop.at
        loop.call("CLIPTextModel", 50)
        for _ in range(steps):
            if control:
                loop.call("ControlNetModel", 100)
            for _ in range(1 + guided):
                loop.call("UNet2DConditionModel", 300)
            if scheduler:
                loop.idle(STEP, 80)
        loop.call("Decoder", 500)
        loop.within("diffusers/pipelines/stable_diffusion/pipeline_stable_diffusion.py(780): __call__", began)
        loop.idle("serve.py(10): answer", 50_000)
    return loop


@pytest.mark.parametrize(("guided", "control", "items"), [(False, False, 1), (True, False, 2), (True, True, 3)])
def test_a_step_of_diffusion_is_a_pass(guided: bool, control: bool, items: int) -> None:
    passes = find_engine_passes(paint(5, guided, control).trace.trace())
    assert passes is not None
    kinds = [each.kind for each in passes.passes]
    assert kinds == ["other", *["denoise"] * 5, "other"] * 2
    assert np.bincount(passes.pass_of_item).tolist() == [1, *[items] * 5, 1] * 2
    assert iv.total(passes.idle["sampling"]) == 10 * 80_000


def test_no_passes_without_a_loop() -> None:
    assert counts_of(paint(1)) == {}
    assert counts_of(paint(5, scheduler=False)) == {}
    loop = Loop()
    for _ in range(5):
        loop.prepare()
        loop.call("LlamaForCausalLM", 100)
    assert counts_of(loop) == {}
