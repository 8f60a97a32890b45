"""What pieces of advice are about, each as a question to a program: is there a GPU, a convolution, an optimizer?"""

from __future__ import annotations

from perfdoctor.field_guide.guide_row import Subject, SubjectTest
from perfdoctor.field_guide.program_traits import ProgramTraits
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.units import format_share

_RECURRENT = r"(?i)lstm|\bgru|gru_cell|_cudnn_rnn|miopen_rnn|\brnn|rnn_(tanh|relu)|thnn_fused"
_NORM = r"(batch|layer|group|instance|rms)_?norm"
_OF_DATA = frozenset({"DDP", "FSDP", "ZeRO", "DataParallel", "data parallel"})
_COMPUTING = r"^aten::"


def all_of(*tests: SubjectTest) -> SubjectTest:
    """All of some subjects: absent where one is absent, else unknown where one is unknown; the text of the last."""

    def test(traits: ProgramTraits) -> Subject:
        subjects = [each(traits) for each in tests]
        for wanted in (False, None):
            for subject in subjects:
                if subject.is_present is wanted:
                    return subject
        return subjects[-1]

    return test


def gpu(traits: ProgramTraits) -> Subject:
    """A GPU that was recorded."""
    if traits.device_kind == "cpu":
        return Subject(False, "no GPU: the program runs on the CPU")
    if traits.device_kind == "gpu_not_recorded":
        return Subject(None, REQUIREMENTS["gpu_items"])
    return Subject(True, f"it runs on {traits.device or 'a GPU'}")


def only_cpu(traits: ProgramTraits) -> Subject:
    """A program that computes on the CPU."""
    if traits.device_kind != "cpu":
        return Subject(False, "the GPU computes, not the CPU")
    return Subject(True, "it computes on the CPU")


def kernels(traits: ProgramTraits) -> Subject:
    """GPU kernels."""
    found = gpu(traits)
    if found.is_present and not traits.time_share:
        return Subject(None, REQUIREMENTS["kernels"])
    return found


def tensor_cores(traits: ProgramTraits) -> Subject:
    """A GPU with Tensor Cores."""
    found = kernels(traits)
    if not found.is_present:
        return found
    if traits.has_tensor_cores is None:
        return Subject(None, "the device is not known: name it with --device")
    name = traits.device or "this GPU"
    return Subject(traits.has_tensor_cores, f"{name} has {'' if traits.has_tensor_cores else 'no '}Tensor Cores")


def training(traits: ProgramTraits) -> Subject:
    """A program that updates weights."""
    if traits.is_forward_only:
        return Subject(False, f"{traits.phase}: no weights are updated")
    optimizers = [each for each in traits.facts.optimizers if each.steps]
    if traits.phase == "training" or optimizers:
        return Subject(True, "it trains")
    return Subject(None, "whether it trains is not known: record whole steps, with `perfdoctor run`")


def loader(traits: ProgramTraits) -> Subject:
    """A DataLoader that the loop asks for batches."""
    if traits.wait_share is not None:
        return Subject(True, f"the loop waits {format_share(traits.wait_share)} of the {traits.unit} for a DataLoader")
    if traits.facts.loaders:
        return Subject(True, "there is a DataLoader")
    if traits.facts or "cpu" in traits.available:
        return Subject(False, "no DataLoader is asked for batches")
    return Subject(None, REQUIREMENTS["cpu"])


def _time_in(traits: ProgramTraits, *categories: str) -> float:
    return sum(traits.time_share.get(category, 0.0) for category in categories)


def of_category(what: str, *categories: str) -> SubjectTest:
    """Work of some categories, such as convolutions; `what` is its name in the plural."""

    def test(traits: ProgramTraits) -> Subject:
        share = _time_in(traits, *categories)
        if share:
            of = "kernel" if traits.device_kind == "gpu" else "op"
            return Subject(True, f"{what} take {format_share(share)} of the {of} time")
        if not traits.time_share:
            return Subject(None, REQUIREMENTS["kernels" if traits.device_kind != "cpu" else "cpu"])
        return Subject(False, f"there are no {what}")

    return test


