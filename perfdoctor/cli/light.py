"""Commands that take plain values as they are: Typer asks pydantic even about texts and options that nobody gave.

Importing pydantic and building its validators takes 0.05 to 0.1 s, a fifth of the analysis of a 100 MB trace.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup


class LightCommand(TyperCommand):
    """A command whose repeated parameters are all texts; other values that are given are converted as usual."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, --help among them."""
        return [_light(param) for param in super().get_params(ctx)]


class LightGroup(TyperGroup):
    """The same for a group of commands."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, --help among them."""
        return [_light(param) for param in super().get_params(ctx)]


def _light(param: Any) -> Any:
    if "process_value" not in vars(param):
        param.process_value = partial(_processed, param, param.process_value)
    return param


def _processed(param: Any, usual: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """The value of a parameter: what is plain, or missing and may be, without the usual conversion."""
    several = getattr(param, "multiple", False) or param.nargs == -1
    taken = list(value or ()) if several else _plain(param, value)
    if (param.required and not value) or (taken is None and value is not None):
        return usual(ctx, value)
    return taken if param.callback is None else param.callback(ctx, param, taken)


def _plain(param: Any, value: Any) -> Any:
    """A text, a whole number, or a member of an enumeration that is one beyond doubt; else None."""
    descriptor: Any = getattr(param, "type_descriptor", None)  # which a Typer without pydantic has not
    wanted = getattr(descriptor, "annotation", None)
    if wanted is str and isinstance(value, str):
        return value
    if wanted is int and str(value).isdecimal() and not descriptor.is_ranged:
        return int(value)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return next((member for member in wanted if member.value == value), None)
    return None
