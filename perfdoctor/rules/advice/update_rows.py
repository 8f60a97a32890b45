"""Advice about updates of the weights: PD303 and PD304."""

from __future__ import annotations

from perfdoctor.report.finding import Action
from perfdoctor.rules.advice import pages
from perfdoctor.rules.advice.advice_row import Row, When
from perfdoctor.rules.advice.framework_settings import spell
from perfdoctor.rules.advice.programs import ANY, TOO_OLD_TO_COMPILE, TORCHREC, ZERO, any_program, rows_of

_IS_FUSED = (Action("fused", "fused"),)
_SET_TO_NONE = (Action("zero-grad"),)
_ADAGRAD = "https://github.com/pytorch/pytorch/pull/177672"
_SGD = "https://github.com/pytorch/pytorch/pull/94791"
_ON_CPU = "https://github.com/pytorch/pytorch/pull/124905"
_ZERO_GRAD = "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html"

_USE_FUSED = "Use the fused {optimizer}: one kernel reads and writes each parameter and its state once."
_USE_FUSED_ON_CPU = "Use the fused {optimizer}: one op reads and writes each parameter and its state once."
_FUSED = "torch.optim.{optimizer}(..., fused=True)"

_EMBEDDING = "https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html"
_SPARSE_ADAM = "https://docs.pytorch.org/docs/stable/generated/torch.optim.SparseAdam.html"
# What the gradients of embeddings need to be sparse, by the optimizer: as (sentence, code, source).
_SPARSE_GRADIENTS = {
    ": SGD": (
        "Let the embedding make sparse gradients: SGD without momentum and weight decay then updates the looked-up "
        "rows alone, with the same results.",
        "nn.Embedding(..., sparse=True)",
        _EMBEDDING,
    ),
    ": Adagrad": (
        "Let the embedding make sparse gradients: Adagrad without weight decay then updates the looked-up rows alone, "
        "with the same results.",
        "nn.Embedding(..., sparse=True)",
        _EMBEDDING,
    ),
    ": Adam": (
        "Let the embedding make sparse gradients, and update it by an optimizer of its own, SparseAdam: it moves the "
        "looked-up rows alone, where {optimizer} also moves rows by momentum that no batch has looked up. That trains "
        "a little differently.",
        "nn.Embedding(..., sparse=True); torch.optim.SparseAdam(embedding.parameters())",
        _SPARSE_ADAM,
    ),
    ": another optimizer": (
        "Let the embedding make sparse gradients, and update it by an optimizer of its own that takes them: SGD "
        "without momentum, Adagrad or SparseAdam. That trains differently than {optimizer} does.",
        "nn.Embedding(..., sparse=True)",
        _EMBEDDING,
    ),
    ", clipped": (
        "Let the embedding make sparse gradients, leave it out of the clipping, whose norm takes no sparse ones, and "
        "update it by an optimizer of its own: SGD without momentum, Adagrad or SparseAdam. That trains differently.",
        "nn.Embedding(..., sparse=True)",
        _EMBEDDING,
    ),
}


def _fuse(sentence: str, source: str, since: str) -> tuple[Row, ...]:
    """The rows of an optimizer that has a fused form, by who makes it."""
    own = Row(ANY, sentence, _FUSED, source, since=since, actions=_IS_FUSED)
    return *spell("fused optimizer", sentence, since=since, actions=_IS_FUSED), own


