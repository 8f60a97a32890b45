"""environment: one environment variable of CUDA, NCCL or torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

# What is offered unasked; any other may be given by hand, as --only environment=NAME=VALUE.
IN_JOBS = ("CUDA_DEVICE_MAX_CONNECTIONS=1", "NCCL_NTHREADS=512", "NCCL_BUFFSIZE=8388608")


class LaunchEnvironment:
    """A variable that is read when the program starts; the setting is NAME=VALUE."""

    name = "environment"
    summary = "an environment variable, such as CUDA_DEVICE_MAX_CONNECTIONS=1 or one of NCCL"
    rules = ("PD402",)
    effect_on_results = "that of the variable"
    code = "{setting} python ..."

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """For jobs of several ranks on GPUs, what is not set."""
        if not facts.devices or (facts.world_size or 1) < 2:
            return ()
        return tuple(each for each in IN_JOBS if each.partition("=")[0] not in os.environ)

    def environment(self, setting: str) -> Mapping[str, str]:
        """The variable."""
        name, _, value = setting.partition("=")
        return {name: value}

    def apply(self, setting: str, program: Program) -> None:
        """Note whether the variable has a reader here: those of NCCL and CUDA need a model on a GPU."""
        name, _, value = setting.partition("=")
        if program.environment.get(name) != value:
            return
        if not name.startswith(("CUDA_", "NCCL_", "TORCH_NCCL_")):
            program.met(self, None, setting)
            return

        def on_first_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            import torch

            distributed = torch.distributed
            uses_nccl = distributed.is_available() and distributed.is_initialized()
            uses_nccl = uses_nccl and "nccl" in str(distributed.get_backend())
            if any(each.is_cuda for each in module.parameters()) and (uses_nccl or "NCCL" not in name):
                program.met(self, None, setting)

        program.on_first_forward(on_first_forward)
