"""Rows that layers compute in vain: copies of other rows, and rows of whose result the loss makes no use.

One user who is encoded for each of fifty items, and labels of which most are masked::

    h = gru(history.repeat_interleave(50, 0))        # equal rows give equal results
    loss = cross_entropy(head(h), labels)            # the gradient of ignored rows is zero

A range with a number stands around each call that is looked at, and the facts say what was found of it: the backward
pass of the last call may come when the window has ended. Looks read a few values of some rows, as in value_looks.py.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from .module_calls import is_in_backward
from .user_code import user_line
from .value_looks import is_readable, values_of

# Layers that compute each row from that row alone; an embedding computes nothing, and norms little.
LAYERS = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer)
_BATCH_NORMS = nn.modules.batchnorm._BatchNorm
# A call with fewer multiplications (rows times weights) takes some ms at most in the window, and a look 0.3 ms there.
MIN_WORK = 1 << 25
_MIN_ROWS, _MAX_ROWS = 4, 1024
# So many values of each row tell most rows apart; those that agree are compared as a whole, up to so many values.
_COLUMNS, _MAX_COMPARED = 8, 1 << 18
# Shorter rows of whole numbers, such as ids, agree by accident, and so do the rows of a table that they look up.
_MIN_NUMBERS, _MIN_VALUES = 8, 64
_GOLDEN = 0x9E3779B97F4A7C15
_MAX_DISTINCT, _MAX_USED = 0.5, 0.6
_MAX_NODES, _MAX_CALLS = 5000, 5000
# Whether such a node lets a gradient pass is decided by values that had to be computed for that: a hinge loss, where it
# has one value or few for a row; a maximum over rows always.
_HINGES = re.compile("Relu|Clamp|Threshold|Hardtanh|Maximum|Minimum")
_SELECTIONS = re.compile("Max|Min(?!imum)|Amax|Amin|Sort|Topk|Median|Kthvalue|ScatterReduce|SegmentReduce")
_MIN_WIDTH = 8
# Their gradient is zero where the model is sure already: decided by values, too, and other rows in each step.
_MAX_SATURATED, _MAX_SATURATING = 0.1, 16
_SATURATING = re.compile("Softmax|Sigmoid|CrossEntropy|Tanh")
# Where a node of the graph keeps the call that made it.
_CALL = "perfdoctor"


class _Pending(NamedTuple):
    """A call whose result may get a gradient."""

    number: int
    module: int
    is_linear: bool
    rows: int


class NeededRows:
    """Looks at the rows of calls while the window is open.

    Attributes:
        found: What was found, as it stands in facts.json.
    """

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._number = 0
        self._vain: dict[tuple[int, str], int] = {}
        self._pending: set[int] = set()  # numbers of calls: their nodes would keep the graph alive
        self._hooks: list[Any] = []
        self._mixes_rows = False
        self._is_saturated = False

    def start(self) -> None:
        """Forget the calls of an earlier window."""
        self.stop()
        self._vain, self._pending = {}, set()

    def stop(self) -> None:
        """Look at no gradients any more, but for those of the next backward pass."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def open_call(
        self, module: nn.Module, frame: FrameType, arguments: Iterable[Any], *, is_outermost: bool
    ) -> Callable[[Any], None] | None:
        """Look at the rows that a call gets; what is returned is called with its result, None for nothing.

        Tensors of any kind are looked at, and some answer in ways of their own: that is no error of the program, which
        comes first.
        """
        if is_outermost:
            self._mixes_rows = any(isinstance(each, _BATCH_NORMS) and each.training for each in module.modules())
        is_layer = isinstance(module, LAYERS)
        if is_layer and isinstance(module, nn.TransformerEncoderLayer) and module.training:
            return None  # the layers inside are called as modules then
        is_bounded = self._number < _MAX_CALLS and "numpy" in sys.modules
        if not (is_layer or is_outermost) or not is_bounded or is_in_backward():
            return None
        with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
            tensors = _rows_of_layer(module, tuple(arguments)) if is_layer else _rows_of_model(arguments)
            if tensors and _is_read(tensors[0][0]) and (not is_layer or _work_of(module, tensors[0][0]) >= MIN_WORK):
                return self._open(module, frame, tensors, is_layer)
        return None

    def open_product(self, name: str, arguments: tuple[Any, ...]) -> Callable[[Any], None] | None:
        """The same of a product that the user's code at a line writes without a layer: rows times a matrix."""
        is_bounded = self._number < _MAX_CALLS and "numpy" in sys.modules
        if not is_bounded or not torch.is_grad_enabled() or is_in_backward():
            return None
        with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
            rows, matrix = arguments[0], arguments[1]
            is_product = matrix.dim() == 2 and rows.dim() >= 2 and _is_read(rows)
            if is_product and rows.numel() // rows.size(-1) * matrix.numel() >= MIN_WORK:
                return self._mark(matrix, name, None) if self._is_due(matrix, "used") else None
        return None

    def on_backward(self, roots: Any) -> None:
        """A backward pass from these tensors begins: look at the gradients that reach the calls."""
        self.stop()
        pending, self._pending, self._is_saturated = self._pending, set(), False
        with contextlib.suppress(Exception):
            tensors = [roots] if isinstance(roots, torch.Tensor) else list(roots or ())
            for node in _find_reached([each.grad_fn for each in tensors], pending) if pending else ():
                call = node.metadata.pop(_CALL, None)
                hook = node.register_hook(self._note_saturation) if call is None else None
                self._hooks.append(hook or node.register_prehook(self._make_hook(call)))

    def _open(
        self, module: nn.Module, frame: FrameType, tensors: list[tuple[torch.Tensor, int]], is_layer: bool
    ) -> Callable[[Any], None] | None:
        copies = None
        if not self._mixes_rows and self._is_due(module, "equal"):
            copies = next(_find_copies(module, tensors), None)
            self._count("equal", id(module), copies is not None)
        may_train = isinstance(module, nn.Linear | nn.modules.conv._ConvNd) and torch.is_grad_enabled()
        if copies is None and not (may_train and self._is_due(module, "used")):
            return None
        line = user_line(frame)
        return None if line is None else self._mark(module, line, copies, is_layer=is_layer, may_train=may_train)

    def _mark(
        self, module: Any, line: str, copies: _Copies | None, *, is_layer: bool = True, may_train: bool = True
    ) -> Callable[[Any], None]:
        """Stand a range around a call of a layer, or of the weight that a product takes."""
        self._number += 1
        number = self._number
        call_range = torch._C._profiler._RecordFunctionFast(f"perfdoctor::rows {number} {line}")
        call_range.__enter__()

        def close(result: Any) -> None:
            with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
                if copies is not None and (is_layer or copies.hold_in(result)):
                    self.found.append({"call": number, "kind": "equal", "share": round(copies.share, 4)})
                if may_train and isinstance(result, torch.Tensor) and result.grad_fn is not None:
                    is_linear = isinstance(module, nn.Linear | torch.Tensor)
                    rows = math.prod(result.shape[:-1]) if is_linear else result.size(0)
                    node: Any = result.grad_fn
                    node.metadata[_CALL] = _Pending(number, id(module), is_linear, rows)
                    self._pending.add(number)
            with contextlib.suppress(RuntimeError):  # the window has ended inside the call
                call_range.__exit__(None, None, None)

        return close

    def _note_saturation(self, inputs: Any, outputs: Any) -> None:
        with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
            self._is_saturated = self._is_saturated or _ends_gradients(inputs[0], outputs[0])

    def _make_hook(self, call: _Pending) -> Callable[[Any], None]:
        def look(gradients: Any) -> None:
            with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
                if self._is_saturated:
                    return
                gradient = gradients[0]
                share = _share_used(gradient, gradient.dim() - 1 if call.is_linear else 1)
                self._count("used", call.module, share <= _MAX_USED)
                if share <= _MAX_USED:
                    self.found.append({"call": call.number, "kind": "used", "share": round(share, 4)})

        return look

    def _is_due(self, module: Any, what: str) -> bool:
        """Whether to look at a call: the first, fourth, sixteenth ... of a module while nothing is found."""
        calls = self._vain.get((id(module), what), 0)
        if calls & (calls + 1) or (calls + 1).bit_length() % 2 == 0:
            self._vain[id(module), what] = calls + 1
            return False
        return True

    def _count(self, what: str, module: int, is_found: bool) -> None:
        self._vain[module, what] = 0 if is_found else self._vain.get((module, what), 0) + 1


