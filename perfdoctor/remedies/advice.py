"""A row of advice: in which situation and program it holds, what it says, and where that is documented."""

from __future__ import annotations

import re
from typing import NamedTuple

from perfdoctor.analysis.context.context import Context
from perfdoctor.report.finding import Action

MAIN_SHARE = 0.5
"""From this share of the kernels on a program counts as compiled, or as run by graphs."""
PARTLY = 0.05
"""Below this share of the kernels a program counts as not compiled, though some region of it may be."""

_RELEASE = re.compile(r"\d+")


class When(NamedTuple):
    """Conditions on the program; all must hold, and what is unknown meets none of them.

    Attributes:
        phases: Its phase is one of these.
        uses: It uses one of these frameworks or kinds of parallelism.
        lacks: It uses none of these.
        min_compiled: At least this share (0 to 1) of its kernels is launched by compiled code.
        min_graphed: At least this share (0 to 1) of its kernels is launched by graphs.
        generations: The kernels prove that its device is of one of these generations.
        decodes: It generates tokens one by one.
        lacks_triton: Its device is too old for the kernels that torch.compile writes.
        lacks_bfloat16: Its device is too old to compute in bfloat16.
        torch_from: Its release of PyTorch is this one or a later one.
        torch_before: Its release of PyTorch is an earlier one.
    """

    phases: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    min_compiled: float = 0.0
    min_graphed: float = 0.0
    generations: tuple[str, ...] = ()
    decodes: bool = False
    lacks_triton: bool = False
    lacks_bfloat16: bool = False
    torch_from: str = ""
    torch_before: str = ""

    def holds(self, context: Context) -> bool:
        """Whether a program meets the conditions."""
        used = {*context.frameworks, *context.parallelism}
        release = context.torch_version
        return (
            (not self.phases or context.phase in self.phases)
            and (not self.uses or not used.isdisjoint(self.uses))
            and used.isdisjoint(self.lacks)
            and (not self.min_compiled or (context.compiled_share or 0.0) >= self.min_compiled)
            and (not self.min_graphed or (context.graph_share or 0.0) >= self.min_graphed)
            and (not self.generations or _proves(context, self.generations))
            and (not self.decodes or context.decodes)
            and (not self.lacks_triton or context.lacks_triton)
            and (not self.lacks_bfloat16 or context.lacks_bfloat16)
            and (not self.torch_from or (release is not None and not is_older(release, self.torch_from)))
            and (not self.torch_before or (release is not None and is_older(release, self.torch_before)))
        )

    def describe(self) -> str:
        """The conditions in words, for a page of the table; "any program" where there are none."""
        parts = (
            ("phase is ", " or ".join(self.phases)),
            ("uses ", " or ".join(self.uses)),
            ("does not use ", " or ".join(self.lacks)),
            ("compiled share of kernels is at least ", f"{self.min_compiled:.0%}" if self.min_compiled else ""),
            ("share of kernels in graphs is at least ", f"{self.min_graphed:.0%}" if self.min_graphed else ""),
            ("kernels prove ", " or ".join(self.generations)),
            ("decodes tokens", " " if self.decodes else ""),
            ("device is older than Volta", " " if self.lacks_triton else ""),
            ("device is older than Ampere", " " if self.lacks_bfloat16 else ""),
            ("PyTorch is at least ", self.torch_from),
            ("PyTorch is older than ", self.torch_before),
        )
        return "; ".join((name + value).strip() for name, value in parts if value) or "any program"


class Row(NamedTuple):
    """What to do in programs that meet the conditions; a row without more may be a plain tuple of the first four.

    Attributes:
        when: The conditions on the program.
        sentence: What to do. `{name}` in it, as in `code`, is replaced by what the rule knows.
        code: The lines to write or the command to run; None where no line is right.
        source: Where it is documented or written: a web address.
        since: The project and release that has it, as "PyTorch 2.3"; "" where any supported release has it.
        actions: What the code does, for `perfdoctor try`; "{name}" as a value is what the rule knows.
        situation: What a rule found, such as "gradients zeroed"; "" before `rows_of` says so.
    """

    when: When
    sentence: str
    code: str | None
    source: str
    since: str = ""
    actions: tuple[Action, ...] = ()
    situation: str = ""


class Advice(NamedTuple):
    """What to do about a finding: a sentence, code where a line of it is right, its source, and what the code does."""

    sentence: str
    code: str | None = None
    source: str = ""
    actions: tuple[Action, ...] = ()

    def extend(self, more: str) -> Advice:
        """The advice with another sentence after its own; itself where that is empty."""
        return self._replace(sentence=f"{self.sentence} {more}".strip()) if more else self


def rows_of(situation: str, *rows: Row | tuple[When, str, str | None, str]) -> tuple[Row, ...]:
    """The rows of a situation that a rule holds itself, the most particular program first, any program last.

    `advise` takes them in place of a situation. A row is a `Row`, or its first four members: (when, sentence, code,
    source).
    """
    return tuple(Row(*row)._replace(situation=situation) for row in rows)


def is_older(release: str, than: str) -> bool:
    """Whether a release such as "2.3.1+cu121" is older than one such as "2.12"."""
    numbers = [int(number) for number in _RELEASE.findall(release.split("+")[0])][:2]
    return numbers < [int(number) for number in _RELEASE.findall(than)][:2]


def _proves(context: Context, generations: tuple[str, ...]) -> bool:
    """Whether the device is proven to be of one of these generations."""
    return bool(context.device_generations) and set(context.device_generations) <= set(generations)
