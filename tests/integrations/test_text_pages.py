"""Pages: nothing is lost, none is too long, and each says where it is."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.errors import UsageError
from perfdoctor.integrations.mcp_server import PAGE_BYTES, PAGE_LINES, page_of, page_range

FOOTER = re.compile(r"\n\(page [0-9]+ of ([0-9]+)(; the next one: page=[0-9]+)?\)\n\Z")


def pages_of(text: str) -> list[str]:
    """All pages, without their last lines."""
    first = page_of(text, 1)
    found = FOOTER.search(first)
    count = int(found[1]) if found else 1
    return [FOOTER.sub("", page_of(text, number)) for number in range(1, count + 1)]


def test_a_short_text_is_one_page_as_it_is():
    assert page_of("# a\n\nb\n", 1) == "# a\n\nb\n"


def test_the_last_line_names_the_next_page_until_there_is_none():
    text = "line\n" * (2 * PAGE_LINES)
    assert page_of(text, 1).endswith("\n(page 1 of 2; the next one: page=2)\n")
    assert page_of(text, 2).endswith("\n(page 2 of 2)\n")


def test_a_page_ends_between_paragraphs():
    paragraph = "line\n" * 40 + "\n"
    pages = pages_of(paragraph * 5)
    assert [page.count("line") for page in pages] == [120, 80]


@given(st.lists(st.text("aäb ", max_size=600), max_size=400))
def test_no_line_is_lost_and_no_page_is_too_long(lines):
    pages = pages_of("\n".join(lines))
    for page in pages:
        assert len(page.splitlines()) <= PAGE_LINES
        assert len(page.encode()) <= PAGE_BYTES
    joined = [line for page in pages for line in page.splitlines() if line]
    assert joined == [line for line in "\n".join(lines).splitlines() if line]


def test_a_line_longer_than_a_page_is_cut():
    page = page_of("ä" * PAGE_BYTES, 1)
    assert page.endswith("ä ...\n")
    assert len(page.encode()) <= PAGE_BYTES


@pytest.mark.parametrize("page", [0, -1, 3])
def test_a_page_that_there_is_not_gets_one_sentence(page):
    with pytest.raises(UsageError, match=f"there is no page {page}; the answer has 2 pages"):
        page_of("line\n" * (2 * PAGE_LINES), page)
    with pytest.raises(UsageError, match=f"there is no page {page}; the answer has 2 pages"):
        page_range(30, page, 20)


def test_rows_come_page_by_page():
    assert page_range(45, 1, 20) == (range(20), "\n(rows 1 to 20 of 45, page 1 of 3; the next one: page=2)\n")
    assert page_range(45, 3, 20) == (range(40, 45), "\n(rows 41 to 45 of 45, page 3 of 3)\n")
    assert page_range(5, 1, 20) == (range(5), "")
    assert page_range(0, 1, 20) == (range(0), "")
