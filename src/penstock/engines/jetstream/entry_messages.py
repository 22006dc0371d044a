"""How an entry is one JetStream message, and a head another.

    payload = size of the facts (2 bytes) · facts (MessagePack) · body

The id is not in it: it is the message's sequence, which nobody knows before it is stored. Each entry says
how its stream goes on after it, so the last message of a subject is the stream's head, and a *head message*
(`HEAD`) repeats that above the trim point when no entry is left to say it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.values import Entry, Head, Kind

HEAD: Final = 9
"""The kind of a message that is no entry: it only says how its stream goes on."""


class Facts(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What is known about a message besides its body."""

    kind: int
    index: int | None
    chunk: int
    offset: int
    size: int
    type: str
    published_ms: int
    expires_ms: int | None
    attributes: str
    next_index: int  # of the stream after it
    subscribed: bool  # somebody subscribes to the stream: the `s` subject says who
    nonce: int  # of the append that stored it: an appender that lost its acknowledgement recognises its message by this
    more: int  # messages that follow in the same batch
    last_id: int = 0  # HEAD only: the id of the stream's last entry
    last_ms: int = 0  # HEAD only: and its time


class Side(msgspec.Struct, frozen=True, gc=False):
    """A message of any other subject: two bytes say how many follow in its batch, the rest is its own."""

    seq: int
    subject: str
    more: int
    data: bytes


class LogRow(msgspec.Struct, frozen=True, gc=False):
    """A message of an `e` subject as it was read."""

    seq: int
    stream: str
    facts: Facts
    body: bytes

    @property
    def more(self) -> int:
        """Messages that follow in the same batch."""
        return self.facts.more

    @property
    def at(self) -> int:
        """The index that it stands at: its own, of a part its first piece's, of others the next entry's."""
        f = self.facts
        if f.index is not None:
            return f.index
        return f.next_index - (f.size == 0 and f.kind != HEAD)

    @property
    def is_line(self) -> bool:
        """It has a line of its own in its chunk: neither a part nor a head."""
        return self.facts.size > 0

    def buried(self, kind: Kind) -> LogRow:
        """The same as a tombstone: everything but its coordinates is gone."""
        facts = msgspec.structs.replace(self.facts, kind=int(kind), type="", attributes="", nonce=0, more=0)
        return LogRow(self.seq, self.stream, facts, b"")

    def entry(self) -> Entry:
        """Its entry. A row of kind `HEAD` has none."""
        f = self.facts
        return Entry(
            self.seq, self.stream, f.index, f.chunk, f.offset, f.size, _KINDS[f.kind], f.type, f.published_ms,
            f.expires_ms, f.attributes, self.body,
        )  # fmt: skip

    def head(self, subscribers: tuple[str, ...]) -> Head:
        """How the stream goes on after it."""
        f = self.facts
        if f.kind == HEAD:
            return Head(self.stream, f.next_index, f.chunk, f.offset, subscribers, f.last_id, f.last_ms)
        return Head(self.stream, f.next_index, f.chunk, f.offset + f.size, subscribers, self.seq, f.published_ms)


_KINDS = {int(kind): kind for kind in Kind}
_encode = msgspec.msgpack.Encoder().encode
_facts = msgspec.msgpack.Decoder(Facts)


def payload(facts: Facts, body: bytes) -> bytes:
    """The bytes to store."""
    encoded = _encode(facts)
    return len(encoded).to_bytes(2, "big") + encoded + body


def row(seq: int, stream: str, data: bytes) -> LogRow:
    """What was stored."""
    end = 2 + (data[0] << 8 | data[1])
    return LogRow(seq, stream, _facts.decode(data[2:end]), data[end:])


def side_payload(more: int, data: bytes) -> bytes:
    """The bytes to store for a message beside the entries."""
    return more.to_bytes(2, "big") + data


def side(seq: int, subject: str, data: bytes) -> Side:
    """What was stored beside the entries."""
    return Side(seq, subject, int.from_bytes(data[:2], "big"), data[2:])


def facts_of(entry: Entry, *, next_index: int, subscribed: bool, nonce: int, more: int) -> Facts:
    """The facts of an entry that is about to be stored."""
    return Facts(
        int(entry.kind), entry.index, entry.chunk, entry.offset, entry.size, entry.type, entry.published_ms,
        entry.expires_ms, entry.attributes, next_index, subscribed, nonce, more,
    )  # fmt: skip


def head_facts(head: Head, now_ms: int, more: int = 0) -> Facts:
    """The facts of a message that only keeps a head."""
    return Facts(
        HEAD, None, head.chunk, head.offset, 0, "", now_ms, None, "", head.next_index, bool(head.subscribers), 0, more,
        head.last_id, head.last_ms,
    )  # fmt: skip
