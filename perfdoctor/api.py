"""`analyze`, `guide` and `read`, which the package exports, and results that can print and save themselves.

A report keeps what tables are made of: the files, and the rank whose table was asked for last.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeAlias

from perfdoctor import pipeline
from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis_options import AnalysisOptions, Settings, check_device, describe_settings_file
from perfdoctor.errors import InputError, PerfdoctorError, UsageError
from perfdoctor.field_guide.guide_answers import Guide as BaseGuide
from perfdoctor.fleet.analyze_files import analyze_jobs
from perfdoctor.fleet.discover import TraceFile, find_inputs
from perfdoctor.fleet.rank_tasks import read_longest_rank
from perfdoctor.fleet.read_progress import FileProgress, Progress, ProgressTracker
from perfdoctor.rank import Rank
from perfdoctor.report.quote_lines import with_quoted_places, with_quoted_rows, with_quoted_table, with_source_lines
from perfdoctor.report.report import Report as BaseReport
from perfdoctor.report.table import Table as BaseTable
from perfdoctor.reporters.write_report import PAGE, print_report, render_report, save_report, suffix_of
from perfdoctor.rules import registry
from perfdoctor.run_watch.read_hang import NO_HANG_FILES, HangFiles, read_hang
from perfdoctor.tables.catalog import COMPARING_RANKS, build_table, check_table
from perfdoctor.trace import read
from perfdoctor.trace.io.remote import redact
from perfdoctor.trace.io.untrusted_files import make_line_reader

__all__ = ["FileProgress", "Guide", "Progress", "Report", "Table", "analyze", "guide", "read"]

PathLike: TypeAlias = str | os.PathLike[str]


class Table(BaseTable):
    """Rows of one kind; `perfdoctor.report.table.Table` describes its fields and the frames that it becomes."""

    __slots__ = ()

    def __repr__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        rows = f"{len(self)} row{'' if len(self) == 1 else 's'}"
        return f"<perfdoctor.Table: {self.name}{by}, {rows}; table.print() shows it>"

    def _repr_html_(self) -> str:
        """The first rows as a notebook shows them."""
        from perfdoctor.reporters.table_text import render_table_html

        return render_table_html(self)

    def print(self, *, rows: int = 20, everything: bool = False, color: bool | None = None) -> None:
        """Print the first rows to standard output, as `perfdoctor show` does.

        Args:
            rows: How many; 0 for all.
            everything: Whether to print all columns, however wide that gets.
            color: Whether to use colours; None means on terminals only.
        """
        from perfdoctor.reporters.write_table import print_table

        print_table(self, rows=rows, everything=everything, color=color)

    def save(self, path: PathLike) -> None:
        """Write all rows. The suffix decides the format: .csv, .json, .md or .txt.

        Raises:
            UsageError: The suffix is another one.
            InputError: The file cannot be written.
        """
        from perfdoctor.reporters.write_table import save_table

        save_table(self, path)


class Guide(BaseGuide):
    """The field guide for a program; `perfdoctor.field_guide.guide_answers.Guide` describes its fields."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<perfdoctor.Guide: {self.summary} guide.print() shows it>"

    def print(self, *kinds: str, color: bool | None = None) -> None:
        """Print the guide to standard output, as `perfdoctor guide` does.

        Args:
            kinds: The answers to print, such as "applies"; all where none is named.
            color: Whether to use colours; None means on terminals only.
        """
        from perfdoctor.field_guide.render_guide import print_guide

        print_guide(self, color=color, kinds=kinds)

    def save(self, path: PathLike) -> None:
        """Write the guide. The suffix decides the format: .json, .md or .txt.

        Raises:
            UsageError: The suffix is another one.
            InputError: The file cannot be written.
        """
        from perfdoctor.field_guide.render_guide import save_guide

        save_guide(self, path)


