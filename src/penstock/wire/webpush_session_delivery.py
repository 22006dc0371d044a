"""The half of a session that delivers: what the user agent has not acknowledged, and when its storage is read.

    direct ──▶ sent ──▶ acked                        never stored, unless the session ends before the ack
    stored ──▶ sent, by pages ──▶ acked, deleted

What is known of the storage, once the user agent has a router record:

                hint, or BUSY    the worker's turn     a page with items    every month is empty
    READ        UNREAD           –                     –                    –
    UNREAD      –                READING, if it may    –                    –
    READING     OUTDATED         –                     UNREAD               READ
    OUTDATED    –                –                     UNREAD               UNREAD

It may be read when no stored notification is unacknowledged, the window is open and the socket takes bytes. While
`webpush.window` notifications are unacknowledged, direct ones are BUSY: their endpoint stores them.

How a session moves to the next month, by the specification's rules for connection nodes:

    1. the session came with this node's month: nothing to do, also when the month ends meanwhile
    2. read the old month, send, wait for all acks
    3. copy the channels to the new month                                      3 and 4 are one job, `MoveMonth`:
    4. write the new month into the router record                              no command runs between them
    5. read the old month once more, then the new one: an endpoint may have read the record before 4 and have
       stored after 2. The old month stays in sight from then on, at the next connect too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from penstock.values import Item
from penstock.wire import webpush as wire
from penstock.wire.webpush import NodeAnswer, PushMessage
from penstock.wire.webpush_actions import (
    Action,
    Discard,
    DropAgent,
    Job,
    MoveMonth,
    PushSessionRules,
    ReadPage,
    RecordState,
    SendFrame,
    Settle,
    Signal,
    Unacked,
)
from penstock.wire.websocket_frames import text_frame

_ACK_REASONS = {101: "decryption_failed", 102: "not_delivered"}


class SessionPhase(Enum):
    """The table of `webpush_session.py`."""

    SILENT = auto()
    OPEN = auto()
    ENDING = auto()
    LEFT = auto()


class StorageState(Enum):
    """The table above."""

    READ = auto()
    UNREAD = auto()
    READING = auto()
    OUTDATED = auto()


SILENT, OPEN, ENDING, LEFT = SessionPhase
READ, UNREAD, READING, OUTDATED = StorageState


class DeliveringSession:
    """Base of `PushSession`."""

    __slots__ = (
        "_commands", "_follow_up", "_lay", "_read", "_rules", "_stored", "_unflushed", "_waiting_upto", "at_work",
        "channels", "crowded", "month", "moves", "phase", "saved", "storage", "uaid", "unacked",
    )  # fmt: skip

    reads_previous = True
    """Look into the month before, too. Only a test that shows what this is for says no."""

    def __init__(self, rules: PushSessionRules) -> None:
        self._rules = rules
        self.phase, self.storage = SILENT, READ
        self.uaid = self.month = ""
        self.channels: frozenset[str] = frozenset()
        self.saved = self.moves = self.crowded = False  # see `AgentIdentity`
        self.at_work = False  # the worker runs, or was told to
        self.unacked: dict[str, Unacked] = {}
        self._stored = 0  # of them, and of those whose acks are being settled: those that are in the storage
        self._read: dict[str, int] = {}  # months to look into, oldest first, and up to where that was done
        self._waiting_upto: dict[str, float] = {}  # by month: the numbers that lay there when it came
        self._lay: dict[str, int] = {}  # by channel: how many of them were read
        self._unflushed: list[Unacked] | None = None  # sent, but not with the kernel yet
        self._commands: list[wire.Heard | wire.Mistake] | None = None  # that wait for the worker
        self._follow_up: Job | None = None  # what a job leads to, before any command

    # ── direct notifications, and hints ───────────────────────────────────────────────────────

    def push(self, message: PushMessage, *, full: bool) -> tuple[NodeAnswer, Sequence[Action]]:
        """Send a notification past the storage, if the user agent is able to take one. *full*: the socket is."""
        if self.phase is not OPEN:
            return NodeAnswer.ABSENT, ()
        if len(self.unacked) >= self._rules.window or self.crowded or full:
            self._outdate()
            return NodeAnswer.BUSY, ()
        return NodeAnswer.TAKEN, (self._send(Unacked(message)),)

    def notified(self, month: str) -> tuple[NodeAnswer, Sequence[Action]]:
        """Somebody stored a message: look into the storage now, or when that is possible."""
        if month and month not in self._read and self.reads_previous:
            self._read = {month: 0, **self._read}
        self._outdate()
        if self.phase is not OPEN:
            return NodeAnswer.LATER, ()
        return NodeAnswer.TAKEN if self._may_read else NodeAnswer.LATER, self._and_work([])

    def has_read(self, month: str, number: int) -> bool:
        """What is stored up to that number was read, or will be without a hint."""
        return self.storage in (UNREAD, OUTDATED) or self._read.get(month, 0) >= number

    def flushed(self) -> list[Action]:
        """The kernel has taken everything."""
        sent, self._unflushed = self._unflushed, None
        return [RecordState("sent", one.message.version, one.month, one.number) for one in sent or ()]

    def drained(self) -> list[Action]:
        """The socket was full and takes bytes again."""
        return self._and_work([])

    def _send(self, one: Unacked) -> SendFrame:
        self.unacked[one.message.version] = one
        if self._unflushed is None:
            self._unflushed = [one]
        else:
            self._unflushed.append(one)
        return SendFrame(text_frame(wire.notification(one.message)))

    # ── the storage ───────────────────────────────────────────────────────────────────────────

    @property
    def _may_read(self) -> bool:
        """As far as is known here: the socket may be full."""
        return self.storage is UNREAD and self.saved and not self._stored and len(self.unacked) < self._rules.window

    def _and_work(self, actions: list[Action]) -> list[Action]:
        """*actions*, and the worker's start if there is something for it."""
        if not self.at_work and self.phase is not LEFT and (self._commands or self._may_read):
            self.at_work = True
            actions.append(Signal.START_WORKER)
        return actions

    def _outdate(self) -> None:
        self.storage = OUTDATED if self.storage in (READING, OUTDATED) else UNREAD

    def _look_into(self, month: str, previous: str = "") -> None:
        self.month = month
        self._read = {previous: 0, month: 0} if previous and self.reads_previous else {month: 0}

    def _read_on(self) -> ReadPage:
        self.storage = READING
        return self._page_of(next(iter(self._read)))

    def _page_of(self, month: str) -> ReadPage:
        return ReadPage(month, self._read[month])

    def page(self, month: str, items: Sequence[Item]) -> list[Action]:
        """These come next in that month; none: it is empty from there on."""
        if not items:
            self._month_is_empty(month)
            return []
        too_many = self._past_the_limit(month, items)
        if too_many and len(self.channels) == 1:
            self._follow_up = DropAgent(tuple(self._read))
            return []
        if self.phase is not OPEN:  # it has left: its items were counted for the limit, but are not sent
            self.storage = READ
            return []
        self.storage, self._read[month] = UNREAD, items[-1].number
        unwanted = dict.fromkeys(too_many, "msg_limit")
        unwanted |= {item.number: "unregistered" for item in items if item.channel not in self.channels}
        if unwanted:
            self._follow_up = Discard({month: list(unwanted)})
        return [
            action
            for item in items
            if (action := self._take_item(month, item, unwanted.get(item.number, ""))) is not None
        ]

    def _past_the_limit(self, month: str, items: Sequence[Item]) -> list[int]:
        """Count what lay there; the numbers of those with which their channel has more than it may.

        By channel, as whoever knows the endpoint of one must not cost the user agent its other subscriptions. If it
        has no other, it is dropped and subscribes anew, as with autopush.
        """
        limit, upto, past = self._rules.msg_limit, self._waiting_upto.get(month, 0), list[int]()
        for item in items:
            if limit and item.number <= upto and item.channel in self.channels:
                self._lay[item.channel] = self._lay.get(item.channel, 0) + 1
                if self._lay[item.channel] > limit:
                    past.append(item.number)
        return past

    def _take_item(self, month: str, item: Item, unwanted: str) -> Action | None:
        """Send one; if it is on its way already as a direct one, only its ack has to reach the storage."""
        if unwanted:
            return RecordState("dropped", item.message_id, month, item.number, unwanted)
        one = Unacked(wire.from_item(self.uaid, item), month, item.number)
        self._stored += 1
        if item.message_id in self.unacked:
            self.unacked[item.message_id] = one
            return None
        return self._send(one)

    def _month_is_empty(self, month: str) -> None:
        months = list(self._read)
        if later := months[months.index(month) + 1 :]:
            self._follow_up = self._page_of(later[0])
            return
        self.crowded = False
        self.storage = UNREAD if self.storage is OUTDATED else READ
        if self.moves and self.phase is OPEN:
            self._follow_up = MoveMonth(self.month)

    def month_gone(self, month: str) -> None:
        """The month before was dropped: nothing of it is left."""
        self._month_is_empty(month)
        del self._read[month]

    def _move(self, month: str) -> None:
        """Step 5: both months are to be read."""
        old, self.month, self.moves = self.month, month, False
        self._read = {old: self._read[old], month: 0} if self.reads_previous else {month: 0}
        self.storage = UNREAD

    # ── acknowledgements ──────────────────────────────────────────────────────────────────────

    def _is_simple(self, updates: Sequence[wire.Update]) -> bool:
        """Whether these are of direct notifications only: then nothing has to be waited for."""
        for update in updates:
            one = self.unacked.get(update.version)
            if one is not None and (one.month or one.message.receipt):
                return False
        return True

    def _take_acks(self, updates: Sequence[wire.Update], actions: list[Action]) -> tuple[Unacked, ...]:
        """Note what arrived; unknown versions are passed over."""
        acked = []
        for update in updates:
            one = self.unacked.pop(update.version, None)
            if one is not None:
                reason = _ACK_REASONS.get(update.code or 100, "")
                actions.append(RecordState("acked", update.version, one.month, one.number, reason))
                acked.append(one)
        return tuple(acked)

    def _acknowledge(self, updates: Sequence[wire.Update]) -> tuple[list[Action], Job | None]:
        is_simple, actions = self._is_simple(updates), list[Action]()
        acked = self._take_acks(updates, actions)
        return actions, None if is_simple else Settle(acked)

    def settled(self, acked: Sequence[Unacked]) -> None:
        """These acks are durable, and what was stored is deleted."""
        self._stored -= sum(bool(one.month) for one in acked)

    def _forget_channel(self, channel: str) -> list[Action]:
        """Wait for no acks of a channel that is gone. What was sent of another month is still to be deleted there."""
        actions: list[Action] = []
        elsewhere: dict[str, list[int]] = {}
        for version, one in list(self.unacked.items()):
            if one.message.channel == channel:
                del self.unacked[version]
                self._stored -= bool(one.month)
                if one.month != self.month:
                    actions.append(RecordState("dropped", version, one.month, one.number, "unregistered"))
                if one.month not in ("", self.month):
                    elsewhere.setdefault(one.month, []).append(one.number)
        if elsewhere:
            self._follow_up = Discard(elsewhere)
        return actions

    def _take_unsaved(self) -> tuple[list[Action], tuple[PushMessage, ...]]:
        """Direct notifications that nobody acknowledged, to be stored now; those without a TTL are dropped."""
        direct = [one.message for one in self.unacked.values() if not one.month]
        self.unacked = {}
        dropped: list[Action] = [RecordState("dropped", one.version, reason="ttl_0") for one in direct if not one.ttl]
        return dropped, tuple(message for message in direct if message.ttl)
