"""Questions about the training loop, its loading and its processes that rows of the guide ask: 11, 15 to 31, 50, 51."""

from __future__ import annotations

from perfdoctor.field_guide.guide_row import FindingTest, Subject, memory_is_short
from perfdoctor.field_guide.program_traits import ProgramTraits
from perfdoctor.field_guide.subjects import absent_op, all_of, gpu, gradient_sharing, processes, training
from perfdoctor.report.finding import Finding
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.units import format_size

# Up to here plain SGD and Adam scale with a warm-up alone (Goyal et al. 2017: 8,192 images; You et al.: beyond it).
_LARGE_BATCH = 4096
_LAYERWISE = ("lars", "lamb", "novograd")


def tried_workers(traits: ProgramTraits) -> str | None:
    """What `perfdoctor try` has measured of the number of workers."""
    return _tried(traits, "workers")


def autotunes(traits: ProgramTraits) -> str | None:
    """Autotuning of cuDNN, by a flag or a trial."""
    if traits.facts.flags.cudnn_benchmark:
        return "torch.backends.cudnn.benchmark is on"
    return _tried(traits, "cudnn-benchmark")


def _tried(traits: ProgramTraits, change: str) -> str | None:
    tried = [trial for trial in traits.report.trials if trial.change == change]
    if not tried:
        return None
    return f"`perfdoctor try` has measured it: {'; '.join(f'{each.setting} {each.verdict}' for each in tried)}"


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


def large_batch(traits: ProgramTraits) -> Subject:
    """Training with a batch that plain optimizers do not train as it is."""
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


def has_layerwise_rates(traits: ProgramTraits) -> str | None:
    """An optimizer that is made for large batches."""
    names = [str(each.class_) for each in traits.facts.optimizers]
    chosen = [name for name in names if any(word in name.lower() for word in _LAYERWISE)]
    return f"the optimizer is {chosen[0]}" if chosen else None


def no_bias_before_norm(traits: ProgramTraits) -> str | None:
    """A model in which no convolution has a bias before a norm."""
    models = [model for model in traits.facts.models if model.conv_bias_before_norm is not None]
    if models and not any(model.conv_bias_before_norm for model in models):
        return "no convolution of the model has a bias before a norm"
    return None


def program_with_flags(traits: ProgramTraits) -> Subject:
    """Any program whose flags were captured: a trace alone does not show what is off."""
    if not traits.facts.flags:
        return Subject(None, REQUIREMENTS["facts"])
    return Subject(True, f"it is {traits.phase}") if traits.phase != "unknown" else training(traits)


def several_devices(traits: ProgramTraits) -> Subject:
    """Several GPUs, of one process or of several."""
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


def without_data_parallel(traits: ProgramTraits) -> str | None:
    """Several GPUs, none of them by DataParallel."""
    found = several_devices(traits)
    return f"{found.text}, and nothing is DataParallel" if found.is_present else None


def gelu(traits: ProgramTraits) -> Subject:
    """A GELU, as an op or written by hand."""
    name = traits.has_op(r"^aten::gelu")
    if name or has_own_gelu(traits):
        return Subject(True, f"there is a GELU ({name or 'written by hand'})")
    return absent_op(traits, "there is no GELU")


def has_own_gelu(traits: ProgramTraits) -> bool:
    """Whether ops are there of which a GELU is made by hand: erf, or tanh beside a power."""
    return bool(traits.has_op(r"^aten::erf$") or (traits.has_op(r"^aten::tanh$") and traits.has_op(r"^aten::pow$")))


def is_of_gelu(traits: ProgramTraits, finding: Finding) -> bool:
    """Whether a program has a GELU by hand and none as an op."""
    del finding
    return has_own_gelu(traits) and not traits.has_op(r"^aten::gelu$")


def checkpointing(traits: ProgramTraits) -> Subject:
    """Training that checkpoints, or whose memory is short."""
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


def saves_memory_by(topic: str) -> FindingTest:
    """Findings on time, and those on memory that is short whose topic it is."""

    def concerns(traits: ProgramTraits, finding: Finding) -> bool:
        return finding.saved_bytes is None or (topic in finding.topics and memory_is_short(traits, finding))

    return concerns


def may_checkpoint(traits: ProgramTraits, finding: Finding) -> bool:
    """Whether a finding is about checkpointing: what a graph keeps that is never used needs no graph instead."""
    return memory_is_short(traits, finding) and (finding.rule != "PD701" or training(traits).is_present is True)


def sharing_or_one_process(traits: ProgramTraits) -> Subject:
    """Processes that share gradients."""
    found = all_of(training, processes)(traits)
    if found.is_present is False and found.text == "one process":
        return Subject(False, "one process: no all-reduce to save")
    return gradient_sharing(traits)


def of_graph_or_buckets(traits: ProgramTraits, finding: Finding) -> bool:
    """Whether a finding is about DDP's graph or its buckets, not about buffers."""
    del traits
    return finding.subject != "broadcast_buffers"
