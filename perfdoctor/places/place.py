"""Place: a line of the user's code (or the best name there is) with the time of a step that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analysis.timeline.account import DETAILS
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.value_limits import Amount, Share

PlaceKind: TypeAlias = Literal["line", "module", "annotation", "op", "outside"]
WithinKind: TypeAlias = Literal["function", "op", "kernel", "wait"]
Question: TypeAlias = Literal["process", "many", "same_again", "needed", "cheaper_form", "consequence"]


WAITS_FOR_RANKS = ("communication", "idle_communication")
"""Details of the account in which a rank waits for others."""


@frozen_dataclass
class PlaceName:
    """What a place is: the same in every window and on every rank.

    Attributes:
        kind: "line" of the user's code; without lines a "module", an "annotation" or an "op"; else "outside" of all.
        file, line, function: The line; of an op its name is the function.
        module: The path of the module.
        annotation: The name of the range, numbers masked.
    """

    kind: PlaceKind
    file: str | None = None
    line: int | None = None
    function: str | None = None
    module: str | None = None
    annotation: str | None = None

    @property
    def location(self) -> SourceLocation | None:
        """The line in the user's code; None for what is no line."""
        return None if self.file is None else SourceLocation(self.file, self.line, self.function)

    @property
    def short(self) -> str:
        """What it is called in a sentence: "train.py:41", "ResNet/layer1", "aten::mm"."""
        if self.file is not None:
            return SourceLocation(self.file, self.line).short
        return self.module or self.annotation or self.function or "outside your code"


OUTSIDE = PlaceName("outside")


@frozen_dataclass
class Within:
    """What holds the time of a place, a step.

    Attributes:
        name: Of the op, the library's function or the kernel.
        calls: How often it is called.
        inner_ops: How many ops run inside of each call.
        ns: The time of all its calls.
    """

    name: str
    kind: WithinKind
    calls: Amount
    inner_ops: Amount
    ns: int


@frozen_dataclass
class Answer:
    """What is known of a place by one of the six questions that are asked of each."""

    question: Question
    sentence: str
    ns: int | None = None
    basis: Literal["measured", "replayed", "bounded", "unknown"] = "unknown"


@frozen_dataclass
class Place:
    """A place with its time a step; all places of a rank add up to its step exactly, and their causes do by cause.

    Attributes:
        source: The text of the line, where it can be read.
        ns: Its time.
        share: That as a share (0 to 1) of the step.
        causes: By the names of the account's details what the time is.
        backward_ns: The part that the backward pass takes for it.
        calls: How often it runs; None where that is not known.
        within: What holds the time, the largest first.
        findings: Indices of the findings whose time lies there.
    """

    rank: int | None
    file: str | None
    line: int | None
    function: str | None
    source: str | None
    module: str | None
    annotation: str | None
    kind: PlaceKind
    ns: int
    share: Share | None
    causes: Annotated[Mapping[str, int], ("required", DETAILS)]
    backward_ns: int
    calls: Amount | None
    within: tuple[Within, ...] = ()
    answers: tuple[Answer, ...] = ()
    findings: tuple[int, ...] = ()

    @property
    def name(self) -> PlaceName:
        """What the place is."""
        return PlaceName(self.kind, self.file, self.line, self.function, self.module, self.annotation)

    @property
    def location(self) -> SourceLocation | None:
        """The line in the user's code; None for what is no line."""
        return self.name.location if self.kind == "line" else None

    @property
    def working_ns(self) -> int:
        """Its time without waits for other ranks."""
        return self.ns - sum(self.causes[name] for name in WAITS_FOR_RANKS)
