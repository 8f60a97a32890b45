"""What a change offers to try on a program, and which findings it answers; nothing here loads torch."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.facts.captured import NO_FACTS, CapturedFacts
from perfdoctor.fixes.choose_edits import EDITS
from perfdoctor.remedies.read_causes import read_all_rows
from perfdoctor.trials.change import NEEDS, Change
from perfdoctor.trials.load_changes import load_changes

TABLE = read_all_rows()
LOADED = {each.name: each for each in load_changes()[0]}
CHANGES: dict[str, Change] = {name: each.change for name, each in LOADED.items()}
TRIED = {
    "allocator": "expandable_segments",
    "compile": "default",
    "ddp": "static_graph=True",
    "environment": "NCCL_NTHREADS=512",
    "fused": "fused",
    "gc": "step-borders",
    "pin-memory": "on",
    "prefetch-factor": "4",
    "sdpa-backend": "flash",
    "threads": "2",
    "workers": "2",
    "zero-grad": "set-to-none",
}
GPU = {"devices": [{"capability": "9.0"}]}
OLD_GPU = {"devices": [{"capability": "7.5"}]}
LOADER = {"num_workers": 0, "iterations": 1, "persistent_workers": False, "pin_memory": False, "prefetch_factor": None}
WAITING = {"base_step_ns": [100, 100], "base_loader_wait_ns": [50, 50], "cores": {"available": 4.0}}
DDP = {
    "bucket_bytes_cap": 25 * 2**20,
    "gradient_as_bucket_view": True,
    "static_graph": True,
    "broadcast_buffers": False,
}


def finding(change: str, value: int | str | None = None, rule: str = "PD101") -> dict[str, Any]:
    return {"rule": rule, "actions": [{"id": change, "value": value}]}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_change_says_what_the_list_of_changes_shows(name: str) -> None:
    change = CHANGES[name]
    assert change.name == name
    assert change.needs in NEEDS
    assert len(change.summary) < 100
    assert change.effect_on_results
    assert isinstance(change.rules, tuple)
    setting = TRIED.get(name, "on")
    assert change.fix(setting)
    assert all(value for value in change.environment(setting).values())
    assert change.settings(NO_FACTS, ()) in ((), (setting,), ("default",))


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_change_imports_the_standard_library_alone(name: str) -> None:
    tree = ast.parse(Path(LOADED[name].file).read_text())
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert {each.partition(".")[0] for each in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("name", "facts", "findings", "expected"),
    [
        ("workers", {"loaders": [LOADER], **WAITING}, [], ("4", "2", "1")),
        ("workers", {"loaders": [LOADER], **WAITING}, [finding("workers", 3)], ("3", "2", "4", "1")),
        ("workers", {"loaders": [LOADER], **WAITING, "base_loader_wait_ns": [0, 0]}, [], ()),
        ("workers", {"loaders": [{**LOADER, "num_workers": 2}], **WAITING, "base_loader_wait_ns": [0, 0]}, [], ("0",)),
        ("workers", {"loaders": []}, [], ()),
        ("prefetch-factor", {"loaders": [{**LOADER, "num_workers": 2, "prefetch_factor": 4}]}, [], ("8",)),
        ("prefetch-factor", {"loaders": [LOADER]}, [], ()),
        ("persistent-workers", {"loaders": [{**LOADER, "num_workers": 2, "iterations": 3}]}, [], ("on",)),
        ("persistent-workers", {"loaders": [{**LOADER, "num_workers": 2}]}, [], ()),
        ("pin-memory", {"loaders": [LOADER], **GPU}, [], ("non-blocking", "on")),
        ("pin-memory", {"loaders": [LOADER]}, [], ()),
        (
            "threads",
            {"cpu": {"torch_threads": 1}, "cores": {"available": 4.0}, "loaders": [{**LOADER, "num_workers": 1}]},
            [],
            ("4", "3", "2"),
        ),
        ("threads", {"cpu": {"torch_threads": 1}, "cores": {"available": 4.0}, **GPU}, [finding("threads", 2)], ("2",)),
        ("threads", {"cpu": {"torch_threads": 1}, "cores": {"available": 1.0}}, [], ()),
        ("fused", {"optimizers": [{"class": "Adam", "fused": None, "foreach": None}]}, [], ("fused", "foreach")),
        ("fused", {"optimizers": [{"class": "Adam", "fused": None, "foreach": None}], **GPU}, [], ("fused",)),
        ("fused", {"optimizers": [{"class": "RMSprop", "fused": None, "foreach": None}], **GPU}, [], ()),
        ("fused", {"optimizers": [{"class": "AdamW", "fused": True, "foreach": None}]}, [], ()),
        ("zero-grad", {"zero_grad_to_zero": 3}, [], ("set-to-none",)),
        ("zero-grad", {"zero_grad_to_zero": 0}, [], ()),
        ("compile", {"compile": None, **GPU}, [], ("default", "reduce-overhead", "dynamic")),
        (
            "compile",
            {"compile": None, **GPU},
            [finding("compile", "reduce-overhead")],
            ("reduce-overhead", "default", "dynamic"),
        ),
        ("compile", {"compile": {"frames": 2}}, [], ()),
        ("autocast-bf16", {"amp": {"autocast": 0}, **GPU}, [], ("on",)),
        ("autocast-bf16", {"amp": {"autocast": 9}, **GPU}, [], ()),
        ("autocast-bf16", {"amp": {"autocast": 0}, **OLD_GPU}, [], ()),
        ("tf32", {"flags": {"matmul_allow_tf32": False, "cudnn_allow_tf32": True}, **GPU}, [], ("on",)),
        ("tf32", {"flags": {"matmul_allow_tf32": False}, **OLD_GPU}, [], ()),
        ("cudnn-benchmark", {"flags": {"cudnn_benchmark": False}, **GPU}, [], ("on",)),
        ("cudnn-benchmark", {"flags": {"cudnn_benchmark": True}, **GPU}, [], ()),
        ("sdpa-backend", GPU, [], ("flash", "mem_efficient", "cudnn")),
        ("sdpa-backend", {"devices": []}, [], ()),
        ("deterministic-off", {"flags": {"deterministic_algorithms": True}}, [], ("on",)),
        ("deterministic-off", {"flags": {"deterministic_algorithms": False}}, [], ()),
        ("debug-off", {"flags": {"anomaly_detection": True}}, [], ("on",)),
        ("debug-off", {"notes": ["the program's own profiler was running"]}, [], ("on",)),
        ("debug-off", {"flags": {"anomaly_detection": False}, "notes": ["something else"]}, [], ()),
        (
            "ddp",
            {"models": [{"ddp": None}, {"ddp": {**DDP, "find_unused_parameters": True}}]},
            [finding("ddp", "static_graph=True", rule="PD402")],
            ("find_unused_parameters=False", "bucket_cap_mb=100", "bucket_cap_mb=5"),
        ),
        ("ddp", {"models": [{"ddp": None}]}, [], ()),
        ("environment", {**GPU, "world_size": 2}, [], None),
        ("environment", {**GPU, "world_size": 1}, [], ()),
        ("allocator", {**GPU, "libraries": {"allocators": ["jemalloc"]}}, [], ("expandable_segments",)),
        ("allocator", {"libraries": {"allocators": ["jemalloc"]}}, [], ()),
        ("persistent-workers", {"loaders": [{"num_workers": 2, "iterations": 3}]}, [], ("on",)),
        ("what-if-item", GPU, [finding("what-if-item", rule="PD102")], ("on",)),
        ("what-if-item", GPU, [finding("workers", 2)], ()),
    ],
)
def test_settings(
    name: str,
    facts: dict[str, Any],
    findings: list[dict[str, Any]],
    expected: tuple[str, ...] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    found = CHANGES[name].settings(CapturedFacts.parse(facts), findings)
    assert found == expected if expected is not None else found


def test_every_action_of_the_table_is_a_change_with_one_of_its_settings() -> None:
    said = {(action.id, action.value) for row in TABLE for action in row.actions}
    changes = {name: value for name, value in said if name in CHANGES}
    edits = {name for name, _ in said} - set(changes)
    assert edits - EDITS.keys() == {"consider-compiling"}
    assert len(changes) >= 15
    settings = {
        "compile": ("default", "reduce-overhead", "dynamic"),
        "fused": ("fused", "foreach"),
        "pin-memory": ("on", "non-blocking"),
        "allocator": ("expandable_segments",),
        "workers": ("{workers}", 0),
        "less-often": ("{steps}", 10),
    }
    for name, value in said:
        assert value is None or name == "ddp" or value in settings.get(name, ()), (name, value)
        if name in CHANGES and value is not None:
            assert CHANGES[name].fix(str(value))


def test_an_action_goes_with_code_that_does_it() -> None:
    """One glance at the code: an action that was left in a row whose code became another one shows here."""
    signs = {
        "allocator": "expandable_segments", "autocast-bf16": r"autocast|bf16", "channels-last": "channels_last",
        "compile": "compile|mark_dynamic", "cudnn-benchmark": "benchmark", "debug-off": "detect_anomaly", "gc": r"gc\.",
        "ddp": "bucket_cap|bucket_view|find_unused|DistributedDataParallel|broadcast_buffers", "fused": "fused|foreach",
        "deterministic-off": "determinis", "no-grad-evaluation": "no_grad|inference_mode", "pin-memory": "pin_memory",
        "persistent-workers": "persistent_workers", "tf32": 'precision..high|allow_tf32', "workers": "workers=",
        "what-if-item": r"item\(\)", "zero-grad": "zero_grad",
    }  # fmt: skip
    wrong = [
        (row.situation, row.code, action)
        for row in TABLE
        for action in row.actions
        if action.id in CHANGES and not re.search(signs[action.id], row.code or "")
    ]
    assert wrong == []


def test_the_page_on_changes_shows_the_example_as_it_is() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "changes.md").read_text()
    shown = page.partition("<!-- example: a change -->\n```python\n")[2].partition("```\n")[0]
    assert shown == (root / "examples" / "plugin" / "perfdoctor_example" / "any_order.py").read_text()
