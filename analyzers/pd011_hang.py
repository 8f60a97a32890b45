"""PD011: the ranks of a job wait for one that does not come."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.rules import Evidence, Finding, Fleet, FleetAnalyzer, Hang, Saving, format_ranges, read_texts


class HangFound(FleetAnalyzer):
    """The ranks of a job wait in a collective for a rank that does not come."""

    rule = "PD011"
    name = "hang"
    needs = frozenset({"hang"})
    references = ("https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html",)

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """At most one finding, on the rank at fault."""
        hang = None if fleet.hang is None else fleet.hang.hang
        if hang is None:
            return
        text = read_texts("hang")[hang.kind]
        yield Finding(
            rule=self.rule,
            name=self.name,
            title=hang.sentence,
            cost_ns=0,
            share_of_step=None,
            severity="high",
            saving=Saving(),
            advice=text["advice"],
            fix=text["fix"],
            rank=hang.ranks[0] if len(hang.ranks) == 1 else None,
            location=hang.location,
            evidence=tuple(_list_evidence(hang)),
            references=self.references,
            # What stands still comes before all that is slow.
            order_key_ns=float(fleet.longest_step_ns + 1),
        )


def _list_evidence(hang: Hang) -> Iterator[Evidence]:
    yield Evidence("kind", hang.kind)
    yield Evidence("ranks at fault", format_ranges(hang.ranks))
    call = hang.collective
    if call is None:
        return
    yield Evidence("collective", f"{call.name} {call.number} of {call.group}")
    if call.types:
        shapes = (f"{kind} {list(size)}" for size, kind in zip(call.sizes, call.types, strict=False))
        yield Evidence("its input there", ", ".join(shapes))
    yield Evidence("ranks that wait in it", format_ranges(call.waiting))
