"""`compare`, which the package exports, and a comparison that can print and save itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from perfdoctor.analysis_options import AnalysisOptions, Settings
from perfdoctor.api import PathLike, as_list
from perfdoctor.comparison.comparison import Comparison as BaseComparison
from perfdoctor.comparison.comparison import compare_recordings
from perfdoctor.comparison.inputs import find_inputs
from perfdoctor.errors import UsageError
from perfdoctor.fleet.analyze_files import analyze_jobs
from perfdoctor.fleet.read_progress import Progress
from perfdoctor.installed_packages import find_version
from perfdoctor.reporters.write_comparison import print_comparison, render_comparison, save_comparison

__all__ = ["Comparison", "compare"]

# Two processes that read 100 MB each took twice as long as one that read both, when each of them started Python anew.
_MIN_TEXT_BYTES = 600_000_000


class Comparison(BaseComparison):
    """Two recordings of a program; `perfdoctor.comparison.comparison.Comparison` describes its fields."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<perfdoctor.Comparison: {self.step.verdict}; comparison.print() shows it>"

    def _repr_html_(self) -> str:
        """The short form as a notebook shows it."""
        from perfdoctor.reporters.notebook_html import render_comparison_html

        return render_comparison_html(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """The comparison as a notebook shows it: the short form in HTML, else all of it as Markdown or text."""
        whole = {"text/markdown": render_comparison(self, ".md"), "text/plain": render_comparison(self, ".txt")}
        return {"text/html": self._repr_html_(), **whole}

    def print(self, *, color: bool | None = None) -> None:
        """Print the comparison to standard output.

        Args:
            color: Whether to use colours; None means on terminals only.
        """
        print_comparison(self, color=color)

    def save(self, path: PathLike) -> None:
        """Write the comparison. The suffix decides the format: .json, .md or .txt.

        Raises:
            UsageError: The suffix is another one.
            InputError: The file cannot be written.
        """
        save_comparison(self, path)


def compare(
    before: PathLike | Sequence[PathLike],
    after: PathLike | Sequence[PathLike],
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    device: str | None = None,
    steps: slice | None = None,
    settings: Settings | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare recordings of a program before and after a change.

    A recording is a trace, a capture folder, a folder of rank traces, a glob, a URL, or the report.json of `analyze`.
    Several recordings of one program on a side, as a list, show how much recordings differ and so narrow the noise.

    Args:
        before: The recording before the change, or several.
        after: The recording after it, or several.
        select: Rule ids or their beginnings ("PD1") whose findings are compared; empty for all rules.
        ignore: Rule ids or their beginnings to leave out.
        device: The name of the device, where the traces lack it or have a wrong one.
        steps: Which steps to compare, as slice(2, 5); None for all.
        settings: Thresholds by rule id, as {"PD101": {"min_share": 0.1}}.
        jobs: The number of processes that share the files; None chooses.
        progress: Called repeatedly while the files are read.

    Returns:
        The comparison. `.comparable` says whether the step can be judged.

    Raises:
        TraceError: A file is missing or is no trace.
        InputError: A report.json has another schema.
        UsageError: Both sides are the same file, or an option is wrong.
    """
    inputs = find_inputs(as_list(before), as_list(after))
    if jobs is None and inputs.text_bytes < _MIN_TEXT_BYTES:
        jobs = 1
    options = AnalysisOptions(
        select=tuple(select),
        ignore=tuple(ignore),
        settings=settings or {},
        device=device,
        steps=steps or slice(None),
        jobs=jobs,
        is_only_rank=all(len(job) == 1 for job in inputs.jobs),
        breakdown=True,
    )
    reports = analyze_jobs(inputs.jobs, options, progress)
    if options.steps != slice(None) and not all(len(report.account[0].steps) for report in reports):
        raise UsageError("no steps are left to compare: a trace has none, or --steps names none of them")
    comparison = compare_recordings(*inputs.to_recordings(reports), find_version())
    return Comparison(**{field.name: getattr(comparison, field.name) for field in fields(comparison)})
