"""Rows of the field guide about the training loop, its loading and its processes: 11, 15 to 31, 50, 51."""

from __future__ import annotations

from perfdoctor.field_guide.guide_row import EvidenceTest, FindingTest, GuideRow, Subject, memory_is_short
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
from perfdoctor.units import format_size

# Up to here plain SGD and Adam scale with a warm-up alone (Goyal et al. 2017: 8,192 images; You et al.: beyond it).
_LARGE_BATCH = 4096
_LAYERWISE = ("lars", "lamb", "novograd")


def _tried(change: str) -> EvidenceTest:
    """What `perfdoctor try` has measured of a change."""

    def test(traits: ProgramTraits) -> str | None:
        tried = [trial for trial in traits.report.trials if trial.change == change]
        if not tried:
            return None
        return f"`perfdoctor try` has measured it: {'; '.join(f'{each.setting} {each.verdict}' for each in tried)}"

    return test


def _autotunes(traits: ProgramTraits) -> str | None:
    if traits.facts.flags.cudnn_benchmark:
        return "torch.backends.cudnn.benchmark is on"
    return _tried("cudnn-benchmark")(traits)


def copies_to_gpu(traits: ProgramTraits) -> Subject:
    """Copies from the host to the GPU in the steps."""
    found = gpu(traits)
    if not found.is_present or traits.copies is None:
        return found
    if not traits.copies:
        return Subject(False, "nothing is copied to the GPU in the steps")
    return Subject(True, f"{traits.copies:,} copies go to the GPU")


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


def _program_with_flags(traits: ProgramTraits) -> Subject:
    """Any program whose flags were captured: a trace alone does not show what is off."""
    if not traits.facts.flags:
        return Subject(None, REQUIREMENTS["facts"])
    return Subject(True, f"it is {traits.phase}") if traits.phase != "unknown" else training(traits)


def _several_devices(traits: ProgramTraits) -> Subject:
    found = gpu(traits)
    if not found.is_present:
        return found
    if "DataParallel" in traits.parallelism or any(model.data_parallel for model in traits.facts.models):
        why = "what a process for each saves only a run of it tells"
        return Subject(None, f"DataParallel drives {traits.devices} GPUs from one process: {why}")
    if processes(traits).is_present:
        return processes(traits)
    if traits.devices > 1:
        return Subject(True, f"one process uses {traits.devices} GPUs")
    return Subject(False, "one process on one GPU")


def _without_data_parallel(traits: ProgramTraits) -> str | None:
    found = _several_devices(traits)
    return f"{found.text}, and nothing is DataParallel" if found.is_present else None


def _gelu(traits: ProgramTraits) -> Subject:
    name = traits.has_op(r"^aten::gelu")
    if name or has_own_gelu(traits):
        return Subject(True, f"there is a GELU ({name or 'written by hand'})")
    return absent_op(traits, "there is no GELU")


def has_own_gelu(traits: ProgramTraits) -> bool:
    """Whether ops are there of which a GELU is made by hand: erf, or tanh beside a power."""
    return bool(traits.has_op(r"^aten::erf$") or (traits.has_op(r"^aten::tanh$") and traits.has_op(r"^aten::pow$")))


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


def _saves_memory_by(topic: str) -> FindingTest:
    """Findings on time, and those on memory that is short whose topic it is."""

    def concerns(traits: ProgramTraits, finding: Finding) -> bool:
        return finding.saved_bytes is None or (topic in finding.topics and memory_is_short(traits, finding))

    return concerns


def _may_checkpoint(traits: ProgramTraits, finding: Finding) -> bool:
    """Whether a finding is about checkpointing: what a graph keeps that is never used needs no graph instead."""
    return memory_is_short(traits, finding) and (finding.rule != "PD701" or training(traits).is_present is True)


def _sharing_or_one_process(traits: ProgramTraits) -> Subject:
    found = all_of(training, processes)(traits)
    if found.is_present is False and found.text == "one process":
        return Subject(False, "one process: no all-reduce to save")
    return gradient_sharing(traits)


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
        (),
        "facts that say that it is on, or a trial",
        all_of(gpu, convolutions),
        _autotunes,
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
    ),
    GuideRow(
        17,
        "B",
        "More workers are not always better: a short benchmark finds the number (MNIST: 1 worker 6.7 s an epoch, 4 "
        "workers 4.1 s, 8 workers 4.5 s).",
        ("PD101", "PD114"),
        "facts; a trial",
        loader,
        _tried("workers"),
        checked_by="`perfdoctor try --only workers`",
    ),
    GuideRow(
        18,
        "BE",
        "Batches are in pinned memory, and copies are asynchronous.",
        ("PD105",),
        "copies and launches",
        copies_to_gpu,
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
        concerns=_saves_memory_by("gradients"),
        memory_rules=("PD705",),
        since="The default of zero_grad since PyTorch 2.0.",
    ),
    GuideRow(
        23,
        "BE",
        "Debugging is off: anomaly detection, the autograd profiler, emit_nvtx, gradcheck.",
        ("PD503",),
        "facts",
        _program_with_flags,
    ),
    GuideRow(
        24,
        "BE",
        "DistributedDataParallel instead of DataParallel: a process and a core for each GPU.",
        (),
        "launches; facts",
        _several_devices,
        _without_data_parallel,
        checked_by="what the report says of the program",
        since="DataParallel is kept for old programs only; for large models FSDP.",
    ),
    GuideRow(
        25,
        "B",
        "DDP sums gradients in buckets, while the backward pass goes on.",
        ("PD402", "PD404", "PD405"),
        "kernels of the collectives; facts for DDP's settings",
        gradient_sharing,
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
        concerns=_saves_memory_by("copies"),
        memory_rules=("PD704",),
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
        concerns=_may_checkpoint,
        memory_rules=("PD701",),
        since="Selective checkpointing in torch.utils.checkpoint; torch.compile chooses by itself.",
    ),
    GuideRow(
        30,
        "B",
        "A GELU is one kernel instead of five: close to four times as fast on a million elements.",
        ("PD301",),
        "launches",
        _gelu,
        concerns=_is_of_gelu,
        since="nn.GELU is one kernel; GELUs written by hand and their backward pass need torch.compile.",
    ),
    GuideRow(
        31,
        "B",
        "A convolution of 64 filters of 3x3 on 32 images of 64x64 takes 840 us with the autotuner, 1,430 us without.",
        (),
        "facts that say that it is on, or a trial",
        all_of(gpu, convolutions),
        _autotunes,
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
    ),
    GuideRow(
        51,
        "E",
        "DDP's buckets have the order of the backward pass, and the graph is static.",
        ("PD405",),
        "facts",
        ddp,
        concerns=_of_graph_or_buckets,
        since="DDP reorders its buckets after the first iteration; static_graph=True says that the graph stays.",
    ),
)
