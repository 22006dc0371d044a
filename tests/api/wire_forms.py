"""The framings of live wires as their readers see them: what opens one, and the entries that came whole over it.

What breaks a framing is a `ValueError`: a reader would go wrong there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlencode

Got = list[tuple[int, bytes]]  # ids and bodies


class WireForm(NamedTuple):
    """One framing."""

    door: str
    version: str
    read: Callable[[bytes], Got]
    headers: str = ""
    query: tuple[tuple[str, str], ...] = ()

    def request(self, name: str, wanted: str, after: int | None = None, token: str = "admin") -> bytes:
        """What opens a wire for the reader of that name; a device of sps is named by a number."""
        if self.door == "sps":
            asked = [("uid", name), ("tid", wanted), *self.query, *([] if after is None else [("o", after)])]
            target = f"/subscribe?{urlencode(asked)}"
        else:
            asked = [("streams", wanted), ("consumer", name), *([] if after is None else [("after", after)])]
            target = f"/v1/tail?{urlencode(asked)}"
        fields = f"Host: test\r\nAuthorization: Bearer {token}\r\n{self.headers}"
        return f"GET {target} HTTP/{self.version}\r\n{fields}\r\n".encode()


def lines(data: bytes) -> Got:
    """Lines of JSON. Those about the wire itself have no id."""
    whole, _, _ = data.rpartition(b"\n")
    told = [json.loads(line) for line in whole.split(b"\n") if line.strip()]
    return [(line["id"], line["data"].encode()) for line in told if "id" in line]


def events(data: bytes) -> Got:
    """What an EventSource makes of it; an id without data is no event."""
    whole, _, _ = data.rpartition(b"\n\n")
    found: Got = []
    for block in whole.split(b"\n\n"):
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
        if b"data" in fields:
            found.append((int(fields[b"id"]), fields[b"data"]))
    return found


def unchunked(data: bytes) -> bytes:
    """The contents of all chunks that are complete."""
    found, begin = [], 0
    while (end := data.find(b"\r\n", begin)) >= 0:
        begin, size = end + 2, int(data[begin:end], 16)
        if len(data) < begin + size + 2:
            break
        if data[begin + size : begin + size + 2] != b"\r\n":
            raise ValueError("a chunk is not as long as it says")
        found.append(data[begin : begin + size])
        begin += size + 2
    return b"".join(found)


def unframed(data: bytes) -> bytes:
    """The contents of all WebSocket messages that are complete."""
    return b"".join(_messages(data))


def _messages(data: bytes) -> Iterator[bytes]:
    while len(data) >= 2:
        kind, size = data[:2]
        if kind != 0x81:
            raise ValueError(f"a message that is no text begins with {kind:#x}")
        more = {126: 2, 127: 8}.get(size, 0)
        size = int.from_bytes(data[2 : 2 + more], "big") if more else size
        if len(data) < 2 + more + size:
            return
        yield data[2 + more : 2 + more + size]
        data = data[2 + more + size :]


_UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)

FORMS = {
    "plain": WireForm("v1", "1.0", lines),
    "chunked": WireForm("v1", "1.1", lambda data: lines(unchunked(data))),
    "websocket": WireForm("v1", "1.1", lambda data: lines(unframed(data)), _UPGRADE),
    "sps lines": WireForm("sps", "1.1", lambda data: lines(unchunked(data))),
    "sps sse": WireForm("sps", "1.1", lambda data: events(unchunked(data)), query=(("format", "sse"),)),
}
