"""The answering half of a connection: handlers are called, and what they answer goes out in order."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from enum import Enum
from functools import partial
from typing import Any, Final, cast

from penstock.core.promise import Pending
from penstock.errors import Busy, PeerError
from penstock.http import answer_bytes
from penstock.http.bodies import Booking, Intake
from penstock.http.live_answer import Outlet, Owner
from penstock.http.live_lease import LiveLease
from penstock.http.output import Pipe, Tap
from penstock.http.problems import HandlerTimedOut, error_response
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Headers, Held, Later, Response
from penstock.http.routing import Route
from penstock.http.shared import Shared
from penstock.http.websocket import CLOSE_SECONDS, WebSocket, WebSocketOwner
from penstock.limits import COUNTED_ANSWER_BYTES, UNREAD_BODY_BYTES
from penstock.wire import http_requests

log = logging.getLogger("penstock.http")

DISCARD_SECONDS: Final = 2.0
"""How long is read on after the last answer of a connection whose peer still sends."""


class Phase(Enum):
    """What a connection is doing."""

    PROXY = "waits for a PROXY header"
    IDLE = "waits for a request"
    HEAD = "has the beginning of a request head"
    BUSY = "has a request in progress"
    LIVE = "has a live answer"
    SOCKET = "is a WebSocket"
    DISCARD = "has said all, and reads on so that it is heard"
    CLOSED = "is gone"


class AnsweringConnection(Pipe):
    """A connection as handlers see it (`requests.RequestConnection`)."""

    __slots__ = (
        "_booking", "_buffer", "_eof", "_half", "_head", "_intake", "_keep_alive", "_latest", "_lease", "_request",
        "_route", "_scope", "_shared", "_unread", "_work", "phase",
    )  # fmt: skip

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared.prompt_flusher, shared.settings.write_high)
        self._shared = shared
        self.phase = Phase.IDLE
        self._buffer = b""  # input that waits
        self._head: http_requests.RequestHead | None = None  # of the request in progress, until it is answered
        self._latest: http_requests.RequestHead | None = None  # whose bytes came before; not while live
        self._request: Request | None = None
        self._intake: Intake | None = None  # the body that is on its way in
        self._work: Pending[Any] | Held | None = None  # what the answer waits for
        self._scope: asyncio.Timeout | None = None
        self._keep_alive = True
        self._half = False  # at the end only our half is closed at first
        self._eof = False  # the peer sends no more
        self._lease: LiveLease | None = None  # of the live answer, if a token opened it
        self._route: Route | None = None  # of the latest request that has one
        self._booking: Booking | None = None  # of the body, or of a WebSocket message, that is held here
        self._unread: Booking | None = None  # of large answers that the peer has not taken

    # ── calling handlers ──────────────────────────────────────────────────────────────────────

    def _call(self, route: Route, request: Request) -> None:
        """Run the handler; answer at once if it has its answer."""
        timeout = self._shared.settings.request_timeout if route.timeout == -1.0 else route.timeout
        request.bounded = timeout is not None
        try:
            answer = route.handler(request)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises becomes its answer
            self._completed(request, self._problem(error))
            return
        if isinstance(answer, Later):
            self._wait(request, answer.future, answer, timeout)
        elif isinstance(answer, Response):
            self._completed(request, None if answer is LIVE else answer)
        elif isinstance(answer, Held):
            self._hold(request, answer)
        elif isinstance(answer, asyncio.Future):
            self._wait(request, answer, None, timeout)
        else:
            self._work = self._shared.handler_tasks.start(self._run(request, answer, timeout))

    def _wait(self, request: Request, future: Pending[Any], later: Later | None, timeout: float | None) -> None:
        self._work = future
        request.timeout = timeout
        if timeout is not None and self._intake is None:
            self._arm(timeout)
        future.add_done_callback(partial(self._future_done, request, later))

    def _arm(self, timeout: float) -> None:
        shared = self._shared
        if timeout == shared.settings.request_timeout:
            shared.wheel.arm_ticks(self, shared.request_ticks)
        else:
            shared.wheel.arm(self, timeout)

    def _hold(self, request: Request, held: Held) -> None:
        """Wait for somebody to answer, unless that has happened already."""
        if self._request is request:
            self._work = held
        elif self.phase is Phase.CLOSED:
            held.lost()

    def answer(self, request: Request, response: Response, *, close: bool) -> None:
        """Somebody answers a request that was held, or its own handler does before it has returned."""
        if self._request is request:
            self._work = self._scope = None
            self._keep_alive = self._keep_alive and not close
            self._completed(request, response)
            self._shared.loop.call_soon(self._go_on)  # not before a handler that is running has returned

    def _future_done(self, request: Request, later: Later | None, future: Pending[Any]) -> None:
        """Answer with the future's outcome. *later* is called even if the peer has left, as that may have effects."""
        answer: Any
        try:
            answer = future.result() if later is None else later.render(future.result())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            answer = self._problem(error) if later is None or later.failed is None else later.failed(error)
        waits = self._work is future and self._request is request  # else it became live, or nobody is there
        if later is not None and type(answer) is not Response:
            work = self._shared.handler_tasks.start(self._run(request, answer, None))
            self._work = work if waits else self._work  # the deadline is still booked
        elif waits:
            self._work = None
            self._answer(answer)
            if self._buffer:
                self._go_on()

    async def _run(
        self, request: Request, work: Coroutine[Any, Any, Response | Held | None], seconds: float | None
    ) -> None:
        """Run a coroutine handler to its end. Raises nothing but its own cancellation."""
        response: Response | Held | None = None
        try:
            async with asyncio.timeout(seconds) as scope:
                if self._request is request:
                    self._scope = scope
                response = await work
        except Exception as error:  # noqa: BLE001
            late = isinstance(error, TimeoutError) and scope.expired()
            response = self._timed_out() if late else self._problem(error)
        if self._request is request:
            self._work = self._scope = None
        if isinstance(response, Held):
            self._hold(request, response)
            return
        self._completed(request, response)
        self._go_on()

    def _completed(self, request: Request, response: Response | None) -> None:
        """The handler is through, with an answer or with something live."""
        if self._request is request:
            if response is None:
                response = self._problem(RuntimeError(f"the handler of {request.raw_path} gave no answer"))
            self._answer(response)
        elif response is not None and request._tap is not None:
            # The answer had begun already and cannot be taken back.
            log.error("request.broken", extra={"path": request.raw_path, "status": response.status})
            request._tap.abort()

    def _timed_out(self) -> Response:
        self._shared.counters.timed_out += 1
        return self._problem(HandlerTimedOut("the answer took too long"))

    def _problem(self, error: BaseException) -> Response:
        """The answer that tells *error*, in the form of the request's route."""
        response = error_response(error, cast("Route", self._route).form)
        self._shared.counters.failed += response.status >= 500
        return response

    # ── complete answers ──────────────────────────────────────────────────────────────────────

    def _answer(self, response: Response) -> None:
        keep_alive = self._keep_alive = self._keep_alive and not self._shared.draining
        request: Request = self._request  # type: ignore[assignment]  # there is one until it is answered
        data = answer_bytes.encode(self._shared, request, response, keep_alive=keep_alive)
        if len(data) > COUNTED_ANSWER_BYTES:
            self._answer_much(request, data)
        elif self._buffer:
            self.write(data)  # more answers may follow in this turn
        else:
            self.write_last(data)
        self._finished()

    def _answer_much(self, request: Request, data: bytes) -> None:
        """Write an answer that stays here if the peer does not read it: refused where too many do."""
        unread = self._unread = self._unread or Booking(self._shared.answers, request.peer)
        try:
            unread.grow(unread.size + len(data))
        except Busy as error:
            data = answer_bytes.encode(self._shared, request, self._problem(error), keep_alive=self._keep_alive)
        self.write(data)
        self.flush()
        self._end_unread()

    def _end_unread(self) -> None:
        """Count its answers no longer, if they are all on their way."""
        if self._unread is not None and self.out is None and not self.stuck:
            self._unread.end()
            self._unread = None

    def _finished(self) -> None:
        """The answer is complete; its request may still be on its way in."""
        if self._booking is not None:
            self._end_booking()
        self._head = self._request = None
        if self._intake is not None:
            self._drop_body(self._intake)
        if self._keep_alive and not self._shared.draining and not (self._eof and not self._buffer):
            if self._intake is None:
                self._ready_for_next()
            else:
                self._arm_for_phase()
        elif self._intake is not None:
            self.hang_up()
        else:
            self.end()

    def _end_booking(self) -> None:
        booking, self._booking = self._booking, None
        if booking is not None:
            booking.end()

    def _drop_body(self, intake: Intake) -> None:
        """Nobody reads the rest of this body. A little of it we read past."""
        intake.dropped, intake.stream = True, None
        intake.held.clear()
        intake.limit = intake.received + UNREAD_BODY_BYTES
        intake.timeout = self._shared.settings.body_timeout  # whatever patience its route had

    # ── live answers ──────────────────────────────────────────────────────────────────────────

    def open(self, request: Request, status: int, headers: Headers, owner: Owner, *, watch: bool) -> Outlet:
        self._check_unanswered(request)
        if request.http10 or self._shared.draining:
            self._keep_alive = False
        head = answer_bytes.live_head(self._shared, request, status, headers, keep_alive=self._keep_alive)
        if request.method != "HEAD":
            self._take_lease(request)
        self.write(head)
        if request.method == "HEAD":
            self._shared.loop.call_soon(owner.lost)
            self._finished()
            self._shared.loop.call_soon(self._go_on)
            return Outlet(None, owner, chunked=False)
        outlet = Outlet(self, owner, chunked=not request.http10, watch=watch)
        self._become(Phase.LIVE, request, outlet)
        return outlet

    def accept(self, request: Request, owner: WebSocketOwner, subprotocol: str | None, *, watch: bool) -> WebSocket:
        answer = self.check_handshake(request, subprotocol)
        self._take_lease(request)
        self.write(answer)
        socket = WebSocket(self, owner, self._shared.readers, watch=watch)
        self._become(Phase.SOCKET, request, socket)
        if self._buffer:
            self._shared.loop.call_soon(self._go_on)  # not before the handler has returned
        return socket

    def check_handshake(self, request: Request, subprotocol: str | None = None) -> bytes:
        """The answer to a request that asks for a WebSocket; raises if it does not."""
        self._check_unanswered(request)
        head = cast("http_requests.RequestHead", self._head)
        if not head.upgrade or head.has_body or request.method != "GET":
            raise PeerError(426, "a WebSocket handshake is required here")
        return answer_bytes.handshake(self._shared, request, subprotocol)

    def interim(self, request: Request, status: int, headers: Headers) -> None:
        if self._request is request and not request.http10:
            if status == 100 and self._head is not None:
                self._head.expects_continue = False
            self.write(answer_bytes.interim(status, headers))

    def _check_unanswered(self, request: Request) -> None:
        if self._request is not request:
            raise PeerError(499, "the request was answered, or its peer is gone")

    def _take_lease(self, request: Request) -> None:
        caller = request.caller
        if caller is not None and (caller.expires < math.inf or self._shared.caps.counts_live):
            self._lease = LiveLease(self._shared, caller)

    def _become(self, phase: Phase, request: Request, tap: Tap) -> None:
        """A live answer has begun: the request has no deadline any more, and is not needed."""
        self.phase, self.tap, request._tap = phase, tap, tap
        self.flusher = self._shared.live_flusher
        live, door = self._shared.counters.live, cast("Route", self._route).door
        live[door] = live.get(door, 0) + 1
        if self._lease is not None:
            self._lease.begin(tap)
        if self._scope is not None:
            self._scope.reschedule(None)
            self._scope = None
        self._request = self._latest = None
        self._end_booking()
        if isinstance(self._work, Held):
            self._work = None
        if self._intake is None:
            self._head = None
        self._arm_for_phase()

    def _uncount_live(self) -> None:
        self._shared.counters.live[cast("Route", self._route).door] -= 1
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.end()

    def step_aside(self) -> None:
        if self._lease is not None:
            self._lease.step_aside()

    def tap_closed(self) -> None:
        """An outlet was closed by its owner: on with the next request."""
        if self.tap is not None and self.phase is Phase.LIVE:
            self._uncount_live()
            if not self.tap.notify:
                self.tap = None  # else it stays until its last bytes are written
            self.phase = Phase.BUSY
            self._finished()
            self.flusher = self._shared.prompt_flusher
            if self._buffer:
                self._shared.loop.call_soon(self._go_on)

    # ── ends ──────────────────────────────────────────────────────────────────────────────────

    def no_more_requests(self) -> None:
        self._keep_alive = False

    def closing(self) -> None:
        self._shared.wheel.arm(self, CLOSE_SECONDS)

    def hang_up(self) -> None:
        self._half = self.transport.can_write_eof() and not self._eof
        self.end()

    def ended(self) -> None:
        if not self._half:
            super().ended()
            return
        self._half = False
        self.let_go()
        self.phase = Phase.DISCARD if self.phase is not Phase.SOCKET else self.phase
        self._intake = None
        self._buffer = b""
        self.transport.write_eof()
        self._shared.wheel.arm(self, DISCARD_SECONDS)

    def _ready_for_next(self) -> None:
        raise NotImplementedError

    def _go_on(self) -> None:
        raise NotImplementedError

    def _arm_for_phase(self) -> None:
        raise NotImplementedError
