"""Heads of HTTP/1.1 responses as bytes."""

from __future__ import annotations

import re
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {s.value: b"HTTP/1.1 %d %b\r\n" % (s, s.phrase.encode()) for s in HTTPStatus}
_LENGTHS: Final = tuple(b"%d\r\n" % size for size in range(1024))  # to format them takes twice as long as the rest
_VALUE = re.compile(r"(?![ \t])[\t -~\x80-\xff]*+(?<![ \t])")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_prefixes: dict[tuple[int, str], bytes] = {}  # at most one per status and content type that the program names
_names: set[str] = set()  # of fields, known to be in order


def status_line(status: int) -> bytes:
    """The status line; a status without a name of its own gets none."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def field_lines(headers: tuple[tuple[str, str], ...]) -> bytes:
    """Encode header fields. Raises `ValueError` for one that would break the head apart."""
    lines = []
    for name, value in headers:
        if not (name in _names or _is_name(name)) or not _VALUE.fullmatch(value):
            raise ValueError(f"header field {name!r} cannot be sent")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("latin-1")


def _is_name(name: str) -> bool:
    found = _NAME.fullmatch(name) is not None
    if found and len(_names) < 1000:
        _names.add(name)
    return found


def date_line(epoch_seconds: int) -> bytes:
    """The Date field for that second."""
    return f"Date: {formatdate(epoch_seconds, usegmt=True)}\r\n".encode()


def answer(status: int, body: bytes, content_type: str, fields: bytes) -> bytes:
    """Encode a complete answer; *fields* are header lines already encoded, Date among them."""
    key = (status, content_type)
    prefix = _prefixes.get(key) or _prefix(key)
    size = len(body)
    length = _LENGTHS[size] if size < len(_LENGTHS) else b"%d\r\n" % size
    return b"".join((prefix, length, fields, b"\r\n", body))


def answer_head(status: int, body_length: int, content_type: str, fields: bytes) -> bytes:
    """The head of that answer, for a HEAD request."""
    prefix = _prefix((status, content_type))
    return b"%b%d\r\n%b\r\n" % (prefix, body_length, fields)


def bodiless(status: int, fields: bytes) -> bytes:
    """An answer that has no body by definition (1xx, 204, 304), or a live one's head."""
    return b"%b%b\r\n" % (status_line(status), fields)


def _prefix(key: tuple[int, str]) -> bytes:
    status, content_type = key
    fields = field_lines((("Content-Type", content_type),)) if content_type else b""
    prefix = status_line(status) + fields + b"Content-Length: "
    if len(_prefixes) < 1000:
        _prefixes[key] = prefix
    return prefix
