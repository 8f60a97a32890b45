"""Rows of the field guide about the training loop, its loading and its processes: 11, 15 to 31, 50, 51."""

from __future__ import annotations

from perfdoctor.field_guide.guide_row import GuideRow, Subject
from perfdoctor.field_guide.program_traits import ProgramTraits
from perfdoctor.field_guide.subjects import (
    absent_op,
    all_of,
    convolutions,
    ddp,
    gpu,
    gradient_sharing,
    kernels,
    loader,
    norms,
    pointwise,
    processes,
    training,
)
from perfdoctor.report.finding import Finding
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.units import format_count, format_share, format_size

_MAIN_SHARE = 0.5
# Below a few per cent of the step no number of workers is measurably better.
_KEEPS_UP = 0.03
# Up to here plain SGD and Adam scale with a warm-up alone (Goyal et al. 2017: 8,192 images; You et al.: beyond it).
_LARGE_BATCH = 4096
_LAYERWISE = ("lars", "lamb", "novograd")


def _autotuner_is_on(traits: ProgramTraits) -> str | None:
    return "torch.backends.cudnn.benchmark is on" if traits.facts.flags.cudnn_benchmark else None


def is_compiled(traits: ProgramTraits) -> str | None:
    """What shows that compiled code or graphs launch most kernels; None where nothing does."""
    context = traits.report.context
    for share, how in ((context.graph_share, "graphs"), (context.compiled_share, "compiled code")):
        if share is not None and share >= _MAIN_SHARE:
            return f"{format_share(share)} of the kernels are launched by {how}"
    return None


def _loading_keeps_up(traits: ProgramTraits) -> str | None:
    share = traits.wait_share
    if share is None or share >= _KEEPS_UP or not traits.ran("PD101"):
        return None
    workers = [each.num_workers for each in traits.facts.loaders if each.num_workers is not None]
    who = (
        f"{format_count(max(workers), 'worker')} {'keeps' if max(workers) == 1 else 'keep'} up" if any(workers) else ""
    )
    waits = f"the loop waits {format_share(share)} of the {traits.unit} for its batches"
    return f"{who}: {waits}" if who else waits


def _tried_workers(traits: ProgramTraits) -> str | None:
    tried = [trial for trial in traits.report.trials if trial.change == "workers"]
    if tried:
        return f"`perfdoctor try` has measured it: {'; '.join(f'{each.setting} {each.verdict}' for each in tried)}"
    return _loading_keeps_up(traits)


def copies_to_gpu(traits: ProgramTraits) -> Subject:
    """Copies from the host to the GPU in the steps."""
    found = gpu(traits)
    if not found.is_present or traits.copies is None:
        return found
    count = traits.copies.count
    return Subject(
        count > 0, f"{count:,} copies go to the GPU" if count else "nothing is copied to the GPU in the steps"
    )


def _copies_are_pinned(traits: ProgramTraits) -> str | None:
    copies = traits.copies
    if copies is None or not copies.count or copies.pinned < copies.count:
        return None
    return f"all {copies.count:,} copies to the GPU ({format_size(copies.bytes)}) are from pinned memory"


def _batch(traits: ProgramTraits) -> int | None:
    """The batch of all processes; None where no loader of batches was captured."""
    sizes = [each.batch_size for each in traits.facts.loaders if each.batch_size is not None]
    return max(sizes) * traits.processes if sizes else None


def _large_batch(traits: ProgramTraits) -> Subject:
    found = training(traits)
    if not found.is_present:
        return found
    batch = _batch(traits)
    if batch is None:
        why = "no DataLoader makes it" if traits.facts else "record with `perfdoctor run`"
        return Subject(None, f"the size of the batch is not known: {why}")
    if batch < _LARGE_BATCH:
        return Subject(False, f"the batch of {batch:,} is not one of those that need it ({_LARGE_BATCH:,} and more)")
    return Subject(True, f"the batch is {batch:,}")


