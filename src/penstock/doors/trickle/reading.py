"""A segment on its way out: one GET. While it waits it is one slotted object; then it is a position in the segment.

No byte is copied for a reader: all of them send the very pieces that the segment holds. One that does not take
them fast enough keeps its position, and goes on from there when its connection has room again.
"""

from __future__ import annotations

import logging

from penstock.core.ledger import Recipient
from penstock.doors.trickle import answers
from penstock.doors.trickle.channel import LiveChannel
from penstock.doors.trickle.channels import Channels
from penstock.errors import Busy, PenstockError
from penstock.http.live_answer import Outlet
from penstock.http.problems import error_response
from penstock.http.requests import Request
from penstock.http.responses import Held, Response
from penstock.http.timers import Timed
from penstock.wire import trickle
from penstock.wire.trickle_channel import Segment, content

log = logging.getLogger("penstock.trickle")


class WaitingReader(Timed, Held):
    """A reader whose answer has not begun. Those who wait are counted, and may wait so long."""

    __slots__ = ("_home", "_payer", "_request", "_seconds", "_waits", "seq")

    def __init__(self, home: Channels, request: Request, seq: int) -> None:
        super().__init__()
        self._home, self.seq = home, seq
        self._request: Request | None = request  # until its answer begins
        self._waits, self._seconds, self._payer = False, 0.0, ""

    def wait(self, seconds: float, payer: str) -> None:
        """Wait for so long, 0 is for ever. Raises `Busy` when too many wait, or too many of that *payer*."""
        self._home.readers.check(payer)
        self._home.readers.take(payer)
        self._waits, self._seconds, self._payer = True, seconds, payer
        if seconds:
            self._home.wheel.arm(self, seconds)

    def taken(self) -> Request | None:
        """The request, once, for whoever answers it: the wait is over."""
        request, self._request = self._request, None
        if request is not None and self._waits:
            self._home.readers.leave(self._payer)
            self._home.wheel.forget(self)
        return request

    def stop(self) -> None:
        """Want nothing more."""
        raise NotImplementedError

    def head(self) -> int:
        """The number of the segment that comes next."""
        raise NotImplementedError

    def answer(self, response: Response, *, close: bool = False) -> None:
        """Answer with nothing of a segment, unless an answer has begun."""
        request = self.taken()
        self.stop()
        if request is not None:
            request.answer(response, close=close)

    def lost(self) -> None:
        """The reader is gone."""
        self.taken()
        self.stop()

    def expired(self) -> None:
        """It has waited as long as it wanted to."""
        self.answer(answers.timed_out(self.seq, self.head(), self._seconds))

    def draining(self) -> None:
        """The server stops."""
        self.answer(error_response(Busy("time before the server stops", 0)), close=True)


class SegmentReading(WaitingReader):
    """One reader of one segment."""

    __slots__ = ("_asked", "_at", "_channel", "_done", "_latest", "_outlet", "_present", "_segment", "_who")

    def __init__(
        self, home: Channels, channel: LiveChannel, request: Request, segment: Segment, who: Recipient, asked: int
    ) -> None:
        super().__init__(home, request, segment.seq)
        self._channel, self._segment, self._who = channel, segment, who
        self._asked = asked  # the number as it was given: a negative one means whatever comes
        self._outlet: Outlet | None = None
        self._latest, self._present = channel.head, segment.size  # as they are now, when it came
        self._at = 0
        self._done = False

    def begin(self, wait: float, payer: str) -> None:
        """Send what is there, or wait for it: *wait* seconds, 0 for ever. Raises `Busy` when too many wait."""
        segment = self._segment
        if not segment.begun:
            self.wait(wait, payer)
        segment.readers[self] = None
        if segment.begun:
            self.look()

    def head(self) -> int:
        return self._channel.head

    def stop(self) -> None:
        if not self._done:
            self._done = True
            self._channel.release(self._segment, self)

    # ── as the watcher of the segment ─────────────────────────────────────────────────────────

    def moved(self) -> None:
        self._home.waking.wake(self.look)

    def look(self) -> None:
        """Send what there is, or that it has ended."""
        if self._done:
            return
        if self._segment.cut:
            self._end_cut()
        elif self._outlet is None and not self._segment.size:
            self._answer_empty()
        else:
            if self._outlet is None:
                self._open()
            self._pump()

    def dropped(self, reason: str) -> None:
        """What it has not read yet is gone. A proper end would look like the segment's: the connection is cut."""
        self.stop()
        channel, seq = self._channel, self.seq
        channel.note(seq, self._who, "dropped", reason)
        log.info(
            "trickle.reader_dropped", extra={"channel": channel.name, "seq": seq, "at": self._at, "reason": reason}
        )
        if self._outlet is not None:
            self._outlet.abort()

    def renumbered(self, segment: Segment) -> None:
        """The channel begins at another number. A reader of the newest gets that; others hear that theirs is gone."""
        if self._asked < 0:
            self._segment, self.seq, self._latest = segment, segment.seq, segment.seq
            segment.readers[self] = None
        else:
            self.answer(answers.missing(self._home.settings.missing_status, self._asked, segment.seq, segment.seq))

    def _end_cut(self) -> None:
        """The segment will never be whole: cut the connection if bytes were sent; else answer that it is missing."""
        if self._request is None:
            self.dropped(f"the segment was {self._segment.end}")
        else:
            self.answer(answers.cut_off(self._home.settings.missing_status, self._asked, self.seq))

    def _open(self) -> None:
        channel, request = self._channel, self.taken()
        if request is None:
            return
        headers = [("Content-Type", channel.mime or answers.OCTETS), ("Cache-Control", "no-store")]
        headers += [(trickle.SEQ, str(self.seq)), (trickle.SIZE, str(self._present))]
        headers.append((trickle.EPOCH, str(channel.epoch)))
        if self._latest != self.seq:
            headers.append((trickle.LATEST, str(self._latest)))
        try:
            self._outlet = request.open(200, tuple(headers), owner=self, watch=channel.recorder is not None)
        except PenstockError as error:  # its token has ended, or has too many open: that is not the publisher's trouble
            self.stop()
            request.answer(error_response(error))

    def _pump(self) -> None:
        """Hand pieces to the connection as long as it takes them."""
        outlet, segment = self._outlet, self._segment
        if outlet is None or self._done:
            return
        while self._at < segment.size and not outlet.full:
            framed, self._at = segment.piece(self._at)
            outlet.send(framed if outlet.chunked else content(framed))
        if self._at == segment.size and segment.end:
            self.stop()
            outlet.close()

    def _answer_empty(self) -> None:
        """The segment ended without a byte."""
        response = answers.empty((trickle.SEQ, str(self.seq)), (trickle.LATEST, str(self._channel.head)))
        if self._channel.is_over(self._segment):
            response.headers += ((trickle.CLOSED, trickle.TERMINATED),)
        self.answer(response)

    # ── as the owner of the outlet ────────────────────────────────────────────────────────────

    def flushed(self) -> None:
        """The kernel has all that was handed over; the ledger hears of whole segments."""
        if self._done and self._at == self._segment.size:
            self._at = -1  # once
            self._channel.note(self.seq, self._who, "sent", "")

    def drained(self) -> None:
        self._pump()

    def draining(self) -> None:
        """An end in the middle must not look like the segment's."""
        if self._outlet is None:
            super().draining()
        elif not self._segment.end:
            self._outlet.abort()
