"""The base class of every reporter: a Report goes in, a text comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from perfdoctor.report.report import Report


class Reporter(ABC):
    """Renders a Report. Pure: the same Report gives the same text; writing it is the caller's work.

    A subclass names the file `suffix` that stands for it, with its dot.
    """

    __slots__ = ()
    suffix: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.suffix.startswith("."):
            raise TypeError(f"{cls.__name__}.suffix must be a file suffix such as '.md', not {cls.suffix!r}")

    @abstractmethod
    def render(self, report: Report) -> str:
        """The whole report as one text that ends in a line break."""
