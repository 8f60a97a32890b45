"""What a capture says of a data-parallel model: the settings of its wrapper, and the line to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfdoctor.rules import SourceLocation, captured_list, captured_location, captured_part


def captured_ddp_of(facts: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The captured settings of DistributedDataParallel of the first wrapped model; empty without one."""
    return _first_of(facts, "ddp")


def captured_fsdp_of(facts: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The captured settings of FSDP of the first sharded model; empty without one."""
    return _first_of(facts, "fsdp")


def _first_of(facts: Mapping[str, Any] | None, wrapper: str) -> Mapping[str, Any]:
    wrapped = (captured_part(model, wrapper) for model in captured_list(facts, "models"))
    return next((settings for settings in wrapped if settings), {})


def ddp_constructor_of(facts: Mapping[str, Any] | None) -> SourceLocation | None:
    """The line that makes the DistributedDataParallel, where its arguments stand; None where none was captured."""
    return captured_location(captured_ddp_of(facts).get("created"))
