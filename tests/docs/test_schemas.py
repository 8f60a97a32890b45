"""The JSON Schemas that ship are those of the classes."""

import pytest
from make_schemas import PACKAGE, SCHEMAS, describe, format_schema


@pytest.mark.parametrize("place", SCHEMAS)
def test_up_to_date(place):
    written = (PACKAGE / f"{place}.schema.json").read_text(encoding="utf-8")
    assert written == format_schema(describe(*SCHEMAS[place])), "run python docs/make_schemas.py"


def test_every_schema_is_made():
    assert {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.schema.json")} == {
        f"{place}.schema.json" for place in SCHEMAS
    }
