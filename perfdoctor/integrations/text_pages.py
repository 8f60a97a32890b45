"""Long texts in pages, none of them longer than an agent wants to read at once."""

from __future__ import annotations

from perfdoctor.errors import UsageError

PAGE_LINES, PAGE_BYTES = 150, 16_000


def page_of(text: str, page: int) -> str:
    """One page of a text, with a last line that says which one it is where there are several.

    Pages end between paragraphs where that is possible; a line that is longer than a page is cut.

    Raises:
        UsageError: There is no such page.
    """
    pages = _split(text)
    check_page(page, len(pages))
    return pages[page - 1] + _footer(page, len(pages))


def page_range(count: int, page: int, size: int) -> tuple[range, str]:
    """The rows of one page of a table, and the line that says which ones they are.

    Raises:
        UsageError: There is no such page.
    """
    pages = max(-(-count // size), 1)
    check_page(page, pages)
    rows = range((page - 1) * size, min(page * size, count))
    return rows, _footer(page, pages, f"rows {rows.start + 1} to {rows.stop} of {count}, ")


def check_page(page: int, pages: int) -> None:
    """Raise UsageError for a page that there is not."""
    if not 1 <= page <= pages:
        raise UsageError(f"there is no page {page}; the answer has {pages} page{'' if pages == 1 else 's'}")


def _footer(page: int, pages: int, rows: str = "") -> str:
    if pages == 1:
        return ""
    more = f"; the next one: page={page + 1}" if page < pages else ""
    return f"\n({rows}page {page} of {pages}{more})\n"


def _split(text: str) -> list[str]:
    """The pages of a text."""
    pages: list[list[str]] = []
    page: list[str] = []
    size = 0
    for line in map(_cut, text.splitlines()):
        length = len(line.encode()) + 1
        if page and (len(page) == PAGE_LINES or size + length > PAGE_BYTES):
            # From the last paragraph on, if that leaves at least half a page.
            border = max((at for at, each in enumerate(page) if not each), default=0)
            at = border if border >= len(page) // 2 else len(page)
            pages.append(page[:at])
            page = page[at:]
            size = sum(len(each.encode()) + 1 for each in page)
        page.append(line)
        size += length
    return ["\n".join(lines).strip("\n") + "\n" for lines in [*pages, page]]


def _cut(line: str) -> str:
    """A line of at most a page's length."""
    whole = line.encode()
    return line if len(whole) < PAGE_BYTES else whole[: PAGE_BYTES - 8].decode(errors="ignore") + " ..."
