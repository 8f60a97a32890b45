"""What the simulated process trains: a small transformer language model or a ResNet-18, op by op.

`forward` remembers what backward has to do, as autograd does: `backward` plays it in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import gpu_kernels as k
from simulation import Machine

_NODE = "autograd::engine::evaluate_function: "


@dataclass(slots=True)
class Network:
    """A network that runs on a machine: what transformers and convolutional networks share."""

    machine: Machine
    gpu: k.Gpu
    dtype: str
    backward_steps: list[Callable[[], None]] = field(default_factory=list)

    def later(self, node: str, run: Callable[[], None]) -> None:
        """Have backward run a node of the graph."""

        def step() -> None:
            with self.machine.op(_NODE + node, 4.0), self.machine.op(node, 4.0):
                run()

        self.backward_steps.append(step)

    def backward(self) -> None:
        """Play back what forward remembered."""
        for step in reversed(self.backward_steps):
            step()
        self.backward_steps.clear()

    def pointwise(self, op: str, kernel: str, size_bytes: float) -> None:
        """An op that launches one kernel bound by memory traffic."""
        with self.machine.op(op, 9.0):
            self.machine.kernel(kernel, self.gpu.stream_us(size_bytes))

    def product(self, op: str, layout: str, m: int, n: int, depth: int) -> None:
        """A matrix product of (m, depth) and (depth, n)."""
        shapes = [[m, depth], [depth, n]]
        if op == "aten::addmm":
            shapes = [[n], *shapes]
        with self.machine.op(op, 13.0, shapes, self.dtype):
            us = self.gpu.matrix_us(2.0 * m * n * depth, self.dtype)
            self.machine.kernel(self.gpu.gemm[self.dtype].format(layout=layout), us)

    def linear(self, inputs: int, outputs: int, rows: int, module: str) -> None:
        """A linear layer over so many rows."""
        m, size = self.machine, k.BYTES[self.dtype]
        with m.frame(f"nn.Module: {module}", "torch/nn/modules/linear.py(130): forward"):
            shapes = [[rows, inputs], [outputs, inputs], [outputs]]
            with m.op("aten::linear", 6.0, shapes, self.dtype):
                m.ops("aten::t")
                self.product("aten::addmm", "tn", rows, outputs, inputs)

        def run() -> None:
            m.ops("aten::t")
            self.product("aten::mm", "nn", rows, inputs, outputs)
            m.ops("aten::t")
            self.product("aten::mm", "nt", outputs, inputs, rows)
            self.pointwise("aten::sum", k.SUM.format(t=self.dtype), rows * outputs * size)

        self.later("AddmmBackward0", run)

    def loss(self, rows: int, classes: int, place: str) -> None:
        """Cross entropy and its gradient."""
        m, size = self.machine, rows * classes * k.BYTES[self.dtype]
        with m.frame(place, "torch/nn/functional.py(3455): cross_entropy"), m.op("aten::cross_entropy_loss", 6.0):
            with m.op("aten::log_softmax"):
                self.pointwise("aten::_log_softmax", k.LOG_SOFTMAX.format(way="Forward", t=self.dtype), 2 * size)
            with m.op("aten::nll_loss_nd"):
                self.pointwise("aten::nll_loss_forward", k.NLL.format(way="forward", t=self.dtype), rows * 16)
        softmax = k.LOG_SOFTMAX.format(way="Backward", t=self.dtype)
        nll = k.NLL.format(way="backward", t=self.dtype)
        self.later("LogSoftmaxBackward0", lambda: self.pointwise("aten::_log_softmax_backward_data", softmax, 3 * size))
        self.later("NllLossBackward0", lambda: self.pointwise("aten::nll_loss_backward", nll, size))

    def update(self, optimizer: str, kernel: str, weights: int, bytes_a_weight: int) -> None:
        """The optimizer's step over all weights, fused."""
        m, name = self.machine, optimizer.lower()
        where = f"torch/optim/{name}.py(200): step"
        with m.frame(where), m.annotation(f"Optimizer.step#{optimizer}.step"):
            m.work(60.0)
            with m.op(f"aten::_fused_{name}_", 30.0):
                for _ in range(2):
                    m.kernel(kernel.format(t="float"), self.gpu.stream_us(weights * bytes_a_weight / 2))


