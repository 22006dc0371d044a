"""The asynchronous HTTP client for requests that this server sends. Users choose the addresses: do not trust them.

A target's name is resolved for every new connection, every address it has is checked, and the connection
goes to a checked address: a name that answers differently the next moment leads nowhere else. Redirects are
answers like any other; nothing follows them. docs/decisions/0015-outgoing-http.md says why it is our own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar, cast
from urllib.parse import urlsplit

from penstock.errors import InputInvalid, PeerError
from penstock.http.resolving import Resolver, resolver
from penstock.limits import ANSWER_BODY_BYTES
from penstock.wire.http_client import AnswerReader, request_head
from penstock.wire.urls import Url

P = TypeVar("P", bound=asyncio.Protocol)

_IDLE_KEPT = 16
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class OutgoingError(Exception):
    """A request came to nothing."""


class Unreachable(OutgoingError):
    """The connection could not be made, or broke: the target cannot be reached now."""


class AddressPrivate(Unreachable):
    """It is at a private address, and nobody allowed that."""


class TimedOut(OutgoingError):
    """It was reached, and did not answer in time."""


class AnswerBroken(OutgoingError):
    """What came back is not HTTP, or too much of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. Names of headers are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


_PORT = "(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
URL: Final = (
    rf"^[Hh][Tt][Tt][Pp][Ss]?://(?:[A-Za-z0-9._-]{{1,253}}|\[[0-9A-Fa-f:.]{{2,45}}\])(?::{_PORT})?(?:[/?#][!-~]*)?$"
)
"""URLs that this server may be asked to call: a name or an address, a port, and anything printable after it."""
_URL = re.compile(URL)


