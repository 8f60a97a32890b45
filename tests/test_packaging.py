"""The packages hold all files of the tree, and analyzers of third parties load the same way as built-in ones."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.testing import TraceBuilder

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "examples" / "plugin"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ENTRY_POINTS: dict[str, str] = PROJECT["project"]["entry-points"]["perfdoctor.analyzers"]
# A build without isolation, so without a network, needs the build system's own requirement installed.
MIN_SETUPTOOLS = 77


def test_every_analyzer_has_its_entry_point_and_every_entry_point_its_file() -> None:
    files = {path.stem.split("_")[0].upper(): path.stem for path in (ROOT / "analyzers").glob("pd*.py")}
    assert {rule: target.partition(":")[0].rpartition(".")[2] for rule, target in ENTRY_POINTS.items()} == files
    assert list(ENTRY_POINTS) == sorted(ENTRY_POINTS)


@pytest.mark.parametrize("rule", ENTRY_POINTS)
def test_an_entry_point_leads_to_the_class_of_its_rule(rule: str) -> None:
    module, _, name = ENTRY_POINTS[rule].partition(":")
    assert getattr(importlib.import_module(module), name).rule == rule


def test_editors_find_the_analyzers_by_a_link() -> None:
    link = ROOT / "perfdoctor" / "analyzers"
    assert link.is_symlink()
    assert os.readlink(link) == os.path.join("..", "analyzers")


def skip_unless_buildable() -> None:
    """Skip the test where packages cannot be built offline."""
    for needed in ("setuptools", "pip"):
        try:
            found = metadata.version(needed)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{needed} is not installed: packages cannot be built without a network")
        if needed == "setuptools" and int(found.split(".")[0]) < MIN_SETUPTOOLS:
            pytest.skip(f"setuptools {found} is older than {MIN_SETUPTOOLS}, which the build needs")


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy of the tree: setuptools leaves its own folders beside what it builds."""
    skip_unless_buildable()
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("perfdoctor", "analyzers", "build_backend"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, copy)
    return zipfile.ZipFile(next(out.glob("perfdoctor-*.whl")))


def test_the_wheel_holds_every_module_once(wheel: zipfile.ZipFile) -> None:
    modules = {str(path.relative_to(ROOT).as_posix()) for path in (ROOT / "perfdoctor").rglob("*.py")}
    modules |= {f"perfdoctor/analyzers/{path.name}" for path in (ROOT / "analyzers").glob("*.py")}
    packed = [name for name in wheel.namelist() if name.endswith(".py")]
    assert len(packed) == len(set(packed))
    assert set(packed) == modules


def test_the_wheel_holds_the_data_files_and_only_the_package(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    data = {p.relative_to(ROOT).as_posix() for p in (ROOT / "perfdoctor").rglob("*.csv")}
    data |= {p.relative_to(ROOT).as_posix() for p in (ROOT / "perfdoctor").rglob("*.schema.json")}
    data |= {p.relative_to(ROOT).as_posix() for p in (ROOT / "perfdoctor").rglob("templates/*.txt")}
    assert data >= {"perfdoctor/gpu/data/devices.csv", "perfdoctor/reporters/report.schema.json"}
    page = ("templates/*.j2", "assets/*", "vendor/*/*")
    data |= {p.relative_to(ROOT).as_posix() for each in page for p in (ROOT / "perfdoctor/reporters/html").glob(each)}
    assert "perfdoctor/rules/templates/rule.txt" in data
    assert data >= {
        f"perfdoctor/reporters/html/vendor/uplot/{name}" for name in ("uPlot.iife.min.js", "LICENSE", "VERSION")
    }
    assert names >= data | {"perfdoctor/py.typed"}
    assert [name for name in names if name.endswith(".gz")] == ["perfdoctor/demo/demo.json.gz"]
    assert {name.split("/")[0].split("-")[0] for name in names} == {"perfdoctor"}


def test_the_wheel_registers_every_analyzer(wheel: zipfile.ZipFile) -> None:
    text = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert all(f"{rule} = {target}" in text for rule, target in ENTRY_POINTS.items())


# --- analyzers of third parties ---------------------------------------------------------------------------------------

ASK = """
import json, sys
import perfdoctor
from perfdoctor.rules import registry
report = perfdoctor.analyze(sys.argv[1])
print(json.dumps({
    "rules": [a.rule for a in registry.load_analyzers()],
    "broken": {b.name: b.why for b in registry.find_broken_plugins()},
    "findings": [f.rule for f in report.findings],
    "outcomes": {o.rule: [o.status, o.why] for o in report.outcomes},
}))
"""


def analyze_with(site: Path, trace: Path) -> dict[str, Any]:
    """The rules and the report in an interpreter that finds further packages in `site`."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    }
    command = [sys.executable, "-c", ASK, str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A step with a loader and twelve copies of 64 bytes: PD101 and the example have findings."""
    built = TraceBuilder().step(0, 1000)
    built.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 300)
    for row in range(12):
        built.memcpy("HtoD", 310 + 10 * row, 2, size_bytes=64, launch_us=301 + 2 * row)
    built.kernel("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn", 450, 550, launch_us=330)
    return built.write(tmp_path / "trace.json")


