"""What program each real trace is of, as judged from its raw JSON: names of ops, ranges, frames, calls, kernels."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from real_traces import read_once

from perfdoctor.analysis.context.context import Context
from perfdoctor.rank import Rank
from perfdoctor.trace.tables.split_ranks import split_ranks

pytestmark = pytest.mark.corpus


class Expected(NamedTuple):
    """A context as the raw file shows it; PyTorch is among the frameworks unless `plain` says otherwise."""

    phase: str
    steady: bool | None
    frameworks: tuple[str, ...] = ()
    parallelism: tuple[str, ...] = ()
    compiled: float | None = 0.0  # shares to a percent
    graphed: float | None = 0.0
    generations: tuple[str, ...] = ()
    plain: tuple[str, ...] = ("PyTorch",)


TORCHREC = ("torchrec",)
PIPELINED = (*TORCHREC, "torchrec train pipeline")  # ranges of sparse_data_dist, or sdd_
QUANTIZED = (*PIPELINED, "torchrec 8-bit exchange")  # fbgemm::FloatToHFP8Quantized
SHARDED = ("DDP", "embedding sharding")
SGLANG = ("SGLang", "overlapped scheduling")  # event_loop_overlap
TRANSFORMERS = ("Hugging Face Transformers",)
VOLTA = ("Volta",)  # by 80 multiprocessors: volta_ kernels run on Turing too, of which the largest has 72
EXPECTED = {
    # cudaStreamCreate and cudaFree of 1.3 s each, a cudaLaunchKernel of 1.2 s, and ranges that are called warmup
    "traces/a100-cupti-counters.json.gz": Expected("inference", False, compiled=None, graphed=None),
    "traces/a100-ddp-control/rank3.json.gz": Expected("training", True, PIPELINED, SHARDED),
    "traces/a100-event-sync.json.gz": Expected("unknown", None),  # three products, nothing else
    "traces/a100-nccl-config/rank0.json.gz": Expected("training", True, parallelism=("DDP",)),
    "traces/a100-negative-queue/rank0.json.gz": Expected("training", True, PIPELINED, SHARDED, 0.07, 0.03),
    "traces/a100-sam-bf16.json.gz": Expected("inference", None, compiled=0.39),
    "traces/a100-sam-fp32.json.gz": Expected("inference", None),
    # cudaStreamBeginCapture, EndCapture and GraphInstantiate three times each
    "traces/a100-vit-graph-bf16.json.gz": Expected("inference", False, compiled=1.0, graphed=0.98),
    "traces/a4000-no-cpu-op.json.gz": Expected("unknown", None, compiled=None),  # no ops; layer norms, gelu, products
    "traces/b200-eager.json.gz": Expected("inference", None, ("vLLM",), ("tensor parallel",)),  # 1 of 768 compiled
    "traces/b300-decode-graph.json.gz": Expected("inference", None, SGLANG, graphed=0.95),
    "traces/cpu-only-rank34.json.gz": Expected("training", None, TORCHREC, ("DDP",), None, None),  # 210 to 425 ms
    "traces/gp100-user-annotation.json.gz": Expected("training", True),
    "traces/gtx1650-clock-skew.json.gz": Expected("inference", False, compiled=1.0),
    "traces/h100-bert-small-bf16.json.gz": Expected("inference", None, TRANSFORMERS),
    "traces/h100-nsfw-vit-bf16.json.gz": Expected("inference", None, TRANSFORMERS),
    "traces/h100-qwen-bf16.json.gz": Expected("inference", None, TRANSFORMERS),
    "traces/h100-timesformer-bf16.json.gz": Expected("inference", None, (*TRANSFORMERS, "Hugging Face pipeline")),
    "traces/h100-transformer-steps.json.gz": Expected("inference", False),  # steps of 1.3, 0.8 and 0.8 ms
    "traces/mi-merged-4pids.json.gz": Expected("training", True, parallelism=("DDP",), generations=("CDNA 3",)),
    "traces/mi210-gpu-only.json.gz": Expected("training", None, compiled=None),  # igemm_wrw, batch_norm_backward
    "traces/mi250-minitoy.json.gz": Expected("training", False),  # one hipLaunchKernel of 6.5 of 9.3 ms
    "traces/mi300x-decode-graph.json.gz": Expected("inference", None, SGLANG, graphed=0.96),
    "traces/mi300x-resnet-ddp.json.gz": Expected("training", True, parallelism=("DDP",)),
    "traces/mi300x-resnet18-ddp.json.gz": Expected("training", None),  # the file says train_single_gpu.py: no DDP
    "traces/no-distributed-info.json.gz": Expected("training", None, PIPELINED, SHARDED, None, None),
    "traces/pg509-vit-graph-ns.json.gz": Expected("inference", False, compiled=1.0, graphed=0.98),
    # one cudaLaunchKernel of 343 and 368 ms; gathers and scatters between DTensors
    "traces/rtx4090-llama-2ranks/rank0.json.gz": Expected(
        "inference", False, parallelism=("tensor parallel", "sequence parallel")
    ),
    "traces/rtx4090-llama-2ranks/rank1.json.gz": Expected(
        "inference", False, parallelism=("tensor parallel", "sequence parallel")
    ),
    "traces/sampled-w128/rank0.json.gz": Expected("training", None, QUANTIZED, SHARDED, generations=("Ampere", "Ada")),
    "traces/sampled-w128/rank1.json.gz": Expected("training", None, QUANTIZED, SHARDED, generations=("Ampere", "Ada")),
    "traces/triton-compile.json.gz": Expected("inference", None, compiled=1.0),
    "traces/v100-bare-list-workers0.json.gz": Expected("training", True, generations=VOLTA),
    "traces/v100-bare-list-workers4.json.gz": Expected("training", True, generations=VOLTA),
    "traces/v100-ddp-test/rank1.json.gz": Expected("training", True, PIPELINED, SHARDED, 0.52, 0.48),
    # 404 all-reduces a step, one a parameter, and no mark of DDP; CompiledFunction launches 13,300 of 19,370 kernels
    "traces/v100-df-index/rank1.json.gz": Expected("training", True, parallelism=("data parallel",), compiled=0.69),
    "traces/v100-legacy-workers0.json.gz": Expected("training", True, generations=VOLTA),  # start-up is before step 1
    "traces/v100-legacy-workers4.json.gz": Expected("training", True, generations=VOLTA),
    "traces/v100-ns-resolution/rank0.json.gz": Expected("training", True, parallelism=("DDP",)),
    "traces/v100-resnet18-2ranks/rank0.json.gz": Expected("inference", True, TORCHREC, SHARDED),
    "traces/v100-resnet18-2ranks/rank1.json.gz": Expected("inference", True, TORCHREC, SHARDED),
    # zero_grad in each step, but neither a backward pass nor an optimizer
    "traces/v100-torchrec-4ranks/rank0.json.gz": Expected("unknown", True, PIPELINED, SHARDED),
    "traces/v100-torchrec-4ranks/rank1.json.gz": Expected("unknown", True, PIPELINED, SHARDED),
    "traces/v100-torchrec-4ranks/rank2.json.gz": Expected("unknown", True, PIPELINED, SHARDED),
    "traces/v100-torchrec-4ranks/rank3.json.gz": Expected("unknown", True, PIPELINED, SHARDED),
    "nsight/mfu_2gpu_before.sqlite": Expected("inference", None, parallelism=("FSDP", "sequence parallel")),
    "nsight/memfusion.sqlite": Expected("inference", None, plain=("TensorRT",), compiled=None),
}
# Words that the evidence must have, beside the claims.
EVIDENCE = {
    "traces/a100-vit-graph-bf16.json.gz": "a graph is captured",
    "traces/b200-eager.json.gz": "1 of 768 kernels are launched by compiled code",
    "traces/b300-decode-graph.json.gz": "it decodes tokens",
    "traces/mi300x-decode-graph.json.gz": "it decodes tokens",
    "traces/rtx4090-llama-2ranks/rank0.json.gz": "cudaLaunchKernel takes 343 ms",
    "traces/rtx4090-llama-2ranks/rank1.json.gz": "cudaLaunchKernel takes 368 ms",
    "traces/v100-df-index/rank1.json.gz": "13,300 of 19,370 kernels are launched by compiled code",
    "traces/v100-resnet18-2ranks/rank0.json.gz": "gradients are prepared",
    "traces/v100-torchrec-4ranks/rank0.json.gz": "gradients are zeroed",
    "nsight/mfu_2gpu_before.sqlite": "gradients are prepared",
}


def context_of(path: Path) -> Context:
    trace = read_once(path)
    return Rank(split_ranks(trace)[0]).context


def test_every_real_trace_is_in_the_table(corpus: Path) -> None:
    there = {f"traces/{path.relative_to(corpus)}" for path in corpus.rglob("*.json.gz")}
    assert there == {name for name in EXPECTED if name.startswith("traces/")}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_program_is_recognized(shared: Path, name: str) -> None:
    expected, context = EXPECTED[name], context_of(shared / name)
    found = Expected(
        phase=context.phase,
        steady=context.steady,
        frameworks=tuple(each for each in context.frameworks if each not in expected.plain),
        parallelism=context.parallelism,
        compiled=None if context.compiled_share is None else round(context.compiled_share, 2),
        graphed=None if context.graph_share is None else round(context.graph_share, 2),
        generations=context.device_generations,
        plain=tuple(each for each in context.frameworks if each in expected.plain),
    )
    assert found == expected
    assert context.torch_version is None  # no recording of the corpus names it
    assert EVIDENCE.get(name, "phase") in " ".join(context.evidence)
