"""The newest message of each subject, in a JetStream stream: registry and mailboxes are made of these.

Reads go to the stream's leader (`STREAM.MSG.GET`, `STREAM.INFO`): another replica could answer with the past. Only
`soonest`, for expiry, reads any replica; what it finds is checked by sequence when it is removed.
A cell's sequence is its version. As a subject holds one message, a sequence is there exactly as long as it
is the newest of its subject, and removing by sequence is a compare-and-set of its own.
"""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import msgspec
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from penstock.engines.jetstream.connection import ELECTING_SECONDS, JetStreamRefused, NatsConnection
from penstock.engines.jetstream.frames import NatsMessage
from penstock.errors import ConfigInvalid, EngineGone

T = TypeVar("T")
Scanned = tuple[str, int, dict[str, str]]  # subject, sequence, headers

EXPIRES = "Penstock-Expires"
"""Header: the time, in ms since 1970, from which a cell counts as absent."""

NET_SECONDS = 3600
"""JetStream removes a cell this long after its time: a net, for what we did not remove ourselves."""

PATIENCE_SECONDS = 6.0
_TRY_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
_ABREAST = 64  # requests of one call that are under way at once
_BATCHES = 12  # of one stream at once: the server takes 50 from all nodes together
_PAGE = 1_000

NO_STREAM, NO_MESSAGE, NOT_DELETED, EXISTS = 10059, 10037, 10057, 10058
STALE = (10071, 10164)  # as stored; as others on their way will leave it
AWAY = (503, 10005, 10008, 10009, 10039, 10076, 10118)  # no leader, not yet, not here, no peer yet: ask again
_TOO_MANY = (10210, 10211)  # batches in flight


class Expiring(NamedTuple):
    """A cell that expires."""

    expires_ms: int
    subject: str
    sequence: int


class Stale(Exception):
    """A cell is at another sequence than expected. Nothing was stored."""


class Unsure(Exception):
    """No answer came: it may have been stored, or may still be."""


class CellsMissing(Exception):
    """There is no such JetStream stream."""


class Home(msgspec.Struct, frozen=True):
    """Where cells live: in a namespace of a cluster of NATS servers."""

    connection: NatsConnection
    prefix: str
    replicas: int


class Cell(msgspec.Struct, frozen=True):
    """The newest message of a subject."""

    subject: str
    sequence: int
    data: bytes
    headers: dict[str, str]


class Write(msgspec.Struct, frozen=True):
    """A cell to be stored."""

    subject: str
    data: bytes
    expires_ms: int | None = None
    expect: int | None = None  # the sequence that the subject must be at; 0: no message
    net_seconds: int = NET_SECONDS

    def message(self, root: str, now_ms: int) -> NatsMessage:
        """It as JetStream wants it."""
        lines = ""
        if self.expires_ms is not None:
            ttl = max(self.expires_ms - now_ms, 0) // 1000 + self.net_seconds
            lines += f"{EXPIRES}: {self.expires_ms}\r\nNats-TTL: {ttl}s\r\n"
        if self.expect is not None:
            lines += f"Nats-Expected-Last-Subject-Sequence: {self.expect}\r\n"
        return NatsMessage(root + self.subject, self.data, lines.encode())


