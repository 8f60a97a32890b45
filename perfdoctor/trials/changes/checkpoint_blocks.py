"""checkpoint: the blocks of one class keep their input alone, and compute the rest again in the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

# Values that a second forward pass reads and cannot change.
PLAIN = (bool, int, float, complex, str, bytes, type(None))


class CheckpointBlocks:
    """`torch.utils.checkpoint` around each forward pass of a class; the setting is the name of the class."""

    name = "checkpoint"
    summary = "activations of the blocks of a class are computed again in the backward pass (checkpoint=CLASS)"
    rules = ("PD701",)
    effect_on_results = "none"
    code = "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)   # around each call of a {setting}"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The classes that findings name; nothing where the program checkpoints itself."""
        from perfdoctor.trials.change import advised_settings

        return () if facts.checkpointing.calls else tuple(dict.fromkeys(advised_settings(self.name, findings)))

    def apply(self, setting: str, program: Program) -> None:
        """Wrap the calls of each outermost module of the class, in every model, at its first forward."""
        watch = _Watch(self, program)

        def on_first_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            blocks = find_blocks(module, setting)
            why = explain_misfit(module, blocks)
            if why:
                program.refuse(self, why)
            elif blocks:
                for block in blocks:
                    watch.checkpoint(block)
                program.met(self, program.location_of_caller(), f"{len(blocks)} of {setting}")

        # Before others wrap the calls of the model, which then looks as if it were compiled.
        program.on_first_forward(on_first_forward, before_others=True)


class _Watch:
    """Wraps the calls of blocks, and takes that back where a second forward pass would not be the same.

    The first block that is called runs as it is: only what it leaves behind tells whether its class can be repeated.
    Random numbers are no reason against it, since checkpoint sets their generators back.
    """

    def __init__(self, change: CheckpointBlocks, program: Program) -> None:
        self._change, self._program = change, program
        self._blocks: list[Any] = []
        self._has_run = False

    def checkpoint(self, block: Any) -> None:
        """Wrap the calls of one block."""
        import torch
        from torch.utils.checkpoint import checkpoint

        def wrap(call: Any) -> Any:
            is_checked = False

            def call_block(*args: Any, **kwargs: Any) -> Any:
                nonlocal is_checked
                if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                    return call(*args, **kwargs)
                if is_checked:
                    return checkpoint(call, *args, use_reentrant=False, **kwargs)
                is_checked = True
                why, before = explain_argument((args, kwargs)), describe_state(block, (args, kwargs))
                is_first, self._has_run = not self._has_run, True
                if is_first or why:
                    result = call(*args, **kwargs)
                else:
                    result = checkpoint(call, *args, use_reentrant=False, **kwargs)
                why = why or explain_result(result) or explain_difference(before, describe_state(block, (args, kwargs)))
                if why:
                    self._give_up(f"the forward pass of {type(block).__name__} {why}")
                return result

            return call_block

        self._program.wrap_calls(block, wrap)
        self._blocks.append(block)

    def _give_up(self, why: str) -> None:
        for block in self._blocks:
            block._compiled_call_impl = None
        self._blocks.clear()
        self._program.refuse(self._change, why)


def find_blocks(model: Any, class_name: str) -> list[Any]:
    """The modules of a class, without those inside another of them."""
    if type(model).__name__ == class_name:
        return [model]
    return [block for child in model.children() for block in find_blocks(child, class_name)]


def explain_misfit(model: Any, blocks: Sequence[Any]) -> str | None:
    """Why blocks of a model cannot be checkpointed from outside; None where nothing speaks against it."""
    for each in model.modules() if blocks else ():
        kind = type(each).__name__
        if kind == "OptimizedModule" or getattr(each, "_compiled_call_impl", None) is not None:
            return "the model is compiled: torch.compile decides itself what is computed again"
        if "ScriptModule" in [base.__name__ for base in type(each).__mro__]:
            return "the model is scripted: its calls cannot be wrapped"
        if kind in ("FullyShardedDataParallel", "DeepSpeedEngine", "PipelineStage") or kind.startswith("FSDP"):
            return f"{kind} moves parameters around each forward pass: checkpoint by its own option"
        if getattr(each, "gradient_checkpointing", False) is True:
            return "the model checkpoints already (gradient_checkpointing)"
    for each in [each for block in blocks for each in block.modules()]:
        if each._forward_hooks or each._forward_pre_hooks or each._backward_hooks:
            return f"a {type(each).__name__} has hooks, which would be called twice"
    return None


def explain_argument(value: Any) -> str | None:
    """Why a second forward pass may get other arguments than the first one; None where it gets the same."""
    import torch

    if isinstance(value, (torch.Tensor, torch.dtype, torch.device, *PLAIN)):
        return None
    if type(value) in (tuple, list, dict):
        items = value.values() if isinstance(value, dict) else value
        return next(filter(None, map(explain_argument, items)), None)
    return f"is given a {type(value).__name__}, which it may change each time that it runs"


def explain_result(value: Any) -> str | None:
    """Why the results of a forward pass are more than values of a graph; None where they are not."""
    import torch

    if isinstance(value, torch.Tensor) or value is None:
        return None
    if type(value) in (tuple, list, dict):
        items = value.values() if isinstance(value, dict) else value
        return next(filter(None, map(explain_result, items)), None)
    return f"returns a {type(value).__name__}, not tensors alone"


def describe_state(block: Any, arguments: Any) -> dict[str, Any]:
    """What a forward pass could leave behind: versions of buffers and arguments, and the attributes of modules."""
    from torch.utils._pytree import tree_leaves

    found: dict[str, Any] = {
        f"changes its argument {number} in place": each._version
        for number, each in enumerate(tree_leaves(arguments))
        if hasattr(each, "_version") and not each.is_inference()
    }
    for path, module in block.named_modules():
        for name, buffer in module._buffers.items():
            found[f"changes the buffer {path}.{name}"] = None if buffer is None else (id(buffer), buffer._version)
        for name, value in vars(module).items():
            if name not in ("_buffers", "_parameters"):
                size = len(value) if isinstance(value, (list, dict, set)) else 0
                found[f"sets the attribute {path}.{name}"] = id(value), size
    return found


def explain_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first thing that a forward pass has changed; None where it changed nothing."""
    changed = next((what for what in {**before, **after} if before.get(what) != after.get(what)), None)
    return None if changed is None else f"{changed.replace(' .', ' ')}, and would do so twice"
