"""A segment on its way in: one POST, from its head to its answer. No task, and a slot of the wheel while it waits.

connected ──first byte──▶ writing ──end──▶ complete ──(recorded)──▶ 200
    │ 100 Continue, again and again          │
    └ 408 after its time                     └ connection lost: the segment waits for another writer
"""

from __future__ import annotations

from penstock.doors.trickle import answers
from penstock.doors.trickle.channel import LiveChannel
from penstock.doors.trickle.channels import Channels
from penstock.errors import Busy, PenstockError, TooLarge
from penstock.http.requests import Request
from penstock.http.responses import Held, Response
from penstock.http.timers import Timed
from penstock.wire import trickle
from penstock.wire.trickle import SeqInvalid, parse_seq
from penstock.wire.trickle_channel import OVERSIZED, Segment, WriteRefused


class Posting(Timed, Held):
    """One publisher's request, the writer of its segment."""

    __slots__ = ("_began", "_channel", "_home", "_limit", "_received", "_request", "_segment", "_skip", "seq")

    def __init__(self, home: Channels, channel: LiveChannel, request: Request) -> None:
        super().__init__()
        self._limit = home.segment_limit(channel)
        self._home, self._channel, self._request = home, channel, request
        self._segment: Segment | None = None  # None once it is not ours any more
        self._received = self._skip = 0  # bytes that came, and that are to be passed over
        self._began = home.time()
        self.seq = 0

    def check(self, asked: int) -> None:
        """Raise what `begin` would raise for a channel that is yet to be made."""
        if asked < -1:
            raise SeqInvalid(str(asked))
        self._offset(asked)

    def begin(self, asked: int) -> None:
        """Take the segment and let the body come. Raises what `Channel.take` raises."""
        reset = bool(self._request.header(trickle.RESET))
        offset = self._offset(asked)
        segment = self._segment = self._channel.take(asked, self, self._began, reset=reset)
        self._home.posting += 1
        self.seq = segment.seq
        self._skip = 0 if offset is None else segment.size - offset
        settings = self._home.settings
        self._home.wheel.arm(self, min(settings.sign_of_life, settings.preconnect))
        self._request.divert(self)

    def _offset(self, asked: int) -> int | None:
        """A publisher that sends a segment again says where it begins: what is here already is not taken twice."""
        text = self._request.header(trickle.OFFSET)
        if text is None:
            return None
        offset = parse_seq(text.decode("latin-1"))
        size = self._channel.size_of(self._channel.position(asked)) or 0
        if not 0 <= offset <= size:
            why = f"the segment has {size} bytes; what comes begins at {offset}"
            raise WriteRefused("offset_beyond", why, "Send it from an earlier byte.")
        return offset

    # ── as the sink of the body ───────────────────────────────────────────────────────────────

    @property
    def full(self) -> bool:
        """The log is behind: what comes would only pile up."""
        recorder = self._channel.recorder
        if recorder is None or not recorder.full:
            return False
        recorder.want_room(self)
        return True

    def put(self, piece: bytes) -> None:
        if self._segment is None or not piece:
            return
        if not self._received:
            self._home.wheel.disarm(self)
        if self._skip:
            self._received += min(self._skip, len(piece))
            piece, self._skip = piece[self._skip :], max(0, self._skip - len(piece))
            if not piece:
                return
        size = self._segment.size + len(piece)
        # What still fits is taken: where a segment ends must not depend on how its bytes were cut on their way.
        piece = piece[: self._limit - self._segment.size]
        try:
            self._channel.write(self._segment, piece, self._home.time())
        except WriteRefused as error:
            self.end(error)
            return
        self._received += len(piece)
        self._home.relayed += len(piece)
        if size > self._limit:
            self.end(TooLarge("segment bytes", size, self._limit))

    def end(self, error: PenstockError | None) -> None:
        segment, now = self._segment, self._home.time()
        if segment is None:
            return
        self._forget()
        if error is None:
            try:
                self._channel.finish(segment, now)
            except WriteRefused as refused:
                error = refused
            else:
                self._channel.confirm(self)
                return
        self._channel.leave(segment, self, now)
        if isinstance(error, TooLarge) and segment.size:
            self._channel.finish(segment, now, OVERSIZED)
        self._answer(answers.refused(error, self._channel, segment.seq))
        self._home.drop_unused(self._channel)

    def want_more(self) -> None:
        """The log has caught up."""
        self._request.want_body()

    def confirmed(self, error: Exception | None = None) -> None:
        """The segment is complete, and in the log if it goes there; or the log does not take it."""
        if error is not None:
            self._answer(answers.refused(error, self._channel, self.seq))
            return
        response = answers.empty((trickle.SEQ, str(self.seq)), (trickle.EPOCH, str(self._channel.epoch)))
        self._request.answer(response, close=not self._received)

    # ── as the writer of a segment ────────────────────────────────────────────────────────────

    def cut(self, reason: str) -> None:
        """Somebody else ended the segment, or writes it now."""
        self._forget()
        if not self._received and reason != "replaced":
            response = answers.empty((trickle.SEQ, str(self.seq)))
            if self._channel.closed:
                response.headers += ((trickle.CLOSED, trickle.TERMINATED),)
            self._answer(response)
            return
        why = f"segment {self.seq} was {reason} after {self._received} bytes of this request"
        code = "segment_replaced" if reason == "replaced" else "segment_closed"
        error = WriteRefused(code, why, f"Go on with {self._channel.head}; GET next tells the number.")
        self._answer(answers.refused(error, self._channel, self.seq))

    # ── what else may happen ──────────────────────────────────────────────────────────────────

    def expired(self) -> None:
        """Still no byte: a sign of life, or the end of our patience."""
        settings, waited = self._home.settings, self._home.time() - self._began
        if self._segment is None:
            return
        if waited < settings.preconnect:
            self._request.interim()
            self._home.wheel.arm(self, min(settings.sign_of_life, settings.preconnect - waited))
            return
        self._home.timeouts += 1
        self._leave()
        self._answer(answers.timed_out(self.seq, self._channel.head, settings.preconnect))

    def lost(self) -> None:
        """The publisher is gone."""
        self._leave()

    def draining(self) -> None:
        """The server stops: the publisher goes on after it is back."""
        if self._segment is not None:
            self._leave()
            self._answer(answers.refused(Busy("time before the server stops", 0), self._channel, self.seq))

    def _leave(self) -> None:
        segment = self._segment
        if segment is not None:
            self._forget()
            self._channel.leave(segment, self, self._home.time())
            self._home.drop_unused(self._channel)

    def _forget(self) -> None:
        self._home.posting -= self._segment is not None
        self._segment = None
        self._home.wheel.forget(self)

    def _answer(self, response: Response) -> None:
        """Answer in the middle of the body: the rest is not read."""
        self._request.answer(response, close=True)
