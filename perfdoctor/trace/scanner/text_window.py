"""A buffer that slides over a text: memory stays at a few blocks, however long the text is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoctor.trace.scanner.layout import PAD

Text: TypeAlias = bytes | bytearray
"""JSON text as it stands in the file, UTF-8."""
Source: TypeAlias = Callable[[memoryview], int]
"""Fills a part of a buffer, at least one byte of it; returns how many bytes, 0 at the end of the text."""

BLOCK = 1 << 20
# No event has so much text, nor has what stands between two: a compressed file of 1 MB can hold 32 GB in one word.
MAX_REST = 1 << 28
_BOM = b"\xef\xbb\xbf"


class TextWindow:
    """The part of a text that is being read: ``buffer[position:end]``, followed by `PAD` zero bytes.

    Attributes:
        buffer: The bytes. It is replaced when it must grow, and its content moves with every `read_more`: offsets into
            it are valid until then.
        position: Offset of the byte that is read next; `read_more` drops what lies before it.
        end: Offset behind the last byte of text.
        base: Offset in the text of the buffer's first byte.
        exhausted: Whether the text ends at `end`.
    """

    def __init__(self, source: Source, block: int = BLOCK, base: int = 0) -> None:
        self._source = source
        self._block = block
        self.buffer: Text = bytearray(2 * block + PAD)
        self.position = self.end = 0
        self.base = base
        self.exhausted = False

    @property
    def offset(self) -> int:
        """Offset in the text of the byte that is read next."""
        return self.base + self.position

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The buffer as an array, which must not outlive the next `read_more`."""
        return np.frombuffer(self.buffer, np.uint8)

    def read_more(self) -> bool:
        """Drop the text that has been read and append at least as much as is left; False when the text has ended.

        A text of which more than `MAX_REST` bytes cannot be read ends there.
        """
        rest = self.end - self.position
        self.exhausted |= rest > MAX_REST
        if self.exhausted:
            return False
        room = 2 * max(rest, self._block)
        buffer = self.buffer if room + PAD <= len(self.buffer) else bytearray(room + PAD)
        with memoryview(buffer) as view:
            view[:rest] = self.buffer[self.position : self.end]
            self.buffer = buffer
            self.base += self.position
            self.position, self.end = 0, rest
            goal = rest + max(rest, self._block)
            while self.end < goal:
                count = self._source(view[self.end : goal])
                if not count:
                    self.exhausted = True
                    break
                self.end += count
            view[self.end : self.end + PAD] = bytes(PAD)
        return self.end > rest

    def skip_byte_order_mark(self) -> bool:
        """Step over a byte order mark at the beginning of the text; returns whether there is one."""
        while self.end < len(_BOM) and self.read_more():
            pass
        if not self.buffer.startswith(_BOM, 0, self.end):
            return False
        self.position = len(_BOM)
        return True


def window_over(text: Text) -> TextWindow:
    """A window that shows all of a text, without the zero bytes behind it."""
    window = TextWindow(lambda _: 0, block=0)
    window.buffer = text
    window.end = len(text)
    window.exhausted = True
    return window


def sliding_window(text: Text, block: int) -> TextWindow:
    """A window that slides over a text in memory, `block` bytes at a time."""
    at = 0

    def source(view: memoryview) -> int:
        nonlocal at
        piece = text[at : at + min(len(view), block)]
        view[: len(piece)] = piece
        at += len(piece)
        return len(piece)

    return TextWindow(source, block)
