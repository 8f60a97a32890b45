"""The files of one rank; the first failed write is one warning line, and no trace and no step is written after it."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from .messages import warn
from .recorder_settings import WORK_FOLDER

if TYPE_CHECKING:
    from .source_lines import LineStretch
    from .step_meter import StepWork

COPY_BYTES = 1 << 20
COMPLETE_EVENT = b'"ph": "X"'
# Kineto writes the end of an event as a line of its own; no event has so many lines.
EVENT_END, MAX_EVENT_LINES = b"  },\n", 200
PYTHON_CALL = b'"cat": "python_function"'
# How much evidence there will be is estimated from a step before it: calls of Python go from this much of the cap on.
EVIDENCE_SLACK = 2
# What is kept of the first windows when windows are recorded once more, each as early_<name>.
EARLY_NAMES = ("timing.json.gz", "evidence.json.gz", "facts.json")
# Kineto writes each of these at the start of a line.
BASE_TIME_KEY, EVENTS_KEY = b'"baseTimeNanoseconds":', b'"traceEvents": ['
# Made once: `json.dumps` makes one for each call that says how to separate.
encode_row = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class RankFolder:
    """`<capture>/rank<R>/`: steps.jsonl and nvml.jsonl, written while the program runs, facts.json, and the traces.

    Attributes:
        broken: Why the folder could not be written; None where it could.
        events: Events of the trace that was written last.
        writing_ns: Time for writing it.
        dropped_calls: How many calls of Python it lacks, because its text is longer than `max_evidence_bytes` allows.
    """

    def __init__(self, capture: str, rank: int, max_evidence_bytes: int | None = None) -> None:
        """Make the folder for this process.

        Raises:
            FileExistsError: Another process of the same rank has made it.
            OSError: The folder cannot be made.
        """
        self.path = os.path.join(capture, f"rank{rank}")
        os.mkdir(self.path)
        self._work_path = os.path.join(capture, WORK_FOLDER)
        self.broken: str | None = None
        self.events = self.writing_ns = self.dropped_calls = self._written_steps = 0
        self._max_evidence_bytes = max_evidence_bytes
        # Append mode and one write for each line: a process that is killed leaves whole lines.
        self._samples: int | None = None
        self._steps = os.open(os.path.join(self.path, "steps.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def fail(self, error: OSError) -> None:
        """Warn once that the folder cannot be written, and of what is kept; only facts are tried again after that."""
        if self.broken is None:
            self.broken = error.strerror or str(error)
            names = [name for name in ("timing.json.gz", "evidence.json.gz") if os.path.exists(self._path_of(name))]
            count = self._written_steps
            kept = ", ".join([f"the times of {count} step{'s' * (count != 1)}", *names])
            warn(f"cannot write to {self.path} ({self.broken}): recording stops, the program runs on; kept: {kept}.")

    def _path_of(self, name: str) -> str:
        return os.path.join(self.path, name)

    def write_step(
        self,
        step: int,
        dur_ns: int,
        window: str,
        loader_wait_ns: int,
        work: StepWork,
        peaks: dict[str, Any] | None = None,
    ) -> None:
        """Append one step, so that it is on disk even if the process is killed in the next step.

        `peaks` is the part of the row that has those of memory.
        """
        if self.broken:
            return
        row = {"step": step, "dur_ns": dur_ns, "window": window, "loader_wait_ns": loader_wait_ns, **work.to_dict()}
        row |= peaks or {}
        try:
            os.write(self._steps, (encode_row(row) + "\n").encode())
            self._written_steps += 1
        except OSError as error:
            self.fail(error)

    def write_sample(self, line: str) -> None:
        """Append one NVML sample; called in the sampler's thread."""
        if self.broken:
            return
        try:
            if self._samples is None:
                path = os.path.join(self.path, "nvml.jsonl")
                self._samples = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(self._samples, line.encode())
        except OSError as error:
            self.fail(error)

    def write_facts(self, facts: dict[str, Any], name: str = "facts.json", indent: int | None = 1) -> None:
        """Replace a file of facts atomically: a reader sees the old file or the new one."""
        temporary = self._path_of(f".{name}.part")
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(facts, file, indent=indent, default=str)
            os.replace(temporary, self._path_of(name))
        except OSError as error:
            remove(temporary)
            self.fail(error)

    def keep_early_windows(self) -> None:
        """Keep the first windows and their facts beside those that will replace them; only the first of all are kept.

        A link takes no space of its own and 20 us; where the disk has none, a copy takes some milliseconds.
        """
        for name in EARLY_NAMES:
            source, target = self._path_of(name), self._path_of(f"early_{name}")
            if os.path.exists(source) and not os.path.exists(target):
                with contextlib.suppress(OSError):
                    try:
                        os.link(source, target)
                    except OSError:
                        shutil.copyfile(source, target)

    def note_work(self, step: int) -> None:
        """Tell all ranks that a recorder works before this step: those that wait for its rank wait longer in it."""
        with contextlib.suppress(OSError):
            os.makedirs(self._work_path, exist_ok=True)
            os.close(os.open(os.path.join(self._work_path, str(step)), os.O_CREAT | os.O_WRONLY, 0o644))

    def list_work(self) -> list[int]:
        """The steps before which the recorder of any rank has worked, as far as they share a disk."""
        with contextlib.suppress(OSError):
            return sorted(int(name) for name in os.listdir(self._work_path) if name.isdigit())
        return []

    def write_trace(
        self, name: str, results: Any, partial_step: int | None, calls: Sequence[LineStretch] = ()
    ) -> str | None:
        """Save one window.

        Args:
            name: timing or evidence.
            results: Kineto's results, which can save themselves to an uncompressed file only.
            partial_step: Number of a step that was cut short; its range is renamed, so that no reader counts it.
            calls: Long calls, written as additional rows.

        Returns:
            The name of the file, or None when it could not be written.
        """
        if self.broken:
            return None
        plain = self._path_of(f".{name}.json")
        packed = plain + ".gz"
        try:
            start_ns = time.perf_counter_ns()
            # Level 1: traces shrink about tenfold at any level, and this runs inside the user's program.
            with save_plain(results, plain) as source, gzip.open(packed, "wb", 1) as target:
                copy_head_and_insert(source, target, calls)  # type: ignore[arg-type]
                max_bytes = self._max_evidence_bytes if name == "evidence" else None
                self.events, self.dropped_calls = copy_trace(
                    source,
                    target,  # type: ignore[arg-type]
                    partial_step,
                    None if max_bytes is None else EVIDENCE_SLACK * max_bytes,
                )
            self.writing_ns = time.perf_counter_ns() - start_ns
            os.replace(packed, self._path_of(f"{name}.json.gz"))
        except OSError as error:
            remove(packed)
            self.fail(error)
            return None
        return f"{name}.json.gz"

    def close(self) -> None:
        """Close steps.jsonl and nvml.jsonl."""
        self.broken = self.broken or "closed"
        for file in (self._steps, self._samples):
            if file is not None:
                with contextlib.suppress(OSError):
                    os.close(file)


