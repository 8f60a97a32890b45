"""Dumps of the flight recorder are read whatever wrote them; a bad one is one sentence, and nothing is executed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import orjson
import pytest
from flight_recorder_dumps import call, dump, pickle_like_torch

from perfdoctor.errors import TraceError
from perfdoctor.trace.flight_recorder import read_dump


def read(tmp_path: Path, data: bytes) -> Any:
    path = tmp_path / "nccl_trace_rank_3"
    path.write_bytes(data)
    return read_dump(path, 3)


DUMP = dump(call(number=1, state="completed"), call("broadcast", 2), call("send 0->1", 5, record=3))


def test_a_pickle_has_groups_calls_and_lines(tmp_path: Path) -> None:
    found = read(tmp_path, pickle_like_torch(DUMP))
    assert pickle.loads(pickle_like_torch(DUMP)) == DUMP
    assert (found.rank, found.version, found.groups["0"].ranks) == (3, "2.9", (0, 1, 2))
    assert [(each.name, each.number, each.has_ended, each.is_p2p) for each in found.calls] == [
        ("all_reduce", 1, True, False),
        ("broadcast", 2, False, False),
        ("send 0->1", 5, False, True),
    ]
    assert found.oldest_unfinished is found.calls[1]
    assert found.calls[1].frames[1].line == 30
    assert found.entered == {"0": 2}


def test_json_without_stacks_says_the_same(tmp_path: Path) -> None:
    plain = dump(call(number=1, state="completed", line=None), call("broadcast", 2, line=None))
    as_json = orjson.loads(orjson.dumps(plain))
    assert read(tmp_path, orjson.dumps(plain)).calls == read(tmp_path, pickle_like_torch(plain)).calls
    assert as_json["entries"][0]["process_group"] == ["0", "default_pg"]


def test_gloo_keeps_the_state_and_retires_what_has_ended(tmp_path: Path) -> None:
    ended = call(number=1, backend="gloo") | {"retired": True}
    found = read(tmp_path, pickle_like_torch(dump(ended, call(number=2, backend="gloo"))))
    assert [each.has_ended for each in found.calls] == [True, False]


def test_entries_of_format_2_0_have_one_number(tmp_path: Path) -> None:
    old = call(number=7, line=None)
    for name in ("collective_seq_id", "p2p_seq_id", "op_id", "input_dtypes", "output_dtypes", "is_p2p", "retired"):
        del old[name]
    found = read(tmp_path, pickle_like_torch(dump(old | {"seq_id": 7}, version="2.0")))
    assert [(each.number, each.input_types) for each in found.calls] == [(7, ())]


def test_many_texts_in_the_memo(tmp_path: Path) -> None:
    groups = {str(number): (f"group {number}", [0, 1]) for number in range(400)}
    entries = [call(number=number, group=(str(number), f"group {number}"), record=number) for number in range(400)]
    assert len(read(tmp_path, pickle_like_torch(dump(*entries, groups=groups))).calls) == 400


class Evil:
    def __reduce__(self) -> Any:
        return print, ("executed",)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pickle.dumps({"entries": [Evil()]}, 2), "calling Python code"),
        (pickle_like_torch(DUMP)[:200], "cut short or damaged at byte"),
        (pickle_like_torch({"segments": []}), "no dump of the flight recorder"),
        (pickle_like_torch(dump({"record_id": 1})), "no dump of the flight recorder"),
        (b"{not json", "neither a pickle nor JSON"),
        # A tuple that has a place in the memo may be put into itself a hundred times over, and hashed for ever.
        (b"\x80\x02X\x01\x00\x00\x00aq\x00X\x01\x00\x00\x00bq\x01\x86q\x02.", "damaged at byte"),
        (b"\x80\x02X\x01\x00\x00\x00aX\x01\x00\x00\x00b\x86X\x01\x00\x00\x00c\x86.", "damaged at byte"),
    ],
)
def test_a_bad_file_is_one_sentence(
    tmp_path: Path, data: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TraceError, match=reason) as caught:
        read(tmp_path, data)
    assert "\n" not in str(caught.value)
    assert "give a dump" in str(caught.value)
    assert capsys.readouterr().out == ""
