"""The rules about kernel names, as data/kernel_rules.csv has them.

A rule is data: which text it looks for, what it concludes, and why. Rules see the lower-cased name, so that mangled and
demangled spellings need one rule only. Substrings are looked for before regular expressions: a substring search costs
a small part of a regular expression and rejects nearly all names.
"""

from __future__ import annotations

import functools
import re
from typing import Literal, NamedTuple, cast

from perfdoctor.data_rows import read_rows
from perfdoctor.frozen_dataclass import frozen_dataclass

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

MATRIX_CATEGORIES: frozenset[Category] = frozenset(("gemm", "convolution", "attention"))
"""What multiplies matrices, with Tensor Cores where the device has them."""

Verdict = Literal["yes", "no", "unknown", "na"]
"""Did it use Tensor Cores (AMD: matrix cores)? `unknown`: the name does not say; `na`: no matrix multiplication."""

RuleCategory = Category | Literal["matrix"]
"""`matrix` is gemm, convolution or attention, whichever the name says: one library spells all three alike."""


class Rule(NamedTuple):
    """One rule: the names that it matches, and what it concludes.

    Attributes:
        id: Short and unique: A helper, N CUDA cores, M AMD, B Blackwell, J nvjet, C CUTLASS 3 (C0, C1 communication),
            X xmma, T mma.sync, F attention, U unnamed instruction, I Inductor, P PyTorch, E embeddings, L libraries,
            R the rest.
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

    def meets_conditions(self, text: str) -> bool:
        """Whether a lower-cased name that contains one of `any_of` meets `none_of` and `pattern`, too."""
        if self.none_of and any(needle in text for needle in self.none_of):
            return False
        return self.pattern is None or compile_pattern(self.pattern).search(text) is not None


@frozen_dataclass
class RuleFamily:
    """Rules that are tried one after the other, on names that contain one of `any_of`; on every name if it is empty."""

    any_of: tuple[str, ...]
    rules: tuple[Rule, ...]

    def find_rule(self, text: str) -> Rule | None:
        """Return the first rule that matches the lower-cased name, or None."""
        if self.any_of and not any(needle in text for needle in self.any_of):
            return None
        # Written out, not one call a rule: this loop is nearly all of the cost of a name.
        for rule in self.rules:
            for needle in rule.any_of:
                if needle in text:
                    if rule.meets_conditions(text):
                        return rule
                    break
        return None


@functools.cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the compiled pattern; compiled on first use, because compiling all of them costs more than a `--help`."""
    return re.compile(pattern)


@functools.cache
def read_rule_families() -> tuple[RuleFamily, ...]:
    """The rules in the order in which they are tried; read on first use, not on import."""
    families: list[tuple[tuple[str, ...], list[Rule]]] = []
    for row in read_rows("gpu/data/kernel_rules.csv"):
        any_of, marks = tuple(row["any_of"].split()), row["marks"].split()
        if row["id"] == "family":
            families.append((any_of, []))
            continue
        rule = Rule(
            id=row["id"],
            category=cast(RuleCategory, row["category"]),
            tensor_core=cast(Verdict, row["tensor_core"]),
            any_of=any_of,
            reason=row["reason"],
            pattern=row["pattern"] or None,
            none_of=tuple(row["none_of"].split()),
            instruction=row["instruction"] or None,
            operand=row["operand"] or None,
            gemv_like="gemv_like" in marks,
            depthwise="depthwise" in marks,
        )
        families[-1][1].append(rule)
    return tuple(RuleFamily(any_of, tuple(rules)) for any_of, rules in families)
