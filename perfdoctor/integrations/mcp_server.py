"""The server of the Model Context Protocol: reports, tables, comparisons and rules in pages that an agent can read.

An answer is Markdown of one page. Reports are kept while their files do not change, so that the next page, or a table
of the same trace, comes at once.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

import perfdoctor
from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.api import Report, analyze_traces
from perfdoctor.compare_traces import Comparison
from perfdoctor.errors import InputError, PerfdoctorError, UsageError
from perfdoctor.fixes.patch import PATCH_FILE
from perfdoctor.fixes.propose_patch import find_project, propose_for_report
from perfdoctor.fleet.discover import find_traces
from perfdoctor.fleet.rank_tasks import steps_path_of
from perfdoctor.installed_packages import find_version
from perfdoctor.report.table import Table
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.manual_page import catalogue, manual_page
from perfdoctor.reporters.table_text import render_table_markdown
from perfdoctor.reporters.write_comparison import render_comparison
from perfdoctor.reporters.write_report import render_report
from perfdoctor.tables.catalog import TABLES, check_table
from perfdoctor.trace.io.remote import STDIN, is_remote
from perfdoctor.trace.io.untrusted_files import quote_only_under

_INSTRUCTIONS = """\
perfdoctor says why a recorded PyTorch step is slow, which line to change, and what that gives. It reads traces of
torch.profiler (.json, .json.gz), captures of `perfdoctor run`, and SQLite exports of Nsight Systems; it runs and writes
nothing. Begin with `analyze`. Use `explain` on a rule of a finding before you act on it, `show` where a finding needs
figures, and `compare` on recordings from before and after a change. Every answer is one page; its last line says
whether there are more."""
_ANALYZE = """\
Say why a recorded step is slow and what to change. The report has the verdict, the places (source lines) that take most
of the time with what runs there, the time by cause, and findings ranked by what their fix is worth, with evidence,
source line and fix. Use it first for any trace."""
_SHOW = """\
One table of a recording, most expensive rows first. Use it after `analyze`, for figures that the report does not have.
Tables, and what each can be grouped by (the first is the default):
{tables}"""
_EXPLAIN = """\
The manual page of a rule: what it finds, how it is measured, how to fix it, when it is wrong. Use it before acting on a
finding. Without a rule: all rules, a line each."""
_COMPARE = """\
What became faster or slower between two recordings of a program, whether that is more than noise, which findings went
away, and whether the promised saving came. Use it after a change; `before` and `after` must be different recordings."""
_PROPOSE_FIX = """\
A patch of the program's source for what the findings advise, as a diff for git apply. Of a folder that perfdoctor fix
has written it comes with what was measured; of a recording nothing of it was measured. Nothing is written.
Use it when the advice of a report is to be carried out, and let perfdoctor fix measure the program."""
_ALL_STEPS = slice(None)
_NO_OPTIONS = AnalysisOptions()
_KEPT_ANSWERS = 4  # a report keeps the tables of the rank that was last shown in memory
_MAX_ROWS = 50


def _from(minimum: int) -> dict[str, Any]:
    """A limit as the schema of an argument says it; what is beyond gets one sentence of ours, not a schema's error."""
    return {"minimum": minimum}


_Path = Annotated[
    str, Field(description="A trace, a capture folder, a folder of rank traces, or a pattern; a local path.")
]
_Page = Annotated[int, Field(description="Which page of the answer, from 1.", json_schema_extra=_from(1))]
_FirstStep = Annotated[
    int | None, Field(description="The first step to analyse, counted from 0.", json_schema_extra=_from(0))
]
_EndStep = Annotated[
    int | None, Field(description="The step before which the analysis ends.", json_schema_extra=_from(1))
]
_Device = Annotated[str | None, Field(description="Name of the GPU, where the trace lacks it, such as H100.")]
_Rank = Annotated[int | None, Field(description="The rank to show; by default the one with the longest step.")]


