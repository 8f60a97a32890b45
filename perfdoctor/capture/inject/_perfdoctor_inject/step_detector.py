"""Where one training step ends and the next begins, from what the program calls; nothing here knows of torch.

With a DataLoader a step ends where the loop calls the loader's `__next__` after an optimizer step or a
`GradScaler.update` (which is also called in steps that the scaler skips). That is right for gradient accumulation,
several optimizers, closures, several loaders in one loop and evaluation in between::

    next  forward  backward  optimizer.step | next  forward  backward  optimizer.step | next ...

Without a loader a step ends at the first `zero_grad` after every optimizer has stepped::

    zero_grad  forward  backward  optimizer.step | zero_grad  forward  backward  optimizer.step | zero_grad ...

Where a forward pass comes before this `zero_grad`, or none is called in several rounds, a step ends with the last
optimizer of the round, or with the update of its scaler. The graph tells: a forward pass adds nodes to it::

    forward  zero_grad  backward  optimizer.step | forward  zero_grad  backward  optimizer.step | forward ...

Without an optimizer the end of a backward pass stands for the optimizer's: the program updates its weights by hand.

Without all of these, gradients included, a program runs a model and trains none: a step ends where it calls the model
whose calls come back first::

    model  sampling | model  sampling | model ...
"""

from __future__ import annotations

from collections.abc import Callable

# Batches after which a loop without optimizer steps counts as inference: few for a program without optimizers, many
# for a program that has built an optimizer, because it may validate before it trains.
INFERENCE_BATCHES = 3
INFERENCE_BATCHES_WITH_OPTIMIZER = 64
# Rounds of all optimizers without a boundary after which their end is one.
ROUNDS_WITHOUT_BOUNDARY = 3
# Rounds of all optimizers since the last batch after which the loop is taken to run without a loader.
ROUNDS_WITHOUT_LOADER = 64
# Steps of one optimizer since the boundary after which the detector stops waiting for another that did not step.
STEPS_WITHOUT_OTHERS = 16
# Gradients by `torch.autograd.grad` after which a program without backward passes and optimizers has steps.
GRADIENTS_WITHOUT_OPTIMIZER = 3
# The same where all of them are nested, as in vmap(grad(...)): an outer gradient may come yet, after one for each task.
NESTED_GRADIENTS_WITHOUT_OPTIMIZER = 32


