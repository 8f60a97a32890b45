"""Commands that take what needs no conversion as it is: Typer asks pydantic even about options that nobody gave.

Importing pydantic and building its validators takes a tenth of a second, a fifth of the analysis of a 100 MB trace.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """The value of a parameter: what is missing and may be, and lists of texts, without the usual conversion."""
    several = getattr(param, "multiple", False) or param.nargs == -1
    if (param.required and not value) or not (several or value is None):
        return usual(ctx, value)
    taken = list(value or ()) if several else None
    return taken if param.callback is None else param.callback(ctx, param, taken)