class Recordings:
    """Reports and comparisons of local recordings, kept while their files stay as they are.

    Args:
        roots: Folders outside of which no recording and no source line is read; none for no limit.
        options: Rules and thresholds of every report and comparison, and the file that they come from.
    """

    def __init__(self, roots: Iterable[str] = (), options: AnalysisOptions = _NO_OPTIONS) -> None:
        self._roots = [Path(root).expanduser().resolve() for root in roots]
        self._options = options
        self._answers: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def analyze(self, path: str, steps: slice = _ALL_STEPS, device: str | None = None) -> Report:
        """The report on a recording.

        Raises:
            PerfdoctorError: It cannot be analysed.
        """
        with quote_only_under(self._roots):
            return self._analyze(path, steps, device)

    def show(
        self,
        path: str,
        what: str,
        by: str | None = None,
        *,
        rank: int | None = None,
        steps: slice = _ALL_STEPS,
        device: str | None = None,
    ) -> Table:
        """A table of a recording.

        Raises:
            PerfdoctorError: There is no such table, or the recording cannot be analysed.
        """
        check_table(what, by)  # before anything is read
        with quote_only_under(self._roots):
            return self._analyze(path, steps, device).table(what, by, rank=rank)

    def compare(self, before: str, after: str) -> Comparison:
        """The comparison of two recordings.

        Raises:
            PerfdoctorError: They cannot be compared.
        """
        with quote_only_under(self._roots):
            paths = [self._check_path(path) for path in (before, after)]
            rules = {name: getattr(self._options, name) for name in ("select", "ignore", "settings")}
            comparison: Comparison = self._keep(
                "compare", *map(_state_of, paths), make=lambda: perfdoctor.compare(*paths, **rules)
            )
            return comparison

    def propose_fix(self, path: str) -> str:
        """The patch in a folder of `perfdoctor fix`, with its proof; else the one for a recording, with what has none.

        Raises:
            PerfdoctorError: The recording cannot be analysed, or its sources may not be read.
        """
        patch = Path(os.path.expanduser(path)) / PATCH_FILE
        if patch.is_file():
            self._check_files(path, [patch])
            return patch.read_text(encoding="utf-8", errors="replace")
        project = find_project(Path(self._check_path(path)))
        self._check_files(path, [project.root])
        with quote_only_under(self._roots):
            proposed = propose_for_report(self._analyze(path, _ALL_STEPS, None), project)
        without = "".join(f"{each.label} has no edit: {each.why}\n" for each in proposed.refused)
        diff = proposed.patch.decode(errors="replace")
        return f"{diff or 'No finding has an edit that fits the source.'}\n{without}"

    def _analyze(self, path: str, steps: slice, device: str | None) -> Report:
        path = self._check_path(path)
        options = replace(self._options, device=device, steps=steps)
        key = "analyze", steps.start, steps.stop, device, _state_of(path)
        report: Report = self._keep(*key, make=lambda: analyze_traces(find_traces([path]), options))
        return report

    def _keep(self, *key: Any, make: Callable[[], Any]) -> Any:
        """The answer of a key: the kept one, else a new one."""
        if key not in self._answers:
            self._answers[key] = make()
        self._answers.move_to_end(key)
        while len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)
        return self._answers[key]

    def _check_path(self, path: str) -> str:
        """The path as the reader takes it.

        Raises:
            PerfdoctorError: It is not a local path, or means a file that may not be read.
        """
        if not path.strip() or path == STDIN or is_remote(path):
            raise UsageError(f"'{path}' is not a local path; give that of a trace or of a folder")
        path = os.path.expanduser(path)
        self._check_files(path, _files_of(path))
        return path

    def _check_files(self, path: str, files: Iterable[Path]) -> None:
        """Check that the files which a path means may be read.

        Raises:
            InputError: One may not.
        """
        for file in files:
            if file.exists() and not (file.is_file() or file.is_dir()):
                raise InputError(f"{file} is not a regular file: a pipe may never end, and is not read")
            if self._roots and not any(file.resolve().is_relative_to(root) for root in self._roots):
                raise InputError(f"{path}: only files under {', '.join(map(str, self._roots))} are read")


