"""Typed tables: declared columns of the JSON bodies of some streams.

    orders = TypedTable("orders", "1f2e3d4c", ("/orders/*",), (TypedColumn("price", "decimal(10,2)", "price"),))
    BodyReader(orders.columns).read(b'{"price": 4.50}')       # [Decimal('4.50')], or `BodyMisfit`

A column's field id is its place in the table, so columns are only ever added, at the end. Spark's workers use this: it
needs nothing but Python.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final, TypeVar

from penstock.wire.lake_files import TYPED
from penstock.wire.table_columns import BOOL, BYTES, DATE, DOUBLE, INT32, INT64, TEXT, TIME, Column, decimal_size

TYPES: Final = {
    "string": TEXT, "boolean": BOOL, "int": INT32, "long": INT64, "double": DOUBLE, "date": DATE, "timestamp": TIME,
    "binary": BYTES,
}  # fmt: skip
"""What a column may be declared as, besides `decimal(digits,digits after the point)`."""

DIGITS: Final = 38
"""Of a decimal: as many as Iceberg has."""

T = TypeVar("T")

OWN: Final = (
    Column("id", INT64, False, "", "", "of the entry"),
    Column("stream", TEXT, False, "", "", "of the entry", repeats=True),
    Column("time", TIME, False, "", "", "when it was appended"),
)
"""The columns that every typed table begins with."""


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column, and where its value is in a body: `address.city` is the field `city` of the object `address`."""

    name: str
    type: str
    path: str


@dataclass(frozen=True, slots=True)
class TypedTable:
    """What was declared under a name. A table that is declared anew, after it was deleted, has another id."""

    name: str
    id: str
    streams: tuple[str, ...]  # patterns
    columns: tuple[TypedColumn, ...]

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> TypedTable:
        """What `shown` has made of it."""
        columns = tuple(TypedColumn(**one) for one in value["columns"])
        return cls(value["name"], value["id"], tuple(value["streams"]), columns)

    def shown(self) -> dict[str, Any]:
        """As it is kept in JSON."""
        columns = [asdict(one) for one in self.columns]
        return {"name": self.name, "id": self.id, "streams": list(self.streams), "columns": columns}

    @property
    def key(self) -> str:
        """What it is called within the lake. No two tables ever have the same."""
        return f"{TYPED}{self.name}-{self.id}"

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """The columns of its rows, in their order."""
        declared = (Column(one.name, column_type(one.type), True, "", "", one.path) for one in self.columns)
        return (*OWN, *declared)


def column_type(declared: str) -> str:
    """The type of a column that is declared so; `ValueError` if there is none."""
    if (found := TYPES.get(declared)) is not None:
        return found
    size = decimal_size(declared)
    if size is None or not (1 <= size[0] <= DIGITS and size[1] <= size[0]):
        raise ValueError(f"{declared[:40]!r} is none of {', '.join(TYPES)}, decimal(10,2)")
    return declared


def is_promotion(before: str, after: str) -> bool:
    """Whether a column's type may become another: what was written stays readable, by Iceberg's rules."""
    narrow, wide = decimal_size(before), decimal_size(after)
    if narrow and wide:
        return narrow[1] == wide[1] and narrow[0] <= wide[0]
    return before == after or (before, after) == ("int", "long")


# ── bodies ─────────────────────────────────────────────────────────────────────────────────────


