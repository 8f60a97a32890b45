"""PD804: a serving engine reads prompts in pieces so small that each takes little more than a pass of no work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfdoctor.rules import (
    BoolArray,
    Claim,
    Evidence,
    Finding,
    GpuRows,
    Int64Array,
    Rank,
    RankAnalyzer,
    Saving,
    When,
    advise,
    rows_of,
    scale_durations,
)
from perfdoctor.rules import intervals as iv
from perfdoctor.rules.internal import EnginePasses

_VLLM = "https://docs.vllm.ai/en/stable/configuration/optimization/"
_SGLANG = "https://docs.sglang.io/advanced_features/server_arguments.html"
_TENSORRT_LLM = "https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html"
_LARGER = (
    "Allow more tokens in a pass: each piece reads all weights anew. Requests that decode meanwhile then wait longer "
    "for their next token."
)
_ROWS = rows_of(
    "prompts in small pieces",
    (When(uses=("vLLM",)), _LARGER, "vllm serve ... --max-num-batched-tokens {size}", _VLLM),
    (When(uses=("SGLang",)), _LARGER, "python -m sglang.launch_server ... --chunked-prefill-size {size}", _SGLANG),
    (When(uses=("TensorRT-LLM",)), _LARGER, "LLM(..., max_num_tokens={size})", _TENSORRT_LLM),
    (When(), _LARGER, None, _VLLM),
)
# So many passes with the very same number of tokens, the largest there is, tell a limit from a coincidence.
_MIN_PIECES = 3
# vLLM's page on tuning recommends more than that for throughput.
_PASS_TOKENS = 8192


class _Pieces(NamedTuple):
    """Passes that read pieces of prompts: which, the size of the largest, and those that larger ones spare."""

    mask: BoolArray
    tokens: int
    needless: Int64Array


class PrefillInPieces(RankAnalyzer):
    """Prompts are cut into many passes, each of which reads all weights of the model.

    What it finds:
        Passes of a serving engine that only read prompts, in pieces of the same small number of tokens.

    Why it costs time:
        A pass reads all weights once, however few tokens it computes. A piece of 256 tokens takes nearly as long as one
        of 512 on most GPUs that serve models, because reading takes longer than computing.

    How it is measured:
        By the names of the engine's ranges: three passes or more of the largest size that occurs, no more than
        max_tokens, where a limit shows: a smaller rest follows them, they hold different numbers of requests, or passes
        that decode as well are filled up to the same size. With passes of
        8,192 tokens so many fewer would do; each saves at most what a pass of few tokens takes: one that decodes, or
        the smallest piece. Pieces that share a pass with decoding are left alone: that is what pieces are for.

    How to fix:
        Raise the limit on the tokens of a pass. It shortens the time to the first token, and lengthens the longest time
        between two tokens of other requests.

    When it is wrong:
        The limit may be chosen for even times between tokens. Prompts that share a long prefix compute only the rest.

    Needs:
        Launches, and an engine whose ranges name tokens.

    References:
        vLLM, "Optimization and Tuning": Chunked Prefill; SGLang, "Server Arguments".
    """

    rule = "PD804"
    name = "prefill-in-pieces"
    needs = frozenset({"kernels", "launches"})
    # max_tokens: half of 2,048, the value that vLLM's page gives as small; min_share: as for an engine's other costs.
    defaults = {"max_tokens": 1024, "min_share": 0.02}
    references = (_VLLM, _SGLANG)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when fewer passes would save `min_share` of the time."""
        passes = rank.engine_passes
        if passes is None:
            return
        start_ns, end_ns = passes.windows.T
        inside = 2 * iv.overlap(start_ns, end_ns, rank.window) > end_ns - start_ns
        pieces = _find_pieces(passes, inside, self.settings["max_tokens"])
        if pieces is None:
            return
        busy_ns, decodes = passes.busy_ns, passes.match_kind("decode")
        a_pass_ns = int(busy_ns[pieces.mask].min())  # the rest of a prompt, often
        if decodes.any():
            a_pass_ns = min(a_pass_ns, int(np.median(busy_ns[decodes])))
        saved_ns = len(pieces.needless) * a_pass_ns
        if saved_ns < self.settings["min_share"] * rank.window_ns:  # the median pass may be far shorter than the mean
            return
        cost_ns = rank.per_step(saved_ns)
        starts_ns = start_ns[pieces.needless]
        items = np.flatnonzero(passes.match_items(pieces.mask) & rank.in_window)
        work_ns = max(int(rank.trace.gpu.dur_ns[items].sum()), 1)
        yield self.finding(
            rank,
            title=f"Prompts are read in {int(pieces.mask.sum())} passes of up to {pieces.tokens} tokens",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advise(_ROWS, rank.context, size=_PASS_TOKENS),
            claim=Claim(iv.intersect(iv.union(starts_ns, starts_ns + a_pass_ns), rank.window), kernels=True),
            edit=scale_durations(GpuRows(rank.trace.gpu, items), min(saved_ns / work_ns, 1.0)),
            confidence=0.6,
            evidence=(
                Evidence("tokens of a piece", pieces.tokens, "count"),
                Evidence("passes fewer with larger pieces", len(pieces.needless), "count"),
                Evidence("GPU busy in a pass of few tokens", a_pass_ns, "ns"),
            ),
        )


def _find_pieces(passes: EnginePasses, inside: BoolArray, max_tokens: float) -> _Pieces | None:
    """The passes that read pieces of prompts; None where no limit on their tokens shows, or only a large one.

    `inside` tells which passes are analysed.
    """
    size = np.array([each.tokens or 0 for each in passes.passes])
    kinds = np.array([each.kind for each in passes.passes])
    requests = np.array([each.requests or 0 for each in passes.passes])
    tokens = np.where((kinds == "prefill") & inside, size, 0)
    largest = int(tokens.max(initial=0))
    full = tokens == largest
    if not 0 < largest <= max_tokens or full.sum() < _MIN_PIECES:
        return None
    runs = _split_into_runs(tokens > 0)
    has_rest = any((size[run[:-2]] + size[run[1:-1]] == 2 * largest).any() and size[run[-1]] < largest for run in runs)
    fills_up = len(set(requests[full].tolist())) > 1 or (size[kinds == "mixed"] == largest).any()
    needless = np.concatenate([run[-(-int(size[run].sum()) // _PASS_TOKENS) :] for run in runs])
    return _Pieces(tokens > 0, largest, needless) if len(needless) and (has_rest or fills_up) else None


def _split_into_runs(mask: BoolArray) -> list[Int64Array]:
    """The rows of each run of true values."""
    rows = np.flatnonzero(mask)
    return np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
