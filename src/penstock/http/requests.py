"""One request and its answer: what a handler sees of the connection layer.

    def hello(request: Request) -> Response:                 # answered at once
    def publish(request: Request) -> Later:                  # answered when a future is done; no task
    def poll(request: Request) -> Held:                      # answered by somebody else, later; no future either
    async def upload(request: Request) -> Response | None:   # runs in a task, under the route's deadline

A request is answered exactly once, in one of four ways:

    Response                      a complete answer, returned (or the result of the future, the coroutine)
    request.answer(…)             a complete answer, later, by the `Held` that the handler returned
    request.open(…)               a live answer: bytes flow through the `Outlet` until it is closed
    request.accept_websocket(…)   the connection becomes a `WebSocket`

After one of the last two the handler returns `LIVE`, or its coroutine returns None. The request object is
not kept by the connection after that, so keep from it what you need and let it go.

A `PenstockError` that a handler raises becomes the answer (`problems.py`), in the route's form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.http.bodies import BodySink, BodyStream
from penstock.http.live_answer import Outlet, Owner
from penstock.http.output import Tap
from penstock.http.responses import HandlerAnswer, Headers, Response
from penstock.http.websocket import WebSocket, WebSocketOwner
from penstock.wire import http_requests, urls

Handler = Callable[["Request"], HandlerAnswer]


class TokenHolder(Protocol):
    """The holder of the token that opens a live answer."""

    @property
    def subject(self) -> str:
        """Its live answers are counted under this name; with an empty name they are not counted."""
        ...

    @property
    def expires(self) -> float:
        """When the token expires, in seconds since 1970."""
        ...


class RequestConnection(Protocol):
    """What a request needs of its connection."""

    def open(self, request: Request, status: int, headers: Headers, owner: Owner, *, watch: bool) -> Outlet: ...
    def accept(self, request: Request, owner: WebSocketOwner, subprotocol: str | None, *, watch: bool) -> WebSocket: ...
    def check_handshake(self, request: Request) -> bytes: ...
    def interim(self, request: Request, status: int, headers: Headers) -> None: ...
    def answer(self, request: Request, response: Response, *, close: bool) -> None: ...


class Request:
    """One request. Names of headers are lower case; values are as they came."""

    __slots__ = (
        "_connection", "_params", "_path", "_stream", "_tap", "body", "bounded", "caller", "captures", "fields_memo",
        "headers", "http10", "memo", "method", "peer", "plain", "query", "raw_path", "scheme", "timeout",
    )  # fmt: skip

    def __init__(self, connection: RequestConnection, head: http_requests.RequestHead, peer: str, scheme: str) -> None:
        self._connection = connection
        self.method: str = head.method
        self.raw_path: str = head.path  # as it came, percent signs and all: what routing looks at
        self.query: str = head.query  # as it came, without the question mark
        self.headers: list[tuple[bytes, bytes]] = head.headers
        self.http10: bool = head.http10
        self.plain: bool = head.plain
        self.memo = head.memo  # shared by all requests with the very same head: keep in it what follows from that alone
        self.fields_memo = head.fields_memo  # the same for all with the very same fields, whatever they ask for
        self.peer = peer  # the client's address, from a trusted proxy's word if there is one
        self.scheme = scheme
        self.captures: tuple[str, ...] = ()  # what the wildcards of the route's path stand for, decoded
        self.caller: TokenHolder | None = None  # who asks, once it is known
        self.body: bytes = b""  # complete, on routes that take the body whole
        self.bounded = False  # its route has a deadline
        self.timeout: float | None = None  # the same in seconds, where the connection has to see to it
        self._path: str | None = None
        self._params: dict[str, str] | None = None
        self._stream: BodyStream | None = None
        self._tap: Tap | None = None  # the live answer, once it has begun

    @property
    def path(self) -> str:
        """The path, percent-decoded: for people and names, not for deciding what is meant."""
        if self._path is None:
            self._path = urls.decode_level(self.raw_path)
        return self._path

    @property
    def params(self) -> dict[str, str]:
        """The query's parameters. A repeated name or bad encoding raises `InputInvalid`."""
        if self._params is None:
            self._params = urls.parse_query(self.query)
        return self._params

    def divert(self, sink: BodySink) -> None:
        """Have the body, from its first byte on, put into *sink* as it comes, on routes that stream it.

        No task is needed for that. A client that waits for `100 Continue` gets it now. While the sink is full no more
        is taken from the socket. Without a body the sink hears its end at once.
        """
        if self._stream is None:
            sink.end(None)
        else:
            self._stream.divert(sink)

    def want_body(self) -> None:
        """A sink that was full takes more of the body again."""
        if self._stream is not None:
            self._stream.resume()

    def answer(self, response: Response, *, close: bool = False) -> None:
        """Answer a request that is held; with *close* the connection ends after it. Too late is no error."""
        self._connection.answer(self, response, close=close)

    def header(self, name: bytes) -> bytes | None:
        """The first header of that lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def open(self, status: int, headers: Headers = (), *, owner: Owner, watch: bool = False) -> Outlet:
        """Begin a live answer. The head goes out with the first flush.

        Raises `TooManyOpen` when the caller has too many, and `Unauthenticated` when its token has ended meanwhile.
        The answer to a HEAD request has no body: the outlet is closed from the start, and the owner soon
        hears `lost`.
        """
        return self._connection.open(self, status, headers, owner, watch=watch)

    def accept_websocket(
        self, owner: WebSocketOwner, subprotocol: str | None = None, *, watch: bool = False
    ) -> WebSocket:
        """Answer the handshake. Raises `InputInvalid` or `Forbidden` if the request does not allow it.

        Raises what `open` raises, too.
        """
        return self._connection.accept(self, owner, subprotocol, watch=watch)

    def check_websocket(self) -> None:
        """Raise what `accept_websocket` would raise for this handshake; for handlers that accept it later."""
        self._connection.check_handshake(self)

    def interim(self, status: int = 100, headers: Headers = ()) -> None:
        """Send an interim response (1xx) at once. HTTP/1.0 clients know none: nothing is sent to them."""
        self._connection.interim(self, status, headers)
