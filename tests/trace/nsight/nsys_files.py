"""Exports of Nsight Systems made of the events of a TraceBuilder, in the schemas that NVIDIA documents.

NEW is schema 3.16 of 2024.6: names are ids, enumerations have tables. OLD is that of early 2021 and before: no ENUM_
tables, no kinds of memory, driver calls and devices in tables of their own, texts of ranges in place. TEXTS has names
in place everywhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

NEW, OLD, TEXTS = "new", "old", "texts"

# What both formats can say; Nsight Systems has no Python frames, no external ids and no ranges on the GPU's rows.
_KINDS = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation", "cuda_sync"}
_ON_CPU = {"cuda_runtime", "cuda_driver", "cpu_op", "user_annotation"}
SESSION_START_NS = 1_700_000_000_123_456_789
_SHIFT_US = 1_000_000  # sessions begin at zero, and zero means unknown
_ARGUMENTS = {"cbid", "correlation", "stream", "device", "bytes", "grid", "Input Dims"}
_COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
_MEMORY = {"Pageable": 0, "Pinned": 1, "Device": 2}
_SYNC_KINDS = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}

_TIMES = "start INTEGER NOT NULL, end INTEGER NOT NULL"
_PLACE = f"{_TIMES}, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL"
_LINK = "correlationId INTEGER, globalPid INTEGER"
_SCHEMA = f"""
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({_PLACE}, {_LINK}, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
    gridZ INTEGER NOT NULL, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({_PLACE}, {_LINK}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL,
    srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET ({_PLACE}, {_LINK}, bytes INTEGER NOT NULL, memKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION ({_PLACE}, {_LINK}, syncType INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME ({_TIMES}, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT,
    globalTid INTEGER, textId INTEGER, domainId INTEGER);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, totalMemory INTEGER,
    smCount INTEGER, cuDevice INTEGER, computeMajor INTEGER, computeMinor INTEGER);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL);
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
"""
_OLDER = """
DROP TABLE ENUM_CUDA_MEMCPY_OPER;
DROP TABLE ENUM_CUDA_MEM_KIND;
DROP TABLE TARGET_INFO_GPU;
DROP TABLE TARGET_INFO_CUDA_DEVICE;
ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN srcKind;
ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN dstKind;
ALTER TABLE CUPTI_ACTIVITY_KIND_MEMSET DROP COLUMN memKind;
ALTER TABLE NVTX_EVENTS DROP COLUMN textId;
CREATE TABLE CUPTI_ACTIVITY_KIND_DRIVER AS SELECT * FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE 0;
CREATE TABLE TARGET_INFO_CUDA_GPU (deviceId INTEGER NOT NULL, name TEXT, globalMemorySize INTEGER,
    numMultiprocessors INTEGER, computeCapabilityMajor INTEGER, computeCapabilityMinor INTEGER);
"""


def limit_to_nsys(whole: dict[str, Any]) -> dict[str, Any]:
    """A trace limited to what Nsight Systems records, a second later."""
    events = []
    for event in whole["traceEvents"]:
        if event.get("cat") not in _KINDS or event.get("ph") != "X" or "args" not in event:
            continue
        if event["cat"] == "gpu_memcpy" and "Host" in event["name"]:  # memory as AMD's library calls it
            continue
        args = {key: value for key, value in event["args"].items() if key in _ARGUMENTS}
        events.append(event | {"ts": round(event["ts"] + _SHIFT_US, 3), "args": args})
    return whole | {"traceEvents": events}


def serialized(pid: int, tid: int = 0) -> int:
    """An id as the files have it: machine, process, thread."""
    return (0x1 << 56) | (pid << 24) | tid


class NsysFile:
    """Writes one file, row by row."""

    def __init__(self, path: Path, version: str = NEW) -> None:
        self.path, self.version = path, version
        self.database = sqlite3.connect(path)
        schema = _SCHEMA + (_OLDER if version == OLD else "")
        self.database.executescript(f"PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; BEGIN; {schema} COMMIT;")
        self._ids: dict[str, int] = {}
        self._columns: dict[str, set[str]] = {}

    def add(self, table: str, **row: object) -> None:
        """One row; columns that the version lacks are left out."""
        if table not in self._columns:
            self._columns[table] = {column[1] for column in self.database.execute(f"PRAGMA table_info({table})")}
        row = {key: value for key, value in row.items() if key in self._columns[table]}
        marks = ", ".join("?" * len(row))
        self.database.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))

    def name(self, text: str) -> int | str:
        """A name as the version keeps it."""
        if self.version == TEXTS:
            return text
        if text not in self._ids:
            self._ids[text] = 1000 + 7 * len(self._ids)
            self.add("StringIds", id=self._ids[text], value=text)
        return self._ids[text]

    def range(self, text: str, start: int, end: int | None, tid: int, kind: int = 59, domain: int = 0) -> None:
        """An NVTX range; half of them with a registered string, where the version can."""
        registered = self.version == NEW and len(text) % 2 == 0
        columns = {"textId": self.name(text)} if registered else {"text": text}
        self.add("NVTX_EVENTS", start=start, end=end, eventType=kind, globalTid=tid, domainId=domain, **columns)

    def close(self) -> Path:
        """The finished file."""
        self.database.commit()
        self.database.close()
        return self.path


def write_nsys(path: Path, whole: dict[str, Any], version: str = NEW) -> Path:
    """Write the events of a trace, which `limit_to_nsys` made,, as an export."""
    file = NsysFile(path, version)
    write_process(file, whole)
    describe(file)
    return file.close()


def write_process(file: NsysFile, whole: dict[str, Any]) -> None:
    """The events of one process, and its devices."""
    pids = [event["pid"] for event in whole["traceEvents"] if event["cat"] in _ON_CPU]
    pid = pids[0] if pids else 1000
    for event in whole["traceEvents"]:
        row = {"start": round(event["ts"] * 1000), "end": round(event["ts"] * 1000) + round(event["dur"] * 1000)}
        if event["cat"] in _ON_CPU:
            _write_on_cpu(file, event, row)
        else:
            _write_on_gpu(file, event, row, pid)
    for device in whole.get("deviceProperties", ()):
        _write_device(file, device, pid)


def _write_on_cpu(file: NsysFile, event: dict[str, Any], row: dict[str, int]) -> None:
    category, name, where = event["cat"], event["name"], serialized(event["pid"], event["tid"])
    if category in ("cpu_op", "user_annotation"):
        file.range(_pushed(category, name, event["args"]), row["start"], row["end"], where)
        return
    driver = category == "cuda_driver"
    table = "CUPTI_ACTIVITY_KIND_DRIVER" if driver and file.version == OLD else "CUPTI_ACTIVITY_KIND_RUNTIME"
    decorated = name if driver else f"{name}_v7000"
    correlation = event["args"].get("correlation")
    file.add(table, **row, eventClass=0, globalTid=where, correlationId=correlation, nameId=file.name(decorated))


def _write_on_gpu(file: NsysFile, event: dict[str, Any], row: dict[str, Any], pid: int) -> None:
    category, name, args = event["cat"], event["name"], event["args"]
    stream = args["stream"] if args["stream"] >= 0 else 0xFFFFFFFF
    row |= {"deviceId": args.get("device", 0), "contextId": 1, "streamId": stream, "globalPid": serialized(pid)}
    row |= {"correlationId": args["correlation"]}
    if category == "kernel":
        names = {"demangledName": file.name(name), "shortName": file.name(name.partition("<")[0])}
        grid = dict(zip(("gridX", "gridY", "gridZ"), args.get("grid", (-1, -1, -1)), strict=True))
        file.add("CUPTI_ACTIVITY_KIND_KERNEL", **row, **grid, **names)
    elif category == "gpu_memcpy":
        direction, source, target = name.removeprefix("Memcpy ").translate({ord(c): None for c in "()->"}).split()
        kinds = {"copyKind": _COPY_KINDS[direction], "srcKind": _MEMORY[source], "dstKind": _MEMORY[target]}
        file.add("CUPTI_ACTIVITY_KIND_MEMCPY", **row, bytes=args["bytes"], **kinds)
    elif category == "gpu_memset":
        file.add("CUPTI_ACTIVITY_KIND_MEMSET", **row, bytes=args["bytes"], memKind=2)
    else:
        file.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", **row, syncType=_SYNC_KINDS[name])


def _pushed(category: str, name: str, args: dict[str, Any]) -> str:
    """The text that emit_nvtx pushes."""
    if category == "user_annotation":
        return name
    sizes = f", sizes = {args['Input Dims']}" if "Input Dims" in args else ""
    return f"{name}, seq = 5, op_id = 7{sizes}"


def _write_device(file: NsysFile, device: dict[str, Any], pid: int) -> None:
    """A device, whose number among the machine's GPUs is not CUDA's."""
    memory, sms = device.get("totalGlobalMem", 0), device.get("numSms", 0)
    major, minor = device.get("computeMajor", 0), device.get("computeMinor", 0)
    if file.version == OLD:
        columns = {"deviceId": device["id"], "name": device["name"], "globalMemorySize": memory}
        columns |= {"numMultiprocessors": sms, "computeCapabilityMajor": major, "computeCapabilityMinor": minor}
        file.add("TARGET_INFO_CUDA_GPU", **columns)
        return
    columns = {"vmId": 0, "id": device["id"] + 3, "cuDevice": device["id"], "name": device["name"]}
    columns |= {"totalMemory": memory, "smCount": sms, "computeMajor": major, "computeMinor": minor}
    file.add("TARGET_INFO_GPU", **columns)
    file.add("TARGET_INFO_CUDA_DEVICE", gpuId=columns["id"], cudaId=device["id"], pid=pid)


def describe(file: NsysFile) -> None:
    """The tables about the session and the enumerations."""
    file.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=SESSION_START_NS)
    if file.version != OLD:
        for direction, key in _COPY_KINDS.items():
            file.add("ENUM_CUDA_MEMCPY_OPER", id=key, name=f"CUDA_MEMCPY_KIND_{direction.upper()}", label=direction)
        for memory, key in _MEMORY.items():
            file.add("ENUM_CUDA_MEM_KIND", id=key, name=f"CUDA_MEMOPR_MEMORY_KIND_{memory.upper()}", label=memory)


def run_sql(path: Path, statements: Iterable[str]) -> Path:
    """Change a file."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(";".join(statements))
        database.commit()
    return path