class _Copies(NamedTuple):
    """Rows that are copies: their numbers, for each the first that equals it, and the share of distinct rows."""

    rows: Any
    first: Any
    of: int
    share: float

    def hold_in(self, result: Any) -> bool:
        """Whether a result has as many rows, and equal ones for the copies, but for rounding."""
        import numpy as np

        values = list(result.values()) if isinstance(result, dict) else result
        tensor = next(each for each in ([values] if isinstance(values, torch.Tensor) else values) if _is_read(each))
        if tensor.dim() == 0 or tensor.size(0) != self.of:
            return False
        array = _columns(_array_of(tensor, 1))
        if tensor.dtype in (torch.float32, torch.float64):
            array = array.view(f"f{array.itemsize}")
        mine, other = array[self.rows], array[self.first]
        same = np.isclose(mine, other, 1e-3, 1e-6) if array.dtype.kind == "f" else mine == other
        return bool(same.all(1).mean() > 0.9)


def _rows_of_layer(module: nn.Module, arguments: tuple[Any, ...]) -> list[tuple[torch.Tensor, int]]:
    """The tensors whose rows a layer computes, each with the dimension of its rows; empty where they are no tensors."""
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        return [(tensors[0], 0)] if tensors and tensors[0].dim() >= (2 if isinstance(module, nn.Linear) else 3) else []
    if not tensors or tensors[0].dim() != 3 or _draws(module):
        return []
    attention = getattr(module, "self_attn", module)
    dim = 0 if attention.batch_first else 1
    if isinstance(module, nn.RNNBase):
        for each in arguments[1:]:
            tensors += list(each) if isinstance(each, tuple) else []
        return [(tensors[0], dim), *((each, 1) for each in tensors[1:])]
    rows = tensors[0].size(dim)
    return [(each, dim if each.dim() == 3 else 0) for each in tensors if each.dim() == 3 or each.size(0) == rows]


