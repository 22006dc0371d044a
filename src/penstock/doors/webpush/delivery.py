"""What one connected user agent was sent and has not acknowledged, and when its storage is read.

    direct ──▶ sent ──▶ acked                        never stored, unless the session ends before the ack
    stored ──▶ sent, by pages ──▶ acked, deleted

While more than `webpush.window` notifications are unacknowledged, direct ones are refused: the endpoint
stores them, and the storage is read when all are acknowledged. A refusal or a hint that comes at a bad moment
is a flag of the session (`_recheck`), so it cannot be lost.

The month's switch, by the seed's rules for connection nodes:

    1. the session came with this node's month: nothing to do, also when the month ends meanwhile
    2. read the old month, send, wait for all acks
    3. copy the channels to the new month
    4. write the new month into the router record
    5. read the old month once more, then the new one: an endpoint may have read the record before 4 and have
       stored after 2. The old month stays in sight from then on, at the next connect too.

Only the session's own worker does this, one thing after the other: no command runs between 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.core.ledger import Recipient
from penstock.doors.webpush.items import from_item
from penstock.doors.webpush.peers import Outcome
from penstock.doors.webpush.receipts import DELIVERED
from penstock.errors import NotFound
from penstock.http.websocket import WebSocket
from penstock.http.wheel import Timed
from penstock.limits import PUSH_PAGE
from penstock.values import Item
from penstock.wire.frames import text_frame
from penstock.wire.webpush import Close, Message, Update, notification

if TYPE_CHECKING:
    from penstock.doors.webpush.agents import Agents

_ACK_REASONS = {101: "decryption_failed", 102: "not_delivered"}


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A notification that waits for its acknowledgement."""

    message: Message
    month: str = ""  # empty for a direct one, of which the storage knows nothing
    number: int = 0


