"""Entries as Penstock's API shows them: one JSON object each."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.values import Entry, Kind, PlainEntries
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


class _Times(dict[int, str]):
    """The texts of times, each made once."""

    def __missing__(self, ms: int) -> str:
        self[ms] = text = timestamp(ms)
        return text


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
            return self._encoder.encode_lines(self._plain(entries))
        return self._encoder.encode_lines([self._entry(entry) for entry in entries])

    def _plain(self, entries: PlainEntries) -> list[EntryJson]:
        """The same of rows, whose bodies are JSON already."""
        stream, times, shown = entries.stream, _Times(), []
        before, after, offset = f"{stream}:{entries.chunk}:", self._end, entries.first_offset
        for index, (id, size, ms, body) in enumerate(entries.rows, entries.first_index):
            offset += size
            shown.append(EntryJson(id, stream, index, f"{before}{offset}{after}", "", times[ms], cast("str", body)))
        return shown

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
