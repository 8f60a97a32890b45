"""What `pip install perfdoctor` puts on the disk: the core is small, whatever numpy and nvtx weigh."""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 25_000_000


def required_packages() -> set[str]:
    """The packages that an installation of perfdoctor brings on this machine, without extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found, ahead = set[str](), list(map(Requirement, project["dependencies"]))
    while ahead:
        needed = ahead.pop()
        package = needed.name.lower()
        if package not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found.add(package)
            ahead += map(Requirement, metadata.requires(package) or [])
    return found


def installed_bytes(package: str) -> int:
    """The size of a package's files, without the bytecode that Python makes of them."""
    files = metadata.files(package)
    if not files:
        pytest.skip(f"the installation of {package} does not say which files are its own")
    paths = [Path(str(file.locate())) for file in files if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.exists())


def test_the_core_without_numpy_and_nvtx_is_small() -> None:
    packages = required_packages()
    assert {"numpy", "orjson", "rich", "pygments", "typer"} <= packages
    assert packages.isdisjoint({"numba", "llvmlite", "torch"})
    assert ("nvtx" in packages) == (sys.platform == "linux")
    sizes = {package: installed_bytes(package) for package in packages - {"numpy", "nvtx"}}
    # An editable installation has its files in the tree.
    own = [path for folder in ("perfdoctor", "analyzers") for path in (ROOT / folder).rglob("*")]
    sizes["perfdoctor"] = sum(path.stat().st_size for path in own if path.is_file() and path.suffix != ".pyc")
    assert min(sizes.values()) > 5_000
    assert sum(sizes.values()) < MAX_BYTES, sizes
