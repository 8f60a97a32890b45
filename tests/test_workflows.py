"""The workflows of GitHub and its forms: their schemas, what they may do, and that what they call exists."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = {path.stem: path for path in sorted((GITHUB / "workflows").glob("*.yml"))}
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
# What may write, and what: everything else reads.
WRITES = {
    ("wheels", "publish"): {"id-token", "attestations"},
    ("wheels", "announce"): {"contents"},
    ("docs", "publish"): {"pages", "id-token"},
    ("benchmarks", "keep"): {"contents"},
    ("news", "look"): {"issues"},
}
OWN = "github.repository == 'perfdoctor/perfdoctor'"
_RELEASE_TAG = re.compile(r"v\d+(\.\d+)*|release/v\d+|[0-9a-f]{40}")


def load(path: Path) -> dict[str, Any]:
    # YAML 1.1 takes the key `on` for a truth value.
    return {"on" if key is True else key: value for key, value in yaml.safe_load(path.read_text("utf-8")).items()}


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for workflow, path in WORKFLOWS.items():
        for name, job in load(path)["jobs"].items():
            yield workflow, name, job


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for workflow, name, job in jobs():
        for step in job.get("steps", []):
            yield f"{workflow}/{name}", step


def commands() -> list[tuple[str, str]]:
    """Every line of every script, with the job that it stands in."""
    lines = [(job, line.strip()) for job, step in steps() for line in step.get("run", "").splitlines()]
    return [(job, line) for job, line in lines if line]


def test_these_are_the_workflows() -> None:
    assert set(WORKFLOWS) == {"tests", "wheels", "docs", "fuzz", "benchmarks", "news"}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        *(("vendor.github-workflows", path) for path in WORKFLOWS.values()),
        *(("vendor.github-issue-forms", path) for path in FORMS),
        ("vendor.github-issue-config", GITHUB / "ISSUE_TEMPLATE" / "config.yml"),
        ("vendor.github-actions", ROOT / "action.yml"),
        ("vendor.dependabot", GITHUB / "dependabot.yml"),
        ("vendor.citation-file-format", ROOT / "CITATION.cff"),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else None,
)
def test_a_file_has_the_form_that_its_reader_wants(schema: str, path: Path) -> None:
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed: the workflow tests.yml checks with it")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_may_do_no_more_than_it_has_to() -> None:
    for workflow, path in WORKFLOWS.items():
        assert load(path)["permissions"] == {"contents": "read"}, workflow
    granted = {(workflow, name): job.get("permissions", {}) for workflow, name, job in jobs()}
    writes = {job: {key for key, value in may.items() if value == "write"} for job, may in granted.items()}
    assert {job: keys for job, keys in writes.items() if keys} == WRITES
    assert all(value in ("read", "write") for may in granted.values() for value in may.values())


def test_what_publishes_or_pushes_never_runs_in_a_fork_or_for_a_pull_request() -> None:
    guarded = {(workflow, name): job.get("if", "") for workflow, name, job in jobs()}
    for job in WRITES:
        needed = load(WORKFLOWS[job[0]])["jobs"][job[1]].get("needs", [])
        before = [needed] if isinstance(needed, str) else needed
        assert OWN in guarded[job] or any(OWN in guarded[job[0], each] for each in before), job
    triggers = {event for path in WORKFLOWS.values() for event in load(path)["on"]}
    assert "pull_request_target" not in triggers
    assert all(
        event not in load(WORKFLOWS["wheels"])["jobs"]["publish"]["if"] for event in ("pull_request", "dispatch")
    )
    assert load(WORKFLOWS["wheels"])["jobs"]["publish"]["environment"]["name"] == "pypi"


def test_actions_are_pinned_and_leave_no_credentials_behind() -> None:
    used = [(job, step) for job, step in steps() if "uses" in step]
    assert len(used) > 20
    for job, step in used:
        name, _, release = step["uses"].partition("@")
        assert name == "./" or _RELEASE_TAG.fullmatch(release), (job, step["uses"])
        if name == "actions/checkout" and job != "benchmarks/keep":  # which pushes with them
            assert step["with"]["persist-credentials"] is False, job


def test_what_others_write_is_no_part_of_a_script() -> None:
    # Titles, branches and names of a pull request are commands where an expression puts them into a script.
    found = [(job, line) for job, line in commands() if "${{" in line and "${{ matrix." not in line]
    assert found == []


def test_every_job_ends_in_time() -> None:
    assert [
        (workflow, name) for workflow, name, job in jobs() if "uses" not in job and "timeout-minutes" not in job
    ] == []


# --- what the scripts call --------------------------------------------------------------------------------------------


def sessions_called() -> set[str]:
    """The sessions of nox, with those of a matrix."""
    called = set()
    for _, _, job in jobs():
        text = "\n".join(step.get("run", "") for step in job.get("steps", []))
        for name in re.findall(r"\bnox -s (\$\{\{ matrix\.session \}\}|[\w-]+)", text):
            called |= set(job["strategy"]["matrix"]["session"]) if name.startswith("$") else {name}
    return called


def find_sessions(text: str) -> set[str]:
    """The names of the sessions of a noxfile: of the functions with nox's decorator, or what that names them."""
    found = set()
    for node in ast.parse(text).body:
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else []:
            call = decorator if isinstance(decorator, ast.Call) else ast.Call(decorator, [], [])
            if ast.unparse(call.func) in ("nox.session", "session"):
                named = [ast.literal_eval(each.value) for each in call.keywords if each.arg == "name"]
                found.add(named[0] if named else node.name)
    return found


