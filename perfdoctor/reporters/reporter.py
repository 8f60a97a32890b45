"""The base class of every reporter: a Report goes in, a text comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from perfdoctor.report.report import Report
    from perfdoctor.reporters.render_options import RenderOptions


class Reporter(ABC):
    """Renders a Report. Pure: the same Report gives the same text; the caller writes it.

    A subclass implements `render_prepared`, and sets `suffix` to the file suffix of its format, with the dot.
    """

    __slots__ = ()
    suffix: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.suffix.startswith("."):
            raise TypeError(f"{cls.__name__}.suffix must be a file suffix such as '.md', not {cls.suffix!r}")

    @classmethod
    def from_options(cls, options: RenderOptions) -> Self:
        """The reporter with what it takes of the options; of none unless a subclass says so."""
        del options
        return cls()

    def render(self, report: Report) -> str:
        """The whole report as one text that ends in a line break."""
        return self.render_prepared(self.prepare(report))

    def prepare(self, report: Report) -> Report:
        """The report as this format shows it; all of it as it is unless a subclass shortens it."""
        return report

    @abstractmethod
    def render_prepared(self, report: Report) -> str:
        """The text of a report that `prepare` returned."""
