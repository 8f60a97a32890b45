"""Recordings of one simulated program, with changes that tests plant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.simulated_process import SimulatedProcess
from perfdoctor.trace.vocabulary import SINGLE_PROCESS_LOADER, dataloader_next_name, profiler_step_name

SGEMM, TENSOR_GEMM = "ampere_sgemm_128x64_nn", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
LAYER_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
LOADER = dataloader_next_name(SINGLE_PROCESS_LOADER)


@dataclass(frozen=True)
class Program:
    """Three layers, a norm and an optimizer; each attribute is something that a test changes.

    `seed` is the recording: two of one program differ in their noise alone.
    """

    seed: int = 0
    steps: int = 12
    gemm: str = SGEMM
    gemm_us: float = 900.0
    norm_us: float = 120.0
    loader_us: float = 20.0
    batch: int = 64
    op: str = "aten::addmm"
    with_norm: bool = True
    with_shapes: bool = True
    with_steps: bool = True
    with_modules: bool = False
    device: str | None = "NVIDIA A100-SXM4-40GB"
    rank: int | None = None
    world_size: int | None = None

    def change(self, **changes: object) -> Program:
        """The program with some attributes changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def write(self, path: Path) -> Path:
        """Write the trace of a recording."""
        process = SimulatedProcess(seed=self.seed, record_stacks=self.with_modules, jitter=0.2)
        for number in range(self.steps):
            if self.with_steps:
                with process.annotation(profiler_step_name(number)):
                    self._run_step(process)
            else:  # no two iterations are alike: steps are found where kernels repeat
                self._run_step(process)
                self._run_op(process, "aten::add", None, f"elementwise_kernel_{number}", 5.0)
        builder = TraceBuilder(device=self.device, rank=self.rank, world_size=self.world_size)
        return process.write(builder).write(path)

    def _run_step(self, process: SimulatedProcess) -> None:
        with process.annotation(LOADER):
            process.run_cpu(self.loader_us, 0.02)
        for layer in range(3):
            with process.frame(f"nn.Module: Linear_{layer}"):
                self._run_op(process, self.op, [[self.batch, 512], [512, 512]], self.gemm, self.gemm_us)
        if self.with_norm:
            with process.frame("nn.Module: LayerNorm_0"):
                self._run_op(process, "aten::native_layer_norm", [[self.batch, 512]], LAYER_NORM, self.norm_us)
        self._run_op(process, "aten::_fused_adam_", None, ADAM, 200.0)
        process.synchronize()

    def _run_op(
        self, process: SimulatedProcess, name: str, shapes: list[object] | None, kernel: str, us: float
    ) -> None:
        with process.op(name, shapes=shapes if self.with_shapes else None, dtype="float"):
            process.kernel(kernel, us)
