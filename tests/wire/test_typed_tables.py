"""Bodies as rows of typed tables: what fits is exact, what does not is named by its path and never quoted."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.wire.lake_files import LakeFile, parse_location, shown_name, tables_of
from penstock.wire.typed_tables import (
    TYPES,
    BodyMisfit,
    BodyReader,
    TypedColumn,
    TypedTable,
    column_type,
    is_promotion,
    value_reader,
)

FITTING = [
    ("string", "Größe", "Größe"),
    ("string", "", ""),
    ("boolean", True, True),
    ("int", -(2**31), -(2**31)),
    ("long", 2**63 - 1, 2**63 - 1),
    ("double", 2, 2.0),
    ("double", 2.5, 2.5),
    ("decimal(10,2)", 12.5, Decimal("12.50")),
    ("decimal(10,2)", "12.500", Decimal("12.50")),
    ("decimal(38,0)", 10**38 - 1, Decimal(10**38 - 1)),
    ("date", "2028-02-29", date(2028, 2, 29)),
    ("timestamp", "2026-11-15T12:00:00.25+02:00", datetime(2026, 11, 15, 10, 0, 0, 250_000, UTC)),
    ("timestamp", "2026-11-15 12:00:00Z", datetime(2026, 11, 15, 12, tzinfo=UTC)),
    ("binary", "aGk=", b"hi"),
]


@pytest.mark.parametrize(("declared", "given", "expected"), FITTING)
def test_values_become_what_their_column_is(declared: str, given: Any, expected: Any) -> None:
    body = json.dumps({"a": {"b": given}, "c": 1}).encode()

    assert BodyReader([TypedColumn("x", declared, "a.b")]).read(body) == [expected]


@pytest.mark.parametrize("body", [b"{}", b'{"a":null}', b'{"a":{}}', b'{"a":{"b":null}}'])
def test_what_is_not_there_is_null(body: bytes) -> None:
    columns = [TypedColumn(one, one, "a.b") for one in (*TYPES, "decimal(4,2)")]

    assert BodyReader(columns).read(body) == [None] * len(columns)


MISFITS = [
    ("string", 7, "is a number, not a string"),
    ("string", "\ud800", "has half of a surrogate pair"),
    ("boolean", "true", "is a string, not a boolean"),
    ("int", 2**31, "does not fit into 32 bits"),
    ("int", 1.0, "is not a whole number"),
    ("int", True, "is a boolean, not a whole number"),
    ("long", -(2**63) - 1, "does not fit into 64 bits"),
    ("double", "2.5", "is a string, not a number"),
    ("double", 10**400, "is too large for a double"),
    ("decimal(10,2)", 1.005, "has more than 2 digits after the point"),
    ("decimal(10,2)", 123456789, "has more than 8 digits before the point"),
    ("decimal(10,2)", "1e5", "is a string that is no number"),
    ("decimal(10,2)", "NaN", "is a string that is no number"),
    ("decimal(10,2)", [1], "is an array, not a number"),
    ("date", "2026-02-30", "is no date of the calendar, or no time of the day"),
    ("date", "20260230", "is a string that is not like 2026-11-15"),
    ("timestamp", "2026-11-15T12:00:00", "is a string that is not like 2026-11-15T12:00:00Z, with its offset"),
    ("timestamp", 1_800_000_000, "is a number, not a string with a time"),
    ("timestamp", "0001-01-01T00:00:00+14:00", "is no date of the calendar, or no time of the day"),
    ("binary", "aGk", "is a string that is no base64"),
    ("binary", "ä", "is a string that is no base64"),
]


@pytest.mark.parametrize(("declared", "given", "reason"), MISFITS)
def test_what_does_not_fit_is_named(declared: str, given: Any, reason: str) -> None:
    with pytest.raises(BodyMisfit) as misfit:
        BodyReader([TypedColumn("x", declared, "a.b")]).read(json.dumps({"a": {"b": given}}).encode())

    assert (misfit.value.path, misfit.value.reason) == ("a.b", reason)


BODIES = [
    (b"", "", "is no JSON"),
    (b"\xff", "", "is no JSON"),
    (b'{"a":NaN}', "", "is no JSON"),
    (b"[" * 100_000, "", "is no JSON"),
    (b'{"a":' + b"9" * 5_000 + b"}", "", "is no JSON"),
    (b"[1]", "", "is an array, not an object"),
    (b"null", "", "is null, not an object"),
    (b'{"a":"text"}', "a", "is a string, not an object"),
]


@pytest.mark.parametrize(("body", "path", "reason"), BODIES)
def test_bodies_that_are_no_objects_are_named(body: bytes, path: str, reason: str) -> None:
    with pytest.raises(BodyMisfit) as misfit:
        BodyReader([TypedColumn("x", "string", "a.b")]).read(body)

    assert (misfit.value.path, misfit.value.reason) == (path, reason)


def test_a_number_with_a_huge_exponent_costs_nothing() -> None:
    for number in (b"1e999999999", b"1e-999999999"):
        with pytest.raises(BodyMisfit):
            BodyReader([TypedColumn("x", "decimal(38,10)", "a")]).read(b'{"a":' + number + b"}")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary().map(base64.b64encode).map(str),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abx"), inner, max_size=3),
)


@settings(max_examples=50)
@given(values | st.binary(), st.sampled_from((*TYPES, "decimal(9,3)", "decimal(38,0)")))
@example("\udfff", "binary")
def test_any_body_is_a_row_or_a_misfit_and_its_reason_quotes_nothing(value: Any, declared: str) -> None:
    body = value if isinstance(value, bytes) else json.dumps({"a": value, "secret": "hidden"}).encode()
    reader = BodyReader([TypedColumn("x", declared, "a")])
    path, reason = "", ""
    try:
        assert len(reader.read(body)) == 1
    except BodyMisfit as misfit:
        path, reason = misfit.path, misfit.reason
    assert path in ("", "a")
    assert reason in {"", *REASONS}


DIGITS = {
    f"has more than {digits} digits {where} the point" for digits in (0, 3, 6, 38) for where in ("before", "after")
}
KINDS = {
    f"is {kind}, not {what}"
    for kind in ("a string", "a boolean", "an array", "an object", "a number", "null")
    for what in (
        "a string", "a boolean", "a whole number", "a number", "an object", "a string with a date",
        "a string with a time", "a string in base64",
    )
}  # fmt: skip
REASONS = {reason for *_, reason in (*MISFITS, *BODIES)} | KINDS | DIGITS


def test_types_that_cannot_be_declared_are_refused() -> None:
    for declared in ("", "text", "decimal", "decimal(39,2)", "decimal(2,3)", "decimal(0,0)", "list<int>", "struct"):
        with pytest.raises(ValueError, match="is none of string, boolean"):
            column_type(declared)
    for declared in (*TYPES, "decimal(38,38)"):
        assert column_type(declared)
        assert value_reader(declared)


def test_a_type_changes_only_as_iceberg_promotes_it() -> None:
    assert is_promotion("int", "long")
    assert is_promotion("decimal(10,2)", "decimal(12,2)")
    assert is_promotion("string", "string")
    for before, after in (
        ("long", "int"), ("int", "double"), ("decimal(10,2)", "decimal(12,3)"), ("decimal(10,2)", "decimal(9,2)"),
        ("string", "binary"), ("date", "timestamp"),
    ):  # fmt: skip
        assert not is_promotion(before, after)


def test_names_of_typed_files_tell_their_table() -> None:
    table = TypedTable("orders_eu", "1f2e3d4c", ("/orders/*",), (TypedColumn("item", "string", "item"),))
    file = LakeFile(5, 9, "2026-11-15", table.key, "ab12")

    assert parse_location(f"s3://bucket/lake/{file.path}") == file
    assert file.path == "typed/orders_eu-1f2e3d4c/data/day=2026-11-15/t-000000000005-000000000009-ab12.parquet"
    assert (shown_name(table.key), tables_of(table.key)) == ("orders_eu", (table.key,))
    assert TypedTable.read(json.loads(json.dumps(table.shown()))) == table
    assert parse_location("events/data/day=2026-11-15/t-1-2-ab.parquet") is None
