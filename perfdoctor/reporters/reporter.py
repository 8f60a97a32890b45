"""The base class of every reporter: a Report goes in, a text comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from perfdoctor.frozen_dataclass import frozen_dataclass

if TYPE_CHECKING:
    from perfdoctor.report.report import Report
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


class Reporter(ABC):
    """Renders a Report. Pure: the same Report gives the same text; the caller writes it.

    A subclass implements `render_prepared`, and sets `suffix` to the file suffix of its format, with the dot. With
    `shortens_paths` it gets a report whose paths are relative, as people read them.
    """

    __slots__ = ()
    suffix: ClassVar[str] = ""
    shortens_paths: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.suffix.startswith("."):
            raise TypeError(f"{cls.__name__}.suffix must be a file suffix such as '.md', not {cls.suffix!r}")

    @classmethod
    def from_options(cls, options: RenderOptions) -> Self:
        """The reporter with those of the options that it has a field for."""
        given = {each.name: getattr(options, each.name) for each in fields(options)}
        taken = getattr(cls, "__dataclass_fields__", {})
        return cls(**{name: value for name, value in given.items() if name in taken and value is not None})

    def render(self, report: Report) -> str:
        """The whole report as one text that ends in a line break."""
        return self.render_prepared(self.prepare(report))

    def prepare(self, report: Report) -> Report:
        """The report as this format shows it."""
        # The command line names formats before it loads numpy, whose threads it sets.
        from perfdoctor.reporters.relative_paths import with_relative_paths

        return with_relative_paths(report) if self.shortens_paths else report

    @abstractmethod
    def render_prepared(self, report: Report) -> str:
        """The text of a report that `prepare` returned."""
