"""Reports built by hand, one for each shape that a reporter must get right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from perfdoctor.analysis.context.context import Context
from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analysis.timeline.account import DETAILS, Account
from perfdoctor.analysis.timeline.timeline import Timeline
from perfdoctor.places.place import Answer, Place, Within
from perfdoctor.report.answer_findings import answer_report
from perfdoctor.report.finding import Evidence, Finding, Recurrence
from perfdoctor.report.report import Limit, Outcome, Report, StepSummary, TraceSummary, UnexplainedSlice
from perfdoctor.report.trial_result import RatioRange, Trial, TrialSummary
from perfdoctor.reporters.report_facts import step_length_ns
from perfdoctor.savings.saving import Claim, Saving, SavingAlone, SavingPromise
from perfdoctor.trace.tables.intervals import Intervals

MS = 1_000_000
STEPS = 8
NO_TENSOR_CORES: Mapping[str, int | None] = {"used": None, "slow_path": None, "not_used": None, "unknown": None}

LOADER_FIX = """\
loader = DataLoader(
    dataset, batch_size=64, num_workers=4,
    pin_memory=True, persistent_workers=True,
)"""


def account(
    rank: int | None = None, tensor_core: Mapping[str, int | None] | None = None, **detail_ms: float
) -> Account:
    """STEPS steps, each split as given in ms; the parts follow one another within each step."""
    step_ns = sum(round(ms * MS) for ms in detail_ms.values())
    parts: dict[str, Intervals] = {}
    offset = 0
    first = np.arange(STEPS, dtype=np.int64) * step_ns
    for name, ms in detail_ms.items():
        length = round(ms * MS)
        parts[name] = np.column_stack((first + offset, first + offset + length))
        offset += length
    detail = {name: STEPS * round(detail_ms.get(name, 0) * MS) for name in DETAILS}
    steps = np.column_stack((first, first + step_ns))
    return Account(rank, STEPS * step_ns, detail, tensor_core or NO_TENSOR_CORES, parts, steps)


def timeline(of: Account) -> Timeline:
    """The timeline that goes with a hand-made account."""
    d = of.detail
    computation = d["compute"] + d["bandwidth"] + d["latency"]
    busy = computation + d["communication"] + d["memcpy"]
    return Timeline(
        of.rank,
        of.window_ns,
        busy,
        of.window_ns - busy,
        computation,
        d["communication"],
        d["memcpy"],
        d["communication"],
        d["memcpy"],
    )


def summary(path: str = "trace.json.gz", **changes: Any) -> TraceSummary:
    facts: dict[str, Any] = {
        "rank": None, "world_size": None, "device": "NVIDIA A100-SXM4-40GB", "vendor": "nvidia",
        "complete": True, "events": 48_211, "span_ns": 371 * MS, "warnings": (), "ran_on": "gpu",
    }  # fmt: skip
    return TraceSummary(path, **(facts | changes))


RAN = tuple(
    Outcome(rule, "ran", seconds=0.0125) for rule in ("PD101", "PD102", "PD103", "PD104", "PD201", "PD203", "PD402")
)
NO_RANKS = Outcome("PD401", "skipped", "needs the traces of several ranks; record every rank and pass the folder")


def report(accounts: tuple[Account, ...], findings: tuple[Finding, ...] = (), **changes: Any) -> Report:
    parts: dict[str, Any] = {
        "traces": (summary(),),
        "steps": StepSummary(
            STEPS, "annotated", round(accounts[0].window_ns / STEPS) if accounts else None, variation=0.02
        ),
        "timeline": tuple(timeline(a) for a in accounts),
        "outcomes": (*RAN, NO_RANKS),
    }
    return Report(version="0.1.0", account=accounts, findings=findings, **(parts | changes))


def healthy() -> Report:
    used = {"used": 200 * MS, "slow_path": 0, "not_used": 0, "unknown": 0}
    return report(
        (
            account(
                tensor_core=used,
                compute=30,
                bandwidth=9.5,
                memcpy=0.2,
                latency=0.1,
                idle_launch=0.2,
                idle_unexplained=0.1,
            ),
        )
    )


def loader_finding(of: Account) -> Finding:
    return Finding(
        "PD101", "dataloader-stall", "The GPU waits for the DataLoader", 19 * MS, 0.44, "high",
        Saving(0, 15 * MS, 19 * MS, "bounded"),
        "Load batches in worker processes while the GPU computes: num_workers is 0, so the training loop loads "
        "every batch itself.",
        confidence=0.95,
        location=SourceLocation("train.py", 41, "train_one_epoch"),
        evidence=(
            Evidence("GPU idle while the loop waits in DataLoader.__next__", 19 * MS, "ns"),
            Evidence("share of the step", 44.1, "%"),
            Evidence("worker processes", 0, "count"),
            Evidence("time to load one batch", 21_400_000, "ns"),
            Evidence("batch size", None, "count"),
        ),
        fix=LOADER_FIX,
        references=("https://pytorch.org/docs/stable/data.html",),
        claim=Claim(of.parts["idle_dataloader"]),
    )  # fmt: skip


def loader_stall() -> Report:
    used = {"used": 60 * MS, "slow_path": 14 * MS, "not_used": 20 * MS, "unknown": 2 * MS}
    stalled = account(
        tensor_core=used,
        compute=12,
        bandwidth=8,
        memcpy=1.5,
        latency=0.6,
        idle_dataloader=19,
        idle_launch=1.6,
        idle_unexplained=0.4,
    )
    info = Finding(
        "PD104", "launch-bound", "The GPU waits for launches", 400_000, 0.009, "info",
        Saving(), "Capture the step in a CUDA graph.", location=SourceLocation("model.py"),
    )  # fmt: skip
    return report((stalled,), (loader_finding(stalled), info))


def placed(report: Report, *, share: float = 0.41, **changes: Any) -> Report:
    """The report with one place more, at a line."""
    step_ns = round(step_length_ns(report))
    causes = dict.fromkeys(DETAILS, 0) | {"bandwidth": round(share * step_ns)}
    facts: dict[str, Any] = {
        "rank": report.account[0].rank, "file": "/home/me/mlm.py", "line": 36, "function": "forward", "source": None,
        "module": None, "annotation": None, "kind": "line", "ns": round(share * step_ns), "share": share,
        "causes": causes, "backward_ns": 0, "calls": 2.0,
        "within": (Within("sort", "op", 2.0, 0.0, round(share * step_ns)),),
    }  # fmt: skip
    return replace(report, places=(*report.places, Place(**(facts | changes))))


def at_places() -> Report:
    """A report with a place where it waits, with the finding on it, and one where it works, most of it backward."""
    wait = dict.fromkeys(DETAILS, 0) | {"idle_dataloader": 19 * MS}
    calls = (Within("data.__getitem__", "function", 64.0, 0.0, 18 * MS),)
    first = placed(
        loader_stall(), share=19 / 43.1, ns=19 * MS, file="train.py", line=41, function="train_one_epoch", causes=wait,
        source="for batch in loader:", within=calls, findings=(0,),
    )  # fmt: skip
    return placed(first, share=0.2, file="model.py", line=7, backward_ns=5 * MS, source="return self.body(x)")


KERNEL = (
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>"
    "(cutlass_80_simt_sgemm_256x128_8x4_nn_align1::Params)"
)


def kernel() -> Report:
    slow = account(
        tensor_core={"used": 0, "slow_path": 0, "not_used": 300 * MS, "unknown": 0},
        compute=40,
        bandwidth=5,
        idle_sync=2,
        idle_unexplained=0.5,
    )
    gemm = Finding(
        "PD201", "gemm-without-tensor-cores", "Matrix products run without Tensor Cores, in float32",
        37_500_000, 0.79, "high",
        Saving(2 * MS, 24_300_000, 30 * MS, "replayed"),
        "Allow TF32 for float32 matrix products, or run the forward pass under autocast.",
        rank=None,
        evidence=(
            Evidence("largest kernel", KERNEL),
            Evidence("kernels without Tensor Cores", 1_248, "count"),
            Evidence("bytes moved by them", 1_310_000_000, "bytes"),
            Evidence("input types", "float"),
        ),
        fix='torch.set_float32_matmul_precision("high")',
        claim=Claim(slow.parts["compute"], kernels=True),
    )  # fmt: skip
    sync = Finding(
        "PD102", "host-device-sync", "The host waits for the GPU: .item()", 2 * MS, 0.042, "medium",
        Saving(2 * MS, 2 * MS, 2 * MS, "measured"), "Log every hundredth step.", confidence=0.6,
        location=SourceLocation(
            "/home/someone/experiments/vision/segmentation/training/very_long_module_name_for_the_loop.py", 118
        ),
        claim=Claim(slow.parts["idle_sync"]),
    )  # fmt: skip
    unknown = Finding(
        "PD103", "gpu-idle", "The GPU idles and nothing says why", 500_000, 0.011, "low",
        Saving(), "Record with stacks.",
        claim=Claim(slow.parts["idle_unexplained"]),
    )  # fmt: skip
    return replace(
        report((slow,), (gemm, sync, unknown)),
        tables={"kernels": kernel_rows(), "ops": (), "lines": (), "modules": (), "collectives": ()},
    )


def cpu_only() -> Report:
    idle = account(idle_dataloader=110, idle_unexplained=100)
    finding = Finding(
        "PD101", "dataloader-stall", "The loop waits for the DataLoader", 110 * MS, 0.52, "high",
        Saving(0, None, 110 * MS, "bounded"), "Raise num_workers.", location=SourceLocation("train.py", 12),
    )  # fmt: skip
    no_gpu = Outcome("PD201", "skipped", "needs kernels: record on a machine with a GPU, with ProfilerActivity.CUDA")
    return report(
        (idle,), (finding,), timeline=(Timeline(),),
        traces=(summary("perfdoctor-train/rank0", device=None, vendor=None, ran_on="cpu"),),
        outcomes=(RAN[0], no_gpu, Outcome("PD203", "skipped", no_gpu.why), NO_RANKS),
    )  # fmt: skip


def four_ranks() -> Report:
    return ranks(4)


def ranks(count: int) -> Report:
    """Ranks of which the last but one is late: it alone has no wait in its collectives."""
    late = count - 2
    accounts = tuple(
        account(
            r, compute=20 + (15 if r == late else 0), bandwidth=4, communication=1 if r == late else 16, idle_launch=1
        )
        for r in range(count)
    )
    finding = Finding(
        "PD401", "straggler", f"Rank {late} makes the others wait", 15 * MS, 0.366, "high",
        Saving(0, 15 * MS, 15 * MS, "bounded"), "Give every rank equal work.", rank=late,
        evidence=(Evidence("collectives that it entered last", 96.0, "%"),),
    )  # fmt: skip
    traces = tuple(
        summary(f"run/rank{r}.json.gz", rank=r, world_size=count, device="AMD Instinct MI300X", vendor="amd")
        for r in range(count)
    )
    return report(accounts, (finding,), traces=traces, outcomes=(*RAN, Outcome("PD401", "ran", seconds=0.2)))


def kernel_rows() -> tuple[dict[str, Any], ...]:
    """Rows of the table of kernels, of 47.5 ms."""
    names = (
        KERNEL,
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)",
        "tiny",
    )
    return tuple(
        {
            "name": name,
            "count": count,
            "step_ns": step_ns,
            "share": step_ns / 47_500_000,
            "mean_ns": round(step_ns / count),
            "category": category,
            "op": "addmm",
            "peak_share": peak,
            "bound": "compute",
            "tensor_core": "no",
            "flops_per_s": 1.2e13,
            "bytes_per_s": None,
        }
        for name, count, step_ns, category, peak in zip(
            names,
            (156.0, 0.5, 2.0),
            (37_500_000, 2_000_000, 1_000),
            ("gemm", "elementwise", "other"),
            (0.62, None, None),
            strict=True,
        )
    )


def whole() -> Report:
    """A report with all that version 2 of the schema added."""
    base = kernel()
    gemm, sync, unknown = base.findings
    alone = SavingAlone(2 * MS, 24_300_000, 30 * MS)
    pause = Finding(
        "PD103", "gpu-idle", "A module is loaded lazily: one cudaLaunchKernel of 343 ms", 0, 0.0, "info",
        Saving(), "Warm up before you measure.", recurrence=Recurrence(1, STEPS, 343 * MS, 343 * MS),
    )  # fmt: skip
    context = Context(
        "training", ("PyTorch", "Lightning"), ("DDP",), 0.82, 0.0, "2.11.0", (), True,
        ("phase training: it runs backward ops.", "Lightning, by the module lightning.pytorch."),
    )  # fmt: skip
    return replace(
        base,
        findings=(replace(gemm, saving=replace(gemm.saving, alone=alone)), replace(sync, covered_by=0), unknown, pause),
        context=context,
        steps=replace(base.steps, mean_ns=47_500_000, one_off_ns=343 * MS),
        limit=Limit(12 * MS, 0.74, 21 * MS, "every kernel at its roof, nothing waits"),
        unexplained=(
            UnexplainedSlice(None, "memcpy", 40 * MS, 0.105, "pinned copies at 27.7 GB/s, which is what the link does"),
            UnexplainedSlice(None, "latency", 20 * MS, 0.053, "41 kernels of 12 us fill a third of the GPU."),
        ),
    )


def trial(change: str = "workers", setting: str = "2", ratio: float = 0.65, **changes: Any) -> Trial:
    """A trial that was measured in three pairs, on a step of 43 ms."""
    facts: dict[str, Any] = {
        "verdict": "faster", "step_ns": round(43 * MS * ratio), "before_ns": 43 * MS,
        "ratio": RatioRange(ratio, ratio - 0.01, ratio + 0.02, 3), "loss_difference": 0.0,
        "peak_memory_bytes": 412_000_000, "memory_before_bytes": 405_000_000,
        "fix": f"{change}({setting})", "locations": (SourceLocation("train.py", 41, "train_one_epoch"),),
    }  # fmt: skip
    return Trial(change, setting, **(facts | changes))


def tried() -> Report:
    """A report of `perfdoctor try`: a winner that a finding advised, one that no finding did, and all that may fail."""
    base = loader_stall()
    promised = SavingPromise(0, 15 * MS, 19 * MS, "bounded")
    workers = trial(promised=promised, rules=("PD101",), in_turn=SavingAlone(14 * MS, 15 * MS, 15 * MS))
    rows = (
        workers,
        trial("fused", "", 0.97, loss_difference=3e-7, in_turn=SavingAlone(0, MS, 2 * MS), alters_numerics=True),
        trial("threads", "1", 1.0, verdict="same", loss_difference=0.02, is_loss_expected=False),
        trial(
            "compile", "reduce-overhead", 1.4, verdict="slower", peak_memory_bytes=905_000_000, skipped_ns=34_000 * MS
        ),
        Trial("gc", "", "broke", why="ValueError: no"),
        Trial("ddp", "static", "not applicable", why="it needs a job of several ranks"),
        trial("all", "workers=2 fused", 0.63, fix="", locations=()),
    )
    noted = TrialSummary(0.012, 43 * MS, 17, 161.0, 35, 1, ("Not combined: threads=1, because it gives nothing more.",))
    return replace(answer_report(base, {0: [workers]}), trials=rows, trial_summary=noted)


def incomplete() -> Report:
    """A cut trace without steps, where one rule crashed and none of the rest could judge."""
    part = account(compute=3, idle_unexplained=1)
    trace = summary("cut.json", complete=False, device=None, vendor=None, warnings=("12 events could not be read",))
    outcomes = (
        Outcome("PD101", "failed", "KeyError: 'x'"),
        *(Outcome(f"PD20{i}", "skipped", f"needs the column {i}") for i in range(5)),
    )
    return report((part,), traces=(trace,), steps=StepSummary(), outcomes=outcomes)


def empty() -> Report:
    """What a file with nothing to analyse gives."""
    return report(
        (),
        traces=(summary("empty.json", events=0, span_ns=0, ran_on="gpu_not_recorded"),),
        steps=StepSummary(),
        timeline=(Timeline(),),
        outcomes=(),
    )


HOSTILE = (
    "[bold red]",
    "\x1b[31mred\x1b[0m",
    "</td><script>alert(1)</script>",
    "a|b",
    "```",
    "\r\x9b2J\x1b]0;title\x07",
    "[x](http://evil.example)",
    "\u202eevil",
)


def hostile() -> Report:
    """Every text that can come from a trace or a program tries to be something else."""
    nasty = " ".join(HOSTILE)
    part = account(compute=3, idle_unexplained=1)
    finding = Finding(
        "PD102", "host-device-sync", nasty, MS, 0.25, "high", Saving(), nasty,
        location=SourceLocation(nasty, 3, nasty),
        evidence=(Evidence(nasty, nasty), Evidence("kernel", 3, nasty)), fix=nasty + "\nsecond line",
        references=(nasty,),
    )  # fmt: skip
    info = Finding("PD103", "gpu-idle", nasty, 0, None, "info", Saving(), nasty, location=SourceLocation(nasty))
    outcomes = (Outcome("PD103", "ran"), Outcome("PD201", "skipped", nasty), Outcome("PD203", "failed", nasty))
    trace = summary(nasty, device=nasty, warnings=(nasty,))
    trials = (
        trial(nasty, nasty, detail=nasty, fix=nasty, locations=(SourceLocation(nasty, 3, nasty),), rules=(nasty,)),
        Trial(nasty, nasty, "broke", why=nasty),
        trial("all", nasty),
    )
    noted = TrialSummary(0.1, MS, 3, 4.0, 5, 1, (nasty,))
    made = report((part,), (finding, info), traces=(trace,), outcomes=outcomes, trials=trials, trial_summary=noted)
    answers = (Answer("needed", nasty),)
    calls = (Within(nasty, "function", 2.0, 0.0, MS),)
    return placed(made, file=nasty, function=nasty, source=nasty, answers=answers, within=calls, findings=(0,))


ALL = {
    "healthy": healthy, "loader_stall": loader_stall, "kernel": kernel, "cpu_only": cpu_only, "four_ranks": four_ranks,
    "whole": whole, "tried": tried, "at_places": at_places, "incomplete": incomplete, "empty": empty,
    "hostile": hostile,
}  # fmt: skip
