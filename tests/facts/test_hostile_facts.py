"""Facts of any types and sizes, beside a real trace: each field that makes no sense is not known, and no rule fails."""

from __future__ import annotations

import json
import os
import random
import shutil
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import perfdoctor
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.facts.part import CapturedPart
from perfdoctor.reporters.write_report import render_report

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
TRACES = ("host-device-sync", "cpu-training", "dataloader-stall")
SEEDS = 1000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 9
WRONG = (None, True, False, -1, 1 << 70, 1.5, 1e308, "x", [], {}, [None], [[]], {"a": 1}, ["x", 1, None])
SIMPLE: dict[Any, tuple[Any, ...]] = {
    bool: (False, True),
    int: (0, 1, 2, 7, 100, 10**6, 10**9, 10**12, 1 << 53, (1 << 62) - 1),
    float: (0, 0.5, 1, 2.5, -1.0, 1e-300, 1e18, 1e300, 10**30),
    str: ("", "x", "1", "cuda:0", "cpu", "\0", "::error::x", "train.py", "/a/b.py", "torch.float32", "AdamW", "spawn"),
}
COUNTS = ("cpu_ns", "process_cpu_ns", "preempted", "minor_faults", "batches", "backwards", "gc_ns", "samples")


class Writer:
    """Makes values of the types that facts have, and now and then of others."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.wrong_share = self.random.choice((0, 0.02, 0.2))

    def value(self, hint: Any) -> Any:
        origin, arguments = get_origin(hint), get_args(hint)
        if self.random.random() < self.wrong_share:
            return self.random.choice(WRONG)
        if origin is Annotated:
            return self.value(arguments[0])
        if origin in (Union, types.UnionType):
            return self.value(self.random.choice(arguments)) if type(None) in arguments else None
        if origin is Literal:
            return self.random.choice(arguments)
        if origin is tuple:
            return [self.value(arguments[0]) for _ in range(self.random.choice((0, 1, 2, 20)))]
        if origin is not None:
            return {
                str(self.value(arguments[0])): self.value(arguments[1]) for _ in range(self.random.choice((0, 1, 3)))
            }
        if hint is types.NoneType:
            return None
        return self.part(hint) if issubclass(hint, CapturedPart) else self.random.choice(SIMPLE[hint])

    def part(self, cls: type[CapturedPart]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, hint in get_type_hints(cls, include_extras=True).items():
            if "flat" in getattr(hint, "__metadata__", ()):
                found |= {f"{name}_{key}": value for key, value in self.part(hint.__origin__).items()}
            else:
                found[name.removesuffix("_")] = self.value(hint)
        return found

    def step(self, number: int) -> dict[str, Any]:
        values = {name: self.value(int) for name in ("dur_ns", "loader_wait_ns", *COUNTS)}
        contains = self.random.choice((None, [], ["save"], "x", [1]))
        return {"step": number, "window": self.random.choice(("base", "after")), "contains": contains, **values}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_facts_make_a_rule_fail(seed: int, tmp_path: Path) -> None:
    folder, writer = tmp_path / "capture" / "rank0", Writer(seed)
    folder.mkdir(parents=True)
    for name in ("timing", "evidence"):
        shutil.copy(SAMPLES / f"{TRACES[seed % len(TRACES)]}.json.gz", folder / f"{name}.json.gz")
    (folder / "facts.json").write_text(json.dumps(writer.part(CapturedFacts)))
    (folder / "steps.jsonl").write_text("\n".join(json.dumps(writer.step(number)) for number in range(seed % 40)))
    report = perfdoctor.analyze(folder.parent, jobs=1)
    assert [(each.rule, each.why) for each in report.outcomes if each.status == "failed"] == []
    assert all(sum(account.buckets.values()) == account.window_ns for account in report.account)
    for suffix in (".txt", ".md", ".json"):
        assert render_report(report, suffix)