class StepDetector:
    """Learns what happens in the training thread; the methods that return a bool return whether a step ends here.

    Attributes:
        source: What marked the last boundary: loader, zero_grad, backward, optimizer, gradient or forward; None before
            the first one.
        is_training: Whether any optimizer has stepped.
    """

    def __init__(self, count_nodes: Callable[[], int]) -> None:
        """Nothing has happened; `count_nodes` says how many nodes this thread has added to graphs of autograd."""
        self._count_nodes = count_nodes
        self.source: str | None = None
        self.is_training = False
        self._batches = 0
        self._uses_loader = False
        self._optimizers_built = 0
        self._backwards = 0
        self._optimizer_depth = 0
        self._has_stepped = False
        self._nodes_before = 0
        self._backwards_before = 0
        self._is_in_backward = False
        self._ends_with_round = False
        self._uses_scaler = self._scaler_updated = False
        self._step_counts: dict[int, int] = {}
        self._expected: set[int] = set()
        self._last_optimizer = 0
        self._steps_in_a_row = 0
        self._longest_row: dict[int, int] = {}
        self._gradients = 0
        self._nesting: int | None = None
        self._calls: dict[int, int] = {}
        self._called: int | None = None

    @property
    def is_in_optimizer(self) -> bool:
        """Whether an `Optimizer.step` is running."""
        return self._optimizer_depth > 0

    @property
    def _is_inside_call(self) -> bool:
        """Whether a step may not end: in a closure, or in a backward pass, where closing a profiler crashes."""
        return self._optimizer_depth > 0 or self._is_in_backward

    @property
    def may_roll_out(self) -> bool:
        """Whether steps may hold forward passes without gradients beside their own: no loader or model marks them."""
        return self.source not in ("loader", "forward")

    @property
    def awaits_forwards(self) -> bool:
        """Whether calls of models may mark steps: nothing that trains was seen, and nothing else marks steps."""
        is_training = self._optimizers_built or self._backwards or self._gradients or self.is_training
        return not is_training and self.source in (None, "forward")

    def on_forward(self, model: int, *, is_loading: bool) -> bool:
        """The program calls a model, by its id; `is_loading`: a loop over a DataLoader, which marks steps, is open."""
        if is_loading or not self.awaits_forwards:
            return False
        self._calls[model] = calls = self._calls.get(model, 0) + 1
        if self._called is None and calls > INFERENCE_BATCHES:
            self._called = model
            self.forget_loader()
        return model == self._called and self._end_step("forward")

    def on_gradient(self, nesting: int = 0) -> bool:
        """`torch.autograd.grad` is about to run; in programs without backward passes and optimizers it marks steps.

        `nesting` is in how many transforms of torch.func it runs. Of nested gradients (a gradient through steps of
        gradient descent) only the outermost marks steps.
        """
        if self._uses_loader or self._backwards or self.is_training or self._optimizers_built:
            return False
        if self._nesting is None or nesting < self._nesting:
            self._nesting, self._gradients = nesting, 0
        if nesting > self._nesting:
            return False
        self._gradients += 1
        patience = GRADIENTS_WITHOUT_OPTIMIZER if nesting <= 1 else NESTED_GRADIENTS_WITHOUT_OPTIMIZER
        return self._gradients > patience and self._end_step("gradient")

    def on_loader_next(self) -> bool:
        """The loop asks a DataLoader for a batch."""
        if self._is_inside_call:
            return False
        self._batches += 1
        self._uses_loader = True
        if self.is_training:
            return self._has_stepped and self._end_step("loader")
        patience = INFERENCE_BATCHES_WITH_OPTIMIZER if self._optimizers_built else INFERENCE_BATCHES
        return self._batches > patience and self._end_step("loader")

    def on_zero_grad(self) -> bool:
        """An optimizer or a module is about to clear gradients."""
        if self._is_inside_call:
            return False
        self._backwards_before = self._backwards
        if self._uses_loader or not self._round_is_complete():
            return False
        if not self._ends_with_round and self._count_nodes() > self._nodes_before:
            self._ends_with_round = True
            self._begin_round()  # its forward pass lies behind: this step and the next are one
            return False
        return self._end_step("zero_grad")

    def on_backward(self) -> None:
        """A backward pass is about to begin; what it calls while gradients come makes no boundary."""
        self._backwards += 1
        self._is_in_backward = True
        self._scaler_updated = False

    def on_backward_end(self) -> bool:
        """A backward pass has returned or raised."""
        self._is_in_backward = False
        if not (self.is_training or self._optimizers_built or self._backwards < INFERENCE_BATCHES):
            self._has_stepped = True
            self._nodes_before = self._count_nodes()
            self._ends_with_round |= self._backwards - self._backwards_before > ROUNDS_WITHOUT_BOUNDARY
        return self._end_round("backward")

    def on_optimizer_built(self) -> None:
        """An optimizer object was made: the program is going to train."""
        self._optimizers_built += 1

    def on_optimizer_begin(self) -> None:
        """`Optimizer.step` is about to run; calls inside it, by a closure, make no boundary."""
        self._optimizer_depth += 1

    def on_optimizer_end(self) -> bool:
        """`Optimizer.step` has returned or raised."""
        self._optimizer_depth = max(0, self._optimizer_depth - 1)
        self._nodes_before = self._count_nodes()
        return self._end_round("optimizer")

    def on_optimizer_step(self, optimizer_id: int) -> bool:
        """An optimizer has updated its weights, of a class whose `step` may not tell its begin and end."""
        self.is_training = self._has_stepped = True
        self._nodes_before = self._count_nodes()
        if optimizer_id not in self._expected:  # the round before has ended too early
            self._step_counts = {**dict.fromkeys(self._expected, 1), **self._step_counts}
            self._expected.add(optimizer_id)
        if optimizer_id == self._last_optimizer:
            self._steps_in_a_row += 1
        else:
            if self._last_optimizer:
                self._longest_row[self._last_optimizer] = self._steps_in_a_row
            self._last_optimizer, self._steps_in_a_row = optimizer_id, 1
        self._step_counts[optimizer_id] = self._step_counts.get(optimizer_id, 0) + 1
        rounds = min(self._step_counts.get(each, 0) for each in self._expected)
        if rounds >= (ROUNDS_WITHOUT_LOADER if self._uses_loader else ROUNDS_WITHOUT_BOUNDARY):
            self._uses_loader = False
            self._ends_with_round = True
        return self._end_round("optimizer")

    def on_scaler_update(self) -> bool:
        """`GradScaler.update` has run: the step is over even if the scaler skipped the optimizer."""
        self.is_training = self._has_stepped = self._scaler_updated = self._uses_scaler = True
        self._nodes_before = self._count_nodes()
        return self._end_round("optimizer")

    def forget_loader(self) -> None:
        """The loader runs in another thread than the training: its calls show no step boundaries."""
        self._uses_loader = False
        self._batches = 0

    def _round_is_complete(self) -> bool:
        """Whether every optimizer that takes part has stepped since the last boundary."""
        if not self._has_stepped:
            return False
        if self._scaler_updated and not self._step_counts:
            return True  # the scaler skipped every optimizer, because the gradients overflowed
        missing = [each for each in self._expected if each not in self._step_counts]
        if missing and self._runs_alone():
            self._expected.difference_update(missing)
            return True
        return not missing

    def _runs_alone(self) -> bool:
        """Whether the last optimizer has stepped more often in a row than it did between steps of another.

        A critic takes five steps before each step of the generator; layers trained one after the other, and trainings
        of a search, take turns once in hundreds of steps.
        """
        row = self._longest_row.get(self._last_optimizer, 1)
        return self._steps_in_a_row > (row if row <= STEPS_WITHOUT_OTHERS else 1)

    def _end_round(self, source: str) -> bool:
        """End the step if its round is complete, in a loop whose steps end so."""
        if self._uses_loader or not self._ends_with_round or self._is_inside_call:
            return False
        awaits_scaler = self._uses_scaler and not self._scaler_updated
        return not awaits_scaler and self._round_is_complete() and self._end_step(source)

    def _end_step(self, source: str) -> bool:
        """Begin a new round and return True."""
        self.source = source
        self._begin_round()
        return True

    def _begin_round(self) -> None:
        """Wait for all optimizers again."""
        self._backwards_before = self._backwards
        self._has_stepped = self._scaler_updated = False
        self._step_counts.clear()
