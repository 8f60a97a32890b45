"""The files of causes: each is as the schema says, what is shared is cited, and a wrong row is named."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from perfdoctor.errors import PerfdoctorError
from perfdoctor.remedies import read_causes
from perfdoctor.remedies.read_causes import name_file, read_rows
from perfdoctor.report.finding import Action

FOLDER = Path(read_causes.__file__).parent
SCHEMA = json.loads((Path(__file__).parent / "remedy.schema.json").read_text())
CAUSES, SHARED = (
    {path: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted((FOLDER / kind).glob("*.toml"))}
    for kind in ("causes", "shared")
)
ROWS = [row for file in (*CAUSES.values(), *SHARED.values()) for row in (file, *file.get("row", ()))]


@pytest.mark.parametrize(("kind", "files"), [("cause", CAUSES), ("shared", SHARED)])
def test_every_file_is_as_the_schema_says(kind: str, files: dict[Path, dict[str, Any]]) -> None:
    check = Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": SCHEMA["$defs"]})
    assert len(files) > 10
    assert [(path.name, error.message) for path, file in files.items() for error in check.iter_errors(file)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"sentense": "x"},
        {"when": {"use": ["vLLM"]}},
        {"when": {"min_compiled": 0.5}},
        {"actions": ["gc"]},
        {"source": "x y"},
    ],
)
def test_the_schema_refuses_what_is_wrong(wrong: dict[str, Any]) -> None:
    check = Draft202012Validator({"$ref": "#/$defs/cause", "$defs": SCHEMA["$defs"]})
    row = {"sentence": "Use it.", "source": "vllm"}
    assert check.is_valid({"situation": "a", **row, "row": [row]})
    assert not check.is_valid({"situation": "a", **row, "row": [row | wrong]})


def test_a_file_is_named_like_its_situation() -> None:
    assert [path.name for path, file in CAUSES.items() if path.stem != name_file(file["situation"])] == []


def test_what_is_shared_is_cited_by_several_rows() -> None:
    cited = Counter(row.get("source") for row in ROWS)
    pages = tomllib.loads((FOLDER / "pages.toml").read_text(encoding="utf-8"))
    assert all(re.fullmatch(r"https://\S+", page) for page in pages.values())
    assert [name for name in pages if cited[name] < 2] == []
    taken = {name_file(row["rows"]) for row in ROWS if "rows" in row}
    assert taken == {path.stem for path in SHARED}
    texts = {path: path.read_text(encoding="utf-8") for path in CAUSES | SHARED}
    addresses = re.compile(r'^source = "(https.+)"', re.MULTILINE)
    files_by_page = Counter(page for text in texts.values() for page in set(addresses.findall(text)))
    assert [page for page, files in files_by_page.items() if files > 1] == []


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], int]]:
    monkeypatch.setattr(read_causes, "_FOLDER", tmp_path)
    for folder in ("causes", "shared"):
        (tmp_path / folder).mkdir()
    read_rows.cache_clear()
    yield lambda name, text: (tmp_path / name).write_text(text)
    read_rows.cache_clear()


TOP = 'situation = "slow"\nsentence = "Do."\nsource = "https://a"\n'


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('sentense = "x"', "'sentense' is none of actions, argument,"),
        ('source = "nowhere"', "'nowhere' is missing, or stands for nothing"),
        ('code = "x"', "'source' is missing"),
        ('source = "https://a"\nwhen = { min_compiled = "all" }', "'all' is missing, or stands for nothing"),
        ('source = "https://a"\nwhen = { use = ["vLLM"] }', "'use'"),
        ('source = "https://a"\nactions = [{ name = "gc" }]', "'name'"),
        ('rows = "what is not there"', "what-is-not-there.toml"),
    ],
)
def test_a_wrong_row_is_named_in_one_sentence(write: Any, row: str, said: str) -> None:
    write("pages.toml", "")
    write("causes/slow.toml", f"{TOP}\n[[row]]\n{row}\n")
    with pytest.raises(PerfdoctorError) as caught:
        read_rows("slow")
    assert "slow.toml, row 1: " in str(caught.value)
    assert said in str(caught.value)
    assert str(caught.value).endswith("; compare it with the files beside it.")


def test_a_row_without_a_sentence_does_what_the_top_does(write: Any) -> None:
    top_does = 'since = "PyTorch 2.3"\nactions = [{ id = "gc" }]'
    rows = '[[row]]\nsource = "https://b"\n\n[[row]]\nsentence = "Be."\nsource = "https://c"\n'
    write("causes/slow.toml", f"{TOP}{top_does}\n\n{rows}")
    same, other, top = read_rows("slow")
    assert same == top._replace(source="https://b")
    assert (top.since, top.actions) == ("PyTorch 2.3", (Action("gc"),))
    assert (other.sentence, other.since, other.actions, other.code) == ("Be.", "", (), None)


SHARED_ROWS = """
[[row]]
sentence = "say it"
source = "https://s"
code = "a({argument})"
actions = [{ id = "gc" }]

[[row]]
sentence = "say it"
source = "https://s"
code = "b"

[[row]]
sentence = "say it"
source = "https://s"
code = "c"
stands_alone = true

[[row]]
sentence = "say it"
source = "https://s"
"""
CITING = """
[[row]]
rows = "ways"
argument = "n=1"
sentence = "{Sentence}, or {sentence}."
code = "{code}; d"
actions = [{ id = "tf32" }]
"""


def test_shared_rows_stand_in_the_braces_of_the_row_that_cites_them(write: Any) -> None:
    write("shared/ways.toml", SHARED_ROWS)
    write("causes/slow.toml", TOP + CITING)
    *ways, _ = read_rows("slow")
    assert {each.sentence for each in ways} == {"Say it, or say it."}
    assert [each.code for each in ways] == ["a(n=1); d", "b; d", "c", None]
    assert [each.actions for each in ways] == [(Action("tf32"), Action("gc")), (), (), ()]