def _draws(module: nn.Module) -> bool:
    """Whether a layer makes other results of equal rows."""
    return module.training and any(
        (getattr(each, "dropout", 0.0) if not isinstance(each, nn.Dropout) else each.p) not in (0, 0.0)
        for each in module.modules()
        if not isinstance(getattr(each, "dropout", 0.0), nn.Module)
    )


def _rows_of_model(arguments: Iterable[Any]) -> list[tuple[torch.Tensor, int]]:
    """The tensors of as many rows as the first one."""
    tensors: list[torch.Tensor] = []
    for each in arguments:
        values = each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple) else (each,)
        tensors += [value for value in values if isinstance(value, torch.Tensor) and value.dim() > 0]
    return [(each, 0) for each in tensors if each.size(0) == tensors[0].size(0)]


def _work_of(module: nn.Module, tensor: torch.Tensor) -> int:
    """About how many multiplications a call takes."""
    weight = module._parameters.get("weight")  # a parametrized one is computed, and may change, where it is asked for
    weights = sum(each.numel() for each in module.parameters()) if weight is None else weight.numel()
    channels: int = tensor.size(1 if isinstance(module, nn.modules.conv._ConvNd) else -1)
    return tensor.numel() // max(channels, 1) * int(weights)


def _is_read(tensor: Any) -> bool:
    """Whether the values of a tensor can be read as whole numbers of its size."""
    return is_readable(tensor) and tensor.element_size() <= 8


def _array_of(tensor: torch.Tensor, leading: int, dim: int = 0) -> Any:
    """The values of a tensor as unsigned integers of its size: a matrix whose rows are its rows.

    The first dimensions make the rows, with `dim` as the first of all. A copy where the strides allow no matrix.
    """
    array = values_of(tensor)
    if dim:
        array = array.swapaxes(0, dim)
    if not tensor.is_contiguous():  # the order of columns is any: that of the memory takes no copy
        last = sorted(range(leading, array.ndim), key=lambda axis: -array.strides[axis])
        array = array.transpose(*range(leading), *last)[:_MAX_ROWS]
    if array.ndim != 2 or leading != 1:
        array = array.reshape(math.prod(array.shape[:leading]), -1)
    return array


