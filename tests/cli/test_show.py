"""`perfdoctor show`, and `Report.table`, which gives the same."""

from __future__ import annotations

import csv
import io
import json

import pytest

import perfdoctor as package
from perfdoctor.tables.catalog import TABLES
from perfdoctor.testing import TraceBuilder


def job(rank: int = 0, length: int = 1000) -> TraceBuilder:
    trace = TraceBuilder(rank=rank)
    for step in range(3):
        at = step * length
        trace.step(at, length).op("aten::mm", at, 40, shapes=[[64, 32], [32, 16]], types=["float", "float"])
        trace.kernel("ampere_sgemm_128x64_nn", at + 20, length // 2, launch_us=at + 5)
        trace.op("aten::add", at + 50, 20).kernel("=HYPERLINK(1)\x1b[31m", at + length // 2 + 30, 40, launch_us=at + 55)
    return trace


@pytest.fixture
def one(tmp_path):
    return job().write(tmp_path / "trace.json.gz")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job").mkdir()
    for rank, length in enumerate((1000, 1400, 1200)):
        job(rank, length).write(tmp_path / "job" / f"rank{rank}.json.gz")
    return tmp_path / "job"


def test_without_a_table_all_are_listed(perfdoctor):
    ended = perfdoctor("show")
    assert ended.code == 0
    assert [line.split()[0] for line in ended.out.splitlines()] == list(TABLES)


def test_the_table_fits_the_terminal_and_names_stay_text(perfdoctor, one):
    ended = perfdoctor("show", "kernels", one)
    assert ended.code == 0, ended.err
    assert "ampere_sgemm_128x64_nn" in ended.out
    assert "\x1b" not in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "kernels by name, rank 0: 2 rows" in ended.out


def test_csv_and_json_hold_all_columns_and_rows(perfdoctor, one):
    rows = list(csv.DictReader(io.StringIO(perfdoctor("show", "kernels", one, "--csv").out)))
    assert [row["name"] for row in rows] == ["ampere_sgemm_128x64_nn", "'=HYPERLINK(1)"]
    assert rows[0]["window_count"] == "3"
    plain = json.loads(perfdoctor("show", "kernels", one, "--json").out)
    assert [column["name"] for column in plain["columns"]] == list(rows[0])
    assert plain["rows"][0]["window_ns"] == 3 * 500_000
    assert plain["rows"][0]["flops"] == 3 * 2 * 64 * 32 * 16


def test_rows_are_sorted_and_cut(perfdoctor, one):
    ended = perfdoctor("show", "kernels", one, "--sort", "name", "--top", "1", "--csv")
    assert [row["name"] for row in csv.DictReader(io.StringIO(ended.out))] == ["'=HYPERLINK(1)"]
    ended = perfdoctor("show", "kernels", one, "--top", "1")
    assert "1 of 2 rows" in ended.out
    assert "1 more row: 40.0 us, 4.0%; --top 0 shows them" in ended.out


def test_files_are_written_by_their_suffix(perfdoctor, one, tmp_path):
    ended = perfdoctor("show", "kernels", one, "-o", "a.csv", "-o", "a.json", "-o", "a.md", "-o", "a.txt")
    assert ended.err.splitlines() == [f"wrote a.{suffix}" for suffix in ("csv", "json", "md", "txt")]
    assert (tmp_path / "a.csv").read_text() == perfdoctor("show", "kernels", one, "--csv").out
    assert (tmp_path / "a.json").read_text() == perfdoctor("show", "kernels", one, "--json").out
    assert "| ampere_sgemm_128x64_nn |" in (tmp_path / "a.md").read_text()
    assert "window" in (tmp_path / "a.txt").read_text()


def test_of_several_ranks_the_longest_step_is_shown_unless_one_is_named(perfdoctor, folder):
    ended = perfdoctor("show", "kernels", folder)
    assert "kernels by name, rank 1:" in ended.out
    assert "of 3 ranks this is rank 1, which has the longest step" in " ".join(ended.out.split())
    assert "rank 2:" in perfdoctor("show", "kernels", folder, "--rank", "2").out


def test_a_rank_that_cannot_be_read_is_named(perfdoctor, folder):
    (folder / "rank1.json.gz").write_bytes(b"nothing")
    ended = perfdoctor("show", "kernels", folder)
    assert ended.code == 0
    assert "kernels by name, rank 2:" in ended.out
    assert "could not be read" in ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("kernels",), "no trace is given; perfdoctor show kernels PATH"),
        (("kernels", "{}", "--by", "colour"), "cannot be grouped by 'colour'"),
        (("kernels", "{}", "--sort", "colour"), "has no column 'colour'"),
        (("kernels", "{}", "--csv", "--json"), "exclude each other"),
        (("kernels", "{}", "-o", "a.pdf"), "a.pdf: the suffix of a table's file must be one of .csv, .json, .md, .txt"),
        (("kernels", "{}", "-o", "no/a.csv"), "its folder does not exist"),
        (("kernels", "{}", "--rank", "7"), None),
        (("kernels", "{}", "--steps", "7:9"), "no steps are left"),
        (("kernels", "{}", "--device", "Voodoo 2"), "'Voodoo 2' is not in the table"),
        (("kernels", "absent.json"), "no such file"),
        (("{}",), "is a path; say which table first: perfdoctor show kernels"),
    ],
)
def test_wrong_usage_is_one_sentence(perfdoctor, one, arguments, words, tmp_path):
    before = sorted(tmp_path.iterdir())
    ended = perfdoctor("show", *(each.format(one) for each in arguments))
    if words is None:  # a single trace is what it is, as with analyze
        assert ended.code == 0
        return
    assert ended.code == 2
    assert words in ended.line
    assert sorted(tmp_path.iterdir()) == before


def test_an_unknown_table_lists_those_there_are(perfdoctor, one):
    ended = perfdoctor("show", "kernel", one)
    assert ended.code == 2
    *listed, error = ended.err.splitlines()
    assert [line.split()[0] for line in listed] == list(TABLES)
    assert "there is no table 'kernel'; did you mean 'kernels'?" in error


def test_a_report_makes_the_same_table(perfdoctor, one, folder, capfd):
    report = package.analyze(one)
    table = report.table("kernels", by="shape")
    assert isinstance(table, package.Table)
    assert table.to_dict() == json.loads(perfdoctor("show", "kernels", one, "--by", "shape", "--json").out)
    report.table("ops").print()
    assert "ops by name, rank 0" in capfd.readouterr().out
    of_ranks = package.analyze(folder, jobs=1)
    assert (of_ranks.table("kernels").rank, of_ranks.table("kernels", rank=2).rank) == (1, 2)
    with pytest.raises(package.UsageError, match="none of the traces is of rank 9"):
        of_ranks.table("kernels", rank=9)
    with pytest.raises(package.UsageError, match="cannot be grouped by 'colour'"):
        report.table("kernels", by="colour")


def test_tables_become_frames(one):
    table = package.analyze(one).table("kernels")
    pandas = pytest.importorskip("pandas")
    frame = table.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["window_count"]) == [3, 3]
    polars = pytest.importorskip("polars")
    assert isinstance(table.to_polars(), polars.DataFrame)


def test_a_notebook_shows_names_as_text(one):
    html = package.analyze(one).table("kernels")._repr_html_()
    assert "<script" not in html
    assert "\x1b" not in html
    assert "ampere_sgemm_128x64_nn" in html
