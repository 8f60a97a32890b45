"""The stages of run.sh: commands, limits, and what each needs. Standard library only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

# The files with tests marked gpu: to collect all others takes longer than these need.
GPU_TESTS = ("tests/capture/test_cuda_programs.py", "tests/gpu/test_measured_gpu.py")


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        name: Its folder, and its name in --only.
        title: What it is about.
        command: Its parts may hold {python}, {base_python}, {root}, {folder}, {work}, {seconds}, its limit, and
            {begin_seconds}, after which nothing long should begin. The stage may write figures.json and a file of
            Markdown into {folder}: they go into summary.json and README.md.
        limit_s: It is ended after that many seconds.
        min_s: It is not begun with less, and earlier stages leave it that much.
        needs: Names of `has` in the figures of the stage `environment`, all of which must be true.
        good_codes: Exit codes that are no failure.
    """

    name: str
    title: str
    command: tuple[str, ...]
    limit_s: float
    min_s: float = 5.0
    needs: tuple[str, ...] = ()
    good_codes: tuple[int, ...] = (0,)


def list_stages(device: str, *, dry: bool, wheels: Path | None, install: bool) -> list[Stage]:
    """The stages in the order of their value, because the time may end before they do.

    Args:
        device: "cuda", or "cpu" to try the script.
        dry: Small sizes.
        wheels: Where packages are installed from; None asks the package index.
        install: Whether packages are installed at all.
    """
    here = "{root}/benchmarks/gpu"
    small = ("--small",) if dry else ()
    of_torch: tuple[str, ...] = ("torch",) if device == "cpu" else ("torch", "gpu")
    of_all = (*of_torch, "perfdoctor")
    environment = ["{base_python}", f"{here}/make_environment.py", "{folder}", "--seconds", "{seconds}"]
    environment += ["--wheels", str(wheels.resolve())] if wheels else []
    environment += [] if install else ["--no-install"]
    tests = ("-m", "pytest", "-m", "gpu", "-q", "-rfEs", "--tb=short", "--durations=15", "--color=no")
    # Plugins and strictness of CI may be missing here, and another torch may warn of other things.
    tests += ("-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=default", "-p", "no:cacheprovider")
    on_device = ("--device", device)
    seconds = ("--seconds", "{seconds}")
    clinic = ("-m", "benchmarks.clinic", *on_device, "--seconds", "{begin_seconds}", "--pairs", "1")
    clinic += ("--only", "tiny_ops", "--no-try") if dry else ()
    program = "{root}/benchmarks/clinic/programs/" + ("tiny_ops.py" if device == "cpu" else "fp32_products.py")
    trials = (
        "-m",
        "perfdoctor",
        "try",
        "--pairs",
        "2",
        "--budget",
        "20s" if dry else "50s",
        "--out",
        "{folder}/trials",
    )
    trials += ("-o", "{folder}/report.md", "-o", "{folder}/figures.json", program, *on_device)
    return [
        Stage("environment", "Machine, packages, perfdoctor check", tuple(environment), 120, 20),
        Stage(
            "tests", "Tests marked gpu", ("{python}", *tests, *GPU_TESTS), 110, 45, ("torch", "perfdoctor", "pytest")
        ),
        Stage(
            "kernels",
            "Kernels that no public trace has",
            ("{python}", f"{here}/record.py", "{folder}", *on_device, *seconds, *small),
            75,
            30,
            of_torch,
        ),
        Stage(
            "clinic", "Planted faults, with run and try", ("{python}", *clinic, "--out", "{folder}"), 150, 60, of_all
        ),
        Stage("try", "perfdoctor try on a float32 program", ("{python}", *trials), 85, 35, of_all),
        Stage(
            "samples",
            "Recordings that may replace generated sample traces",
            ("{python}", f"{here}/record_samples.py", "{folder}", *on_device, *seconds, *small),
            75,
            25,
            of_all,
        ),
        Stage(
            "experiments",
            "Experiments of the field guide",
            ("{python}", f"{here}/experiments.py", *on_device, *seconds, *small, "--out", "{folder}"),
            60,
            25,
            of_torch,
        ),
        Stage(
            "overhead",
            "Overhead of recording",
            ("{python}", "-m", "benchmarks.capture.on_device", *on_device, *seconds, *small, "--out", "{folder}"),
            45,
            20,
            of_all,
        ),
        Stage(
            "calibrate",
            "perfdoctor calibrate",
            ("{python}", "-m", "perfdoctor", "calibrate", "--no-store", "-o", "{folder}/figures.json")
            + ("--seconds", "1" if dry else "8")
            + (("--cpu",) if device == "cpu" else ()),
            60,
            20,
            of_all,
        ),
    ]


def read_stages(path: Path) -> list[Stage]:
    """Stages written as a JSON list of objects with the attributes of `Stage`."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    lists = ("command", "needs", "good_codes")
    return [Stage(**{key: tuple(value) if key in lists else value for key, value in row.items()}) for row in rows]
