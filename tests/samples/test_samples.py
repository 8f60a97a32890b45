"""Each sample trace has its diagnosis as first finding, and the generator writes the committed files."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import perfdoctor
from perfdoctor.reporters.json_ import load_schema
from perfdoctor.trace.tables.model import KERNEL

FOLDER = Path(__file__).resolve().parents[2] / "sample_traces"
DEMO = FOLDER.parent / "perfdoctor" / "demo" / "demo.json.gz"
FIRST_FINDING = {
    "dataloader-stall.json.gz": "PD101",
    "host-device-sync.json.gz": "PD102",
    "gpu-idle.json.gz": "PD103",
    "launch-bound.json.gz": "PD104",
    "allocator-churn.json.gz": "PD107",
    "gemm-without-tensor-cores.json.gz": "PD201",
    "convolution-without-tensor-cores.json.gz": "PD203",
    "straggler": "PD401",
    "exposed-communication.json.gz": "PD402",
    "cpu-training.json.gz": "PD101",
    "demo.json.gz": "PD201",
}
SAMPLES = ["healthy.json.gz", *FIRST_FINDING]
# Recorded on a GPU in place of a generated one, listed by benchmarks/gpu/take_samples.py.
_LIST = FOLDER / "recorded.json"
FROM_GPUS = list(json.loads(_LIST.read_text(encoding="utf-8"))) if _LIST.is_file() else []
RECORDED = {"cpu-training.json.gz", *(f"{name}.json.gz" for name in FROM_GPUS)}
# Further findings: the cause of the straggler, the second line that reads a value, attention in float32, and all that
# the demo has.
OTHER_FINDINGS = {
    "straggler": {"PD408"},
    "host-device-sync.json.gz": {"PD102"},
    "gemm-without-tensor-cores.json.gz": {"PD205"},
    "demo.json.gz": {"PD101", "PD102", "PD205"},
}


def path_of(name: str) -> Path:
    """The trace that the demo analyses stands in the package, all others beside each other."""
    return DEMO if name == DEMO.name else FOLDER / name


@pytest.fixture(scope="module", params=SAMPLES)
def sample(request):
    """The name of a sample, and the report on it."""
    return request.param, perfdoctor.analyze(path_of(request.param))


def without_machine_details(plain):
    """A report as plain data without what depends on the version, the machine, the folder, or the number of rules."""
    plain["version"] = ""
    if plain["steps"]["variation"] is not None:
        plain["steps"]["variation"] = round(plain["steps"]["variation"], 9)
    for trace in plain["traces"]:
        path = Path(trace["path"])
        trace["path"] = path.name if path == DEMO else path.relative_to(FOLDER).as_posix()
    return {key: value for key, value in plain.items() if key != "outcomes"}


def test_report_is_as_expected(sample, request):
    name, report = sample
    plain = report.to_dict()
    jsonschema.validate(plain, load_schema())
    text = json.dumps(without_machine_details(plain), indent=1) + "\n"
    path = FOLDER / "expected" / f"{name.removesuffix('.json.gz')}.json"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8", newline="\n")
    assert path.is_file(), f"no {path.name}: run pytest tests/samples --update-golden and read what it wrote"
    assert text == path.read_text(encoding="utf-8")


def test_no_rule_fails_on_a_sample(sample):
    _, report = sample
    assert [outcome for outcome in report.outcomes if outcome.status == "failed"] == []


def test_first_finding_is_the_one_that_the_sample_shows(sample):
    name, report = sample
    assert [finding.rule for finding in report.findings[:1]] == ([FIRST_FINDING[name]] if name in FIRST_FINDING else [])


def test_nothing_else_is_found(sample):
    name, report = sample
    others = {finding.rule for finding in report.findings[1:] if finding.severity != "info"}
    assert others == OTHER_FINDINGS.get(name, set())


def test_reader_has_no_warnings(sample):
    _, report = sample
    assert [trace.warnings for trace in report.traces] == [()] * len(report.traces)


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory):
    """A folder with the files that the generator writes in a process with other string hashes."""
    folder = tmp_path_factory.mktemp("samples")
    environment = os.environ | {"PYTHONHASHSEED": "20"}
    subprocess.run([sys.executable, FOLDER / "generate.py", folder], check=True, env=environment, capture_output=True)
    return folder


def files(folder):
    """The names of the samples in a folder; of that of the repository with the demo's."""
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*.json.gz")]
    return sorted([*found, DEMO.name] if folder == FOLDER else found)


@pytest.mark.process
def test_generator_writes_the_committed_files(regenerated):
    assert files(regenerated) == [name for name in files(FOLDER) if name not in RECORDED]


@pytest.mark.process
def test_generator_writes_the_committed_texts(regenerated):
    # The texts and not the files: versions of zlib compress differently.
    for name in files(regenerated):
        committed = gzip.decompress(path_of(name).read_bytes())
        assert gzip.decompress((regenerated / name).read_bytes()) == committed, name


def test_samples_are_small():
    sizes = {name: path_of(name).stat().st_size for name in files(FOLDER)}
    assert {name: size for name, size in sizes.items() if size >= 150_000} == {}


@pytest.mark.parametrize("name", [name for name in files(FOLDER) if name not in RECORDED])
def test_generated_traces_obey_the_laws_of_a_gpu(name):
    trace = perfdoctor.read(path_of(name))
    gpu = trace.gpu
    assert (gpu.call >= 0).all()
    assert (gpu.start_ns >= trace.calls.start_ns[gpu.call]).all()
    for stream in np.unique(gpu.stream):
        on_stream = gpu.stream == stream
        assert (gpu.end_ns[on_stream][:-1] <= gpu.start_ns[on_stream][1:]).all()
    kernels = gpu.kind == KERNEL
    assert (trace.gpu.op[kernels] >= 0).all()


@pytest.mark.parametrize("recorded", sorted(RECORDED))
def test_recorded_trace_does_not_identify_its_machine(recorded):
    text = gzip.decompress((FOLDER / recorded).read_bytes()).decode()
    trace = json.loads(text)
    assert set(trace) <= {"schemaVersion", "deviceProperties", "distributedInfo", "displayTimeUnit", "traceEvents"} | {
        *("baseTimeNanoseconds", "record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules"),
        *("cuda_runtime_version", "cuda_driver_version", "cupti_version"),
    }
    names = {str(event.get("name")) for event in trace["traceEvents"]}
    assert {name for name in names if name.startswith(("/", "~"))} == set()
    assert not any(word in text for word in ("/home", "/root", "/tmp", "/work", "/usr"))


def test_readme_lists_every_sample():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in SAMPLES if path_of(name).relative_to(FOLDER.parent).as_posix() not in readme] == []


def test_every_expected_report_belongs_to_a_sample():
    assert sorted(path.stem for path in (FOLDER / "expected").iterdir()) == sorted(
        name.removesuffix(".json.gz") for name in SAMPLES
    )
