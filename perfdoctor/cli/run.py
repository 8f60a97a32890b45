"""`perfdoctor run`: record an unmodified program, then analyse the recording.

The program comes first: its output, its exit code, its signals. A failure on our side becomes a line on stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdoctor.capture.capture_folder import has_hang, has_traces, launcher_rank, list_ranks
from perfdoctor.capture.capture_notes import read_facts
from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.cli import parameters
from perfdoctor.cli.capture_report import (
    analyze_capture,
    describe_error,
    measure_after_run,
    print_line,
    write_capture_report,
)
from perfdoctor.cli.config import load_config
from perfdoctor.cli.gates import check_gate, open_gate, save_baseline
from perfdoctor.cli.program_target import PASS_THROUGH, PROGRAM_HELP, ProgramCommand, typed_target
from perfdoctor.cli.report_output import ReportOutput, check_folder, check_outputs, shown_path
from perfdoctor.errors import GateError, InputError, UsageError
from perfdoctor.forms import DEFAULT_BUDGET_S

if TYPE_CHECKING:
    from perfdoctor.capture.launch import CaptureResult
    from perfdoctor.report.report import Report
    from perfdoctor.reporters.finding_gate import Gate

_DEFAULTS = CaptureOptions()


@parameters.command(
    "perfdoctor run train.py --epochs 1",
    "perfdoctor run -m package.train --epochs 1",
    "perfdoctor run -- torchrun --nproc-per-node 2 train.py",
    "perfdoctor run -- env/bin/python train.py    # in another Python",
    "perfdoctor run --out capture --stop-after train.py",
    "perfdoctor run --fail-on high -o report.md train.py",
    panels={
        "Where it goes": "--out --force --no-report --json --output-format --output --open",
        "What to record": "--skip --base --warmup --timing --evidence --max-evidence --memory --nvtx-only",
        "The program": "--watch --hang-after --stop-after --ranks",
        "Cheaper forms": "--measure --no-measure",
        "What is judged": "--select --ignore --set --fail-on --baseline --update-baseline",
        "How it is printed": "--no-color --quiet --verbose",
    },
    cls=ProgramCommand,
    context_settings=PASS_THROUGH,
)
def run(
    ctx: typer.Context,
    target: Annotated[list[str], typer.Argument(metavar="PROGRAM", show_default=False, help=PROGRAM_HELP)],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Write the capture to FOLDER; the default is perfdoctor-SCRIPT-TIME."
        ),
    ] = None,
    force: Annotated[bool, parameters.flag("--force", help="Replace a capture that is already in the folder.")] = False,
    skip: Annotated[int, typer.Option("--skip", metavar="N", help="Leave the first N steps alone.")] = _DEFAULTS.skip,
    base: Annotated[
        int, typer.Option("--base", metavar="N", help="Then time N steps without the profiler.")
    ] = _DEFAULTS.base,
    warmup: Annotated[
        int, typer.Option("--warmup", metavar="N", help="Then let the profiler warm up in N steps.")
    ] = _DEFAULTS.warmup,
    timing: Annotated[
        int, typer.Option("--timing", metavar="N", help="Then record N steps for their times.")
    ] = _DEFAULTS.timing,
    evidence: Annotated[
        int, typer.Option("--evidence", metavar="N", help="Then record N steps with shapes and source lines.")
    ] = _DEFAULTS.evidence,
    max_evidence: Annotated[
        float,
        typer.Option(
            "--max-evidence", metavar="MB", min=0.001, help="Record no more for shapes and lines, before compression."
        ),
    ] = _DEFAULTS.max_evidence_bytes / 1e6,
    memory: Annotated[
        bool,
        parameters.flag(
            "--memory", help="Record memory, too: peaks of steps, of the host, and snapshots of CUDA's allocator."
        ),
    ] = False,
    watch: Annotated[
        bool, parameters.flag("--watch", help="Let perfdoctor record ask for more windows while the program runs.")
    ] = False,
    hang_after: Annotated[
        float,
        typer.Option(
            "--hang-after",
            metavar="SECONDS",
            help="Look for a hang when no step ends for so long, and five times the slowest step; 0 does not look.",
        ),
    ] = _DEFAULTS.hang_after_s,
    stop_after: Annotated[
        bool, parameters.flag("--stop-after", help="End the program once everything is recorded.")
    ] = False,
    ranks: Annotated[str | None, typer.Option("--ranks", metavar="N,N", help="Record only these ranks.")] = None,
    nvtx_only: Annotated[
        bool,
        parameters.flag(
            "--nvtx-only", help="Record nothing; mark steps and phases as NVTX ranges, for use under nsys."
        ),
    ] = False,
    measure: parameters.MeasureFor = DEFAULT_BUDGET_S,
    no_measure: Annotated[
        bool, parameters.flag("--no-measure", help="Do not measure cheaper forms after the program has ended.")
    ] = False,
    no_report: parameters.NoReport = False,
    as_json: Annotated[
        bool, parameters.flag("--json", help="Print the report as JSON, after the program's output.")
    ] = False,
    output_format: parameters.OutputFormat = None,
    output: parameters.Output,
    opens: parameters.OpenPage = False,
    select: parameters.Select,
    ignore: parameters.Ignore,
    settings: parameters.Settings,
    fail_on: parameters.FailOn = None,
    baseline: parameters.Baseline = None,
    update_baseline: parameters.UpdateBaseline = False,
    no_color: parameters.NoColor = False,
    quiet: parameters.Quiet = False,
    verbose: parameters.Verbose = False,
) -> int:
    """Run a program as it is, record its training steps, and say why they are slow.

    Programs on the CPU, inference, and loops without an optimizer are meant, too.

    What follows the program belongs to the program, and the exit code is the program's. With --fail-on or --baseline, a
    program that exits with 0 ends in 1 where a finding fails, or where there is no report to judge by.

    Six steps are enough, and some 40 fill all windows: the first are left alone, the next are timed without the
    profiler, then steps are recorded for their times, then steps with shapes and source lines. A longer run is sampled
    once or twice more if its steps change, and left alone otherwise, unless --stop-after ends it. Windows that are
    chosen (--skip, --base, --warmup, --timing, --evidence) are kept to the letter.

    After the program has ended, a process of perfdoctor's own runs its dearest torch calls again, on random numbers of
    the recorded sizes, beside cheaper forms of them (--measure, --no-measure).

    Where ranks make no step any more (--hang-after, or kill -USR1 on perfdoctor), one sentence on stderr says which
    rank the others wait for, in which collective, at which line; the report has it afterwards.

    The program runs in the Python that runs perfdoctor. To record it in another one, name that one after --.

    Rules and thresholds can also be set in pyproject.toml, in the table tool.perfdoctor.
    """
    from perfdoctor.capture import launch

    verbosity = parameters.parse_verbosity(quiet, verbose)
    check_outputs(output)
    shown = parameters.parse_output_format(as_json, output_format)
    if no_report or nvtx_only:
        check_no_report_wanted(
            "--no-report" if no_report else "--nvtx-only",
            json=as_json,
            output_format=output_format is not None,
            o=bool(output),
            open=opens,
            fail_on=fail_on is not None,
            baseline=baseline is not None,
        )
    if update_baseline and baseline is not None:
        check_folder(baseline)
    # Before the program runs, which may take hours.
    gate = open_gate(fail_on, baseline, updates=update_baseline)
    check_rules(select, ignore, settings)
    options = CaptureOptions(
        out,
        force,
        skip,
        base,
        warmup,
        timing,
        evidence,
        stop_after,
        parameters.parse_numbers(ranks, "--ranks"),
        nvtx_only,
        max_evidence_bytes=round(max_evidence * 1e6),
        memory=memory,
        watch=watch,
        hang_after_s=hang_after,
    )
    result = launch.run(launch.parse_target(typed_target(ctx, target)), options, judge_hang=_print_hang)
    _print_notes(result, is_reported=not no_report)
    report: Report | None = None
    asks = shown != "text" or bool(output) or opens or gate is not None or verbosity > 0
    if result.folder is not None and not no_report and _is_reportable(result.folder, asks=asks):
        try:
            config = load_config(select, ignore, settings, Path.cwd())
            if not no_measure:
                measure_after_run(result, measure, shows_progress=not quiet)
            report = analyze_capture(result.folder, config, gate, shows_progress=not quiet and shown == "text")
            write_capture_report(
                report, result.folder, ReportOutput(shown, tuple(output), None, no_color, verbosity, gate, opens)
            )
        except Exception as error:  # the program has run: its exit code stands, even if the report fails
            print_line(f"the recording was not reported: {describe_error(error)}")
    if gate is None or launcher_rank():  # of several ranks that run perfdoctor, rank 0 reports and judges
        return result.exit_code
    return _apply_gate(report, gate, baseline if update_baseline else None, result.exit_code)


def _is_reportable(folder: Path, *, asks: bool) -> bool:
    """Whether a capture has traces, and a whole step in a window of any rank, unless the user `asks` for the report.

    A report on less would explain how the program starts.
    """
    if asks or not has_traces(folder) or has_hang(folder):
        return has_traces(folder) or has_hang(folder)
    ranks = [facts for rank in list_ranks(folder) if (facts := read_facts(folder, rank)) is not None]
    return not ranks or any(facts.windows.timing.steps or facts.windows.evidence.steps for facts in ranks)


def check_no_report_wanted(option: str, **wishes: bool) -> None:
    """Check that nothing was asked for that needs a report.

    Args:
        option: The option that leaves the report out.
        **wishes: By the name of an option, whether it was given.

    Raises:
        UsageError: One of the wishes is true.
    """
    for name, given in wishes.items():
        if given:
            wish = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
            raise UsageError(f"{wish} needs a report, and {option} leaves it out: give one of them")


def check_rules(select: Sequence[str], ignore: Sequence[str], settings: Sequence[str]) -> None:
    """Check the rules and thresholds of the command line before the program runs, which may take hours.

    Raises:
        UsageError: One does not exist or is malformed.
    """
    if not (select or ignore or settings):
        return
    from perfdoctor.analysis_options import AnalysisOptions, choose_rules

    config = load_config(select, ignore, settings, Path.cwd())
    choose_rules(AnalysisOptions(config.select, config.ignore, config.settings))


def _print_notes(result: CaptureResult, *, is_reported: bool) -> None:
    """What the recording lacks, where it is, and how to see it where no report follows."""
    for note in result.notes:
        print_line(note)
    if result.folder is None:
        return
    folder = shown_path(result.folder)
    if not has_traces(result.folder) and not has_hang(result.folder):
        print_line(f"there is nothing to report on; the times of steps are in {folder}")
    elif is_reported:
        print_line(f"recorded in {folder}")
    else:
        print_line(f"recorded in {folder}; for the report: perfdoctor analyze {folder}")


def _print_hang(folder: Path) -> bool:
    """Say on stderr what stops the ranks of a capture; whether there is a hang."""
    from perfdoctor.run_watch.read_hang import find_hang_files, read_hang

    hang = read_hang(find_hang_files([folder])).hang
    if hang is None:
        return False
    place = f" ({hang.location})" if hang.location is not None else ""
    print_line(
        f"no step any more: {hang.sentence}{place}; stacks and collectives of all ranks: {shown_path(folder)}/hang"
    )
    return True


def _apply_gate(report: Report | None, gate: Gate, updated: str | None, exit_code: int) -> int:
    """The exit code after the gate of --fail-on and --baseline, which says on stderr why it failed.

    Args:
        report: The report, None where there is none.
        gate: The gate.
        updated: The file of --update-baseline, which is written in place of judging.
        exit_code: The program's, which stands if it is not 0.
    """
    try:
        if report is None:
            name = f"--fail-on {gate.level}" if gate.baseline is None else f"--baseline {gate.baseline.path}"
            raise GateError(f"{name} could not be judged: there is no report on this run")
        if updated is not None:
            save_baseline(report, updated, gate)
        else:
            check_gate(report, gate)
    except (GateError, InputError) as error:
        print_line(str(error))
        return exit_code or error.exit_code
    return exit_code
