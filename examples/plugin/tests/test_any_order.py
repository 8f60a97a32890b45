"""any-order: where it is offered; perfdoctor's own tests apply it."""

from __future__ import annotations

from perfdoctor_example.any_order import AnyOrder

from perfdoctor.facts.captured import NO_FACTS, CapturedFacts


def test_it_is_offered_where_workers_can_overtake_each_other() -> None:
    """Two workers can, one worker cannot."""
    assert AnyOrder().settings(CapturedFacts.parse({"loaders": [{"num_workers": 2}]}), ()) == ("on",)
    assert AnyOrder().settings(CapturedFacts.parse({"loaders": [{"num_workers": 1}]}), ()) == ()
    assert AnyOrder().settings(NO_FACTS, ()) == ()
