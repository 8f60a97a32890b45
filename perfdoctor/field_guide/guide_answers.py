"""The guide of one recording: an answer to each row of the field guide."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.to_plain import to_plain
from perfdoctor.savings.saving import Saving
from perfdoctor.value_limits import Positive, Share

AnswerKind: TypeAlias = Literal["applies", "done already", "does not apply", "cannot tell"]
ANSWER_KINDS: tuple[AnswerKind, ...] = ("applies", "done already", "does not apply", "cannot tell")


@frozen_dataclass
class GuideAnswer:
    """What one row of the field guide means for a program.

    Attributes:
        number: The number of the row, from 1.
        advice: What the row advises.
        sources: Titles of the documents that say so.
        rules: The rules that check it.
        answer: One of ANSWER_KINDS.
        why: A sentence: what it is worth, what shows that it is done, why it does not apply, or what to record.
        findings: The positions in the report of the findings that it rests on; empty unless it applies.
        saving: What the first of them saves; None unless it applies.
        share_of_step: What that costs, as a share (0 to 1) of the step; None unless it applies, and where unknown.
        location: The line to change; None where it is not known.
    """

    number: Positive
    advice: str
    sources: tuple[str, ...]
    rules: tuple[str, ...]
    answer: AnswerKind
    why: str
    findings: tuple[int, ...] = ()
    saving: Saving | None = None
    share_of_step: Share | None = None
    location: SourceLocation | None = None


@frozen_dataclass
class Guide:
    """The field guide for one recording.

    Attributes:
        version: The version of perfdoctor.
        paths: The recorded files.
        program: What program it is, in a sentence.
        answers: One for each row, in the order of the rows.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = ("schema", "version", "paths", "program", "counts", "answers")

    schema: ClassVar[str] = "perfdoctor.guide/1"

    version: str
    paths: tuple[str, ...]
    program: str
    answers: tuple[GuideAnswer, ...]

    @property
    def counts(self) -> Annotated[dict[str, int], ("required", ANSWER_KINDS)]:
        """How many rows have each of ANSWER_KINDS."""
        return {kind: sum(answer.answer == kind for answer in self.answers) for kind in ANSWER_KINDS}

    @property
    def summary(self) -> str:
        """The counts in a sentence."""
        count = self.counts
        apply = f"{count['applies']} of {len(self.answers)} {'applies' if count['applies'] == 1 else 'apply'}"
        done = f"{count['done already']} {'is' if count['done already'] == 1 else 'are'} done already"
        other = f"{count['does not apply']} {'does' if count['does not apply'] == 1 else 'do'} not apply"
        unknown = f"{count['cannot tell']} cannot be answered from this recording"
        return f"{apply}, {done}, {other}, {unknown}."

    def select(self, *kinds: str) -> tuple[GuideAnswer, ...]:
        """The answers of some kinds, by kind and what they are worth; of all kinds where none is named."""
        chosen = [answer for answer in self.answers if not kinds or answer.answer in kinds]
        return tuple(sorted(chosen, key=lambda each: (ANSWER_KINDS.index(each.answer), -_worth_ns(each), each.number)))

    def to_dict(self) -> dict[str, Any]:
        """The guide as plain data by schema perfdoctor.guide/1."""
        plain: dict[str, Any] = to_plain(self)
        return plain


def _worth_ns(answer: GuideAnswer) -> float:
    return 0.0 if answer.saving is None else answer.saving.alone.likely_ns or answer.saving.likely_ns