def parse_url(text: str) -> Url:
    """Take a URL apart; `InputInvalid` for what is none, or has a user name in it."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InputInvalid("url", str(error), code="url_invalid") from None
    if not _URL.fullmatch(text) or not parts.hostname:
        raise InputInvalid("url", "is not http://HOST[:PORT]/PATH in ASCII, without a user name", code="url_invalid")
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Url(secure, parts.hostname, port or (443 if secure else 80), target)


def is_public(text: str) -> bool:
    """Whether an address is one of the open internet, also behind the ways to write an IPv4 address in IPv6."""
    address: Address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        address = inner or address
    return address.is_global and not address.is_multicast and not address.is_reserved


def client_context() -> ssl.SSLContext:
    """How all targets are verified: by the certificates of this machine, or of those that the environment names.

    One for all: each holds all those certificates, 0.8 MiB, and takes 24 ms to read them.
    """
    return _context_of(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _context_of(file: str | None, directory: str | None) -> ssl.SSLContext:
    return ssl.create_default_context()  # OpenSSL reads these two by itself


class Target:
    """One URL and the connections that are kept to it."""

    def __init__(
        self,
        url: Url,
        *,
        allow_private: bool = False,
        timeout: float | None = 30.0,
        connect_timeout: float = 10.0,
        limit_bytes: int | None = ANSWER_BODY_BYTES,
        names: Resolver | None = None,
    ) -> None:
        """Without *limit_bytes* a body has no limit, and has to be taken as it comes. *names*: the loop's, if None."""
        self.url, self._resolver = url, names
        self._allow_private, self._timeout, self._connect_timeout = allow_private, timeout, connect_timeout
        self._limit_bytes = limit_bytes
        self._idle: list[_Connection] = []
        self._context = client_context() if url.secure else None

    def close(self) -> None:
        """Let go of idle connections."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def post(
        self,
        body: bytes,
        headers: tuple[tuple[str, str], ...] = (),
        *,
        path: str = "",
        content_type: str = "application/json",
        method: str = "POST",
        on_piece: Callable[[AnswerReader], None] | None = None,
    ) -> Answer:
        """Send *body* and return the answer, whatever its status. Raises an `OutgoingError` without one.

        *path* is another target at the same origin than the URL's. *on_piece* is called whenever more of the answer
        has come, and may take it; a `PeerError` of it breaks the answer off. A kept connection that turns out to be
        closed is replaced, and the request sent again: post only what may come twice.
        """
        about = ("Content-Length", str(len(body))), ("Content-Type", content_type), ("User-Agent", "penstock")
        head = request_head(method, path or self.url.target, self.url.authority, (*about, *headers))
        while self._idle:
            try:
                return await self._exchange(self._idle.pop(), head + body, on_piece)
            except Unreachable:
                continue
        connection = await self.connect(lambda: _Connection(self._limit_bytes))
        return await self._exchange(connection, head + body, on_piece)

    async def _exchange(
        self, connection: _Connection, request: bytes, on_piece: Callable[[AnswerReader], None] | None
    ) -> Answer:
        try:
            async with asyncio.timeout(self._timeout):
                answer = await connection.exchange(request, on_piece)
        except TimeoutError:
            raise TimedOut(f"no answer within {self._timeout:g} s") from None
        finally:
            if not connection.reusable:
                connection.abort()
        if connection.reusable and len(self._idle) < _IDLE_KEPT:
            self._idle.append(connection)
        else:
            connection.abort()
        return answer

    async def connect(self, protocol: Callable[[], P]) -> P:
        """A new connection to a checked address, for a *protocol* that talks by itself."""
        loop = asyncio.get_running_loop()
        name = self.url.host if self._context else None
        try:
            async with asyncio.timeout(self._connect_timeout):
                address = await self._resolve(self._resolver or resolver())
                _, connection = await loop.create_connection(
                    protocol, address, self.url.port, ssl=self._context, server_hostname=name
                )
        except TimeoutError:
            raise Unreachable(f"no connection to {self.url.origin} within {self._connect_timeout:g} s") from None
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise Unreachable(f"no connection to {self.url.origin}: {reason}") from None
        return connection

    async def _resolve(self, names: Resolver) -> str:
        """An address of the target, all of whose addresses are allowed."""
        try:
            addresses = [str(ipaddress.ip_address(self.url.host))]
        except ValueError:
            addresses = await names.find(self.url.host)
        for address in addresses:
            if not self._allow_private and not is_public(address):
                raise AddressPrivate(f"{self.url.host} is at {address}, which is private, and allow_private is not set")
        return addresses[0]


class _Connection(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: asyncio.Future[Answer] | None = None
        self._on_piece: Callable[[AnswerReader], None] | None = None
        self._lost = False
        self.reusable = False

    async def exchange(self, request: bytes, on_piece: Callable[[AnswerReader], None] | None) -> Answer:
        if self._lost:
            raise Unreachable("the connection was closed")
        self.reusable, self._on_piece = False, on_piece
        self._reader = AnswerReader(self._limit_bytes)
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def abort(self) -> None:
        self._transport.abort()

    # ── from the transport ─────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._waiting is None or self._waiting.done():
            self.reusable, self._lost = False, True  # nothing was asked: whoever this is, we do not talk on
            self._transport.abort()
            return
        try:
            self._reader.feed(data)
            if self._on_piece is not None:
                self._on_piece(self._reader)
        except PeerError as error:
            self._fail(AnswerBroken(error.detail))
            return
        if self._reader.complete:
            self.reusable = self._reader.keep_alive and not self._lost
            self._complete(self._waiting)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost, self.reusable = True, False
        if self._waiting is not None and not self._waiting.done():
            if exc is None:
                self._reader.end()
            if self._reader.complete:
                self._complete(self._waiting)
            else:
                self._fail(Unreachable("the connection was closed before the answer was complete"))

    def _complete(self, waiting: asyncio.Future[Answer]) -> None:
        reader = self._reader
        waiting.set_result(Answer(reader.status, reader.headers, bytes(reader.body)))

    def _fail(self, error: OutgoingError) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
        self._transport.abort()
