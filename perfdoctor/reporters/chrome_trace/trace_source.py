"""The file of a trace that was analysed, to be read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perfdoctor.errors import TraceError, UsageError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.report import TraceSummary
from perfdoctor.reporters.chrome_trace.slices import Slices, read_slices
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.trace.io.remote import STDIN
from perfdoctor.trace.io.stream import TextStream
from perfdoctor.trace.io.untrusted_files import read_beside_trace
from perfdoctor.trace.nsight.export_files import is_nsight

NVML_FILE = "nvml.jsonl"
_BLOCK_BYTES = 1 << 20


@frozen_dataclass
class TraceSource:
    """A file with the text of a trace.

    Attributes:
        path: Where it is.
        cut: Whether it is known to be cut short.
    """

    path: str
    cut: bool = False

    @classmethod
    def of(cls, trace: TraceSummary) -> TraceSource:
        """The file of a trace in a report."""
        return cls(trace.path, not trace.complete)

    def check(self) -> None:
        """Check that it can be annotated.

        Raises:
            UsageError: It was standard input, or is an export of Nsight Systems.
            TraceError: It cannot be read again.
        """
        if self.path == STDIN:
            raise UsageError("a trace from standard input cannot be annotated, it is gone; save it in a file first")
        with self.explained(), TextStream(self.path) as stream:
            if is_nsight(stream.head):
                raise UsageError(
                    f"{clean_line(self.path)}: an export of Nsight Systems cannot be annotated, only what "
                    "torch.profiler writes; choose .md or .json"
                )

    def blocks(self) -> Iterator[bytes]:
        """Its text in blocks, decompressed; of one that is known to be cut, as much as there is.

        Raises:
            TraceError: It cannot be read again.
        """
        with self.explained(), TextStream(self.path) as stream:
            read_into, block = stream.source(prefetch=True), memoryview(bytearray(_BLOCK_BYTES))
            while count := read_into(block):
                yield bytes(block[:count])
            if not self.cut and (stream.truncated or stream.disconnected):
                raise TraceError(f"{clean_line(self.path)}: {stream.disconnected or 'its compressed text ends early'}")

    def slices(self) -> Slices:
        """What viewers draw of it.

        Raises:
            TraceError: It cannot be read again.
        """
        with self.explained():
            return read_slices(self.path)

    def nvml_samples(self) -> bytes:
        """The NVML samples that a capture has beside the trace; empty where there are none."""
        try:
            return read_beside_trace(Path(self.path).with_name(NVML_FILE))
        except (OSError, ValueError):
            return b""

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say of an error that it is about reading the file again."""
        try:
            yield
        except TraceError as error:
            reason = f"the trace cannot be read again, and must stay where it was analysed: {error}"
            raise TraceError(reason) from error
