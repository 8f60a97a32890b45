"""PD805: a serving engine samples tokens, or applies penalties, on the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._cpu_sampling import CpuSampling, find_cpu_sampling
from perfdoctor.rules import (
    Claim,
    Evidence,
    Finding,
    Rank,
    RankAnalyzer,
    Saving,
    When,
    advise,
    format_bytes,
    format_time,
    remove_cpu_time,
    rows_of,
)
from perfdoctor.rules import intervals as iv

_VLLM = "https://docs.vllm.ai/en/stable/features/custom_logitsprocs/"
_SGLANG = "https://docs.sglang.io/advanced_features/server_arguments.html"
_ON_GPU = "Keep the logits on the GPU, where the engine samples by itself, and copy nothing but tokens"
_ROWS = rows_of(
    "an engine samples on the CPU",
    (
        When(uses=("vLLM",)),
        f"{_ON_GPU}: write a logits processor of your own for the whole batch, on the tensor that it is given.",
        "class Mine(LogitsProcessor):\n"
        "    def apply(self, logits): return logits.index_put_(self.where, self.bias)   # no .cpu(), no loop",
        _VLLM,
    ),
    (
        When(uses=("SGLang",)),
        f"{_ON_GPU}, by kernels of its own.",
        "python -m sglang.launch_server ... --sampling-backend flashinfer",
        _SGLANG,
    ),
    (When(), f"{_ON_GPU}.", None, _VLLM),
)


class SamplingOnCpu(RankAnalyzer):
    """Logits are turned into tokens by the CPU, and the GPU waits.

    What it finds:
        Idle time of the GPU between the passes of a serving engine in which the CPU sorts, sums, masks or draws, where
        logits are copied to it, or within the engine's sampler.

    Why it costs time:
        Logits have a number for each word of the vocabulary and each request, megabytes a pass. The GPU reads them in
        microseconds; a copy and a sort on the CPU take milliseconds, as long as a pass that decodes.

    How it is measured:
        By ops of a sampler on the engine's thread that launch nothing, and by copies to the CPU of 32 kB a request and
        more in three passes: tokens take a few bytes. Where logits are copied, the sampler's Python belongs to it. The
        saving is at most that idle time.

    How to fix:
        Penalties, biases and masks can be computed for the whole batch on the GPU. What no engine has, a logits
        processor of your own can do on the tensor that it is given.

    When it is wrong:
        Hidden states or log-probabilities that a client asked for are copied, too, if they are large.

    Needs:
        Launches and ops; Python stacks for samplers that are given no logits.

    References:
        vLLM, "Custom Logits Processors"; SGLang, "Server Arguments".
    """

    rule = "PD805"
    name = "sampling-on-cpu"
    needs = frozenset({"kernels", "launches"})
    # min_share: of the time of a pass, as for the engine's other work.
    defaults = {"min_share": 0.02}
    references = (_VLLM, _SGLANG)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when sampling on the CPU takes at least `min_share` of the time, and the GPU none."""
        passes, found = rank.engine_passes, find_cpu_sampling(rank)
        if passes is None or found is None:
            return
        cost_ns = rank.per_step(iv.total(found.time))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        thread = np.full(len(found.time), passes.thread, np.int32)
        yield self.finding(
            rank,
            title="The engine samples on the CPU: the GPU waits " + _describe(rank, found),
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advise(_ROWS, rank.context),
            claim=Claim(found.time),
            edit=remove_cpu_time(thread, (found.time[:, 0], found.time[:, 1]), rank.window, is_upper_bound=True),
            confidence=0.8,
            evidence=(
                Evidence("GPU idle in sampling on the CPU per {unit}", cost_ns, "ns"),
                Evidence("copies of logits per {unit}", rank.count_per_step(len(found.copied)), "count"),
            ),
        )


def _describe(rank: Rank, found: CpuSampling) -> str:
    """For what the GPU waits: "1.2 ms a pass for aten::sort, and 9.6 MB of logits are copied"."""
    trace = rank.trace
    text = f"{format_time(rank.per_step(iv.total(found.time)))} a pass"
    took_ns: Counter[str] = Counter()
    for op in found.ops.tolist():
        took_ns[trace.strings[trace.ops.name[op]]] += int(trace.ops.dur_ns[op])
    if took_ns:
        text += f" for {took_ns.most_common(1)[0][0]}"
    if len(found.copied):
        text += f", and {format_bytes(int(np.median(trace.gpu.bytes[found.copied])))} of logits are copied to it"
    return text
