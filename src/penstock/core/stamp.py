"""Gives the drafts of a batch their coordinates. Pure: every engine uses it, none decides itself.

For each draft: the stream's next index, and the place of its line in the stream's current chunk.
Around them the meta entries that the log writes itself:

    a stream that is made      Created in it, ChildStreamCreated in its parent
    a chunk that is full       Rotated as its last line, Created as the first of the next

A chunk is full when its length before the batch plus the batch's data lines is over 8 MiB; the
batch that finds it full still goes into it whole, so a chunk never splits a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.core.names import ROOT, announces_children, check_name, parent
from penstock.errors import InputInvalid, NotFound, PositionMismatch, StreamExists, TooLarge
from penstock.limits import ATTRIBUTES_BYTES, BATCH_BYTES, BATCH_ENTRIES, CHUNK_BYTES, ENTRY_BYTES, TYPE_BYTES
from penstock.values import Appended, Batch, Draft, Entry, Expect, Head, Kind, Place
from penstock.wire import eventhorizon

Lookup = Callable[[str], Head | None]
_DATA = Kind.DATA


class Stamped(msgspec.Struct, frozen=True, gc=False):
    """A batch with coordinates: what to store, the heads that follow, what to answer."""

    entries: list[Entry]
    heads: dict[str, Head]
    appended: Appended


def check_batch(batch: Batch) -> int:
    """Refuse a batch that no engine takes; return the bytes of its bodies."""
    if len(batch.drafts) == 1:  # nearly every batch
        [draft] = batch.drafts
        if len(draft.body) <= ENTRY_BYTES and not draft.type and not draft.attributes:
            return len(draft.body)
    if len(batch.drafts) > BATCH_ENTRIES:
        raise TooLarge("batch entries", len(batch.drafts), BATCH_ENTRIES)
    total = 0
    for draft in batch.drafts:
        size = len(draft.body)
        if size > ENTRY_BYTES:
            raise TooLarge("entry bytes", size, ENTRY_BYTES)
        if draft.type or draft.attributes:
            _check_texts(draft)
        total += size
    if total > BATCH_BYTES:
        raise TooLarge("batch bytes", total, BATCH_BYTES)
    return total


def _check_texts(draft: Draft) -> None:
    for what, text, limit in (("type", draft.type, TYPE_BYTES), ("attributes", draft.attributes, ATTRIBUTES_BYTES)):
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise InputInvalid(what, "is not text: it has half of a surrogate pair") from None
        if size > limit:
            raise TooLarge(f"{what} bytes", size, limit)


def stamp(batch: Batch, lookup: Lookup, *, next_id: int, now_ms: int, server: str) -> Stamped:
    """Return *batch* with coordinates; ids count up from *next_id*.

    Raises what is wrong with the batch before anything is decided: *lookup* is only read.
    """
    if batch.expect:
        _check_expected(batch.expect, lookup(batch.expect.stream))
    if len(batch.drafts) == 1 and not batch.create:
        draft = batch.drafts[0]
        head = lookup(draft.stream)
        if head and draft.kind is _DATA:
            one = stamp_one(
                draft.stream, draft.body, head, next_id, now_ms, draft.type, draft.expires_ms, draft.attributes
            )
            if one is not None:
                entry, after = one
                return Stamped([entry], {draft.stream: after}, appended_one(entry))
    work = _Work(lookup, next_id, now_ms, server)
    if batch.create:
        work.create(batch.create)
    for draft in batch.drafts:
        work.add(draft, batch.make_missing)
    work.rotate_full_chunks()
    return work.result()


def stamp_one(
    stream: str, body: bytes, head: Head, id: int, now_ms: int, type: str = "", expires_ms: int | None = None,
    attributes: str = "",
) -> tuple[Entry, Head] | None:  # fmt: skip
    """The common case, without the machinery: one event for a stream that exists. None if its chunk is full."""
    index, chunk, offset = head.next_index, head.chunk, head.offset
    size = eventhorizon.line_size(body, index)
    end = offset + size
    if end > CHUNK_BYTES:
        return None
    entry = Entry(id, stream, index, chunk, offset, size, _DATA, type, now_ms, expires_ms, attributes, body)
    return entry, Head(stream, index + 1, chunk, end, head.subscribers, id, now_ms)


def appended_one(entry: Entry) -> Appended:
    """The answer to a batch of this one entry."""
    place = _place(entry)
    return Appended(1, place, place)


def _check_expected(expect: Expect, head: Head | None) -> None:
    found = head or Head(expect.stream)
    if expect.index is not None and expect.index != found.next_index:
        raise PositionMismatch(expect.stream, f"index {expect.index}", f"index {found.next_index}")
    if expect.chunk is not None and (expect.chunk, expect.offset) != (found.chunk, found.offset):
        raise PositionMismatch(expect.stream, f"{expect.chunk}:{expect.offset}", f"{found.chunk}:{found.offset}")


class _Open:
    """A stream's head while the batch is being placed."""

    __slots__ = ("chunk", "data_bytes", "head", "index", "last_id", "offset", "subscribers")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.index, self.chunk, self.offset = head.next_index, head.chunk, head.offset
        self.subscribers = head.subscribers
        self.last_id = head.last_id
        self.data_bytes = 0

    @property
    def touched(self) -> bool:
        """Something was placed in it; otherwise it was only looked at."""
        return self.last_id != self.head.last_id

    def close(self, now_ms: int) -> Head:
        return Head(self.head.stream, self.index, self.chunk, self.offset, self.subscribers, self.last_id, now_ms)


