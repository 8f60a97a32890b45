"""The networks that the simulated process trains: a small transformer language model and a ResNet-18, op by op.

`forward` remembers what backward has to do, as autograd does. `backward` runs that in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import gpu_kernels as k

from perfdoctor.testing import SimulatedProcess

_NODE = "autograd::engine::evaluate_function: "


@dataclass(slots=True)
class Network:
    """A network that runs in a process: what transformers and convolutional networks share."""

    process: SimulatedProcess
    gpu: k.Gpu
    dtype: str
    backward_nodes: list[Callable[[], None]] = field(default_factory=list)

    def on_backward(self, node: str, run: Callable[[], None]) -> None:
        """Have backward run a node of the graph."""

        def run_node() -> None:
            with self.process.op(_NODE + node, 4.0), self.process.op(node, 4.0):
                run()

        self.backward_nodes.append(run_node)

    def backward(self) -> None:
        """Run what forward remembered, the last first."""
        for run_node in reversed(self.backward_nodes):
            run_node()
        self.backward_nodes.clear()

    def pointwise(self, op: str, kernel: str, size_bytes: float) -> None:
        """An op that launches one kernel bound by memory traffic."""
        with self.process.op(op, 9.0):
            self.process.kernel(kernel, self.gpu.stream_us(size_bytes))

    def product(self, op: str, layout: str, m: int, n: int, depth: int) -> None:
        """A matrix product of (m, depth) and (depth, n)."""
        shapes = [[m, depth], [depth, n]]
        if op == "aten::addmm":
            shapes = [[n], *shapes]
        with self.process.op(op, 13.0, shapes, self.dtype):
            us = self.gpu.matrix_us(2.0 * m * n * depth, self.dtype)
            self.process.kernel(self.gpu.gemm[self.dtype].format(layout=layout), us)

    def linear(self, inputs: int, outputs: int, rows: int, module: str) -> None:
        """A linear layer over so many rows."""
        p, item_bytes = self.process, k.BYTES[self.dtype]
        with p.frame(f"nn.Module: {module}", "torch/nn/modules/linear.py(130): forward"):
            shapes = [[rows, inputs], [outputs, inputs], [outputs]]
            with p.op("aten::linear", 6.0, shapes, self.dtype):
                p.ops("aten::t")
                self.product("aten::addmm", "tn", rows, outputs, inputs)

        def run() -> None:
            p.ops("aten::t")
            self.product("aten::mm", "nn", rows, inputs, outputs)
            p.ops("aten::t")
            self.product("aten::mm", "nt", outputs, inputs, rows)
            self.pointwise("aten::sum", k.SUM.format(t=self.dtype), rows * outputs * item_bytes)

        self.on_backward("AddmmBackward0", run)

    def loss(self, rows: int, classes: int, frame: str) -> None:
        """Cross entropy and its gradient, in a function of the user."""
        p, size = self.process, rows * classes * k.BYTES[self.dtype]
        with p.frame(frame, "torch/nn/functional.py(3455): cross_entropy"), p.op("aten::cross_entropy_loss", 6.0):
            with p.op("aten::log_softmax"):
                self.pointwise("aten::_log_softmax", k.LOG_SOFTMAX.format(way="Forward", t=self.dtype), 2 * size)
            with p.op("aten::nll_loss_nd"):
                self.pointwise("aten::nll_loss_forward", k.NLL.format(way="forward", t=self.dtype), rows * 16)
        softmax = k.LOG_SOFTMAX.format(way="Backward", t=self.dtype)
        nll = k.NLL.format(way="backward", t=self.dtype)
        self.on_backward(
            "LogSoftmaxBackward0", lambda: self.pointwise("aten::_log_softmax_backward_data", softmax, 3 * size)
        )
        self.on_backward("NllLossBackward0", lambda: self.pointwise("aten::nll_loss_backward", nll, size))

    def update(self, optimizer: str, kernel: str, weights: int, bytes_per_weight: int) -> None:
        """The optimizer's step over all weights, fused."""
        p, name = self.process, optimizer.lower()
        frame = f"torch/optim/{name}.py(200): step"
        with p.frame(frame), p.annotation(f"Optimizer.step#{optimizer}.step"):
            p.run_cpu(60.0)
            with p.op(f"aten::_fused_{name}_", 30.0):
                for _ in range(2):
                    p.kernel(kernel.format(t="float"), self.gpu.stream_us(weights * bytes_per_weight / 2))