class Cells:
    """The cells of one JetStream stream, by subject."""

    def __init__(self, home: Home, name: str) -> None:
        self._home, self._connection = home, home.connection
        self.stream = f"{home.prefix}_{name}"
        self.root = f"{home.prefix}.{name}."
        self._batches = asyncio.Semaphore(_BATCHES)

    # ── the stream itself ──────────────────────────────────────────────────────────────────────

    async def make(self) -> bool:
        """See that the stream is there; False if it was. One that is made in another way is refused."""
        made = False
        try:
            answer = await self._info()
        except CellsMissing:
            answer, made = await self._create(), True
        found = answer["config"]
        for name, wanted in self._config().items():
            if found.get(name, False) != wanted:
                raise ConfigInvalid(
                    "log.engine",
                    f"JetStream's stream {self.stream} has {name} = {found.get(name)}, not {wanted}",
                    remedy="Give this cluster another log.prefix, or change the stream with the nats program.",
                )
        return made

    async def _create(self) -> dict[str, Any]:
        try:
            call = f"STREAM.CREATE.{self.stream}"
            return await api(self._connection, call, self._config(), patience=ELECTING_SECONDS)
        except JetStreamRefused as error:
            if error.code != EXISTS:
                raise error.told(f"make {self.stream}") from error
            return await self._info()  # another node was faster

    async def _info(self) -> dict[str, Any]:
        return await api(self._connection, f"STREAM.INFO.{self.stream}", patience=ELECTING_SECONDS)

    def _config(self) -> dict[str, Any]:
        return {
            "name": self.stream,
            "subjects": [self.root + ">"],
            "retention": "limits",
            "storage": "file",
            "num_replicas": self._home.replicas,
            "max_msgs_per_subject": 1,
            "discard": "old",
            "allow_direct": False,
            "allow_atomic": True,
            "allow_msg_ttl": True,
        }

    async def drop(self) -> bool:
        """Drop the stream with all that is in it; False if it was not there."""
        return await drop_stream(self._connection, self.stream)

    # ── reading, from the leader ───────────────────────────────────────────────────────────────

    async def get(self, subject: str) -> Cell | None:
        """The cell of *subject*, if there is one. `CellsMissing` without the stream."""
        try:
            answer = await self._api(f"STREAM.MSG.GET.{self.stream}", {"last_by_subj": self.root + subject})
        except JetStreamRefused as error:
            if error.code == NO_MESSAGE:
                return None
            raise EngineGone(f"JetStream does not read {self.stream}: {error}") from error
        found = answer["message"]
        headers = _headers(b64decode(found["hdrs"])) if "hdrs" in found else {}
        name = found["subject"].removeprefix(self.root)
        return Cell(name, found["seq"], b64decode(found.get("data", "")), headers)

    async def get_all(self, subjects: Iterable[str]) -> list[Cell]:
        """Those of these cells that are there, in the order asked for."""
        found = await _abreast([self.get(subject) for subject in subjects])
        return [cell for cell in found if cell is not None]

    async def subjects(self, pattern: str) -> list[str]:
        """The subjects that match *pattern* and have a cell, in no order. `CellsMissing` without the stream."""
        found: list[str] = []
        while True:
            wanted = {"subjects_filter": self.root + pattern, "offset": len(found)}
            answer = await self._api(f"STREAM.INFO.{self.stream}", wanted)
            page = answer["state"].get("subjects") or {}
            found += [subject.removeprefix(self.root) for subject in page]
            if not page or len(found) >= answer.get("total", 0):
                return found

    async def soonest(self, patterns: Sequence[str], limit: int) -> list[Expiring]:
        """The cells that expire first, in order, at most *limit*. May be a moment late: it reads any replica.

        All that match are looked at, a page at a time, and no more than these are held.
        """
        found: list[Expiring] = []

        def take(page: list[Scanned]) -> None:
            expiring = [Expiring(int(headers[EXPIRES]), name, seq) for name, seq, headers in page if EXPIRES in headers]
            expiring = [one for one in expiring if one.expires_ms]  # 0: deleted, and JetStream takes it away
            if len(found) == limit:
                expiring = [one for one in expiring if one < found[-1]]
            found[:] = sorted([*found, *expiring])[:limit]

        await self._scan(patterns, take)
        return found

    async def _scan(self, patterns: Sequence[str], take: Callable[[list[Scanned]], None]) -> None:
        config = {
            "ack_policy": "none",
            "deliver_policy": "all",
            "headers_only": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 30_000_000_000,
            "filter_subjects": [self.root + pattern for pattern in patterns],
        }
        made = await self._api(f"CONSUMER.CREATE.{self.stream}", {"stream_name": self.stream, "config": config})
        client, seen = self._connection.client, 0
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        more = {"batch": _PAGE, "no_wait": True}
        try:
            while seen < made["num_pending"]:
                next_page = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{made['name']}"
                self._connection.send(NatsMessage(next_page, msgspec.json.encode(more)), inbox)
                page = await self._scan_page(subscription)
                if not page:
                    break
                seen += len(page)
                take(page)
        except (NatsError, TimeoutError) as error:
            raise EngineGone(f"reading {self.stream} ended: {error!r}") from error
        finally:
            await subscription.unsubscribe()

    async def _scan_page(self, subscription: Subscription) -> list[Scanned]:
        page: list[Scanned] = []
        while len(page) < _PAGE:
            message = await subscription.next_msg(timeout=_TRY_SECONDS)
            if not message.reply:  # a status: no more for now
                break
            subject = message.subject.removeprefix(self.root)
            page.append((subject, message.metadata.sequence.stream, dict(message.headers or {})))
        return page

    # ── writing ────────────────────────────────────────────────────────────────────────────────

    async def put(self, writes: Sequence[Write], now_ms: int) -> int:
        """Store *writes* whole or not at all; return the sequence of the first, the others follow it.

        `Stale` when one is not where it was expected, `Unsure` when nobody answered, `CellsMissing` without the stream.
        """
        messages = [write.message(self.root, now_ms) for write in writes]
        async with self._batches if len(writes) > 1 else nullcontext():
            try:
                ack = await self._connection.publish_batch(messages, secrets.token_hex(12), within=_TRY_SECONDS)
            except JetStreamRefused as error:
                if error.code in STALE:
                    raise Stale from error
                if error.code not in (*AWAY, *_TOO_MANY):
                    raise error.told(f"store in {self.stream}") from error
            except EngineGone:
                # Nobody answers: either there is no leader now, so this waits, or no such stream, so this raises.
                await self._api(f"STREAM.INFO.{self.stream}")
            else:
                return ack.seq - len(writes) + 1
            await asyncio.sleep(_PAUSE_SECONDS)
            raise Unsure

    async def remove(self, sequence: int) -> bool:
        """Remove the cell that is at *sequence*; False if it has been replaced or removed."""
        again = False

        def note() -> None:
            nonlocal again
            again = True

        try:
            asked = {"seq": sequence, "no_erase": True}
            await api(self._connection, f"STREAM.MSG.DELETE.{self.stream}", asked, unanswered=note)
        except JetStreamRefused as error:
            if error.code != NOT_DELETED:
                raise EngineGone(f"JetStream does not remove from {self.stream}: {error}") from error
            return again  # an attempt that nobody answered has removed it
        return True

    async def remove_all(self, sequences: Iterable[int]) -> list[bool]:
        """`remove` for each of them."""
        return await _abreast([self.remove(sequence) for sequence in sequences])

    async def purge(self, pattern: str) -> None:
        """Remove all that match, at once."""
        await self._api(f"STREAM.PURGE.{self.stream}", {"filter": self.root + pattern})

    async def _api(self, call: str, question: object = None) -> dict[str, Any]:
        return await api(self._connection, call, question)


