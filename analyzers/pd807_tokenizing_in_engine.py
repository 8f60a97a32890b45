"""PD807: a serving engine tokenizes, or turns tokens into text, in the loop that feeds the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._engine_gaps import find_engine_gaps
from perfdoctor.rules import (
    Claim,
    Evidence,
    Finding,
    Rank,
    RankAnalyzer,
    Saving,
    When,
    advise,
    move_work,
    remove_cpu_time,
    rows_of,
)
from perfdoctor.rules import intervals as iv

_WORKS = ("tokenizing", "detokenizing")
_PROCESSES = "https://docs.vllm.ai/en/latest/design/arch_overview/"
_ROWS = rows_of(
    "an engine tokenizes in its loop",
    (
        When(uses=("vLLM",)),
        "Let another process tokenize: a server of vLLM does so in its API server, beside the process of the engine.",
        "VLLM_ENABLE_V1_MULTIPROCESSING=1 vllm serve ...   # the default; 0 puts both into one process",
        _PROCESSES,
    ),
    (
        When(),
        "Tokenize in another process or thread, and send the engine numbers: its loop has only to schedule and launch. "
        "Fast tokenizers take a batch at once.",
        None,
        "https://huggingface.co/docs/transformers/fast_tokenizers",
    ),
)


class TokenizingInEngine(RankAnalyzer):
    """The thread that launches the model turns text into tokens, or tokens into text, and the GPU waits.

    What it finds:
        Idle time of the GPU between the passes of a serving engine in which the engine's thread is in a tokenizer.

    Why it costs time:
        A long prompt takes milliseconds to tokenize, as long as a pass that decodes. No other request moves meanwhile.

    How it is measured:
        Idle time between the passes (see PD801) in Python frames of tokenizers and detokenizers on the thread of the
        engine. The saving is a replay without that time on this thread; another process takes as long for it.

    How to fix:
        Tokenize in the process of the API server, or in a thread of its own, as vLLM and SGLang do by default.

    When it is wrong:
        Python stacks make short calls look longer than they are; detokenizing token by token has many.

    Needs:
        Launches and Python stacks; three passes.

    References:
        vLLM, "Architecture Overview".
    """

    rule = "PD807"
    name = "tokenizing-in-engine"
    needs = frozenset({"kernels", "launches", "stacks"})
    # min_share: of the time of a pass, as for the engine's other work.
    defaults = {"min_share": 0.02}
    references = (_PROCESSES,)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when tokenizing takes at least `min_share` of the time, and the GPU none."""
        gaps, passes = find_engine_gaps(rank), rank.engine_passes
        if gaps is None or passes is None:
            return
        time = iv.union_of(gaps.idle[work] for work in _WORKS)
        cost_ns = rank.per_step(iv.total(time))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        thread = np.full(len(time), passes.thread, np.int32)
        removed = remove_cpu_time(thread, (time[:, 0], time[:, 1]), rank.window)
        yield self.finding(
            rank,
            title=f"Between two passes the GPU waits while the engine {gaps.describe(rank, _WORKS)}",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advise(_ROWS, rank.context),
            claim=Claim(time),
            edit=move_work(removed, "worker", cost_ns),
            confidence=0.8,
            evidence=tuple(
                Evidence(f"GPU idle in {work} per {{unit}}", rank.per_step(iv.total(gaps.idle[work])), "ns")
                for work in _WORKS
            ),
        )
