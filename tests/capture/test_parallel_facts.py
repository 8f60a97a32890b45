"""The settings of DistributedDataParallel and FSDP as the recorder describes them, in a group of one process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import torch.distributed as dist
from torch import nn

import perfdoctor.capture
from perfdoctor.capture.inject._perfdoctor_inject.model_facts import ModuleLines, describe_model

SCHEMA = json.loads(Path(perfdoctor.capture.__file__).with_name("facts.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def described(model: nn.Module) -> dict[str, Any]:
    """The facts of a model, checked against the schema."""
    facts = describe_model(model, ModuleLines())
    jsonschema.validate(facts, {"$ref": "#/$defs/ModelFacts", "$defs": SCHEMA["$defs"]})
    return facts


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore")
def test_the_hooks_and_unused_parameters_of_ddp() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = nn.parallel.DistributedDataParallel(layers(), find_unused_parameters=True)
    assert described(model)["ddp"]["comm_hooks"] == []
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
    ddp = described(model)["ddp"]
    assert (ddp["comm_hooks"], ddp["mixed_precision"]) == (["fp16_compress_hook"], None)
    assert (ddp["unused_elements"], ddp["has_rebuilt_buckets"]) == (0, False)
    assert described(model)["fsdp"] is None


@pytest.mark.usefixtures("group")
def test_the_settings_of_fsdp2() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = layers()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy)
    model[0].set_modules_to_forward_prefetch([model[1]])
    fsdp = described(model)["fsdp"]
    assert (fsdp["version"], fsdp["units"], fsdp["reshard_after_forward"]) == (2, 3, False)
    assert (fsdp["forward_prefetch"], fsdp["backward_prefetch"]) == (True, None)
    assert (fsdp["param_dtype"], fsdp["reduce_dtype"]) == ("torch.bfloat16", "torch.float32")


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore")
def test_the_settings_of_fsdp1() -> None:
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel

    model = FullyShardedDataParallel(
        layers(), device_id=torch.device("cpu"), backward_prefetch=BackwardPrefetch.BACKWARD_POST, forward_prefetch=True
    )
    fsdp = described(model)["fsdp"]
    assert (fsdp["version"], fsdp["units"], fsdp["backward_prefetch"]) == (1, 1, "BACKWARD_POST")
    assert (fsdp["forward_prefetch"], fsdp["limit_all_gathers"]) == (True, True)


def test_a_plain_model_has_neither() -> None:
    facts = described(layers())
    assert (facts["ddp"], facts["fsdp"]) == (None, None)
