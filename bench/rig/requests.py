"""Requests as bytes, made once: a load generator that builds them measures itself."""

from __future__ import annotations

import json
from pathlib import Path

MARK = b"@"
"""Stands once in every event and nowhere else in a response: counting it counts deliveries."""

EVENT_BYTES = 200
STAMP_DIGITS = 19


def event(size: int = EVENT_BYTES) -> bytes:
    """A JSON text of exactly *size* bytes with the mark and room for a time of nanoseconds behind it."""
    start = b'{"at":"' + MARK + b"0" * STAMP_DIGITS + b'","pad":"'
    return start + b"x" * (size - len(start) - 2) + b'"}'


def publish(stream: str, body: bytes, token: str, *, lines: bool = False) -> bytes:
    """A publish on `/v1`."""
    kind = "Content-Type: application/x-ndjson\r\n" if lines else ""
    return post(f"/v1/publish?stream={stream}", body, f"Authorization: Bearer {token}\r\n{kind}")


def post(path: str, body: bytes, headers: str = "") -> bytes:
    """A POST; floors and peers need no headers."""
    return f"POST {path} HTTP/1.1\r\nHost: bench\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def tail(streams: str, token: str, **parameters: object) -> bytes:
    """An open tail, chunked."""
    query = "".join(f"&{name}={value}" for name, value in parameters.items())
    head = f"GET /v1/tail?streams={streams}{query} HTTP/1.1\r\nHost: bench\r\n"
    return f"{head}Authorization: Bearer {token}\r\n\r\n".encode()


def websocket_tail(streams: str, token: str) -> bytes:
    """The same as a WebSocket. The key is the example of RFC 6455; only the server's answer depends on it."""
    upgrade = (
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    return tail(streams, token).removesuffix(b"\r\n") + upgrade.encode()


def nchan_subscribe(path: str) -> bytes:
    """A chunked subscription of nchan, which wants to be asked for it."""
    return f"GET {path} HTTP/1.1\r\nHost: bench\r\nTE: chunked\r\n\r\n".encode()


def save(file: Path, *requests: bytes) -> Path:
    """Put requests into a file that a child process can load."""
    file.write_text(json.dumps([request.decode("latin-1") for request in requests]))
    return file


def load(file: Path) -> list[bytes]:
    """What `save` has put there."""
    return [text.encode("latin-1") for text in json.loads(file.read_text())]
