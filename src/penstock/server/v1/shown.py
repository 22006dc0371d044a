"""Entries as the own API shows them: one JSON object each."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable

import msgspec

from penstock.values import Entry, Kind
from penstock.wire.eventhorizon import timestamp

_text = msgspec.json.Encoder().encode
_DATA, _EXPIRED, _ERASED = Kind.DATA, Kind.EXPIRED, Kind.ERASED


class Shown:
    """Makes the JSON of entries.

    The pieces are put together by hand: of the fields that are always there only the body needs an
    encoder, and the text of stream and time is nearly always the one of the entry before.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._stream, self._stream_text, self._cursor_text = "", b"", b""
        self._ms, self._time_text = -1, b""

    def line(self, entry: Entry) -> bytes:
        """One entry, without a newline."""
        if entry.stream != self._stream:
            self._remember_stream(entry.stream)
        if entry.published_ms != self._ms:
            self._ms = entry.published_ms
            self._time_text = timestamp(self._ms).encode()
        return b'{"id":%d,"stream":%b,"index":%b,"cursor":%b:%d:%d:%b","type":%b,"time":"%b"%b,%b}' % (
            entry.id,
            self._stream_text,
            b"null" if entry.index is None else b"%d" % entry.index,
            self._cursor_text,
            entry.chunk,
            entry.offset + entry.size,
            self._server.encode(),
            _text(entry.type) if entry.type else b'""',
            self._time_text,
            self._rare_fields(entry) if entry.attributes or entry.expires_ms or entry.kind is not _DATA else b"",
            _data(entry.body),
        )

    def page(self, entries: Iterable[Entry]) -> bytes:
        """Entries, separated by commas."""
        return b",".join([self.line(entry) for entry in entries])

    def lines(self, entries: Iterable[Entry]) -> bytes:
        """Entries, each ended by a newline."""
        return b"\n".join([self.line(entry) for entry in entries]) + b"\n"

    def _remember_stream(self, stream: str) -> None:
        self._stream = stream
        self._stream_text = _text(stream)
        self._cursor_text = self._stream_text[:-1]

    def _rare_fields(self, entry: Entry) -> bytes:
        text = b""
        if entry.attributes:
            text += b',"attributes":' + entry.attributes.encode()
        if entry.expires_ms is not None:
            text += b',"expires":"%b"' % timestamp(entry.expires_ms).encode()
        if entry.kind is not _DATA:
            text += b',"kind":"%b"' % entry.kind.name.lower().encode()
        return text


def _data(body: bytes) -> bytes:
    try:
        return b'"data":' + _text(body.decode())
    except UnicodeDecodeError:
        return b'"data_base64":"' + b64encode(body) + b'"'
