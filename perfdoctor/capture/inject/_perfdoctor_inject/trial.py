"""The changes of a trial in the program: loading them, and what they may ask of the program.

A change that fails is noted and leaves the program as it is; the program runs on.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import random
import sys
from collections.abc import Callable, Mapping
from types import FrameType, MappingProxyType
from typing import Any

import torch

from .machine_facts import cuda_is_initialized
from .messages import warn
from .module_calls import Callback, FirstForwards, ModuleCalls, wrap_calls
from .recorder_settings import TrialChange, TrialOptions
from .user_code import Location, constructor_location, skip_file, user_location
from .watched_calls import Patches, Watching, watch_calls

Function = Callable[..., Any]
# What a change makes of the arguments that a caller gave: those to set, or None to leave the call alone.
Edit = Callable[[Any, dict[str, Any]], Mapping[str, Any] | None]
# Loops may build thousands of objects: the lines and details of the first ones say enough.
MAX_NOTED = 20


class ChangeRecord:
    """What came of one change: how often its hook was met, where, what was changed, why not, and its first error."""

    def __init__(self, setting: str) -> None:
        self.setting = setting
        self.met = 0
        self.locations: list[Location] = []
        self.details: list[str] = []
        self.refused = ""
        self.error: str | None = None

    def add(self, location: Location | None, detail: str) -> None:
        """Count one place that was changed."""
        self.met += 1
        if location is not None and location not in self.locations and len(self.locations) < MAX_NOTED:
            self.locations.append(location)
        if detail and detail not in self.details and len(self.details) < MAX_NOTED:
            self.details.append(detail)

    def to_dict(self) -> dict[str, Any]:
        """The record as it stands in trial.json."""
        return {
            "setting": self.setting,
            "met": self.met,
            "locations": self.locations,
            "detail": "; ".join(self.details),
            "refused": self.refused,
            "error": self.error,
        }


class TrialProgram:
    """The running program as its changes see it: `perfdoctor.trials.change.Program` says what they may ask of it.

    Attributes:
        environment: The environment with which the program was started.
        records: What came of each change, by its name.
    """

    def __init__(self, options: TrialOptions, calls: ModuleCalls) -> None:
        """Change nothing yet."""
        self.environment: Mapping[str, str] = MappingProxyType(dict(os.environ))
        self.records = {each.name: ChangeRecord(each.setting) for each in options.changes}
        self._options = options
        self._first_forwards = FirstForwards(calls)
        self._step_callbacks: list[tuple[str, Function]] = []
        self._applying = ""
        self._patches = Patches(lambda function, *args: function(*args))

    def start(self) -> None:
        """Set the seeds, and apply every change."""
        if self._options.seed is not None:
            set_seeds(self._options.seed)
        for change in self._options.changes:
            self._applying = change.name
            skip_file(change.file)
            self._call_for(change.name, lambda each: load_change(each).apply(each.setting, self), change)
        self._applying = ""

    # What changes call ----------------------------------------------------------------------------------------------

    @property
    def device_kind(self) -> str:
        """Where the program computes so far: "cuda" once CUDA is initialised, else "cpu"."""
        return "cuda" if cuda_is_initialized() else "cpu"

    def patch(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace an attribute of a module or class, also an inherited one, by `wrap(original)`.

        What this torch does not have is left out.
        """
        self._patches.replace(owner, name, wrap, inherited=True)

    def edit_arguments(self, change: Any, owner: Any, name: str, edit: Edit) -> None:
        """Let a change set arguments of a function or a constructor, and note where it did."""
        change_name, is_method = name_of(change), inspect.isclass(owner)
        guard = functools.partial(self._call_for, change_name)

        def wrap(original: Function) -> Function:
            signature = inspect.signature(original)

            def edit_call(frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Watching:
                try:
                    changed = self._edit_call(change_name, signature, edit, is_method, args, kwargs, frame)
                except TypeError:
                    if _fits(signature, args, kwargs):
                        raise
                    return
                yield changed

            return watch_calls(original, edit_call, guard=guard)

        self.patch(owner, name, wrap)

    def _call_for(self, change_name: str, function: Function, *args: Any) -> Any:
        """What a function of a change returns; an error is noted."""
        try:
            return function(*args)
        except Exception as error:
            self.note_error(change_name, error)

    def met(self, change: Any, location: Any = None, detail: str = "") -> None:
        """Note that the program reached what the change changes, and where."""
        if isinstance(location, FrameType):
            location = user_location(location)
        record = self.records.get(name_of(change))
        if record is not None:
            record.add(location, detail)

    def refuse(self, change: Any, why: str) -> None:
        """Note why a change does not fit this program."""
        record = self.records.get(name_of(change))
        if record is not None:
            record.refused = record.refused or why

    def location_of_caller(self) -> Location | None:
        """File, line and function of the innermost line of the user's own code that is running."""
        return user_location(sys._getframe(1))

    def on_first_forward(self, callback: Callback, *, before_others: bool = False) -> None:
        """Call back before the first forward of each outermost module with parameters.

        Only until the timed steps begin: a model that is called later is left alone.
        """
        call_back = functools.partial(self._call_for, self._applying, callback)
        self._first_forwards.add(call_back, before_others=before_others)

    def wrap_calls(self, module: Any, wrap: Callable[[Any], Any]) -> None:
        """Wrap the calls of one module: `wrap` gets what calls it, and returns what is called in its place."""
        wrap_calls(module, wrap)

    def on_step(self, callback: Callable[[int], Any]) -> None:
        """Call back at each border of steps with the number of steps so far; its time is that of the next step."""
        self._step_callbacks.append((self._applying, callback))

    # What the recorder calls ----------------------------------------------------------------------------------------

    def begin_step(self, steps: int) -> None:
        """Begin a step, after `steps` others."""
        for change_name, callback in self._step_callbacks:
            self._call_for(change_name, callback, steps)

    def begin_timing(self) -> None:
        """The timed steps begin: watch no forwards any longer."""
        self._first_forwards.stop()

    def note_error(self, change_name: str, error: BaseException) -> None:
        """Keep the first error of a change, and say it on stderr; the program runs on."""
        record = self.records.get(change_name)
        if record is not None and record.error is None:
            record.error = f"{type(error).__name__}: {error}"
            warn(f"the change {change_name} failed, and the program runs on without it: {record.error}")

    def _edit_call(
        self,
        change_name: str,
        signature: inspect.Signature,
        edit: Edit,
        is_method: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call after the change."""
        bound = signature.bind(*args, **kwargs)
        given = flatten_arguments(bound)
        made = args[0] if is_method and args else None
        if is_method:
            given.pop(next(iter(signature.parameters)), None)
        wanted = edit(made, dict(given))
        if not wanted:
            return args, kwargs
        details = [f"{name} {short(given, signature, name)} -> {value!r}" for name, value in wanted.items()]
        set_arguments(bound, wanted)
        location = constructor_location(frame, made) if is_method else user_location(frame)
        self.met(change_name, location, ", ".join(details))
        return bound.args, bound.kwargs


def name_of(change: Any) -> str:
    """The name of a change that is given by itself or by its name."""
    return change if isinstance(change, str) else str(change.name)


def _fits(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call has arguments that the function takes; the program's own mistakes are none of a change."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def flatten_arguments(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The arguments that a caller gave, by name, those of `**kwargs` among them."""
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind is not inspect.Parameter.VAR_POSITIONAL:
            found[name] = value
    return found


def set_arguments(bound: inspect.BoundArguments, wanted: Mapping[str, Any]) -> None:
    """Set arguments of a call; one that the function does not name goes to its `**kwargs`."""
    parameters = bound.signature.parameters
    rest = next((name for name, each in parameters.items() if each.kind is inspect.Parameter.VAR_KEYWORD), None)
    for name, value in wanted.items():
        if name in parameters:
            bound.arguments[name] = value
        elif rest is not None:
            bound.arguments[rest] = {**bound.arguments.get(rest, {}), name: value}
    # Arguments stand in the order of the parameters, or `args` leaves some out.
    order = [name for name in parameters if name in bound.arguments]
    values = {name: bound.arguments[name] for name in order}
    bound.arguments.clear()
    bound.arguments.update(values)


def short(given: Mapping[str, Any], signature: inspect.Signature, name: str) -> str:
    """The value of an argument before the change, the default where the caller said nothing."""
    if name in given:
        return repr(given[name])[:40]
    parameter = signature.parameters.get(name)
    has_default = parameter is not None and parameter.default is not inspect.Parameter.empty
    return repr(parameter.default)[:40] if parameter is not None and has_default else "not set"


def load_change(change: TrialChange) -> Any:
    """An object of the change's class, from its file alone: the program's Python may have no perfdoctor.

    Raises:
        ImportError: The file is no module.
        AttributeError: It has no such class.
    """
    spec = importlib.util.spec_from_file_location(f"_perfdoctor_change_{change.name.replace('-', '_')}", change.file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{change.file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module there
    spec.loader.exec_module(module)
    return getattr(module, change.class_name)()


def set_seeds(seed: int) -> None:
    """Seed Python's, NumPy's and torch's random numbers, so that plain and changed program draw the same ones."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")  # torch has imported it where it is installed
    if numpy is not None:
        numpy.random.seed(seed)
