"""What a batch takes to load, in the process that loads it; and the cores that are there for it."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from perfdoctor.capture.inject._perfdoctor_inject.loader_records import read_settings

LOADING = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4 * 24
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(8), index % 2

class SlowBatches(torch.utils.data.BatchSampler):
    def __init__(self):
        pass
    def __len__(self):
        return 24
    def __iter__(self):
        for number in range(24):
            time.sleep(0.004)
            yield range(4 * number, 4 * number + 4)

def train(workers, method):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Slow(), batch_sampler=SlowBatches(), num_workers=workers, multiprocessing_context=method)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(float(loss) > 0)

if __name__ == "__main__":
    torch.set_num_threads(1)
    train(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
"""


def line_of(source: str, text: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


def test_the_file_of_a_worker_has_its_place_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfdoctor.capture.inject._perfdoctor_inject import worker_fetches

    monkeypatch.setenv(worker_fetches.FOLDER_VARIABLE, str(tmp_path))
    writer = worker_fetches.FetchWriter()
    assert writer.is_open
    (file,) = tmp_path.iterdir()
    # Memory of a file with holes would end the worker on a full disk (SIGBUS).
    assert file.stat().st_blocks * 512 >= file.stat().st_size == 8 + 300 * 48
    monkeypatch.setattr(worker_fetches.os, "write", lambda _file, data: len(data) // 2)
    assert not worker_fetches.FetchWriter().is_open, "the disk was full"


# Python 3.14 starts workers by forkserver on Linux.
@pytest.mark.parametrize("args", [("1", "fork"), ("2", "spawn"), ("2", "forkserver")])
def test_workers_say_how_long_a_batch_takes(launcher: Any, args: tuple[str, ...]) -> None:
    recorded = launcher.record(LOADING, *args, evidence=0)
    assert recorded.exit_code == 0, recorded.stderr
    assert recorded.stdout.splitlines()[0] == "True"
    facts = recorded.facts()
    (loader,) = facts["loaders"]
    fetch = loader["fetch"]
    assert fetch["where"] == "worker"
    assert fetch["batches"] >= 3
    assert fetch["median_ns"] >= 8_000_000
    assert fetch["cpu_ns"] < fetch["median_ns"] / 2, "it sleeps"
    assert 0 < fetch["collate_ns"] < fetch["median_ns"] / 2
    assert fetch["items_ns"] >= 8_000_000
    assert fetch["sampler_ns"] >= 4_000_000, "the training process asks the sampler"
    assert loader["restarts"] == {"count": 0, "stop_ns": None, "start_ns": None, "first_batch_ns": None}
    assert fetch["max_ns"] >= fetch["median_ns"]
    assert loader["first_batch_ns"] >= loader["wait_median_ns"]
    assert loader["batch_tensors"] == 2
    assert loader["batch_bytes"] == 4 * 8 * 4 + 4 * 8
    assert 0 <= loader["ready"] <= loader["batches"]
    # Spawned workers start for longer than the first base window lasts: then no batch of theirs ends in it.
    workers = facts["cores"]["workers"]
    assert (workers is None and args[1] != "fork") or 0 <= workers < 2


def test_without_workers_the_loop_itself_says_it(launcher: Any) -> None:
    recorded = launcher.record(LOADING, "0", evidence=0)
    facts = recorded.facts()
    (loader,) = facts["loaders"]
    assert loader["fetch"]["where"] == "main"
    assert loader["fetch"]["median_ns"] >= 8_000_000
    assert loader["fetch"]["cpu_ns"] < loader["fetch"]["median_ns"] / 2
    assert loader["fetch"]["items_ns"] >= 8_000_000
    assert loader["fetch"]["sampler_ns"] >= 4_000_000
    assert loader["fetch"]["items_ns"] + loader["fetch"]["sampler_ns"] <= 1.05 * loader["fetch"]["median_ns"]
    assert 0 < loader["fetch"]["collate_ns"] < loader["fetch"]["median_ns"] / 2
    assert loader["collate_location"] is None, "it is torch's"
    assert loader["ready"] is None
    assert loader["restarts"] is None
    assert all(each is not None and each >= 0 for each in (*facts["base_minor_faults"], *facts["base_system_cpu_ns"]))
    assert facts["cores"]["workers"] == 0
    assert 0 < facts["cores"]["training"] < 1
    place = facts["cpu"]["threads_set"]
    source = Path(place["file"]).read_text()
    assert place["line"] == line_of(source, "set_num_threads(1)")
    assert loader["items_location"]["line"] == line_of(source, "def __getitem__")
    assert loader["sampler_location"]["line"] == line_of(source, "def __iter__")


def put_together(samples: list[Any]) -> list[Any]:
    return samples


class Together:
    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples


@pytest.mark.parametrize(
    ("collate", "name"),
    [
        (put_together, "put_together"),
        (functools.partial(put_together), "put_together"),
        (Together(), "Together"),
        (None, None),
    ],
)
def test_a_collate_function_has_a_name_whatever_it_is(collate: Any, name: str | None) -> None:
    assert read_settings(SimpleNamespace(collate_fn=collate))["collate_fn"] == name


EPOCHS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def collate(samples):
    return torch.stack([sample for sample, in samples])

if __name__ == "__main__":
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(6, 8)), batch_size=2, num_workers=1, collate_fn=collate)
    for epoch in range(8):
        for x in loader:
            loss = model(x).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def test_workers_that_start_anew_are_timed_and_marked(launcher: Any) -> None:
    recorded = launcher.record(EPOCHS, base=6, timing=6, evidence=0)
    assert recorded.exit_code == 0, recorded.stderr
    (loader,) = recorded.facts()["loaders"]
    restarts = loader["restarts"]
    assert restarts["count"] == 7
    assert min(restarts["start_ns"], restarts["stop_ns"], restarts["first_batch_ns"]) > 100_000
    assert loader["collate_location"]["function"] == "collate"
    starting = [step["step"] for step in recorded.steps() if "worker_start" in step.get("contains", ())]
    assert set(starting) >= {3, 6, 9, 12, 15, 18, 21}
    assert all(step % 3 == 0 for step in starting)
    assert recorded.names("timing").count("perfdoctor::loader_start") == 2


