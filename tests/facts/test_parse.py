"""CapturedFacts reads what any version wrote, and what nobody wrote: what it does not understand is not known."""

import json
import pickle
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.facts.loaders import LoaderFacts
from perfdoctor.facts.part import NOTHING, CapturedPart


def subclasses(cls: type[CapturedPart]) -> list[type[CapturedPart]]:
    return [each for child in cls.__subclasses__() for each in (child, *subclasses(child))]


PARTS = subclasses(CapturedPart)
KEYS = sorted({name.removesuffix("_") for part in PARTS for name in get_type_hints(part)} | {"base_step_ns", "max"})
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["worker", "torch.save"])
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20,
)


def check(value: object) -> None:
    """Every value is of a type that fields have, and no number is one that JSON lacks or int64 cannot hold."""
    if isinstance(value, CapturedPart):
        for name, inner in vars(value).items():
            assert hasattr(type(value), name)
            check(inner)
    elif isinstance(value, tuple):
        for inner in value:
            check(inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            assert isinstance(key, str)
            check(inner)
    else:
        assert isinstance(value, bool | str | int | float | None), value
        assert type(value) not in (int, float) or -(2**55) < value < 2**55
        assert value == value


@given(st.dictionaries(st.sampled_from(KEYS), PLAIN, max_size=8))
def test_anything_is_read(plain):
    facts = CapturedFacts.parse(plain)
    check(facts)
    assert pickle.loads(pickle.dumps(facts)) == facts
    assert hash(facts) == hash(CapturedFacts.parse(plain))


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_what_is_not_captured_is_not_known(part):
    assert not part.parse({})
    for name in get_type_hints(part):
        assert getattr(part(), name) in (None, (), NOTHING) or not getattr(part(), name), name


READ = {
    "a whole number where any is expected": ({"cores": {"available": 8}}, lambda facts: facts.cores.available, 8),
    "a truth value is no number": ({"cpu": {"count": True}}, lambda facts: facts.cpu.count, None),
    "nor is a number below 0": ({"cpu": {"count": -1}}, lambda facts: facts.cpu.count, None),
    "nor one that int64 cannot hold": ({"cpu": {"count": 2**55}}, lambda facts: facts.cpu.count, None),
    "a number is no truth value": ({"flags": {"cudnn_benchmark": 1}}, lambda facts: facts.flags.cudnn_benchmark, None),
    "a word of a list": ({"step_source": "loader"}, lambda facts: facts.step_source, "loader"),
    "another word": ({"step_source": "moon"}, lambda facts: facts.step_source, None),
    "a word where a list is expected": ({"loaders": "many"}, lambda facts: facts.loaders, ()),
    "elements of another type": ({"notes": ["a", 1, None, "b"]}, lambda facts: facts.notes, ("a", "b")),
    "a step that is no number keeps its place": (
        {"base_step_ns": [5, None, "x", 7]},
        lambda facts: facts.base.step_ns,
        (5, None, None, 7),
    ),
    "a column of a window": ({"timing_cpu_ns": [3]}, lambda facts: facts.timing.cpu_ns, (3,)),
    "no part": ({"nvml": None}, lambda facts: bool(facts.nvml), False),
    "a part of another type": ({"nvml": 3}, lambda facts: facts.nvml.devices, ()),
    "a name that Python reserves": (
        {"optimizers": [{"class": "Adam"}]},
        lambda facts: facts.optimizers[0].class_,
        "Adam",
    ),
    "windows by name": (
        {"flags_by_window": {"base": {"default_dtype": "x"}, "?": {}}},
        lambda facts: {name: each.default_dtype for name, each in facts.flags_by_window.items()},
        {"base": "x"},
    ),
    "an unknown key": ({"colour": "red"}, bool, False),
}


@pytest.mark.parametrize(("plain", "ask", "expected"), READ.values(), ids=READ)
def test_reading(plain, ask, expected):
    answer = ask(CapturedFacts.parse(json.loads(json.dumps(plain))))
    assert answer == expected
    assert type(answer) is type(expected)


def test_no_object():
    assert not CapturedFacts.parse([1, 2])


def test_a_part_is_a_frozen_value():
    part = LoaderFacts(num_workers=2)
    assert part == LoaderFacts(num_workers=2) != LoaderFacts(num_workers=3)
    assert repr(part) == "LoaderFacts(num_workers=2)"
    with pytest.raises(AttributeError, match="num_workers"):
        part.num_workers = 3
    with pytest.raises(AttributeError, match="num_workers"):
        del part.num_workers
    with pytest.raises(TypeError, match="no field 'workers'"):
        LoaderFacts(workers=3)


def test_steps_of_a_window():
    facts = CapturedFacts.parse({"base_step_ns": [10, 0, 30], "timing_step_ns": []})
    assert (facts.base.timed_ns, facts.base.median_ns) == ((10, 30), 20)
    assert (facts.timing.timed_ns, facts.timing.median_ns) == ((), None)
