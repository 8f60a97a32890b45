from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
import report_samples as samples
from rich.cells import cell_len

from perfdoctor.reporters.clean_text import clean_block
from perfdoctor.reporters.output import write_stdout
from perfdoctor.reporters.terminal import Terminal
from perfdoctor.reporters.write_report import terminal_for

CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("name", [n for n in samples.ALL if n != "hostile"])
def test_the_terminal_report_is_as_recorded(name, golden):
    golden(f"{name}.txt", Terminal().render(samples.ALL[name]()))


@pytest.mark.parametrize("verbosity", [-1, 1])
def test_quiet_and_verbose_reports_are_as_recorded(verbosity, golden):
    golden(f"loader_stall{verbosity:+d}.txt", Terminal(verbosity=verbosity).render(samples.loader_stall()))


def test_colours_are_as_recorded(golden):
    golden("loader_stall_color.txt", Terminal(color=True).render(samples.loader_stall()))


@pytest.mark.parametrize("name", samples.ALL)
@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("verbosity", [-1, 0])
def test_no_line_is_wider_than_the_terminal(name, width, verbosity):
    text = Terminal(width=width, verbosity=verbosity).render(samples.ALL[name]())
    # A fix is there to be copied: it alone is not wrapped.
    fixes = {line.strip() for f in samples.ALL[name]().findings if f.fix for line in clean_block(f.fix).split("\n")}
    wide = [re.sub(r"^fix.*?: ", "", line.strip()) for line in text.split("\n") if cell_len(line) > width]
    assert [line for line in wide if line not in fixes] == []


@pytest.mark.parametrize("name", samples.ALL)
def test_a_finding_takes_at_most_six_lines(name):
    lines = Terminal().render(samples.ALL[name]()).split("\n")
    starts = [i for i, line in enumerate(lines) if re.match(r"\d+\. (HIGH|MEDIUM|LOW)", line)]
    for start in starts:
        block = lines[start : lines.index("", start) if "" in lines[start:] else None]
        assert len([line for line in block if "also true:" not in line]) <= 6 or name == "hostile"


def test_the_long_line_of_a_fix_stays_whole():
    text = Terminal().render(samples.hostile())
    assert any(cell_len(line) > 80 for line in text.split("\n")), "a fix is never wrapped nor cropped"


@pytest.mark.parametrize("verbosity", [-1, 0, 1])
def test_names_of_a_trace_never_become_markup_or_control_characters(verbosity):
    text = Terminal(verbosity=verbosity, width=2000).render(samples.hostile())
    assert not CONTROLS.search(text)
    assert "[bold red]" in text
    assert "</td><script>" in text
    assert "title" not in text


def test_in_colour_only_our_own_escapes_are_there():
    text = Terminal(color=True, width=2000).render(samples.hostile())
    assert ANSI.search(text)
    assert not CONTROLS.search(ANSI.sub("", text))
    plain = Terminal(width=2000).render(samples.hostile())
    # Apart from the bar, whose glyphs differ, colour adds nothing to the words.
    assert [w for w in ANSI.sub("", text).split() if w[0] not in "█▓▒░"] == [
        w for w in plain.split() if w[0] not in "█▓▒░"
    ]


def test_without_colour_there_is_no_escape_and_the_bar_has_a_glyph_a_bucket():
    text = Terminal().render(samples.four_ranks())
    assert "\x1b" not in text
    assert all(glyph in text for glyph in "█▓▒░")


def test_a_terminal_without_blocks_gets_ascii():
    text = Terminal(unicode=False).render(samples.loader_stall())
    assert text.isascii()
    assert "####" in text


def test_quiet_is_the_verdict_and_a_line_a_finding():
    text = Terminal(verbosity=-1).render(samples.kernel())
    assert len(text.splitlines()) == 2 + 3
    assert "HIGH   PD201 37.5 ms   79%  Matrix" in text


def test_verbose_shows_what_the_usual_report_leaves_out():
    usual, verbose = (Terminal(verbosity=v).render(samples.loader_stall()) for v in (0, 1))
    for more in ("batch size: n/a", "https://pytorch.org/docs", "0.013 s"):
        assert more in verbose
        assert more not in usual


def test_a_long_kernel_name_is_shortened_in_the_middle():
    text = Terminal().render(samples.kernel())
    assert samples.KERNEL not in text
    assert re.search(r"seen: largest kernel: void cutlass\S*\.\.\.\S*Params\)", text)


def test_a_cut_trace_is_called_incomplete():
    assert "the trace is incomplete" in Terminal().render(samples.incomplete())
    assert "incomplete" not in Terminal().render(samples.healthy())


class Stream(io.StringIO):
    def __init__(self, *, tty: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._tty, self._encoding = tty, encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._tty


@pytest.fixture
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.usefixtures("plain_environment")
def test_a_terminal_gets_colour_and_a_pipe_does_not():
    assert terminal_for(Stream(tty=True)).color
    assert not terminal_for(Stream(tty=False)).color


@pytest.mark.usefixtures("plain_environment")
@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_the_environment_can_turn_colour_off(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert not terminal_for(Stream(tty=True)).color
    assert terminal_for(Stream(tty=True), color=True).color


@pytest.mark.usefixtures("plain_environment")
@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("300", 100), ("20", 60)])
def test_the_width_is_the_windows_within_reason(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_for(Stream(tty=True)).width == width
    assert terminal_for(Stream(tty=False)).width == 80


def test_a_stream_that_cannot_encode_gets_question_marks(monkeypatch):
    stream = Stream(tty=False, encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    write_stdout("naïve")
    assert stream.getvalue() == "na?ve"
    assert not terminal_for(stream).unicode


@pytest.mark.parametrize("width", range(60, 101))
def test_no_wrapped_line_is_a_command_of_a_ci_service(width):
    report = samples.loader_stall()
    hostile = replace(
        report.findings[0], title="a kernel ::error file=train.py::stop " * 4, advice="::warning::x " * 30
    )
    text = Terminal(width=width, verbosity=1).render(replace(report, findings=(hostile, *report.findings[1:])))
    assert "::error" in text
    assert not [line for line in text.split("\n") if line.lstrip().startswith("::")]