def save_plain(results: Any, path: str) -> BinaryIO:
    """Let Kineto save its results, uncompressed, and open what it has saved; nothing of it stays on the disk.

    Where the system has files in memory, the text is in one, tenfold larger than what reaches the disk: that takes no
    longer, and a program that is killed leaves nothing. Kineto's events take seven times as much memory at that time.

    Raises:
        OSError: It could not be saved.
    """
    unfinished = f"{path}.tmp"  # Kineto's own name for what it writes; it renames the file once that is complete
    memory = None
    try:
        with contextlib.suppress(OSError, AttributeError):  # not Linux, no /proc, or a disk that has no links
            memory = os.memfd_create("trace")
            if os.path.exists(f"/proc/self/fd/{memory}"):
                os.symlink(f"/proc/self/fd/{memory}", unfinished)
        results.save(path)
        if not os.path.exists(path):
            raise OSError(0, "the profiler could not save its trace: too little space, memory or permission")
        return open(path, "rb")
    finally:
        if memory is not None:
            os.close(memory)
        remove(path)
        remove(unfinished)


def remove(path: str) -> None:
    """Remove a file where there is one."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def copy_head_and_insert(source: BinaryIO, target: BinaryIO, calls: Sequence[LineStretch]) -> None:
    """Copy a trace up to its first event and write the calls there; without calls, copy nothing."""
    base_ns = 0
    for line in source if calls else ():
        target.write(line)
        if line.lstrip().startswith(BASE_TIME_KEY):
            base_ns = int(line.partition(b":")[2].strip(b" ,\n"))
        if line.lstrip().startswith(EVENTS_KEY):
            break
    else:
        return
    for call in calls:
        target.write(call.to_trace_row(base_ns))


def copy_trace(
    source: BinaryIO, target: BinaryIO, partial_step: int | None, max_bytes: int | None = None
) -> tuple[int, int]:
    """Copy the rest of a trace, with the range of a partial step renamed.

    After `max_bytes` calls of Python are left out: ops, kernels and shapes, some of which come last, stay.

    Returns:
        The number of its events, and how many calls of Python were left out.
    """
    name = b"" if partial_step is None else f'"ProfilerStep#{partial_step}"'.encode()
    events = dropped = copied = 0
    while chunk := source.read(COPY_BYTES):
        chunk += source.readline()  # Kineto writes the head of an event on one line
        if max_bytes is not None:
            chunk += read_to_event_end(source, chunk)
            copied += len(chunk)
            if copied > max_bytes and copied > len(chunk):
                parts = chunk.split(EVENT_END)
                kept = [part for part in parts if PYTHON_CALL not in part]
                chunk, dropped = EVENT_END.join(kept), dropped + len(parts) - len(kept)
        events += chunk.count(COMPLETE_EVENT)
        target.write(chunk.replace(name, b'"perfdoctor::partial_step"') if name and name in chunk else chunk)
    return events, dropped


def read_to_event_end(source: BinaryIO, chunk: bytes) -> bytes:
    """The lines up to the end of the event in which a chunk ends."""
    lines: list[bytes] = []
    while not (lines[-1] if lines else chunk).endswith(EVENT_END) and len(lines) < MAX_EVENT_LINES:
        line = source.readline()
        if not line:
            break
        lines.append(line)
    return b"".join(lines)