def _columns(array: Any, most: int = _COLUMNS) -> Any:
    """So many columns of a matrix and some more, from all parts of it."""
    return array[:, :: max(array.shape[1] // most, 1)]


def _find_copies(module: nn.Module, tensors: list[tuple[torch.Tensor, int]]) -> Iterator[_Copies]:
    """Which of the first rows are copies of others, where most are: whole slices, then rows of a linear layer."""
    import numpy as np

    if not all(_is_read(each) for each, _ in tensors):
        return
    first_tensor = tensors[0][0]
    is_float = all(each.is_floating_point() for each, _ in tensors)
    for leading in {1, first_tensor.dim() - 1 if isinstance(module, nn.Linear) else 1}:
        arrays = [_array_of(each, leading, dim) for each, dim in tensors]
        count, width = len(arrays[0]), sum([each.shape[1] for each in arrays])
        if count < _MIN_ROWS or not _may_have_copies(arrays):
            continue
        labels: Any = np.zeros(min(count, _MAX_ROWS), np.uint64)
        for each in arrays:
            sample = _columns(each[:_MAX_ROWS]).astype(np.uint64)
            labels = labels * np.uint64(31) + sample @ _factors(sample.shape[1])
        is_slice = is_float and first_tensor.dim() - leading >= 2 and width >= _MIN_VALUES
        share, first = _share_distinct(labels, is_slice, is_float or width >= _MIN_NUMBERS)
        copies = np.flatnonzero(first != np.arange(len(labels))) if share <= _MAX_DISTINCT else ()
        if len(copies) and _are_equal(arrays, copies, first[copies]):
            yield _Copies(copies, first[copies], count, share)


def _may_have_copies(arrays: list[Any]) -> bool:
    """Whether two columns, which take a tenth of the time, leave it open that most rows are copies."""
    import numpy as np

    few: Any = 0
    for each in arrays:
        width = each.shape[1]
        few = few + each[:_MAX_ROWS, width // 3] + each[:_MAX_ROWS, 2 * width // 3] * 3
    neighbours = np.count_nonzero(few[1:] == few[:-1])
    return bool(neighbours >= (1 - _MAX_DISTINCT) * len(few) - 1 or np.count_nonzero(few[1:] == few[0]))


@functools.cache
def _factors(count: int) -> Any:
    """Odd multiples of the golden ratio: a sum of values times these tells rows apart, and is 0 for zeros alone."""
    import numpy as np

    return np.array([(2 * each + 1) * _GOLDEN % (1 << 64) | 1 for each in range(count)], np.uint64)


def _share_distinct(labels: Any, is_slice: bool, is_wide: bool) -> tuple[float, Any]:
    """The share of distinct rows (1 where rows may agree by accident), and for each row the first that equals it.

    Copies that a program makes lie side by side, or come again in the same order. Zeros and one row that is more common
    than all others fill something up. `is_slice`: rows of any order do not agree by accident; `is_wide`: nor do
    neighbours.
    """
    import numpy as np

    # np.unique imports what it needs when it is called: a part of the program, in the trace.
    count = len(labels)
    ordered = labels.copy()
    ordered.sort()
    distinct = 1 + np.count_nonzero(ordered[1:] != ordered[:-1])
    if distinct > _MAX_DISTINCT * count:
        return 1.0, None
    order = labels.argsort(kind="stable")
    is_new = np.append(True, ordered[1:] != ordered[:-1])
    first = np.empty(count, np.int64)
    first[order] = order[is_new][np.cumsum(is_new) - 1]
    counts = np.bincount(first)
    most = int(counts.max())
    filled = np.count_nonzero(labels == 0)
    if distinct - 1 > _MAX_DISTINCT * (count - most) or distinct + filled > _MAX_DISTINCT * count:
        return 1.0, first
    border = np.flatnonzero(labels[1:] != labels[:-1]) + 1
    lengths = np.diff(border, prepend=0)
    again = int(np.flatnonzero(labels[1:] == labels[0])[0]) + 1 if counts[0] > 1 else count
    repeats = again <= count / 2 and bool((labels[again:] == labels[:-again]).all())
    is_regular = repeats or distinct == 1 or (len(lengths) > 0 and lengths[0] > 1 and len(set(lengths.tolist())) == 1)
    has_runs = is_wide and len(border) <= _MAX_DISTINCT * count
    return (distinct / count if is_regular or has_runs or is_slice else 1.0), first


def _are_equal(arrays: list[Any], rows: Any, others: Any) -> bool:
    """Whether rows equal others in all values, as far as some pairs of them show."""
    kept = slice(None, None, max(len(rows) // 16, 1))
    for each in arrays:
        columns = _columns(each, _MAX_COMPARED // 16)
        if (columns[rows[kept]] == columns[others[kept]]).all(1).mean() < 0.9:
            return False
    return True


def _share_used(gradient: torch.Tensor, leading: int) -> float:
    """The share of rows whose gradient is not zero, of some that lie anywhere; 1 where it cannot be read."""
    import numpy as np

    if not _is_read(gradient) or not gradient.is_floating_point():
        return 1.0
    array = _array_of(gradient, leading)
    rows = np.arange(min(len(array), _MAX_ROWS))
    if len(array) > _MAX_ROWS:
        rows = (rows * (_GOLDEN / (1 << 64)) % 1 * len(array)).astype(np.int64)
    sign = array.dtype.type(1)  # which zeros of masks may have
    if np.count_nonzero(array[rows, array.shape[1] // 2] << sign) > _MAX_USED * len(rows):
        return 1.0
    is_zero = np.bitwise_or.reduce(_columns(array)[rows] << sign, 1) == 0
    zeros = np.count_nonzero(is_zero)
    if len(array) < _MIN_ROWS or zeros < (1 - _MAX_USED) * len(rows) or zeros == len(rows):
        return 1.0
    kept = rows[is_zero][:: max(zeros // 64, 1)]
    wrong = float((_columns(array, _MAX_COMPARED // 64)[kept] << sign != 0).any(1).mean())
    return float(1 - zeros / len(rows) * (1 - wrong))


def _ends_gradients(inputs: torch.Tensor, outputs: torch.Tensor) -> bool:
    """Whether a node gives rows a gradient of zero that get one: of some rows, in the order of its backward pass."""
    import numpy as np

    leading = max(inputs.dim() - 1, 1)
    if not (_is_read(inputs) and _is_read(outputs)) or _share_used(inputs, leading) == 1.0:
        return False
    if outputs.shape != inputs.shape:
        return True
    after, before = _array_of(inputs, leading)[:_MAX_ROWS], _array_of(outputs, leading)[:_MAX_ROWS]
    sign = after.dtype.type(1)
    ended = np.flatnonzero((_columns(after) << sign == 0).all(1))[:_MAX_SATURATING]
    return bool((before[ended] << sign != 0).any(1).mean() > _MAX_SATURATED)


def _find_reached(roots: list[Any], pending: set[int]) -> list[Any]:
    """The nodes that may saturate, and those of calls that the gradient reaches.

    Left out are calls where values that they computed decide on it.
    """
    narrowest: dict[Any, tuple[float, bool]] = {}
    to_do: list[tuple[Any, float, bool]] = [(each, math.inf, False) for each in roots if each is not None]
    looks = 0
    while to_do:
        node, width, is_selected = to_do.pop()
        looks += 1
        if looks > _MAX_NODES:
            return []
        known = narrowest.get(node)
        if known is not None:
            width, is_selected = min(width, known[0]), is_selected or known[1]
            if (width, is_selected) == known:
                continue
        narrowest[node] = width, is_selected
        name = node.name()
        if _HINGES.search(name):
            width = min(width, math.prod(node._input_metadata[0].shape))
        is_selected = is_selected or bool(_SELECTIONS.search(name))
        to_do += [(each, width, is_selected) for each, _ in node.next_functions if each is not None]
    reached: list[Any] = []
    saturating = [node for node in narrowest if _SATURATING.search(node.name())][:_MAX_SATURATING]
    for node, (width, is_selected) in narrowest.items():
        call = node.metadata.get(_CALL)
        if (
            call is not None
            and call.number in pending
            and width >= _MIN_WIDTH * call.rows
            and not (is_selected and call.is_linear)
        ):
            reached.append(node)
    return saturating + reached if reached else []
