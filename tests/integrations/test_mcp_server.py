"""The server of the Model Context Protocol, spoken to as clients do: by the official SDK, over a process's pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

import perfdoctor
from perfdoctor.cli.main import main
from perfdoctor.errors import InputError, PerfdoctorError
from perfdoctor.reporters.place_text import PLACES_TITLE
from perfdoctor.reporters.table_text import render_table_markdown
from perfdoctor.reporters.write_comparison import render_comparison
from perfdoctor.reporters.write_report import render_report
from perfdoctor.testing import TraceBuilder

pytest.importorskip("mcp.server.mcpserver", reason="the SDK (mcp>=2) is not installed")

from mcp import Client, StdioServerParameters, stdio_client

from perfdoctor.integrations import mcp_server
from perfdoctor.integrations.mcp_server import Recordings

pytestmark = pytest.mark.process

COMMAND = [sys.executable, "-m", "perfdoctor", "mcp"]


def program(kernel_us: float = 300, kernels: int = 3) -> TraceBuilder:
    builder = TraceBuilder()
    for step in range(6):
        at = 2000 * step
        builder.step(at, 1900)
        for kernel in range(kernels):
            builder.op(f"aten::op{kernel}", at + 10 * kernel, 9)
            builder.kernel(
                f"kernel_{kernel}", at + 100 + (kernel_us + 1) * kernel, kernel_us, launch_us=at + 10 * kernel
            )
    return builder


def talk(folder: Path, *calls: tuple[str, dict[str, Any]], options: tuple[str, ...] = ()) -> list[tuple[bool, str]]:
    """Whether each call failed, and the text of its answer; all calls go to one server."""

    async def run() -> list[tuple[bool, str]]:
        arguments = [*COMMAND[1:], *options]
        server = StdioServerParameters(command=COMMAND[0], args=arguments, cwd=folder, env=dict(os.environ))
        async with Client(stdio_client(server)) as client:
            answers = [await client.call_tool(name, arguments) for name, arguments in calls]
        return [(bool(answer.is_error), answer.content[0].text) for answer in answers]

    return anyio.run(run)


@pytest.mark.process
def test_the_tools_say_when_to_use_them(tmp_path: Path) -> None:
    async def run() -> Any:
        async with Client(stdio_client(StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], cwd=tmp_path))) as c:
            return c.instructions, (await c.list_tools()).tools

    instructions, tools = anyio.run(run)
    assert "Begin with `analyze`" in instructions
    assert "the places (source lines) that take most" in tools[0].description
    assert [tool.name for tool in tools] == ["analyze", "show", "explain", "compare", "propose_fix"]
    for tool in tools:
        assert "Use it" in tool.description
        assert tool.annotations.read_only_hint
        assert all(each["description"] for each in tool.input_schema["properties"].values())
    assert "- kernels: " in tools[1].description


@pytest.mark.process
def test_the_answers_are_those_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before, after = program().write(tmp_path / "before.json.gz"), program(200).write(tmp_path / "after.json.gz")
    listed = sorted(tmp_path.iterdir())
    answers = talk(
        tmp_path,
        ("analyze", {"path": "before.json.gz"}),
        ("show", {"path": str(before), "what": "kernels", "by": "name", "top": 2}),
        ("show", {"path": str(before), "what": "kernels", "top": 2, "page": 2, "sort": "count"}),
        ("explain", {"rule": "pd301"}),
        ("explain", {}),
        ("compare", {"before": "before.json.gz", "after": str(after)}),
        ("analyze", {"path": "before.json.gz", "first_step": 1, "end_step": 3}),
    )
    assert [failed for failed, _ in answers] == [False] * len(answers)
    report, first_rows, next_rows, page, rules, comparison, some_steps = (text for _, text in answers)
    own = perfdoctor.analyze("before.json.gz")
    assert report == render_report(own, ".md")
    assert PLACES_TITLE in report
    table = own.table("kernels", by="name")
    assert first_rows.startswith(render_table_markdown(table.top(2)))
    assert first_rows.endswith("(rows 1 to 2 of 3, page 1 of 2; the next one: page=2)\n")
    assert next_rows.startswith(render_table_markdown(table.sort("count").take([2])))
    assert page.startswith("PD301 unfused-pointwise\n")
    assert "\nPD301 unfused-pointwise: " in rules
    assert comparison == render_comparison(perfdoctor.compare("before.json.gz", after), ".md")
    assert some_steps == render_report(perfdoctor.analyze("before.json.gz", steps=slice(1, 3)), ".md")
    assert sorted(tmp_path.iterdir()) == listed


@pytest.mark.process
def test_what_cannot_be_done_gets_one_sentence(tmp_path: Path) -> None:
    program().write(tmp_path / "trace.json")
    (tmp_path / "no-trace.json").write_text('{"a": 1}')
    answers = talk(
        tmp_path,
        ("analyze", {"path": "missing.json"}),
        ("analyze", {"path": "no-trace.json"}),
        ("analyze", {"path": "-"}),
        ("analyze", {"path": "https://example.org/trace.json"}),
        ("analyze", {"path": "trace.json", "page": 7}),
        ("analyze", {"path": "trace.json", "page": 0}),
        ("analyze", {"path": "trace.json", "first_step": 3, "end_step": 3}),
        ("analyze", {"path": "trace.json", "device": "H1OO"}),
        ("show", {"path": "trace.json", "what": "kernel"}),
        ("show", {"path": "trace.json", "what": "kernels", "sort": "colour"}),
        ("explain", {"rule": "PD999"}),
        ("compare", {"before": "trace.json", "after": "trace.json"}),
        ("explain", {"rule": "PD101"}),
    )
    *failures, (failed, page) = answers
    assert not failed, page
    words = ["no such file", "no trace", *["not a local path"] * 2, "no page 7", "no page 0", "no step from 3"]
    words += [
        "not in the table of devices",
        "did you mean 'kernels'",
        "no column 'colour'",
        "no rule is called",
        "given twice",
    ]
    for (failed, message), word in zip(failures, words, strict=True):
        assert failed, message
        assert word in message
        assert "\n" not in message


@pytest.mark.process
def test_folders_outside_the_roots_are_not_read_and_settings_of_a_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.perfdoctor]\nignore = ["PD101", "PD102"]\n')
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        program().write(folder / "trace.json")
    (inside / "link.json").symlink_to(outside / "trace.json")
    answers = talk(
        tmp_path,
        ("analyze", {"path": "inside/trace.json"}),
        ("analyze", {"path": "outside/trace.json"}),
        ("analyze", {"path": "inside/../outside"}),
        ("analyze", {"path": "inside/link.json"}),
        ("show", {"path": "inside/*.json", "what": "kernels"}),
        ("compare", {"before": "inside/trace.json", "after": "outside/trace.json"}),
        options=("--root", "inside"),
    )
    assert [failed for failed, _ in answers] == [False, True, True, True, True, True]
    assert all("only files under" in text for failed, text in answers if failed)
    assert "pyproject.toml count: PD101, PD102 are off" in answers[0][1]


@pytest.mark.process
def test_a_patch_is_proposed_with_its_proof_or_said_to_have_none_and_nothing_is_written(tmp_path: Path) -> None:
    inside, fixed = tmp_path / "inside", tmp_path / "inside" / "perfdoctor-fix-train"
    fixed.mkdir(parents=True)
    (fixed / "perfdoctor.patch").write_text("perfdoctor: workers=2 makes the step 50% shorter\n")
    (inside / "link").mkdir()
    (tmp_path / "secret").write_text("secret")
    (inside / "link" / "perfdoctor.patch").symlink_to(tmp_path / "secret")
    program().write(inside / "trace.json")
    before = sorted(tmp_path.rglob("*"))
    proven, linked, refused = talk(
        tmp_path,
        ("propose_fix", {"path": str(fixed)}),
        ("propose_fix", {"path": "inside/link"}),
        ("propose_fix", {"path": "inside/trace.json"}),
        options=("--root", "inside"),
    )
    [without] = talk(tmp_path, ("propose_fix", {"path": "inside/trace.json"}))
    assert not proven[0]
    assert proven[1].startswith("perfdoctor: workers=2 makes the step 50% shorter")
    assert [linked[0], refused[0]] == [True, True]
    assert "secret" not in linked[1].replace(str(tmp_path / "secret"), "")
    assert "only files under" in refused[1]
    assert (without[0], without[1].startswith("No finding has an edit")) == (False, True)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.process
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.json")
    with pytest.raises(InputError, match="not a regular file"):
        Recordings().analyze(str(tmp_path / "trace.json"))


@pytest.mark.process
def test_a_call_that_takes_too_long_is_stopped_and_the_service_goes_on(tmp_path: Path) -> None:
    program().write(tmp_path / "trace.json")
    late, page = talk(
        tmp_path, ("analyze", {"path": "trace.json"}), ("explain", {"rule": "PD101"}), options=("--time-limit", "0.001")
    )
    assert (late[0], page[0]) == (True, False)
    assert "longer than 0.001 s" in late[1]


@pytest.mark.parametrize("wait", ["in Python", "elsewhere"])
def test_a_call_that_hangs_blocks_no_later_one(wait: str) -> None:
    go_on, ended = threading.Event(), threading.Event()

    def hang() -> str:
        try:
            while wait == "in Python":
                pass
            go_on.wait(60)
        finally:
            ended.set()
        return ""

    lock = threading.Lock()
    with pytest.raises(InputError, match="longer than"):
        mcp_server._bound_time(hang, lock, 0.2)()
    assert mcp_server._bound_time(lambda: "answer", lock, 60)() == "answer"
    assert wait == "in Python" or not ended.is_set()
    go_on.set()
    assert ended.wait(60)


def test_standard_output_holds_messages_and_nothing_else(tmp_path: Path) -> None:
    program().write(tmp_path / "trace.json")
    opening = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "explain", "arguments": {}}},
    ]
    process = subprocess.Popen(
        COMMAND, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("".join(json.dumps(message) + "\n" for message in messages))
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in range(2)]
    rest, errors = process.communicate(timeout=60)
    assert [answer["id"] for answer in answers] == [1, 2]
    assert (rest, process.returncode) == ("", 0), errors


def test_a_recording_is_read_again_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    analyze = mcp_server.analyze_traces

    def counted(files: Any, *options: Any) -> Any:
        read.extend(str(file.path) for file in files)
        return analyze(files, *options)

    monkeypatch.setattr(mcp_server, "analyze_traces", counted)
    path = str(program().write(tmp_path / "trace.json"))
    recordings = Recordings()
    first = recordings.analyze(path)
    assert recordings.analyze(path) is first
    assert len(recordings.show(path, "kernels")) == 3
    assert len(read) == 1
    program(kernels=2).write(path)
    assert len(recordings.show(path, "kernels")) == 2
    recordings.analyze(path, slice(0, 2))
    assert len(read) == 3


def test_few_reports_are_kept(tmp_path: Path) -> None:
    recordings = Recordings()
    paths = [str(program().write(tmp_path / f"{number}.json")) for number in range(6)]
    first, *_ = [recordings.analyze(path) for path in paths]
    assert recordings.analyze(paths[0]) is not first
    assert recordings.analyze(paths[-1]) is recordings.analyze(paths[-1])


def test_a_root_that_is_no_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--root", "missing"]) == 2
    assert "--root missing is not a folder" in capsys.readouterr().err


def test_roots_take_a_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    program().write(tmp_path / "trace.json")
    assert Recordings(["~"]).analyze("~/trace.json").findings is not None
    with pytest.raises(InputError, match="only files under"):
        Recordings(["~/other"]).analyze("~/trace.json")


def test_without_the_sdk_one_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "perfdoctor.integrations.mcp_server")
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert main(["mcp"]) == 2
    assert "pip install 'perfdoctor[mcp]'" in capsys.readouterr().err


def test_a_fault_of_ours_keeps_the_server_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("by zero\nagain")

    monkeypatch.setattr(mcp_server, "analyze_traces", fail)
    path = str(program().write(tmp_path / "trace.json"))

    async def run() -> Any:
        async with Client(mcp_server.make_server(Recordings())) as client:
            return [await client.call_tool("analyze", {"path": path}), await client.call_tool("explain", {})]

    failed, explained = anyio.run(run)
    assert failed.is_error
    assert "internal error, which is our fault: ZeroDivisionError: by zero again" in failed.content[0].text
    assert not explained.is_error
    assert not issubclass(ZeroDivisionError, PerfdoctorError)
