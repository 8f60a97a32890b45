"""What a report is rendered with beside its own values: the length, the gate, and where its source files lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdoctor.report.finding import Severity

DEFAULT_LEVEL: Severity = "medium"
"""The severity from which on a finding fails where no other was asked for: 3 % of the step."""


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """What a Reporter may need beside the Report; each takes what its format shows.

    Attributes:
        verbosity: -1 is a line for each finding, 1 the long form.
        fail_on: The severity from which on a finding fails.
        source_files: By the recorded path of a source file its path in the repository; see `find_source_files`.
    """

    verbosity: int = 0
    fail_on: Severity = DEFAULT_LEVEL
    source_files: Mapping[str, str] = field(default_factory=dict)


DEFAULT_OPTIONS = RenderOptions()
