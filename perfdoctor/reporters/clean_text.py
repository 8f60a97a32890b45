r"""Text from a trace, cleaned so that it can be printed.

A name in a trace is data. Whatever it holds, it must not move a cursor, colour a line, reorder text or break a line.
Every reporter passes what it prints through `clean_line` or `clean_block` first, and then through the escaping of its
own format.
"""

from __future__ import annotations

import re

# ECMA-48: CSI sequences, OSC/DCS/SOS/PM/APC strings up to their terminator, and two-byte escapes.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_LINE_BREAKS = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")
# C0, DEL, C1, and marks that change the reading direction or have no width: they make a name look like another one.
_INVISIBLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# What a CI service takes for a command wherever it stands in a line: ##[error], ##vso[...], ##teamcity[...].
_COMMANDS = re.compile(r"##(?=\w*\[)")
# And what GitHub takes for one at the beginning of a line.
_LEADING_COMMANDS = re.compile(r"^\s*:+(?=:)", re.MULTILINE)
_PATH = re.compile(r"/[\w.-]+\.py\b")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def clean_line(text: str) -> str:
    """One line without escape sequences, control characters, invisible marks and lone surrogates.

    A line break becomes a blank, and what a CI service takes for a command is none any more.
    """
    text = _INVISIBLE.sub("", _LINE_BREAKS.sub(" ", _ESCAPES.sub("", text)))
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", _COMMANDS.sub("# #", text)).strip()


def defuse_commands(text: str) -> str:
    """Wrapped text of which no line begins with `::`, which GitHub takes for a command; each line is as long as before.

    Names in C++ are full of `::`, so that a line can be broken right before one.
    """
    return _LEADING_COMMANDS.sub(lambda found: found[0].replace(":", " "), text)


def clean_block(text: str) -> str:
    """Several lines, each cleaned; line breaks and indentation stay, and a tab becomes four spaces."""
    lines = text.replace("\r\n", "\n").expandtabs(4).split("\n")
    cleaned = [" " * (len(line) - len(line.lstrip(" "))) + clean_line(line) for line in lines]
    return "\n".join(line.rstrip() for line in cleaned).strip("\n")


def shorten(text: str, width: int, ellipsis: str = "...") -> str:
    """`text` in at most `width` characters; the middle is left out, because both ends of a kernel's name matter."""
    if len(text) <= width:
        return text
    room = max(width - len(ellipsis), 2)
    head = (room + 1) // 2
    return text[:head].rstrip() + ellipsis + text[len(text) - (room - head) :].lstrip()


def shorten_path(text: str, width: int) -> str:
    """A path without as many leading folders as it takes to fit into `width` characters; its last part stays whole.

    "/home/me/projects/thing/train.py:41" becomes ".../thing/train.py:41". What follows the path is not counted apart.
    """
    while len(text) > width and "/" in text.removeprefix(".../"):
        text = f".../{text.removeprefix('.../').partition('/')[2]}"
    return text


def shorten_end(text: str, width: int, ellipsis: str = "...") -> str:
    """`text` in at most `width` characters; the end is left out."""
    return text if len(text) <= width else text[: max(width - len(ellipsis), 0)].rstrip(" ;,:") + ellipsis


def shorten_words(text: str, width: int) -> str:
    """`text` with every word longer than `width` shortened, so that lines can break: a path by leading folders."""
    return " ".join(
        shorten_path(word, width) if _PATH.search(word) else shorten(word, width) for word in text.split(" ")
    )
