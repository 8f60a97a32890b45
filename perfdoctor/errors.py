"""Every exception that perfdoctor raises on purpose.

::

    PerfdoctorError            exit code 3: a fault of ours
    ├── InputError             exit code 2: the input cannot be used; the message says what to do
    │   ├── TraceError         a file that is missing, empty, cut before any event, or no trace
    │   ├── CaptureError       a program that cannot be started, a folder that cannot be written
    │   └── EditRefusedError   an edit that does not fit the source
    ├── UsageError             exit code 2: an option, rule id, setting or suffix that does not exist
    └── GateError              exit code 1: a gate that was asked for failed or could not be judged

A message is one sentence: the file, the place, what is wrong, and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class PerfdoctorError(Exception):
    """The base class of all errors; the command line exits with `exit_code`."""

    exit_code: ClassVar[int] = 3


class InputError(PerfdoctorError):
    """The input cannot be used as it is."""

    exit_code: ClassVar[int] = 2


class TraceError(InputError):
    """A file that cannot be read as a trace."""


class CaptureError(InputError):
    """A program that cannot be started, or a folder that cannot be written."""


class EditRefusedError(InputError):
    """An edit that does not fit the source; the message is the reason, as a clause."""


class UsageError(PerfdoctorError):
    """An option, rule id, setting or output suffix that does not exist, or a file of devices that cannot be used."""

    exit_code: ClassVar[int] = 2


class GateError(PerfdoctorError):
    """A gate such as `--fail-on` failed, or could not be judged."""

    exit_code: ClassVar[int] = 1