class _Work:
    """One batch in the making."""

    __slots__ = ("_count", "_entries", "_first", "_last", "_lookup", "_next_id", "_now_ms", "_open", "_server", "_ts")

    def __init__(self, lookup: Lookup, next_id: int, now_ms: int, server: str) -> None:
        self._lookup, self._next_id, self._now_ms, self._server = lookup, next_id, now_ms, server
        self._entries: list[Entry] = []
        self._open: dict[str, _Open] = {}
        self._ts = ""
        self._first: Entry | None = None
        self._last: Entry | None = None
        self._count = 0

    def create(self, name: str) -> None:
        """Make a stream because somebody asked for it by name."""
        if self._find(name):
            raise StreamExists(name)
        above = parent(name)
        if name != ROOT and not self._find(above):
            raise NotFound("stream", above, code="parent_missing", remedy="Create the parent stream first.")
        self._make(name, announce=True)

    def add(self, draft: Draft, make_missing: bool) -> None:
        stream = self._open.get(draft.stream) or self._find(draft.stream)
        if stream is None:
            if not make_missing:
                raise NotFound("stream", draft.stream, code="stream_missing", remedy="Create the stream first.")
            stream = self._make_with_parents(draft.stream)
        if draft.kind is Kind.META:
            self._put_meta(stream, draft.type, draft.body)
        else:
            self._put(stream, draft)

    def rotate_full_chunks(self) -> None:
        for stream in list(self._open.values()):
            if not stream.touched or stream.head.offset + stream.data_bytes <= CHUNK_BYTES:
                continue
            name = stream.head.stream
            self._meta(stream, "Rotated", eventhorizon.rotated(name, stream.chunk + 1, self._server, self._time()))
            stream.chunk, stream.offset = stream.chunk + 1, 0
            self._meta(stream, "Created", eventhorizon.created(stream.subscribers, self._time()))

    def result(self) -> Stamped:
        heads = {name: stream.close(self._now_ms) for name, stream in self._open.items() if stream.touched}
        last = self._last or (self._entries[-1] if self._entries else None)
        if last is None:
            raise ValueError("a batch must store something")
        appended = Appended(self._count, _place(self._first or last), _place(last))
        return Stamped(self._entries, heads, appended)

    def _find(self, name: str) -> _Open | None:
        if found := self._open.get(name):
            return found
        head = self._lookup(name)
        if head is None:
            return None
        opened = self._open[name] = _Open(head)
        return opened

    def _make_with_parents(self, name: str) -> _Open:
        above = parent(name)
        if name != ROOT and not self._find(above):
            self._make_with_parents(above)
        return self._make(name, announce=announces_children(name))

    def _make(self, name: str, *, announce: bool) -> _Open:
        stream = self._open[name] = _Open(Head(check_name(name)))
        self._meta(stream, "Created", eventhorizon.created((), self._time()))
        if announce and name != ROOT:
            payload = eventhorizon.child_stream_created(name, self._server, self._time())
            self._meta(self._open[parent(name)], "ChildStreamCreated", payload)
        return stream

    def _put(self, stream: _Open, draft: Draft) -> None:
        """Place a data entry, or a further part of one."""
        if draft.kind is Kind.PART:
            index, size = None, 0
        else:
            index = stream.index
            size = eventhorizon.line_size(draft.body, index)
            stream.index += 1
        entry = Entry(
            self._next_id, draft.stream, index, stream.chunk, stream.offset, size, draft.kind,
            draft.type, self._now_ms, draft.expires_ms, draft.attributes, draft.body,
        )  # fmt: skip
        stream.offset += size
        stream.data_bytes += size
        stream.last_id = self._next_id
        self._next_id += 1
        self._entries.append(entry)
        if index is not None:
            self._count += 1
            self._last = entry
            if self._first is None:
                self._first = entry

    def _put_meta(self, stream: _Open, type: str, payload: bytes) -> None:
        """Place a meta entry that a door asked for; a subscription changes the head with it."""
        if type in ("Subscribed", "Unsubscribed"):
            who = msgspec.json.decode(payload)["subscription_id"]
            others = tuple(s for s in stream.subscribers if s != who)
            stream.subscribers = (*others, who) if type == "Subscribed" else others
        self._meta(stream, type, payload)

    def _meta(self, stream: _Open, type: str, payload: bytes) -> None:
        size = eventhorizon.meta_size(type, len(payload))
        entry = Entry(
            self._next_id, stream.head.stream, None, stream.chunk, stream.offset, size, Kind.META,
            type, self._now_ms, None, "", payload,
        )  # fmt: skip
        self._entries.append(entry)
        stream.offset += size
        stream.last_id = self._next_id
        self._next_id += 1

    def _time(self) -> str:
        if not self._ts:
            self._ts = eventhorizon.timestamp(self._now_ms)
        return self._ts


def _place(entry: Entry) -> Place:
    return Place(entry.id, entry.stream, entry.index, entry.chunk, entry.offset + entry.size)
