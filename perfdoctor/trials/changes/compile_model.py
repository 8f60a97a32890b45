"""compile: torch.compile on each model, in place, in one of three modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

ARGUMENTS: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "dynamic": {"dynamic": True},
}


class CompileModel:
    """`Module.compile` of each model that the program calls; compilation takes place in the skipped steps."""

    name = "compile"
    summary = "models by torch.compile: default, reduce-overhead (CUDA graphs), or dynamic (sizes that change)"
    rules = ("PD104", "PD301", "PD306", "PD108")
    alters_numerics = True
    effect_on_results = "sums in another order, fewer roundings between fused ops, other random numbers in dropout"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """What a finding advises first; CUDA graphs only on a GPU. Nothing where the program compiles."""
        from perfdoctor.trials.change import advised_settings

        if facts.compile.frames:
            return ()
        found = ["default", "reduce-overhead", "dynamic"] if facts.devices else ["default"]
        wanted = advised_settings(self.name, findings)
        advised = [name for name in ARGUMENTS if name in wanted]
        return tuple(dict.fromkeys([*advised, *found]))

    def apply(self, setting: str, program: Program) -> None:
        """Compile each model at its first forward."""
        import torch

        arguments = ARGUMENTS[setting]

        def compile_one(module: Any) -> None:
            program.wrap_calls(module, lambda call: torch.compile(call, **arguments))
            program.met(self, program.location_of_caller(), type(module).__name__)

        def on_first_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            if is_compiled(module):
                return
            inner = getattr(module, "module", module)
            if inner is not module and hasattr(inner, "training_step"):
                # Lightning wraps a whole step, logging included: compiled are the models in it.
                for child in inner.children():
                    if next(child.parameters(), None) is not None and not is_compiled(child):
                        compile_one(child)
                return
            compile_one(module)

        # Within the wrappers of other changes: what they do around a call is not to be traced.
        program.on_first_forward(on_first_forward, before_others=True)

    def fix(self, setting: str) -> str:
        """The call."""
        arguments = "".join(f", {name}={value!r}" for name, value in ARGUMENTS[setting].items())
        return f"model = torch.compile(model{arguments})"


def is_compiled(module: Any) -> bool:
    """Whether the program has compiled a module itself, or a part of it."""
    return any(
        type(each).__name__ == "OptimizedModule" or getattr(each, "_compiled_call_impl", None) is not None
        for each in module.modules()
    )
