"""One session on the node that serves it: its packs, its connection, and the streams it follows.

What is here is a copy of what the registry, the mailbox and the log hold, so that a poll without news reads no
disk. Nothing is told to a client before it is durable there.

Whatever needs storage is done by one coroutine at a time (`_work`), step by step, in this order:

    refresh      only where other nodes may have put something into the mailbox
    confirm      ledger first, then the mailbox, then the poll that confirmed may be answered
    follow       entries become items, with the read position in the same put; only while somebody is connected
    send         what waits and was not sent on this connection
    idle         nothing is left to do: a short poll gets its 204, all others wait

While it does not run there is no task. A pack that is emitted here to a connection that has all the others goes
straight to it. Without a connection nothing is read or written for a session: it only notes that there is news.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.core.feed import Feed, take_if_room
from penstock.core.ledger import recipient
from penstock.core.names import is_exact
from penstock.doors.msgstream import records
from penstock.doors.msgstream.lives import Live
from penstock.doors.msgstream.packs import Text, Waiting, record, reference, waiting
from penstock.doors.msgstream.records import DOOR, Kept, mailbox_of
from penstock.errors import PenstockError, Trimmed, VersionMismatch
from penstock.limits import CONFIRMS, FORWARD_ENTRIES, MAILBOX_PAGE
from penstock.values import Entry, Item, Kind, MailboxHead

if TYPE_CHECKING:
    from penstock.doors.msgstream.sessions import Sessions

log = logging.getLogger("penstock.msgstream")

BROADCAST = "/_broadcast"
Confirm = tuple[tuple[int, ...], Live]


class Session:
    """Made by `Sessions`, which finds it again by its actor."""

    __slots__ = (
        "_confirm_ids", "_confirming", "_confirms", "_entries", "_sliding", "_working", "actor", "expires_ms", "feed",
        "forwarded", "gone", "home", "kept", "live", "newest", "news", "packs", "patterns", "position", "size",
        "slid_ms", "stale", "version", "who", "writing",
    )  # fmt: skip

    def __init__(self, home: Sessions, actor: str, kept: Kept, version: int, head: MailboxHead) -> None:
        self.home, self.actor, self.kept, self.version = home, actor, kept, version
        self.who = recipient(DOOR, actor)  # as the ledger and the list of consumers name it
        self.expires_ms = kept.expires_ms
        self.slid_ms = home.context.clock.now_ms()  # when its life was last written down
        self._sliding = False  # it is due again
        self.packs: dict[int, Waiting] = {}  # all that wait to be confirmed, by number, ascending
        self.size = 0  # bytes of them
        self.newest = head.next_number - 1  # the highest number there is
        self.forwarded = head.position  # what the mailbox says about how far followed entries are items
        self.position = max(kept.after, head.position)  # none of those up to this id is still to become one
        self.live: Live | None = None
        self.feed: Feed | None = None
        self.patterns = (BROADCAST, *kept.follow) if kept.follow else home.broadcast_only
        self.news = True  # something may have come into the streams it follows since somebody was connected
        self._entries: Sequence[Entry] = ()  # from the feed, to become items
        self._confirms: list[Confirm] | None = None  # what is still to be made durable, and by whom it was said
        self._confirm_ids = 0  # of all of them
        self._working = self._confirming = False
        self.writing: asyncio.Future[None] | None = None  # done when its record, which is changed from here, is written
        self.stale = False  # another node may have put something into the mailbox
        self.gone = False  # it is over, or another copy took its place

    @property
    def mailbox(self) -> str:
        """Whose items its packs are."""
        return mailbox_of(self.actor)

    def ids(self, texts: Sequence[Text]) -> list[Text]:
        """Packs by their ids instead of their numbers."""
        return [(number - self.kept.base, text) for number, text in texts]

    def record(self, state: str, packs: Sequence[tuple[int, Waiting]], reason: str = "") -> None:
        """Tell the ledger."""
        record(self.home.context.ledger, self.who, state, self.kept.month, packs, reason)

    # ── its connection ────────────────────────────────────────────────────────────────────────

    def connect(self, live: Live, confirm: tuple[int, ...] = ()) -> None:
        """Be served through *live* from now on; the connection before it is over."""
        self.touch()
        before, self.live = self.live, live
        live.sent = self.kept.base
        if before is not None:
            before.displaced()
        self.home.became_live(self)
        if confirm:
            self._note_confirm(confirm, live)
        self.wake()

    def glance(self) -> bool:
        """Be asked for news by somebody who does not stay; True if there are certainly none."""
        if not self.quiet or not self._month_is_right:
            return False
        self.touch()
        if self.live is not None:
            self.live.displaced()
        self.home.became_quiet(self)
        return True

    @property
    def quiet(self) -> bool:
        """There is nothing to do, and nothing to find out, for somebody who asks what is new."""
        if self._working or self.packs or self.stale or self._entries or self._confirms:
            return False
        return not (self.news if self.feed is None else self.feed.lag)

    def left(self, live: Live) -> None:
        """A connection is over. A late end of a former one changes nothing."""
        if self.live is live:
            self.live = None
            self._stop_feed()
            self.home.became_quiet(self)

    def confirm(self, ids: tuple[int, ...], live: Live) -> bool:
        """These packs have arrived. False, and nothing is noted, if more ids wait than there can be packs."""
        if self._confirm_ids >= CONFIRMS:
            return False
        self.touch()
        self._note_confirm(ids, live)
        self.wake()
        return True

    def _note_confirm(self, ids: tuple[int, ...], live: Live) -> None:
        if self._confirms is None:
            self._confirms = []
        self._confirms.append((ids, live))
        self._confirm_ids += len(ids)

    def touch(self) -> None:
        """The client lives: so does the session. That is written down now and then."""
        now_ms = self.home.context.clock.now_ms()
        self.expires_ms = now_ms + self.kept.ttl * 1000
        if now_ms - self.slid_ms >= self.kept.ttl * 100 and not self._sliding:
            self._sliding = True
            self.wake()

    def end(self, reason: str) -> None:
        """It is over: say so to whoever is connected. With no reason, another node serves it now."""
        self._go()
        live, self.live = self.live, None
        if live is not None and reason:
            live.unset(reason)
        elif live is not None:
            live.displaced()
        if not self._working:
            self._leave_nobody_waiting()

    def _go(self) -> None:
        self.gone = True
        self._stop_feed()
        self.home.unwatch(self)
        self.home.forget(self)

    # ── what comes ────────────────────────────────────────────────────────────────────────────

    def added(self, items: Sequence[Item], month: str) -> None:
        """Items were stored, from this node; nearly always they are the next."""
        if month != self.kept.month or items[-1].number <= self.newest:
            return
        if items[0].number != self.newest + 1:
            self.stale = True
            self.wake()
            return
        live, before = self.live, self.newest
        packs = self._note(items)
        if live is None:
            return
        occupied = self._working and (live.whole or not self._confirming)
        if occupied or live.full or live.sent != before or self._resends(live):
            self.wake()
        else:
            live.give([(item.number, item.body) for item in items], packs)

    def _resends(self, live: Live) -> bool:
        return self.home.resend_all and not live.whole

    def _note(self, items: Sequence[Item]) -> list[tuple[int, Waiting]]:
        packs = [(item.number, waiting(item)) for item in items]
        self.packs.update(packs)
        self.size += sum(pack.size for _, pack in packs)
        self.newest = items[-1].number
        return packs

    @property
    def full(self) -> bool:
        """No followed entry is wanted: nobody is connected, or enough waits. It stays in the log."""
        return self.live is None or bool(self._entries) or len(self.packs) >= self.home.limit

    def deliver(self, entries: Sequence[Entry]) -> None:
        """Take entries from the feed."""
        self._entries = [*self._entries, *entries] if self._entries else entries
        self.wake()

    deliver_last = take_if_room

    def gap(self, after: int, upto: int) -> None:
        """What was trimmed cannot be followed any more."""
        self.position = max(self.position, upto)
        for stream in filter(is_exact, self.kept.follow):
            self.home.context.ledger.record(self.who, "dropped", stream, after + 1, upto, reason="trimmed")
        log.warning("session.gap", extra={"actor": self.actor, "after": after, "upto": upto})

    def failed(self, error: Exception) -> None:
        """The log cannot be read."""
        self._fail(error)

    def _wants(self, entry: Entry) -> bool:
        if entry.kind is not Kind.DATA or entry.id <= self.position:
            return False
        if entry.expires_ms is None or entry.expires_ms > self.home.context.clock.now_ms():
            return True
        self.home.context.ledger.record(self.who, "expired", entry.stream, entry.id, entry.id)
        return False

    # ── the work ──────────────────────────────────────────────────────────────────────────────

    def wake(self) -> None:
        """See to it that whatever there is to do gets done."""
        if self._working or self.gone:
            return
        if self.live is not None and self.quiet and not self._sliding and self._month_is_right and self._is_following():
            self.live.sent = self.newest
            self.live.idle()
        elif not self._working:  # a feed that was just started may have begun to work
            self._working = True
            self.home.tasks.start(self._work())

    @property
    def _month_is_right(self) -> bool:
        return self.kept.month == self.home.month

    async def _work(self) -> None:
        try:
            while not self.gone and await self._step():
                pass
        except VersionMismatch:
            self.home.look_again(self.actor)
        except PenstockError as error:
            self._fail(error)
        except Exception as error:
            log.exception("session.broken", extra={"actor": self.actor})
            self._fail(error)
        finally:
            self._working = False
        if self.gone:
            self._leave_nobody_waiting()

    async def _step(self) -> bool:
        """Do the first thing that there is to do; False when there is none."""
        if self.stale:
            await self._refresh()  # before all else: what another node stored may be confirmed here
        elif self._confirms:
            await self._confirm()
        elif self._sliding:
            await self._slide()
        elif self.live is None or self.live.full:
            return False
        elif not self.packs and not self._month_is_right:
            await self._change_month()
        elif self._entries:
            await self._forward(self._entries[:FORWARD_ENTRIES], None)
        elif not self.full and (self.feed is None or self.feed.behind):
            if not self._is_following() and not self._entries:
                await self._read_on()
        elif not self.full and self.feed is not None and self.feed.lag:
            self.feed.resume()
        elif self.packs and self.live.sent < self.newest:
            await self._send(self.live)
        else:
            self.live.sent = self.newest
            self.live.idle()
            return False
        return True

    def _leave_nobody_waiting(self) -> None:
        """It is gone, and what was still to be confirmed is not."""
        confirms, self._confirms = self._confirms, None
        for _, live in confirms or ():
            live.unconfirmed()

    def _fail(self, error: Exception) -> None:
        """Storage does not answer. What is not known for certain is forgotten; clients come again."""
        log.warning("session.failed", extra={"actor": self.actor, "error": str(error)})
        self._go()
        lives = {id(live): live for _, live in self._confirms or ()} | ({id(self.live): self.live} if self.live else {})
        self.live, self._confirms = None, None
        for live in lives.values():
            live.failed(error)

    async def _confirm(self) -> None:
        """Make confirmations durable. The ledger is first: a crash after it sends a pack again, never forgets it."""
        confirms = tuple(self._confirms or ())
        base = self.kept.base
        numbers = sorted({id + base for ids, _ in confirms for id in ids} & self.packs.keys())
        if numbers:
            self._confirming = True  # meanwhile packs may be sent
            try:
                await self._remove(numbers)
            finally:
                self._confirming = False
        self._confirms = (self._confirms or [])[len(confirms) :] or None
        self._confirm_ids -= sum(len(ids) for ids, _ in confirms)
        for _, live in confirms:
            live.confirmed()

    async def _remove(self, numbers: list[int]) -> None:
        context = self.home.context
        self.record("acked", [(number, self.packs[number]) for number in numbers])
        await self.home.settling.settle()
        await context.mailbox.confirm(self.mailbox, self.kept.month, numbers)
        for number in numbers:
            self.size -= self.packs.pop(number).size

    async def _slide(self) -> None:
        """Write the session's life down, a step further than it is, and how far it has read."""
        if self.feed is not None and not self.feed.lag and not self._entries:
            self.position = max(self.position, self.home.context.hub.position)
        after = max(self.kept.after, self.position)
        await self.write(
            msgspec.structs.replace(self.kept, expires_ms=self.expires_ms + self.kept.ttl * 100, after=after)
        )
        self.slid_ms, self._sliding = self.home.context.clock.now_ms(), False

    async def write(self, kept: Kept) -> None:
        """Change its record, unless somebody else has."""
        written = self.writing = asyncio.get_running_loop().create_future()
        try:
            self.version = await records.write(self.home.context.registry, self.actor, kept, self.version)
            self.kept = kept
        finally:
            self.writing = None
            written.set_result(None)

    async def _refresh(self) -> None:
        """Find out what other nodes have put into the mailbox."""
        self.stale = False
        mailbox = self.home.context.mailbox
        while items := await mailbox.take(self.mailbox, self.kept.month, after=self.newest):
            items = [item for item in items if item.number > self.newest]
            if items:
                self._note(items)

    async def _change_month(self) -> None:
        """Go on in the mailbox of this month. Nothing waits in the old one, and ids go on where they were."""
        month, mailbox = self.home.month, self.home.context.mailbox
        await mailbox.make_month(month)
        head = await mailbox.head(self.mailbox, month)
        if self.packs:
            return
        newest = head.next_number - 1
        base = newest - (self.newest - self.kept.base)
        await self.write(
            msgspec.structs.replace(self.kept, month=month, former=self.kept.month, base=base, after=self.position)
        )
        self.newest, self.forwarded = newest, head.position
        if self.live is not None:
            self.live.sent = newest

    # ── following ─────────────────────────────────────────────────────────────────────────────

    def _is_following(self) -> bool:
        """Have a feed that is live, which nearly always can be had at once; False if there is work to do first."""
        if self.feed is None or self.feed.behind:
            self._stop_feed()
            self.home.unwatch(self)
            feed = self.home.context.hub.start(self, self.patterns, after=self.position, allow=self._wants)
            if feed.behind:
                feed.stop()
                return False
            self.feed = feed
        return not self._entries

    async def _read_on(self) -> None:
        """Read a page that is too old for the hub's memory."""
        try:
            page = await self.home.context.log.read_after(self.patterns, self.position, limit=FORWARD_ENTRIES)
        except Trimmed as error:
            self.gap(self.position, error.trimmed_upto)
            return
        entries = [entry for entry in page.entries if self._wants(entry)]
        if not entries or await self._forward(entries, page.upto):
            self.position = max(self.position, page.upto)

    def _stop_feed(self) -> None:
        """Read no more. Somebody tells when there is news; until then the position is the log's end."""
        feed, self.feed = self.feed, None
        if feed is None:
            return
        self.news = bool(feed.lag or self._entries)
        if not self.news:
            self.position = max(self.position, self.home.context.hub.position)
            self.home.watch(self)
        feed.stop()
        self._entries = ()

    async def _follow_another(self) -> None:
        """The node that served the session before has forwarded something at the last moment: go on after it."""
        head = await self.home.context.mailbox.head(self.mailbox, self.kept.month)
        self._stop_feed()
        self.news = self.stale = True
        self._entries = ()
        self.forwarded, self.position = head.position, max(self.position, head.position)

    async def _forward(self, entries: Sequence[Entry], upto: int | None) -> bool:
        """Make items of followed entries. The position goes with them, so none comes twice and none is left out.

        False if another node was quicker, and nothing was stored.
        """
        position = entries[-1].id if upto is None else upto
        new = [reference(entry) for entry in entries]
        try:
            items = await self.home.context.mailbox.put(
                self.mailbox, self.kept.month, new, position=position, expect=self.forwarded
            )
        except VersionMismatch:
            await self._follow_another()
            return False
        self.position = self.forwarded = position
        self._entries = self._entries[len(entries) :] if upto is None else self._entries
        if items[0].number != self.newest + 1:
            self.stale = True
            return True
        live, before = self.live, self.newest
        packs = self._note(items)
        if live is not None and live.sent == before and not live.full and not live.whole and not self._resends(live):
            live.give([(i.number, self.home.texts.of_entry(e)) for i, e in zip(items, entries, strict=True)], packs)
        return True

    # ── sending ───────────────────────────────────────────────────────────────────────────────

    async def _send(self, live: Live) -> None:
        """Send what waits and was not sent on this connection: a page to a socket, everything to a poll."""
        whole = live.whole or self._resends(live)
        texts: list[Text] = []
        after, upto, more = self.kept.base if whole else live.sent, self.newest, True
        while more:
            items = await self.home.context.mailbox.take(self.mailbox, self.kept.month, after=after)
            texts += await self.home.texts.of_items(items)
            more = len(items) == MAILBOX_PAGE
            after = items[-1].number if more else upto
            if not whole:
                break
        if self.live is not live or live.full:
            return
        packs = [(number, self.packs[number]) for number, _ in texts if number in self.packs]
        if packs:
            live.give([text for text in texts if text[0] in self.packs], packs)
        live.sent = max(live.sent, after)
