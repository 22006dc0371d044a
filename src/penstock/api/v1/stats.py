"""`GET /v1/stats` and `/v1/stats/live`: the last fifteen minutes of this node, second by second.

    {"ms":1718000000000,"span_ms":1000,"published":120,"delivered":{"sps":2400},"p50_ms":1.2,"p99_ms":4.8,…}

Counts are those of the step that ended at `ms` and took `span_ms`; what is 0 is left out. A second is encoded once,
when it is over, for the history and all listeners. A listener that does not read misses seconds, and delays nobody.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from penstock.api.context import Context, integer, only
from penstock.api.describing import a_list, an_object, number, operation
from penstock.http.live_answer import Outlet
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Response
from penstock.http.routing import Route
from penstock.limits import STATS_SECONDS
from penstock.wire.http_chunks import chunk

_HEADERS: Final = (("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))


class SecondJson(msgspec.Struct, omit_defaults=True):
    """What happened in one step of about a second."""

    ms: int  # when it ended, by the node's wall clock
    span_ms: int  # how long it was
    published: int = 0  # entries that came into the log, on whichever node; on a worker only those that it was given
    delivered: dict[str, int] = {}  # what this node handed to recipients, by door
    p50_ms: float | None = None  # publish → receive, of a sample
    p99_ms: float | None = None
    connections: int = 0
    live: dict[str, int] = {}  # open live answers and WebSockets, by door, and whom it serves besides
    requests: int = 0
    feeds: int = 0  # readers of the log
    lag: int = 0  # ids between the slowest of them and the log's end
    slowest: str = ""  # who that is: door and recipient
    failed: int = 0  # requests, readers and records that this server failed, and connections that it cut or refused
    undelivered: int = 0  # deliveries given up, expired, dead or lost
    retried: int = 0  # attempts that failed and are made again
    upto: int = 0  # highest id
    archived: int | None = None  # highest id in the lake; none without a pipeline
    pipeline_ms: int = 0  # since the lake was last written to, while it is behind
    cpu_ms: int = 0  # CPU time of this process


class StatsListener:
    """One open `/v1/stats/live`."""

    __slots__ = ("_api", "outlet")

    outlet: Outlet

    def __init__(self, api: StatsApi) -> None:
        self._api = api

    def send(self, event: bytes, chunked: bytes) -> None:
        """Hand over one event, unless the peer has not taken the last ones."""
        if not self.outlet.full:
            self.outlet.send(chunked if self.outlet.chunked else event)

    def drained(self) -> None:
        """The next second goes out again."""

    def lost(self) -> None:
        """The peer is gone."""
        self._api.forget(self)

    def draining(self) -> None:
        """The server stops."""
        self._api.forget(self)
        self.outlet.close()

    def token_ended(self) -> None:
        """The token has expired."""
        self._api.forget(self)
        self.outlet.close()


class StatsApi:
    """Keeps the seconds, and shows them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._seconds: deque[tuple[int, bytes]] = deque(maxlen=STATS_SECONDS)
        self._listeners: dict[StatsListener, None] = {}
        self._encode = msgspec.json.Encoder().encode

    def routes(self) -> list[Route]:
        """Its part of the table."""
        return [
            Route("GET", "/v1/stats", self.history, door="v1"),
            Route("GET", "/v1/stats/live", self.live, timeout=None, door="stats"),
        ]

    def add(self, second: SecondJson) -> None:
        """Keep one more second, in place of the oldest, and tell everybody who listens."""
        encoded = self._encode(second)
        self._seconds.append((second.ms, encoded))
        if self._listeners:
            event = b"data: %b\n\n" % encoded
            chunked = chunk(event)
            for listener in list(self._listeners):
                listener.send(event, chunked)

    def forget(self, listener: StatsListener) -> None:
        """Somebody listens no more."""
        self._listeners.pop(listener, None)

    @operation(
        "The last 15 minutes of this node, second by second.",
        query=(number("since", "Seconds that ended after this time, in milliseconds since 1970."),),
        answers={200: an_object(seconds=a_list(SecondJson))},
    )
    def history(self, request: Request) -> Response:
        """The seconds that are kept, oldest first."""
        self._context.caller(request).check_admin("stats")
        only(request, "since")
        since = integer(request, "since", 0)
        return Response(200, b'{"seconds":[%b]}' % b",".join([encoded for ms, encoded in self._seconds if ms > since]))

    @operation(
        "One server-sent event a second, each as in the list of /v1/stats; the newest at once.",
        answers={200: None},
        media="text/event-stream",
    )
    def live(self, request: Request) -> Response:
        """Answer with a response that stays open."""
        self._context.caller(request).check_admin("stats")
        only(request)
        listener = StatsListener(self)
        listener.outlet = request.open(200, _HEADERS, owner=listener)
        self._listeners[listener] = None
        event = b"data: %b\n\n" % self._seconds[-1][1] if self._seconds else b": the first second is not over\n\n"
        listener.send(event, chunk(event))
        return LIVE
