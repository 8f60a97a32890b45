"""The page in a real browser: what is drawn, and what mouse, wheel and keys do. No tab may complain or load anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import page_samples
import pytest
from browser import Page

from perfdoctor.report.report import Report

Show = Callable[..., Page]
CTRL, SHIFT = 2, 8
# How many of a canvas' points differ from the one in its corner: none, where nothing was drawn.
DRAWN = """(selector => {
  const all = [...document.querySelectorAll(selector)].map(c => {
    const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
    const colours = new Set();
    for (let i = 0; i < d.length; i += 4) colours.add(d[i] << 24 | d[i+1] << 16 | d[i+2] << 8 | d[i+3]);
    return colours.size;
  });
  return all;
})"""
TIP = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText"


def kernels(page: Page) -> list[str]:
    """The first column of the table of kernels, as shown."""
    names: list[str] = page.evaluate("[...document.querySelectorAll('#table-kernels tbody td:first-child')].map(c => c.textContent)")
    return names


def view(page: Page) -> str:
    """The times along the axis, which say what is in sight, as one sees them: as pixels."""
    pixels: str = page.evaluate("document.querySelector('.chart-timeline canvas').toDataURL()")
    return pixels


def test_every_chart_is_drawn_when_it_comes_into_sight(show: Show) -> None:
    page = show(with_modules(page_samples.everything()))
    places = page.evaluate("[...document.querySelectorAll('[data-chart]')].map(e => e.dataset.chart)")
    assert places == ["timeline", "flames", "roofline", "modules", "steps"]
    assert page.evaluate("document.querySelector('[data-chart=steps]').dataset.started") is None
    for name in places:
        page.show(f"[data-chart={name}]")
        colours = page.evaluate(f"{DRAWN}('[data-chart={name}] canvas')")
        assert colours, name
        assert min(colours) > 1 or name == "timeline", (name, colours)
        assert max(colours) > 4, (name, colours)
