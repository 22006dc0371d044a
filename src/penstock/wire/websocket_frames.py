"""WebSocket frames from a server, encoded once and shared by all receivers, and the opening handshake.

Incoming frames are read by websockets' own sans-I/O parser (`http/websocket.py`).
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Final

from websockets.utils import accept_key

from penstock.errors import InputInvalid

_TEXT = 0x81  # FIN set, never masked: a server's frames
PING_FRAME: Final = b"\x89\x00"


def text_frame(payload: bytes) -> bytes:
    """A text message in one frame; *payload* is UTF-8."""
    size = len(payload)
    if size < 126:
        return b"%c%c%b" % (_TEXT, size, payload)
    if size < 65536:
        return struct.pack("!BBH", _TEXT, 126, size) + payload
    return struct.pack("!BBQ", _TEXT, 127, size) + payload


def handshake_answer(key: bytes | None, version: bytes | None) -> str:
    """`Sec-WebSocket-Accept` for a client's key; raises `InputInvalid` when the handshake is none."""
    if version != b"13":
        raise InputInvalid("Sec-WebSocket-Version", "must be 13", code="websocket_version")
    try:
        nonce = base64.b64decode(key or b"", validate=True)
    except binascii.Error:
        nonce = b""
    if len(nonce) != 16 or key is None:
        raise InputInvalid("Sec-WebSocket-Key", "must be 16 bytes in base64", code="websocket_key")
    return accept_key(key.decode())


def offered_subprotocols(values: list[bytes]) -> list[str]:
    """The subprotocols that a client offers, in its order."""
    return [name.strip().decode("latin-1") for name in b",".join(values).split(b",") if name.strip()]
