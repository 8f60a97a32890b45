"""Tables as text: what fits, what is left out, and names that stay text."""

from __future__ import annotations

import re

import pytest

from perfdoctor.gpu.kernel_names import name_kernels
from perfdoctor.report.table import Column, Table
from perfdoctor.reporters.table_cells import format_cell
from perfdoctor.reporters.table_text import render_table, render_table_csv, render_table_html, render_table_markdown

LONG = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"


def table(names: tuple[str, ...] = (LONG, "short"), **more: tuple[object, ...]) -> Table:
    count = len(names)
    return Table(
        "kernels",
        "name",
        (
            Column("name", "kernel", "text", names),
            Column("step_ns", "time", "ns", tuple(1_000_000 // (n + 1) for n in range(count))),
            Column("share", "share", "share", tuple(0.4 / (n + 1) for n in range(count))),
            Column("count", "calls", "count", (2.5,) * count),
            *(Column(name, name, "text", values) for name, values in more.items()),
        ),
        sorted_by="step_ns",
        rank=3,
        notes=("mind this",),
    )


def test_a_terminal_shows_a_bar_and_both_ends_of_a_name():
    assert render_table(table(), width=60) == (
        "kernels by name, rank 3: 2 rows\n"
        "share            time  calls  kernel\n"
        "  40%  █████  1.00 ms   2.50  ampere_bf16_s1..stages_32x5_tn\n"
        "  20%  ██▌     500 us   2.50  short\n"
        "  note: mind this\n"
    )


def test_a_plain_terminal_has_bars_of_signs():
    lines = render_table(table(), width=60, unicode=False).splitlines()
    assert lines[2].split()[1] == "#####"
    assert lines[3].split()[1] == "##"


def test_columns_that_do_not_fit_are_counted_and_empty_ones_are_not():
    wide = table(category=("gemm", "copy"), op=("addmm", None), nothing=(None, None), more=("x" * 20, "y" * 20))
    text = render_table(wide, width=80)
    assert "category" in text
    assert "1 more column; -v, --csv and --json show them" in text
    assert "nothing" not in render_table(wide, width=80, everything=True)
    assert "x" * 20 in render_table(wide, width=80, everything=True)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_line_is_wider_than_the_terminal(width):
    wide = table((LONG, "名" * 40), category=("gemm", "c" * 50), op=("o" * 30, "p"))
    assert all(len(line) <= width for line in render_table(wide, width=width).splitlines())


def test_hostile_names_stay_text():
    hostile = table(("\x1b[2J<script>alert(1)</script>|`x`", "=1+1"), op=("[link](http://x)", "@you"))
    assert "\x1b" not in render_table(hostile, width=100)
    markdown = render_table_markdown(hostile)
    assert "<script>" not in markdown
    assert all(line.replace("\\|", "").count("|") == 6 for line in markdown.splitlines() if line.startswith("|"))
    assert "<script>" not in render_table_html(hostile)
    assert "'=1+1" in render_table_csv(hostile)


def test_an_empty_table_says_why():
    empty = Table("kernels", "name", (Column("name", "kernel", "text", ()),), notes=("record kernels",))
    assert render_table(empty, width=80) == "kernels by name: 0 rows\n  note: record kernels\n"
    assert render_table_markdown(empty) == "**kernels by name: 0 rows**\n\nrecord kernels\n"
    assert "<tbody></tbody>" in render_table_html(empty)


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("ns", 43_100_000, "43.1 ms"),
        ("ns", None, "n/a"),
        ("share", 0.0321, "3.2%"),
        ("bytes", 1_310_000_000, "1.31 GB"),
        ("bytes_per_s", 1.5e12, "1.50 TB/s"),
        ("flops", 5.8e12, "5.80 TFLOP"),
        ("flops_per_s", 3.12e14, "312 TFLOP/s"),
        ("flops_per_s", 2.2e15, "2200 TFLOP/s"),
        ("flops_per_s", 4e9, "4.00 GFLOP/s"),
        ("count", 1234, "1,234"),
        ("count", 2.5, "2.50"),
        ("count", 96.0, "96"),
        ("ratio", 12.34, "12.3"),
        ("bool", True, "yes"),
        ("text", "a\nb", "a b"),
    ],
)
def test_values_in_their_units(unit, value, text):
    assert format_cell(unit, value) == text


def test_kernels_are_named_by_what_tells_them_apart():
    add = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<{}>, "
        "std::array<char*, 3ul> >(int, std::array<char*, 3ul>)"
    )
    copy = (
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda("
        "at::TensorIteratorBase&)::{{lambda()#{}}}::operator()() const::{{lambda()#7}}> >(int, float)"
    )
    names = {
        add.format("c10::BFloat16"): "vectorized_elementwise_kernel<4, CUDAFunctor_add<bf16>>",
        add.format("float"): "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>",
        copy.format(3): "elementwise_kernel<128, 4, gpu_kernel_impl<direct_copy_kernel_cuda>> #3.7",
        copy.format(2): "elementwise_kernel<128, 4, gpu_kernel_impl<direct_copy_kernel_cuda>> #2.7",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>(Params)": (
            "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2"
        ),
        "void (anonymous namespace)::softmax_warp_forward<c10::Half, float, 7>(float*, int)": (
            "softmax_warp_forward<half, float, 7>"
        ),
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_"
        "cublas": "sm90_xmma_gemm_bf16_tn_n_128x128x64",
        LONG: LONG,
        "void flash::flash_fwd_kernel<flash::Traits<(int)128, (bool)0>, (bool)1>(flash::Params)": (
            "flash_fwd_kernel<Traits<128, 0>, 1>"  # as Nsight writes it
        ),
        "triton_poi_fused_add_0": "triton_poi_fused_add_0",
        "operator<(": "operator<(>",
        "": "",
    }
    assert name_kernels(tuple(names)) == names


def tree() -> Table:
    names = ("Net_0", "Block_0", "Linear (wide)_0", "outside")
    return Table(
        "modules",
        "module",
        (
            Column("name", "module", "text", names),
            Column("step_ns", "time", "ns", (3_000_000, 2_000_000, 1_000_000, 500_000)),
            Column("share", "share", "share", (0.6, 0.4, 0.2, 0.1)),
            Column("depth", "depth", "count", (0, 1, 2, 0), is_main=False),
        ),
    )


def test_the_rows_of_a_tree_are_indented():
    text = render_table(tree(), width=60)
    assert re.findall(r"[mu]s  ( *\S.*)", text) == ["Net_0", " Block_0", "  Linear (wide)_0", "outside"]
    assert "| \u00a0\u00a0Block_0 |" in render_table_markdown(tree())
    assert ">\u00a0\u00a0\u00a0\u00a0Linear (wide)_0<" in render_table_html(tree())


def test_what_rows_within_each_other_amount_to_is_not_said():
    assert "3 more rows; --top 0" in render_table(tree(), width=60, rows=1)


def test_a_rate_has_its_title_and_its_unit_above_it():
    rates = tuple(Column(name, name, "bytes_per_s", (2.5e9,)) for name in ("memory", "bus"))
    text = render_table_markdown(
        Table("collectives", "kind", (Column("name", "kind", "text", ("all_reduce",)), *rates))
    )
    assert "| kind | memory GB/s | bus GB/s |" in text


def test_only_names_of_kernels_are_shortened():
    name = "forward (model.py)"
    shown = render_table(Table("lines", "function", (Column("name", "function", "text", (name,)),)), width=60)
    assert name in shown