class Delivery(Timed):
    """The delivering half of a session."""

    __slots__ = (
        "_new_frames", "_read", "_recheck", "_since_empty", "_stored", "channels", "check_due", "connected_at",
        "crowded", "home",
        "month", "moves", "ready", "saved", "socket", "uaid", "unacked", "who",
    )  # fmt: skip

    reads_previous = True
    """Look into the month before, too. Only a test that shows what this is for says no."""

    socket: WebSocket
    who: Recipient

    def __init__(self, home: Agents) -> None:
        super().__init__()
        self.home = home
        self.uaid = ""
        self.month = ""
        self.connected_at = 0
        self.channels: frozenset[str] = frozenset()
        self.ready = False  # its hello was answered, and it is not closing
        self.saved = False  # it has a router record: from its first register on
        self.moves = False  # it came with an old month, and goes on to this one when that is empty
        self.crowded = False  # its mailbox was full when it came: nothing goes past that before it is empty
        self.check_due = False
        self.unacked: dict[str, Sent] = {}
        self._stored = 0  # of them, those that are in the storage
        self._read: dict[str, int] = {}  # months to look into, oldest first, and up to where that was done
        self._since_empty = 0  # stored notifications sent since the storage was empty
        self._recheck = False  # the storage is to be read when that is possible again
        self._new_frames: list[tuple[str, Sent]] | None = None  # sent, but not with the kernel yet

    def wake(self) -> None:
        """Have the session's worker look after what is due."""
        raise NotImplementedError

    def close(self, code: Close, reason: str = "") -> None:
        """End the session."""
        raise NotImplementedError

    def look_into(self, month: str, previous: str = "") -> None:
        """Be on *month*, and have an eye on the one before."""
        self.month = month
        self._read = {previous: 0, month: 0} if previous and self.reads_previous else {month: 0}

    # ── direct ────────────────────────────────────────────────────────────────────────────────

    def push(self, message: Message) -> Outcome:
        """Send a notification past the storage, if the user agent is able to take one."""
        if not self.ready:
            return Outcome.ABSENT
        if len(self.unacked) >= self.home.settings.window or self.crowded or self.socket.full:
            self._recheck = True
            return Outcome.BUSY
        self._send(Sent(message))
        return Outcome.TAKEN

    def _send(self, sent: Sent) -> None:
        version = sent.message.version
        self.unacked[version] = sent
        self.socket.put(text_frame(notification(sent.message)))
        self._new_frames = self._new_frames or []
        self._new_frames.append((version, sent))

    def flushed(self) -> None:
        """The kernel has taken everything."""
        if self._new_frames is not None:
            for version, sent in self._new_frames:
                self.home.record(self.who, "sent", version, sent.month, sent.number)
            self.home.counts["sent"] += len(self._new_frames)
            self._new_frames = None

    def drained(self) -> None:
        """The user agent takes bytes again."""
        self._look_again()

    # ── stored ────────────────────────────────────────────────────────────────────────────────

    def notified(self, month: str) -> Outcome:
        """Somebody stored a message: look into the storage now, or when that is possible."""
        if month and month not in self._read and self.reads_previous:
            self._read = {month: 0, **self._read}
        self._recheck = True
        if not self.ready:
            return Outcome.LATER
        self._look_again()
        return Outcome.TAKEN if self.check_due else Outcome.LATER

    def has_read(self, month: str, number: int) -> bool:
        """What is stored up to that number was read, or will be: nobody need tell of it."""
        return self._recheck or self._read.get(month, 0) >= number

    @property
    def _may_check(self) -> bool:
        return not self._stored and len(self.unacked) < self.home.settings.window and not self.socket.full

    def _look_again(self) -> None:
        if self._recheck and self._may_check:
            self.check_due = True
            self.wake()

    async def check(self) -> None:
        """Send the next page of the storage; when there is none, see to the month."""
        self.check_due = False
        if not self.saved:
            return
        if not self._may_check:
            self._recheck = True
            return
        self._recheck = False
        for month in list(self._read):
            if await self._send_page(month):
                return
        self._since_empty, self.crowded = 0, False
        if self.moves and self.ready:
            await self._switch()

    async def _send_page(self, month: str) -> bool:
        """Send the next stored notifications of a month; False if there are none."""
        try:
            page = await self.home.mailbox.take(self.uaid, month, after=self._read[month], limit=PUSH_PAGE)
        except NotFound:
            if month == self.month:
                raise
            del self._read[month]  # the month before was dropped: nothing of it is left
            return False
        if not page:
            return False
        if await self._is_too_much(len(page)) or not self.ready:  # who has gone is counted, and sent nothing
            return True
        self._read[month] = page[-1].number
        if foreign := [item for item in page if item.channel not in self.channels]:
            await self._discard(month, foreign)
        for item in page:
            if item.channel in self.channels:
                self._send_stored(month, item)
        self.check_due = not self._stored  # a page of nothing but foreign ones: on with the next
        return True

    def _send_stored(self, month: str, item: Item) -> None:
        """Send one; if it is on its way already as a direct one, only its ack has to reach the storage."""
        sent = Sent(from_item(self.uaid, item), month, item.number)
        self._stored += 1
        if item.message_id in self.unacked:
            self.unacked[item.message_id] = sent
        else:
            self._send(sent)

    async def _discard(self, month: str, items: Sequence[Item]) -> None:
        """Delete messages of channels that were unregistered meanwhile."""
        for item in items:
            self.home.record(self.who, "dropped", item.message_id, month, item.number, "unregistered")
        await self.home.mailbox.confirm(self.uaid, month, [item.number for item in items])

    async def _is_too_much(self, count: int) -> bool:
        """Count what is read; a user agent that lets too much lie is dropped, as autopush does."""
        self._since_empty += count
        limit = self.home.settings.msg_limit
        if not limit or self._since_empty <= limit:
            return False
        await self.home.drop(self.uaid, tuple(self._read), "msg_limit")
        self.saved = False
        self.close(Close.NORMAL, "too many stored messages")
        return True

    async def _switch(self) -> None:
        """Steps 3 to 5: move to this node's month. Whoever dies in between finds everything as it was."""
        old, new = self.month, self.home.month()
        channels = await self.home.mailbox.channels(self.uaid, old)
        await self.home.mailbox.set_channels(self.uaid, new, channels)
        if not await self.home.router.move(self.uaid, self.connected_at, new):
            self.close(Close.FAILED, "superseded")
            return
        self.month, self.moves = new, False
        self._read = {old: self._read[old], new: 0} if self.reads_previous else {new: 0}
        self.check_due = True
        self.settle_later()

    def settle_later(self) -> None:
        """Have the storage read once more in a while."""
        raise NotImplementedError

    # ── acknowledged ──────────────────────────────────────────────────────────────────────────

    def is_simple(self, updates: Sequence[Update]) -> bool:
        """Whether these acks are of direct notifications only: then nothing has to be waited for."""
        for update in updates:
            sent = self.unacked.get(update.version)
            if sent is not None and (sent.month or sent.message.receipt):
                return False
        return True

    def take_acks(self, updates: Sequence[Update]) -> list[Sent]:
        """Note what arrived; unknown versions are passed over. What is stored is still to be deleted."""
        taken = []
        for update in updates:
            sent = self.unacked.pop(update.version, None)
            if sent is None:
                continue
            reason = _ACK_REASONS.get(update.code or 100, "")
            self.home.record(self.who, "acked", update.version, sent.month, sent.number, reason)
            self.home.counts["acked"] += 1
            taken.append(sent)
        return taken

    def acks_taken(self) -> None:
        """Go on with the storage if that waited for these acks."""
        if self._recheck:
            self._look_again()

    async def acknowledge(self, updates: Sequence[Update]) -> None:
        """Note what arrived, durably; delete it; tell who wants a receipt."""
        taken = self.take_acks(updates)
        stored = [sent for sent in taken if sent.month]
        if stored or any(sent.message.receipt for sent in taken):
            await self.home.flushed()  # before anything follows from it
        for month in {sent.month for sent in stored}:
            numbers = [sent.number for sent in stored if sent.month == month]
            await self.home.mailbox.confirm(self.uaid, month, numbers)
        for sent in taken:
            if sent.message.receipt:
                await self.home.receipts.report(sent.message.receipt, sent.message.version, DELIVERED)
        self._stored -= len(stored)
        if stored and not self._stored:
            self._recheck = True  # until a page is empty
        self.acks_taken()

    def forget_channel(self, channel: str) -> None:
        """Wait for no acks of a channel that is gone."""
        for version, sent in list(self.unacked.items()):
            if sent.message.channel == channel:
                del self.unacked[version]
                self._stored -= 1 if sent.month else 0
                if not sent.month:
                    self.home.record(self.who, "dropped", version, "", 0, "unregistered")
        self.acks_taken()

    def take_unsaved(self) -> list[Message]:
        """Direct notifications that nobody acknowledged, to be stored now; those without a TTL are dropped."""
        direct = [sent.message for sent in self.unacked.values() if not sent.month]
        self.unacked = {}
        for message in direct:
            if not message.ttl:
                self.home.record(self.who, "dropped", message.version, "", 0, "ttl_0")
        return [message for message in direct if message.ttl]