def _has_layerwise_rates(traits: ProgramTraits) -> str | None:
    names = [str(each.class_) for each in traits.facts.optimizers]
    chosen = [name for name in names if any(word in name.lower() for word in _LAYERWISE)]
    return f"the optimizer is {chosen[0]}" if chosen else None


def _no_bias_before_norm(traits: ProgramTraits) -> str | None:
    models = [model for model in traits.facts.models if model.conv_bias_before_norm is not None]
    if models and not any(model.conv_bias_before_norm for model in models):
        return "no convolution of the model has a bias before a norm"
    return None


def _sets_to_none(traits: ProgramTraits) -> str | None:
    if traits.facts.zero_grad_to_zero != 0 or not any(each.steps for each in traits.facts.optimizers):
        return None
    return "zero_grad never fills gradients with zeros"


def _program_with_flags(traits: ProgramTraits) -> Subject:
    """Any program whose flags were captured: a trace alone does not show what is off."""
    if not traits.facts.flags:
        return Subject(None, REQUIREMENTS["facts"])
    return Subject(True, f"it is {traits.phase}") if traits.phase != "unknown" else training(traits)


def _no_debug_flags(traits: ProgramTraits) -> str | None:
    if traits.ran("PD503") and traits.facts.flags.anomaly_detection is False:
        return "anomaly detection is off, and no profiler or check of the program's own was seen"
    return None


def _several_devices(traits: ProgramTraits) -> Subject:
    found = gpu(traits)
    if not found.is_present:
        return found
    if processes(traits).is_present:
        return processes(traits)
    if traits.devices > 1:
        return Subject(True, f"one process uses {traits.devices} GPUs")
    return Subject(False, "one process on one GPU")


def _is_ddp(traits: ProgramTraits) -> str | None:
    kinds = [kind for kind in traits.parallelism if kind in ("DDP", "FSDP")]
    if kinds and "DataParallel" not in traits.parallelism:
        return f"it is {kinds[0]}, with a process for each GPU"
    return None


def _overlaps(traits: ProgramTraits) -> str | None:
    share = traits.account.get("communication")
    if share is None or not traits.ran("PD402", "PD404", "PD405") or share >= _KEEPS_UP:
        return None
    return f"communication that nothing overlaps takes {format_share(share)} of the {traits.unit}"


def _is_fused(traits: ProgramTraits) -> str | None:
    op = traits.has_op(r"^aten::_fused_(adam|adamw|sgd|adagrad)_$")
    if op:
        return f"the optimizer is fused ({op})"
    fused = [str(each.class_) for each in traits.facts.optimizers if each.fused]
    return f"the optimizer is fused ({fused[0]})" if fused else None


def _gelu(traits: ProgramTraits) -> Subject:
    name = traits.has_op(r"^aten::gelu")
    if name or has_own_gelu(traits):
        return Subject(True, f"there is a GELU ({name or 'written by hand'})")
    return absent_op(traits, "there is no GELU")


def has_own_gelu(traits: ProgramTraits) -> bool:
    """Whether ops are there of which a GELU is made by hand: erf, or tanh beside a power."""
    return bool(traits.has_op(r"^aten::erf$") or (traits.has_op(r"^aten::tanh$") and traits.has_op(r"^aten::pow$")))


def _is_one_kernel(traits: ProgramTraits) -> str | None:
    name = traits.has_op(r"^aten::gelu$")
    return f"{name} is one kernel" if name and not has_own_gelu(traits) else is_compiled(traits)


def _is_of_gelu(traits: ProgramTraits, finding: Finding) -> bool:
    del finding
    return has_own_gelu(traits) and not traits.has_op(r"^aten::gelu$")


