"""What a release needs: files of one version, date and address, a changelog in form, distributions that PyPI takes."""

from __future__ import annotations

import email
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import publish_readme
import pytest
import release_notes
import yaml

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY: str = PROJECT["urls"]["Repository"]
VERSION: str = PROJECT["version"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
TEXTS = (".md", ".yml", ".yaml", ".toml", ".cff", ".py", ".txt")
SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Not yet"]


def read_texts() -> dict[str, str]:
    """The texts of the repository that may name it: its own files, and none of a build or an environment."""
    folders = [
        "",
        ".github/",
        ".github/workflows/",
        ".github/ISSUE_TEMPLATE/",
        "docs/",
        "benchmarks/",
        "perfdoctor/**/",
    ]
    paths = {path for folder in folders for path in ROOT.glob(f"{folder}*") if path.suffix in TEXTS}
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}


# --- version, date, address -------------------------------------------------------------------------------------------


def test_all_files_are_of_one_version_and_one_date() -> None:
    assert release_notes.check_versions(release_notes.find_versions(), f"v{VERSION}") == ""
    assert f"`## [{VERSION}] - " in (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
    assert f"git tag --sign v{VERSION} " in (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
    assert f"perfdoctor/perfdoctor@v{VERSION}\n" in (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "value", "tag", "says"),
    [
        ("pyproject.toml", "0.3.0", "v0.2.0", "the tag is v0.2.0, and pyproject.toml has version 0.3.0"),
        ("CITATION.cff", "0.1.0 of 2026-11-23", "v0.2.0", "and CITATION.cff 0.1.0 of 2026-11-23"),
        ("CHANGELOG.md", "no release", "v0.2.0", "and CHANGELOG.md no release"),
        ("CHANGELOG.md", "0.2.0 of 2026-11-24", "v0.2.0", "and CHANGELOG.md 0.2.0 of 2026-11-24"),
        ("pyproject.toml", "0.2.0", "0.2.0", "the tag is 0.2.0"),
    ],
)
def test_a_file_that_disagrees_stops_the_release(file: str, value: str, tag: str, says: str) -> None:
    versions = {"pyproject.toml": "0.2.0"} | dict.fromkeys(("CITATION.cff", "CHANGELOG.md"), "0.2.0 of 2026-11-23")
    assert release_notes.check_versions(versions, "v0.2.0") == ""
    assert says in release_notes.check_versions(versions | {file: value}, tag)


def test_the_address_of_the_repository_is_one() -> None:
    name = re.escape(REPOSITORY.rpartition("/")[2])
    # github.com/X/perfdoctor, and the action's X/perfdoctor@v1.
    pattern = re.compile(rf"github\.com/([\w.-]+/{name})\b|\buses: ([\w.-]+/{name})@|github\.repository == '([^']+)'")
    owner = REPOSITORY.removeprefix("https://github.com/")
    found = {(path, "".join(match)) for path, text in read_texts().items() for match in pattern.findall(text) if path}
    assert {path for path, _ in found} >= {"SECURITY.md", "CITATION.cff", "docs/ci.md", ".github/workflows/wheels.yml"}
    assert {(path, named) for path, named in found if named != owner} == set()
    pages = re.compile(r"https://[\w-]+\.github\.io/[\w-]+/")
    addresses = {(path, page) for path, text in read_texts().items() for page in pages.findall(text)}
    assert {page for path, page in addresses if path in ("mkdocs.yml", "pyproject.toml", "benchmarks/README.md")} == {
        PROJECT["urls"]["Documentation"]
    }


def test_pythons_are_those_that_are_tested() -> None:
    prefix = "Programming Language :: Python :: 3."
    claimed = [
        each.removeprefix("Programming Language :: Python :: ") for each in PROJECT["classifiers"] if prefix in each
    ]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["linux"]["strategy"]["matrix"]["python"] == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"


# --- the changelog ----------------------------------------------------------------------------------------------------


def test_the_changelog_has_its_form() -> None:
    releases = re.findall(r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", CHANGELOG, re.MULTILINE)
    assert len(releases) >= 2
    assert [date for _, date in releases] == sorted((date for _, date in releases), reverse=True)
    headings = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert [each for each in headings if each != "[Unreleased]"] == [f"[{v}] - {date}" for v, date in releases]
    for part in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        titles = re.findall(r"^### (.+)$", part, re.MULTILINE)
        assert titles == sorted(set(titles), key=SECTIONS.index)


def test_every_release_of_the_changelog_is_a_link() -> None:
    links = dict(re.findall(rf"^\[([^\]]+)\]: {re.escape(REPOSITORY)}/(\S+)$", CHANGELOG, re.MULTILINE))
    versions = re.findall(r"^## \[([\d.]+)\]", CHANGELOG, re.MULTILINE)
    compared = {new: f"compare/v{old}...v{new}" for new, old in pairwise(versions)}
    first = {versions[-1]: f"releases/tag/v{versions[-1]}"}
    assert links == {"Unreleased": f"compare/v{versions[0]}...HEAD"} | compared | first


def test_the_notes_of_a_release_are_its_section_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert release_notes.main(["--tag", f"v{VERSION}"]) == 0
    notes = capsys.readouterr().out
    assert "\n### Added\n- " in notes
    assert "\n## " not in notes
    assert "[Unreleased]:" not in release_notes.find_notes(CHANGELOG, "0.1.0")
    assert release_notes.find_notes(CHANGELOG, "0.1.0").startswith("The main job")
    assert release_notes.find_notes(CHANGELOG, "9.9.9") == ""
    assert release_notes.main(["--tag", "v9.9.9"]) == 1
    assert "the tag is v9.9.9" in capsys.readouterr().err


# --- the README on PyPI -----------------------------------------------------------------------------------------------


def test_links_of_the_published_readme_lead_to_files_of_the_tag() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    published = publish_readme.lead_to_tag(text, "v1.2.3")
    outside_code = "".join(part for part in re.split(r"^```.*?^```$", published, flags=re.DOTALL | re.MULTILINE))
    assert re.findall(r"\]\((?![a-z]+:|#)", outside_code) == []
    links = re.findall(rf"{re.escape(REPOSITORY)}/(raw|blob|tree)/v1\.2\.3/([^)#]+)", published)
    assert ("raw", "docs/report.svg") in links
    assert ("tree", "examples/plugin") in links
    assert len(links) > 15
    for kind, path in links:
        assert (ROOT / path).is_dir() if kind == "tree" else (ROOT / path).is_file(), path


def test_the_readme_begins_with_installing_it_and_the_demo() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    first = [line.split("#")[0].split()[:2] for line in blocks[0].splitlines()]
    assert first == [["pip", "install"], ["perfdoctor", "demo"], ["perfdoctor", "run"], ["perfdoctor", "analyze"]]
    (test_command,) = re.findall(r"<!-- test-command -->\n```sh\n(.*)\n```\n<!-- /test-command -->", text)
    assert test_command == "pip install -e '.[test]' -c constraints.txt && pytest -n auto"


# --- distributions ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and a wheel, built from a copy of what git knows, as a release does."""
    for name in ("build", "setuptools"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: distributions cannot be built without a network")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no checkout: git cannot say what belongs to the repository")
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name, follow_symlinks=False)
    readme = tree / "README.md"
    readme.write_text(publish_readme.lead_to_tag(readme.read_text(encoding="utf-8"), f"v{VERSION}"), encoding="utf-8")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_the_wheel_has_the_package_alone_and_one_trace(distributions: Path) -> None:
    (path,) = distributions.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        about = email.message_from_bytes(wheel.read(f"perfdoctor-{VERSION}.dist-info/METADATA"))
    assert {name.split("/")[0] for name in names} == {"perfdoctor", f"perfdoctor-{VERSION}.dist-info"}
    assert [name for name in names if "test_" in name.rpartition("/")[2] or name.endswith(".c")] == []
    assert [name for name in names if name.endswith((".gz", ".json.zst", ".sqlite"))] == [
        "perfdoctor/demo/demo.json.gz"
    ]
    assert about["Version"] == VERSION
    assert dict(each.split(", ") for each in about.get_all("Project-URL", [])) == PROJECT["urls"]
    assert f"{REPOSITORY}/blob/v{VERSION}/docs/start.md" in about.get_payload()


def test_the_sdist_has_what_a_wheel_is_made_of(distributions: Path) -> None:
    # That it is enough shows the wheel: `build` makes it of the unpacked sdist.
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "build_backend/hooks.py", "perfdoctor/demo/demo.json.gz"} <= names
    assert {"perfdoctor/trace/scanner/core/perfdoctor.h", "analyzers/pd101_dataloader_stall.py"} <= names
    assert [name for name in names if name.startswith(("sample_traces/", ".github/", "docs/"))] == []


def test_pypi_takes_them(distributions: Path) -> None:
    if importlib.util.find_spec("twine") is None:
        pytest.skip("twine is not installed: the workflow wheels.yml checks with it")
    files = [str(path) for path in distributions.iterdir()]
    assert len(files) == 2
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