@dataclass(slots=True)
class Transformer(Network):
    """A decoder with `layers` blocks over `tokens` tokens a step, in sequences of `length`."""

    tokens: int = 8192
    length: int = 512
    layers: int = 4
    width: int = 768
    vocabulary: int = 8192
    before_block: Callable[[int], None] = lambda _: None
    gradients_ready: Callable[[], None] = lambda: None  # backward calls it when all gradients of a bucket are ready
    layers_per_bucket: int = 2

    @property
    def weights(self) -> int:
        """Number of parameters."""
        return self.layers * 12 * self.width**2 + 2 * self.vocabulary * self.width

    def forward(self) -> None:
        """From token ids to logits."""
        p, size = self.process, self._bytes(self.width)
        with p.frame("nn.Module: TinyGPT_0", "model.py(71): forward"):
            self.backward_nodes.append(self.gradients_ready)
            self._embed()
            for layer in range(self.layers):
                self.before_block(layer)
                if layer % self.layers_per_bucket == 0:
                    self.backward_nodes.append(self.gradients_ready)
                with p.frame(f"nn.Module: Block_{layer}", "model.py(42): forward"):
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
        with self.process.frame(f"nn.Module: Attention_{layer}", "model.py(21): forward"):
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
            self.process.frame("nn.Module: Embedding_0", "torch/nn/modules/sparse.py(190): forward"),
            self.process.op("aten::embedding"),
        ):
            self.pointwise("aten::index_select", k.EMBEDDING.format(t=self.dtype), 2 * size)
        name = k.EMBEDDING_BACKWARD.format(t=self.dtype)
        self.on_backward("EmbeddingBackward0", lambda: self.pointwise("aten::embedding_dense_backward", name, 3 * size))

    def _norm(self, number: int) -> None:
        p, size, dtype = self.process, self._bytes(self.width), self.dtype
        with (
            p.frame(f"nn.Module: LayerNorm_{number}", "torch/nn/modules/normalization.py(222): forward"),
            p.op("aten::layer_norm", 6.0),
        ):
            self.pointwise("aten::native_layer_norm", k.LAYER_NORM.format(t=dtype), 2 * size)

        def run() -> None:
            with p.op("aten::native_layer_norm_backward", 10.0):
                p.kernel(k.LAYER_NORM_INPUT.format(t=dtype), self.gpu.stream_us(3 * size))
                p.kernel(k.LAYER_NORM_WEIGHT.format(t=dtype), self.gpu.stream_us(2 * size))

        self.on_backward("NativeLayerNormBackward0", run)

    def _gelu(self, size: int) -> None:
        self.pointwise("aten::gelu", k.activation("Gelu", self.dtype), 2 * size)
        name = k.activation("Gelu", self.dtype, backward=True)
        self.on_backward("GeluBackward0", lambda: self.pointwise("aten::gelu_backward", name, 3 * size))

    def _attention(self) -> None:
        p, flash = self.process, self.dtype == k.BF16
        # Attention reaches half of the rate of plain products, and causal attention computes half of the scores.
        us = self.gpu.matrix_us(4.0 * self.tokens * self.length * self.width, self.dtype)
        variant = "flash" if flash else "efficient"
        with (
            p.op("aten::scaled_dot_product_attention", 8.0),
            p.op(f"aten::_scaled_dot_product_{variant}_attention", 6.0),
            p.op(f"aten::_{variant}_attention_forward", 12.0),
        ):
            p.kernel(k.FLASH_FORWARD if flash else k.FMHA_FORWARD, us)

        def run() -> None:
            with p.op(f"aten::_{variant}_attention_backward", 16.0):
                names, times = (k.FLASH_BACKWARD, (0.1, 2.3, 0.1)) if flash else ((k.FMHA_BACKWARD,), (2.5,))
                for name, forward_times in zip(names, times, strict=True):
                    p.kernel(name, us * forward_times)

        self.on_backward(f"ScaledDotProduct{variant.title()}AttentionBackward0", run)


