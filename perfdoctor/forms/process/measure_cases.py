"""Measure forms of recorded calls: a process of its own, in the Python of the program, with torch and no perfdoctor.

stdin has the cases as JSON, see `Case`; stdout gets one line of JSON for each, as it is done, so that what was
measured counts though the time is over. Both forms get the same inputs, made anew at the recorded sizes, strides and
types; the outputs and the gradients are compared, and a form that computes something else is refused. Their times are
taken in turns, so that whatever slows the machine slows both.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from . import expressions
from .make_tensors import make_tensor

# A turn repeats a form for so long, so that the clock's grain and a switch of threads are small beside it.
_TURN_S, _MIN_TURNS, _MAX_TURNS = 0.01, 5, 15
# Busy cores show when a loop gets less of its time.
_PROBE_S, _MIN_CORE_SHARE = 0.05, 0.9
# A single call that takes longer is not worth the wait, and tensors of more are not made twice.
_MAX_CALL_S, _MAX_BYTES = 2.0, 2e9
# The largest difference of two numbers beside the largest number that rounding explains, by type.
_ROUNDING = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 6e-2, "complex64": 1e-4, "complex128": 1e-9}
# What a form may differ by that changes results by a smaller type, as it says itself.
_OTHER_TYPE = 0.1


class RefusedError(Exception):
    """A form does not fit the calls, cannot be made again here, or computes something else."""


class Times(NamedTuple):
    """Two forms measured in turns.

    Attributes:
        now_ns, form_ns: Of one run of each the shortest of the turns: what else runs on the cores only adds to them.
        noise: How far the shortest of every other turn lies above that of the others, as a share; the larger.
    """

    now_ns: int
    form_ns: int
    noise: float


class Case:
    """Some calls of the program with their inputs, as they can be run again.

    A case in JSON has `tensors` (by number what they are), `calls` (function, arguments, keywords, result, whether
    gradients were on), `bound` (by name a value of the calls), `output` (the value of the last call) and `form`.
    """

    def __init__(self, plain: dict[str, Any], device: str) -> None:
        self.plain, self.device = plain, device
        numbers = {int(number): row for number, row in plain["tensors"].items()}
        if sum(math.prod(row[0]) * 8 for row in numbers.values()) > _MAX_BYTES:
            raise RefusedError("its tensors are too large to be made twice")
        made = {result for call in plain["calls"] for result in _tensors_in(call[3])}
        self.inputs = {number: make_tensor(row, device) for number, row in numbers.items() if number not in made}
        self.functions = [_find_function(call[0]) for call in plain["calls"]]
        self.with_grad = plain["calls"][-1][4]
        self.leaves = [_leaf_of(each) for each in self.inputs.values() if each.requires_grad]

    def run(self) -> Any:
        """What the program computes."""
        values = dict(self.inputs)
        result = None
        for function, (_, args, kwargs, encoded, _) in zip(self.functions, self.plain["calls"], strict=True):
            given = list(self.decode(args, values))
            if function.__name__.endswith("_") and not function.__name__.endswith("__"):
                given[0] = given[0].clone()  # it writes there, and the next run gets the input as it was
            result = function(*given, **{k: self.decode(v, values) for k, v in kwargs.items()})
            _keep(encoded, result, values)
        output = self.plain["output"]
        return result if output is None else self.decode(output, values)

    # --- what expressions of forms.toml ask ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What the last function is called."""
        return str(self.plain["calls"][-1][0].rpartition(".")[2].strip("_"))

    def last(self, *given: Any) -> Any:
        """The last call with other first arguments."""
        _, args, kwargs, _, _ = self.plain["calls"][-1]
        more = [self.decode(each, dict(self.inputs)) for each in args[1 + len(given) :]]
        return self.functions[-1](*given, *more, **{k: self.decode(v, dict(self.inputs)) for k, v in kwargs.items()})

    def again(self, **changes: Any) -> Any:
        """The last call with other keywords."""
        _, args, kwargs, _, _ = self.plain["calls"][-1]
        keywords = {k: self.decode(v, dict(self.inputs)) for k, v in kwargs.items() if k not in changes}
        return self.functions[-1](*self.decode(args, dict(self.inputs)), **keywords, **changes)

    def _with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        changed = {number: change(each) for number, each in self.inputs.items()}
        _, args, kwargs, _, _ = self.plain["calls"][-1]
        return self.functions[-1](
            *self.decode(args, changed), **{k: self.decode(v, changed) for k, v in kwargs.items()}
        )

    def values_of(self, tensor: torch.Tensor) -> dict[str, Any]:
        """What was recorded of the numbers in an input."""
        number = next((number for number, each in self.inputs.items() if each is tensor), None)
        return self.plain["tensors"][str(number)][-1] or {} if number is not None else {}

    def has_strided(self) -> bool:
        """Whether an input lies in another order, or with gaps; one that is only repeated does not count."""
        return any(not each.is_contiguous() and 0 not in each.stride() for each in self.inputs.values())

    def with_contiguous(self) -> Any:
        """The last call on inputs in order."""
        return self._with_tensors(lambda each: each.contiguous())

    def in_type(self, dtype: torch.dtype) -> Any:
        """The last call in another type, and its result in the first one."""
        first = next(each.dtype for each in self.inputs.values() if each.is_floating_point())
        result = self._with_tensors(lambda each: each.to(dtype) if each.is_floating_point() else each)
        return _map_tensors(result, lambda each: each.to(first) if each.is_floating_point() else each)

    def in_tf32(self) -> Any:
        """The last call with TF32 allowed."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return self.again()
        finally:
            torch.set_float32_matmul_precision(before)

    def along_last(self, x: torch.Tensor, dim: int) -> Any:
        """The last call along an axis that was moved to the end."""
        _, args, kwargs, _, _ = self.plain["calls"][-1]
        given = [self.decode(each, dict(self.inputs)) for each in args[2:]]
        if given:
            given[0] = -1
        keywords = {k: -1 if k == "dim" else self.decode(v, dict(self.inputs)) for k, v in kwargs.items()}
        result = self.functions[-1](x.movedim(dim, -1).contiguous(), *given, **keywords)
        return _map_tensors(result, lambda each: each.movedim(-1, dim) if each.dim() == x.dim() else each)

    def batched(self) -> list[torch.Tensor]:
        """All calls at once: what differs is stacked."""
        calls = self.plain["calls"]
        of_first = calls[0][1][1:]
        stacked: list[Any] = []
        axes: list[int | None] = []
        for place, first in enumerate(of_first):
            values = [call[1][1 + place] for call in calls]
            if all(each == first for each in values):
                stacked.append(self.decode(first, dict(self.inputs)))
                axes.append(None)
            else:
                stacked.append(torch.stack([self.decode(each, dict(self.inputs)) for each in values]))
                axes.append(0)
        if any(call[2] != calls[0][2] for call in calls) or not any(axis == 0 for axis in axes):
            raise RefusedError("the calls differ in more than their tensors")
        keywords = {k: self.decode(v, dict(self.inputs)) for k, v in calls[0][2].items()}
        result = torch.vmap(lambda *some: self.functions[0](*some, **keywords), tuple(axes))(*stacked)
        if not isinstance(result, torch.Tensor):
            raise RefusedError("the calls return several tensors")
        return list(result.unbind(0))

    def decode(self, value: Any, values: dict[int, torch.Tensor]) -> Any:
        """The value of an encoded argument."""
        if not isinstance(value, list):
            return value
        kind, *rest = value
        if kind == "tensor":
            if rest[0] not in values:
                raise RefusedError("it needs a tensor that the calls make on the way")
            return values[rest[0]]
        if kind in ("tuple", "list"):
            items = [self.decode(each, values) for each in rest]
            return items if kind == "list" else tuple(items)
        if kind == "slice":
            return slice(*(self.decode(each, values) for each in rest))
        if kind == "ellipsis":
            return Ellipsis
        if kind == "torch":
            return getattr(torch, rest[0])
        if kind == "device":
            return torch.device(self.device)
        if kind == "text":
            return rest[0]
        raise RefusedError(f"an argument of type {rest[0]} was not recorded")


def _leaf_of(tensor: torch.Tensor) -> torch.Tensor:
    """What gets the gradient of an input: itself, or the one copy of what is only repeated."""
    return tensor if tensor.is_leaf or tensor._base is None else tensor._base


def _map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    return type(value)(map(change, value)) if type(value) in (tuple, list) else tuple(map(change, value))


def _tensors_in(value: Any) -> list[int]:
    if not isinstance(value, list):
        return []
    return [value[1]] if value[:1] == ["tensor"] else [number for each in value for number in _tensors_in(each)]


def _keep(encoded: Any, result: Any, values: dict[int, torch.Tensor]) -> None:
    if isinstance(encoded, list) and encoded:
        if encoded[0] == "tensor":
            values[encoded[1]] = result
        elif encoded[0] in ("tuple", "list"):
            for each, item in zip(encoded[1:], result, strict=False):
                _keep(each, item, values)


def _find_function(name: str) -> Any:
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    if found is None or not callable(found):
        raise RefusedError(f"{name} is not in this torch")
    return found


def measure_case(plain: dict[str, Any], device: str, deadline: float) -> dict[str, Any]:
    """The fastest variant of a form that computes the same; raises `RefusedError` where there is none."""
    torch.manual_seed(0)
    case, form = Case(plain, device), plain["form"]
    bound = {name: case.decode(value, dict(case.inputs)) for name, value in plain["bound"].items()}
    names = {**vars(expressions), **bound, "torch": torch, "F": torch.nn.functional, "math": math}
    names["value"] = lambda of: case.values_of(bound[of.strip("<>")] if isinstance(of, str) else of)
    names["calls"] = case
    try:
        if not eval(form.get("when", "True"), names):
            raise RefusedError("it does not fit these arguments")
        variants = list(eval(form["each"], names)) if "each" in form else [None]
    except RefusedError:
        raise
    except Exception as error:
        raise RefusedError(f"{type(error).__name__}: {error}") from None
    prepared: list[Variant] = []
    why = "it has no variant here"
    for each in variants:
        try:
            prepared.append(_prepare(case, {**names, "each": each}, form))
        except RefusedError as error:
            why = str(error)
        if time.monotonic() > deadline:
            break
    if not prepared:
        raise RefusedError(why)
    best = min(prepared, key=lambda variant: variant.seconds)
    times = _time_in_turns(best.run_now, best.run_form, best.now_seconds, deadline)
    write = eval(f"f'''{form['write']}'''", _name_tensors(best.names))
    return {**times._asdict(), "difference": best.difference, "has_backward": best.has_backward, "write": write}


class Variant(NamedTuple):
    """A variant of a form that computes the same, run once.

    Attributes:
        run_now, run_form: What the program does, and the form, both with their backward pass.
        names: What the expressions of the form see.
        difference: The largest difference of the results; None where it says nothing.
    """

    run_now: Callable[[], Any]
    run_form: Callable[[], Any]
    names: dict[str, Any]
    now_seconds: float
    seconds: float
    difference: float | None
    has_backward: bool


def _prepare(case: Case, names: dict[str, Any], form: dict[str, Any]) -> Variant:
    code = compile(form["form"], form["id"], "eval")
    if "before" in form:  # what is made once, before the loop
        names["made"] = eval(form["before"], names)
    backward = Backward(case)
    now, now_seconds = _time_once(backward.wrap(case.run))
    if now_seconds > _MAX_CALL_S:
        raise RefusedError(f"one call takes {now_seconds:.1f} s: too long to be repeated")
    run_now = backward.wrap(case.run)
    if "compare" in form:  # the backward pass of that part alone, which the form has as well
        part = compile(form["compare"], form["id"], "eval")
        backward = Backward(case)
        run_now = backward.wrap(lambda: eval(part, {**names, "now": case.run()}))
        now = run_now()
    layout = [each.is_contiguous() for each in flatten(now[0])]
    run_form = backward.wrap(lambda: _lay_out(eval(code, names), layout), is_form=True)
    other, seconds = _time_once(run_form)
    difference = _largest_difference(now, other)
    limit = _OTHER_TYPE if form.get("results") == "other type" else _limit_of(now[0])
    if form.get("results") != "other numbers" and not difference <= limit:
        raise RefusedError(f"its results differ by {difference:.1e} of the largest")
    known = difference if difference < math.inf else None
    return Variant(run_now, run_form, names, now_seconds, seconds, known, backward.is_needed)


def _name_tensors(names: dict[str, Any]) -> dict[str, Any]:
    """The names with a mark for each tensor, which the report replaces by what the program calls it."""
    texts = {name: f"<{name}>" if isinstance(value, torch.Tensor) else value for name, value in names.items()}
    for name, value in names.items():
        if isinstance(value, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in value):
            texts[name] = [f"<{name}{number}>" for number in range(len(value))]
    return texts


class Backward:
    """Runs a form with the backward pass that the program has behind it, with the same gradient for both forms."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._gradients: list[torch.Tensor] | None = None
        self.is_needed = bool(case.with_grad and case.leaves)

    def wrap(self, run: Callable[[], Any], *, is_form: bool = False) -> Callable[[], tuple[Any, list[Any]]]:
        """A function that returns the outputs of `run` and the gradients of the inputs."""

        def run_both() -> tuple[Any, list[Any]]:
            with torch.set_grad_enabled(self.is_needed):
                result = run()
            outputs = [each for each in flatten(result) if each.requires_grad] if self.is_needed else []
            if not outputs:
                self.is_needed = self.is_needed and is_form
                return result, []
            if self._gradients is None or [g.shape for g in self._gradients] != [o.shape for o in outputs]:
                torch.manual_seed(1)
                self._gradients = [torch.randn_like(each) for each in outputs]
            return result, list(torch.autograd.grad(outputs, self._case.leaves, self._gradients, allow_unused=True))

        return run_both


