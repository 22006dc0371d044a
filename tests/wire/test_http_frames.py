"""Frames and the opening handshake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from penstock.errors import InputInvalid
from penstock.wire import websocket_frames as websocket


@given(st.one_of(st.binary(max_size=200), st.integers(0, 70_000).map(bytes)))
def test_frames_are_those_of_an_independent_encoder(payload: bytes) -> None:
    assert websocket.text_frame(payload) == Frame(Opcode.TEXT, payload).serialize(mask=False)
    assert Frame(Opcode.PING, b"").serialize(mask=False) == websocket.PING_FRAME


def test_the_handshake_of_the_specification() -> None:
    assert websocket.handshake_answer(b"dGhlIHNhbXBsZSBub25jZQ==", b"13") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize(
    ("key", "version"),
    [(None, b"13"), (b"", b"13"), (b"short", b"13"), (b"\xff" * 24, b"13"), (b"dGhlIHNhbXBsZSBub25jZQ==", b"8")],
)
def test_a_bad_handshake_is_refused(key: bytes | None, version: bytes) -> None:
    with pytest.raises(InputInvalid):
        websocket.handshake_answer(key, version)


def test_offers_are_read_in_order() -> None:
    assert websocket.offered_subprotocols([b"b, a", b"c,"]) == ["b", "a", "c"]
