"""A frozen dataclass behaves as the one of the standard library that is frozen and has slots."""

from __future__ import annotations

import copy
import pickle
import weakref
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import ClassVar

import pytest

from perfdoctor.frozen_dataclass import frozen_dataclass


@frozen_dataclass
class Point:
    """Two fields, one with a default that is made, one that is not compared, and one that is not hashed."""

    SCHEMA: ClassVar[tuple[str, ...]] = ("x",)

    x: int
    tags: tuple[str, ...] = field(default_factory=tuple)
    note: str = field(default="", compare=False, repr=False)
    table: list[int] = field(default_factory=list, hash=False)

    @property
    def double(self) -> int:
        return 2 * self.x


@dataclass(frozen=True, slots=True)
class StandardPoint:
    """The same by the standard library."""

    SCHEMA: ClassVar[tuple[str, ...]] = ("x",)

    x: int
    tags: tuple[str, ...] = field(default_factory=tuple)
    note: str = field(default="", compare=False, repr=False)
    table: list[int] = field(default_factory=list, hash=False)


@frozen_dataclass
class Point3(Point):
    """A field more."""

    z: int = 0


@frozen_dataclass(eq=False, weakref_slot=True)
class Column:
    """Compared by identity."""

    rows: list[int]


@frozen_dataclass(kw_only=True)
class Positive:
    """Checks itself, and has its own text."""

    value: float

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError("it is not positive")
        object.__setattr__(self, "value", float(self.value))

    def __repr__(self) -> str:
        return f"+{self.value}"


@frozen_dataclass
class Nothing:
    """No fields."""


@pytest.mark.parametrize("name", ["x", "tags", "double", "other", "SCHEMA"])
def test_no_attribute_can_be_set_or_deleted(name: str) -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
        setattr(point, name, 2)
    with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
        delattr(point, name)
    assert point == Point(1)
    assert not hasattr(point, "__dict__")


@pytest.mark.parametrize(
    ("left", "right"),
    [((1,), (1,)), ((1,), (2,)), ((1, ("a",)), (1, ("a",))), ((1, (), "n"), (1, (), "m")), ((1, (), "", [1]), (1,))],
)
def test_equality_and_hash_are_those_of_the_standard_library(
    left: tuple[object, ...], right: tuple[object, ...]
) -> None:
    ours, theirs = (Point(*left) == Point(*right), StandardPoint(*left) == StandardPoint(*right))
    assert ours is theirs
    assert hash(Point(*left)) == hash(StandardPoint(*left))
    assert repr(Point(*left)) == repr(StandardPoint(*left)).replace("StandardPoint", "Point")


def test_arguments_that_do_not_fit_are_refused_as_by_the_standard_library() -> None:
    for wrong in ((), (1, (), "", [], 2)):
        with pytest.raises(TypeError) as theirs:
            StandardPoint(*wrong)
        with pytest.raises(TypeError) as ours:
            Point(*wrong)
        assert str(ours.value) == str(theirs.value).replace("StandardPoint", "Point")
    with pytest.raises(TypeError, match="positional argument"):
        Positive(1.0)
    assert Point(1).table is not Point(1).table


@frozen_dataclass
class Doubled:
    """Has its own `__init__`."""

    x: int

    def __init__(self, half: int) -> None:
        object.__setattr__(self, "x", 2 * half)


def test_a_class_keeps_its_own_init() -> None:
    assert Doubled(2).x == 4


def test_values_of_different_classes_are_not_equal() -> None:
    assert Point(1) != Point3(1)
    assert Point(1) != StandardPoint(1)
    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing())
    assert repr(Nothing()) == "Nothing()"


def test_without_eq_values_are_compared_by_identity() -> None:
    column = Column([1])
    assert column == column
    assert column != Column([1])
    assert hash(column) != hash(Column([1]))
    assert weakref.ref(column)() is column


def test_a_subclass_has_the_fields_of_both() -> None:
    assert [each.name for each in fields(Point3)] == ["x", "tags", "note", "table", "z"]
    assert Point3(1, z=3) == Point3(1, z=3) != Point3(1, z=4)


@pytest.mark.parametrize("value", [Point(1, ("a",), "n", [2]), Point3(1, z=3), Positive(value=2), Nothing()])
def test_values_are_replaced_copied_and_pickled(value: object) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    assert copy.copy(value) == copy.deepcopy(value) == replace(value) == value  # type: ignore[type-var]


def test_a_class_keeps_its_own_methods_and_checks() -> None:
    assert repr(Positive(value=2)) == "+2.0"
    with pytest.raises(ValueError, match="not positive"):
        Positive(value=0)
    with pytest.raises(TypeError):
        Positive(1)  # type: ignore[misc]