class _TableSource:
    """The traces of a report, to make tables of.

    Args:
        files: The files.
        options: How they were analysed.
    """

    __slots__ = ("_last", "_last_index", "files", "options")

    def __init__(self, files: Sequence[TraceFile], options: AnalysisOptions) -> None:
        self.files = tuple(files)
        self.options = options
        self._last_index: int | None = None
        self._last: tuple[Rank, tuple[str, ...]] | None = None

    def read(self, report: BaseReport, index: int) -> tuple[Rank, tuple[str, ...]]:
        """The rank of trace `index` of the report: the last one that was asked for stays in memory."""
        if self._last is None or self._last_index != index:
            self._last = None  # two traces at once would take twice the memory
            trace = report.traces[index]
            files = [file for file in self.files if redact(file.path) == trace.path] or self.files
            self._last = read_longest_rank(files, replace(self.options, rank=trace.rank), ProgressTracker(files, None))
            self._last_index = index
        return self._last

    def read_collectives(self) -> list[CollectiveTable]:
        """The collectives of all ranks."""
        found: list[CollectiveTable] = []
        tracker = ProgressTracker(self.files, None)
        read_longest_rank(
            self.files, replace(self.options, rank=None), tracker, lambda rank: found.append(rank.collectives)
        )
        return found


