"""What changed in a cluster's registry and mailboxes (`core.change_watch.Changes`).

One consumer per stream of cells, kept by the server in memory, of which a node asks now and then what is new. A cell
that was changed many times is told once: the stream holds its newest message only. A consumer that is gone, with its
server or for being asked too rarely, is made again after the last change that was told.

    registry      headers only: key and version are all that is told
    <month>       the messages *.head, whose first number says how far the mailbox is
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.core.change_watch import MailboxChange, RecordChange
from penstock.engines.jetstream.connection import ELECTING_SECONDS, JetStreamRefused, status
from penstock.engines.jetstream.frames import NatsMessage
from penstock.engines.jetstream.mailbox import JetStreamMailbox
from penstock.engines.jetstream.newest_messages import Cells, CellsMissing, Home, api
from penstock.engines.jetstream.subject_tokens import key_of, path, text_of
from penstock.errors import EngineGone

PAGE: Final = 1_000
MONTHS_LOOKS: Final = 20
"""Looks after which new months are asked for. Both the present and the next one are always there already."""
_ANSWER_SECONDS = 2.0
_TRIES = 2


class Changed(NamedTuple):
    """A cell's newest message."""

    subject: str
    sequence: int
    data: bytes


class _Newest(msgspec.Struct, array_like=True):
    """What is wanted of a mailbox's head."""

    next_number: int


_newest = msgspec.msgpack.Decoder(_Newest)


class _Gone(Exception):
    """The consumer does not answer."""


