"""Recordings of one simulated program, with changes that tests plant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.simulated_process import SimulatedProcess
from perfdoctor.trace.vocabulary import SINGLE_PROCESS_LOADER, dataloader_next_name, profiler_step_name

SGEMM, TENSOR_GEMM = "ampere_sgemm_128x64_nn", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
LAYER_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
DROPOUT = "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>"
NORM_OF_TRAINING = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>"
NORM_OF_INFERENCE = "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>"
COUNT = "void at::native::vectorized_elementwise_kernel<2, at::native::CUDAFunctorOnSelf_add<long>>"
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
    infers: Literal["in training mode", "in eval mode"] | None = None

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
        if self.infers is None:
            self._run_op(process, "aten::_fused_adam_", None, ADAM, 200.0)
        else:
            self._normalize_and_drop(process, trains=self.infers == "in training mode")
        process.synchronize()

    def _normalize_and_drop(self, process: SimulatedProcess, *, trains: bool) -> None:
        """Batch norm, and dropout, of twice two layers."""
        shapes = [[self.batch, 512, 7, 7], [512]]
        for _ in range(2):
            if trains:
                self._run_op(process, "aten::add_", [[]], COUNT, 2.0)
            with process.op("aten::batch_norm", shapes=shapes, dtype="float"):
                kernel, us = (NORM_OF_TRAINING, 90.0) if trains else (NORM_OF_INFERENCE, 60.0)
                self._run_op(process, "aten::cudnn_batch_norm", shapes, kernel, us)
            if trains:
                self._run_op(process, "aten::native_dropout", shapes, DROPOUT, 150.0)

    def _run_op(
        self, process: SimulatedProcess, name: str, shapes: list[object] | None, kernel: str, us: float
    ) -> None:
        with process.op(name, shapes=shapes if self.with_shapes else None, dtype="float"):
            process.kernel(kernel, us)
