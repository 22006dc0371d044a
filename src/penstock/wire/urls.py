"""The parts of URLs, and percent signs in paths and queries."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from penstock.errors import InputInvalid

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


class Url(NamedTuple):
    """An address to send to, taken apart."""

    secure: bool
    host: str
    port: int
    target: str  # path and query; of a whole server its path, without a slash at the end

    @property
    def authority(self) -> str:
        """As the Host header has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        """Without path and query, which may hold a secret."""
        return f"{'https' if self.secure else 'http'}://{self.authority}"


def decode_level(level: str) -> str:
    """Decode one level of a path, or all of it for people. `InputInvalid` for bad escapes, bad UTF-8, controls."""
    if "%" not in level:
        return level
    text = _unquote(level, "path")
    if _CONTROLS.search(text):
        raise InputInvalid("path", "has an encoded control character", code="path_invalid")
    return text


def parse_query(query: str) -> dict[str, str]:
    """Decode a query's parameters. A name that comes twice raises `InputInvalid`."""
    found: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        name, _, value = pair.partition("=")
        name = _unquote(name.replace("+", " "), "query")
        if not name:
            continue
        if name in found:
            raise InputInvalid(f"parameter {name!r}", "is given twice", code="parameter_repeated")
        found[name] = _unquote(value.replace("+", " "), f"parameter {name!r}")
    return found


def _unquote(text: str, what: str) -> str:
    if "%" not in text:
        return text
    if _BAD_ESCAPE.search(text):
        raise InputInvalid(what, "has a malformed percent sign", code="encoding_invalid")
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise InputInvalid(what, "is not UTF-8", code="encoding_invalid") from None
    if "\0" in decoded:
        raise InputInvalid(what, "has a NUL", code="encoding_invalid")
    return decoded
