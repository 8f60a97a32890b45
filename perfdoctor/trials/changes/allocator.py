"""allocator: another allocator of memory, by environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

EXPANDABLE = "expandable_segments"
CUDA_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
# What lets glibc keep freed memory; either variable alone switches off its own adjustment, and makes it slower.
KEEP_PAGES = "keep-pages"
KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
PRELOADED = ("jemalloc", "tcmalloc")
LIBRARY_FOLDERS = ("/usr/lib/*-linux-gnu*", "/usr/lib64", "/usr/lib", "/usr/local/lib")


class Allocator:
    """Segments of CUDA memory that grow; on the CPU a malloc that keeps pages, or another one where installed."""

    name = "allocator"
    summary = "expandable_segments on a GPU; on the CPU glibc keeps pages, or jemalloc or tcmalloc where installed"
    rules = ("PD107", "PD513", "PD706")
    effect_on_results = "none"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """What the machine has and the program does not use."""
        is_set = EXPANDABLE in os.environ.get(CUDA_VARIABLE, "")
        found = [EXPANDABLE] if facts.devices and not is_set else []
        loaded = facts.libraries.allocators or ()
        if facts and not facts.devices and not loaded and not is_keeping(os.environ):
            found.append(KEEP_PAGES)
        return (*found, *(name for name in PRELOADED if not loaded and find_library(name)))

    def environment(self, setting: str) -> Mapping[str, str]:
        """The variable, with what it already holds."""
        if setting == EXPANDABLE:
            now = os.environ.get(CUDA_VARIABLE)
            return {CUDA_VARIABLE: f"{now},{EXPANDABLE}:True" if now else f"{EXPANDABLE}:True"}
        if setting == KEEP_PAGES:
            return KEEPING
        library, now = find_library(setting), os.environ.get("LD_PRELOAD")
        return {"LD_PRELOAD": f"{library}:{now}" if now else library} if library else {}

    def apply(self, setting: str, program: Program) -> None:
        """Note whether the variable has an effect here: the library is loaded, or the model is on a GPU."""
        if setting == KEEP_PAGES:
            # Another malloc takes no notice of glibc's variables.
            if is_keeping(program.environment) and not any(is_loaded(name) for name in PRELOADED):
                program.met(self, None, " ".join(f"{name}={value}" for name, value in KEEPING.items()))
            return
        if setting != EXPANDABLE:
            if is_loaded(setting):
                program.met(self, None, f"{setting} is loaded")
            return

        def on_first_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            if any(each.is_cuda for each in module.parameters()):
                program.met(self, None, f"{CUDA_VARIABLE}={program.environment.get(CUDA_VARIABLE)}")

        program.on_first_forward(on_first_forward)

    def fix(self, setting: str) -> str:
        """The variable before the command."""
        variables = " ".join(f"{name}={value}" for name, value in self.environment(setting).items())
        return f"{variables or f'LD_PRELOAD=lib{setting}.so'} python ..."


def is_keeping(environment: Mapping[str, str]) -> bool:
    """Whether glibc is set to keep freed memory."""
    return all(environment.get(name) == value for name, value in KEEPING.items())


def find_library(name: str) -> str | None:
    """The path of an allocator's library in the folders of the system, or of an active conda environment."""
    root = Path("/")
    folders = [folder for pattern in LIBRARY_FOLDERS for folder in sorted(root.glob(pattern[1:]))]
    prefix = os.environ.get("CONDA_PREFIX")
    folders += [Path(prefix) / "lib"] if prefix else []
    wanted = (f"lib{name}.so*", f"lib{name}_minimal.so*")
    return next((str(path) for folder in folders for each in wanted for path in sorted(folder.glob(each))), None)


def is_loaded(name: str) -> bool:
    """Whether this process has loaded a library of that name, as Linux lists it."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            return any(f"lib{name}" in line for line in file)
    except OSError:
        return False
