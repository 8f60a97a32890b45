"""The public API: its names, and that importing them costs next to nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import perfdoctor
from perfdoctor.testing import TraceBuilder

# The functions, their results, what analyzers are made of, and the exceptions.
CONTRACT = {
    *("analyze", "compare", "diagnose", "expect", "gpu", "guide", "profile", "read"),
    *("Comparison", "Expectation", "Guide", "Report", "Table", "Trace"),
    *("Analyzer", "Claim", "Evidence", "Finding", "FleetAnalyzer", "RankAnalyzer", "Saving", "SourceLocation"),
    *("CaptureError", "GateError", "InputError", "PerfdoctorError", "TraceError", "UsageError"),
}
# torch takes seconds to load, the others tenths of a second; reading a trace needs none of them.
HEAVY = ("torch", "dask", "plotly", "jinja2")


def test_the_names_are_the_contract_in_order() -> None:
    assert list(perfdoctor.__all__) == sorted(CONTRACT)


@pytest.mark.parametrize("name", sorted(CONTRACT))
def test_every_name_is_there_and_documented(name: str) -> None:
    value = getattr(perfdoctor, name)
    assert (value.__doc__ or "").strip()
    assert name in dir(perfdoctor)


def test_a_star_import_has_all_names() -> None:
    space: dict[str, object] = {}
    exec("from perfdoctor import *", space)
    assert space.keys() >= CONTRACT


def test_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'perfdoctor' has no attribute 'analyse'"):
        _ = perfdoctor.analyse


def test_the_version_is_the_installed_one() -> None:
    assert perfdoctor.__version__.count(".") >= 2


def test_the_exit_codes_of_the_contract() -> None:
    codes = {name: getattr(perfdoctor, name).exit_code for name in CONTRACT if name.endswith("Error")}
    assert codes == {
        "PerfdoctorError": 3,
        "InputError": 2,
        "TraceError": 2,
        "CaptureError": 2,
        "UsageError": 2,
        "GateError": 1,
    }


def modules_after(code: str, *arguments: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after it has run some code."""
    ask = f"import sys\n{code}\nimport json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", ask, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.process
def test_importing_the_package_loads_nothing_heavy_not_even_numpy() -> None:
    loaded = modules_after("import perfdoctor")
    assert "perfdoctor" in loaded
    assert loaded.isdisjoint([*HEAVY, "numpy", "perfdoctor.trace", "perfdoctor.capture"])


@pytest.mark.process
def test_analysing_loads_neither_torch_nor_what_draws_nor_the_capture(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 1000).kernel("ampere_sgemm_128x64_nn", 10, 900, launch_us=1)
    path = trace.write(tmp_path / "trace.json.gz")
    code = "import perfdoctor\nreport = perfdoctor.analyze(sys.argv[1])\nassert report.findings\nreport.to_dict()"
    loaded = modules_after(code, str(path))
    assert "perfdoctor.pipeline" in loaded
    assert loaded.isdisjoint([*HEAVY, "perfdoctor.capture"])


def test_errors_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(perfdoctor.TraceError, match=r"no such file") as caught:
        perfdoctor.analyze(tmp_path / "absent.json")
    assert "\n" not in str(caught.value)
    assert "absent.json" in str(caught.value)


@pytest.fixture
def two_steps(tmp_path: Path) -> Path:
    trace = TraceBuilder(device=None)
    for number in range(2):
        trace.step(1000 * number, 1000).op("aten::mm", 1000 * number, 900)
    return trace.write(tmp_path / "trace.json")


def test_a_rule_that_does_not_exist_is_refused(two_steps: Path) -> None:
    with pytest.raises(perfdoctor.UsageError, match="no rule is called 'XX9'"):
        perfdoctor.analyze(two_steps, select=["XX9"])


def test_rules_are_chosen_by_id_and_family(two_steps: Path) -> None:
    report = perfdoctor.analyze(two_steps, select=["PD1", "PD201"], ignore=["PD102"])
    rules = {outcome.rule for outcome in report.outcomes}
    assert {"PD101", "PD103", "PD104", "PD201"} <= rules
    assert rules.isdisjoint({"PD102", "PD203", "PD401", "PD402"})


def test_a_setting_that_does_not_exist_is_refused(two_steps: Path) -> None:
    with pytest.raises(perfdoctor.UsageError, match="PD101 has no setting 'share'"):
        perfdoctor.analyze(two_steps, settings={"PD101": {"share": 0.5}})


def test_a_device_that_is_not_known_is_refused(two_steps: Path) -> None:
    with pytest.raises(perfdoctor.UsageError, match="'Voodoo 2' is not in the table"):
        perfdoctor.analyze(two_steps, device="Voodoo 2")


def test_some_steps_can_be_chosen_and_none_is_refused(two_steps: Path) -> None:
    assert perfdoctor.analyze(two_steps, steps=slice(1, 2)).steps.count == 1
    with pytest.raises(perfdoctor.UsageError, match="no steps are left"):
        perfdoctor.analyze(two_steps, steps=slice(7, 9))


def test_a_rank_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for rank in (0, 1):
        TraceBuilder(rank=rank).kernel("ampere_sgemm_128x64_nn", 0, 10).write(tmp_path / f"rank{rank}.json")
    assert [t.rank for t in perfdoctor.analyze(tmp_path, rank=1).traces] == [1]
    with pytest.raises(perfdoctor.InputError, match="none of the traces is of rank 5"):
        perfdoctor.analyze(tmp_path, rank=5)


def test_files_with_one_rank_number_are_renumbered_with_a_warning(tmp_path: Path) -> None:
    for name in ("a", "b"):
        TraceBuilder(rank=0).kernel("ampere_sgemm_128x64_nn", 0, 10).write(tmp_path / f"{name}.json")
    report = perfdoctor.analyze([tmp_path / "b.json", tmp_path / "a.json"])
    assert [t.rank for t in report.traces] == [0, 1]
    assert all(any("numbered in the order" in warning for warning in t.warnings) for t in report.traces)