def _checkpointing(traits: ProgramTraits) -> Subject:
    found = all_of(gpu, training)(traits)
    if not found.is_present:
        return found
    if traits.checkpoints is None:
        return Subject(None, REQUIREMENTS["cpu"])
    if traits.checkpoints:
        return Subject(True, "activations are computed again in the backward pass")
    memory = traits.facts.cuda_memory.get("reserved_bytes.all.peak")
    sizes = [each.memory_bytes for each in traits.facts.devices if each.memory_bytes is not None]
    if memory is not None and sizes and memory < 0.9 * max(sizes):
        used = f"{format_size(memory)} of {format_size(max(sizes))}"
        return Subject(False, f"nothing is checkpointed, and memory is not short ({used} at its peak)")
    return Subject(None, "whether memory is short is not known: record with `perfdoctor run`")


def _sharing_or_one_process(traits: ProgramTraits) -> Subject:
    found = all_of(training, processes)(traits)
    if found.is_present is False and found.text == "one process":
        return Subject(False, "one process: no all-reduce to save")
    return gradient_sharing(traits)


def _accumulates(traits: ProgramTraits) -> str | None:
    numbers = [each for each in traits.facts.base.backwards if each is not None]
    if not numbers or not traits.ran("PD406") or min(numbers) < 2:
        return None
    return f"{min(numbers)} backward passes share an update, and their all-reduce"


def _static_graph(traits: ProgramTraits) -> str | None:
    return "static_graph is on" if any(model.ddp.static_graph for model in traits.facts.models) else None


def _of_graph_or_buckets(traits: ProgramTraits, finding: Finding) -> bool:
    del traits
    return finding.subject != "broadcast_buffers"


_AUTOTUNER_SINCE = "Still off by default; shapes that change make it search again and again."
_RANKS = "the traces of all ranks"

