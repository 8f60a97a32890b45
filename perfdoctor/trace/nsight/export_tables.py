"""The tables of an Nsight Systems export as columns: SQLite read in bulk, whatever version wrote it.

Tables are there only when they have rows, and columns come and go with versions (NVIDIA's Nsight Systems documentation,
"SQLite Schema Reference"): both are looked up in the file, and a missing column reads as NONE. Versions before 2022
declare all columns NOT NULL: for an unknown value they write 0, or an empty text.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import numpy as np

from perfdoctor.errors import TraceError
from perfdoctor.trace.arrays import NONE, Int64Array
from perfdoctor.trace.io.stream import refuse
from perfdoctor.trace.nsight.export_files import MAGIC
from perfdoctor.trace.tables.string_codes import StringCodes

_HEADER_BYTES = 100
_BATCH = 1 << 13  # rows; as tuples they take some forty bytes a value, and larger batches are not faster
_DAMAGE = ("malformed", "not a database", "encrypted")  # words of SQLite's messages
_MAX_VARIABLES = 900  # SQLite took no more than 999 in one statement before 2020
_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the second where SQLite's own message quotes damaged bytes
_LOCK_SECONDS = 1.0  # an export that is being written takes minutes: no use in waiting longer


class ExportTables:
    """The tables of one file.

    Attributes:
        path: The file.
        damaged: Whether reading a table ended early because the file is cut or damaged there.
        missing_columns: Columns that were asked for and that this version does not write, as "column of TABLE".

    Args:
        path: The file.
        progress: Called now and then with the bytes read so far, by share of rows, and with the size of the file.

    Raises:
        TraceError: it cannot be opened, is locked, or is no SQLite database.
    """

    def __init__(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> None:
        self.path = os.fspath(path)
        self.missing_columns: list[str] = []
        self._progress = progress
        self._rows_done = self._rows_total = 0
        try:
            with Path(path).open("rb") as file:
                head = file.read(_HEADER_BYTES)
                self._size = os.fstat(file.fileno()).st_size
        except (OSError, ValueError) as error:
            refuse(Path(path), error)
        if not head.startswith(MAGIC):
            raise TraceError(f"{self.path}: no SQLite database; export one with `nsys export --type sqlite`")
        # Behind the end of a cut file SQLite reads zeros without an error: only its length shows it.
        self.damaged = self._size < _declared_size(head)
        # Read-only, so that a file on a read-only disk, or one that another program reads, can be opened.
        uri = f"file:{quote(os.path.abspath(self.path))}?mode=ro"
        try:
            self._database = sqlite3.connect(uri, uri=True, timeout=_LOCK_SECONDS)
            self._database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
            if self.damaged:  # without it SQLite refuses the whole file; it writes nothing all the same
                self._database.execute("PRAGMA writable_schema = ON")
            names = [name for (name,) in self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            self._columns = {name: self._columns_of(name) for name in names}
        except _ERRORS as error:
            self._refuse(error)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __contains__(self, table: str) -> bool:
        return table in self._columns

    def read_numbers(self, table: str, wanted: Mapping[str, Sequence[str]], where: str = "") -> dict[str, Int64Array]:
        """Columns of numbers, in the order of the file.

        Args:
            table: The table; where there is none all columns are empty.
            wanted: For each column its names in the file, the newest first; NONE where the file has none of them, or
                a row has no value.
            where: An SQL condition.
        """
        found = {key: self._find_column(table, names) for key, names in wanted.items()}
        asked = [name for name in found.values() if name is not None]
        blocks = [np.empty((0, len(asked)), np.int64)]
        if asked and table in self:
            selected = ", ".join(f'CAST(COALESCE("{name}", {NONE}) AS INTEGER)' for name in asked)
            for rows in self._fetch_batches(f'SELECT {selected} FROM "{table}" {where and "WHERE " + where}'):
                values = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * len(asked))
                blocks.append(values.reshape(len(rows), len(asked)))
                self._advance(len(rows))
        matrix = np.concatenate(blocks)
        columns = iter(np.ascontiguousarray(matrix.T))
        return {
            key: np.full(len(matrix), NONE, np.int64) if name is None else next(columns) for key, name in found.items()
        }

    def read_names(self, table: str, names: Sequence[str], strings: StringCodes, where: str = "") -> Int64Array:
        """The codes of a column of names, NONE for none; depending on the version it holds texts or ids of StringIds.

        Of several columns the first that is not empty counts, row by row.
        """
        present = [name for name in names if name in self._columns.get(table, ())]
        if not present and table in self:
            self.missing_columns.append(f"{names[0]} of {table}")
        codes = np.empty(0, np.int64)
        for name in present:
            column = self._read_text_column(table, name, strings, where)
            codes = column if not len(codes) else np.where(codes[: len(column)] >= 0, codes[: len(column)], column)
        return codes

    def read_enum(self, table: str) -> dict[int, tuple[str, str]]:
        """Symbol and label of each value of an enumeration; empty without its table."""
        present = self._columns.get(table, ())
        symbol, label = (name if name in present else "''" for name in ("name", "label"))
        rows = self._fetch_all(f'SELECT id, {symbol}, {label} FROM "{table}"') if "id" in present else []
        return {key: (str(name or ""), str(text or "")) for key, name, text in rows if isinstance(key, int)}

    def read_records(self, table: str, wanted: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        """The rows of a small table as dictionaries, with None for values that are not there."""
        found = {
            key: next((n for n in names if n in self._columns.get(table, ())), None) for key, names in wanted.items()
        }
        if table not in self or not any(found.values()):
            return []
        selected = ", ".join("NULL" if name is None else f'"{name}"' for name in found.values())
        return [dict(zip(found, row, strict=True)) for row in self._fetch_all(f'SELECT {selected} FROM "{table}"')]

    def count_rows(self, table: str) -> int:
        """The rows of a table, by its last row id; 0 without a table."""
        with suppress(*_ERRORS):
            ((last,),) = self._database.execute(f'SELECT MAX(rowid) FROM "{table}"') if table in self else ((0,),)
            return last if isinstance(last, int) and last > 0 else 0
        return 0

    def expect_rows(self, tables: Sequence[str]) -> None:
        """Count the rows of the tables that will be read, for the progress."""
        self._rows_total = sum(map(self.count_rows, tables)) if self._progress else 0

    def _columns_of(self, table: str) -> frozenset[str]:
        quoted = table.replace('"', '""')
        return frozenset(row[1] for row in self._database.execute(f'PRAGMA table_info("{quoted}")'))

    def _find_column(self, table: str, names: Sequence[str]) -> str | None:
        present = self._columns.get(table)
        if present is None:
            return None
        found = next((name for name in names if name in present), None)
        if found is None:
            self.missing_columns.append(f"{names[0]} of {table}")
        return found

    def _read_text_column(self, table: str, name: str, strings: StringCodes, where: str) -> Int64Array:
        """The codes of one column, which holds texts or ids."""
        condition = f'"{name}" IS NOT NULL' + (f" AND ({where})" if where else "")
        kind = self._fetch_all(f'SELECT typeof("{name}") FROM "{table}" WHERE {condition} LIMIT 1')
        if kind and kind[0][0] == "text":
            codes = [np.empty(0, np.int64)]
            for rows in self._fetch_batches(f'SELECT "{name}" FROM "{table}" {where and "WHERE " + where}'):
                values = (strings[str(text)] if text else NONE for (text,) in rows)
                codes.append(np.fromiter(values, np.int64, len(rows)))
            return np.concatenate(codes)
        ids = self.read_numbers(table, {"id": (name,)}, where)["id"]
        distinct, which = np.unique(ids, return_inverse=True)
        return self._look_up_strings(distinct, strings)[which]

    def _look_up_strings(self, ids: Int64Array, strings: StringCodes) -> Int64Array:
        """The codes of the strings with these ids (distinct, ascending); NONE where StringIds has none."""
        codes = np.full(len(ids), NONE, np.int64)
        if {"id", "value"} - self._columns.get("StringIds", frozenset()):
            return codes
        for at in range(0, len(ids), _MAX_VARIABLES):
            some = ids[at : at + _MAX_VARIABLES].tolist()
            marks = ", ".join("?" * len(some))
            rows = self._fetch_all(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", some)
            known = np.array([row[0] for row in rows], np.int64)
            codes[np.searchsorted(ids, known)] = [NONE if text is None else strings[str(text)] for _, text in rows]
        return codes

    def _fetch_batches(self, statement: str) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a query, batch by batch, up to a damaged place."""
        try:
            cursor = self._database.execute(statement)
            while rows := cursor.fetchmany(_BATCH):
                yield rows
        except _ERRORS as error:
            if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
                self._refuse(error)
            self.damaged = True

    def _fetch_all(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query with a small result; none when the file is damaged there."""
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            self._refuse(error)
        except _ERRORS:
            self.damaged = True
            return []

    def _advance(self, rows: int) -> None:
        """Report some rows as read."""
        self._rows_done += rows
        if self._progress and self._rows_total:
            share = min(self._rows_done / self._rows_total, 1.0)
            self._progress(int(self._size * share), self._size)

    def _refuse(self, error: sqlite3.Error | UnicodeDecodeError) -> NoReturn:
        """Say in one sentence why a database cannot be read.

        Raises:
            TraceError: always.
        """
        words = str(error)
        if "locked" in words or "busy" in words:
            reason = "another program is writing this database; wait until `nsys export` is done"
        elif isinstance(error, UnicodeDecodeError) or any(word in words for word in _DAMAGE):
            reason = "the database is damaged, cut short or encrypted; export it again with `nsys export --type sqlite`"
        else:
            reason = f"the database cannot be read ({words}); export it again with `nsys export --type sqlite`"
        raise TraceError(f"{self.path}: {reason}") from error


def _declared_size(header: bytes) -> int:
    """The bytes of a database by its header (SQLite's "Database File Format", 1.3); 0 where old versions do not say."""
    page, count, changed, valid_for = (
        int.from_bytes(header[at : at + size], "big") for at, size in ((16, 2), (28, 4), (24, 4), (92, 4))
    )
    return (65536 if page == 1 else page) * count if changed == valid_for else 0
