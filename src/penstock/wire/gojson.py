"""JSON requests as a Go server of 2017 takes them, for clients that were written against one.

Keys are matched whatever their case, unknown ones are passed over, null is the same as nothing, and half
of a surrogate pair becomes U+FFFD.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from penstock.errors import InputInvalid

T = TypeVar("T", bound=msgspec.Struct)


def decode(body: bytes, type: type[T]) -> T:
    """*body* as a struct of *type*; `InputInvalid` if it is no JSON object of that shape."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = _leniently(body)
    if not isinstance(found, dict):
        raise InputInvalid("body", "is not a JSON object", code="json_invalid")
    names = {field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(type)}
    given = {names[key.lower()]: value for key, value in found.items() if key.lower() in names and value is not None}
    try:
        return msgspec.convert(given, type)
    except msgspec.ValidationError as error:
        raise InputInvalid("body", str(error), code="json_invalid") from None


def _leniently(body: bytes) -> Any:
    try:
        return _whole(json.loads(body))
    except (ValueError, RecursionError):
        raise InputInvalid("body", "is not JSON", code="json_invalid") from None


def _whole(value: Any) -> Any:
    """*value* with every half of a surrogate pair replaced, as far down as requests go."""
    if isinstance(value, str):
        # utf-16 joins halves that stand together; what is left alone cannot be decoded.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(one) for key, one in value.items()}
    return value