UPDATE_ROWS = (
    *rows_of(
        "unfused Adam or AdamW",
        (
            When(uses=ZERO),
            "Let DeepSpeed make the optimizer: its Adam is fused.",
            '"optimizer": {"type": "AdamW", "params": {"lr": ...}}',
            pages.DEEPSPEED,
        ),
        *spell("fused AdamW", _USE_FUSED, since="PyTorch 2.0", actions=_IS_FUSED),
        *_fuse(_USE_FUSED, pages.OPTIM, since="PyTorch 2.0"),
    ),
    *rows_of("unfused SGD", *_fuse(_USE_FUSED, _SGD, since="PyTorch 2.3")),
    *rows_of(
        "unfused SGD beside a GradScaler",
        (
            TOO_OLD_TO_COMPILE,
            "Use SGD with foreach=True, which launches less. With fused=True its momentum would advance in steps "
            "that the GradScaler skips.",
            None,
            pages.COMPILED_OPTIMIZER,
        ),
        Row(
            ANY,
            "Fuse the optimizer's kernels by torch.compile. SGD(fused=True) is not safe here: its momentum advances "
            "in steps that the GradScaler skips.",
            "optimizer.step = torch.compile(optimizer.step)",
            pages.COMPILED_OPTIMIZER,
            since="PyTorch 2.2",
        ),
    ),
    *rows_of("unfused Adagrad", *_fuse(_USE_FUSED, _ADAGRAD, since="PyTorch 2.12")),
    any_program(
        "optimizer of many small tensors on the CPU",
        "Update all tensors at once by foreach=True: calling an op for each of them takes longer than the ops do.",
        "torch.optim.{optimizer}(..., foreach=True)",
        pages.OPTIM,
        actions=(Action("fused", "foreach"),),
    ),
    any_program(
        "LBFGS on the CPU",
        "Let LBFGS remember fewer updates, if it converges as well: each iteration multiplies with all of them. "
        "It has no fused form, and torch.compile would start again at most of its steps.",
        None,
        "https://docs.pytorch.org/docs/stable/generated/torch.optim.LBFGS.html",
    ),
    any_program(
        "optimizer without a fused form on the CPU",
        "Update less often, by larger batches or accumulated gradients: this {optimizer} has no form that takes "
        "less time on a CPU.",
        None,
        pages.OPTIM,
    ),
    *rows_of(
        "unfused Adam or AdamW on the CPU",
        *spell("fused AdamW", _USE_FUSED_ON_CPU, since="PyTorch 2.4", actions=_IS_FUSED),
        *_fuse(_USE_FUSED_ON_CPU, _ON_CPU, since="PyTorch 2.4"),
    ),
    *rows_of("unfused optimizer on the CPU", *_fuse(_USE_FUSED_ON_CPU, _ON_CPU, since="PyTorch 2.4")),
    *rows_of(
        "optimizer updates tensor by tensor",
        (
            TOO_OLD_TO_COMPILE,
            "Update all tensors at once by a foreach or fused implementation.",
            None,
            pages.COMPILED_OPTIMIZER,
        ),
        Row(
            ANY,
            "Update all tensors at once: a foreach or fused implementation, or torch.compile(optimizer.step).",
            "optimizer.step = torch.compile(optimizer.step)",
            pages.COMPILED_OPTIMIZER,
            since="PyTorch 2.2",
        ),
    ),
    *rows_of(
        "optimizer without a fused form",
        (
            TOO_OLD_TO_COMPILE,
            "Use fewer, larger parameters, which launch less: torch.optim has no fused form of this optimizer, and "
            "the kernels of torch.compile need Volta or a newer device.",
            None,
            pages.COMPILED_OPTIMIZER,
        ),
        Row(
            ANY,
            "Compile the optimizer's step, which fuses its kernels: torch.optim has no fused form of this optimizer.",
            "optimizer.step = torch.compile(optimizer.step)",
            pages.COMPILED_OPTIMIZER,
            since="PyTorch 2.2",
        ),
    ),
    *rows_of(
        "gradients filled with zeros",
        (
            When(uses=("Megatron",)),
            "Use the distributed optimizer, which makes the gradient buffers smaller: Megatron fills them with zeros "
            "in every step, and has no setting against it.",
            "--use-distributed-optimizer",
            "https://docs.nvidia.com/megatron-core/developer-guide/latest/apidocs/core/"
            "core.distributed.data_parallel_base.html",
        ),
        Row(
            When(torch_from="2.0"),
            "Let zero_grad drop the gradients: the backward pass then writes them once and adds nothing. That is the "
            "default since PyTorch 2.0, so something here says set_to_none=False or fills them by hand.",
            "optimizer.zero_grad()   # without set_to_none=False",
            _ZERO_GRAD,
            actions=_SET_TO_NONE,
        ),
        Row(
            ANY,
            "Let zero_grad drop the gradients: the backward pass then writes them once and adds nothing. That is the "
            "default since PyTorch 2.0.",
            "optimizer.zero_grad(set_to_none=True)",
            _ZERO_GRAD,
            actions=_SET_TO_NONE,
        ),
    ),
    *(
        row
        for kind, (sentence, code, source) in _SPARSE_GRADIENTS.items()
        for row in rows_of(
            f"gradients of embeddings{kind}",
            (
                When(uses=TORCHREC),
                "Let the tables' optimizer run in the backward pass (apply_optimizer_in_backward): the kernels of "
                "fbgemm then update the looked-up rows alone.",
                'apply_optimizer_in_backward(torch.optim.Adagrad, tables.parameters(), {{"lr": ...}})',
                "https://docs.pytorch.org/torchrec/",
            ),
            (ANY, sentence, code, source),
        )
    ),
)
