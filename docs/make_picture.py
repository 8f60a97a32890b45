"""Draw docs/report.svg: the terminal report of a sample trace, as rich prints it.

python docs/make_picture.py
"""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from rich.text import Text

import perfdoctor
from perfdoctor.reporters.terminal import Terminal

ROOT = Path(__file__).resolve().parent.parent


def draw(path: Path) -> None:
    """Analyse the sample as a user would, from the repository's folder, and save the picture."""
    report = perfdoctor.analyze(ROOT / "sample_traces" / "dataloader-stall.json.gz")
    text = Terminal(width=88, color=True).render(report)
    console = Console(record=True, width=88, file=io.StringIO(), force_terminal=True)
    console.print("[bold]$ perfdoctor analyze sample_traces/dataloader-stall.json.gz[/bold]\n")
    console.print(Text.from_ansi(text))
    console.save_svg(str(path), title="perfdoctor")


def main() -> None:
    """Draw the picture of the README."""
    draw(ROOT / "docs" / "report.svg")


if __name__ == "__main__":
    main()