def install_plugin(site: Path, name: str, rule: str, source: str) -> None:
    """Write a package with one entry point, as pip would install it."""
    (site / f"{name}.py").write_text(source, encoding="utf-8")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[perfdoctor.analyzers]\n{rule} = {name}:Mine\n", encoding="utf-8")


def test_the_example_plugin_is_found_and_reports(tmp_path: Path, trace: Path) -> None:
    skip_unless_buildable()
    source, site = tmp_path / "plugin", tmp_path / "site"
    shutil.copytree(PLUGIN, source)
    pip("install", "--no-deps", "--no-build-isolation", "--target", site, source)
    answer = analyze_with(site, trace)
    # Other plugins may be installed as well.
    assert set(answer["rules"]) >= {*ENTRY_POINTS, "EX001"}
    assert answer["broken"].keys().isdisjoint({*ENTRY_POINTS, "EX001"})
    assert {"PD101", "EX001"} <= set(answer["findings"])
    assert answer["outcomes"]["EX001"] == ["ran", None]


def test_the_tests_of_the_example_plugin_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", PLUGIN]
    paths = os.pathsep.join([str(PLUGIN), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, PLUGIN / "tests"], capture_output=True, text=True, check=False, env=environment, cwd=PLUGIN
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_a_new_rule_in_a_new_package_is_found_and_runs(tmp_path: Path, trace: Path) -> None:
    skip_unless_buildable()
    source, site = tmp_path / "mine", tmp_path / "site"
    source.mkdir()
    subprocess.run(
        [sys.executable, "-m", "perfdoctor", "new-rule", "XX101", "slow-widgets", "-C", source],
        check=True,
        capture_output=True,
    )
    pip("install", "--no-deps", "--no-build-isolation", "--target", site, source)
    answer = analyze_with(site, trace)
    assert "XX101" in answer["rules"]
    assert answer["outcomes"]["XX101"] == ["ran", None]


def test_a_broken_plugin_is_reported_and_stops_no_other(tmp_path: Path, trace: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install_plugin(site, "exploding", "XX001", "raise RuntimeError('no luck')")
    install_plugin(site, "nobody", "XX002", "class Mine: ...")
    install_plugin(site, "absent", "XX003", "Yours = None")
    install_plugin(
        site,
        "nameless",
        "XX005",
        "from perfdoctor.rules import RankAnalyzer\n"
        "class Mine(RankAnalyzer):\n    def analyze_rank(self, rank):\n        yield from ()\n",
    )
    install_plugin(
        site,
        "thief",
        "XX004",
        "from perfdoctor.analyzers.pd101_dataloader_stall import DataLoaderStall\n"
        "class Mine(DataLoaderStall):\n    rule = 'PD101'\n    name = 'mine'\n",
    )
    answer = analyze_with(site, trace)
    assert set(answer["rules"]) >= set(ENTRY_POINTS)
    assert set(answer["rules"]).isdisjoint({"XX001", "XX002", "XX003", "XX004", "XX005"})
    assert set(answer["broken"]) >= {"XX001", "XX002", "XX003", "XX004", "XX005"}
    assert "RuntimeError('no luck')" in answer["broken"]["XX001"]
    assert "not a subclass of perfdoctor.Analyzer" in answer["broken"]["XX002"]
    assert "PD101, which is taken" in answer["broken"]["XX004"]
    assert "Mine needs a rule like 'PD101' and a name like 'dataloader-stall'" in answer["broken"]["XX005"]
    assert answer["outcomes"]["XX001"] == ["failed", answer["broken"]["XX001"]]
    assert answer["outcomes"]["PD101"] == ["ran", None]
    assert "PD101" in answer["findings"]
