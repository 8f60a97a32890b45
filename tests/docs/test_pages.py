"""The made pages hold all that there is, the site builds without a warning, and it asks nobody for anything."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import make_api_pages
import make_command_pages
import make_rule_pages
import make_site
import pytest

import perfdoctor
import perfdoctor.rules
from perfdoctor.cli.main import COMMANDS, load_command
from perfdoctor.remedies.read_causes import read_all_rows

ROOT = Path(__file__).parents[2]
PAGES = dict(make_site.make_pages())
RULES = make_rule_pages.own_rules()


@pytest.mark.parametrize("rule", RULES, ids=[rule.rule for rule in RULES])
def test_a_rule_has_a_page_with_its_docstring_and_an_example(rule) -> None:
    page = PAGES[f"rules/{rule.rule}.md"]
    assert page.startswith(f"# {rule.rule} {rule.name}\n")
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert headings[: len(make_rule_pages.SECTIONS)] == list(make_rule_pages.SECTIONS)
    assert {"### Bad", "### Good"} <= set(page.splitlines())
    words = set(re.findall(r"[a-z]{4,}", " ".join(make_rule_pages.split_manual(rule).values())))
    assert words <= set(re.findall(r"[a-z]{4,}", page.replace("\\", "")))
    assert all(f"`{threshold}`" in page for threshold in rule.defaults)
    assert all(f"<{reference}>" in page for reference in rule.references)


def test_every_docstring_has_the_sections_that_a_page_shows() -> None:
    for rule in RULES:
        sections = set(make_rule_pages.split_manual(rule))
        assert sections == {*make_rule_pages.SECTIONS, "References"} - {"Example"}, rule.rule


def test_every_rule_has_an_example_and_every_example_a_rule() -> None:
    assert {path.stem for path in make_rule_pages.EXAMPLES.glob("*.md")} == {rule.rule for rule in RULES}


def test_the_families_hold_every_rule_once() -> None:
    table = make_rule_pages.describe_rules()
    assert re.findall(r"\]\((\w+)\.md\)", table) == [rule.rule for rule in RULES]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_page_with_its_options_and_examples(name: str) -> None:
    page = PAGES[f"commands/{name}.md"]
    command = load_command(name)
    for parameter in command.params:
        assert all(f"{option}" in page for option in parameter.opts if option.startswith("-"))
    lines = (command.epilog or "").split("\n")[2:]
    assert lines
    assert all(line.strip() in page for line in lines)
    assert f"[{name}]({name}.md)" in make_command_pages.describe_commands()


def test_the_page_of_try_lists_its_changes_and_rules_name_theirs() -> None:
    table = make_command_pages.describe_changes()
    assert re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE) == [each.name for each in make_rule_pages.own_changes()]
    assert "`perfdoctor try --only fused train.py`" in PAGES["rules/PD303.md"]
    assert "perfdoctor try --only" not in PAGES["rules/PD401.md"]


def test_the_page_of_advice_has_every_row_of_the_table() -> None:
    rows = re.findall(r"^\| (.+?) \| .+ \| \[source\]\((.+)\) \|$", PAGES["advice.md"], re.MULTILINE)
    assert rows == [(row.when.describe(), row.source) for row in read_all_rows()]


def test_each_name_that_rules_import_has_one_page_with_an_example_that_runs() -> None:
    sections = make_api_pages.find_door_sections()
    assert sorted(name for names in sections for name in names) == sorted(perfdoctor.rules.__all__)
    for names, text in sections.items():
        assert re.match(r"[\w`].+\n\n<!-- run -->\n```python\n.+```$", text, re.DOTALL)
        assert text in PAGES[f"api/rules/{names[0]}.md"]


@pytest.mark.parametrize("name", perfdoctor.__all__)
def test_a_public_name_is_in_the_reference(name: str) -> None:
    listed = re.search(rf"\[`perfdoctor\.{name}`\]\((\w+)\.md", make_api_pages.describe_names())
    assert listed
    assert re.search(rf"^::: perfdoctor\.{name}$", PAGES[f"api/{listed[1]}.md"], re.MULTILINE)


def test_the_picture_shows_the_report_of_today(tmp_path: Path) -> None:
    import make_picture

    make_picture.draw(tmp_path / "report.svg")
    assert (tmp_path / "report.svg").read_text() == (ROOT / "docs" / "report.svg").read_text(), (
        "run python docs/make_picture.py"
    )


@pytest.mark.parametrize(
    ("link", "uri", "led"),
    [
        ("[a](../benchmarks/README.md#x-y)", "measuring.md", "[a](benchmarks.md#x-y)"),
        ("[a](../docs/measuring.md)", "benchmarks.md", "[a](measuring.md)"),
        ("[a](../advice.md)", "rules/index.md", "[a](../advice.md)"),
        ("[a](../examples/plugin)", "changes.md", "a"),
        ("[a](https://x.org/y.md) [b](#c)", "faq.md", "[a](https://x.org/y.md) [b](#c)"),
        ("```\n[a](../examples)\n```", "faq.md", "```\n[a](../examples)\n```"),
    ],
)
def test_links_of_files_become_links_of_pages(link: str, uri: str, led: str) -> None:
    source = next((path for path, page in make_site.BORROWED.items() if page == uri), f"docs/{uri}")
    assert make_site.lead_links(link, source, uri) == led


@pytest.mark.parametrize("name", ["README.md", *make_site.BORROWED])
def test_links_between_files_lead_to_files(name: str) -> None:
    links = re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", (ROOT / name).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / name).parent.joinpath(link).exists()] == []


def test_a_part_of_the_report_that_is_gone_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert make_site.fill_marks("<!-- part: Where a step's -->", "x.md").startswith("```text\nWhere a step's ")
    assert not caplog.records
    assert make_site.fill_marks("<!-- part: Weather -->", "x.md") == ""
    assert "x.md asks for the part 'Weather', which does not exist" in caplog.text


def test_the_readme_counts_the_rules_of_each_family() -> None:
    rows = re.findall(r"^\| (PD\d) (.+?) \| (\d+) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    counts = Counter(rule.rule[:3] for rule in make_rule_pages.own_rules())
    assert [(prefix, title, int(count)) for prefix, title, count in rows] == [
        (prefix, title, counts[prefix]) for prefix, title in make_rule_pages.FAMILIES.items()
    ]


def test_each_page_stands_once_in_the_menu() -> None:
    named = re.findall(r"^ +- ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) == len(set(named)) > 20


def test_what_a_docstring_says_is_no_markup() -> None:
    assert make_rule_pages.escape("a_ <b> *c* `d_e<f>`, [g]:\n- h") == "a\\_ \\<b\\> \\*c\\* `d_e<f>`, \\[g\\]:\n\n- h"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    if not all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocstrings")):
        pytest.skip("the site needs pip install 'perfdoctor[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.process
def test_the_site_has_a_page_for_each(site: Path) -> None:
    for uri in PAGES:
        assert (site / uri).with_suffix(".html").is_file()
    reference = "".join(path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html"))
    for name in perfdoctor.__all__:
        assert f'id="perfdoctor.{name}"' in reference or name in make_api_pages.MODULES


@pytest.mark.process
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe|source|link rel=\"?(?:stylesheet|preconnect|icon)\"?)[^>]*(?:src|href)=\"?(https?:)?//"
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    assert [str(page) for page in pages if loads.search(page.read_text(encoding="utf-8"))] == []
    assert not re.search(r"url\((?:https?:)?//", "".join(path.read_text("utf-8") for path in site.rglob("*.css")))


@pytest.mark.process
def test_every_mark_of_the_site_was_filled(site: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in site.rglob("*.html"))
    assert not re.search(r"<!-- (part|table|include|file):", text)
