"""`perfdoctor expect`: on the terminal, as JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import perfdoctor as package
from perfdoctor.reporters.json_ import load_schema
from perfdoctor.testing import TraceBuilder

EXPECTED = Path(__file__).parent / "expected" / "expect.txt"


@pytest.fixture
def products(tmp_path) -> Path:
    """Three steps of an H100: a bf16 product, an addition, and a copy from pinned memory."""
    builder = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132)
    for step in range(3):
        at = 4000 * step
        builder.step(at, 4000).memcpy("HtoD", at + 10, 400, 20_000_000, launch_us=at + 1, pinned=True)
        builder.op("aten::mm", at + 20, 6, shapes=[[8192, 8192]] * 2, types=["c10::BFloat16"] * 2)
        builder.kernel("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT", at + 420, 1500, launch_us=at + 21)
        builder.op("aten::add", at + 30, 6, shapes=[[16384, 16384], [16384, 16384], []], types=["float", "float", ""])
        builder.kernel(
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
            *(at + 1930, 1100),
            launch_us=at + 31,
        )
        builder.call("cudaDeviceSynchronize", at + 40, 3000)
    return builder.write(tmp_path / "products.json.gz")


def test_another_device(perfdoctor, products, request) -> None:
    ended = perfdoctor("expect", products.name, "--on", "A100-SXM4-80GB")
    assert (ended.code, ended.err) == (0, "")
    if request.config.getoption("--update-golden"):
        EXPECTED.write_text(ended.out)
    assert ended.out == EXPECTED.read_text()
    assert max(map(len, ended.out.splitlines())) <= 80
    assert ended.out.count("\n") <= 25


def test_its_own_device(perfdoctor, products) -> None:
    ended = perfdoctor("expect", products)
    assert ended.code == 0
    assert "as usual on NVIDIA H100 80GB HBM3" in ended.out.replace("\n", " ")
    assert "Comparable kernels make it" in ended.out


def test_json_is_alone_on_standard_output_and_is_what_python_gives(perfdoctor, products) -> None:
    ended = perfdoctor("expect", products, "--on", "B200", "--cpu-scale", "0.5", "--json")
    plain = json.loads(ended.out)
    jsonschema.validate(plain, load_schema("expectation"))
    assert ended.err == ""
    made = package.expect(products, on="B200", cpu_scale=0.5)
    assert made.to_dict() == plain
    assert made.step.now_ns == sum(part.now_ns for part in made.step.parts)
    assert repr(made).startswith("<perfdoctor.Expectation: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--on", "H1000"), "the device 'H1000' is not in the table of devices; did you mean"),
        (("--on", "GTX 1080"), "the peaks of NVIDIA GeForce GTX 1080 are not known"),
        (("--cpu-scale", "0"), "the CPU cannot take 0 times as long"),
        (("--cpu-scale", "inf"), "the CPU cannot take inf times as long"),
        (("--steps", "5:2"), "must be A:B"),
    ],
)
def test_wrong_options_get_one_line(perfdoctor, products, arguments, words) -> None:
    ended = perfdoctor("expect", products, *arguments)
    assert ended.code == 2
    assert words in ended.line


def test_a_recording_of_the_cpu_gets_one_line(perfdoctor, tmp_path) -> None:
    path = TraceBuilder(device=None).op("aten::mm", 0, 900).write(tmp_path / "cpu.json")
    ended = perfdoctor("expect", path, "--on", "H100")
    assert (ended.code, "no work on a GPU" in ended.line) == (2, True)
    assert perfdoctor("expect", "nothing.json").code == 2
