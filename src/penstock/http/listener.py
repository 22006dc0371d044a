"""The listener: accepts connections, owns their tasks and timers, and lets them finish when it stops."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from ipaddress import ip_address
from typing import Self

from penstock.core.clock import Clock, WallClock
from penstock.errors import ConfigInvalid
from penstock.http.connection import PlainConnection, SecureConnection
from penstock.http.rate_limits import Caps
from penstock.http.routing import Router
from penstock.http.shared import Counters, Shared
from penstock.http.timers import Wheel
from penstock.http.tls import Certificates
from penstock.settings import ServerSettings
from penstock.units import parse_address, parse_workers
from penstock.wire.proxy import Trusted

log = logging.getLogger("penstock.http")

BACKLOG = 4096
"""Connections that the kernel keeps waiting to be accepted."""

ACCEPTS = 16
"""Connections that are accepted in one turn of the loop. The loop accepts one for each server that listens, so
that many listen on the one socket: in a storm a newcomer would wait behind everybody's answers otherwise."""


class Listener:
    """One port that speaks HTTP/1.1 and WebSocket, with or without TLS.

        async with Listener(Router(routes), settings) as listener:
            print(listener.url)

    Leaving the block drains: no more connections, requests in progress are finished, live answers end,
    all within `drain_seconds`; then the rest is cut.
    """

    def __init__(
        self,
        router: Router,
        settings: ServerSettings,
        *,
        expose: tuple[str, ...] = (),
        clock: Clock | None = None,
        wheel: Wheel | None = None,
        caps: Caps | None = None,
    ) -> None:
        """Raises `ConfigInvalid` for settings that cannot work or would be unsafe.

        Pages of other origins may read the headers named in *expose*.
        """
        self.settings, self._expose = settings, expose
        self._router, self._clock, self._wheel = router, clock or WallClock(), wheel
        self._group = asyncio.TaskGroup()
        self._certificates = _certificates(self.settings)
        self.caps = caps or make_caps(self.settings)
        self._trusted = _trusted(self.settings)
        _check(self.settings)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        shared = parse_workers(self.settings.workers) > 1
        self._socket = bind(*parse_address(self.settings.listen), shared=shared)
        await self._group.__aenter__()
        wheel = self._wheel or Wheel(loop)
        self._shared = Shared(
            self._router, self.settings, self.caps, self._trusted, self._clock, self._group, wheel, self._expose
        )
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        context = self._certificates.context if self._certificates else None
        kind = SecureConnection if context else PlainConnection
        self._servers = [
            await loop.create_server(
                lambda: kind(self._shared), sock=sock, ssl=context, backlog=BACKLOG,
                ssl_handshake_timeout=self.settings.head_timeout if context else None,
            )
            for sock in (self._socket, *(self._socket.dup() for _ in range(ACCEPTS - 1)))
        ]  # fmt: skip
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            await self.drain()
        finally:
            self._shared.wheel.close()
            # The block's own error is not the group's: it goes on as it is.
            await self._group.__aexit__(None, None, None)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.address
        return f"{self._shared.scheme}://[{host}]:{port}" if ":" in host else f"{self._shared.scheme}://{host}:{port}"

    @property
    def counters(self) -> Counters:
        """The numbers for the metrics page."""
        return self._shared.counters

    @property
    def bytes_out(self) -> int:
        """Bytes written so far."""
        return self._shared.bytes_out

    @property
    def body_bytes(self) -> int:
        """Bytes of request bodies that are held now, small ones aside."""
        return self._shared.bodies.held

    @property
    def unread_bytes(self) -> int:
        """Bytes of large answers that peers have not taken."""
        return self._shared.answers.held

    def reload_tls(self) -> None:
        """Use renewed certificate files for new connections; `ConfigInvalid` and the old ones if they are bad."""
        if self._certificates is not None:
            self._certificates.reload()
            log.info("tls.reloaded", extra={"certificate": self.settings.tls_certificate})

    async def drain(self) -> None:
        """Stop accepting and let everything come to its end, for `drain_seconds` at most."""
        shared = self._shared
        shared.draining = True
        for server in self._servers:
            server.close()
        for connection in list(shared.connections):
            connection.drain()
        try:
            async with asyncio.timeout(self.settings.drain_seconds):
                await self._all_gone()
        except TimeoutError:
            log.warning("drain.cut", extra={"connections": len(shared.connections)})
            await self._cut_all()

    async def _all_gone(self) -> None:
        while self._shared.connections:
            self._shared.emptied.clear()
            await self._shared.emptied.wait()

    async def _cut_all(self) -> None:
        for connection in list(self._shared.connections):
            connection.cut()
        self._shared.handler_tasks.cancel()
        await self._all_gone()


def _check(settings: ServerSettings) -> None:
    if not settings.tls_certificate and not settings.insecure and not settings.trusted_proxies:
        _check_loopback(parse_address(settings.listen)[0])
    if settings.proxy_protocol and settings.tls_certificate:
        raise ConfigInvalid("server.proxy_protocol", "cannot be used with TLS: let the proxy end TLS")


def _check_loopback(host: str) -> None:
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigInvalid(
            "server.listen",
            f"plain HTTP on {host} would send tokens in the clear",
            remedy="Give server.tls_certificate and server.tls_key, name the TLS proxy in server.trusted_proxies, "
            "or use --insecure.",
        )


def _certificates(settings: ServerSettings) -> Certificates | None:
    return Certificates(settings.tls_certificate, settings.tls_key) if settings.tls_certificate else None


def _trusted(settings: ServerSettings) -> Trusted:
    try:
        return Trusted(settings.trusted_proxies)
    except ValueError as error:
        raise ConfigInvalid("server.trusted_proxies", str(error)) from None


def make_caps(settings: ServerSettings) -> Caps:
    """The caps that the settings ask for."""
    return Caps(
        settings.connections,
        settings.connections_per_address,
        settings.requests_per_address,
        settings.requests_per_token,
        settings.connections_per_token,
    )


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket with that address. A *shared* one is one of several: the kernel deals connections out to them."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from None
    try:
        _prepare(listening)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise _cannot_listen(host, port, error) from None
    return listening


def _prepare(listening: socket.socket) -> None:
    """Set what accepted sockets inherit."""
    listening.setblocking(False)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # finds peers that vanished in silence
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # output is coalesced here already


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigInvalid:
    remedy = "Stop what listens there, or give another address with --listen HOST:PORT (port 0 takes a free one)."
    if error.errno != errno.EADDRINUSE:
        remedy = "Give an address of this machine with --listen HOST:PORT."
    why = f"cannot listen on {host}:{port}: {error.strerror or error}"
    return ConfigInvalid("server.listen", why, remedy=remedy)