ROWS = (
    GuideRow(
        11,
        "ABE",
        "cuDNN's autotuner is on where shapes are fixed; the first iteration is slower.",
        ("PD501",),
        "facts and kernels",
        all_of(gpu, convolutions),
        _autotuner_is_on,
        checked_by="`perfdoctor try --only cudnn-benchmark`",
        since=_AUTOTUNER_SINCE,
    ),
    GuideRow(
        15,
        "ABCE",
        "A compiler fuses what does not run on Tensor Cores.",
        ("PD301", "PD104"),
        "kernels and launches",
        all_of(kernels, pointwise),
        is_compiled,
        checked_by="`perfdoctor try --only compile`",
        since="torch.compile instead of the JIT and of XLA.",
    ),
    GuideRow(
        16,
        "BE",
        "Workers load batches beside the computation.",
        ("PD101",),
        "the loop's ranges; facts for the number of workers",
        loader,
        _loading_keeps_up,
    ),
    GuideRow(
        17,
        "B",
        "More workers are not always better: a short benchmark finds the number (MNIST: 1 worker 6.7 s an epoch, 4 "
        "workers 4.1 s, 8 workers 4.5 s).",
        ("PD101", "PD114"),
        "facts; a trial",
        loader,
        _tried_workers,
        checked_by="`perfdoctor try --only workers`",
    ),
    GuideRow(
        18,
        "BE",
        "Batches are in pinned memory, and copies are asynchronous.",
        ("PD105",),
        "copies and launches",
        copies_to_gpu,
        _copies_are_pinned,
        since="pin_memory=True and non_blocking=True; neither helps alone.",
    ),
    GuideRow(
        19,
        "B",
        "The batch is the largest that memory has room for; mixed precision makes room.",
        ("PD509",),
        "facts and kernels",
        all_of(gpu, training),
        since="Only while kernels do not fill the GPU: beyond that a larger batch takes as much longer.",
    ),
    GuideRow(
        20,
        "B",
        "Large batches need a warm-up, a decay of the rate and of the weights, or LARS, LAMB, NovoGrad.",
        ("PD509",),
        "facts",
        _large_batch,
        _has_layerwise_rates,
        since="Beyond some thousands of samples a step; below, plain optimizers do.",
    ),
    GuideRow(
        21,
        "BE",
        "No bias before a normalisation along the same dimension.",
        ("PD502",),
        "facts",
        all_of(convolutions, norms),
        _no_bias_before_norm,
    ),
    GuideRow(
        22,
        "BE",
        "Gradients are set to None instead of zero: no memset for each parameter, and no read before the sum.",
        ("PD304",),
        "launches; facts",
        training,
        _sets_to_none,
        since="The default of zero_grad since PyTorch 2.0.",
    ),
    GuideRow(
        23,
        "BE",
        "Debugging is off: anomaly detection, the autograd profiler, emit_nvtx, gradcheck.",
        ("PD503",),
        "facts",
        _program_with_flags,
        _no_debug_flags,
    ),
    GuideRow(
        24,
        "BE",
        "DistributedDataParallel instead of DataParallel: a process and a core for each GPU.",
        ("PD403",),
        "launches; facts",
        _several_devices,
        _is_ddp,
        since="DataParallel is kept for old programs only; for large models FSDP.",
    ),
    GuideRow(
        25,
        "B",
        "DDP sums gradients in buckets, while the backward pass goes on.",
        ("PD402", "PD404", "PD405"),
        "kernels of the collectives; facts for DDP's settings",
        gradient_sharing,
        _overlaps,
    ),
    GuideRow(
        26,
        "B",
        "One process writes the checkpoint, and each has a log file of its own.",
        ("PD515",),
        "facts of all ranks",
        processes,
        since="Sharded models: all ranks write, each its shard (torch.distributed.checkpoint).",
    ),
    GuideRow(
        27,
        "BE",
        "All GPUs have equal work: batch, length of sequences (bucket or sort), tokens.",
        ("PD401", "PD408"),
        _RANKS,
        processes,
    ),
    GuideRow(
        28,
        "B",
        "Fused building blocks: optimizers, LayerNorm, SyncBatchNorm.",
        ("PD303", "PD301"),
        "launches; facts",
        training,
        _is_fused,
        checked_by="`perfdoctor try --only fused`",
        since="In torch itself instead of Apex: fused=True, nn.LayerNorm, nn.RMSNorm, nn.SyncBatchNorm.",
    ),
    GuideRow(
        29,
        "BE",
        "Activation checkpointing where ops are cheap and their outputs large; not where memory is free.",
        ("PD307",),
        "ops or Python frames; facts for memory",
        _checkpointing,
        since="Selective checkpointing in torch.utils.checkpoint; torch.compile chooses by itself.",
    ),
    GuideRow(
        30,
        "B",
        "A GELU is one kernel instead of five: close to four times as fast on a million elements.",
        ("PD301",),
        "launches",
        _gelu,
        _is_one_kernel,
        _is_of_gelu,
        since="nn.GELU is one kernel; GELUs written by hand and their backward pass need torch.compile.",
    ),
    GuideRow(
        31,
        "B",
        "A convolution of 64 filters of 3x3 on 32 images of 64x64 takes 840 us with the autotuner, 1,430 us without.",
        ("PD501",),
        "facts and kernels",
        all_of(gpu, convolutions),
        _autotuner_is_on,
        checked_by="`perfdoctor try --only cudnn-benchmark`",
        since=_AUTOTUNER_SINCE,
    ),
    GuideRow(
        50,
        "E",
        "Gradients are accumulated: one update, and one all-reduce, for several batches.",
        ("PD406",),
        "launches of the collectives; facts",
        _sharing_or_one_process,
        _accumulates,
    ),
    GuideRow(
        51,
        "E",
        "DDP's buckets have the order of the backward pass, and the graph is static.",
        ("PD405",),
        "facts",
        ddp,
        _static_graph,
        _of_graph_or_buckets,
        since="DDP reorders its buckets after the first iteration; static_graph=True says that the graph stays.",
    ),
)
