"""A segment on its way out: one GET. While it waits it is one slotted object; then it is a position in the segment.

No byte is copied for a reader: all of them send the very pieces that the segment holds. One that does not take
them fast enough keeps its position, and goes on from there when its connection has room again.
"""

from __future__ import annotations

from penstock.core.ledger import Recipient
from penstock.doors.trickle import answers
from penstock.doors.trickle.channel import LiveChannel
from penstock.doors.trickle.channels import Channels
from penstock.errors import Busy, PenstockError
from penstock.http.exchange import Held, Request
from penstock.http.flush import Outlet
from penstock.http.problems import error_response
from penstock.http.wheel import Timed
from penstock.wire import trickle
from penstock.wire.trickle_channel import Segment, content


class Reading(Timed, Held):
    """One reader of one segment."""

    __slots__ = (
        "_asked", "_at", "_channel", "_done", "_home", "_latest", "_outlet", "_present", "_request", "_segment",
        "_wait", "_who",
    )  # fmt: skip

    def __init__(
        self, home: Channels, channel: LiveChannel, request: Request, segment: Segment, who: Recipient, asked: int
    ) -> None:
        super().__init__()
        self._home, self._channel, self._segment, self._who = home, channel, segment, who
        self._asked = asked  # the number as it was given: a negative one means whatever comes
        self._request: Request | None = request  # until it is answered
        self._outlet: Outlet | None = None
        self._latest, self._present = channel.head, segment.size  # as they are now, when it came
        self._at = 0
        self._wait = 0.0
        self._done = False

    def begin(self, wait: float) -> None:
        """Send what is there, or wait for it: *wait* seconds, 0 for ever. Raises `Busy` when too many wait."""
        segment = self._segment
        if not segment.size and not segment.end:
            self._home.admit_waiting()
            if wait:
                self._wait = wait
                self._home.wheel.arm(self, wait)
        segment.readers[self] = None
        if segment.size or segment.end:
            self._home.waiting += 1  # `_open` and `_answer_empty` end a wait
            self.moved()

    # ── as the watcher of the segment ─────────────────────────────────────────────────────────

    def moved(self) -> None:
        if self._segment.cut:
            self._end_cut()
            return
        if self._outlet is None:
            if not self._segment.size:
                self._answer_empty()
                return
            self._open()
        self._pump()

    def dropped(self, reason: str) -> None:
        """What it has not read yet is gone. A proper end would look like the segment's: the connection is cut."""
        self._stop()
        self._channel.note(self._segment.seq, self._who, "dropped", reason)
        self._home.log_dropped(self._channel.name, self._segment.seq, self._at, reason)
        if self._outlet is not None:
            self._outlet.abort()

    def renumbered(self, segment: Segment) -> None:
        """The channel begins at another number. Who asked for the newest gets that one, any other hears of it."""
        request = self._request
        if self._asked < 0:
            self._segment, self._latest = segment, segment.seq
            segment.readers[self] = None
        elif request is not None:
            self.lost()
            request.answer(answers.missing(self._home.settings.missing_status, self._asked, segment.seq, segment.seq))

    def _end_cut(self) -> None:
        """The segment will never be whole: who has bytes of it is cut off, who has none can still be told."""
        request, segment = self._request, self._segment
        if request is None:
            self.dropped(f"the segment was {segment.end}")
        else:
            self.lost()
            request.answer(answers.cut_off(self._home.settings.missing_status, self._asked, segment.seq))

    def _open(self) -> None:
        channel, segment, request = self._channel, self._segment, self._request
        assert request is not None  # noqa: S101  # it is there until the answer begins
        headers = [("Content-Type", channel.mime or answers.OCTETS), ("Cache-Control", "no-store")]
        headers += [(trickle.SEQ, str(segment.seq)), (trickle.SIZE, str(self._present))]
        headers.append((trickle.EPOCH, str(channel.epoch)))
        if self._latest != segment.seq:
            headers.append((trickle.LATEST, str(self._latest)))
        self._end_wait()
        self._request = None
        try:
            self._outlet = request.open(200, tuple(headers), owner=self, watch=channel.recorder is not None)
        except PenstockError as error:  # its token has ended, or has too many open: that is not the publisher's trouble
            self._stop()
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
            self._stop()
            outlet.close()

    def _answer_empty(self) -> None:
        """The segment ended without a byte."""
        request, channel = self._request, self._channel
        self._end_wait()
        self._stop()
        self._request = None
        if request is not None:
            response = answers.empty((trickle.SEQ, str(self._segment.seq)), (trickle.LATEST, str(channel.head)))
            if channel.is_over(self._segment):
                response.headers += ((trickle.CLOSED, trickle.TERMINATED),)
            request.answer(response)

    # ── as the owner of the outlet, and while it waits ────────────────────────────────────────

    def flushed(self) -> None:
        """The kernel has all that was handed over; the ledger hears of whole segments."""
        if self._done and self._at == self._segment.size:
            self._at = -1  # once
            self._channel.note(self._segment.seq, self._who, "sent", "")

    def drained(self) -> None:
        self._pump()

    def lost(self) -> None:
        """The reader is gone."""
        self._end_wait()
        self._stop()
        self._request = None

    def expired(self) -> None:
        """It has waited as long as it wanted to."""
        request = self._request
        if request is not None and not self._done:
            self.lost()
            request.answer(answers.timed_out(self._segment.seq, self._channel.head, self._wait))

    def draining(self) -> None:
        """The server stops. An end in the middle must not look like the segment's."""
        request = self._request
        if request is not None:
            self.lost()
            request.answer(error_response(Busy("time before the server stops", 0)), close=True)
        elif self._outlet is not None and not self._segment.end:
            self._outlet.abort()

    def _end_wait(self) -> None:
        if self._request is not None:
            self._home.waiting -= 1
            self._home.wheel.forget(self)

    def _stop(self) -> None:
        if not self._done:
            self._done = True
            self._channel.release(self._segment, self)
