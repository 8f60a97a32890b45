"""What a change offers to try on a program, and which findings it answers; nothing here loads torch."""

from __future__ import annotations

import ast
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.rules.advice.advice_table import TABLE
from perfdoctor.trials.change import NEEDS, Change

CHANGES: dict[str, Any] = {each.name: each.load()() for each in entry_points(group="perfdoctor.changes")}
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


def finding(rule: str, fix: str | None, advice: str = "") -> dict[str, Any]:
    return {"rule": rule, "fix": fix, "advice": advice}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_change_says_what_the_list_of_changes_shows(name: str) -> None:
    change: Change = CHANGES[name]
    assert change.name == name
    assert change.needs in NEEDS
    assert len(change.summary) < 100
    assert change.effect_on_results
    assert isinstance(change.rules, tuple)
    setting = TRIED.get(name, "on")
    assert change.fix(setting)
    assert all(value for value in change.environment(setting).values())
    assert change.settings({}, ()) in ((), (setting,), ("default",))


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_change_imports_the_standard_library_alone(name: str) -> None:
    spec = find_spec(type(CHANGES[name]).__module__)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert {each.partition(".")[0] for each in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("name", "facts", "findings", "expected"),
    [
        ("workers", {"loaders": [LOADER], **WAITING}, [], ("4", "2", "1")),
        (
            "workers",
            {"loaders": [LOADER], **WAITING},
            [finding("PD101", "DataLoader(..., num_workers=3, persistent_workers=True)")],
            ("3", "2", "4", "1"),
        ),
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
        (
            "threads",
            {"cpu": {"torch_threads": 1}, "cores": {"available": 4.0}, **GPU},
            [finding("PD115", "OMP_NUM_THREADS=2")],
            ("2",),
        ),
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
            [finding("PD104", 'model = torch.compile(model, mode="reduce-overhead")')],
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
            [finding("PD402", "DistributedDataParallel(model, bucket_cap_mb=..., static_graph=True)")],
            ("find_unused_parameters=False", "bucket_cap_mb=100", "bucket_cap_mb=5"),
        ),
        ("ddp", {"models": [{"ddp": None}]}, [], ()),
        ("environment", {**GPU, "world_size": 2}, [], None),
        ("environment", {**GPU, "world_size": 1}, [], ()),
        ("allocator", {**GPU, "libraries": {"allocators": ["jemalloc"]}}, [], ("expandable_segments",)),
        ("allocator", {"libraries": {"allocators": ["jemalloc"]}}, [], ()),
        ("persistent-workers", {"loaders": [{"num_workers": 2, "iterations": 3}]}, [], ("on",)),
        ("what-if-item", GPU, [finding("PD102", "total += value.detach()   # instead of value.item()")], ("on",)),
        ("what-if-item", GPU, [finding("PD101", None)], ()),
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
    found = CHANGES[name].settings(facts, findings)
    assert found == expected if expected is not None else found


@pytest.mark.parametrize(
    ("name", "setting", "rule", "fix"),
    [
        ("workers", "2", "PD101", "DataLoader(..., num_workers=2, persistent_workers=True, pin_memory=True)"),
        (
            "workers",
            "2",
            "PD101",
            "TrainingArguments(..., dataloader_num_workers=2, dataloader_persistent_workers=True)",
        ),
        ("workers", "0", "PD114", "DataLoader(..., num_workers=0)"),
        ("persistent-workers", "on", "PD101", "DataLoader(..., persistent_workers=True)"),
        ("threads", "1", "PD114", "torch.set_num_threads(1)"),
        ("threads", "2", "PD115", "OMP_NUM_THREADS=2"),
        ("fused", "fused", "PD303", "torch.optim.Adam(..., fused=True)"),
        ("fused", "fused", "PD303", 'TrainingArguments(..., optim="adamw_torch_fused")'),
        ("fused", "foreach", "PD303", "torch.optim.RMSprop(..., foreach=True)"),
        ("zero-grad", "set-to-none", "PD304", "optimizer.zero_grad()   # without set_to_none=False"),
        ("channels-last", "on", "PD302", "model = model.to(memory_format=torch.channels_last)\ninputs = ..."),
        ("compile", "default", "PD301", "model = torch.compile(model)"),
        ("compile", "reduce-overhead", "PD104", 'model = torch.compile(model, mode="reduce-overhead")'),
        ("compile", "dynamic", "PD104", "model = torch.compile(model, dynamic=True)"),
        ("autocast-bf16", "on", "PD201", 'with torch.autocast("cuda", dtype=torch.bfloat16): ...'),
        ("tf32", "on", "PD201", 'torch.set_float32_matmul_precision("high")'),
        (
            "ddp",
            "gradient_as_bucket_view=True",
            "PD405",
            "DistributedDataParallel(model, gradient_as_bucket_view=True)",
        ),
        ("ddp", "find_unused_parameters=False", "PD405", "DistributedDataParallel(model)  # or static_graph=True"),
        ("ddp", "bucket_cap_mb=25", "PD404", "TrainingArguments(..., ddp_bucket_cap_mb=25)"),
        (
            "pin-memory",
            "non-blocking",
            "PD105",
            "DataLoader(..., pin_memory=True); x = x.to(device, non_blocking=True)",
        ),
        ("allocator", "keep-pages", "PD513", "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 python ..."),
        ("persistent-workers", "on", "PD112", "DataLoader(..., persistent_workers=True)"),
        ("threads", "2", "PD512", "torch.set_num_threads(2)"),
        ("allocator", "expandable_segments", "PD107", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python ..."),
        ("what-if-item", "on", "PD102", "running_loss += loss.detach()              # instead of loss.item()"),
    ],
)
def test_a_change_answers_the_finding_whose_fix_names_it(name: str, setting: str, rule: str, fix: str) -> None:
    assert CHANGES[name].answers(setting, finding(rule, fix))
    assert not CHANGES[name].answers(setting, finding(rule, None))
    assert not CHANGES[name].answers(setting, finding("PD999", fix))
    others = [each for each in CHANGES if each != name and CHANGES[each].answers(setting, finding(rule, fix))]
    assert others == []


@pytest.mark.parametrize(
    ("name", "setting", "rule", "fix"),
    [
        ("workers", "4", "PD101", "DataLoader(..., num_workers=2)"),
        ("workers", "2", "PD101", "torch.set_num_threads(1); DataLoader(..., num_workers=2)"),
        ("threads", "1", "PD101", "torch.set_num_threads(1); DataLoader(..., num_workers=2)"),
        ("persistent-workers", "on", "PD101", "DataLoader(..., num_workers=2, persistent_workers=True)"),
        ("channels-last", "on", "PD203", "model = model.to(memory_format=torch.channels_last)\nwith torch.autocast()"),
        ("compile", "default", "PD104", 'model = torch.compile(model, mode="reduce-overhead")'),
        ("compile", "default", "PD303", "optimizer.step = torch.compile(optimizer.step)"),
        ("ddp", "static_graph=True", "PD402", "DistributedDataParallel(model, bucket_cap_mb=..., static_graph=True)"),
        ("fused", "foreach", "PD303", "torch.optim.Adam(..., fused=True)"),
    ],
)
def test_a_change_answers_no_finding_that_advises_more_or_else(name: str, setting: str, rule: str, fix: str) -> None:
    assert not CHANGES[name].answers(setting, finding(rule, fix))


def test_garbage_collection_answers_the_sentence_of_unstable_steps() -> None:
    sentence = "Freeze what lives long once it is made: gc.collect(); gc.freeze(). It is scanned no more."
    assert CHANGES["gc"].answers("step-borders", finding("PD003", None, sentence))
    assert not CHANGES["gc"].answers("step-borders", finding("PD003", None, "Save less often."))
    assert CHANGES["gc"].answers("step-borders", finding("PD110", "gc.collect(); gc.freeze()", "Leave it out."))


def test_no_advice_of_the_table_is_claimed_by_two_changes() -> None:
    rules = sorted({rule for change in CHANGES.values() for rule in change.rules})
    settings = {
        name: dict.fromkeys([TRIED.get(name, "on"), "0", "1", "25", "reduce-overhead", "dynamic", "foreach"])
        for name in CHANGES
    }
    answered = 0
    for code in {row.code for row in TABLE if row.code}:
        filled = code.replace("{workers}", "2").replace("{threads}", "2")
        for rule in rules:
            claims = {
                name
                for name, change in CHANGES.items()
                if any(change.answers(setting, finding(rule, filled)) for setting in settings[name])
            }
            assert len(claims) <= 1, (rule, code, claims)
            answered += len(claims)
    assert answered >= 20


def test_the_page_on_changes_shows_the_example_as_it_is() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "changes.md").read_text()
    shown = page.partition("<!-- example: a change -->\n```python\n")[2].partition("```\n")[0]
    assert shown == (root / "examples" / "plugin" / "perfdoctor_example" / "any_order.py").read_text()
