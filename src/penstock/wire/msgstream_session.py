"""One session of the message stream as a state machine: what happened goes in, what must be done comes out.

Pure: times come in as arguments. Each method returns actions, to be performed in their order; the session is in its
new state before the first of them is performed. Actions that may call back at once come last.

The session does one storage operation at a time: `work`. When it is done, the caller reports it with a method:

    work           begins when                                      the answer
    REST           there is nothing to do
    REFRESH        another node may have stored packs               refreshed
    CONFIRM        the client named packs that wait                 confirmed
    WRITE_LIFE     a tenth of its life has passed since the last    life_written, or not_written
    CHANGE_MONTH   nothing waits, and the month has changed         month_changed, or not_written
    STORE          followed entries are to become packs             entries_stored, or entries_overtaken
    FETCH          packs wait that this connection has not got      fetched
    LAST_CONFIRM   as CONFIRM, and the session has ended            confirmed
    OVER           the session has ended, or its storage failed

The first line of the table that applies is done first: what another node stored may be confirmed here, what is
confirmed is not sent, what is followed goes out with the rest. `fail` and `end` lead from anywhere to OVER.

The newest connection is the one that is served. `link` is how far it is:

    NONE ──connect──▶ OPEN ◀──drained── FULL      a poll that names packs begins in CONFIRMING, and is OPEN when
                        └─────filled─────▲        that is durable. One that ends before is told so when it is.

Streams are followed through a feed (`core/feed.py`), while a connection is there to take what comes:

    STOPPED ──▶ READING ──caught_up──▶ LIVE       LIVE goes on without a connection: then the first entry ends it,
                   ▲ └──delivered──▶ PAUSED ◀──┘  and there is certainly nothing new before that
                   └─── there is room ──┘

Whether an emitted pack has room: `SessionRules` (`msgstream_actions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from penstock.errors import Busy
from penstock.limits import CONFIRMS
from penstock.values import Entry, Item, MailboxHead
from penstock.wire import msgstream_actions as do
from penstock.wire.msgstream import LONG, SHORT, WEBSOCKET
from penstock.wire.msgstream_actions import Action, Numbered, SessionRecord, StreamConnection

FORWARD_ENTRIES: Final = 250
"""Followed entries that become packs of one session in one write. More: the next write."""

UNKNOWN: Final = 2**63
"""The number of a pack that may be there: another node knows."""

Work = Enum("Work", "REST REFRESH CONFIRM WRITE_LIFE CHANGE_MONTH STORE FETCH LAST_CONFIRM OVER")
Link = Enum("Link", "NONE CONFIRMING OPEN FULL")
Following = Enum("Following", "STOPPED READING LIVE PAUSED")


class _Confirmations:
    """What the client has named and is not durable yet. Those that are being stored come first."""

    __slots__ = ("endings", "ids", "named", "numbers", "storing")

    def __init__(self) -> None:
        self.named: list[tuple[tuple[int, ...], StreamConnection | None]] = []  # and the poll that is to hear of it
        self.ids = 0  # of all of them
        self.storing = 0  # how many of them are being stored
        self.numbers: list[int] = []  # the packs that these name
        self.endings: dict[StreamConnection, do.EndConnection] = {}  # of polls that are told when theirs is durable


class SessionMachine:
    """One session."""

    __slots__ = ("_confirmations", "_entries", "_month", "_rules", "_sent", "_written_ms", "connection", "expires_ms",
                 "following", "forwarded", "heard", "link", "newest", "packs", "position", "record", "size",
                 "work")  # fmt: skip

    def __init__(self, rules: do.SessionRules, record: SessionRecord, head: MailboxHead, now_ms: int) -> None:
        self._rules, self.record = rules, record
        self.expires_ms = record.expires_ms
        self._written_ms = max(now_ms, record.expires_ms - record.ttl * 1100 + 1)  # when that was written, or now
        self._month = record.month  # the month that is in use
        self.packs: dict[int, do.PendingPack] = {}  # all that wait to be confirmed, by number, ascending
        self.size = 0  # bytes of them
        self.newest = head.next_number - 1  # the highest number that is known
        self.heard = 0  # the highest that somebody told of
        self.forwarded = head.position  # what the mailbox says about how far followed entries are packs
        self.position = max(record.after, head.position)  # none of those up to this id is still to become one
        self.connection: StreamConnection | None = None
        self._sent = 0  # the highest number that it was given
        self._entries: Sequence[Entry] = ()  # delivered, to become packs
        self._confirmations: _Confirmations | None = None
        self.work, self.link, self.following = Work.REST, Link.NONE, Following.STOPPED

    def load(self, packs: Sequence[Numbered]) -> None:
        """These wait already."""
        self.packs = dict(packs)
        self.size = sum(pack.size for _, pack in packs)

    # ── what is asked ─────────────────────────────────────────────────────────────────────────

    @property
    def is_over(self) -> bool:
        return self.work is Work.OVER or self.work is Work.LAST_CONFIRM

    @property
    def full(self) -> bool:
        """It takes no entries now. Without a connection it takes the next one, as news."""
        return self.connection is not None and (bool(self._entries) or len(self.packs) >= self._rules.packs)

    @property
    def too_many_confirmed(self) -> bool:
        """More ids wait to be made durable than there can be packs."""
        return self._confirmations is not None and self._confirmations.ids >= CONFIRMS

    @property
    def _has_nothing(self) -> bool:
        """There is nothing to do, and nothing to find out, for somebody who asks what is new."""
        if self.packs or self.work is not Work.REST or self.following is not Following.LIVE:
            return False
        return self._confirmations is None and self.heard <= self.newest and self.record.month == self._month

    # ── the client ────────────────────────────────────────────────────────────────────────────

    def connect(self, connection: StreamConnection, confirm: tuple[int, ...], now_ms: int, month: str) -> list[Action]:
        """Serve *connection* from now on; the one before is over."""
        if self.is_over:
            return [do.EndConnection(connection, error=Busy("session", 0))]
        actions = self._end_connection()
        self._note_life(now_ms, month)
        self.connection, self.link, self._sent = connection, Link.OPEN, self.record.base
        if confirm:
            poll = None if connection.transport == WEBSOCKET else connection
            self._name(confirm, poll)
            self.link = Link.OPEN if poll is None else Link.CONFIRMING
        return actions + self._next()

    def poll_without_waiting(self, now_ms: int, month: str) -> list[Action] | None:
        """Serve a short poll that names nothing, if there is certainly nothing for it; None if there may be.

        Nobody is connected after it. No action says so, to save its cost: this is the poll that comes most often.
        """
        self._month = month
        if not self._has_nothing:
            return None
        self.expires_ms = now_ms + self.record.ttl * 1000
        return self._next() if self.connection is None else self._end_connection() + self._next()

    def touch(self, now_ms: int, month: str) -> list[Action]:
        """The client lives: so does the session."""
        self._note_life(now_ms, month)
        return self._next()

    def confirm(self, ids: tuple[int, ...], now_ms: int, month: str) -> list[Action]:
        """The client names packs, and waits for no answer."""
        if self.is_over:
            return []
        self._note_life(now_ms, month)
        self._name(ids, None)
        return self._next()

    def dismiss(self, connection: StreamConnection) -> list[Action]:
        """End a connection that has waited long enough, or that the server cannot keep."""
        return self._end_connection() + self._release() if connection is self.connection else []

    def lost(self, connection: StreamConnection) -> list[Action]:
        """A connection is over. A late end of a former one changes nothing."""
        if connection is self.connection:
            self.connection, self.link = None, Link.NONE
            return self._release()
        if self._confirmations is not None:
            self._confirmations.endings.pop(connection, None)
        return []

    def filled(self, connection: StreamConnection) -> None:
        """The client does not take its bytes."""
        if connection is self.connection:
            self.link = Link.FULL

    def drained(self, connection: StreamConnection) -> list[Action]:
        """It takes bytes again."""
        if connection is not self.connection or self.link is not Link.FULL:
            return []
        self.link = Link.OPEN
        return self._next()

    def end(self, reason: str) -> list[Action]:
        """The session is over. Without a reason another node serves it now."""
        if self.is_over:
            return []
        actions = self._end_connection(reason) + self._stop()
        if self.work is Work.CONFIRM:
            self.work = Work.LAST_CONFIRM
            return actions
        self.work = Work.OVER
        return actions + self._give_up_confirming(Busy("session", 0))

    def fail(self, error: Exception) -> list[Action]:
        """The storage does not answer. What is not known for certain is forgotten; clients come again."""
        actions = [] if self.is_over else self._end_connection(error=error) + self._stop()
        self.work = Work.OVER
        return actions + self._give_up_confirming(error)

    # ── what comes ────────────────────────────────────────────────────────────────────────────

    def packs_added(self, items: Sequence[Item], month: str) -> list[Action]:
        """Packs were stored from this node; nearly always they are the next."""
        if self.is_over or month != self.record.month or items[-1].number <= self.newest:
            return []
        if items[0].number != self.newest + 1:
            return self.hear_of(items[-1].number)
        before, packs = self.newest, self._add(items)
        connection = self.connection
        if connection is None:
            return []
        # While packs are confirmed a WebSocket may get others; a poll gets all that waits, so it has to wait.
        is_free = self.work is Work.REST or (self.work is Work.CONFIRM and connection.transport == WEBSOCKET)
        if is_free and self._has_all_up_to(before):
            return self._send([(item.number, item.body) for item in items], packs)
        return self._next()

    def hear_of(self, number: int = UNKNOWN) -> list[Action]:
        """There may be packs up to *number*."""
        self.heard = max(self.heard, number)
        return self._next()

    def delivered(self, entries: Sequence[Entry]) -> list[Action]:
        """The feed gives entries."""
        if self.connection is None:
            self.position = max(self.position, entries[0].id - 1)
            self.following = Following.STOPPED
            return [do.PlainAction.STOP_FEED]
        self._entries = [*self._entries, *entries] if self._entries else entries
        self.following = Following.PAUSED
        return self._next()

    def caught_up(self) -> list[Action]:
        """The feed has given all there is."""
        if self.following is not Following.READING:
            return []
        self.following = Following.LIVE
        return self._next()

    def skip_gap(self, upto: int) -> None:
        """What was trimmed cannot be followed any more."""
        self.position = max(self.position, upto)

    # ── what the storage answers ──────────────────────────────────────────────────────────────

    def refreshed(self, items: Sequence[Item]) -> list[Action]:
        """These are the packs that were not known."""
        new = [item for item in items if item.number > self.newest]
        if new and not self.is_over:
            self._add(new)
        return self._finish_work()

    def confirmed(self) -> list[Action]:
        """What was named first is durable."""
        named = self._confirmations
        if named is None:
            return []
        stored, named.named = named.named[: named.storing], named.named[named.storing :]
        for number in named.numbers:
            self.size -= self.packs.pop(number).size
        named.storing, named.numbers = 0, []
        actions: list[Action] = []
        for ids, poll in stored:
            named.ids -= len(ids)
            if poll in named.endings:
                actions.append(named.endings.pop(poll))
            elif poll is not None and poll is self.connection:
                self.link = Link.OPEN
        if not named.named:
            self._confirmations = None
        if self.work is Work.LAST_CONFIRM:
            self.work = Work.OVER
            return actions + self._give_up_confirming(Busy("session", 0))
        return actions + self._finish_work()

    def life_written(self, record: SessionRecord, now_ms: int) -> list[Action]:
        """The record says how long it lives, and how far it has read."""
        self.record, self._written_ms = record, now_ms
        self.position = max(self.position, record.after)
        return self._finish_work()

    def month_changed(self, record: SessionRecord, head: MailboxHead) -> list[Action]:
        """It goes on in another mailbox. Packs of this node wait until they know which."""
        self.record, self.forwarded, self.position = record, head.position, max(self.position, record.after)
        self.newest = self._sent = head.next_number - 1
        return self._finish_work()

    def not_written(self) -> list[Action]:
        """The record is as it was: packs came while the month was changed, or somebody else has changed it."""
        return self._finish_work()

    def entries_stored(self, entries: Sequence[Entry], items: Sequence[Item]) -> list[Action]:
        """The first entries of those that wait are packs."""
        if self.is_over:
            return []
        self.position = self.forwarded = entries[-1].id
        self._entries = self._entries[len(entries) :]
        self.work = Work.REST
        if items[0].number != self.newest + 1:
            return self.hear_of(items[-1].number)
        before, packs = self.newest, self._add(items)
        actions: list[Action] = []
        if self.connection is not None and self.connection.transport == WEBSOCKET and self._has_all_up_to(before):
            actions = self._send([(item.number, entry) for item, entry in zip(items, entries, strict=True)], packs)
        return actions + self._next()

    def entries_overtaken(self, position: int) -> list[Action]:
        """The node that served the session before has made packs of entries at the last moment: go on after them."""
        if self.is_over:
            return []
        self.heard, self.forwarded, self.position = UNKNOWN, position, max(self.position, position)
        actions = self._stop_following()
        return actions + self._finish_work()

    def fetched(self, connection: StreamConnection, texts: list[tuple[int, bytes]], upto: int) -> list[Action]:
        """These are the texts of packs up to a number."""
        if self.is_over:
            return []
        self.work = Work.REST
        actions: list[Action] = []
        if connection is self.connection and self.link is Link.OPEN:
            bodies: list[do.Body] = [text for text in texts if text[0] in self.packs]
            if bodies:
                actions = self._send(bodies, [(number, self.packs[number]) for number, _ in bodies])
            self._sent = max(self._sent, upto)
        return actions + self._next()

    # ── what is next ──────────────────────────────────────────────────────────────────────────

    def _finish_work(self) -> list[Action]:
        if self.is_over:
            return []
        self.work = Work.REST
        return self._next()

    def _next(self) -> list[Action]:
        """The first thing that there is to do."""
        if self.work is not Work.REST:
            return []
        if self.heard > self.newest:
            self.heard = 0
            return self._begin(Work.REFRESH, do.RefreshPacks(self.newest))
        if self._confirmations is not None:
            return self._confirm(self._confirmations)
        if self.expires_ms >= self._written_ms + self.record.ttl * 1100:
            return self._begin(Work.WRITE_LIFE, do.PlainAction.WRITE_LIFE)
        if self.connection is None or self.link is not Link.OPEN:
            return []
        return self._serve(self.connection)

    def _serve(self, connection: StreamConnection) -> list[Action]:
        """What the connection that is open needs next."""
        if not self.packs and self._month != self.record.month:
            return self._begin(Work.CHANGE_MONTH, do.ChangeMonth(self._month))
        if self._entries:
            return self._begin(Work.STORE, do.StoreEntries(self._entries[:FORWARD_ENTRIES], self.forwarded))
        if self.following is not Following.LIVE and not self.full:
            before, self.following = self.following, Following.READING
            if before is Following.READING:
                return []
            return [do.StartFeed(self.position) if before is Following.STOPPED else do.PlainAction.RESUME_FEED]
        is_poll = connection.transport != WEBSOCKET
        if self.packs and self._sent < self.newest:
            whole = is_poll or self._rules.resend_all
            after = self.record.base if whole else self._sent
            return self._begin(Work.FETCH, do.FetchPacks(connection, after, self.newest, whole))
        self._sent = self.newest
        if connection.transport == SHORT:
            return self._end_connection() + self._release()
        return [do.WaitForPacks(connection)] if connection.transport == LONG else []

    def _begin(self, work: Work, action: Action) -> list[Action]:
        self.work = work
        return [action]

    def _confirm(self, named: _Confirmations) -> list[Action]:
        named.storing = len(named.named)
        base = self.record.base
        named.numbers = numbers = sorted({id + base for ids, _ in named.named for id in ids} & self.packs.keys())
        if numbers:
            return self._begin(Work.CONFIRM, do.ConfirmPacks([(number, self.packs[number]) for number in numbers]))
        return self.confirmed()  # nothing that waits was named

    # ── parts of the above ────────────────────────────────────────────────────────────────────

    def _note_life(self, now_ms: int, month: str) -> None:
        self.expires_ms, self._month = now_ms + self.record.ttl * 1000, month

    def _name(self, ids: tuple[int, ...], poll: StreamConnection | None) -> None:
        named = self._confirmations = self._confirmations or _Confirmations()
        named.named.append((ids, poll))
        named.ids += len(ids)

    def _add(self, items: Sequence[Item]) -> list[Numbered]:
        packs = [do.pending(item) for item in items]
        self.packs.update(packs)
        self.size += sum(pack.size for _, pack in packs)
        self.newest = items[-1].number
        return packs

    def _has_all_up_to(self, number: int) -> bool:
        """The connection takes what is new, and has all the rest."""
        if self.connection is None or self.link is not Link.OPEN or self._sent != number:
            return False
        return not self._rules.resend_all or self.connection.transport != WEBSOCKET

    def _send(self, bodies: list[do.Body], packs: list[Numbered]) -> list[Action]:
        connection = self.connection
        if connection is None:
            return []
        self._sent = packs[-1][0]
        if connection.transport == WEBSOCKET:
            return [do.SendPacks(connection, bodies, packs)]
        self.connection, self.link = None, Link.NONE
        return [do.SendPacks(connection, bodies, packs), *self._release()]

    def _end_connection(self, reason: str = "", error: Exception | None = None) -> list[Action]:
        """End the connection that is served. A poll whose confirmation is not durable hears of it when that is."""
        connection, link, self.connection, self.link = self.connection, self.link, None, Link.NONE
        if connection is None:
            return []
        ending = do.EndConnection(connection, reason, error)
        if link is Link.CONFIRMING and self._confirmations is not None:
            self._confirmations.endings[connection] = ending
            return []
        return [ending]

    def _release(self) -> list[Action]:
        """Nobody is connected: what was not stored yet stays in the log."""
        actions: list[Action] = [] if self.following is Following.LIVE else self._stop_following()
        actions.append(do.PlainAction.BECOME_QUIET)
        return actions

    def _stop_following(self) -> list[Action]:
        before, self.following, self._entries = self.following, Following.STOPPED, ()
        return [] if before is Following.STOPPED else [do.PlainAction.STOP_FEED]

    def _stop(self) -> list[Action]:
        return [*self._stop_following(), do.PlainAction.FORGET]

    def _give_up_confirming(self, error: Exception) -> list[Action]:
        """What was named is not durable, and will not be: only the end of the session is an answer to that."""
        named, self._confirmations = self._confirmations, None
        endings = named.endings.values() if named is not None else ()
        return [end if end.reason else do.EndConnection(end.connection, error=error) for end in endings]
