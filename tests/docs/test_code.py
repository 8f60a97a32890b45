"""The code of the pages runs: each block says that it does, or why it cannot.

A mark stands in the line above a block: ``<!-- run -->``, ``<!-- not run: why -->``, or ``<!-- example: name -->``
where a test of its own runs it. Blocks of a page run one after the other, in one folder. Examples of rules run without
a mark. Below a command stands what it prints, as far as it is checked; `...` stands for anything.
"""

from __future__ import annotations

import re
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_lines import USAGE_ERROR, parse_line

from perfdoctor.cli.main import main

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "rules" / "examples"
_BLOCK = re.compile(r"(?:^<!-- ([^\n]+) -->\n)?^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Blocks between fences, and indented ones behind an empty line.
_CODE = re.compile(r"^```\w*\n(.*?)^```$|(?<=\n\n)((?: {4}[^\n]+\n)+)", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A block of code in a page: its mark, its language, its lines, and where it begins."""

    mark: str
    language: str
    code: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(m[1] or "", m[2], m[3], text.count("\n", 0, m.start(2)) + 1) for m in _BLOCK.finditer(text)]


PAGES = {
    page.relative_to(ROOT).as_posix(): blocks_of(page)
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if EXAMPLES not in page.parents
}
# Every line of code that calls perfdoctor, in any block, run or not.
LINES = {
    name: re.findall(r"^(?:\$ |    )?((?:\w+=\S+ )*perfdoctor [a-z].*)$", text.replace("\\\n", ""), re.MULTILINE)
    for name, text in (
        (page.relative_to(ROOT).as_posix(), "\n".join(map("".join, _CODE.findall(page.read_text(encoding="utf-8")))))
        for page in (*sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("*.md"), *ROOT.glob("*/README.md"))
    )
    if "perfdoctor " in text
}
RULES = sorted(path.stem for path in EXAMPLES.glob("*.md"))


@pytest.mark.parametrize("page", [page for page, blocks in PAGES.items() if blocks])
def test_every_block_is_run_or_says_why_not(page: str) -> None:
    marks = re.compile(r"run|not run: \w.+|example: .+")
    assert [f"{page}:{block.line}" for block in PAGES[page] if not marks.fullmatch(block.mark)] == []


@pytest.mark.parametrize("page", [page for page, blocks in PAGES.items() if any(each.mark == "run" for each in blocks)])
@pytest.mark.usefixtures("forks")
def test_the_code_of_a_page_runs(page: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    del folder
    pytest.importorskip("torch")
    names: dict[str, Any] = {"__name__": "page"}
    for block in PAGES[page]:
        if block.mark != "run":
            continue
        if block.language == "python":
            exec(compile(block.code, f"{page}:{block.line}", "exec"), names)
        else:
            for command, shown in commands_of(block.code):
                capfd.readouterr()
                assert main(command[1:]) == 0, capfd.readouterr().err
                check_output(shown, capfd.readouterr().out)


@pytest.mark.parametrize("rule", RULES)
def test_both_examples_of_a_rule_run(rule: str, folder: Path, group: None) -> None:
    del folder, group
    setting = compile((EXAMPLES / "setting.py").read_text(encoding="utf-8"), "setting.py", "exec")
    text = (EXAMPLES / f"{rule}.md").read_text(encoding="utf-8")
    assert re.findall(r"^###.*", text, re.MULTILINE) == ["### Bad", "### Good"]
    assert text.count("\n```") == 4
    for block in blocks_of(EXAMPLES / f"{rule}.md"):
        if block.mark:
            assert re.fullmatch(r"not run: \w.+", block.mark)
        if block.language == "console":
            assert block.mark  # a command that starts a server
            continue
        code = compile(block.code, f"{rule}.md:{block.line}", "exec")
        if block.mark:
            continue
        names: dict[str, Any] = {"__name__": "example"}
        exec(setting, names)
        exec(code, names)


@pytest.mark.parametrize("page", LINES)
def test_commands_that_a_page_writes_down_can_be_typed(page: str) -> None:
    for line in LINES[page]:
        try:
            parse_line(line)
        except USAGE_ERROR as error:
            pytest.fail(f"{page} has the line {line!r}: {error.format_message()}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the sample traces and the examples, as a checkout has them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("sample_traces", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "expected"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about a machine without a GPU
        yield tmp_path


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """A process group of this process alone, for the examples that are about several ranks."""
    distributed = pytest.importorskip("torch.distributed")
    threads = pytest.importorskip("torch").get_num_threads()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
    pytest.importorskip("torch").set_num_threads(threads)


def commands_of(code: str) -> list[tuple[list[str], list[str]]]:
    """The commands behind each `$`, as words, each with the output that is shown below it."""
    found: list[tuple[list[str], list[str]]] = []
    for line in code.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            found.append((shlex.split(line[2:]), []))
        else:
            found[-1][1].append(line)
    assert all(words[0] == "perfdoctor" for words, _ in found)
    return found


def check_output(shown: list[str], printed: str) -> None:
    """Check that lines which a page shows were printed, one after the other."""
    rest = f"\n{printed}"
    for line in shown:
        start, dots, _ = line.partition("...")
        if start:
            _, found, rest = rest.partition(f"\n{start}")
            assert found, f"the page shows {line!r}, and printed was:\n{printed}"
            assert dots or rest[:1] in ("", "\n"), line


@pytest.mark.parametrize(
    ("shown", "fits"),
    [(["a", "c"], True), (["a", "...", "c"], True), (["b ..."], True), (["c", "a"], False), (["d"], False)],
)
def test_output_that_a_page_shows_is_looked_for_in_order(shown: list[str], fits: bool) -> None:
    check: Callable[[], None] = lambda: check_output(shown, "a\nb 1\nc\n")  # noqa: E731
    if fits:
        check()
    else:
        with pytest.raises(AssertionError):
            check()