def flatten(value: Any) -> list[torch.Tensor]:
    """All tensors of a result."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [each for item in value for each in flatten(item)] if isinstance(value, (list, tuple)) else []


def _lay_out(result: Any, is_contiguous: list[bool]) -> Any:
    """The result in order where the program has it so: what comes after it reads it that way."""
    if isinstance(result, torch.Tensor):
        return result.contiguous() if is_contiguous[:1] == [True] and result.layout is torch.strided else result
    wanted = iter(is_contiguous)
    return (
        _map_tensors(result, lambda each: each.contiguous() if next(wanted, False) else each)
        if isinstance(result, (tuple, list))
        else result
    )


def _largest_difference(now: Any, other: Any) -> float:
    """The largest difference beside the largest number; infinite where shapes or types of numbers differ."""
    (now_out, now_grads), (other_out, other_grads) = now, other
    worst = 0.0
    for first, second in (
        *zip(flatten(now_out), flatten(other_out), strict=False),
        *zip(now_grads, other_grads, strict=False),
    ):
        if first is None and second is None:
            continue
        if first is None or second is None:
            first, second = (torch.zeros_like(second), second) if first is None else (first, torch.zeros_like(first))
        if first.shape != second.shape or first.dtype.is_floating_point != second.dtype.is_floating_point:
            return math.inf
        first, second = (
            each.detach().to_dense() if each.layout is not torch.strided else each.detach() for each in (first, second)
        )
        if torch.equal(first, second.to(first.dtype)):
            continue
        if not (first.dtype.is_floating_point or first.dtype.is_complex):
            return math.inf
        exact = torch.complex128 if first.dtype.is_complex else torch.float64
        first, second = first.to(exact), second.to(exact)
        same = (first == second) | (first.isnan() & second.isnan())
        difference = torch.where(same, torch.zeros_like(first), first - second).abs().max()
        finite = first[first.isfinite()]
        largest = float(finite.abs().max()) if len(finite) else 1.0
        worst = max(worst, float(difference) / max(largest, 1e-30))
        if math.isnan(worst):
            return math.inf
    return math.inf if len(flatten(now_out)) != len(flatten(other_out)) else worst


def _limit_of(output: Any) -> float:
    types = {str(each.dtype).removeprefix("torch.") for each in flatten(output)}
    return max((_ROUNDING.get(each, 0.0) for each in types), default=0.0)


def _time_once(run: Any) -> tuple[Any, float]:
    """What a form returns, and the seconds of its second run: the first one warms up."""
    try:
        run()
        began = _clock()
        result = run()
        _wait(result)
        return result, _clock() - began
    except RefusedError:
        raise
    except Exception as error:
        raise RefusedError(
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
        ) from None


def _wait(result: Any) -> None:
    if any(each.is_cuda for each in flatten(result)):
        torch.cuda.synchronize()


def _time_in_turns(now: Callable[[], Any], form: Callable[[], Any], seconds: float, deadline: float) -> Times:
    repeats = max(1, round(_TURN_S / max(seconds, 1e-7)))
    times: tuple[list[float], list[float]] = ([], [])
    while len(times[0]) < _MIN_TURNS or (len(times[0]) < _MAX_TURNS and time.monotonic() < deadline):
        for run, found in zip((now, form), times, strict=True):
            began = _clock()
            result = None
            for _ in range(repeats):
                result = run()
            _wait(result)
            found.append((_clock() - began) / repeats * 1e9)
    halves = [(min(each[::2]), min(each[1::2])) for each in times]
    noise = max(max(pair) / min(pair) - 1 for pair in halves)
    return Times(round(min(times[0])), round(min(times[1])), round(noise, 4))


_clock = time.perf_counter


def _set_clock(*, is_cpu_time: bool) -> None:
    """Let one thread be measured by its CPU time, in which nobody else takes part."""
    global _clock
    _clock = time.process_time if is_cpu_time else time.perf_counter


def _are_cores_busy() -> bool:
    """Whether others have the cores for a good part of the time: threads that wait for each other tell nothing then."""
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < _PROBE_S:
        pass
    return time.process_time() - cpu < _MIN_CORE_SHARE * (time.perf_counter() - began)


def _limit_memory() -> None:
    """Let a form that needs far more memory fail, before the machine does."""
    with contextlib.suppress(ImportError, OSError, ValueError, KeyError):
        import resource

        with open("/proc/meminfo", encoding="ascii") as file:
            sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in file}
        resource.setrlimit(resource.RLIMIT_DATA, (sizes["MemAvailable"] // 2,) * 2)


def main() -> None:
    """Measure what stdin has."""
    job = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what torch prints is no answer
    warnings.simplefilter("ignore")
    _limit_memory()
    device = "cuda" if job.get("device") == "cuda" and torch.cuda.is_available() else "cpu"
    threads = 1 if device == "cpu" and _are_cores_busy() else max(int(job.get("threads") or 1), 1)
    torch.set_num_threads(threads)
    _set_clock(is_cpu_time=device == "cpu" and threads == 1)
    end = time.monotonic() + float(job["budget_s"])
    cases = job["cases"]
    for number, case in enumerate(cases):
        now = time.monotonic()
        if now > end:
            break
        # What earlier cases have left over is for all later ones.
        deadline = now + (end - now) / min(len(cases) - number, 4)
        try:
            answer = measure_case(case, device, deadline) | {"threads": threads}
        except RefusedError as error:
            answer = {"refused": str(error)}
        except Exception as error:
            answer = {"refused": f"{type(error).__name__}: {error}"[:200]}
        out.write(json.dumps({"case": case["id"], **answer}) + "\n")
        out.flush()
