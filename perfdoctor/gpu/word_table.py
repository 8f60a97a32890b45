"""Tables of words, written as text."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text: a table of needles or names stays readable without a line for each."""
    return tuple(text.split())