def make_server(recordings: Recordings, time_limit_s: float = 300) -> MCPServer[Any]:
    """The server with its tools, each call of which ends after some seconds."""
    # Calls come on several threads: one analysis at a time, and none of them twice.
    lock = threading.Lock()

    def analyze(
        path: _Path, page: _Page = 1, first_step: _FirstStep = None, end_step: _EndStep = None, device: _Device = None
    ) -> str:
        report = recordings.analyze(path, _make_slice(first_step, end_step), device)
        return page_of(render_report(report, ".md"), page)

    def show(
        path: _Path,
        what: Annotated[str, Field(description=f"One of {', '.join(TABLES)}.")],
        by: Annotated[str | None, Field(description="What to group by.")] = None,
        sort: Annotated[str | None, Field(description="Name of a column to sort by, such as step_ns.")] = None,
        top: Annotated[
            int, Field(description=f"Rows of a page, {_MAX_ROWS} at most.", json_schema_extra=_from(1))
        ] = 20,
        page: _Page = 1,
        rank: _Rank = None,
        first_step: _FirstStep = None,
        end_step: _EndStep = None,
        device: _Device = None,
    ) -> str:
        table = recordings.show(path, what, by, rank=rank, steps=_make_slice(first_step, end_step), device=device)
        if sort is not None:
            table = table.sort(sort)
        rows, footer = page_range(len(table), page, min(max(top, 1), _MAX_ROWS))
        return render_table_markdown(table.take(rows)) + footer

    def explain(
        rule: Annotated[str, Field(description="Id or name of a rule, such as PD201; empty for all.")] = "",
        page: _Page = 1,
    ) -> str:
        return page_of(manual_page(rule) if rule.strip() else catalogue(), page)

    def compare(before: _Path, after: _Path, page: _Page = 1) -> str:
        return page_of(render_comparison(recordings.compare(before, after), ".md"), page)

    def propose_fix(path: _Path, page: _Page = 1) -> str:
        return page_of(recordings.propose_fix(path), page)

    tables = "\n".join(f"- {name}: {spec.title}; by {', '.join(spec.by)}" for name, spec in TABLES.items())
    server: MCPServer[Any] = MCPServer(
        "perfdoctor", instructions=_INSTRUCTIONS, version=find_version(), log_level="WARNING"
    )
    for tool, description in (
        (_bound_time(analyze, lock, time_limit_s), _ANALYZE),
        (_bound_time(show, lock, time_limit_s), _SHOW.format(tables=tables)),
        (explain, _EXPLAIN),
        (_bound_time(compare, lock, time_limit_s), _COMPARE),
        (_bound_time(propose_fix, lock, time_limit_s), _PROPOSE_FIX),
    ):
        server.add_tool(
            _with_plain_errors(tool),
            description=description,
            annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
            structured_output=False,
        )
    return server


def serve(roots: Sequence[str], options: AnalysisOptions, time_limit_s: float) -> None:
    """Serve on standard input and output until the client closes them.

    Raises:
        UsageError: A root is no folder.
    """
    for root in roots:
        if not Path(root).expanduser().is_dir():
            raise UsageError(f"--root {root} is not a folder")
    make_server(Recordings(roots, options), time_limit_s).run("stdio")


def _bound_time(tool: Callable[..., str], lock: threading.Lock, limit_s: float) -> Callable[..., str]:
    """The tool, one call at a time, each in a thread that is left behind where it takes longer than `limit_s`."""

    @functools.wraps(tool)
    def call(**arguments: Any) -> str:
        found: Future[str] = Future()

        def work() -> None:
            try:
                found.set_result(tool(**arguments))
            except BaseException as error:
                found.set_exception(error)

        with lock:
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join(limit_s)
            if not thread.is_alive():
                return found.result()
            # It ends as soon as it runs Python again; what it waits for meanwhile blocks no other call.
            ident, stop = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, stop)
        raise InputError(
            f"this took longer than {limit_s:g} s and was stopped; name fewer files, or start the server with a larger "
            "--time-limit"
        )

    return call


