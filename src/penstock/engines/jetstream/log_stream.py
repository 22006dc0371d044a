"""The log's JetStream stream: how it is made, and single questions to it.

Questions go to its leader, but for `page`. A direct get may be answered by a server that is behind. Every server has a
prefix of the log, so what it returns is complete up to the last message that it returned; only where it stops short is
the leader asked whether anything follows.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from penstock.engines.jetstream.connection import (
    ELECTING_SECONDS,
    REQUEST_SECONDS,
    JetStreamRefused,
    NatsConnection,
    header,
    status,
)
from penstock.engines.jetstream.entry_messages import LogRow, row
from penstock.engines.jetstream.frames import NatsMessage
from penstock.engines.jetstream.newest_messages import AWAY, CellsMissing, api, ask
from penstock.engines.jetstream.subjects import Subjects
from penstock.errors import ConfigInvalid, EngineGone

PLACING_SECONDS: Final = 10.0
"""For JetStream to find servers for a new stream: just after the start of a cluster some still count as offline."""

NO_MESSAGE: Final = 10037
_EXISTS, _NO_PEERS = 10058, 10005
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
        rows, pending = await self._direct(subject, seq, asked, limit_bytes)
        found = [row for row in rows if row.seq <= upto]
        if len(found) < len(rows):
            return found, True
        following = (rows[-1].seq if rows else seq - 1) + 1
        if following > upto:
            return found, True
        if rows and (pending or len(rows) >= asked):
            return found, False
        # The server that answered may be behind, or the next message is too large: the leader knows what follows.
        missed = await self.next(subject, following)
        if missed is None or missed.seq > upto:
            return found, True
        if not rows:
            found.append(row(missed.seq, self.subjects.name(missed.subject), missed.data))
        return found, found[-1].seq == upto

    async def first(self, subject: str, seq: int) -> LogRow | None:
        """The first message of an `e` subject at or after a sequence. Only where a server has none is the leader asked.

        What the leader answers is base64 in JSON: to decode that took most of the CPU of a read.
        """
        question = msgspec.json.encode({"seq": max(1, seq), "next_by_subj": subject})
        try:
            headers, data = await self.connection.request(f"$JS.API.DIRECT.GET.{self.subjects.stream}", question)
        except EngineGone:  # the server that was to answer is gone
            headers = None
        if headers is not None and status(headers) == 0:
            return self._row(headers, data)
        found = await self.next(subject, seq)
        return row(found.seq, self.subjects.name(found.subject), found.data) if found else None

    def _row(self, headers: bytes, data: bytes) -> LogRow:
        """What a direct get has answered."""
        name = self.subjects.name(header(headers, b"Nats-Subject").decode())
        return row(int(header(headers, b"Nats-Sequence")), name, data)

    async def _direct(self, subject: str, seq: int, limit: int, limit_bytes: int) -> tuple[list[LogRow], int]:
        """Up to *limit* messages from any server, one after the other; perhaps fewer than there are, and how many."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        rows: list[LogRow] = []
        pending = 0

        def take(headers: bytes | None, data: bytes) -> bool:
            nonlocal pending
            if headers is not None and status(headers) == 0:
                rows.append(self._row(headers, data))
                return False
            pending = int(header(headers, b"Nats-Num-Pending") or 0)
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
        return _unbroken(rows), pending


def _unbroken(rows: list[LogRow]) -> list[LogRow]:
    """Messages in rising order; what came after a mix-up is left out."""
    for place in range(1, len(rows)):
        if rows[place].seq <= rows[place - 1].seq:
            return rows[:place]
    return rows


_answers = msgspec.json.Decoder(_Answer)
_infos = msgspec.json.Decoder(_Info)


def _config(subjects: Subjects, replicas: int) -> dict[str, Any]:
    return {
        "name": subjects.stream,
        "subjects": [subjects.all],
        "retention": "limits",
        "storage": "file",
        "num_replicas": replicas,
        "max_msgs_per_subject": -1,
        "max_age": 0,
        "discard": "new",  # at a limit of the account: refuse, never drop what was acknowledged
        "allow_direct": True,
        "allow_atomic": True,
        "allow_msg_ttl": True,
        "allow_rollup_hdrs": True,
        "deny_delete": False,
        "deny_purge": False,
    }


async def make_stream(connection: NatsConnection, subjects: Subjects, replicas: int) -> None:
    """See that the stream is there as it must be. One with other settings is refused, and left as it is."""
    config, name = _config(subjects, replicas), subjects.stream
    try:
        answer = await api(connection, f"STREAM.INFO.{name}", patience=ELECTING_SECONDS)
    except CellsMissing:
        answer = msgspec.json.decode(await _create(connection, name, config))
    except JetStreamRefused as refused:
        raise EngineGone(f"JetStream does not show {name}: {refused.description}") from refused
    found = answer["config"]
    for setting, wanted in config.items():
        if found.get(setting, False) != wanted:
            raise ConfigInvalid(
                "log.engine",
                f"JetStream's stream {name} has {setting} = {found.get(setting)}, not {wanted}",
                remedy=_remedy(setting, found.get(setting)),
            )


async def _create(connection: NatsConnection, name: str, config: dict[str, Any]) -> bytes:
    begun = time.monotonic()
    while True:
        try:
            return await connection.api(f"STREAM.CREATE.{name}", config)
        except EngineGone:  # a leader that dies takes the question along; the same one again changes nothing
            if time.monotonic() - begun > ELECTING_SECONDS or connection.hopeless:
                raise
        except JetStreamRefused as refused:
            if refused.code == _EXISTS:
                return await ask(connection, f"STREAM.INFO.{name}", patience=ELECTING_SECONDS)  # another was quicker
            placing = refused.code == _NO_PEERS
            patience = PLACING_SECONDS if placing else ELECTING_SECONDS if refused.code in AWAY else 0.0
            if time.monotonic() - begun > patience:
                gone = EngineGone(f"JetStream does not make {name}: {refused.description}")
                gone.remedy = "Give the cluster enough servers with JetStream, or set log.replicas to fewer."
                raise gone from refused
        await asyncio.sleep(0.2)


def _remedy(setting: str, found: object) -> str:
    if setting == "num_replicas":
        return f"Set log.replicas={found}, or change the streams with 'nats stream edit --replicas'."
    return "Give this cluster another log.prefix, or change the stream with the nats program."
