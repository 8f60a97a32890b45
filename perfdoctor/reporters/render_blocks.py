"""Blocks of rich as text, the same way for every report on a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType

from perfdoctor.reporters.clean_text import defuse_commands


def render_blocks(blocks: Iterable[RenderableType], width: int, *, color: bool) -> str:
    """The blocks below each other as text in `width` columns, with ANSI colours if `color`.

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
    with console.capture() as captured:
        for block in blocks:
            console.print(block, crop=False)
    return defuse_commands(captured.get())
