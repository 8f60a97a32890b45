"""The first stage of run.sh: looks at the machine, installs what is missing, and runs `perfdoctor check`.

    python make_environment.py FOLDER [--wheels WHEELS] [--no-install]

Standard library only. What is installed goes into a virtual environment that sees the packages already there; nothing
outside FOLDER is changed, but for the C library, which is put into this tree as an editable installation does.
perfdoctor itself is not built: the environment gets a path to this tree and the entry points of pyproject.toml. Writes
figures.json with `facts`, which the other stages use.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# The C library's place in the tree, and its name, which it also has among the wheels.
SCANNER, LIBRARY = ("perfdoctor", "trace", "scanner"), "libperfdoctor.so"
TEST_PACKAGES = ("pytest>=8", "hypothesis>=6.100", "jsonschema>=4.20")
PROBE = """
import json, sys
facts = {"has": {}, "python_version": "Python " + sys.version.split()[0]}
try:
    import torch
    facts["torch"] = "torch " + torch.__version__
    facts["cuda"] = torch.version.cuda and "CUDA " + torch.version.cuda
    facts["has"]["torch"] = True
    if torch.cuda.is_available():
        (torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")).sum().item()
        facts["gpu"] = torch.cuda.get_device_name()
        facts["gpu_count"] = torch.cuda.device_count()
        facts["has"]["gpu"] = True
except Exception as error:
    facts["torch_error"] = f"{type(error).__name__}: {error}"[:300]
try:
    import perfdoctor.api
    from perfdoctor.rules.registry import load_analyzers
    facts["rules"] = len(load_analyzers())
    facts["has"]["perfdoctor"] = facts["rules"] > 0
except Exception as error:
    facts["perfdoctor_error"] = f"{type(error).__name__}: {error}"[:300]
try:
    from perfdoctor.trace.scanner.core_library import find_problem
    facts["library"] = find_problem() or "in use"
except Exception as error:
    facts["library"] = f"{type(error).__name__}: {error}"[:300]
facts["has"]["library"] = facts["library"] == "in use"
for name in ("pytest", "hypothesis", "jsonschema", "pynvml", "triton"):
    try:
        __import__(name)
        facts["has"][name] = True
    except Exception:
        facts["has"][name] = False
print(json.dumps(facts))
"""


def run(command: Sequence[str], seconds: float, **options: Any) -> tuple[int, str]:
    """Run a command; returns its exit code (124: out of time, 127: not there) and its output, which is also printed."""
    print("$", " ".join(command[:8]), "..." if len(command) > 8 else "", flush=True)
    try:
        done = subprocess.run(
            command,
            timeout=max(seconds, 1),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            **options,
        )
        code, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, text = 124, f"out of time after {seconds:.0f} s"
    except OSError as error:
        code, text = 127, str(error)
    print(text[-6000:], flush=True)
    return code, text


def read_project() -> tuple[list[str], dict[str, dict[str, str]], dict[str, str], str]:
    """Requirements, entry points by group, console scripts and version, from pyproject.toml."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["dependencies"], project.get("entry-points", {}), project.get("scripts", {}), project["version"]


def make_environment(folder: Path, wheels: Path | None, deadline: float) -> tuple[str, dict[str, Any]]:
    """Make the virtual environment, and install what is missing.

    Returns:
        Its Python, and notes: which requirements could not be installed, and by which way the others were.
    """
    venv = folder / "venv"
    code, text = run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(venv)], 60)
    if code:
        return sys.executable, {"venv": f"could not be made: {text.strip().splitlines()[-1:]}"}
    python = str(venv / "bin" / "python")
    site = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    # A Python that is itself a virtual environment would hide its own packages from this one.
    folders = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    lines = [str(ROOT), *(f"import site; site.addsitedir({folder!r})" for folder in folders)]
    (site / "perfdoctor_tree.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    requirements, entry_points, scripts, version = read_project()
    write_metadata(site, entry_points, version)
    write_scripts(venv / "bin", python, scripts)
    return python, install(python, site, [*requirements, *TEST_PACKAGES], wheels, deadline)


def write_metadata(site: Path, entry_points: dict[str, dict[str, str]], version: str) -> None:
    """Make the tree known as an installed package, whose rules are found by entry point."""
    folder = site / f"perfdoctor-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: perfdoctor\nVersion: {version}\n", encoding="utf-8")
    lines = []
    for group, points in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), ""]
    (folder / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def write_scripts(bin_folder: Path, python: str, scripts: dict[str, str]) -> None:
    """Write the console scripts of pyproject.toml."""
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        path = bin_folder / name
        path.write_text(f"#!{python}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n", "utf-8")
        path.chmod(0o755)


def install(
    python: str, site: Path, requirements: Sequence[str], wheels: Path | None, deadline: float
) -> dict[str, Any]:
    """Install requirements that are not there: all at once, else one by one, else by unpacking wheels."""
    source = ["--no-index", "--find-links", str(wheels)] if wheels else ["--retries", "1", "--timeout", "10"]
    pip = [*find_pip(wheels), "--python", python, "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    pip += ["--no-warn-script-location", *source]
    if run([*pip, *requirements], deadline - time.monotonic() - 20)[0] == 0:
        return {"packages": "installed by pip", "not_installed": []}
    missing = [each for each in requirements if time.monotonic() < deadline - 25 and run([*pip, each], 25)[0] != 0]
    if missing and wheels:
        unpack(site, python, wheels)
        return {"packages": "wheels unpacked, because pip failed", "not_installed": missing}
    return {"packages": "installed one by one, because pip failed for all at once", "not_installed": missing}


def find_pip(wheels: Path | None) -> list[str]:
    """A command that is pip: that of this Python, or the wheel of pip."""
    carried = sorted(wheels.glob("pip-*.whl")) if wheels else []
    if carried:
        return [sys.executable, f"{carried[-1]}/pip"]
    return [sys.executable, "-m", "pip"]


def unpack(site: Path, python: str, wheels: Path) -> None:
    """Unpack the wheels of packages that cannot be found; a last resort, without any check of versions."""
    for wheel in sorted(wheels.glob("*.whl")):
        name = re.split(r"-\d", wheel.name, maxsplit=1)[0]
        code = f"import importlib.metadata as m; m.version({name!r})"
        if name != "pip" and run([python, "-c", code], 20)[0] != 0:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)


def provide_library(root: Path, python: str, wheels: Path | None, seconds: float) -> str:
    """Put the C library into the tree: the one that came with the wheels, else one built by this machine's compiler.

    Returns:
        Where it is from, or why there is none: then traces are read by Python, 20 times as slowly.
    """
    carried = wheels / LIBRARY if wheels else None
    if carried is not None and carried.is_file():
        shutil.copy(carried, root.joinpath(*SCANNER, LIBRARY))
        return "carried with the wheels"
    code, text = run([python, "-m", "build_backend.core_library"], seconds, cwd=root)
    return "built here" if code == 0 else f"none: {(text.strip().splitlines() or [''])[-1][:300]}"


def probe(python: str, environment: dict[str, str], seconds: float) -> dict[str, Any]:
    """What torch and perfdoctor say of themselves in the new environment."""
    code, text = run([python, "-c", PROBE], seconds, cwd=ROOT, env={**os.environ, **environment})
    lines = [line for line in text.splitlines() if line.startswith('{"has"')]
    if not lines:
        return {"has": {}, "probe_error": f"exit code {code}: {(text.strip().splitlines() or [''])[-1][:300]}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main(arguments: Sequence[str]) -> int:
    """Look, install, look again; returns 1 where torch or perfdoctor does not work afterwards."""
    parser = argparse.ArgumentParser(description="Prepare a machine for the stages of run.sh.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--no-install", action="store_true")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.seconds
    query = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit,compute_mode,mig.mode.current"
    code, text = run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], 15)
    facts: dict[str, Any] = {"nvidia_smi": text.strip().splitlines()[:8] if code == 0 else None}
    facts["cores"], facts["load"] = os.cpu_count(), os.getloadavg()[0]
    python, notes = sys.executable, {"packages": "as they are"}
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs on a bare machine, whatever its Python is
        notes = {"packages": "none installed: perfdoctor needs Python 3.11; set PYTHON to one that has torch"}
    elif not options.no_install:
        work = options.folder.parent / "_environment"
        work.mkdir(exist_ok=True)
        try:
            wheels = options.wheels and options.wheels.resolve()
            python, notes = make_environment(work, wheels, deadline)
            notes["library_from"] = provide_library(ROOT, python, wheels, deadline - time.monotonic() - 25)
        except (OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            notes = {"venv": f"{type(error).__name__}: {error}"[:300]}
    environment = {}
    if python == sys.executable:  # no virtual environment, whose path would name the tree
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    facts |= {"python": python, "environment": environment, **notes}
    facts |= probe(python, environment, max(deadline - time.monotonic() - 15, 20))
    if facts["nvidia_smi"]:
        facts["driver"] = f"driver {facts['nvidia_smi'][0].split(',')[1].strip()}"
    options.folder.joinpath("figures.json").write_text(json.dumps({"facts": facts}, indent=1), encoding="utf-8")
    if facts["has"].get("perfdoctor"):
        left_s = max(deadline - time.monotonic(), 10)
        run([python, "-m", "perfdoctor", "check"], left_s, cwd=ROOT, env={**os.environ, **environment})
    return 0 if facts["has"].get("torch") and facts["has"].get("perfdoctor") else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