class Watch:
    """What is new in one stream of cells, beginning after a sequence."""

    def __init__(self, home: Home, cells: Cells, patterns: Sequence[str], after: int, *, bodies: bool) -> None:
        self._cells, self._connection = cells, home.connection
        self._patterns, self._bodies = patterns, bodies
        self._after = after  # told up to here
        self._consumer = ""
        self._inbox, self._listening, self._pull = "", 0, 0
        self._expected = 1  # the consumer's next delivery
        self._page: list[Changed] = []
        self._done: asyncio.Future[bool] | None = None  # whether there is more

    async def look(self) -> list[Changed]:
        """All that changed since the last time. `CellsMissing` without the stream."""
        for _ in range(_TRIES):
            try:
                return await self._look()
            except _Gone:
                self._consumer = ""
        raise EngineGone(f"JetStream does not tell what is new in {self._cells.stream}")

    async def close(self) -> None:
        """Listen no more; the server forgets the consumer by itself."""
        if self._listening:
            await self._connection.unlisten(self._listening)

    async def _look(self) -> list[Changed]:
        if not self._consumer:
            await self._begin()
        found: list[Changed] = []
        more = True
        while more:
            more = await self._ask()
            found += self._page
        if found:
            self._after = found[-1].sequence
        return found

    async def _begin(self) -> None:
        if not self._listening:
            self._inbox = self._connection.client.new_inbox()
            self._listening = await self._connection.listen(f"{self._inbox}.*", self._take)
        config = {
            "ack_policy": "none", "deliver_policy": "by_start_sequence", "opt_start_seq": self._after + 1,
            "headers_only": not self._bodies, "mem_storage": True, "num_replicas": 1,
            "inactive_threshold": 30_000_000_000,
            "filter_subjects": [self._cells.root + pattern for pattern in self._patterns],
        }  # fmt: skip
        stream = self._cells.stream
        try:
            made = await api(self._connection, f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        except JetStreamRefused as error:
            raise EngineGone(f"JetStream does not tell what is new in {stream}: {error}") from error
        self._consumer, self._expected = made["name"], 1

    async def _ask(self) -> bool:
        """Get a page of what is new; whether there is more."""
        self._pull, self._page = self._pull + 1, []
        self._done = asyncio.get_running_loop().create_future()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._cells.stream}.{self._consumer}"
        question = msgspec.json.encode({"batch": PAGE, "no_wait": True})
        self._connection.send(NatsMessage(subject, question), f"{self._inbox}.{self._pull}")
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._done
        except TimeoutError:
            raise _Gone from None
        finally:
            self._done = None

    def _take(self, subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
        """Receive one change, or the end of an answer."""
        done = self._done
        if done is None or done.done():
            return
        if not reply:
            if subject.rpartition(b".")[2] == b"%d" % self._pull:  # else it is the late end of an answer before
                self._end(done, status(headers))
            return
        parts = reply.split(b".")
        first = 7 if len(parts) >= 11 else 5  # newer servers put domain and account in front
        sequence, delivery, _, pending = (int(part) for part in parts[first : first + 4])
        if delivery != self._expected:
            done.set_exception(_Gone())
            return
        self._expected += 1
        self._page.append(Changed(subject.decode().removeprefix(self._cells.root), sequence, data))
        if not pending or len(self._page) == PAGE:
            done.set_result(bool(pending))

    @staticmethod
    def _end(done: asyncio.Future[bool], code: int) -> None:
        if code in (404, 408):
            done.set_result(False)  # nothing more for now
        else:
            done.set_exception(_Gone())


class JetStreamChanges:
    """`core.change_watch.Changes` of one node."""

    def __init__(self, home: Home, mailbox: JetStreamMailbox) -> None:
        self._home, self._mailbox = home, mailbox
        self._registry: Watch | None = None
        self._after = 0
        self._months: dict[str, Watch] = {}
        self._looks = 0
        self._records: list[RecordChange] = []  # found, and not told: a look failed in the middle
        self._heads: list[MailboxChange] = []

    async def open(self) -> None:
        """Begin: what was changed before this is no change."""
        self._after = await self._last(Cells(self._home, "registry"))
        for month in await self._mailbox.months():
            cells = self._cells(month)
            self._months[month] = self._watch_month(cells, await self._last(cells))

    async def close(self) -> None:
        """Listen no more."""
        for watch in (self._registry, *self._months.values()):
            if watch is not None:
                await watch.close()

    async def look(self, prefixes: Sequence[str]) -> tuple[list[RecordChange], list[MailboxChange]]:
        self._looks += 1
        if self._looks % MONTHS_LOOKS == 1:
            await self._find_months()
        await self._look_at_records(prefixes)
        await self._look_at_heads()
        records, self._records = self._records, []
        heads, self._heads = self._heads, []
        return records, heads

    async def _look_at_records(self, prefixes: Sequence[str]) -> None:
        if not prefixes:
            return
        if self._registry is None:
            patterns = [f"{path(prefix.rstrip('/'))}.>" for prefix in prefixes]
            self._registry = Watch(self._home, Cells(self._home, "registry"), patterns, self._after, bodies=False)
        self._records += [RecordChange(key_of(cell.subject), cell.sequence) for cell in await self._registry.look()]

    async def _look_at_heads(self) -> None:
        for month, watch in list(self._months.items()):
            try:
                cells = await watch.look()
            except CellsMissing:  # it was dropped
                await watch.close()
                del self._months[month]
                continue
            for cell in cells:
                recipient = text_of(cell.subject.partition(".")[0])
                self._heads.append(MailboxChange(recipient, month, _newest.decode(cell.data).next_number))

    async def _find_months(self) -> None:
        """Months that were made since: all that is in them is new."""
        for month in await self._mailbox.months():
            if month not in self._months:
                self._months[month] = self._watch_month(self._cells(month), 0)

    def _watch_month(self, cells: Cells, after: int) -> Watch:
        return Watch(self._home, cells, ["*.head"], after, bodies=True)

    def _cells(self, month: str) -> Cells:
        return Cells(self._home, f"messages_{month}")

    async def _last(self, cells: Cells) -> int:
        """The newest sequence of these cells. Asked while a node starts, when there may be no leader yet."""
        answer = await api(self._home.connection, f"STREAM.INFO.{cells.stream}", patience=ELECTING_SECONDS)
        last: int = answer["state"]["last_seq"]
        return last
