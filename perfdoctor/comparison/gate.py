"""The gate of `--fail-over`: whether the step became slower by more than a limit, beyond the noise."""

from __future__ import annotations

from perfdoctor.comparison.comparison import Comparison
from perfdoctor.errors import GateError, UsageError


def parse_limit(text: str) -> float:
    """The share (0 to 1) that "5%" or "0.05" means.

    Raises:
        UsageError: It is neither, negative, or a number from 1 on without the sign: "5" may mean 5 % or five times.
    """
    number, has_sign = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        limit = float(number) / (100 if has_sign else 1)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < (10 if has_sign else 1):
        raise UsageError(f"--fail-over {text} must be a share such as 5% or 0.05")
    return limit


def check_step(comparison: Comparison, limit: float) -> None:
    """Fail where the step became slower by more than `limit`, a share (0 to 1) of the step before, beyond the noise.

    Sides that are not comparable cannot be judged; nor can a difference that may be 0 and may be more than the limit,
    where the noise hides differences of the limit.

    Raises:
        GateError: It did, or it cannot be judged.
    """
    gate, step = f"--fail-over {limit:.3g}" if limit < 0.001 else f"--fail-over {100 * limit:.3g}%", comparison.step
    if comparison.reasons:
        raise GateError(f"{gate} could not be judged: {comparison.reasons[0].sentence}")
    if step.low_ns is None or step.high_ns is None or not step.before_ns or step.difference_ns is None:
        raise GateError(f"{gate} could not be judged: {step.basis}")
    low, high, difference = (ns / step.before_ns for ns in (step.low_ns, step.high_ns, step.difference_ns))
    between = f"{100 * low:+.1f}% to {100 * high:+.1f}%"
    if difference > limit and low > 0:
        raise GateError(f"{gate}: the step is slower by {100 * difference:.1f}% ({between}), beyond the noise")
    if high > limit and low <= 0 and step.visible_ns is not None and step.visible_ns / step.before_ns > limit:
        raise GateError(
            f"{gate} could not be judged: the difference lies between {between}; record more steps (perfdoctor run "
            "--base 40), or give several recordings a side with --before and --after"
        )
