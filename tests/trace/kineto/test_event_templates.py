"""Templates of events in the scanner: whatever changes from one event to the next, both readers read the same."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.errors import TraceError
from perfdoctor.trace import Trace, parse
from perfdoctor.trace.kineto.compiled_reader import Chunk
from perfdoctor.trace.scanner import layout
from perfdoctor.trace.scanner.text_window import sliding_window

AssertSame = Callable[[Trace, Trace], None]
Layout = Callable[[int], str]

PLAIN = {"ph": "X", "cat": "kernel", "name": "k", "pid": 1, "tid": 7, "ts": 5, "dur": 2}
KEYS = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]
ARGUMENTS = {"kernel": ["device", "stream", "correlation", "grid"], "cpu_op": ["External id", "Input Dims"]}
ONE_BYTE_AWAY = ["dus", "dur ", "tss", "strean", "streams", "External ie", "ca", "argt"]
SPACES = [("", ""), (", ", ","), (": ", ":"), ("{", "{\n    "), (",", " ,"), (",", ",\n" + " " * 70), ('":', '" :')]


def assert_agree(assert_same: AssertSame, text: str, blocks: list[int]) -> None:
    """Read a text with both readers, the fast one in blocks of some sizes."""
    outcomes: list[Trace | str] = []
    for block in (None, *blocks):
        try:
            outcomes.append(parse(text.encode(), "x", block=block))
        except TraceError as error:
            outcomes.append(str(error))
    reference, *others = outcomes
    for fast in others:
        if isinstance(reference, str) or isinstance(fast, str):
            assert fast == reference
        else:
            assert_same(reference, fast)


def write_members(keys: list[str], values: dict[str, str], number: int) -> str:
    return "{" + ", ".join(f'"{key}": {values.get(key, number)}' for key in keys) + "}"


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """A way to write events by their number: of a kind, with keys in an order, some of them twice or misspelt."""
    kind = draw(st.sampled_from([*ARGUMENTS, "cuda_runtime", "Trace", "ac2g"]))
    phase = draw(st.sampled_from(["X", "X", "X", "f", "M", "i", "B"]))
    keys = list(KEYS if draw(st.booleans()) else draw(st.permutations(KEYS)))
    arguments = list(draw(st.permutations(ARGUMENTS.get(kind, ["correlation"]))))
    for names in (keys, arguments):
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
            names.insert(draw(st.integers(0, len(names))), draw(st.sampled_from([*ONE_BYTE_AWAY, *names])))
    old, new = draw(st.sampled_from(SPACES))
    odd_arguments = draw(st.sampled_from(["", "", "", "", "", "null", "[]", "{}", "7"]))

    def write(number: int) -> str:
        values = {"ph": f'"{phase}"', "cat": f'"{kind}"', "name": f'"n{number % 3}"', "ts": f"{number}.{number % 10}"}
        values |= {"Input Dims": f"[[{number}, 2], []]", "grid": "[2,1,1]"}
        values["args"] = odd_arguments or write_members(arguments, values, number)
        event = write_members(keys, values, number)
        return event.replace(old, new) if old else event

    return write


@given(st.data())
def test_layouts_that_change_from_event_to_event(assert_same: AssertSame, data: st.DataObject) -> None:
    ways = data.draw(st.lists(layouts(), min_size=1, max_size=4))
    chosen = data.draw(st.lists(st.integers(0, len(ways) - 1), min_size=1, max_size=30))
    separator = data.draw(st.sampled_from([",", ", ", ",\n  "]))
    text = separator.join([json.dumps(PLAIN), *(ways[way](number) for number, way in enumerate(chosen))])
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(text) - 1))
        text = text[:place] + data.draw(st.sampled_from(['"', " ", "{", "}", ",", "", "x", "\\"])) + text[place + 1 :]
    assert_agree(assert_same, f"[{text}]", [data.draw(st.integers(1, 400)), 1 << 20])


@pytest.mark.parametrize("arguments", ['"args":{"stream":7}', '"args": {"stream": 7}', '"args"  :  { "stream" :  7  }'])
def test_a_border_of_blocks_in_the_text_before_a_value(arguments: str) -> None:
    """What is learned of text that ends there holds when the text goes on."""
    event = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 1, "tid": 2, "ts": 3, "dur": 12, ' + arguments + "}"
    text = ("[" + ",\n".join([event] * 9) + "]").encode()
    for block in range(1, 2 * len(event)):
        assert parse(text, "x", block=block).gpu.stream.tolist() == [7] * 9


def test_a_value_of_another_type_than_in_the_template() -> None:
    """Arguments that are no object, numbers as text, and null, each among plain events."""
    odd = [PLAIN | {"args": each} for each in (None, [], 3, "x", {}, {"stream": "9"}, {"stream": None})]
    plain = PLAIN | {"args": {"stream": 8}}
    text = json.dumps([event for each in odd for event in (plain, each)])
    expected = [8, 7, 8, 7, 8, 7, 8, 7, 8, 7, 8, 9, 8, 7]  # without an argument the thread's number
    assert parse(text.encode(), "x", block=1 << 20).gpu.stream.tolist() == expected


def count_steps(text: str) -> int:
    """Steps of templates that the scanner has after a list of events."""
    window = sliding_window(text.encode(), 1 << 20)
    window.read_more()
    window.position = 1
    chunk = Chunk(window)
    chunk.scan()
    assert chunk.ended
    return int(chunk.scanner._run_of.learned)


def test_events_alike_share_a_template() -> None:
    ways = [
        '{{"ph":"X","cat":"kernel","name":"k{0}","pid":{0},"tid":7,"ts":{0},"dur":2,"args":{{"stream":{0},"x":{0}}}}}',
        '{{"ph":"X","cat":"cpu_op","name":"o{0}","pid":1,"tid":{0},"ts":{0}.5,"dur":2}}',
        '{{"ph":"f","id":{0},"pid":1,"tid":2,"ts":{0},"cat":"ac2g","name":"ac2g","bp":"e"}}',
    ]
    few, many = (",".join(way.format(number) for number in range(count) for way in ways) for count in (2, 500))
    assert count_steps(f"[{few}]") == count_steps(f"[{many}]") < 30


@pytest.mark.parametrize("kinds", [40, 3000])
def test_more_layouts_than_are_kept(assert_same: AssertSame, kinds: int) -> None:
    """More than may follow one step, and more than there is room for."""
    odd = [{f"key{number % 20}": 1, f"odd{number % kinds}": 2} for number in range(2 * kinds)]
    events = [keys | PLAIN | {"ts": number, f"a{number % kinds}": 3} for number, keys in enumerate(odd)]
    text = json.dumps(events)
    assert_agree(assert_same, text, [1 << 16])
    assert count_steps(text) <= layout.STEPS


def test_a_long_text_before_a_value_is_read_alike(assert_same: AssertSame) -> None:
    for spaces in (*range(40, 70), 200):
        gap = "," + " " * spaces
        assert_agree(assert_same, json.dumps([PLAIN] * 5).replace(",", gap), [64, 1 << 20])
        assert_agree(assert_same, json.dumps([PLAIN | {"cat": "k" * spaces}, *[PLAIN] * 5]), [64, 1 << 20])
