"""PD210 needless-matrix-work: as many cases that fire as cases that stay quiet."""

from __future__ import annotations

from cases_cpu_ops import Steps

from perfdoctor.analyzers.pd210_needless_matrix_work import NeedlessMatrixWork
from perfdoctor.testing import ExpectedFinding, RuleCase, check_rule

Sizes = tuple[int, ...]


def ops(*calls: tuple[str, float, tuple[Sizes, ...]]) -> Steps:
    """Two equal steps with these ops on float32: a name, us and the sizes of the arguments."""
    steps = Steps()
    for name, us, sizes in calls:
        steps.op(f"aten::{name}", us, *(("float", each) for each in sizes))
    return steps


def fires(
    why: str, cost_us: float, *calls: tuple[str, float, tuple[Sizes, ...]], fix: str, severity: str = "high"
) -> RuleCase:
    expected = ExpectedFinding(severity, round(1000 * cost_us), location="train.py:3", fix=fix)
    return RuleCase("PD210", why, lambda: ops(*calls).build("train.py(3): main"), (expected,))


def stays_quiet(why: str, *calls: tuple[str, float, tuple[Sizes, ...]]) -> RuleCase:
    return RuleCase("PD210", why, lambda: ops(*calls).build("train.py(3): main"))


A, POINTS = (300, 300), (300, 300, 8)
SQUARE = ("mm", 100, (A, A))
CASES = [
    fires(
        "a diagonal from the left",
        100,
        ("diag", 10, ((300,), ())),
        SQUARE,
        ("mm", 100, (A, (300, 8))),
        fix="d[:, None]",
        severity="medium",
    ),
    fires("from both sides", 200, ("diag_embed", 10, ((300,),)), SQUARE, SQUARE, SQUARE, fix="d[:, None]"),
    fires(
        "inverse and determinant",
        300,
        *(("linalg_inv_ex", 200, (A,)), ("mv", 10, (A, (300,))), ("logdet", 100, (A,))),
        fix="cholesky",
    ),
    fires("inverse for a vector", 210, ("linalg_inv_ex", 200, (A,)), ("mv", 10, (A, (300,))), fix="solve"),
    fires("inverse for two columns", 210, ("inverse", 200, (A,)), ("mm", 10, (A, (300, 2))), fix="solve"),
    fires("a vector from the left", 210, ("inverse", 200, (A,)), ("matmul", 10, ((300,), A)), fix="solve"),
    fires(
        "all pairs",
        300,
        *(("unsqueeze", 1, ((300, 8),)), ("sub", 100, ((300, 1, 8), (300, 8)))),
        *(("pow", 100, (POINTS, ())), ("sum", 100, (POINTS, ()))),
        fix="b.mT",
    ),
    fires(
        "all pairs in a batch",
        300,
        ("sub", 100, ((4, 100, 1, 3), (4, 1, 100, 3))),
        *(("mul", 100, ((4, 100, 100, 3),) * 2), ("sum", 100, ((4, 100, 100, 3),))),
        fix="b.mT",
    ),
    fires(
        "a square on the right",
        100,
        ("diag", 10, ((300,), ())),
        ("matmul", 100, ((300, 8), A)),
        fix="d[:, None]",
        severity="medium",
    ),
    fires(
        "a mean over all pairs",
        200,
        ("sub", 100, ((300, 8), (300, 1, 8))),
        ("square", 50, (POINTS,)),
        ("mean", 50, (POINTS,)),
        fix="b.mT",
    ),
    fires(
        "slogdet, and no product",
        200,
        ("linalg_inv_ex", 100, (A,)),
        ("add", 5, (A, A)),
        ("linalg_slogdet", 100, (A,)),
        fix="cholesky",
    ),
    stays_quiet("the diagonal of a matrix", ("diag", 10, (A, ())), SQUARE),
    stays_quiet("a small diagonal matrix", ("diag", 10, ((64,), ())), ("mm", 100, ((64, 64), (64, 64)))),
    stays_quiet("a product with another matrix", ("diag", 10, ((300,), ())), ("mm", 100, ((200, 200), (200, 200)))),
    stays_quiet("an inverse for many columns", ("linalg_inv_ex", 200, (A,)), SQUARE),
    stays_quiet("a small inverse", ("linalg_inv_ex", 200, ((8, 8),)), ("mv", 100, ((8, 8), (8,)))),
    stays_quiet("an inverse of another matrix", ("linalg_inv_ex", 200, (A,)), ("logdet", 100, ((200, 200),))),
    stays_quiet(
        "differences of pairs one by one", ("sub", 100, (POINTS, POINTS)), ("pow", 100, (POINTS,)), ("sum", 9, ())
    ),
    stays_quiet("a mean is subtracted", ("sub", 100, (POINTS, (300, 1, 8))), ("pow", 100, (POINTS,)), ("sum", 9, ())),
    stays_quiet(
        "all pairs that are kept",
        ("sub", 100, ((300, 1, 8), (300, 8))),
        ("pow", 100, (POINTS,)),
        ("exp", 100, (POINTS,)),
    ),
    stays_quiet("few pairs", ("sub", 100, ((8, 1, 8), (8, 8))), ("pow", 100, ((8, 8, 8),)), ("sum", 9, ((8, 8, 8),))),
    RuleCase("PD210", "unknown sizes", lambda: Steps().op("aten::diag").op("aten::mm", 300).build()),
]


def test_needless_matrix_work() -> None:
    check_rule(NeedlessMatrixWork, CASES)