class BodyMisfit(Exception):
    """A body does not fit. Never says what is in it: the body may have to be erased, and this stays."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason


class BodyReader:
    """Takes the values of columns out of bodies."""

    def __init__(self, columns: Sequence[TypedColumn]) -> None:
        self._plan = [(one.path, one.path.split("."), value_reader(one.type)) for one in columns]
        # A float would have lost digits already that a decimal must have.
        exact = any(decimal_size(one.type) for one in columns)
        self._decode = json.JSONDecoder(parse_float=Decimal if exact else float, parse_constant=_refuse).decode

    def read(self, body: bytes) -> list[Any]:
        """The values, None for what is null or not there; `BodyMisfit` if one does not fit its column."""
        try:
            found = self._decode(body.decode())
        except (ValueError, RecursionError):
            raise BodyMisfit("", "is no JSON") from None
        if type(found) is not dict:
            raise BodyMisfit("", f"is {_kind(found)}, not an object")
        return [self._value(found, *one) for one in self._plan]

    def _value(self, found: Any, path: str, levels: Sequence[str], read: Callable[[Any], Any]) -> Any:
        for depth, level in enumerate(levels):
            if found is None:
                return None
            if type(found) is not dict:
                raise BodyMisfit(".".join(levels[:depth]), f"is {_kind(found)}, not an object")
            found = found.get(level)
        if found is None:
            return None
        try:
            return read(found)
        except ValueError as error:
            raise BodyMisfit(path, str(error)) from None


def value_reader(declared: str) -> Callable[[Any], Any]:
    """What makes a value of JSON one of a column; it raises `ValueError` with the reason if it does not fit."""
    size = decimal_size(declared)
    return _decimal_reader(*size) if size else _READERS[declared]


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


_KINDS: Final = {str: "a string", bool: "a boolean", list: "an array", dict: "an object", type(None): "null"}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number")


def _not(value: Any, what: str) -> ValueError:
    return ValueError(f"is {_kind(value)}, not {what}")


def _string(value: Any) -> str:
    if type(value) is not str:
        raise _not(value, "a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("has half of a surrogate pair") from None
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _not(value, "a boolean")
    return value


def _whole(value: Any, bits: int) -> int:
    if type(value) is not int:
        raise _not(value, "a whole number") if _kind(value) != "a number" else ValueError("is not a whole number")
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise ValueError(f"does not fit into {bits} bits")
    return value


def _double(value: Any) -> float:
    if _kind(value) != "a number":
        raise _not(value, "a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError("is too large for a double")
    return found


_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?", re.ASCII)


def _decimal_reader(digits: int, scale: int) -> Callable[[Any], Decimal]:
    """A number of JSON, or a string with one, exactly: nothing is rounded."""
    exactly, unit = Context(prec=digits, traps=[InvalidOperation, Inexact]), Decimal(1).scaleb(-scale)

    def read(value: Any) -> Decimal:
        if type(value) is str and _NUMBER.fullmatch(value):
            value = Decimal(value)
        elif _kind(value) != "a number":
            raise ValueError("is a string that is no number") if type(value) is str else _not(value, "a number")
        try:
            return Decimal(value).quantize(unit, context=exactly)
        except Inexact:
            raise ValueError(f"has more than {scale} digits after the point") from None
        except InvalidOperation:
            raise ValueError(f"has more than {digits - scale} digits before the point") from None

    return read


_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_MOMENT: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?)([Zz]|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)


def _date(value: Any) -> date:
    if type(value) is not str:
        raise _not(value, "a string with a date")
    if not _DATE.fullmatch(value):
        raise ValueError("is a string that is not like 2026-11-15")
    return _calendar(lambda: date.fromisoformat(value))


def _timestamp(value: Any) -> datetime:
    if type(value) is not str:
        raise _not(value, "a string with a time")
    found = _MOMENT.fullmatch(value)
    if not found:
        raise ValueError("is a string that is not like 2026-11-15T12:00:00Z, with its offset")
    day, clock, offset = found.groups()
    zone = "+00:00" if offset in "Zz" else offset
    return _calendar(lambda: datetime.fromisoformat(f"{day}T{clock}{zone}").astimezone(UTC))


def _calendar(make: Callable[[], T]) -> T:
    try:
        return make()
    except (ValueError, OverflowError):
        raise ValueError("is no date of the calendar, or no time of the day") from None


def _binary(value: Any) -> bytes:
    if type(value) is not str:
        raise _not(value, "a string in base64")
    try:
        return binascii.a2b_base64(value.encode("ascii"), strict_mode=True)
    except ValueError:  # binascii.Error and UnicodeEncodeError are both
        raise ValueError("is a string that is no base64") from None


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "string": _string,
    "boolean": _boolean,
    "int": lambda value: _whole(value, 32),
    "long": lambda value: _whole(value, 64),
    "double": _double,
    "date": _date,
    "timestamp": _timestamp,
    "binary": _binary,
}
