"""PD212: what a line computes has a cheaper form, which was measured here at the recorded sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from perfdoctor.analyzers._cpu_evidence import ops_within, project, time_of_both_passes
from perfdoctor.rules import (
    Action,
    Advice,
    BoolArray,
    Claim,
    Evidence,
    Finding,
    GpuRows,
    MeasuredForm,
    PlaceName,
    Rank,
    RankAnalyzer,
    Saving,
    SourceLocation,
    format_time,
    scale_durations,
)
from perfdoctor.rules import intervals as iv

_SOURCE = "https://docs.pytorch.org/docs/stable/generated/torch.einsum.html"


class CheaperForm(RankAnalyzer):
    """What a line computes has a cheaper form, which was measured by itself at the recorded sizes."""

    rule = "PD212"
    name = "cheaper-form"
    needs = frozenset({"facts", "cpu"})
    # min_share: of the step that the form saves as expected; less is within what a step varies by.
    defaults = {"min_share": 0.02}
    references = (_SOURCE,)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each form that wins and computes the same; of two for the same calls the better one."""
        taken = set[tuple[str | None, int | None, str]]()
        for form in sorted(rank.facts.forms, key=lambda each: -each.saves_ns()):
            calls = {(line.file, line.line, op) for line in form.lines for op in line.ops}
            if form.results != "equal" or form.remaining is None or taken & calls or not form.lines:
                continue
            found = self._find(rank, form)
            if found is not None:
                taken |= calls
                yield found

    def _find(self, rank: Rank, form: MeasuredForm) -> Finding | None:
        assert form.remaining is not None
        forward = _ops_of(rank, form)
        gpu = rank.trace.gpu
        items = np.append(forward | np.append(forward, False)[rank.forward_ops.forward], False)[gpu.op] & rank.in_window
        on_gpu = form.device == "cuda" and bool(items.any())
        time = rank.time_in_window(items) if on_gpu else time_of_both_passes(rank, forward)
        cost_ns = rank.per_step(iv.total(time))
        low, expected, high = (round(cost_ns * (1 - share)) for share in form.remaining)
        # Measured alone and warm it may take less than in the program: no more is promised than what was measured.
        measured = [round(form.saves_ns(at)) for at in range(3)]
        if not self.exceeds_min_share(rank, min(expected, measured[1])):
            return None
        saving = Saving(
            min(low, measured[0]), min(expected, measured[1]), max(high, min(expected, measured[1])), "measured"
        )
        line = form.lines[0]
        op = form.ops[-1] if form.ops else "it"
        passes = " with its backward pass" if form.has_backward else ""
        here = f"{format_time(form.now_ns or 0)} a call{passes}, {format_time(form.form_ns or 0)} with {form.says}"
        difference = form.difference or 0.0
        same = (
            "they are equal"
            if not difference
            else f"they differ by {difference:.0e} of the largest number, which is rounding"
        )
        return self.finding(
            rank,
            title=f"{_name_calls(form)} takes {here}",
            cost_ns=cost_ns,
            saving=saving.cap(cost_ns),
            advice=Advice(
                f"Write {op} as below; results and gradients were compared: {same}.",
                code=form.statement or form.write,
                source=_SOURCE,
                actions=(Action("cheaper-form", form.statement),) if form.statement else (),
            ),
            claim=Claim(time, kernels=on_gpu),
            confidence=0.9,
            location=SourceLocation(line.file, line.line, line.function) if line.file is not None else None,
            evidence=(
                Evidence("calls per {unit}", form.calls, "count"),
                Evidence("measured here, one call", form.now_ns, "ns"),
                Evidence("the other form", form.form_ns, "ns"),
                Evidence("noise of the measurement", round(100 * (form.noise or 0)), "%"),
            ),
            subject=f"{form.form} {line.file}:{line.line}",
            edit=scale_durations(GpuRows(gpu, items), 1 - form.remaining[1], is_upper_bound=False) if on_gpu else None,
        )


def _name_calls(form: MeasuredForm) -> str:
    names = list(dict.fromkeys(form.ops))
    size = max(form.sizes, key=lambda each: np.prod(each, dtype=float), default=())
    text = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return f"{text} on [{', '.join(f'{each:,}' for each in size)}]"


def _ops_of(rank: Rank, form: MeasuredForm) -> BoolArray:
    """For each op of the trace whether it belongs to the calls of a form; all of the lines where no name matches."""
    lined = rank.places.lined
    rows = np.zeros(len(lined.trace.ops), bool)
    for line in form.lines:
        found = [lined.ops_at(place) for place in _places_of(lined.places, line.file, line.line)]
        at_line = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        names = [lined.trace.strings[code].rpartition("::")[2] for code in lined.trace.ops.name[at_line].tolist()]
        named = np.array([any(_is_op(name, op) for op in line.ops) for name in names], bool)
        rows[at_line[named] if named.any() else at_line] = True
    source = rank if lined.trace is rank.trace else rank.evidence
    marked = project(rank, source, rows) if source is not None else np.zeros(len(rank.trace.ops), bool)
    return ops_within(rank.trace, marked)  # a backward pass is that of the ops inside


_INDEXING = ("index", "select", "slice")


def _is_op(name: str, call: str) -> bool:
    is_named = f"_{call}_" in f"_{name.lstrip('_')}_"  # embedding_renorm_ is part of an embedding
    return is_named or (call == "getitem" and name.startswith(_INDEXING))


def _places_of(places: Iterable[PlaceName], file: str | None, line: int | None) -> list[PlaceName]:
    """The places of a line, whose file a report may name relative to the program."""
    return [
        place
        for place in dict.fromkeys(places)
        if place.line == line
        and place.file is not None
        and file is not None
        and (file == place.file or file.endswith(f"/{place.file}"))
    ]