@dataclass(slots=True)
class ResNet(Network):
    """ResNet-18 on images of 224 x 224."""

    images: int = 64
    weights: int = 11_689_512

    def forward(self) -> None:
        """From images to logits."""
        with self.process.frame("nn.Module: ResNet_0", "resnet.py(66): forward"):
            self._convolution(3, 64, 112, 7, first=True)
            self._norm_relu(64, 112)
            self.pointwise("aten::max_pool2d", k.MAX_POOL.format(way="forward"), self._bytes(64, 112))
            inputs = 64
            for number, (outputs, side) in enumerate(((64, 56), (128, 28), (256, 14), (512, 7))):
                for i in range(2):
                    self._block(2 * number + i, inputs, outputs, side)
                    inputs = outputs
            self.pointwise("aten::mean", k.SUM.format(t=self.dtype), self._bytes(512, 7))
            self.linear(512, 1000, self.images, "Linear_0")

    def step(self) -> None:
        """SGD with momentum: reads weight, gradient and momentum, writes two of them."""
        self.update("SGD", k.SGD, self.weights, 5 * 4)

    def _bytes(self, channels: int, side: int) -> int:
        return self.images * channels * side * side * k.BYTES[self.dtype]

    def _block(self, number: int, inputs: int, outputs: int, side: int) -> None:
        with self.process.frame(f"nn.Module: BasicBlock_{number}", "resnet.py(35): forward"):
            self._convolution(inputs, outputs, side, 3)
            self._norm_relu(outputs, side)
            self._convolution(outputs, outputs, side, 3)
            if inputs != outputs:
                self._convolution(inputs, outputs, side, 1)
            self.pointwise("aten::add_", k.add(self.dtype), 3 * self._bytes(outputs, side))
            self._norm_relu(outputs, side)

    def _convolution(self, inputs: int, outputs: int, side: int, width: int, first: bool = False) -> None:
        p = self.process
        us = self.gpu.matrix_us(2.0 * self.images * inputs * outputs * (side * width) ** 2, self.dtype)
        shapes = [[self.images, inputs, side, side], [outputs, inputs, width, width]]
        with (
            p.frame("nn.Module: Conv2d_0", "torch/nn/modules/conv.py(548): forward"),
            p.op("aten::conv2d", 5.0, shapes, self.dtype),
            p.op("aten::convolution", 5.0),
            p.op("aten::cudnn_convolution", 22.0),
        ):
            p.kernel(k.CONVOLUTION, us)

        def run() -> None:
            with p.op("aten::convolution_backward", 30.0):
                if not first:
                    p.kernel(k.CONVOLUTION_INPUT, 1.05 * us)
                p.kernel(k.CONVOLUTION_WEIGHT, 1.1 * us)

        self.on_backward("ConvolutionBackward0", run)

    def _norm_relu(self, channels: int, side: int) -> None:
        p, size = self.process, self._bytes(channels, side)
        with (
            p.frame("nn.Module: BatchNorm2d_0", "torch/nn/modules/batchnorm.py(158): forward"),
            p.op("aten::batch_norm", 5.0),
        ):
            self.pointwise("aten::cudnn_batch_norm", k.BATCH_NORM, 2.5 * size)
        self.pointwise("aten::clamp_min_", k.activation("Relu", self.dtype), 2 * size)
        name = k.BATCH_NORM_BACKWARD
        relu = k.activation("Relu", self.dtype, backward=True)
        self.on_backward(
            "CudnnBatchNormBackward0", lambda: self.pointwise("aten::cudnn_batch_norm_backward", name, 4 * size)
        )
        self.on_backward("ReluBackward0", lambda: self.pointwise("aten::threshold_backward", relu, 3 * size))
