"""The profiler's names: what functions of the vocabulary make of them, and that nobody spells them elsewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import perfdoctor
from perfdoctor import analyzers
from perfdoctor.trace import vocabulary

SOURCES, ANALYZERS = Path(perfdoctor.__file__).parent, Path(analyzers.__file__).parent
# Spellings of the profiler's names, in plain text and in regular expressions.
SPELLINGS = re.compile(
    r"ProfilerStep|enumerate\\?\(DataLoader|DataLoaderIter|Optimizer\\?\.(step|zero_grad)#|DataParallel\\?\.forward"
    r"|perfdoctor::|evaluate_function|Torch-Compiled|CompiledF|TorchDynamo|dynamo_timed|_frame_compile"
    r"|(?<![A-Za-z])[HDP]to[HDP](?![A-Za-z])|(Host|Device)ToDevice|Pageable\b.*->|-> (Device|Pageable)"
    r"|StreamWait|GraphLaunch|\)(Stream|Synchronize|Memcpy)|Stream Wait Event|\b(gloo|mpi|ucc)\|"
)
# The recorder cannot import this package, builders of traces write names, and an export has names as numbers.
ELSEWHERE = ("capture/", "testing/", "trace/vocabulary.py", "trace/nsight/export_names.py")
# What ops and kernels are for is known in gpu, by their names.
CLASSIFIERS = ("gpu/classify_ops.py",)


def texts(source: str) -> Iterator[str]:
    """The texts of a source file, its docstrings left out."""
    tree = ast.parse(source)
    pages = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pages:
            yield node.value


def test_the_profilers_names_are_spelled_in_the_vocabulary_alone() -> None:
    files = [*SOURCES.rglob("*.py"), *ANALYZERS.glob("*.py")]
    found = {}
    for file in files:
        name = file.relative_to(SOURCES).as_posix() if file.is_relative_to(SOURCES) else file.name
        if not name.startswith((*ELSEWHERE, *CLASSIFIERS)):
            spelled = [text for text in texts(file.read_text(encoding="utf-8")) if SPELLINGS.search(text)]
            found |= {name: spelled} if spelled else {}
    assert len(files) > 200
    assert not found


def test_the_guard_knows_the_spellings() -> None:
    own = list(texts((SOURCES / "trace" / "vocabulary.py").read_text(encoding="utf-8")))
    assert sum(SPELLINGS.search(text) is not None for text in own) > 20


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (vocabulary.profiler_step_name(12), 12),
        ("ProfilerStep#0", 0),
        ("ProfilerStep#" + "9" * 18, int("9" * 18)),
        ("ProfilerStep#" + "9" * 19, None),
        ("ProfilerStep#", None),
        ("ProfilerStep#-1", None),
        ("my ProfilerStep#1", None),
    ],
)
def test_a_step_has_a_number(name: str, number: int | None) -> None:
    assert vocabulary.profiler_step_number(name) == number


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step 12", ("step ", 12)),
        ("Train_Iteration_007", ("Train_Iteration_", 7)),
        ("global/step#3", ("global/step#", 3)),
        ("steps 3", None),
        ("step 3 of 4", None),
        ("warmup step 3", None),
    ],
)
def test_people_count_steps_in_their_own_words(name: str, step: tuple[str, int] | None) -> None:
    assert vocabulary.parse_counted_step(name) == step


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("@/home/a/train.py:12 main", ("/home/a/train.py", 12, "main")),
        ("@C:\\a b.py:3", ("C:\\a b.py", 3, None)),
        ("@a.py:1 <module>", ("a.py", 1, "<module>")),
        ("@<string>:1 <module>", None),  # how multiprocessing starts a process
        ("@<string>:3 main", ("<string>", 3, "main")),
        ("@a.py:", None),
        ("@a.py:1234567890", None),
        ("a.py:1 main", None),
    ],
)
def test_a_mark_is_a_line(name: str, line: tuple[str, int, str | None] | None) -> None:
    assert vocabulary.parse_source_mark(name) == line


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("train.py(12): main", ("train.py", 12, "main")),
        ("a(b).py(3): <lambda>", ("a(b).py", 3, "<lambda>")),
        ("<built-in function len>", None),
        ("<frozen runpy>(3): run", None),
        ("nn.Module: Linear_0", None),
    ],
)
def test_a_frame_is_a_line(name: str, line: tuple[str, int, str | None] | None) -> None:
    assert vocabulary.parse_frame(name) == line


def test_names_that_are_written_match_their_patterns() -> None:
    pairs = [
        (vocabulary.profiler_step_name(3), vocabulary.PROFILER_STEP),
        (vocabulary.dataloader_next_name(), vocabulary.DATALOADER_NEXT),
        (vocabulary.dataloader_next_name(vocabulary.MULTI_PROCESS_LOADER), vocabulary.LOADER_NEXT),
        (vocabulary.optimizer_step_name("AdamW"), vocabulary.OPTIMIZER_STEP),
        (vocabulary.zero_grad_name("AdamW"), vocabulary.ZERO_GRAD),
        (vocabulary.FORWARD_MARK_NAME, vocabulary.FORWARD_RANGE),
        (vocabulary.BACKWARD_MARK_NAME, vocabulary.BACKWARD_RANGE),
        (vocabulary.STREAM_WAIT_NAME, vocabulary.STREAM_WAIT_RECORD),
    ]
    assert [name for name, pattern in pairs if not re.search(pattern, name)] == []
    assert vocabulary.optimizer_class(vocabulary.optimizer_step_name("AdamW")) == "AdamW"
    assert vocabulary.compile_id("entire_frame_compile_data: {compile_id=3/1}") == "3/1"
    assert vocabulary.compile_id("entire_frame_compile_data: ?") is None
