"""Blocks of rich as text, the same way for every report on a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType

from perfdoctor.reporters.clean_text import defuse_commands


def render_blocks(blocks: Iterable[RenderableType], width: int, *, color: bool) -> str:
    """The blocks below each other as text in `width` columns, with ANSI colours if `color`."""
    return "".join(render_each(blocks, width, color=color))


def render_each(blocks: Iterable[RenderableType], width: int, *, color: bool) -> Iterator[str]:
    """The text of each block, as `render_blocks` puts them below each other.

    No string is parsed as markup, highlighted or taken for an emoji, and nothing depends on the environment.
    """
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    )
    for block in blocks:
        with console.capture() as captured:
            console.print(block, crop=False)
        yield defuse_commands(captured.get())


def strip_lines(text: str) -> str:
    """A text without blanks at the ends of its lines, and with one line break at its own end."""
    return "\n".join(line.rstrip() for line in text.rstrip("\n").split("\n")) + "\n"
