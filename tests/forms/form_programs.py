"""For each form of forms.toml a piece of a program that it fits, in a size for tests and in one for measuring.

Each function gets a scale (1 for tests) and returns what a step of the program calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], Any]


def _p(*sizes: int) -> Tensor:
    """Numbers that a layer before it made: they need a gradient."""
    return torch.randn(*sizes, requires_grad=True)


def einsum_order(n: int) -> Step:
    q, k, v = _p(2, 2, 32 * n, 8), _p(2, 2, 32 * n, 8), _p(2, 2, 32 * n, 8)
    return lambda: torch.einsum("bhnd,bhmd,bhme->bhne", q, k, v)


def product_from_the_right(n: int) -> Step:
    a, b, c = _p(64 * n, 8), _p(8, 64 * n), _p(64 * n, 8)
    return lambda: a @ b @ c


def product_from_the_left(n: int) -> Step:
    a, b, c = _p(8, 64 * n), _p(64 * n, 8), _p(8, 64 * n)
    return lambda: torch.matmul(a, torch.matmul(b, c))


def product_and_sum(n: int) -> Step:
    x, y = _p(16 * n, 1, 32), _p(1, 16 * n, 32)
    return lambda: (x * y).sum(-1)


def pairwise_distances(n: int) -> Step:
    x, y = _p(32 * n, 16), _p(32 * n, 16)
    return lambda: torch.norm(x.unsqueeze(1) - y.unsqueeze(0), dim=2)


def pairwise_square_distances(n: int) -> Step:
    x, y = _p(32 * n, 16), _p(32 * n, 16)
    return lambda: ((x[:, None] - y[None]) ** 2).sum(-1)


def cosine_of_all_pairs(n: int) -> Step:
    x, y = _p(32 * n, 16), _p(32 * n, 16)
    return lambda: F.cosine_similarity(x.unsqueeze(1), y.unsqueeze(0), dim=-1)


def cdist_mode(n: int) -> Step:
    x, y = torch.rand(20 * n, 64), torch.rand(20 * n, 64)
    return lambda: torch.cdist(x, y)


def tiny_product(n: int) -> Step:
    a, b = _p(64 * n, 1, 16), _p(64 * n, 16, 1)
    return lambda: torch.bmm(a, b)


def linear_of_cat(n: int) -> Step:
    x, layer = _p(1, 16 * n, 32), nn.Linear(64, 32)
    return lambda: layer(torch.cat([x.expand(16, -1, -1), x.expand(16, -1, -1)], -1))


def product_of_cat(n: int) -> Step:
    x, y, weight = _p(256 * n, 32), _p(256 * n, 32), _p(64, 4)
    return lambda: torch.cat([x, y], 1) @ weight


def product_of_pairs(n: int) -> Step:
    x, weight, rows = _p(16 * n, 32), _p(64, 1), 16 * n
    return lambda: torch.cat([x.repeat_interleave(rows, dim=0), x.repeat(rows, 1)], dim=1) @ weight


def sparse_operand(n: int) -> Step:
    graph, x = (torch.rand(64 * n, 64 * n) < 0.01).float(), _p(64 * n, 32)
    return lambda: graph @ x


def batched_calls(n: int) -> Step:
    xs, weight = [_p(4, 16 * n) for _ in range(12)], _p(16 * n, 16 * n)
    return lambda: [x @ weight for x in xs]


def fused_attention(n: int) -> Step:
    q, k, v = _p(2, 2, 32 * n, 16), _p(2, 2, 32 * n, 16), _p(2, 2, 32 * n, 16)
    mask = torch.ones(32 * n, 32 * n).triu(1).bool()

    def attend() -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(16)
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        return weights @ v

    return attend


def fused_einsum_attention(n: int) -> Step:
    q, k, v = _p(2, 32 * n, 2, 16), _p(2, 32 * n, 2, 16), _p(2, 32 * n, 2, 16)

    def attend() -> Tensor:
        scores = torch.einsum("blhe,bshe->bhls", q, k)
        weights = torch.softmax(scores * 0.25, dim=-1)
        return torch.einsum("bhls,bshd->blhd", weights, v)

    return attend


def causal_flag(n: int) -> Step:
    q, k, v = _p(2, 2, 64 * n, 16), _p(2, 2, 64 * n, 16), _p(2, 2, 64 * n, 16)
    mask = torch.ones(64 * n, 64 * n, dtype=torch.bool).tril()
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def attention_without_weights(n: int) -> Step:
    attention, x = nn.MultiheadAttention(32, 2, batch_first=True), _p(2, 32 * n, 32)
    return lambda: attention(x, x, x)[0]


def _packed(layer: type[nn.RNNBase], n: int) -> Step:
    net, x = layer(16, 16, batch_first=True), _p(8, 16 * n, 16)
    lengths = torch.linspace(2, 16 * n, 8).long()

    def run() -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        output, _ = net(packed)
        return nn.utils.rnn.pad_packed_sequence(output, batch_first=True)[0]

    return run


def padded_lstm(n: int) -> Step:
    return _packed(nn.LSTM, n)


def padded_gru(n: int) -> Step:
    return _packed(nn.GRU, n)


def lstm_of_cells(n: int) -> Step:
    cell, xs = nn.LSTMCell(8 * n, 8 * n), _p(16, 4, 8 * n)

    def run() -> Tensor:
        h, c = torch.zeros(4, 8 * n), torch.zeros(4, 8 * n)
        outputs = []
        for x in xs.unbind(0):
            h, c = cell(x, (h, c))
            outputs.append(h)
        return torch.stack(outputs)

    return run


def gru_of_cells(n: int) -> Step:
    cell, xs = nn.GRUCell(8 * n, 8 * n), _p(16, 4, 8 * n)

    def run() -> Tensor:
        h = torch.zeros(4, 8 * n)
        outputs = []
        for x in xs.unbind(0):
            h = cell(x, h)
            outputs.append(h)
        return torch.stack(outputs)

    return run


def index_select(n: int) -> Step:
    x, index = _p(100 * n, 32), torch.randint(0, 100 * n, (200 * n,))
    return lambda: x[index]


def embedding_lookup(n: int) -> Step:
    x, index = _p(100 * n, 32), torch.randint(0, 100 * n, (8, 20 * n))
    return lambda: x[index]


def gather_rows(n: int) -> Step:
    x, index = _p(50 * n, 32), torch.randint(0, 50 * n, (80 * n,))
    return lambda: x.gather(0, index[:, None].expand(-1, 32))


def index_add(n: int) -> Step:
    src, index = _p(80 * n, 32), torch.randint(0, 50 * n, (80 * n,))
    return lambda: torch.zeros(50 * n, 32).scatter_add(0, index[:, None].expand(-1, 32), src)


def index_add_of_put(n: int) -> Step:
    src, index = torch.randn(80 * n, 32), torch.randint(0, 50 * n, (80 * n,))
    return lambda: torch.zeros(50 * n, 32).index_put_((index,), src, accumulate=True)


def lookup_of_one_hot(n: int) -> Step:
    weight, index = _p(50 * n, 32), torch.randint(0, 50 * n, (64,))
    return lambda: F.one_hot(index, 50 * n).float() @ weight


def linear_of_one_hot(n: int) -> Step:
    layer, index = nn.Linear(50 * n, 32), torch.randint(0, 50 * n, (64,))
    return lambda: layer(F.one_hot(index, 50 * n).float())


def count_of_one_hot(n: int) -> Step:
    index = torch.randint(0, 50, (500 * n,))
    return lambda: F.one_hot(index, 50).sum(dim=0)


def embedding_bag(n: int) -> Step:
    table, index = nn.Embedding(200 * n, 32), torch.randint(0, 200 * n, (16 * n, 20))
    return lambda: table(index).mean(dim=1)


def renormalised_rows(n: int) -> Step:
    table, index = nn.Embedding(100 * n, 32, max_norm=1.0), torch.randint(0, 100 * n, (100 * n,))
    return lambda: table(index)


def unique_rows(n: int) -> Step:
    x = torch.randint(0, 20, (500 * n, 3))
    return lambda: torch.unique(x, dim=0)


def membership_table(n: int) -> Step:
    x, y = torch.randint(0, 5000, (500 * n,)), torch.randint(0, 5000, (300 * n,))
    return lambda: torch.isin(x, y)


def topk_of_sort(n: int) -> Step:
    x = torch.rand(8 * n, 500)
    return lambda: torch.sort(x, dim=1, descending=True)[0][:, :5]


def topk_of_argsort(n: int) -> Step:
    x = torch.rand(8 * n, 500)
    return lambda: torch.argsort(x, dim=1, descending=True)[:, :5]


def masked_sum(n: int) -> Step:
    x, mask = torch.rand(200 * n, 50), torch.rand(200 * n, 50) < 0.5
    return lambda: x[mask].sum()


def quantile_of_one(n: int) -> Step:
    x = torch.rand(16 * n, 1000)
    return lambda: torch.quantile(x, 0.9, dim=1)


def other_axis(n: int) -> Step:
    x = _p(8 * n, 64, 64)
    return lambda: F.softmax(x, dim=1)


def expand_of_repeat(n: int) -> Step:
    x, shift = _p(64 * n, 64), _p(1, 64)
    return lambda: x + shift.repeat(64 * n, 1)


def stack_and_sum(n: int) -> Step:
    parts = [_p(64 * n, 32) for _ in range(6)]
    return lambda: torch.stack(parts).sum(0)


def channels_last(n: int) -> Step:
    conv, x = nn.Conv2d(16, 16, 3, padding=1), _p(2, 16, 8 * n, 8 * n)
    return lambda: conv(x)


def linear_of_pointwise(n: int) -> Step:
    conv, x = nn.Conv1d(32, 32, 1), _p(4, 32, 32 * n)
    return lambda: conv(x)


def convolution_by_fft(n: int) -> Step:
    x, weight = _p(2, 4, 256 * n), _p(4, 4, 128)
    return lambda: F.conv1d(x, weight, padding=64)


def padding_in_convolution(n: int) -> Step:
    conv, x = nn.Conv2d(8, 8, 3), _p(2, 8, 8 * n, 8 * n)
    return lambda: conv(F.pad(x, (1, 1, 1, 1)))


def whole_mean(n: int) -> Step:
    x = _p(4, 32, 8 * n, 8 * n)
    return lambda: F.adaptive_avg_pool2d(x, 1)


def pool_of_windows(n: int) -> Step:
    x = _p(4, 16, 64 * n)
    return lambda: x.unfold(-1, 8, 4).mean(-1)


def nearest_by_expand(n: int) -> Step:
    x = _p(2, 8, 8 * n, 8 * n)
    return lambda: F.interpolate(x, scale_factor=2, mode="nearest")


def layer_norm(n: int) -> Step:
    x, w, b = _p(32 * n, 64), _p(64), _p(64)

    def norm() -> Tensor:
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(var + 1e-5) * w + b

    return norm


def rms_norm(n: int) -> Step:
    x, w = _p(32 * n, 64), _p(64)
    return lambda: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def gelu_tanh(n: int) -> Step:
    x = _p(32 * n, 64)
    return lambda: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def gelu_erf(n: int) -> Step:
    x = _p(32 * n, 64)
    return lambda: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def silu(n: int) -> Step:
    x = _p(32 * n, 64)
    return lambda: x * torch.sigmoid(x)


def softplus(n: int) -> Step:
    x = _p(32 * n, 64)
    return lambda: torch.log(1 + torch.exp(x))


def mish(n: int) -> Step:
    x = _p(32 * n, 64)
    return lambda: x * torch.tanh(F.softplus(x))


def log_softmax(n: int) -> Step:
    x = _p(32 * n, 64)
    return lambda: torch.log(F.softmax(x, dim=-1))


def logsumexp(n: int) -> Step:
    x = _p(32 * n, 64)
    return lambda: torch.log(torch.exp(x).sum(-1))


def loss_of_one_hot(n: int) -> Step:
    x, target = _p(32 * n, 64), torch.randint(0, 64, (32 * n,))
    return lambda: -(F.one_hot(target, 64).float() * F.log_softmax(x, dim=-1)).sum(-1).mean()


def loss_by_rows(n: int) -> Step:
    x, target = _p(4, 64, 16 * n), torch.randint(0, 64, (4, 16 * n))
    return lambda: F.cross_entropy(x, target)


def loss_of_logits(n: int) -> Step:
    x, y = _p(32 * n, 64), torch.rand(32 * n, 64)
    return lambda: F.binary_cross_entropy(torch.sigmoid(x), y)


def normalize(n: int) -> Step:
    x = _p(32 * n, 64)
    return lambda: x / x.norm(p=2, dim=-1, keepdim=True)


def vector_norm(n: int) -> Step:
    x = _p(32 * n, 64)
    return lambda: x.pow(2).sum(-1).sqrt()


def mse_loss(n: int) -> Step:
    x, y = _p(32 * n, 64), torch.rand(32 * n, 64)
    return lambda: ((x - y) ** 2).mean()


def l1_loss(n: int) -> Step:
    x, y = _p(32 * n, 64), torch.rand(32 * n, 64)
    return lambda: (x - y).abs().mean()


def power_by_products(n: int) -> Step:
    x = _p(32 * n, 64)
    return lambda: x**5


def power_of_number(n: int) -> Step:
    x = _p(32 * n, 64)
    return lambda: 2.0**x


def lerp(n: int) -> Step:
    x, y = torch.rand(32 * n, 64), torch.rand(32 * n, 64)
    return lambda: x * 0.9 + y * 0.1


def add_scaled(n: int) -> Step:
    x, y = _p(32 * n, 64), _p(32 * n, 64)
    return lambda: x + 0.1 * y


def square_of_abs(n: int) -> Step:
    x = torch.randn(32 * n, 64, dtype=torch.complex64)
    return lambda: x.abs() ** 2


def solve(n: int) -> Step:
    a, b = torch.eye(16 * n) + 0.01 * torch.randn(16 * n, 16 * n), _p(16 * n, 4)
    return lambda: torch.linalg.inv(a) @ b


def singular_values(n: int) -> Step:
    a = torch.randn(16 * n, 16 * n)
    return lambda: torch.linalg.svd(a)[1].sum()


def eigenvalues(n: int) -> Step:
    a = torch.randn(16 * n, 16 * n)
    a = a + a.T
    return lambda: torch.linalg.eigh(a)[0].sum()


def log_determinant(n: int) -> Step:
    a = torch.eye(8) * 2
    return lambda: torch.log(torch.linalg.det(a.expand(16 * n, 8, 8)))


def real_transform(n: int) -> Step:
    x = torch.randn(8 * n, 1000)
    return lambda: torch.fft.fft(x)


def transform_length(n: int) -> Step:
    x = torch.randn(8 * n, 1009)
    return lambda: torch.fft.rfft(x)


def contiguous_inputs(n: int) -> Step:
    layer, x = nn.LayerNorm(64), _p(4, 64, 32 * n)
    return lambda: layer(x.transpose(1, 2))


def float32(n: int) -> Step:
    x, y = torch.rand(64 * n, 64, dtype=torch.float64), torch.rand(64, 64, dtype=torch.float64)
    return lambda: x @ y


def bfloat16(n: int) -> Step:
    layer, x = nn.Linear(64, 64), _p(64 * n, 64)
    return lambda: layer(x)


PROGRAMS: dict[str, Callable[[int], Step]] = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_") and name != "Step"
}
"""By the form that it is for, in the order of forms.toml."""
