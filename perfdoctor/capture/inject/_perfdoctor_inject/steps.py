"""Where one training step ends and the next begins, from what the program calls; nothing here knows of torch.

With a DataLoader the boundary is the entry of its `__next__` after an optimizer step or a `GradScaler.update` (which is
called on skipped steps, too). That is right for gradient accumulation, several optimizers, closures, several loaders
in one loop and evaluation in between. Without a loader it is the first `zero_grad` after every optimizer has stepped;
loops that never call it are cut at the first backward pass, or at the optimizer step itself (LBFGS).
"""

from __future__ import annotations

# An inference loop is believed after so many batches: a program without optimizers soon, one that has built an
# optimizer late, because it may be validating first.
INFERENCE_BATCHES = 3
INFERENCE_BATCHES_WITH_OPTIMIZER = 64
# Rounds of all optimizers without any boundary after which a weaker sign is accepted.
ROUNDS_WITHOUT_MARK = 3
# Optimizer rounds since the loader was last asked after which the loop is taken to run without it.
ROUNDS_WITHOUT_LOADER = 64
# Steps of one optimizer since the boundary after which another one, which never stepped, is no longer waited for.
STEPS_OF_ONE = 16


class StepDetector:
    """Told what happens in the training thread; the methods that return bool say "a step ends here"."""

    def __init__(self) -> None:
        self.source: str | None = None
        self.trains = False
        self._batches = 0
        self._uses_loader = False
        self._optimizers_built = 0
        self._backwards = 0
        self._depth = 0
        self._done = False
        self._weak_mark = False
        self._scaler_updated = False
        self._stepped: dict[int, int] = {}
        self._expected: set[int] = set()

    def loader_next(self) -> bool:
        """The loop asks a DataLoader for a batch."""
        if self._depth:
            return False
        self._batches += 1
        self._uses_loader = True
        if self.trains:
            return self._done and self._end("loader")
        patience = INFERENCE_BATCHES_WITH_OPTIMIZER if self._optimizers_built else INFERENCE_BATCHES
        return self._batches > patience and self._end("loader")

    def zero_grad(self) -> bool:
        """Gradients are about to be cleared, by an optimizer or by a module."""
        return not self._depth and not self._uses_loader and self._round_is_complete() and self._end("zero_grad")

    def backward_begins(self) -> bool:
        """A backward pass is about to begin."""
        self._backwards += 1
        if self._depth or self._uses_loader:
            return False
        if self._weak_mark:
            return self._round_is_complete() and self._end("backward")
        # Without any optimizer object the program updates its weights by hand: one backward pass, one step.
        by_hand = not self.trains and not self._optimizers_built and self._backwards > INFERENCE_BATCHES
        return by_hand and self._end("backward")

    def optimizer_built(self) -> None:
        """An optimizer object was made: the program is going to train."""
        self._optimizers_built += 1

    def optimizer_begins(self) -> bool:
        """`Optimizer.step` is about to run; a closure inside it makes no boundary."""
        ends = (
            not self._depth
            and not self._uses_loader
            and self._weak_mark
            and self._round_is_complete()
            and self._end("optimizer")
        )
        self._depth += 1
        return ends

    def optimizer_ends(self) -> None:
        """`Optimizer.step` has returned or raised."""
        self._depth = max(0, self._depth - 1)

    def optimizer_stepped(self, key: int) -> None:
        """The optimizer `key` has done its work."""
        self.trains = self._done = True
        self._expected.add(key)
        self._stepped[key] = self._stepped.get(key, 0) + 1
        rounds = min(self._stepped.get(other, 0) for other in self._expected)
        if not self._uses_loader:
            self._weak_mark = self._weak_mark or rounds >= ROUNDS_WITHOUT_MARK
        elif rounds >= ROUNDS_WITHOUT_LOADER:
            self._uses_loader = False
            self._weak_mark = True

    def scaler_updated(self) -> None:
        """`GradScaler.update` was called: the step is over even if the optimizer was skipped."""
        self.trains = self._done = self._scaler_updated = True

    def forget_loader(self) -> None:
        """The loader runs in another thread than the training: its calls say nothing about steps."""
        self._uses_loader = False
        self._batches = 0

    def _round_is_complete(self) -> bool:
        """Whether every optimizer that takes part has stepped since the last boundary."""
        if not self._done:
            return False
        if self._scaler_updated and not self._stepped:
            return True  # every optimizer was skipped: the gradients overflowed
        missing = [key for key in self._expected if key not in self._stepped]
        if missing and max(self._stepped.values(), default=0) >= STEPS_OF_ONE:
            self._expected.difference_update(missing)
            return True
        return not missing

    def _end(self, source: str) -> bool:
        self.source = source
        self._done = self._scaler_updated = False
        self._stepped.clear()
        return True
