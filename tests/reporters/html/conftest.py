"""One browser for all tests of the page; they are skipped where none is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.headless_browser import Browser, Page, find_chromium
from perfdoctor.report.report import Report
from perfdoctor.reporters.html.html import Html


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A running Chromium with an empty profile."""
    executable = find_chromium()
    if executable is None:
        pytest.skip("Chromium is not installed: the page was not looked at (apt-get install chromium)")
    running = Browser(executable, tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens the page of a report in a tab. At the end, no tab may have complained or asked for anything but itself."""
    opened: list[tuple[Page, Path]] = []

    def open_page(report: Report, **how: Any) -> Page:
        path = tmp_path / f"report{len(opened)}.html"
        path.write_text(Html().render(report), encoding="utf-8")
        page = browser.open(path, **how)
        opened.append((page, path))
        return page

    yield open_page
    for page, path in opened:
        complaints, requests = page.complaints(), page.requests()
        page.close()
        assert complaints == []
        assert requests == [path.as_uri()]
