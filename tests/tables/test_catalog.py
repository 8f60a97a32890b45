"""Every table of every kind of recording can be made, shown in 80 columns and saved."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import get_args

import pytest
from real_traces import read_once
from rich.cells import cell_len

from perfdoctor.data_rows import read_rows
from perfdoctor.rank import Rank
from perfdoctor.report.table import Table, Unit
from perfdoctor.reporters.table_text import render_table, render_table_csv, render_table_html, render_table_markdown
from perfdoctor.reporters.write_table import render_table_as
from perfdoctor.tables import catalog
from perfdoctor.tables.catalog import TABLES, build_table
from perfdoctor.tables.report_tables import report_tables
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.split_ranks import split_ranks

RECORDINGS = (
    *("traces/b300-decode-graph.json.gz", "traces/cpu-only-rank34.json.gz", "traces/triton-compile.json.gz"),
    *("traces/mi210-gpu-only.json.gz", "traces/a100-cupti-counters.json.gz", "traces/a4000-no-cpu-op.json.gz"),
    *("nsight/mock.sqlite", "nsight/healthy_1pct.sqlite"),
)


def check(table: Table) -> None:
    text = render_table(table, width=80, rows=20)
    assert max(map(cell_len, text.splitlines())) <= 80
    assert len(table) or table.notes
    rows = list(csv.DictReader(io.StringIO(render_table_csv(table))))
    assert len(rows) == len(table)
    assert table.columns[0].name == "name"
    for name, low, high in (("share", 0, 1), ("peak_share", 0, 1.05), ("count", 0, 1e9)):
        known = [row[name] for row in table.rows if row.get(name) is not None]
        assert all(low <= value <= high for value in known), (table.name, table.by, name)
    assert render_table_markdown(table)
    assert render_table_html(table)
    assert render_table_as(table, ".json")


@pytest.mark.corpus
@pytest.mark.parametrize("file", RECORDINGS)
def test_every_table_of_real_recordings(shared: Path, file: str) -> None:
    rank = Rank(split_ranks(read_once(shared / file))[0])
    for name, spec in TABLES.items():
        for by in spec.by:
            check(build_table(rank, name, by))
    assert all(len(rows) <= 10 for rows in report_tables(rank).values())


@pytest.mark.parametrize("device", [None, "NVIDIA A100-SXM4-80GB"])
def test_every_table_of_nearly_nothing(device: str | None) -> None:
    for trace in (TraceBuilder(device=device).step(0, 10), TraceBuilder(device=device).kernel("k", 0, 0)):
        rank = Rank(trace.trace())
        for name, spec in TABLES.items():
            for by in spec.by:
                check(build_table(rank, name, by))


def test_each_table_is_described_in_a_line() -> None:
    assert all(spec.by and len(f"{name}  {spec.title}") <= 120 for name, spec in TABLES.items())


def test_each_column_is_declared_once_and_used() -> None:
    rows = read_rows("tables/columns.csv")
    keys = [(row["of"], row["name"]) for row in rows]
    assert len(set(keys)) == len(keys)
    assert {row["unit"] for row in rows} <= set(get_args(Unit))
    assert {row["main"] for row in rows} == {"yes", "no"}
    source = "".join(file.read_text(encoding="utf-8") for file in Path(catalog.__file__).parent.glob("*.py"))
    assert not [name for _, name in keys if f'"{name}"' not in source]
