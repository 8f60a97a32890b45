"""The page as text: readable without its script, closed to the network, and every name in it stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import page_samples
import pytest
import report_samples

from perfdoctor.reporters.format_values import format_finding_saving
from perfdoctor.reporters.html.html import Html
from perfdoctor.reporters.html.page_view import fix_block
from perfdoctor.reporters.html.table_view import STATIC_ROWS
from perfdoctor.reporters.place_text import place_texts
from perfdoctor.reporters.report_facts import main_findings
from perfdoctor.reporters.verdict import describe_ladder, verdict_of
from perfdoctor.reporters.write_report import save_report


class Reader(HTMLParser):
    """What a mail client without scripts shows: the texts, the tags with their attributes, and the scripts apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, str]] = []
        self.headings: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("h1", "h2"):
            self.headings.append("")
            self._inside = tag
        if tag in ("script", "style"):
            self._inside = tag
            self.raw.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            tag, text = self.raw.pop()
            self.raw.append((tag, text + data))
            return
        self.texts.append(data)
        if self._inside:
            self.headings[-1] += data

    @property
    def text(self) -> str:
        """All that is read, blanks joined."""
        return " ".join(" ".join(self.texts).split())

    @property
    def data(self) -> Any:
        """The data of the page."""
        return json.loads(next(text for tag, text in self.raw if tag == "script"))


def read(report: Any) -> Reader:
    return Reader(Html().render(report))


SAMPLES = [
    *(report_samples.healthy, report_samples.loader_stall, report_samples.kernel, report_samples.cpu_only),
    *(report_samples.four_ranks, report_samples.whole, report_samples.tried, report_samples.incomplete),
    *(report_samples.empty, report_samples.hostile, page_samples.everything, page_samples.hostile),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.__name__)
def test_the_page_reads_without_a_script(sample: Any) -> None:
    report = sample()
    text = read(report).text
    if "hostile" not in sample.__name__:
        assert verdict_of(report) in text
        for finding in main_findings(report):
            assert finding.advice in text
            assert format_finding_saving(finding) in text
    ladder = describe_ladder(report)
    assert ladder is None or ladder in text
    for outcome in report.outcomes:
        assert outcome.rule in text


def test_the_verdict_comes_first_and_how_it_was_measured_last() -> None:
    page = read(page_samples.everything())
    assert page.headings[0] == verdict_of(page_samples.everything())
    order = ("The places that take", "Where a step's 43.1 ms", "What to change", "Timeline of", "Memory over",
             "Where a step's time goes, by place", "A step's time by place", "Roofline", "The steps", "Tables",
             "What became of every rule", "How it was measured")  # fmt: skip
    assert len(page.headings) == 1 + len(order)
    for heading, beginning in zip(page.headings[1:], order, strict=True):
        assert heading.startswith(beginning)


def test_the_policy_allows_what_is_there_and_nothing_else() -> None:
    page = read(page_samples.everything())
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    hashes = set(re.findall(r"'sha256-([^']+)'", policy))
    runs = [text for tag, text in page.raw if tag == "style"] + [text for tag, text in page.raw if tag == "script"][1:]
    assert {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in runs} == hashes
    assert len(runs) == 3


def test_nothing_is_loaded_from_anywhere() -> None:
    for tag, attributes in read(page_samples.everything()).tags:
        assert not {"src", "srcset", "style", "background", "poster"} & attributes.keys(), (tag, attributes)
        assert tag not in ("link", "iframe", "object", "embed", "form", "base")
        assert not any(name.startswith("on") for name in attributes)


def test_the_same_report_gives_the_same_page() -> None:
    assert Html().render(page_samples.everything()) == Html().render(page_samples.everything())


def test_hostile_names_stay_text() -> None:
    page = read(page_samples.hostile())
    assert [tag for tag, _ in page.tags if tag in ("img", "script")] == ["script"] * 3
    assert "{{ 7 * 7 }}" in page.text
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert all(href is not None and href.startswith(("#", "https://")) for href in links)
    text = Html().render(page_samples.hostile())
    for unseen in ("\x00", "\x1b", "\u202e", "\ud800"):
        assert unseen not in text
    # A fix is there to be copied whole; every other name is shortened.
    assert "w" * 301 not in re.sub(r'<pre.*?</pre>|data-text="[^"]*"', "", text, flags=re.DOTALL)
    assert page.data["timeline"]["names"][0] == page_samples.HOSTILE[0]


def test_data_cannot_end_its_element() -> None:
    text = Html().render(page_samples.hostile())
    data = text[text.index('id="data">') : text.index("</script>", text.index('id="data">'))]
    assert not set("<&\u2028\u2029") & set(data.removeprefix('id="data">'))


