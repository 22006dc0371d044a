"""JSON requests as a Go server of 2017 takes them, for clients that were written against one.

Keys are matched whatever their case, unknown ones are passed over, null is the same as nothing, and half
of a surrogate pair becomes U+FFFD. What nobody asked for is skipped and never becomes an object.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from penstock.errors import InputInvalid
from penstock.limits import LENIENT_BYTES

T = TypeVar("T", bound=msgspec.Struct)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_HALF = rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
_PAIR = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_OTHER = rb"[^\\]++|\\(?!u[dD][89a-fA-F])[\x00-\xff]"
_LONE = re.compile(rb"((?:" + _OTHER + rb"|" + _PAIR + rb")*+)" + _HALF)


def decode(body: bytes, type: type[T]) -> T:
    """*body* as a struct of *type*; `InputInvalid` if it is no JSON object of that shape."""
    try:
        return _decode(body, type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        whole = _without_halves(body) if len(body) <= LENIENT_BYTES else body
        if whole == body:
            raise _invalid(error) from None
    try:
        return _decode(whole, type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(error) from None


def _decode(body: bytes, type: type[T]) -> T:
    if len(body) > LENIENT_BYTES:
        return msgspec.json.decode(body, type=type)
    names = {field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(type)}
    given = {
        names[key.lower()]: value
        for key, value in _members(body).items()
        if key.lower() in names and bytes(value) != b"null"
    }
    return msgspec.json.decode(msgspec.json.encode(given), type=type)


def _without_halves(body: bytes) -> bytes:
    """*body* with U+FFFD for every half of a surrogate pair that stands alone."""
    pieces: list[bytes] = []
    at = 0
    while found := _LONE.match(body, at):  # never `sub`: from each place without one it would look to the end
        pieces += (found[1], b"\\ufffd")
        at = found.end()
    return b"".join((*pieces, body[at:]))


def _invalid(error: Exception) -> InputInvalid:
    wrong = str(error) if isinstance(error, msgspec.ValidationError) else "is not JSON"
    if wrong.startswith("Expected `object`") and "at" not in wrong:
        wrong = "is not a JSON object"
    return InputInvalid("body", wrong, code="json_invalid")
