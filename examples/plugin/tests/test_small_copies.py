"""EX001: as many cases that fire as cases that stay quiet."""

from __future__ import annotations

from perfdoctor_example.small_copies import SmallCopies

from perfdoctor.testing import ExpectedFinding, RuleCase, TraceBuilder, check_rule


def step(kind: str, count: int, size_bytes: int) -> TraceBuilder:
    """A step of 1 ms with copies of 2 us each."""
    trace = TraceBuilder().step(0, 1000).kernel("some_kernel", 800, 100, launch_us=700)
    for row in range(count):
        trace.memcpy(kind, 100 + 10 * row, 2, size_bytes=size_bytes, launch_us=10 + 2 * row)
    return trace


CASES = [
    RuleCase(
        "EX001",
        "twelve of 64 bytes",
        lambda: step("HtoD", 12, 64),
        (ExpectedFinding("info", 24_000, evidence={"copies per step": 12.0}),),
    ),
    RuleCase(
        "EX001",
        "sixty of a page",
        lambda: step("HtoD", 60, 4096),
        (ExpectedFinding("medium", 120_000, title="60 small copies"),),
    ),
    RuleCase("EX001", "nine copies", lambda: step("HtoD", 9, 64)),
    RuleCase("EX001", "to the host", lambda: step("DtoH", 12, 64)),
]


def test_small_copies() -> None:
    """Check the cases, and what every rule has to keep."""
    check_rule(SmallCopies, CASES)