def test_our_own_files_hold_nothing_that_ends_them() -> None:
    folder = Path(__file__).resolve().parents[3] / "perfdoctor" / "reporters" / "html"
    files = [*folder.glob("assets/*"), *folder.glob("vendor/*/*.js"), *folder.glob("vendor/*/*.css")]
    assert len(files) > 12
    for path in files:
        text = path.read_text(encoding="utf-8").lower()
        assert not re.search(r"</script|</style|<!--", text), path
        if "vendor" not in path.parts:
            assert not re.search(r"\beval\(|new function|innerhtml|insertadjacenthtml|document\.write", text), path


def test_the_library_has_its_licence_and_version() -> None:
    folder = Path(__file__).resolve().parents[3] / "perfdoctor" / "reporters" / "html" / "vendor" / "uplot"
    version = (folder / "VERSION").read_text(encoding="utf-8").split()[1]
    assert f"(v{version})" in (folder / "uPlot.iife.min.js").read_text(encoding="utf-8")[:200]
    assert "MIT License" in (folder / "LICENSE").read_text(encoding="utf-8")


def test_the_first_rows_of_a_table_are_there_without_a_script_and_all_rows_with_it() -> None:
    page = read(page_samples.everything())
    assert "vectorized_add 1 " in page.text
    assert f" {STATIC_ROWS} 4" not in page.text
    kernels = page.data["tables"][0]
    names = {column["name"]: column for column in kernels["columns"]}
    assert len(names["name"]["texts"]) == 60
    assert "values" not in names["name"]
    assert names["step_ns"]["values"][0] == 6_000_000
    assert names["step_ns"]["texts"][0] == "6.00 ms"
    assert names["bound"]["main"] is False
    assert "bytes" not in names, "a column that is known in no row"
    assert "No op was recorded." in page.text


def test_what_a_report_has_no_data_for_is_not_on_the_page() -> None:
    page = read(report_samples.loader_stall())
    assert page.data["timeline"] is None
    assert not [tag for tag, attributes in page.tags if "data-chart" in attributes]
    assert [heading.split(" ")[0] for heading in page.headings[1:]] == ["Where", "What", "What", "How"]
    base = page_samples.everything()
    assert base.charts is not None
    on_cpu = read(replace(base, charts=replace(base.charts, roofline=None)))
    assert not [each for each in on_cpu.headings if each.startswith("Roofline")]
    assert "#roofline" not in [attributes.get("href") for _, attributes in on_cpu.tags]


def test_a_place_has_its_line_its_time_what_runs_there_and_links_to_its_findings() -> None:
    report = page_samples.everything()
    page = read(report)
    for text in place_texts(report, most=None):
        for said in (text.name, f"{text.line} {text.source}", text.share, text.time, text.causes, text.runs):
            assert said in page.text
    assert [a["id"] for tag, a in page.tags if tag == "article"] == ["place-1", "place-2", "finding-1", "finding-2"]
    assert [a["href"] for _, a in page.tags if (a.get("href") or "").startswith("#finding-")] == ["#finding-1"]
    assert page.data["flames"]["places"] == [[1, 1]], "the small one has no paragraph"


def test_ranks_have_a_table_and_a_heat_map() -> None:
    page = read(page_samples.four_ranks())
    assert "late by" in page.text
    assert [a["data-chart"] for _, a in page.tags if "data-chart" in a][-1] == "ranks"
    assert not [a for _, a in read(page_samples.everything()).tags if a.get("data-chart") == "ranks"]


@pytest.mark.parametrize(
    ("fix", "kind", "marks"),
    [
        ("env -u PYTORCH_NO_CUDA_MEMORY_CACHING python train.py", "command", "$"),
        ("OMP_NUM_THREADS=8 python train.py", "command", "$"),
        ("loader = DataLoader(dataset, num_workers=4)", "diff", "-+"),
        ("torch.backends.cudnn.benchmark = True\nmodel = compile(model)", "diff", " ++"),
    ],
)
def test_a_fix_is_a_command_or_a_diff(fix: str, kind: str, marks: str) -> None:
    stall = page_samples.everything().findings[0]
    block = fix_block(replace(stall, fix=fix))
    assert block is not None
    assert block.kind == kind
    assert "".join(line.mark for line in block.lines) == marks
    assert block.text == fix


def test_a_fix_without_a_source_line_has_nothing_to_take_away() -> None:
    block = fix_block(report_samples.loader_stall().findings[0])
    assert block is not None
    assert {line.mark for line in block.lines} == {"+"}
    assert fix_block(replace(report_samples.loader_stall().findings[0], fix=None)) is None


def test_save_writes_the_page(tmp_path: Path) -> None:
    save_report(page_samples.everything(), tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
