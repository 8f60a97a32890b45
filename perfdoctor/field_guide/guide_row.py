"""A row of the field guide: an advice, the rules that check it, and how a program that follows it is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from perfdoctor.field_guide.program_traits import ProgramTraits
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import Finding

DOCUMENTS: Mapping[str, str] = {
    "A": "Mixed Precision and Tensor Cores (a practitioners' page)",
    "B": "PyTorch Performance Tuning Guide (NVIDIA, ECCV 2020)",
    "C": "Making Deep Learning Go Brrrr From First Principles",
    "D": "Mixed Precision Training with Tensor Cores (NVIDIA, video series)",
    "E": "Performance Tuning Guide (PyTorch 1.10)",
}
"""The documents of the field guide, by the letters that its rows name them by."""


class Subject(NamedTuple):
    """Whether a program has what an advice is about.

    Attributes:
        is_present: None where the recording does not show it.
        text: What there is; why the advice does not apply without it; or what to record.
    """

    is_present: bool | None
    text: str


SubjectTest: TypeAlias = Callable[[ProgramTraits], Subject]
EvidenceTest: TypeAlias = Callable[[ProgramTraits], str | None]
FindingTest: TypeAlias = Callable[[ProgramTraits, Finding], bool]


def no_evidence(traits: ProgramTraits) -> str | None:
    """For rows that only their rules can answer."""
    del traits
    return None


def memory_is_short(traits: ProgramTraits, finding: Finding) -> bool:
    """For rows with rules of memory: what these find is for information where there is enough of it."""
    del traits
    return finding.saved_bytes is None or finding.severity != "info"


def any_finding(traits: ProgramTraits, finding: Finding) -> bool:
    """For rows that every finding of their rules answers."""
    del traits, finding
    return True


@frozen_dataclass
class GuideRow:
    """One row of the field guide.

    Attributes:
        number: Its number, from 1.
        sources: The letters of the documents that say it, see DOCUMENTS.
        advice: What it advises, in a sentence.
        rules: The rules that check it; empty where the account answers it.
        memory_rules: Rules whose findings answer it too; where memory was not recorded they do not keep it open.
        checked_by: What answers it where that is not a rule, or not a rule alone; empty otherwise.
        needs: What has to be recorded for it, in words.
        since: What has changed since the documents were written; empty where nothing has.
        subject: Whether the program has what the advice is about.
        evidence: What shows that the advice is followed, or the figure that it asks for; None where nothing does.
        concerns: Whether a finding of its rules answers this row.
        has_figure: Whether its evidence is a figure that is worth reading whatever the answer is.
    """

    number: int
    sources: str
    advice: str
    rules: tuple[str, ...]
    needs: str
    subject: SubjectTest
    evidence: EvidenceTest = no_evidence
    concerns: FindingTest = any_finding
    memory_rules: tuple[str, ...] = ()
    checked_by: str = ""
    since: str = ""
    has_figure: bool = False

    @property
    def all_rules(self) -> tuple[str, ...]:
        """The rules whose findings answer it."""
        return (*self.rules, *self.memory_rules)