@dataclass(slots=True)
class Transformer(Network):
    """A decoder with `layers` blocks over `tokens` tokens a step, in sequences of `length`."""

    tokens: int = 8192
    length: int = 512
    layers: int = 4
    width: int = 768
    vocabulary: int = 8192
    before_block: Callable[[int], None] = lambda _: None
    gradients_ready: Callable[[], None] = lambda: None  # backward calls it when the gradients of a bucket are there
    bucket_layers: int = 2

    @property
    def weights(self) -> int:
        """Number of parameters."""
        return self.layers * 12 * self.width**2 + 2 * self.vocabulary * self.width

    def forward(self) -> None:
        """From token ids to logits."""
        m, size = self.machine, self._bytes(self.width)
        with m.frame("nn.Module: TinyGPT_0", "model.py(71): forward"):
            self.backward_steps.append(self.gradients_ready)
            self._embed()
            for layer in range(self.layers):
                self.before_block(layer)
                if layer % self.bucket_layers == 0:
                    self.backward_steps.append(self.gradients_ready)
                with m.frame(f"nn.Module: Block_{layer}", "model.py(42): forward"):
                    self._block(layer, size)
            self._norm(2 * self.layers)
            self.linear(self.width, self.vocabulary, self.tokens, f"Linear_{4 * self.layers}")

    def step(self) -> None:
        """AdamW over all weights: reads weight, gradient and two moments, writes three of them."""
        self.update("AdamW", k.ADAM, self.weights, 7 * 4)

    def _bytes(self, features: int) -> int:
        return self.tokens * features * k.BYTES[self.dtype]

    def _block(self, layer: int, size: int) -> None:
        self._norm(2 * layer)
        with self.machine.frame(f"nn.Module: Attention_{layer}", "model.py(21): forward"):
            self.linear(self.width, 3 * self.width, self.tokens, f"Linear_{4 * layer}")
            self._attention()
            self.linear(self.width, self.width, self.tokens, f"Linear_{4 * layer + 1}")
        self.pointwise("aten::add", k.add(self.dtype), 3 * size)
        self._norm(2 * layer + 1)
        self.linear(self.width, 4 * self.width, self.tokens, f"Linear_{4 * layer + 2}")
        self._gelu(4 * size)
        self.linear(4 * self.width, self.width, self.tokens, f"Linear_{4 * layer + 3}")
        self.pointwise("aten::add", k.add(self.dtype), 3 * size)

    def _embed(self) -> None:
        size = self._bytes(self.width)
        with (
            self.machine.frame("nn.Module: Embedding_0", "torch/nn/modules/sparse.py(190): forward"),
            self.machine.op("aten::embedding"),
        ):
            self.pointwise("aten::index_select", k.EMBEDDING.format(t=self.dtype), 2 * size)
        name = k.EMBEDDING_BACKWARD.format(t=self.dtype)
        self.later("EmbeddingBackward0", lambda: self.pointwise("aten::embedding_dense_backward", name, 3 * size))

    def _norm(self, number: int) -> None:
        m, size, dtype = self.machine, self._bytes(self.width), self.dtype
        with (
            m.frame(f"nn.Module: LayerNorm_{number}", "torch/nn/modules/normalization.py(222): forward"),
            m.op("aten::layer_norm", 6.0),
        ):
            self.pointwise("aten::native_layer_norm", k.LAYER_NORM.format(t=dtype), 2 * size)

        def run() -> None:
            with m.op("aten::native_layer_norm_backward", 10.0):
                m.kernel(k.LAYER_NORM_INPUT.format(t=dtype), self.gpu.stream_us(3 * size))
                m.kernel(k.LAYER_NORM_WEIGHT.format(t=dtype), self.gpu.stream_us(2 * size))

        self.later("NativeLayerNormBackward0", run)

    def _gelu(self, size: int) -> None:
        self.pointwise("aten::gelu", k.activation("Gelu", self.dtype), 2 * size)
        name = k.activation("Gelu", self.dtype, backward=True)
        self.later("GeluBackward0", lambda: self.pointwise("aten::gelu_backward", name, 3 * size))

    def _attention(self) -> None:
        m, flash = self.machine, self.dtype == k.BF16
        # Attention reaches half of what plain products do; the causal half of the scores is left out.
        us = self.gpu.matrix_us(4.0 * self.tokens * self.length * self.width, self.dtype)
        way = "flash" if flash else "efficient"
        with (
            m.op("aten::scaled_dot_product_attention", 8.0),
            m.op(f"aten::_scaled_dot_product_{way}_attention", 6.0),
            m.op(f"aten::_{way}_attention_forward", 12.0),
        ):
            m.kernel(k.FLASH_FORWARD if flash else k.FMHA_FORWARD, us)

        def run() -> None:
            with m.op(f"aten::_{way}_attention_backward", 16.0):
                for name, share in zip(
                    k.FLASH_BACKWARD if flash else (k.FMHA_BACKWARD,), (0.1, 2.3, 0.1) if flash else (2.5,), strict=True
                ):
                    m.kernel(name, us * share)

        self.later(f"ScaledDotProduct{way.title()}AttentionBackward0", run)


