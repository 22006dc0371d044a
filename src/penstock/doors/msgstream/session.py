"""One session on the node that serves it: the I/O around `wire.msgstream_session.SessionMachine`.

What is here is a copy of what the registry, the mailbox and the log hold, so that a poll without news reads no
disk. Nothing is told to a client before it is durable there. Without a connection nothing is read or written for a
session, and while it does not use its storage it has no task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.api.context import Context
from penstock.core.background import Tasks
from penstock.core.feed import WatchedFeed, take_if_room
from penstock.core.ledger import Recipient
from penstock.core.mailbox import forward
from penstock.core.names import is_exact
from penstock.core.ownership import Ownership
from penstock.doors.msgstream.ledger_flushes import LedgerFlushes
from penstock.doors.msgstream.packs import BROADCAST, PackTexts, record_packs, reference
from penstock.doors.msgstream.records import DOOR, mailbox_of
from penstock.errors import PenstockError
from penstock.limits import MAILBOX_PAGE
from penstock.values import Entry, Item, Kind, MailboxHead
from penstock.wire import msgstream
from penstock.wire import msgstream_actions as do
from penstock.wire.msgstream_actions import Action, Numbered, SessionRecord, SessionRules, StreamConnection
from penstock.wire.msgstream_session import Following, SessionMachine

log = logging.getLogger("penstock.msgstream")
_BROADCAST_ONLY = (BROADCAST,)  # of all sessions that follow nothing else


class SessionHome(Protocol):
    """What a session needs of its node."""

    context: Context
    rules: SessionRules
    tasks: Tasks
    texts: PackTexts
    flushes: LedgerFlushes
    owned: Ownership[SessionRecord]

    def month_at(self, now_ms: int) -> str: ...
    def became_quiet(self, session: Session) -> None: ...
    def became_live(self, session: Session) -> None: ...
    def forget(self, session: Session) -> None: ...


class Session:
    """Made by `Sessions`, which finds it again by its actor. It is where its feed's entries go."""

    __slots__ = ("actor", "feed", "home", "machine", "moving", "who")

    def __init__(self, home: SessionHome, actor: str, record: SessionRecord, head: MailboxHead) -> None:
        self.home, self.actor = home, actor
        self.who = Recipient(DOOR, actor)  # as the ledger and the list of consumers name it
        self.machine = SessionMachine(home.rules, record, head, home.context.clock.now_ms())
        self.feed: WatchedFeed | None = None
        self.moving: asyncio.Future[None] | None = None  # done when its record names the month it goes on in, or not

    @property
    def record(self) -> SessionRecord:
        """What the registry says of it."""
        return self.machine.record

    @property
    def transport(self) -> str:
        """Of its connection; empty if it has none."""
        return self.machine.connection.transport if self.machine.connection else ""

    @property
    def mailbox(self) -> str:
        """Whose items its packs are."""
        return mailbox_of(self.actor)

    def tell_ledger(self, state: str, packs: Sequence[Numbered]) -> None:
        record_packs(self.home.context.ledger, self.who, state, self.record.month, packs)

    # ── what its connections and its node tell it ─────────────────────────────────────────────

    def connect(self, connection: StreamConnection, confirm: tuple[int, ...] = ()) -> None:
        """Be served through *connection* from now on; the one before it is over."""
        self.home.became_live(self)
        if self.feed is not None:
            self.feed.away = False
        self._perform(self.machine.connect(connection, confirm, *self._now))

    def poll_without_waiting(self) -> bool:
        """Serve a short poll that confirms nothing; True if there are certainly no packs for it."""
        actions = self.machine.poll_without_waiting(*self._now)
        if actions is None:
            return False
        self._become_quiet()
        if actions:
            self._perform(actions)
        return True

    def confirm(self, ids: tuple[int, ...]) -> bool:
        """These packs have arrived. False, and nothing is noted, if more ids wait than there can be packs."""
        if self.machine.too_many_confirmed:
            return False
        self._perform(self.machine.confirm(ids, *self._now))
        return True

    def touch(self) -> None:
        self._perform(self.machine.touch(*self._now))

    def dismiss(self, connection: StreamConnection) -> None:
        """End a connection for no reason of its own."""
        self._perform(self.machine.dismiss(connection))

    def lost(self, connection: StreamConnection) -> None:
        self._perform(self.machine.lost(connection))

    def drained(self, connection: StreamConnection) -> None:
        self._perform(self.machine.drained(connection))

    def added(self, items: Sequence[Item], month: str) -> None:
        self._perform(self.machine.packs_added(items, month))

    def hear_of_packs(self) -> None:
        self._perform(self.machine.hear_of())

    def end(self, reason: str) -> None:
        """It is over: say so to whoever is connected. With no reason, another node serves it now."""
        self._perform(self.machine.end(reason))

    @property
    def _now(self) -> tuple[int, str]:
        now_ms = self.home.context.clock.now_ms()
        return now_ms, self.home.month_at(now_ms)

    # ── what its feed tells it ────────────────────────────────────────────────────────────────

    @property
    def full(self) -> bool:
        """No entry is wanted: enough waits. It stays in the log."""
        return self.machine.full

    def deliver(self, entries: Sequence[Entry]) -> None:
        self._perform(self.machine.delivered(entries))

    deliver_last = take_if_room

    def gap(self, after: int, upto: int) -> None:
        """What was trimmed cannot be followed any more."""
        self.machine.skip_gap(upto)
        for stream in filter(is_exact, self.record.follow):
            self.home.context.ledger.record(self.who, "dropped", stream, after + 1, upto, reason="trimmed")
        log.warning("session.gap", extra={"actor": self.actor, "after": after, "upto": upto})

    def failed(self, error: Exception) -> None:
        """The log cannot be read, or the storage does not answer."""
        log.warning("session.failed", extra={"actor": self.actor, "error": str(error)})
        self._perform(self.machine.fail(error))

    def _caught_up(self) -> None:
        self._perform(self.machine.caught_up())

    def _wants(self, entry: Entry) -> bool:
        if entry.kind is not Kind.DATA or entry.id <= self.machine.position:
            return False
        if entry.expires_ms is None or entry.expires_ms > self.home.context.clock.now_ms():
            return True
        self.home.context.ledger.record(self.who, "expired", entry.stream, entry.id, entry.id)
        return False

    # ── actions ───────────────────────────────────────────────────────────────────────────────

    def _perform(self, actions: Sequence[Action]) -> None:
        """Do what must be done now, and begin with what takes the storage: the machine asks for one thing at a time."""
        for action in actions:
            match action:
                case do.SendPacks():
                    self._send(action)
                case do.WaitForPacks(connection):
                    connection.wait()
                case do.EndConnection(connection, reason, error):
                    connection.end(reason, error)
                case do.StartFeed(after):
                    self._start_feed(after)
                case do.PlainAction.RESUME_FEED:
                    self._resume_feed()
                case do.PlainAction.STOP_FEED:
                    self._stop_feed()
                case do.PlainAction.BECOME_QUIET:
                    self._become_quiet()
                case do.PlainAction.FORGET:
                    self.home.forget(self)
                case _:
                    self.home.tasks.start(self._work(action))

    def _send(self, action: do.SendPacks) -> None:
        base, text_of, connection = self.record.base, self.home.texts.of_entry, action.connection
        texts = [(number - base, body if isinstance(body, bytes) else text_of(body)) for number, body in action.bodies]
        connection.send(msgstream.delivery(texts), action.packs)
        if connection.full:
            self.machine.filled(connection)

    def _start_feed(self, after: int) -> None:
        patterns = (BROADCAST, *self.record.follow) if self.record.follow else _BROADCAST_ONLY
        start = self.home.context.hub.start_watched
        feed = start(self, patterns, after=after, allow=self._wants, on_live=self._caught_up)
        if self.machine.following is Following.STOPPED:  # by what it was told meanwhile
            feed.stop()
        else:
            self.feed, feed.away = feed, self.machine.connection is None

    def _resume_feed(self) -> None:
        if self.feed is not None:
            self.feed.resume()
            if self.feed is not None and not self.feed.lag:
                self._caught_up()

    def _become_quiet(self) -> None:
        if self.feed is not None:
            self.feed.away = True
        self.home.became_quiet(self)

    def _stop_feed(self) -> None:
        feed, self.feed = self.feed, None
        if feed is not None:
            feed.stop()

    # ── actions that take the storage ─────────────────────────────────────────────────────────

    async def _work(self, action: Action) -> None:
        try:
            answer = await self._use_storage(action)
        except PenstockError as error:
            self.failed(error)
            return
        except Exception as error:
            log.exception("session.broken", extra={"actor": self.actor})
            self.failed(error)
            return
        self._perform(answer)

    async def _use_storage(self, action: Action) -> list[Action]:
        match action:
            case do.RefreshPacks(after):
                return await self._refresh(after)
            case do.ConfirmPacks(packs):
                return await self._confirm(packs)
            case do.ChangeMonth(month):
                return await self._change_month(month)
            case do.StoreEntries(entries, expect):
                return await self._store(entries, expect)
            case do.FetchPacks():
                return await self._fetch(action)
            case _:
                return await self._write_life()

    async def _refresh(self, after: int) -> list[Action]:
        found: list[Item] = []
        while items := await self.home.context.mailbox.take(self.mailbox, self.record.month, after=after):
            found += items
            after = items[-1].number
        return self.machine.refreshed(found)

    async def _confirm(self, packs: list[Numbered]) -> list[Action]:
        """The ledger is first: a crash after it sends a pack again, never forgets it."""
        self.tell_ledger("acked", packs)
        await self.home.flushes.flush()
        numbers = [number for number, _ in packs]
        await self.home.context.mailbox.confirm(self.mailbox, self.record.month, numbers)
        return self.machine.confirmed()

    async def _write_life(self) -> list[Action]:
        """A step further than it is, so that a crash never shortens it."""
        record, expires_ms = self.record, self.machine.expires_ms + self.record.ttl * 100
        after = max(record.after, self._position)
        written = await self._write(msgspec.structs.replace(record, expires_ms=expires_ms, after=after))
        if written is None:
            return self.machine.not_written()
        return self.machine.life_written(written, self.home.context.clock.now_ms())

    @property
    def _position(self) -> int:
        """How far it has read."""
        is_live = self.feed is not None and self.machine.following is Following.LIVE
        return max(self.machine.position, self.feed.reached if is_live and self.feed else 0)

    async def _write(self, record: SessionRecord) -> SessionRecord | None:
        """Change its record. None if a claim came in between; a session that is not ours any more ends."""
        written = await self.home.owned.write(self.actor, record)
        mine = self.home.owned.mine(self.actor)
        if mine is None:
            self.end("")
        return mine if written else None

    async def _change_month(self, month: str) -> list[Action]:
        """Nothing waits in the old one, and ids go on where they were."""
        machine, mailbox, record = self.machine, self.home.context.mailbox, self.record
        await mailbox.make_month(month)
        head = await mailbox.head(self.mailbox, month)
        former = await mailbox.head(self.mailbox, record.month)  # another node may have read further
        if machine.packs:
            return machine.not_written()
        base = head.next_number - 1 - (machine.newest - record.base)
        after = max(self._position, former.position)
        record = msgspec.structs.replace(record, month=month, former=record.month, base=base, after=after)
        moved = self.moving = asyncio.get_running_loop().create_future()
        try:
            written = await self._write(record)
            return machine.not_written() if written is None else machine.month_changed(written, head)
        finally:
            self.moving = None
            moved.set_result(None)

    async def _store(self, entries: Sequence[Entry], expect: int) -> list[Action]:
        """The position goes with the packs, so none comes twice and none is left out."""
        mailbox, new = self.home.context.mailbox, [reference(entry) for entry in entries]
        items = await forward(mailbox, self.mailbox, self.record.month, new, position=entries[-1].id, expect=expect)
        if isinstance(items, int):
            return self.machine.entries_overtaken(items)
        return self.machine.entries_stored(entries, items)

    async def _fetch(self, action: do.FetchPacks) -> list[Action]:
        texts: list[tuple[int, bytes]] = []
        after, more = action.after, True
        while more:
            items = await self.home.context.mailbox.take(self.mailbox, self.record.month, after=after)
            texts += await self.home.texts.of_items(items)
            more = len(items) == MAILBOX_PAGE
            after = items[-1].number if more else action.upto
            more = more and action.whole
        return self.machine.fetched(action.connection, texts, after)
