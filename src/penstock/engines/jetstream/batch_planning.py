"""Makes one atomic batch out of a group of appends. Pure, but for what it is given to look at.

Ids are not known yet: while it plans, the id of a message is `BASE` plus its place in the batch. JetStream
gives a batch consecutive sequences, so one number, the first, turns all of them into real ids.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from penstock.core.stamp import Stamped, appended_one, stamp, stamp_one
from penstock.engines.jetstream import idempotency_keys
from penstock.engines.jetstream.append_order import AppendJob
from penstock.engines.jetstream.entry_messages import facts_of, payload, side_payload
from penstock.engines.jetstream.frames import NatsMessage
from penstock.engines.jetstream.idempotency_keys import HeldAnswer, KnownAnswers, NotKnown, shifted
from penstock.engines.jetstream.stream_heads import KnownHead, KnownHeads
from penstock.engines.jetstream.subjects import Subjects
from penstock.engines.repeats import Address, Owner, addresses, owner_of
from penstock.errors import PositionMismatch
from penstock.values import Appended, Draft, Entry, Head, Kind, Producer

BASE: Final = 1 << 60
_EXPECT = b"Nats-Expected-Last-Subject-Sequence: %d\r\n"
_ROLLUP = b"Nats-Rollup: sub\r\n"
_encode = msgspec.msgpack.Encoder().encode


class Planned(msgspec.Struct, gc=False, eq=False):
    """What to send for a group, and what follows from it once its first sequence is known."""

    messages: list[NatsMessage]
    answers: list[tuple[AppendJob, Appended]]  # with places for ids
    repeats: list[tuple[AppendJob, Appended]]  # with real ids: nothing is stored for them
    heads: dict[str, Head]
    last_place: dict[str, int]  # of each stream's last entry
    producers: dict[Owner, int]  # places of their messages
    mark: tuple[str, int, int]  # subject, expected sequence and place of its first entry: it finds the batch again
    refused: list[AppendJob]  # something is wrong with them, and they were told

    def real(self, first_seq: int) -> list[tuple[AppendJob, Appended]]:
        """The answers to the jobs that were stored."""
        move = first_seq - BASE
        return [(job, shifted(appended, move, repeated=False)) for job, appended in self.answers]

    def known(self, first_seq: int) -> Iterator[KnownHead]:
        """The heads after it."""
        end, last_place = first_seq + len(self.messages) - 1, self.last_place
        for stream, h in self.heads.items():
            seq = first_seq + last_place[stream]
            yield KnownHead(Head(stream, h.next_index, h.chunk, h.offset, h.subscribers, seq, h.last_ms), seq, end)


class AppendGroup(msgspec.Struct, gc=False, eq=False):
    """Appends that travel as one batch, and how far they have come."""

    jobs: list[AppendJob]
    lanes: Collection[str]
    parts: list[list[AppendJob]]  # groups that have nothing to do with each other
    nonce: int
    born: float
    found: dict[str, KnownHead | None] = {}  # what was asked for; None: there is no such stream
    planned: Planned | None = None
    number: int = 0  # of the question that is open
    sent: float = 0.0  # 0 while it is being mended
    attempts: int = 0
    unsure: bool = False  # it was sent before, and nobody knows what became of it
    settled: bool = False


class Planner:
    """One group in the making."""

    def __init__(
        self, subjects: Subjects, known: KnownHeads, found: dict[str, KnownHead | None], memory: KnownAnswers,
        *, now_ms: int, server: str, nonce: int,
    ) -> None:  # fmt: skip
        self._subjects, self._known, self._found, self._memory = subjects, known, found, memory
        self._now_ms, self._server, self._nonce = now_ms, server, nonce
        self._parts: list[_Part] = []
        self._heads: dict[str, Head] = {}
        self._last_place: dict[str, int] = {}
        self._answers: list[tuple[AppendJob, Appended]] = []
        self._repeats: list[tuple[AppendJob, Appended]] = []
        self._producers: dict[Owner, int] = {}
        self._changed: dict[str, tuple[str, ...]] = {}
        self._refused: list[AppendJob] = []

    def plan(self, jobs: list[AppendJob]) -> Planned:
        """Place every job. What is wrong with one is told to it alone. `NotKnown` says that more must be asked for."""
        for job in jobs:
            try:
                self._place(job)
            except NotKnown:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this job's alone
                _refuse(job.future, error)
                self._refused.append(job)
        for stream, subscribers in self._changed.items():
            subject = self._subjects.subscribers(stream)
            self._parts.append(_Part(subject, _encode(subscribers), None, headers=_ROLLUP))
        messages = list(self._messages(self._parts))
        return Planned(
            messages, self._answers, self._repeats, self._heads, self._last_place, self._producers, self._mark(),
            self._refused,
        )  # fmt: skip

    def _place(self, job: AppendJob) -> None:
        batch = job.batch
        if job.plain and self._place_one(job, batch.drafts[0]):
            return
        if first := self._memory.find(batch, self._now_ms, looked_up=job.looked_up):
            self._repeats.append((job, first))
            return
        found = [] if job.begun else addresses(batch)
        key_count = len(found) + (batch.producer is not None and not job.begun)
        begin = len(self._parts)
        stamped = self._stamped(job, BASE + begin + key_count)
        for address, digest in found:
            self._add_key(job, address, digest, stamped.appended)
        if batch.producer and not job.begun:
            self._add_producer(batch.producer, stamped.appended)
        self._add_entries(stamped)
        self._answers.append((job, stamped.appended))

    def _stamped(self, job: AppendJob, next_id: int) -> Stamped:
        try:
            return stamp(job.batch, self._lookup, next_id=next_id, now_ms=self._now_ms, server=self._server)
        except PositionMismatch as mismatch:
            if mismatch.stream not in self._found:
                raise HeadMissing(mismatch.stream) from None  # it may be us who are behind: the leader decides
            raise

    def _add_key(self, job: AppendJob, address: Address, digest: bytes, appended: Appended) -> None:
        subject = self._subjects.key(address)
        data = self._answer(digest, 0, appended)
        self._parts.append(_Part(subject, data, None, _EXPECT % job.old_keys.get(subject, 0) + idempotency_keys.TTL))

    def _add_producer(self, producer: Producer, appended: Appended) -> None:
        owner = owner_of(producer)
        last = self._memory.producers.get(owner)
        data = self._answer(b"", producer.sequence, appended)
        headers = _EXPECT % (last.seq if last else 0) + _ROLLUP
        self._producers[owner] = len(self._parts)
        self._parts.append(_Part(self._subjects.producer(*owner), data, None, headers))

    def _answer(self, digest: bytes, sequence: int, appended: Appended) -> bytes:
        place = BASE + len(self._parts)
        return idempotency_keys.encode(digest, self._now_ms, sequence, shifted(appended, -place, repeated=True))

    def _add_entries(self, stamped: Stamped) -> None:
        for stream, head in stamped.heads.items():
            before = self._lookup(stream)
            if head.subscribers != (before.subscribers if before else ()):
                self._changed[stream] = head.subscribers
        next_index = {stream: self._next_index(stream) for stream in stamped.heads}
        for entry in stamped.entries:
            if entry.index is not None:
                next_index[entry.stream] = entry.index + 1
            subscribed = bool(stamped.heads[entry.stream].subscribers)
            first = entry.stream not in self._last_place
            headers = _EXPECT % self._expected(entry.stream) if first else b""
            self._last_place[entry.stream] = len(self._parts)
            part = _Part(self._subjects.entry(entry.stream), b"", entry, headers, next_index[entry.stream], subscribed)
            self._parts.append(part)
        self._heads |= stamped.heads

    def _place_one(self, job: AppendJob, draft: Draft) -> bool:
        """The common case: one event that changes nothing but its stream's position. False if it is not that."""
        stream, headers = draft.stream, b""
        head = self._heads.get(stream)
        if head is None:
            known = self._known_now(stream)
            if known is None:
                return False
            head, headers = known.head, _EXPECT % known.seq
        place = len(self._parts)
        stamped = stamp_one(
            stream, draft.body, head, BASE + place, self._now_ms, draft.type, draft.expires_ms, draft.attributes
        )
        if stamped is None:
            return False
        entry, after = stamped
        self._answers.append((job, appended_one(entry)))
        self._last_place[stream] = place
        subject = self._subjects.entry(stream)
        self._parts.append(_Part(subject, b"", entry, headers, after.next_index, bool(after.subscribers)))
        self._heads[stream] = after
        return True

    def _next_index(self, stream: str) -> int:
        head = self._lookup(stream)
        return head.next_index if head else 0

    def _lookup(self, stream: str) -> Head | None:
        if head := self._heads.get(stream):
            return head
        known = self._known_now(stream)
        return known.head if known else None

    def _expected(self, stream: str) -> int:
        known = self._known_now(stream)
        return known.seq if known else 0

    def _known_now(self, stream: str) -> KnownHead | None:
        if known := self._known.get(stream):
            return known
        if stream in self._found:
            return self._found[stream]
        raise HeadMissing(stream)

    # ── what is too long for one batch ─────────────────────────────────────────────────────────

    def beforehand(self, job: AppendJob) -> list[NatsMessage]:
        """What can be stored before the batch of a job that has more messages than JetStream takes at once.

        First the streams that it makes: a crash after that leaves them empty. Then its key, which says where
        the batch will be found if it is stored: whoever meets the key looks there.
        """
        entries = [part for part in self._parts if part.entry is not None]
        made = list(itertools.takewhile(lambda part: part.entry and part.entry.kind is Kind.META, entries))
        return list(self._messages(made or self._begun(job)))

    def _begun(self, job: AppendJob) -> list[_Part]:
        if job.batch.key is None or job.batch.producer:
            return []
        ((address, digest),) = addresses(job.batch)
        ((_, appended),) = self._answers
        subject, expected, place = self._mark()
        distances = shifted(appended, -BASE - place, repeated=True)
        data = idempotency_keys.encode(
            digest, self._now_ms, 0, distances, idempotency_keys.Begun(self._nonce, subject, expected)
        )
        key = self._subjects.key(address)
        return [_Part(key, data, None, _EXPECT % job.old_keys.get(key, 0) + idempotency_keys.TTL)]

    def _mark(self) -> tuple[str, int, int]:
        """Where the first entry goes: its subject, that subject's last sequence, and its place in the batch."""
        for place, part in enumerate(self._parts):
            if part.entry is not None:
                return part.subject, self._expected(part.entry.stream), place
        return "", 0, 0

    def _messages(self, parts: list[_Part]) -> Iterator[NatsMessage]:
        more = len(parts)
        for part in parts:
            more -= 1
            if part.entry is None:
                yield NatsMessage(part.subject, side_payload(more, part.data), part.headers)
            else:
                facts = facts_of(
                    part.entry, next_index=part.next_index, subscribed=part.subscribed, nonce=self._nonce, more=more
                )
                yield NatsMessage(part.subject, payload(facts, part.entry.body), part.headers)


class HeadMissing(NotKnown):
    """A stream's head must be asked for first."""

    def __init__(self, stream: str) -> None:
        self.stream = stream


class _Part(msgspec.Struct, gc=False):
    """One message before it is known how many follow it."""

    subject: str
    data: bytes
    entry: Entry | None
    headers: bytes
    next_index: int = 0
    subscribed: bool = False


def remember(memory: KnownAnswers, planned: Planned, first_seq: int, now_ms: int) -> None:
    """Keep the answers to what was just stored, for repeats that come soon."""
    for job, places in planned.answers:
        if job.plain:
            continue
        batch = job.batch
        again = shifted(places, first_seq - BASE, repeated=True)
        for address, digest in addresses(batch):
            memory.remember(address, HeldAnswer(digest, now_ms, 0, again, 0))
        if batch.producer and (owner := owner_of(batch.producer)) in planned.producers:
            seq = first_seq + planned.producers[owner]
            memory.producers[owner] = HeldAnswer(b"", now_ms, batch.producer.sequence, again, seq)


def _refuse(future: asyncio.Future[Appended], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
