from __future__ import annotations

from dataclasses import replace

import jsonschema
import orjson
import pytest
import report_samples as samples

from perfdoctor.reporters.json_ import Json, load_schema


@pytest.fixture(scope="module")
def validator():
    schema = load_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", samples.ALL)
def test_every_report_fits_the_schema(name, validator):
    validator.validate(orjson.loads(Json().render(samples.ALL[name]())))


def test_the_json_report_is_as_recorded(golden):
    golden("loader_stall.json", Json().render(samples.loader_stall()))


def _objects(schema):
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from _objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _objects(value)


def test_the_schema_lets_nothing_be_added_or_left_out():
    found = list(_objects(load_schema()))
    assert len(found) >= 12
    for item in found:
        if item == {"type": "object"}:  # a row of a table: its columns are those of the table
            continue
        assert item["additionalProperties"] is False
        assert item["required"] == list(item["properties"])


def _breaks(report):
    plain = report.to_dict()
    yield {**plain, "more": 1}
    yield {key: value for key, value in plain.items() if key != "outcomes"}
    yield {**plain, "schema": "perfdoctor.report/1"}
    finding = plain["findings"][0]
    for change in (
        {"cost_ns": 1.5},
        {"cost_ns": None},
        {"severity": "fatal"},
        {"location": {"file": "a.py"}},
        {"confidence": 2},
    ):
        yield {**plain, "findings": [{**finding, **change}]}
    account = plain["account"][0]
    yield {**plain, "account": [{**account, "detail": {**account["detail"], "idle_other": 1}}]}


def test_the_schema_refuses_what_the_contract_forbids(validator):
    broken = list(_breaks(samples.loader_stall()))
    assert [bad for bad in broken if validator.is_valid(bad)] == []


def test_times_are_integers_and_unknown_is_null():
    report = orjson.loads(Json().render(samples.cpu_only()))
    assert report["timeline"][0]["window_ns"] is None
    assert report["account"][0]["tensor_core"]["used"] is None
    assert all(type(ns) is int for ns in report["account"][0]["detail"].values())


def test_what_json_cannot_hold_becomes_null_or_a_replacement(validator):
    report = samples.loader_stall()
    steps = replace(report.steps, variation=float("nan"))
    trace = replace(report.traces[0], path="bad\udce9name.json")
    read = orjson.loads(Json().render(replace(report, steps=steps, traces=(trace,))))
    validator.validate(read)
    assert read["steps"]["variation"] is None
    assert read["traces"][0]["path"] == "bad?name.json"
