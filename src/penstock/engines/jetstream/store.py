"""Single questions to the log's JetStream stream. All go to its leader, but for `page`, which says how.

A direct get may be answered by a server that is behind. Every server has a prefix of the log, so what it
returns is complete up to the last message that it returned; only where it stops short is the leader asked
whether anything follows.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from penstock.engines.jetstream.cells import CellsMissing, ask
from penstock.engines.jetstream.connection import (
    ELECTING_SECONDS,
    REQUEST_SECONDS,
    JetStreamRefused,
    NatsConnection,
    header,
    status,
)
from penstock.engines.jetstream.frames import NatsMessage
from penstock.engines.jetstream.rows import LogRow, row
from penstock.engines.jetstream.subjects import Subjects
from penstock.errors import EngineGone

NO_MESSAGE: Final = 10037
PAGE_MESSAGES: Final = 1_024
"""Messages of one direct get, and at most a page's bytes: more would fill the connection for the others."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """One message, as JetStream keeps it."""

    seq: int
    subject: str
    data: bytes


class _Got(msgspec.Struct):
    seq: int
    subject: str
    data: str = ""


class _Answer(msgspec.Struct):
    message: _Got


class StreamState(msgspec.Struct):
    """A part of what JetStream says about a stream."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    num_subjects: int = 0
    subjects: dict[str, int] | None = None


class _Info(msgspec.Struct):
    state: StreamState
    total: int = 0


class _Purged(msgspec.Struct):
    purged: int = 0


class Store:
    """The stream of one log."""

    def __init__(self, connection: NatsConnection, subjects: Subjects) -> None:
        self.connection, self.subjects = connection, subjects
        self.patience = ELECTING_SECONDS  # a new stream has no leader yet; less will do once the log is open

    # ── the leader ─────────────────────────────────────────────────────────────────────────────

    async def last(self, subject: str) -> Stored | None:
        """The newest message of a subject."""
        return await self._get({"last_by_subj": subject})

    async def at(self, seq: int) -> Stored | None:
        """The message with this sequence."""
        return await self._get({"seq": seq}) if seq > 0 else None

    async def next(self, subject: str, seq: int) -> Stored | None:
        """The first message of a subject at or after a sequence."""
        return await self._get({"seq": max(1, seq), "next_by_subj": subject})

    async def _get(self, question: dict[str, object]) -> Stored | None:
        try:
            data = await self._ask("STREAM.MSG.GET", question)
        except JetStreamRefused as error:
            if error.code == NO_MESSAGE:
                return None
            raise EngineGone(str(error)) from error
        got = _answers.decode(data).message
        return Stored(got.seq, got.subject, b64decode(got.data))

    async def state(self) -> StreamState:
        """Sizes and sequences."""
        return (await self._info({})).state

    async def names(self, subject: str) -> AsyncIterator[list[str]]:
        """All streams with messages under an `e` subject, as many at a time as JetStream likes to tell."""
        count = 0
        while True:
            info = await self._info({"subjects_filter": subject, "offset": count})
            page = info.state.subjects or {}
            yield [self.subjects.name(name) for name in page]
            count += len(page)
            if not page or count >= info.total:
                return

    async def _info(self, question: dict[str, object]) -> _Info:
        try:
            return _infos.decode(await self._ask("STREAM.INFO", question))
        except JetStreamRefused as error:
            raise EngineGone(str(error)) from error

    async def _ask(self, call: str, question: dict[str, object]) -> bytes:
        """Ask its leader; again while there is none."""
        name = self.subjects.stream
        try:
            return await ask(self.connection, f"{call}.{name}", question, patience=self.patience)
        except CellsMissing:
            raise EngineGone(f"JetStream has no stream {name} any more") from None

    async def purge(self, subject: str, upto: int) -> int:
        """Drop the messages of a subject up to a sequence; return how many went."""
        question = {"filter": subject, "seq": upto + 1}
        try:
            data = await self.connection.api(f"STREAM.PURGE.{self.subjects.stream}", question, within=60)
        except JetStreamRefused as error:
            raise EngineGone(str(error)) from error
        return msgspec.json.decode(data, type=_Purged).purged

    async def delete(self, seq: int) -> None:
        """Remove one message and overwrite its bytes."""
        try:
            await self._ask("STREAM.MSG.DELETE", {"seq": seq})
        except JetStreamRefused as error:
            if error.code not in (NO_MESSAGE, 10057):
                raise EngineGone(str(error)) from error

    # ── pages ──────────────────────────────────────────────────────────────────────────────────

    async def page(
        self, subject: str, seq: int, upto: int, *, limit: int, limit_bytes: int
    ) -> tuple[list[LogRow], bool]:
        """Messages of an `e` subject with sequences from *seq* to *upto*; and whether none is left there."""
        if seq > upto:
            return [], True
        asked = min(limit, PAGE_MESSAGES)
        rows = await self._direct(subject, seq, asked, limit_bytes)
        found = [row for row in rows if row.seq <= upto]
        if len(found) < len(rows):
            return found, True
        following = (rows[-1].seq if rows else seq - 1) + 1
        if following > upto:
            return found, True
        if len(rows) >= asked:
            return found, False
        # The server that answered may be behind, or has stopped at the bytes: the leader knows what follows.
        missed = await self.next(subject, following)
        if missed is None or missed.seq > upto:
            return found, True
        if not rows:
            found.append(row(missed.seq, self.subjects.name(missed.subject), missed.data))
        return found, found[-1].seq == upto

    async def _direct(self, subject: str, seq: int, limit: int, limit_bytes: int) -> list[LogRow]:
        """Up to *limit* messages from any server, one after the other; perhaps fewer than there are."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        rows: list[LogRow] = []

        def take(headers: bytes | None, data: bytes) -> bool:
            code = status(headers)
            if code == 0:
                name = self.subjects.name(header(headers, b"Nats-Subject").decode())
                rows.append(row(int(header(headers, b"Nats-Sequence")), name, data))
                return False
            if not done.done():
                done.set_result(None)
            return True

        question = {"seq": max(1, seq), "batch": limit, "max_bytes": limit_bytes + 65_536, "next_by_subj": subject}
        message = NatsMessage(f"$JS.API.DIRECT.GET.{self.subjects.stream}", msgspec.json.encode(question))
        number = self.connection.ask(message, take)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await done
        except TimeoutError:
            pass  # what came is still a part of the log, in order; the leader is asked for the next
        finally:
            self.connection.forget(number)
        return _unbroken(rows)


def _unbroken(rows: list[LogRow]) -> list[LogRow]:
    """Messages in rising order; what came after a mix-up is left out."""
    for place in range(1, len(rows)):
        if rows[place].seq <= rows[place - 1].seq:
            return rows[:place]
    return rows


_answers = msgspec.json.Decoder(_Answer)
_infos = msgspec.json.Decoder(_Info)
