"""chunked-loss: the last linear layer and the cross-entropy behind it, over pieces of the rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

# Of fewer classes logits are small beside what they are made of.
MIN_CLASSES = 4096
# Losses of the first rows, as a whole and in pieces: sums of float32 in another order differ by less.
MAX_DIFFERENCE = 1e-5
CHECKED_ROWS = 64
# What is asked of a tensor without a look at its values.
DESCRIBES = frozenset(
    ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "layout", "size", "dim", "numel", "is_sparse")
)
_WRAPPERS = ("DataParallel", "FullyShardedDataParallel", "DeepSpeedEngine", "OptimizedModule")


class ChunkedLoss:
    """Logits that are asked for by a cross-entropy alone are made, used and freed in pieces; the setting says how many.

    The layer returns logits that do not exist yet. Their rows are chosen and reshaped with those of its input, and the
    loss computes each piece in `torch.utils.checkpoint`. Whatever else looks at them gets them as a whole, and the
    change is given up.
    """

    name = "chunked-loss"
    summary = "logits of a large vocabulary and their cross-entropy in pieces of the rows (chunked-loss=8)"
    rules = ("PD702",)
    effect_on_results = "sums in another order"
    code = (
        "loss = sum(checkpoint(piece_loss, h, y, use_reentrant=False) for h, y in "
        "zip(hidden.chunk({setting}), target.chunk({setting}))) / len(target)   "
        "# def piece_loss(h, y): return F.cross_entropy(head(h), y, reduction='sum')"
    )

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """The number of pieces that a finding names."""
        from perfdoctor.trials.change import advised_settings

        return tuple(dict.fromkeys(advised_settings(self.name, findings)))

    def apply(self, setting: str, program: Program) -> None:
        """Wrap the calls of the largest linear layer of each model that has one."""
        pieces = int(setting)

        def on_first_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            head = find_head(module)
            if head is None:
                return
            why = explain_misfit(module, head)
            if why:
                program.refuse(self, why)
            else:
                program.wrap_calls(head, _Head(self, program, head, pieces).wrap)

        program.on_first_forward(on_first_forward, before_others=True)


class _Head:
    """A linear layer whose logits are made by the loss."""

    def __init__(self, change: ChunkedLoss, program: Program, head: Any, pieces: int) -> None:
        self._change, self._program, self._head, self._pieces = change, program, head, pieces
        self._is_proved = self._is_given_up = False

    def wrap(self, call: Any) -> Any:
        """A call of the layer that returns logits that do not exist yet, where a backward pass may follow."""
        import torch

        lazy = make_lazy_class(self)

        def call_head(hidden: Any) -> Any:
            if not torch.is_grad_enabled() or not self._head.training or torch.compiler.is_compiling():
                return call(hidden)
            is_autocast = torch.is_autocast_enabled(hidden.device.type)
            dtype = torch.get_autocast_dtype(hidden.device.type) if is_autocast else self._head.weight.dtype
            return lazy.over(hidden, dtype, call)

        return call_head

    def classes(self) -> int:
        """How many logits a row has."""
        return int(self._head.out_features)

    def give_up(self, why: str) -> None:
        """Let the layer be as it was."""
        self._head._compiled_call_impl, self._is_given_up = None, True
        self._program.refuse(self._change, why)

    def answer_with_values(self, lazy: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """The loss in pieces; what else needs values gets all logits, and there will be no others."""
        from torch.nn import functional

        if func is functional.cross_entropy:
            bound = inspect.signature(func).bind(*args, **kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
            logits = given.pop("input")
            loss = self.compute_loss(logits, given) if isinstance(logits, lazy) else None
            if loss is not None:
                return loss
        self.give_up(f"the program uses the logits besides the loss ({name_of(func)})")

        def make_real(value: Any) -> Any:
            if isinstance(value, lazy):
                return value.make_logits(value.hidden)
            return type(value)(map(make_real, value)) if type(value) in (tuple, list) else value

        return func(*map(make_real, args), **{name: make_real(value) for name, value in kwargs.items()})

    def compute_loss(self, logits: Any, given: Mapping[str, Any]) -> Any:
        """The cross-entropy of rows, in pieces; None where it does not fit."""
        import torch

        if self._is_given_up:
            return None
        hidden, make_logits = logits.hidden, logits.make_logits
        target, reduction = given["target"], given["reduction"]
        why = explain_loss(logits, given)
        if why is None and not self._is_proved:
            with torch.no_grad():
                rows = slice(0, CHECKED_ROWS)
                some = {**given, "target": target[rows]}
                pieced = self._add_pieces(hidden[rows], make_logits, some)
                whole = loss_of(hidden[rows], make_logits, some)
            # Rows that are all left out have a mean of NaN either way.
            self._is_proved = torch.allclose(pieced, whole, rtol=MAX_DIFFERENCE, atol=0.0, equal_nan=True)
            if not self._is_proved:
                why = f"in pieces the loss of {len(some['target'])} rows is {pieced:.6g}, not {whole:.6g}"
        if why is not None:
            self.give_up(why)
            return None
        detail = f"{reduction} of {len(hidden)} rows of {self.classes()} classes in {self._pieces} pieces"
        self._program.met(self._change, self._program.location_of_caller(), detail)
        return self._add_pieces(hidden, make_logits, given)

    def _add_pieces(self, hidden: Any, make_logits: Callable[[Any], Any], given: Mapping[str, Any]) -> Any:
        from torch.utils.checkpoint import checkpoint

        target, pieces = given["target"], min(self._pieces, max(len(hidden), 1))
        total: Any = 0
        for rows, classes in zip(hidden.chunk(pieces), target.chunk(pieces), strict=True):
            some = {**given, "target": classes, "reduction": "sum"}
            total = total + checkpoint(loss_of, rows, make_logits, some, use_reentrant=False)
        return total / (target != given["ignore_index"]).sum() if given["reduction"] == "mean" else total


def loss_of(hidden: Any, make_logits: Callable[[Any], Any], given: Mapping[str, Any]) -> Any:
    """The cross-entropy of some rows."""
    from torch.nn import functional

    return functional.cross_entropy(make_logits(hidden), **given)


def find_head(model: Any) -> Any:
    """The linear layer with most outputs, of those that may be over a vocabulary; None where there is none."""
    from torch import nn

    layers = [each for each in model.modules() if type(each) is nn.Linear and each.out_features >= MIN_CLASSES]
    return max(layers, key=lambda each: each.out_features, default=None)


def explain_misfit(model: Any, head: Any) -> str | None:
    """Why the logits of a layer have to be there as a whole; None where nothing speaks for it."""
    for each in model.modules():
        kind = type(each).__name__
        if kind in _WRAPPERS or kind.startswith("FSDP") or getattr(each, "_compiled_call_impl", None) is not None:
            return f"the model is in a {kind}, which needs its results as tensors: change the loss by hand"
        if getattr(each, "find_unused_parameters", False) or getattr(each, "static_graph", False):
            return f"{kind} goes through the graph of the results (find_unused_parameters, static_graph)"
    if head._forward_hooks or head._forward_pre_hooks or head._backward_hooks or head._backward_pre_hooks:
        return "the last linear layer has hooks, which would be called for each piece"
    return None


def explain_loss(logits: Any, given: Mapping[str, Any]) -> str | None:
    """Why a cross-entropy is more than a sum over its rows; None where it is not."""
    import torch

    target = given["target"]
    if logits.dtype != torch.float32 and not torch.is_autocast_enabled(logits.device.type):
        return f"the loss of {logits.dtype} logits is added up in that type"
    if not isinstance(target, torch.Tensor) or target.is_floating_point() or target.dim() != 1 or logits.dim() != 2:
        return "the loss is not of one class for each row of logits"
    if given["weight"] is not None:
        return "the loss weighs its classes, so that it is no mean over rows"
    if given["reduction"] not in ("mean", "sum") or given["size_average"] is not None or given["reduce"] is not None:
        return f"the loss is not added up over the rows (reduction={given['reduction']!r})"
    return None


def make_lazy_class(head: _Head) -> Any:
    """The class of tensors that stand for the logits of a layer until somebody needs their values."""
    import torch

    class LazyLogits(torch.Tensor):
        hidden: Any
        make_logits: Any

        @classmethod
        def over(cls, hidden: Any, dtype: Any, make_logits: Any) -> Any:
            shape = (*hidden.shape[:-1], head.classes())
            made = torch.Tensor._make_wrapper_subclass(
                cls, shape, dtype=dtype, device=hidden.device, requires_grad=True
            )
            made.hidden, made.make_logits = hidden, make_logits
            return made

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                known = answer_without_values(cls, func, args, kwargs or {})
            return head.answer_with_values(cls, func, args, kwargs or {}) if known is None else known

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = ...) -> Any:  # type: ignore[override]
            raise RuntimeError(f"{func} asks for logits that do not exist")

    return LazyLogits


def answer_without_values(lazy: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """What a function returns that asks logits for their sizes, or for some of their rows; None for others."""
    import torch

    name, first = name_of(func), args[0] if args else None
    if name in DESCRIBES:
        return func(*args, **kwargs)
    if not isinstance(first, lazy):
        return None
    if name == "float":
        return lazy.over(first.hidden, torch.float32, lambda rows: first.make_logits(rows).float())
    moved = None if kwargs else move_rows(name, first.hidden, tuple(first.shape), args[1:])
    return None if moved is None else lazy.over(moved, first.dtype, first.make_logits)


def name_of(func: Any) -> str:
    """The name of a function, of a property that of the attribute."""
    name: str = getattr(func, "__name__", "")
    return getattr(getattr(func, "__self__", None), "__name__", name) if name == "__get__" else name


def move_rows(name: str, hidden: Any, shape: tuple[int, ...], args: Any) -> Any:
    """What an op that leaves the classes of logits alone does, done to what the logits are made of; else None.

    Args:
        name: The name of the op.
        hidden: What the logits are made of, a row for each of theirs.
        shape: The sizes of the logits.
        args: The arguments of the op behind the logits.
    """
    if name == "contiguous":
        return hidden.contiguous()
    if name in ("view", "reshape"):
        sizes = args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args
        keeps = len(sizes) > 1 and all(isinstance(each, int) for each in sizes) and sizes[-1] == shape[-1]
        return hidden.reshape(*sizes[:-1], hidden.shape[-1]) if keeps else None
    if name == "flatten":
        return hidden.flatten(*args) if len(args) == 2 and args[1] in (len(shape) - 2, -2) else None
    if name == "__getitem__":
        index = args[0] if isinstance(args[0], tuple) else (args[0],)
        return hidden[index] if keeps_classes(index, len(shape)) else None
    return None


def keeps_classes(index: tuple[Any, ...], dims: int) -> bool:
    """Whether an index takes all of the last of some dimensions."""
    taken = sum(each.dim() if str(getattr(each, "dtype", "")) == "torch.bool" else each is not None for each in index)
    if any(each is Ellipsis for each in index[:-1]):
        return isinstance(index[-1], slice) and index[-1] == slice(None)
    return taken < dims or (index[-1] is Ellipsis and taken == dims) or index[-1:] == (slice(None),)
