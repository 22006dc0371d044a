"""Idempotency keys and producers: the first answer, kept by us in the batch that it answers.

A key is a message on a subject of its own that must not exist yet; a producer's last sequence is one that
must be the newest. So a repeat cannot be stored twice, whichever node it comes to, and nobody has to ask
before the first time: JetStream refuses the repeat, and only then is the first answer looked up.

The ids of an answer are not known before it is stored. They are kept as distances from the key's own
sequence, which is as good: a batch has consecutive sequences.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.engines.jetstream.entry_messages import row
from penstock.engines.jetstream.log_stream import Store, Stored
from penstock.engines.repeats import (
    Address,
    Owner,
    addresses,
    check_key,
    first_answer,
    key_address,
    owner_of,
    sequence_address,
)
from penstock.limits import KEY_SECONDS
from penstock.values import Appended, Batch, Place, Producer

RECENT_KEYS: Final = 100_000
"""Answers in memory, so that a quick repeat needs no question. Over it: the oldest are looked up."""

TTL: Final = f"Nats-TTL: {KEY_SECONDS + 3600}s\r\n".encode()
"""JetStream removes keys by itself, an hour after we stop to honour them."""

"""The subject and the name of a producer."""


class Begun(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where the batch of a key will be, if it is stored: its first entry follows this sequence of the subject."""

    nonce: int
    subject: str
    expected: int


class StoredAnswer(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a key or producer message says."""

    digest: bytes
    made_ms: int
    sequence: int  # of a producer
    appended: Appended  # with distances for ids
    begun: Begun | None = None  # if given, distances are from the batch's first entry, not from this message


_encode = msgspec.msgpack.Encoder().encode
_answers = msgspec.msgpack.Decoder(StoredAnswer)


class HeldAnswer(msgspec.Struct, frozen=True, gc=False):
    """A remembered answer with real ids, and the sequence of the message that holds it."""

    digest: bytes
    made_ms: int
    sequence: int
    appended: Appended
    seq: int


class NotKnown(Exception):
    """Something must be asked for before this can be decided."""


class KnownAnswers:
    """The answers this node has given or met lately, in front of those in the log."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: dict[Address, HeldAnswer] = {}
        self.producers: dict[Owner, HeldAnswer | None] = {}  # None: it is known that there is none

    def remember(self, address: Address, held: HeldAnswer) -> None:
        self._recent.pop(address, None)
        if len(self._recent) >= RECENT_KEYS:
            del self._recent[next(iter(self._recent))]
        self._recent[address] = held

    def find(self, batch: Batch, now_ms: int, *, looked_up: bool) -> Appended | None:
        """The first answer, if *batch* is a repeat. `KeyReused` if its key stands for another one.

        `NotKnown` if only the log can tell, and it was not looked up yet.
        """
        if (key := batch.key) and (held := self._get(key_address(key), now_ms)):
            check_key(key, held.digest)
            return held.appended
        return self._find_sequence(batch, batch.producer, now_ms, looked_up) if batch.producer else None

    def _find_sequence(self, batch: Batch, producer: Producer, now_ms: int, looked_up: bool) -> Appended | None:
        if known := self._get(sequence_address(producer), now_ms):
            return first_answer(batch, producer, known.appended, producer.sequence, known.appended)
        owner = owner_of(producer)
        if owner not in self.producers:
            raise NotKnown
        last = self.producers[owner]
        if last is None or producer.sequence > last.sequence:
            return None
        if not looked_up:
            raise NotKnown
        return first_answer(batch, producer, None, last.sequence, last.appended)

    def _get(self, address: Address, now_ms: int) -> HeldAnswer | None:
        held = self._recent.get(address)
        return held if held and held.made_ms > now_ms - KEY_SECONDS * 1000 else None

    async def look_up(self, batch: Batch, now_ms: int) -> dict[str, int]:
        """Ask the log for everything *batch* could repeat; return the sequences of keys that are too old."""
        old: dict[str, int] = {}
        if producer := batch.producer:
            found = await self._store.last(self._store.subjects.producer(*owner_of(producer)))
            last = _held(found, found.seq) if found else await self._without_subject(producer, now_ms)
            self.producers[owner_of(producer)] = last
        for address, _ in addresses(batch):
            subject = self._store.subjects.key(address)
            found = await self._store.last(subject)
            if found is None:
                continue
            held = await self._resolved(found)
            if held is not None and held.made_ms > now_ms - KEY_SECONDS * 1000:
                self.remember(address, held)
            else:
                old[subject] = found.seq
        return old

    async def _without_subject(self, producer: Producer, now_ms: int) -> HeldAnswer | None:
        """The producer of that name as an older version kept it, for whoever has none of their own yet.

        A job that was stopped before the upgrade and goes on after it would else store again what it had sent.
        """
        last = await self._store.last(self._store.subjects.producer_without_subject(producer.name))
        if last is None:
            return None
        found = await self._store.last(self._store.subjects.key((producer.name, "", str(producer.sequence))))
        if found and (held := _held(found, found.seq)).made_ms > now_ms - KEY_SECONDS * 1000:
            self.remember(sequence_address(producer), held)
        return msgspec.structs.replace(_held(last, last.seq), seq=0)  # under its own subject there is nothing yet

    async def _resolved(self, stored: Stored) -> HeldAnswer | None:
        """What a key stands for; None if its batch was begun and never stored."""
        begun = _answers.decode(stored.data[2:]).begun
        if begun is None:
            return _held(stored, stored.seq)
        found = await self._store.next(begun.subject, begun.expected + 1)
        if found is None or row(found.seq, "", found.data).facts.nonce != begun.nonce:
            return None
        return _held(stored, found.seq)


def encode(digest: bytes, made_ms: int, sequence: int, appended: Appended, begun: Begun | None = None) -> bytes:
    """The data of a key or producer message; *appended* has distances for ids."""
    return _encode(StoredAnswer(digest, made_ms, sequence, appended, begun))


def shifted(appended: Appended, by: int, *, repeated: bool) -> Appended:
    """*appended* with other ids."""
    first, last = appended.first, appended.last
    moved = Place(last.id + by, last.stream, last.index, last.chunk, last.end)
    if first is last:
        return Appended(appended.count, moved, moved, repeated)
    begin = Place(first.id + by, first.stream, first.index, first.chunk, first.end)
    return Appended(appended.count, begin, moved, repeated)


def _held(stored: Stored, origin: int) -> HeldAnswer:
    answer = _answers.decode(stored.data[2:])
    appended = shifted(answer.appended, origin, repeated=True)
    return HeldAnswer(answer.digest, answer.made_ms, answer.sequence, appended, stored.seq)
