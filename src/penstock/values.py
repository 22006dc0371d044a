"""The values that travel between the layers.

They are `msgspec.Struct`s rather than frozen dataclasses: an `Entry` is made once per publish
and once per row read, and a frozen dataclass of this size costs ten times as much to make
(docs/decisions/0002-values.md has the figures).

`array_like` is how they travel between the processes of one machine (`engines/local`): without the names of their
fields. `Place` and `Appended` keep the names: the file of the embedded engine has answers in that form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, overload

import msgspec


class Kind(IntEnum):
    """What an entry is. The numbers are stored; the names are exported to the lake."""

    DATA = 0  # published by somebody; has an index
    META = 1  # written by the log itself: Created, Subscribed, Rotated …; no index
    PART = 2  # the further pieces of a body too large for one entry; no index, no line
    EXPIRED = 3  # was DATA; its time ran out and the body is gone
    ERASED = 4  # was DATA; somebody asked for the body to go


class Entry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One published event, as the log holds it."""

    id: int  # order within the whole log; only ever compared, it may skip numbers
    stream: str
    index: int | None  # 0, 1, 2 … of the stream's data entries; meta entries have none
    chunk: int
    offset: int  # where its line begins within the chunk
    size: int  # bytes of its line, newline included; 0 for a PART
    kind: Kind
    type: str
    published_ms: int  # the appending node's wall clock: for people, never for ordering
    expires_ms: int | None
    attributes: str  # a compact JSON object of strings; empty for none
    body: bytes

    @property
    def end(self) -> int:
        """The byte after its line: the offset from which a reader goes on."""
        return self.offset + self.size


BETWEEN_BODIES: Final = b"\x7f"
"""Stands between two bodies of `PlainColumns`: a character of text that texts do not have, and JSON writes as it is."""


class PlainColumns(NamedTuple):
    """Events as texts, a column in each. Numbers have commas between them."""

    ids: bytes
    ends: bytes  # where the line of each ends within the chunk
    times: bytes  # milliseconds
    bodies: bytes  # UTF-8, with `BETWEEN_BODIES`


class PlainEntries(Sequence[Entry]):
    """Events that follow each other in one chunk of a stream, without type, attributes or expiry, as columns.

    Lines of JSON are made from the columns directly. For any other use `Entry` objects are made, once.
    """

    __slots__ = ("_entries", "chunk", "columns", "first_id", "first_index", "first_offset", "last_id", "stream")

    def __init__(self, stream: str, first_index: int, chunk: int, first_offset: int, columns: PlainColumns) -> None:
        """There is nothing else of the stream between them: each begins where the one before ends."""
        self.stream, self.chunk, self.columns = stream, chunk, columns
        self.first_index, self.first_offset = first_index, first_offset
        self.first_id, self.last_id = int(columns.ids.partition(b",")[0]), int(columns.ids.rpartition(b",")[2])
        self._entries: list[Entry] | None = None

    def _made(self) -> list[Entry]:
        if self._entries is None:
            self._entries, offset = [], self.first_offset
            ids, ends, times = (map(int, column.split(b",")) for column in self.columns[:3])
            bodies = self.columns.bodies.split(BETWEEN_BODIES)
            for index, (id, end, ms, body) in enumerate(zip(ids, ends, times, bodies, strict=True), self.first_index):
                size = end - offset
                entry = Entry(id, self.stream, index, self.chunk, offset, size, Kind.DATA, "", ms, None, "", body)
                self._entries.append(entry)
                offset = end
        return self._entries

    def __len__(self) -> int:
        return self.columns.ids.count(b",") + 1

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._made())

    @overload
    def __getitem__(self, key: int) -> Entry: ...
    @overload
    def __getitem__(self, key: slice) -> list[Entry]: ...
    def __getitem__(self, key: int | slice) -> Entry | list[Entry]:
        return self._made()[key]


if TYPE_CHECKING:
    Entries = Sequence[Entry]
else:
    Entries = tuple[Entry, ...]  # what msgspec makes of them


class Draft(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An event before it has coordinates."""

    stream: str
    body: bytes
    type: str = ""
    attributes: str = ""
    expires_ms: int | None = None
    kind: Kind = Kind.DATA


class Place(msgspec.Struct, frozen=True, gc=False):
    """The coordinates that an append gave to one entry."""

    id: int
    stream: str
    index: int | None
    chunk: int
    end: int  # the byte after its line


class Expect(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The position the caller believes the stream to be at: an index, or a byte position."""

    stream: str
    index: int | None = None  # the index the next data entry must get
    chunk: int | None = None
    offset: int | None = None


class Key(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An idempotency key: a second batch under it stores nothing and gets the first answer."""

    subject: str
    stream: str
    key: str
    digest: bytes  # of everything the caller sent; another digest under the same key is refused


class Producer(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A writer that numbers its batches for ever; a number not above its last is a repeat."""

    subject: str  # whose it is: a name of another subject is another producer
    name: str
    sequence: int


PlainEvent = tuple[str, bytes]
"""Stream and body of an event that is a batch by itself and asks for nothing else."""


class Batch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What one append stores: all of it, or nothing."""

    drafts: tuple[Draft, ...] = ()
    create: str = ""  # a stream that must not exist yet, while its parent must
    make_missing: bool = True  # make the streams of the drafts, and their parents, as needed
    expect: Expect | None = None
    key: Key | None = None
    producer: Producer | None = None


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where a batch went. A batch without data entries names the last meta entry it wrote."""

    count: int  # data entries
    first: Place
    last: Place
    repeated: bool = False  # nothing was stored now: this is the answer of the first time


class Head(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where a stream goes on. Heads outlive trimming."""

    stream: str
    next_index: int = 0
    chunk: int = 0
    offset: int = 0
    subscribers: tuple[str, ...] = ()
    last_id: int = 0
    last_ms: int = 0


class Page(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a read found, and how far it looked: nothing that matches lies between the two."""

    entries: Entries
    upto: int  # an id: the next read goes on after it
    more: bool  # False when the reader has reached this node's end of the log


class NewItem(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Something a mailbox is asked to keep: a reference to an entry, or a body of its own."""

    message_id: str
    entry_id: int | None = None
    body: bytes = b""
    channel: str = ""
    collapse: str = ""  # a later item with the same channel and collapse key takes its place
    attributes: str = ""
    expires_ms: int | None = None


class Item(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Something a recipient still has to confirm."""

    number: int  # 1, 2, 3 … per recipient and month, without a gap
    stored_ms: int
    message_id: str
    entry_id: int | None
    body: bytes
    channel: str
    collapse: str
    attributes: str
    expires_ms: int | None


class Room(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How much may wait for one recipient in one month. Bytes are those of bodies and attributes."""

    items: int
    bytes: int


class MailboxHead(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a mailbox knows about one recipient in one month."""

    recipient: str
    month: str
    next_number: int = 1
    position: int = 0  # the log id up to which followed entries were forwarded
    channels: tuple[str, ...] = ()
    pending: int = 0
    pending_bytes: int = 0


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A registry record. Versions are opaque, rise, and are never used twice."""

    key: str
    value: bytes
    version: int
    expires_ms: int | None = None