@pytest.mark.parametrize(
    ("text", "ns"),
    [("nr_periods 9\nthrottled_usec 1500\n", 1_500_000), ("throttled_time 1500\n", 1500), ("nr_periods 9\n", None)],
)
def test_how_long_a_quota_stopped_the_process(text: str, ns: int | None, tmp_path: Path) -> None:
    from perfdoctor.capture.inject._perfdoctor_inject.core_usage import read_throttled_ns

    folder, controllers = (tmp_path, "0::/") if "usec" in text else (tmp_path / "cpu", "3:cpu:/")
    folder.mkdir(exist_ok=True)
    (folder / "cpu.stat").write_text(text)
    (tmp_path / "groups").write_text(f"{controllers}\n")
    assert read_throttled_ns(str(tmp_path), str(tmp_path / "groups")) == ns


def test_an_error_in_a_worker_is_the_program_s_own(launcher: Any) -> None:
    source = LOADING.replace("time.sleep(0.002)", "1 / (index - 40)")
    recorded = launcher.record(source, "1", "fork", evidence=0)
    assert recorded.exit_code != 0
    assert "ZeroDivisionError" in recorded.stderr
    assert "worker_fetches" not in recorded.stderr


@pytest.mark.parametrize(
    ("files", "groups", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, "0::/a/b\n", 0.5),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "3:cpu,cpuacct:/x\n", 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "3:cpu:/\n", None),
        ({"cpu.max": "nonsense\n"}, "0::/\n", None),
        ({}, "nonsense\n", None),
    ],
)
def test_quotas_of_control_groups(files: dict[str, str], groups: str, cores: float | None, tmp_path: Path) -> None:
    from perfdoctor.capture.inject._perfdoctor_inject.core_usage import read_quota

    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "groups").write_text(groups)
    assert read_quota(str(tmp_path / "cgroup"), str(tmp_path / "groups")) == cores
