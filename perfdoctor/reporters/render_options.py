"""What a report is rendered with beside its own values: the length, the gate, and where its source files lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from perfdoctor.frozen_dataclass import frozen_dataclass

if TYPE_CHECKING:
    from perfdoctor.reporters.finding_gate import Gate


@frozen_dataclass
class RenderOptions:
    """What a Reporter may need beside the Report; each takes what its format shows.

    Attributes:
        verbosity: -1 is a line for each finding, 1 the long form.
        gate: What the report has to pass; None for that of `DEFAULT_GATE`.
        source_files: By the recorded path of a source file its path in the repository; see `find_source_files`.
    """

    verbosity: int = 0
    gate: Gate | None = None
    source_files: Mapping[str, str] = field(default_factory=dict)


DEFAULT_OPTIONS = RenderOptions()