@dataclass(slots=True)
class ResNet(Network):
    """ResNet-18 on images of 224 x 224."""

    images: int = 64
    weights: int = 11_689_512

    def forward(self) -> None:
        """From images to logits."""
        with self.machine.frame("nn.Module: ResNet_0", "resnet.py(66): forward"):
            self._convolution(3, 64, 112, 7, first=True)
            self._norm_relu(64, 112)
            self.pointwise("aten::max_pool2d", k.MAX_POOL.format(way="forward"), self._bytes(64, 112))
            inputs = 64
            for number, (outputs, side) in enumerate(((64, 56), (128, 28), (256, 14), (512, 7))):
                for half in range(2):
                    self._block(2 * number + half, inputs, outputs, side)
                    inputs = outputs
            self.pointwise("aten::mean", k.SUM.format(t=self.dtype), self._bytes(512, 7))
            self.linear(512, 1000, self.images, "Linear_0")

    def step(self) -> None:
        """SGD with momentum: reads weight, gradient and momentum, writes two of them."""
        self.update("SGD", k.SGD, self.weights, 5 * 4)

    def _bytes(self, channels: int, side: int) -> int:
        return self.images * channels * side * side * k.BYTES[self.dtype]

    def _block(self, number: int, inputs: int, outputs: int, side: int) -> None:
        with self.machine.frame(f"nn.Module: BasicBlock_{number}", "resnet.py(35): forward"):
            self._convolution(inputs, outputs, side, 3)
            self._norm_relu(outputs, side)
            self._convolution(outputs, outputs, side, 3)
            if inputs != outputs:
                self._convolution(inputs, outputs, side, 1)
            self.pointwise("aten::add_", k.add(self.dtype), 3 * self._bytes(outputs, side))
            self._norm_relu(outputs, side)

    def _convolution(self, inputs: int, outputs: int, side: int, width: int, first: bool = False) -> None:
        m = self.machine
        us = self.gpu.matrix_us(2.0 * self.images * inputs * outputs * (side * width) ** 2, self.dtype)
        shapes = [[self.images, inputs, side, side], [outputs, inputs, width, width]]
        with (
            m.frame("nn.Module: Conv2d_0", "torch/nn/modules/conv.py(548): forward"),
            m.op("aten::conv2d", 5.0, shapes, self.dtype),
            m.op("aten::convolution", 5.0),
            m.op("aten::cudnn_convolution", 22.0),
        ):
            m.kernel(k.CONVOLUTION, us)

        def run() -> None:
            with m.op("aten::convolution_backward", 30.0):
                if not first:
                    m.kernel(k.CONVOLUTION_INPUT, 1.05 * us)
                m.kernel(k.CONVOLUTION_WEIGHT, 1.1 * us)

        self.later("ConvolutionBackward0", run)

    def _norm_relu(self, channels: int, side: int) -> None:
        m, size = self.machine, self._bytes(channels, side)
        with (
            m.frame("nn.Module: BatchNorm2d_0", "torch/nn/modules/batchnorm.py(158): forward"),
            m.op("aten::batch_norm", 5.0),
        ):
            self.pointwise("aten::cudnn_batch_norm", k.BATCH_NORM, 2.5 * size)
        self.pointwise("aten::clamp_min_", k.activation("Relu", self.dtype), 2 * size)
        name = k.BATCH_NORM_BACKWARD
        relu = k.activation("Relu", self.dtype, backward=True)
        self.later("CudnnBatchNormBackward0", lambda: self.pointwise("aten::cudnn_batch_norm_backward", name, 4 * size))
        self.later("ReluBackward0", lambda: self.pointwise("aten::threshold_backward", relu, 3 * size))