convolutions = of_category("convolutions", "convolution")
products = of_category("matrix products", "gemm", "attention")
matrix_work = of_category("products and convolutions", *MATRIX_CATEGORIES)
pointwise = of_category("element-wise kernels, norms and reductions", "elementwise", "norm", "reduction", "softmax")


def recurrent(traits: ProgramTraits) -> Subject:
    """A recurrent layer or cell."""
    name = traits.has_op(_RECURRENT)
    if name or any(model.recurrent_cells for model in traits.facts.models):
        return Subject(True, f"there are recurrent layers ({name or 'cells in the model'})")
    return absent_op(traits, "there are no recurrent layers")


def norms(traits: ProgramTraits) -> Subject:
    """A normalisation layer."""
    name = traits.has_op(_NORM)
    return Subject(True, f"there are norms ({name})") if name else absent_op(traits, "there are no norms")


def absent_op(traits: ProgramTraits, sentence: str) -> Subject:
    """A subject that no op shows: absent where ops were recorded."""
    if traits.has_op(_COMPUTING):
        return Subject(False, sentence)
    return Subject(None, REQUIREMENTS["cpu"])


def processes(traits: ProgramTraits) -> Subject:
    """Several processes."""
    if traits.processes > 1:
        return Subject(True, f"{traits.processes} processes")
    if traits.parallelism:
        return Subject(True, f"it is parallel ({', '.join(traits.parallelism)})")
    return Subject(False, "one process")


def gradient_sharing(traits: ProgramTraits) -> Subject:
    """Training whose processes share gradients."""
    found = all_of(training, processes)(traits)
    if not found.is_present:
        return found
    kinds = [kind for kind in traits.parallelism if kind in _OF_DATA]
    if kinds:
        return Subject(True, f"gradients are shared ({', '.join(kinds)})")
    if traits.parallelism:
        return Subject(False, f"no gradients are shared: it is {', '.join(traits.parallelism)}")
    return Subject(None, "what the processes share is not known: record with ProfilerActivity.CPU and CUDA together")


def ddp(traits: ProgramTraits) -> Subject:
    """DistributedDataParallel."""
    found = gradient_sharing(traits)
    if found.is_present and "DDP" not in traits.parallelism:
        return Subject(False, f"no DistributedDataParallel: it is {', '.join(traits.parallelism)}")
    return found


def gradient_scaler(traits: ProgramTraits) -> Subject:
    """A GradScaler: fp16 whose gradients are scaled."""
    found = training(traits)
    if not found.is_present:
        return found
    op = traits.has_op(r"^aten::_amp_foreach_non_finite_check_and_unscale_$")
    if traits.facts.amp.scaled or op:
        return Subject(True, "a GradScaler scales the loss")
    if traits.facts.amp.scaled == 0 or (traits.has_op(_COMPUTING) and "steps" in traits.available):
        return Subject(False, "no GradScaler: gradients are not scaled")
    return Subject(None, REQUIREMENTS["facts"])


def reduced_precision(traits: ProgramTraits) -> Subject:
    """Ops that compute in fp16 or bfloat16."""
    half = traits.input_types & {"c10::Half", "c10::BFloat16"}
    if half:
        return Subject(True, f"ops compute in {' and '.join(sorted(_DTYPE_NAMES[name] for name in half))}")
    dtypes = {dtype for model in traits.facts.models for dtype in model.dtypes}
    if traits.input_types or (dtypes == {"float32"} and traits.facts.amp.autocast == 0):
        return Subject(False, "everything computes in float32")
    if traits.facts.amp.autocast:
        return Subject(True, "autocast is used")
    return Subject(None, REQUIREMENTS["shapes"])


_DTYPE_NAMES = {"c10::Half": "float16", "c10::BFloat16": "bfloat16"}
