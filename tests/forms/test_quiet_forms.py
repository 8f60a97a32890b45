"""What looks like the other form and is not: no match, or refused by its results."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from perfdoctor.forms.match_forms import find_matches
from perfdoctor.forms.process.measure_cases import RefusedError
from tests.forms.test_forms import measure_match, record

Step = Callable[[], Any]


def _p(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=True)


def of_two_operands() -> Step:
    return lambda: torch.einsum("bij,bjk->bik", _p(2, 8, 8), _p(2, 8, 8))


def whose_product_is_read() -> Step:
    a, b, c = _p(64, 8), _p(8, 64), _p(64, 8)

    def step() -> Any:
        first = a @ b
        return first @ c, first.exp()

    return step


def without_broadcast_rows() -> Step:
    x, y = _p(16, 8), _p(16, 8)
    return lambda: ((x - y) ** 2).sum(-1)


def of_rows_one_by_one() -> Step:
    x, y = _p(16, 8), _p(16, 8)
    return lambda: F.cosine_similarity(x, y, dim=-1)


def of_dense_numbers() -> Step:
    x, y = torch.rand(64, 64), _p(64, 8)
    return lambda: x @ y


def each_after_the_other() -> Step:
    weight = _p(16, 16)

    def step() -> Any:
        x = torch.ones(4, 16)
        for _ in range(12):
            x = x @ weight
        return x

    return step


def few_calls() -> Step:
    xs, weight = [_p(4, 16) for _ in range(4)], _p(16, 16)
    return lambda: [x @ weight for x in xs]


def with_dropout() -> Step:
    q, k, v = _p(2, 2, 32, 16), _p(2, 2, 32, 16), _p(2, 2, 32, 16)
    return lambda: F.dropout((q @ k.transpose(-2, -1) / 4).softmax(-1), 0.5) @ v


def whose_weights_are_read() -> Step:
    q, k, v = _p(2, 2, 32, 16), _p(2, 2, 32, 16), _p(2, 2, 32, 16)

    def step() -> Any:
        weights = (q @ k.transpose(-2, -1) / 4).softmax(-1)
        return weights @ v, weights.mean()

    return step


def over_another_axis() -> Step:
    q, k, v = _p(2, 2, 32, 16), _p(2, 2, 32, 16), _p(2, 2, 32, 16)
    return lambda: (q @ k.transpose(-2, -1) / 4).softmax(1) @ v


def with_a_mask_of_padding() -> Step:
    q, mask = _p(2, 2, 64, 16), torch.rand(64, 64) < 0.9
    return lambda: F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def whose_attention_is_read() -> Step:
    attention, x = nn.MultiheadAttention(32, 2, batch_first=True), _p(2, 32, 32)

    def step() -> Any:
        output, weights = attention(x, x, x)
        return output, weights.sum()

    return step


def whose_state_is_read() -> Step:
    net, x = nn.GRU(16, 16, batch_first=True), _p(8, 16, 16)

    def step() -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.arange(9, 17), batch_first=True, enforce_sorted=False)
        return net(packed)[1].sum(-1)

    return step


def of_a_whole_batch() -> Step:
    cell, x = nn.LSTMCell(8, 8), _p(4, 8)
    return lambda: cell(x)


def by_a_slice() -> Step:
    x = _p(100, 32)
    return lambda: x[10:50]


def by_flags() -> Step:
    x, mask = _p(100, 32), torch.rand(100) < 0.5
    return lambda: x[mask]


def of_two_axes() -> Step:
    x, i = _p(100, 32), torch.randint(0, 32, (20,))
    return lambda: x[i, i]


def with_an_index_for_each_number() -> Step:
    x, index = _p(50, 32), torch.randint(0, 50, (80, 32))
    return lambda: x.gather(0, index)


def of_the_end_of_a_sort() -> Step:
    x = torch.rand(8, 500)
    return lambda: torch.sort(x, dim=1)[0][:, 100:200]


def whose_sort_is_read() -> Step:
    x = torch.rand(8, 500)

    def step() -> Any:
        ordered = torch.sort(x, dim=1)[0]
        return ordered[:, :5], ordered.sum()

    return step


def along_the_last_axis() -> Step:
    x = _p(8, 64, 64)
    return lambda: F.softmax(x, dim=-1)


def that_fills_every_axis() -> Step:
    x, y = _p(64, 64), _p(2, 64)
    return lambda: x + y.repeat(32, 1)


def of_size_three() -> Step:
    conv, x = nn.Conv1d(32, 32, 3, padding=1), _p(4, 32, 32)
    return lambda: conv(x)


def that_pads_one_side() -> Step:
    conv, x = nn.Conv1d(8, 8, 3), _p(2, 8, 32)
    return lambda: conv(F.pad(x, (2, 0)))


def with_the_unbiased_variance() -> Step:
    x = _p(32, 8)
    return lambda: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5)


def over_the_batch() -> Step:
    x = _p(32, 64)
    return lambda: (x - x.mean(0, keepdim=True)) / torch.sqrt(x.var(0, keepdim=True, unbiased=False) + 1e-5)


def with_another_constant() -> Step:
    x = _p(32, 64)
    return lambda: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.1 * torch.pow(x, 3))))


def of_another_tensor() -> Step:
    x, y = _p(32, 64), _p(32, 64)
    return lambda: x * torch.sigmoid(y)


def whose_sigmoid_is_read() -> Step:
    x = _p(32, 64)

    def step() -> Any:
        gate = torch.sigmoid(x)
        return x * gate, gate.mean()

    return step


def of_two_weights() -> Step:
    x, y = torch.rand(32, 64), torch.rand(32, 64)
    return lambda: x * 0.9 + y * 0.2


def that_is_squared() -> Step:
    x = _p(32, 64)
    return lambda: x**2


def of_real_numbers() -> Step:
    x = torch.rand(32, 64)
    return lambda: x.abs() ** 2


def whose_vectors_are_read() -> Step:
    a = torch.randn(16, 16)

    def step() -> Any:
        u, s, v = torch.linalg.svd(a)
        return u @ s.diag() @ v

    return step


def of_a_power_of_two() -> Step:
    x = torch.randn(8, 1024)
    return lambda: torch.fft.rfft(x)


def of_float32() -> Step:
    return lambda: torch.rand(64, 64) @ torch.rand(64, 64)


QUIET: tuple[tuple[str, Callable[[], Step]], ...] = (
    ("einsum_order", of_two_operands),
    ("product_from_the_right", whose_product_is_read),
    ("pairwise_square_distances", without_broadcast_rows),
    ("cosine_of_all_pairs", of_rows_one_by_one),
    ("sparse_operand", of_dense_numbers),
    ("batched_calls", each_after_the_other),
    ("batched_calls", few_calls),
    ("fused_attention", with_dropout),
    ("fused_attention", whose_weights_are_read),
    ("fused_attention", over_another_axis),
    ("causal_flag", with_a_mask_of_padding),
    ("attention_without_weights", whose_attention_is_read),
    ("padded_gru", whose_state_is_read),
    ("lstm_of_cells", of_a_whole_batch),
    ("index_select", by_a_slice),
    ("index_select", by_flags),
    ("index_select", of_two_axes),
    ("gather_rows", with_an_index_for_each_number),
    ("topk_of_sort", of_the_end_of_a_sort),
    ("topk_of_sort", whose_sort_is_read),
    ("other_axis", along_the_last_axis),
    ("expand_of_repeat", that_fills_every_axis),
    ("linear_of_pointwise", of_size_three),
    ("padding_in_convolution", that_pads_one_side),
    ("layer_norm", with_the_unbiased_variance),
    ("layer_norm", over_the_batch),
    ("gelu_tanh", with_another_constant),
    ("silu", of_another_tensor),
    ("silu", whose_sigmoid_is_read),
    ("lerp", of_two_weights),
    ("power_by_products", that_is_squared),
    ("square_of_abs", of_real_numbers),
    ("singular_values", whose_vectors_are_read),
    ("transform_length", of_a_power_of_two),
    ("float32", of_float32),
)


@pytest.mark.parametrize(
    ("form", "program"), QUIET, ids=lambda value: value if isinstance(value, str) else value.__name__
)
def test_a_form_is_not_named_where_it_does_not_fit(form: str, program: Callable[[], Step], tmp_path: Path) -> None:
    torch.manual_seed(0)
    recorded = record(program(), tmp_path)
    for match in find_matches(recorded):
        if match.form.id == form:
            with pytest.raises(RefusedError):
                measure_match(recorded, match)
