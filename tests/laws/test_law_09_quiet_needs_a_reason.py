"""Law 9: "nothing was found" needs a reason to be quiet: no family of kernels takes the step far below its like unsaid.

The yardstick here is coarser than that of PD209, and not made from its table: a family that takes more than a tenth
of the window at less than these shares of its peak has to be said, by a finding or by a slice of the account.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from cases_slow_kernels import H100, MI300X, Kernel, add, attention, layer_norm, mean, product, softmax, step_of
from hypothesis import given
from hypothesis import strategies as st
from real_traces import read_once
from recordings import list_recordings, name_recording
from rule_cases import POINTWISE

import perfdoctor.unclaimed_time
from perfdoctor import pipeline
from perfdoctor.analyzers import pd209_slow_kernel
from perfdoctor.analyzers.pd209_slow_kernel import SlowKernel
from perfdoctor.rank import Rank
from perfdoctor.report.report import Report
from perfdoctor.rules import Run
from perfdoctor.rules.registry import load_analyzers
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import KERNEL
from perfdoctor.trace.tables import intervals as iv

ANALYZERS = load_analyzers()
LARGE_SHARE, LONG_NS = 0.1, 20_000
FAR_BELOW: Mapping[str, float] = {
    "gemm": 0.25,
    "convolution": 0.1,
    "attention": 0.15,
    "norm": 0.2,
    "softmax": 0.35,
    "elementwise": 0.35,
    "copy": 0.3,
    "reduction": 0.25,
}
"""About half of what comparable kernels reach of their peak: maths of the first three, bandwidth of the others."""
GPU_DETAILS = ("compute", "bandwidth", "latency")
CONTIGUOUS = [[8192, 1], [8192, 1]]


def first_rank(path: Path) -> Rank | None:
    """A rank of a recording; one is enough where each has a file. None for an export that names no GPU item."""
    files = [path]
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.name.endswith((".json", ".json.gz")))
    rank = Rank(read_once(files[0]))
    return rank if len(rank.trace.gpu) else None


def find_slow_time(rank: Rank) -> dict[str, iv.Intervals]:
    """The time of each family of long kernels of known work that is far below its like, if it is a large share."""
    gpu, peak_ns = rank.trace.gpu, rank.bounds.time_at_peak
    long = rank.in_window & (gpu.kind == KERNEL) & (gpu.dur_ns >= LONG_NS) & (peak_ns > 0)
    slow = {}
    for family, share in FAR_BELOW.items():
        rows = long & rank.kernel_classes.match_rows(lambda kernel, family=family: kernel.category == family)
        time = rank.time_in_window(rows)
        is_large = iv.total(time) > LARGE_SHARE * rank.window_ns
        if is_large and float(peak_ns[rows].sum()) < share * float(gpu.dur_ns[rows].sum()):
            slow[family] = time
    return slow


def diagnose(rank: Rank) -> Report:
    """The report on one rank with all rules."""
    return pipeline.diagnose_run(Run((rank,)), ANALYZERS)


def find_unsaid(rank: Rank, report: Report) -> set[str]:
    """The families far below their like of whose time neither a finding nor a slice of the account says a half."""
    claimed = iv.union_of(finding.claim.intervals for finding in report.findings)
    slices_ns = sum(each.ns for each in report.unexplained if each.detail in GPU_DETAILS)
    unsaid = set()
    for family, time in find_slow_time(rank).items():
        left_ns = iv.total(iv.subtract(time, claimed))
        if 2 * max(left_ns - slices_ns, 0) > iv.total(time):
            unsaid.add(family)
    return unsaid


@pytest.mark.corpus
@pytest.mark.parametrize("path", list_recordings(), ids=name_recording)
def test_no_recording_is_quiet_about_kernels_far_below_their_like(path: Path) -> None:
    rank = first_rank(path)
    if rank is None or not find_slow_time(rank):
        return
    assert find_unsaid(rank, diagnose(rank)) == set()


# Each kind of kernel by its duration in us at the device's peak, and at what comparable kernels take.
PROGRAMS = {
    "elementwise": (lambda us: add(us, POINTWISE, strides=CONTIGUOUS), "NVIDIA A100-SXM4-80GB", 395, 470),
    "norm": (layer_norm, "NVIDIA A100-SXM4-80GB", 527, 1170),
    "softmax": (softmax, H100, 1128, 1510),
    "reduction": (lambda us: mean(us, 2), "NVIDIA A100-SXM4-80GB", 527, 810),
    "gemm": (lambda us: product(us, 8192, 8192, 8192), "NVIDIA A100-SXM4-80GB", 3524, 4930),
    "attention": (lambda us: attention(us, "attn_fwd"), MI300X, 841, 2440),
}


def program(family: str, dur_us: float, count: int, healthy_us: float = 0) -> TraceBuilder:
    """A step of kernels of one family, all of one duration, and of a good product for the rest of the time."""
    make, device, *_ = PROGRAMS[family]
    rest = [product(healthy_us, 8192, 8192, 65536)] if healthy_us else []
    kernels: list[Kernel] = [make(dur_us) for _ in range(count)] + rest
    return step_of(*kernels, device=device, until=dur_us * count + healthy_us + 100)


@given(st.sampled_from(sorted(PROGRAMS)), st.floats(2.2, 12), st.integers(1, 6))
def test_whatever_takes_the_step_far_below_its_like_is_a_finding(family: str, slowness: float, count: int) -> None:
    rank = Rank(program(family, PROGRAMS[family][3] * slowness, count).trace())
    assert {finding.subject for finding in diagnose(rank).findings if finding.rule == "PD209"} == {family}
    assert find_unsaid(rank, diagnose(rank)) == set()


@given(st.sampled_from(sorted(PROGRAMS)), st.floats(0, 1.35), st.integers(1, 6))
def test_what_runs_as_comparable_kernels_do_is_no_finding(family: str, slowness: float, count: int) -> None:
    _, _, at_peak_us, comparable_us = PROGRAMS[family]
    rank = Rank(program(family, max(comparable_us * slowness, at_peak_us * 1.02), count).trace())
    assert not [finding for finding in diagnose(rank).findings if finding.rule == "PD209"]


@given(st.sampled_from(sorted(PROGRAMS)), st.floats(2.2, 8), st.integers(1, 4))
def test_no_saving_exceeds_the_way_down_to_comparable_kernels(family: str, slowness: float, count: int) -> None:
    dur_us, comparable_us = PROGRAMS[family][3] * slowness, PROGRAMS[family][3]
    (finding,) = SlowKernel().analyze_rank(Rank(program(family, dur_us, count).trace()))
    high_us = (finding.saving.high_ns or 0) / 1000
    assert finding.saving.low_ns == 0
    assert finding.saving.expected_ns is None
    assert high_us == pytest.approx((dur_us - comparable_us) * count, rel=0.05)


def test_a_small_family_is_not_worth_a_finding() -> None:
    rank = Rank(program("elementwise", 1200, 1, healthy_us=39_000).trace())
    assert not [finding for finding in diagnose(rank).findings if finding.rule == "PD209"]


def test_without_the_law_the_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = program("elementwise", 1300, 3).trace()
    assert find_unsaid(Rank(trace), diagnose(Rank(trace))) == set()
    monkeypatch.setattr(pd209_slow_kernel, "find_slow_families", lambda *_: iter(()))
    monkeypatch.setattr(perfdoctor.unclaimed_time, "MIN_SHARE", 1.0)
    assert find_unsaid(Rank(trace), diagnose(Rank(trace))) == {"elementwise"}


@pytest.mark.corpus
def test_without_the_law_real_attention_at_a_fifth_of_the_peak_gets_a_clean_bill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = next((each for each in list_recordings() if each.name == "triton-compile.json.gz"), None)
    if path is None:
        pytest.skip("the recordings are not mounted")
    assert diagnose(Rank(read_once(path))).findings[0].subject == "attention"
    monkeypatch.setattr(pd209_slow_kernel, "find_slow_families", lambda *_: iter(()))
    assert not [finding for finding in diagnose(Rank(read_once(path))).findings if finding.saving.high_ns]


def test_the_slow_kernels_of_a_program_are_counted_by_their_median() -> None:
    slow_once = step_of(add(1200), *(add(480) for _ in range(4)))
    always = step_of(*(add(1200) for _ in range(3)))
    assert not list(SlowKernel().analyze_rank(Rank(slow_once.trace())))
    (finding,) = SlowKernel().analyze_rank(Rank(always.trace()))
    assert finding.cost_ns == 3 * 1_200_000
    assert np.isclose(finding.saving.high_ns or 0, 3 * 731_351, rtol=0.01)
