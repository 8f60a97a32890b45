"""What the command line may load: its start is a large part of a short analysis."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfdoctor.cli.main import COMMANDS, module_of
from perfdoctor.rules.registry import list_rules

pytestmark = pytest.mark.process

HEAVY = ("torch", "numba", "dask", "plotly", "jinja2", "pandas", "mcp", "pydantic")


def loaded(code: str) -> set[str]:
    """The modules that a fresh interpreter holds after running some code."""
    script = f"import sys\n{code}\nsys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stderr.split())


def test_help_loads_nothing_heavy():
    modules = loaded("from perfdoctor.cli.main import main; assert main(['--help']) == 0")
    commands = {f"perfdoctor.cli.{module_of(name)}" for name in COMMANDS}
    assert not modules & {*HEAVY, *commands, "numpy", "orjson", "importlib.metadata"}


def test_importing_the_package_loads_nothing_heavy():
    assert not loaded("import perfdoctor") & {*HEAVY, "numpy", "typer", "rich"}


@pytest.mark.parametrize(
    "options",
    ["'-q'", "'--json'", "'-o', 'r.md'", "'-o', 'a.json.gz'", "'--jobs', '1', '--device', 'H100', '--rank', '0'"],
)
def test_analyzing_never_loads_torch(stalled, monkeypatch, tmp_path, options):
    monkeypatch.chdir(tmp_path)
    modules = loaded(
        f"from perfdoctor.cli.main import main; assert main(['analyze', {str(stalled)!r}, {options}]) == 0"
    )
    assert "numpy" in modules
    # `distinct` and `quantiles` do what in numpy imports numpy.ma, `installed_packages` what importlib.metadata does.
    assert not modules & {*HEAVY, "numpy.ma", "importlib.metadata", "email", "socket"}


def test_what_a_trace_cannot_feed_is_not_imported(stalled):
    modules = loaded(f"from perfdoctor.cli.main import main; assert main(['analyze', {str(stalled)!r}, '-q']) == 0")
    skipped = [rule for rule in list_rules() if rule.needs & {"facts", "nvml", "ranks", "hang", "memory"}]
    assert not modules & {rule.source.value.partition(":")[0] for rule in skipped}
    others = ("cli.job_reports", "run_watch.judge_hang", "reporters.trial_reports", "tables.collectives_table")
    assert not modules & {f"perfdoctor.{each}" for each in others}


def test_a_command_brings_no_other_command_along():
    commands = {f"perfdoctor.cli.{module_of(name)}" for name in COMMANDS}
    run = "from perfdoctor.cli.main import main; assert main(['rules']) == 0"
    assert loaded(run) & commands == {"perfdoctor.cli.rules"}


def test_commands_load_no_numpy_before_they_set_its_threads():
    modules = "\n".join(f"import perfdoctor.cli.{module_of(name)}" for name in COMMANDS)
    assert not loaded(modules) & {*HEAVY, "numpy"}


@pytest.mark.parametrize("command", ["'rules'", "'explain', 'PD101'"])
def test_the_catalogue_never_loads_torch(command):
    assert "torch" not in loaded(f"from perfdoctor.cli.main import main; assert main([{command}]) == 0")
