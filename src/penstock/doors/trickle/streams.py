"""Segments that come from the log: recorded channels, and every stream, with the index as seq.

A stream is read as a channel that cannot be closed. Its head is the next index; a reader that asks for this index
waits on a feed, like any live reader.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api.context import Context
from penstock.core.feed import Feed, take_if_room
from penstock.core.ledger import Ledger, Recipient
from penstock.doors.trickle import answers
from penstock.doors.trickle.channel import attributes_of, is_cut
from penstock.doors.trickle.channels import Channels
from penstock.doors.trickle.reading import WaitingReader
from penstock.doors.trickle.requests import SegmentRequest
from penstock.errors import PenstockError, Trimmed
from penstock.http.live_answer import Outlet
from penstock.http.problems import error_response
from penstock.http.requests import Request
from penstock.http.responses import Held, Response
from penstock.values import Entry, Kind
from penstock.wire import trickle
from penstock.wire.http_chunks import chunk


class Streams:
    """Answers from the log."""

    def __init__(self, context: Context, home: Channels) -> None:
        self._context, self._home = context, home
        self.following: type[Following] = Following

    async def next_index(self, stream: str) -> int | None:
        """The head of a stream; None if there is none of that name."""
        head = await self._context.log.head(stream)
        return None if head is None else head.next_index

    async def serve(
        self, request: Request, stream: str, asked: int, wanted: SegmentRequest, *, closed: bool = False
    ) -> Response | Held:
        """Answer with the entry at that index. A closed channel says so beyond its end, any other waits there."""
        head = await self._context.log.head(stream)
        next_index = head.next_index if head is not None else 0
        if head is None and not closed:
            return answers.no_stream()
        seq = asked if asked >= 0 else max(0, next_index + asked + 1)
        if seq < next_index:
            return await self._send(request, stream, seq, next_index, wanted.who) or answers.missing(
                self._home.settings.missing_status, asked, next_index
            )
        if closed:
            return answers.nothing_more(seq, next_index)
        if seq > next_index or head is None:
            return answers.missing(self._home.settings.missing_status, asked, next_index)
        return self._follow(request, stream, seq, head.last_id, wanted)

    async def _send(self, request: Request, stream: str, seq: int, head: int, who: Recipient) -> Response | Held | None:
        """Send the entry, if the log still has it."""
        try:
            page = await self._context.log.read_index(stream, seq, limit=1)
        except Trimmed:
            return None
        if not page.entries or page.entries[0].index != seq:
            return None
        if is_cut(page.entries[0]):
            return answers.cut_off(self._home.settings.missing_status, seq, seq)
        sending = Sending(self._context.ledger, who)
        sending.begin(request, page.entries, head)
        return sending

    def _follow(self, request: Request, stream: str, seq: int, after: int, wanted: SegmentRequest) -> Held:
        following = self.following(self._home, self._context.ledger, request, seq, wanted.who)
        following.wait(wanted.wait, wanted.payer)
        following.feed = self._context.hub.start(following, (stream,), after=after)
        if following.full:  # what it waited for came with the feed's beginning
            following.stop()
        return following


class Sending(Held):
    """One entry on its way to one reader."""

    __slots__ = ("_entry", "_ledger", "_outlet", "_who")

    def __init__(self, ledger: Ledger, who: Recipient) -> None:
        self._ledger, self._who = ledger, who
        self._entry: Entry
        self._outlet: Outlet

    def begin(self, request: Request, entries: Sequence[Entry], head: int) -> None:
        """Answer with the first of *entries* and the parts that follow it."""
        entry = self._entry = entries[0]
        pieces = [entry.body, *(part.body for part in entries[1:] if part.kind is Kind.PART)]
        size = sum(map(len, pieces))
        headers = [("Content-Type", attributes_of(entry).content_type or answers.OCTETS), ("Cache-Control", "no-store")]
        headers += [(trickle.SEQ, str(entry.index)), (trickle.SIZE, str(size))]
        if head != entry.index:
            headers.append((trickle.LATEST, str(head)))
        self._outlet = request.open(200, tuple(headers), owner=self, watch=self._ledger.enabled)
        for piece in pieces:
            if piece:
                self._outlet.send(chunk(piece) if self._outlet.chunked else piece)
        self._outlet.close()

    def flushed(self) -> None:
        self._ledger.sent(self._who, self._entry.stream, self._entry.id, self._entry.id)

    def drained(self) -> None:
        """All of it was handed over at once: there is no more."""

    def lost(self) -> None:
        """The reader is gone before it had everything."""


class Following(WaitingReader):
    """A reader that waits for the next entry of a stream: the sink of a feed."""

    __slots__ = ("_entries", "_ledger", "feed", "who")

    def __init__(self, home: Channels, ledger: Ledger, request: Request, seq: int, who: Recipient) -> None:
        super().__init__(home, request, seq)
        self._ledger, self.who = ledger, who
        self._entries: list[Entry] = []
        self.feed: Feed | None = None

    def head(self) -> int:
        return self.seq

    def stop(self) -> None:
        if self.feed is not None:
            self.feed.stop()

    @property
    def full(self) -> bool:
        return self._request is None

    def deliver(self, entries: Sequence[Entry]) -> None:
        whole = False
        for entry in entries:
            if self._entries:
                if entry.kind is Kind.PART:
                    self._entries.append(entry)
                else:
                    whole = True  # it said more parts than it has
                    break
            elif entry.index == self.seq:
                self._entries.append(entry)
        if self._entries and (whole or len(self._entries) > int(attributes_of(self._entries[0]).parts)):
            self._send()

    def _send(self) -> None:
        if is_cut(self._entries[0]):
            self.answer(answers.cut_off(self._home.settings.missing_status, self.seq, self.seq))
        elif (request := self.taken()) is not None:
            self.stop()
            try:
                Sending(self._ledger, self.who).begin(request, self._entries, self.seq)
            except PenstockError as error:  # its token has ended, or has too many open
                request.answer(error_response(error))

    deliver_last = take_if_room

    def gap(self, after: int, upto: int) -> None:
        """It was trimmed before it could be read."""
        self.answer(answers.missing(self._home.settings.missing_status, self.seq, self.seq + 1))

    def failed(self, error: Exception) -> None:
        self.answer(error_response(error))