def test_sessions_of_nox_exist() -> None:
    assert sessions_called() == {"tests", "analysis", "lowest", "newest", "nonroot", "lint", "fuzz", "laws", "mutants"}
    noxfile = ROOT / "noxfile.py"
    if not noxfile.is_file():
        pytest.skip("there is no noxfile.py")
    assert sessions_called() <= find_sessions(noxfile.read_text(encoding="utf-8"))


def test_sessions_are_found_by_their_name() -> None:
    text = (
        "@nox.session(python=['3.11'], name='tests')\ndef a(s): ...\n@nox.session\ndef lint(s): ...\ndef other(): ..."
    )
    assert find_sessions(text) == {"tests", "lint"}


def module_exists(name: str) -> bool:
    return (ROOT / name.replace(".", "/")).with_suffix(".py").is_file() or importlib.util.find_spec(name) is not None


def test_modules_and_scripts_exist() -> None:
    lines = [shlex.split(line) for _, line in commands() if re.match(r"python3? ", line) and "$(" not in line]
    modules = {words[2] for words in lines if words[1] == "-m"}
    scripts = {words[1] for words in lines if words[1] != "-m"}
    modules -= {"mkdocs"}  # installed by the workflow itself
    assert modules >= {"benchmarks.history", "build_backend.wheels", "pip"}
    assert scripts >= {"docs/check_news.py", "docs/release_notes.py", "docs/publish_readme.py"}
    assert [name for name in modules if not module_exists(name)] == []
    assert [name for name in scripts if not (ROOT / name).is_file()] == []


def test_folders_of_tests_exist() -> None:
    named = {word for _, line in commands() for word in line.split() if word.startswith("tests/")}
    assert len(named) > 3
    assert [name for name in named if not (ROOT / name).is_dir()] == []


def test_commands_of_perfdoctor_exist() -> None:
    from perfdoctor.cli.main import COMMANDS

    called = {line.split()[1] for _, line in commands() if line.startswith("perfdoctor ")}
    assert called >= {"demo", "check"}
    assert called <= set(COMMANDS)


# --- scripts that decide something ------------------------------------------------------------------------------------


@pytest.fixture
def news(tmp_path: Path) -> Any:
    """Runs the script of news.yml, where check_news ends with a code and this issue is open."""
    (script,) = [step["run"] for job, step in steps() if job == "news/look" and "gh issue" in step.get("run", "")]

    def run(code: int, open_issue: str) -> tuple[int, list[str]]:
        bin_folder = tmp_path / f"bin{code}{open_issue}"
        bin_folder.mkdir()
        (bin_folder / "python").write_text(f"#!/bin/sh\necho a table\nexit {code}\n")
        asked = tmp_path / f"asked{code}{open_issue}"
        asked.touch()
        (bin_folder / "gh").write_text(f'#!/bin/sh\necho "$@" >> {asked}\n[ "$2" != list ] || echo "{open_issue}"\n')
        for file in bin_folder.iterdir():
            file.chmod(0o755)
        environment = {
            "PATH": f"{bin_folder}:/usr/bin:/bin",
            "TITLE": "News",
            "GITHUB_STEP_SUMMARY": str(asked) + ".md",
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, [" ".join(line.split()[:3]) for line in asked.read_text().splitlines()]

    return run


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="the workflow runs on Linux")
def test_news_opens_one_issue_and_keeps_it_up_to_date(news: Any) -> None:
    assert news(0, "") == (0, [])
    assert news(1, "") == (0, ["issue list --state", "issue create --title"])
    assert news(1, "7") == (0, ["issue list --state", "issue edit 7"])
    # No answer of PyPI is no silence: the job fails.
    assert news(2, "") == (2, [])


def test_forms_ask_for_what_a_diagnosis_is_judged_by() -> None:
    forms = {path.stem: load(path) for path in FORMS}
    assert set(forms) == {"wrong_diagnosis", "crash", "feature", "rule_proposal"}
    for form in forms.values():
        ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(ids) == len(set(ids)) >= 3
    required = {
        field["id"] for field in forms["wrong_diagnosis"]["body"] if field.get("validations", {}).get("required")
    }
    assert required >= {"truth", "report", "trace"}
    assert json.dumps(forms["wrong_diagnosis"]).count("perfdoctor analyze TRACE -o report.json") == 1