def _with_plain_errors(tool: Callable[..., str]) -> Callable[..., str]:
    """The tool with its errors as one sentence each."""

    @functools.wraps(tool)
    def call(**arguments: Any) -> str:
        try:
            return tool(**arguments)
        except PerfdoctorError as error:
            raise ToolError(clean_line(str(error))) from error
        except Exception as error:
            raise ToolError(
                f"internal error, which is our fault: {type(error).__name__}: {clean_line(str(error))}"
            ) from error

    return call


def _make_slice(first_step: int | None, end_step: int | None) -> slice:
    """The steps from the first to the one before the end.

    Raises:
        UsageError: There is no step among them.
    """
    if (first_step or 0) < 0 or (end_step is not None and end_step <= (first_step or 0)):
        raise UsageError(f"there is no step from {first_step or 0} to before {end_step}; the first step is 0")
    return slice(first_step, end_step)


def _files_of(path: str) -> list[Path]:
    """The files that are read for a path.

    Raises:
        InputError: There are none.
    """
    report = Path(path) / "report.json"
    try:
        traces = find_traces([path])
    except InputError:
        if not report.is_file():
            raise
        return [report]
    files = (
        file
        for trace in traces
        for file in (trace.path, trace.facts_path, trace.evidence_path, steps_path_of(trace.facts_path))
    )
    return [file for file in files if isinstance(file, Path)]


def _state_of(path: str) -> tuple[tuple[str, int, int], ...]:
    """What tells whether the files of a path have changed: their names, times and sizes."""
    states = []
    for file in _files_of(path):
        try:
            found = file.stat()
        except OSError:
            continue  # the reader says what is wrong with it
        states.append((str(file), found.st_mtime_ns, found.st_size))
    return tuple(states)


PAGE_LINES, PAGE_BYTES = 150, 16_000


def page_of(text: str, page: int) -> str:
    """One page of a text, with a last line that says which one it is where there are several.

    Pages end between paragraphs where that is possible; a line that is longer than a page is cut.

    Raises:
        UsageError: There is no such page.
    """
    pages = _split(text)
    check_page(page, len(pages))
    return pages[page - 1] + _footer(page, len(pages))


def page_range(count: int, page: int, size: int) -> tuple[range, str]:
    """The rows of one page of a table, and the line that says which ones they are.

    Raises:
        UsageError: There is no such page.
    """
    pages = max(-(-count // size), 1)
    check_page(page, pages)
    rows = range((page - 1) * size, min(page * size, count))
    return rows, _footer(page, pages, f"rows {rows.start + 1} to {rows.stop} of {count}, ")


def check_page(page: int, pages: int) -> None:
    """Raise UsageError for a page that there is not."""
    if not 1 <= page <= pages:
        raise UsageError(f"there is no page {page}; the answer has {pages} page{'' if pages == 1 else 's'}")


def _footer(page: int, pages: int, rows: str = "") -> str:
    if pages == 1:
        return ""
    more = f"; the next one: page={page + 1}" if page < pages else ""
    return f"\n({rows}page {page} of {pages}{more})\n"


def _split(text: str) -> list[str]:
    """The pages of a text."""
    pages: list[list[str]] = []
    page: list[str] = []
    size = 0
    for line in map(_cut, text.splitlines()):
        length = len(line.encode()) + 1
        if page and (len(page) == PAGE_LINES or size + length > PAGE_BYTES):
            # From the last paragraph on, if that leaves at least half a page.
            border = max((at for at, each in enumerate(page) if not each), default=0)
            at = border if border >= len(page) // 2 else len(page)
            pages.append(page[:at])
            page = page[at:]
            size = sum(len(each.encode()) + 1 for each in page)
        page.append(line)
        size += length
    return ["\n".join(lines).strip("\n") + "\n" for lines in [*pages, page]]


def _cut(line: str) -> str:
    """A line of at most a page's length."""
    whole = line.encode()
    return line if len(whole) < PAGE_BYTES else whole[: PAGE_BYTES - 8].decode(errors="ignore") + " ..."