class Report(BaseReport):
    """The result of an analysis; `perfdoctor.report.report.Report` describes its fields."""

    __slots__ = ("_table_source",)
    _table_source: _TableSource

    def __repr__(self) -> str:
        findings = f"{len(self.findings)} finding{'' if len(self.findings) == 1 else 's'}"
        return f"<perfdoctor.Report: {findings}; report.print() shows it>"

    def _repr_html_(self) -> str:
        """The short form as a notebook shows it."""
        from perfdoctor.reporters.notebook_html import NotebookHtml

        return NotebookHtml().render(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """The report as a notebook shows it: the short form in HTML, else all of it as Markdown or text."""
        whole = {"text/markdown": render_report(self, ".md"), "text/plain": render_report(self, ".txt")}
        return {"text/html": self._repr_html_(), **whole}

    def print(self, *, color: bool | None = None) -> None:
        """Print the report to standard output.

        Args:
            color: Whether to use colours; None means on terminals only.
        """
        print_report(self, color=color)

    def save(self, path: PathLike) -> None:
        """Write the report. The suffix decides the format: .html, .json, .md, .txt or .json.gz (annotated trace).

        For code reviews and continuous integration: .sarif, .xml (JUnit), .github (annotations), .pr.md (a comment).

        A page has charts and tables of the rank with the longest step, whose trace is read again for them; where it
        cannot be read any more the page says so and has the rest.

        Raises:
            UsageError: The suffix is another one.
            InputError: The file cannot be written.
        """
        report = self._with_charts() if suffix_of(path) == PAGE else self
        save_report(report, path)

    def _with_charts(self) -> BaseReport:
        """The same report with what a page draws; as it is where the traces cannot be read again."""
        if self.charts is not None or not self.account:
            return self
        try:
            number, rank, _ = self._read_rank(None)
        except PerfdoctorError:
            return self
        applied = {outcome.rule for outcome in self.outcomes}
        rules = [rule for rule in registry.list_rules() if rule.rule in applied]
        # The rules once more: the findings of several ranks do not keep what time they claim on each.
        options = AnalysisOptions(settings=self._table_source.options.settings, charts=True)
        again = pipeline.summarize_rank(rank, rules, options)
        return self if again.charts is None else replace(self, charts=replace(again.charts, rank=number))

    def table(self, what: str, by: str | None = None, *, rank: int | None = None) -> Table:
        """A table of what was recorded, as `perfdoctor show` prints it.

        The trace is read again for the first table of a rank, and kept in memory for the next one.

        Args:
            what: A name of `perfdoctor.tables.catalog.TABLES`: "kernels", "ops", "gemms", ...
            by: What to group by, such as "shape"; None for what is usual for the table.
            rank: Which rank; None for the one with the longest step.

        Returns:
            The table; `Table` has its rows, `to_pandas()`, `to_polars()`, `to_csv()`, `print()` and `save()`.

        Raises:
            UsageError: There is no such table or rank, it cannot be grouped so, or `analyze` did not make the report.
            InputError: The trace cannot be read again.
        """
        by = check_table(what, by)
        number, of_trace, notes = self._read_rank(rank)
        if len(self.account) > 1 and rank is None:
            notes = (*notes, f"of {len(self.account)} ranks this is the one with the longest step")
        several = what in COMPARING_RANKS and len(self.account) > 1
        table = build_table(of_trace, what, by, self._table_source.read_collectives() if several else ())
        table = replace(table, rank=number, notes=(*notes, *table.notes))
        return _as_table(table, self._table_source.files, self.program_folders)

    def _read_rank(self, rank: int | None) -> tuple[int | None, Rank, tuple[str, ...]]:
        """A rank as read again, by default that with the longest step: its number in the report, it, and notes."""
        source: _TableSource | None = getattr(self, "_table_source", None)
        if source is None or not self.account:
            raise UsageError("tables are made of traces, which this report does not name; analyze them again")
        of_rank = [i for i, trace in enumerate(self.traces[: len(self.account)]) if rank in (None, trace.rank)]
        if not of_rank:
            raise UsageError(f"none of the traces is of rank {rank}")
        index = max(of_rank, key=lambda i: self.account[i].mean_step_ns)
        return (self.traces[index].rank, *source.read(self, index))

    def guide(self) -> Guide:
        """The field guide for this program: each of its 51 rows with what it means here.

        The trace of the rank with the longest step is read again for it, as for a table.

        Returns:
            The guide; `.answers` has a row each, `.select("applies")` some of them, `.summary` a sentence.

        Raises:
            UsageError: `analyze` did not make the report.
            InputError: The trace cannot be read again.
        """
        from perfdoctor.field_guide.answer_rows import make_guide

        made = make_guide(self, self._read_rank(None)[1])
        return Guide(**{field.name: getattr(made, field.name) for field in fields(made)})

    def export_chrome_trace(self, path: PathLike) -> None:
        """Write the analysed traces with steps, account, findings and counters as additional tracks.

        The file opens in Perfetto and chrome://tracing. Several ranks stand in it on one clock.

        Raises:
            InputError: The trace cannot be read again, or the file cannot be written.
        """
        from perfdoctor.reporters.chrome_trace.annotate_trace import export_chrome_trace

        export_chrome_trace(self, path)


def analyze(
    paths: PathLike | Sequence[PathLike],
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    device: str | None = None,
    rank: int | None = None,
    steps: slice | None = None,
    settings: Settings | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Analyse traces: a file, a capture folder, a folder of rank traces, a glob, a URL, or a list of them.

    Dumps of PyTorch's flight recorder, in a capture or a folder of their own, are judged for a hang: `Report.hang`.

    A file with several ranks is split into them. If there are several files, one that cannot be analysed costs only its
    own rank, which is then in `Report.missing`.

    Args:
        paths: Where the traces are.
        select: Rule ids or their beginnings ("PD1"); empty for all rules.
        ignore: Rule ids or their beginnings to leave out.
        device: The name of the device, where the trace lacks it or has a wrong one.
        rank: Analyse this rank only.
        steps: Which steps to analyse, as slice(2, 5); None for all.
        settings: Thresholds by rule id, as {"PD101": {"min_share": 0.1}}. "ACCOUNT" has `min_roof_share`: from which
            share of a roof on (0.4) a kernel that is short, or leaves most of the GPU empty, counts as compute or
            bandwidth rather than latency.
        jobs: The number of processes that share the files, each with one thread. 1 means this process alone; None
            chooses.
        dask: The address of the scheduler of a Dask cluster that does the work instead, such as "tcp://host:8786".
        progress: Called repeatedly while the files are read.

    Returns:
        The report, as `perfdoctor.report.report.Report` describes it.

    Raises:
        TraceError: The only file is missing or is no trace.
        InputError: Nothing is left to analyse, or the cluster cannot be reached.
        UsageError: A rule, setting or device name does not exist, the user's file of devices cannot be used, or `jobs`
            is below 1.
    """
    options = AnalysisOptions(
        select=tuple(select),
        ignore=tuple(ignore),
        settings=settings or {},
        device=device,
        rank=rank,
        steps=steps or slice(None),
        jobs=jobs,
        dask=dask,
    )
    inputs = find_inputs(as_list(paths))
    return analyze_traces(inputs.traces, options, progress, inputs.hang)


def guide(
    paths: PathLike | Sequence[PathLike],
    *,
    device: str | None = None,
    rank: int | None = None,
    steps: slice | None = None,
    settings: Settings | None = None,
) -> Guide:
    """The field guide for recordings of one program: `analyze(paths, ...).guide()`.

    Args:
        paths: Where the traces are, as for `analyze`.
        device: The name of the device, where the trace lacks it or has a wrong one.
        rank: Analyse this rank only.
        steps: Which steps to analyse, as slice(2, 5); None for all.
        settings: Thresholds by rule id, as {"PD101": {"min_share": 0.1}}.

    Raises:
        TraceError, InputError, UsageError: As for `analyze`.
    """
    return analyze(paths, device=device, rank=rank, steps=steps, settings=settings).guide()


def analyze_traces(
    found: Sequence[TraceFile],
    options: AnalysisOptions,
    progress: Progress | None = None,
    hang_files: HangFiles = NO_HANG_FILES,
) -> Report:
    """The same as `analyze`, of traces and dumps of the flight recorder that were found already."""
    files = choose_files(found, options.rank) if found or not hang_files else ()
    options = replace(options, is_only_rank=len(files) == 1)
    [report] = analyze_jobs([files], options, progress, read_hang(hang_files) if hang_files else None)
    if options.steps != slice(None) and not any(len(account.steps) for account in report.account):
        raise UsageError("no steps are left to analyse: the trace has none, or --steps names none of them")
    values = {field.name: getattr(report, field.name) for field in fields(report)}
    note = describe_settings_file(options)
    if note is not None and report.traces:
        first, *others = report.traces
        values["traces"] = (replace(first, warnings=(note, *first.warnings)), *others)
    text_of = make_line_reader([file.path for file in files], report.program_folders)
    values["findings"] = with_source_lines(report.findings, text_of)
    values["places"] = with_quoted_places(report.places, text_of)
    values["tables"] = with_quoted_rows(report.tables, text_of)
    result = Report(**values)
    object.__setattr__(result, "_table_source", _TableSource(files, options))
    return result


def make_table(
    found: Sequence[TraceFile], what: str, by: str | None, options: AnalysisOptions, progress: Progress | None = None
) -> Table:
    """A table of traces: of the rank with the longest step, unless one is named; see `Report.table`.

    No rule is applied, so that it takes less than `analyze`.

    Raises:
        TraceError: The only file is missing or is no trace.
        InputError: None of the files can be read, or none is of that rank.
        UsageError: There is no such table, it cannot be grouped so, or an option is wrong.
    """
    by = check_table(what, by)
    check_device(options.device)
    files = choose_files(found, options.rank)
    compares, peers = what in COMPARING_RANKS and len(found) > 1, []
    if compares and options.rank is not None:
        peers = _TableSource(found, options).read_collectives()
    visit = (lambda each: peers.append(each.collectives)) if compares and options.rank is None else None
    of_rank, notes = read_longest_rank(files, options, ProgressTracker(files, progress), visit)
    table = build_table(of_rank, what, by, peers)
    program = of_rank.facts.program
    table = replace(table, notes=(*notes, *table.notes))
    return _as_table(table, files, (program.working_directory, program.folder))


def _as_table(table: BaseTable, files: Sequence[TraceFile], folders: Iterable[str | None]) -> Table:
    table = with_quoted_table(table, make_line_reader([file.path for file in files], folders))
    return Table(**{field.name: getattr(table, field.name) for field in fields(table)})


def choose_files(files: Sequence[TraceFile], rank: int | None) -> Sequence[TraceFile]:
    """The files of a rank, where several files say by their names which rank they are of."""
    if rank is not None and len(files) > 1:
        files = tuple(file for file in files if file.rank == rank)
    if not files:
        raise InputError(f"none of the traces is of rank {rank}")
    return files


def as_list(paths: PathLike | Sequence[PathLike]) -> list[PathLike]:
    return [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
