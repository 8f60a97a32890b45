"""The shape of a kernel-name rule; the tables are in kernel_rules_helpers, _matrix and _other.

A rule is data: which text it looks for, what it concludes, and why. Rules stand in families, families in an order, and
the first rule that matches decides. Rules look at the lower-cased name, so that mangled and demangled spellings need
one rule only. Plain substrings come first and regular expressions second: a substring search costs a small part of a
regular expression and rejects nearly all names.
"""

from __future__ import annotations

import functools
import re
from typing import Literal, NamedTuple

Category = Literal[
    "gemm",
    "convolution",
    "attention",
    "elementwise",
    "reduction",
    "norm",
    "softmax",
    "copy",
    "indexing",
    "optimizer",
    "communication",
    "random",
    "other",
]
"""What a kernel does; the words of the report."""

Verdict = Literal["yes", "no", "unknown", "na"]
"""Did it use Tensor Cores (AMD: matrix cores)? `unknown`: matrix maths that does not say how; `na`: no matrix maths."""

RuleCategory = Category | Literal["matrix"]
"""`matrix` is gemm, convolution or attention, whichever the name says: one library spells all three alike."""


class Rule(NamedTuple):
    """One line of the table.

    Attributes:
        id: Short and unique: A helper, N CUDA cores, M AMD, B Blackwell, J nvjet, C CUTLASS 3, X xmma, T mma.sync,
            F attention, U unnamed, I Inductor, P PyTorch, E embeddings, L libraries, R the rest.
        category: Category of every name that matches, or `matrix`.
        tensor_core: Verdict for every name that matches.
        any_of: The rule is considered only if one of these occurs in the lower-cased name.
        reason: Why the verdict holds, for people who doubt it.
        pattern: A regular expression that must also be found. Only bounded repetitions of one class: no backtracking.
        none_of: The rule does not apply if one of these occurs.
        instruction: The instruction, where the rule alone implies it.
        operand: The operand type, where the rule alone implies it.
        gemv_like: Bandwidth-bound because a dimension is tiny, so that Tensor Cores would not help: never a fault.
        depthwise: One channel a group: no reduction over channels, so there is nothing for Tensor Cores to do.
    """

    id: str
    category: RuleCategory
    tensor_core: Verdict
    any_of: tuple[str, ...]
    reason: str
    pattern: str | None = None
    none_of: tuple[str, ...] = ()
    instruction: str | None = None
    operand: str | None = None
    gemv_like: bool = False
    depthwise: bool = False

    def confirms(self, text: str) -> bool:
        """True if the lower-cased name `text`, which contains one of `any_of`, passes the other conditions too."""
        if self.none_of and any(needle in text for needle in self.none_of):
            return False
        return self.pattern is None or compiled(self.pattern).search(text) is not None


class Family(NamedTuple):
    """Rules that are tried together, on names that contain one of the words of `gate`; on every name if it is empty."""

    gate: tuple[str, ...]
    rules: tuple[Rule, ...]

    def find(self, text: str) -> Rule | None:
        """Return the first rule that matches the lower-cased name, or None."""
        if self.gate and not any(word in text for word in self.gate):
            return None
        # Written out, not one call a rule: this loop is nearly all of the cost of a name.
        for rule in self.rules:
            for needle in rule.any_of:
                if needle in text:
                    if rule.confirms(text):
                        return rule
                    break
        return None


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return the compiled pattern; compiled on first use, because compiling all of them costs more than a `--help`."""
    return re.compile(pattern)


def words(text: str) -> tuple[str, ...]:
    """Return the words of a string: tables of substrings stay readable without a line for each."""
    return tuple(text.split())
