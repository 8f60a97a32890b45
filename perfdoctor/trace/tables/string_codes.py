"""StringCodes: every string of a file gets a code once."""

from __future__ import annotations

from typing import Any


class StringCodes(dict[Any, int]):
    """Codes of strings, counted up as they are first asked for.

    Attributes:
        texts: The strings by code.
    """

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __missing__(self, text: Any) -> int:
        self[text] = code = len(self.texts)
        self.texts.append(text)
        return code
