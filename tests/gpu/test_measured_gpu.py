"""What perfdoctor knows of the GPU in this machine, against what is measured on it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from perfdoctor.gpu.devices import find_device  # noqa: E402
from perfdoctor.gpu.measure_device import measure_device  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]


@pytest.fixture(scope="module")
def measured() -> Any:
    """The rates of this GPU, measured in a few seconds."""
    return measure_device(gpu=True, seconds=4)


def test_the_device_is_in_the_table() -> None:
    device = find_device(torch.cuda.get_device_name())
    assert device is not None
    assert device.memory_bandwidth_bytes_per_s


def test_no_measured_rate_is_above_its_peak_and_none_far_below(measured: Any) -> None:
    device = find_device(torch.cuda.get_device_name())
    assert device is not None
    shares = {
        dtype: rate / peak for dtype, rate in measured.flops.items() if (peak := device.peak_flops(dtype)) is not None
    }
    shares.pop("fp64", None)  # its products run on Tensor Cores, whose peak has another name
    shares["copy"] = measured.bandwidth_bytes_per_s / device.memory_bandwidth_bytes_per_s
    assert {"bf16", "tf32", "copy"} <= shares.keys()
    assert {name: share for name, share in shares.items() if not 0.25 < share < 1.05} == {}


def test_the_sweep_goes_from_memory_to_maths(measured: Any) -> None:
    first, last = measured.sweep[0], measured.sweep[-1]
    assert last.flops_per_s > 8 * first.flops_per_s
    assert last.bytes_per_s < first.bytes_per_s
