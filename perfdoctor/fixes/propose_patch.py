"""The patch for a recording: the edits that its findings advise, of which nothing was measured."""

from __future__ import annotations

from pathlib import Path

from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.api import Report, analyze_traces
from perfdoctor.capture.capture_notes import read_facts
from perfdoctor.errors import EditRefusedError
from perfdoctor.facts.captured import NO_FACTS
from perfdoctor.fixes.choose_edits import FoundEdit, RefusedEdit, apply_edits, choose_edits
from perfdoctor.fixes.patch import make_patch
from perfdoctor.fixes.project import Project
from perfdoctor.fleet.discover import find_traces
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.reporters.trial_table import INTENDED

UNPROVEN = "perfdoctor: edits for a recording; none of them was measured"


@frozen_dataclass
class ProposedPatch:
    """A patch that nobody has measured.

    Attributes:
        patch: The patch; empty where no edit fits.
        edits: What is in it.
        refused: What the findings advise and has no edit.
    """

    patch: bytes
    edits: tuple[FoundEdit, ...]
    refused: tuple[RefusedEdit, ...]


def propose_patch(path: Path, *, allow_changes: bool = False) -> ProposedPatch:
    """The patch for a capture folder or a trace; writes nothing. What alters results or files has to be allowed.

    Raises:
        InputError: There is no trace, or it cannot be read.
    """
    report = analyze_traces(find_traces([path]), AnalysisOptions())
    return propose_for_report(report, find_project(path), allow_changes=allow_changes)


def propose_for_report(report: Report, project: Project, *, allow_changes: bool = False) -> ProposedPatch:
    """The patch for a report: what may alter numerics is left out, and what is not known to cost anything."""
    findings = [each for each in report.to_dict()["findings"] if each["severity"] != "info"]
    found, refused = choose_edits(findings, project)
    kept: dict[tuple[str, str], FoundEdit] = {}
    for each in found:
        edit = each.edit
        why = "it alters numerics: let perfdoctor fix measure it" if edit.alters_numerics else ""
        if edit.intended_change and not allow_changes:
            why = f"{INTENDED[edit.intended_change]}: --allow-changes takes it in"
        if why:
            refused.append(RefusedEdit(edit.action, edit.setting, why))
            continue
        try:
            apply_edits([*(other.edit for other in kept.values()), edit])
        except EditRefusedError as unfit:
            refused.append(RefusedEdit(edit.action, edit.setting, str(unfit)))
            continue
        kept.setdefault((edit.action, edit.place), each)
    edits = [each.edit for each in kept.values()]
    lines = [UNPROVEN, ""]
    for edit in edits:
        on_purpose = f"; {INTENDED[edit.intended_change]}" if edit.intended_change else ""
        lines.append(f"{edit.place}: {edit.code}{on_purpose}")
    patch = make_patch(edits, "\n".join(lines)) if edits else b""
    return ProposedPatch(patch, tuple(kept.values()), tuple(refused))


def find_project(capture: Path) -> Project:
    """The program that a capture is of, as its facts say it; for other recordings the program of this folder."""
    facts = read_facts(capture, 0) or NO_FACTS
    here = Path.cwd()
    cwd = Path(facts.program.working_directory or here)
    script = Path(facts.script) if facts.script else None
    if script is not None:
        script = next((each for each in (script, Path(facts.program.folder or cwd) / script) if each.is_file()), None)
    return Project(script, cwd if cwd.is_dir() else here, "cuda" if facts.devices else "cpu")
