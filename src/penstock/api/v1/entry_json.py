"""Entries as Penstock's API shows them: one JSON object each."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.values import BETWEEN_BODIES, Entry, Kind, PlainEntries
from penstock.wire.eventhorizon import timestamp

_DATA = Kind.DATA


class EntryJson(msgspec.Struct, gc=False):
    """An entry in JSON; what is not set is left out."""

    id: int
    stream: str
    index: int | None
    cursor: str
    type: str
    time: str
    data: str | UnsetType = UNSET
    data_base64: str | UnsetType = UNSET
    attributes: Raw | UnsetType = UNSET
    expires: str | UnsetType = UNSET
    kind: str | UnsetType = UNSET


class EntryEncoder:
    """Makes the JSON of entries. The text of a time is nearly always the one of the entry before."""

    def __init__(self, server: str) -> None:
        self._end = f":{server}"
        self._ms, self._time = -1, ""
        self._encoder = msgspec.json.Encoder()

    def page(self, entries: Iterable[Entry]) -> bytes:
        """Entries in a JSON array."""
        return self._encoder.encode([self._entry(entry) for entry in entries])

    def lines(self, entries: Sequence[Entry]) -> bytes:
        """Entries, each ended by a newline."""
        if isinstance(entries, PlainEntries):
            return self._plain_lines(entries)
        return self._encoder.encode_lines([self._entry(entry) for entry in entries])

    def _plain_lines(self, entries: PlainEntries) -> bytes:
        """The same from columns, whose texts only have to be put together."""
        ids, ends, times, bodies = entries.columns
        stream, server = (self._encoder.encode(name)[1:-1] for name in (entries.stream, self._end))
        until_data = {
            ms: b'%b","type":"","time":"%b","data":"' % (server, timestamp(int(ms)).encode())
            for ms in set(times.split(b","))
        }
        count, first = len(entries), entries.first_index
        begin = b'"}\n{"id":'  # of a line, and the end of the one before
        pieces = [begin, b"", b',"stream":"%b","index":' % stream, b"", b',"cursor":"%b:%d:' % (stream, entries.chunk),
                  b"", b"", b""] * count  # fmt: skip
        pieces[1::8] = ids.split(b",")
        pieces[3::8] = self._encoder.encode(list(range(first, first + count)))[1:-1].split(b",")
        pieces[5::8] = ends.split(b",")
        pieces[6::8] = map(until_data.__getitem__, times.split(b","))
        pieces[7::8] = self._quoted(bodies.decode())
        pieces[0] = b'{"id":'
        pieces.append(b'"}\n')
        return b"".join(pieces)

    def _quoted(self, bodies: str) -> list[bytes]:
        """Bodies as they stand in JSON, each without its quotes. They are made in one go, and cut apart then."""
        texts = self._encoder.encode(bodies).split(BETWEEN_BODIES)
        texts[0] = texts[0][1:]
        texts[-1] = texts[-1][:-1]
        return texts

    def _entry(self, entry: Entry) -> EntryJson:
        if entry.published_ms != self._ms:
            self._ms, self._time = entry.published_ms, timestamp(entry.published_ms)
        stream = entry.stream
        cursor = f"{stream}:{entry.chunk}:{entry.offset + entry.size}{self._end}"
        try:
            shown = EntryJson(entry.id, stream, entry.index, cursor, entry.type, self._time, entry.body.decode())
        except UnicodeDecodeError:
            shown = EntryJson(entry.id, stream, entry.index, cursor, entry.type, self._time)
            shown.data_base64 = b64encode(entry.body).decode()
        if entry.attributes or entry.expires_ms is not None or entry.kind is not _DATA:
            _add_rare_fields(shown, entry)
        return shown


def _add_rare_fields(shown: EntryJson, entry: Entry) -> None:
    if entry.attributes:
        shown.attributes = Raw(entry.attributes.encode())
    if entry.expires_ms is not None:
        shown.expires = timestamp(entry.expires_ms)
    if entry.kind is not _DATA:
        shown.kind = entry.kind.name.lower()