async def api(
    connection: NatsConnection, call: str, question: object = None, unanswered: Callable[[], None] = lambda: None,
    patience: float = PATIENCE_SECONDS,
) -> dict[str, Any]:  # fmt: skip
    """As `ask`, decoded."""
    answer: dict[str, Any] = msgspec.json.decode(await ask(connection, call, question, unanswered, patience))
    return answer


async def ask(
    connection: NatsConnection, call: str, question: object = None, unanswered: Callable[[], None] = lambda: None,
    patience: float = PATIENCE_SECONDS,
) -> bytes:  # fmt: skip
    """What JetStream answers; asks again while nobody does, and calls *unanswered* each time.

    `JetStreamRefused` when it says no, `CellsMissing` without the stream.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        try:
            return await connection.api(call, question, within=_TRY_SECONDS)
        except JetStreamRefused as error:
            if error.code == NO_STREAM:
                raise CellsMissing from error
            if error.code not in AWAY:
                raise
        except EngineGone:
            unanswered()
        if loop.time() > deadline or connection.hopeless:
            raise EngineGone(f"JetStream did not answer {call} within {patience:g} s")
        await asyncio.sleep(_PAUSE_SECONDS)


async def drop_stream(connection: NatsConnection, name: str) -> bool:
    """Drop a JetStream stream with all that is in it; False if it was not there."""
    try:
        await ask(connection, f"STREAM.DELETE.{name}", patience=ELECTING_SECONDS)
    except CellsMissing:
        return False
    return True


async def stream_names(home: Home) -> list[str]:
    """The names of all JetStream streams of this namespace."""
    found: list[str] = []
    while True:
        answer = await api(home.connection, "STREAM.NAMES", {"offset": len(found), "subject": f"{home.prefix}.>"})
        page = answer.get("streams") or []
        found += page
        if not page or len(found) >= answer.get("total", 0):
            return found


def _headers(raw: bytes) -> dict[str, str]:
    lines = raw.decode().split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name: value.strip() for name, _, value in pairs}


async def _abreast(calls: Sequence[Awaitable[T]]) -> list[T]:
    """The results of *calls*, a bounded number of them under way at once."""
    found: list[T] = []
    for begin in range(0, len(calls), _ABREAST):
        found += await asyncio.gather(*calls[begin : begin + _ABREAST])
    return found
