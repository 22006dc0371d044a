"""nats-py's client, made to hand over raw bytes, and to end within a few seconds whatever the server does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import ParseResult

from nats.aio.client import DEFAULT_BUFFER_SIZE, Client
from nats.aio.transport import TcpTransport
from nats.errors import Error, NoServersError
from nats.protocol.parser import PERMISSIONS_ERR

from penstock.engines.jetstream.frames import FrameParser, Receiver

DEFAULT_PORT: Final = 4222  # NATS' own

CLOSING_SECONDS: Final = 2.0
"""For the rest to be sent when a node ends. Over it: it is dropped. Whoever waited for an answer was told `LOST`."""


class _NotingProtocol(asyncio.StreamReaderProtocol):
    """A stream's protocol that notes its socket as soon as there is one."""

    def __init__(self, reader: asyncio.StreamReader, opened: list[asyncio.BaseTransport]) -> None:
        super().__init__(reader)
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened.append(transport)
        super().connection_made(transport)


class _NatsTransport(TcpTransport):
    """nats-py's transport, whose sockets can be found whenever a call of it was cancelled.

    nats-py connects in a task of its own: what that has opened when its caller is cancelled belongs to nobody.
    """

    def __init__(self, opened: list[asyncio.BaseTransport]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._opened = opened

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        reader = asyncio.StreamReader(limit=buffer_size)
        async with asyncio.timeout(connect_timeout):
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(
                lambda: _NotingProtocol(reader, self._opened), uri.hostname or "", uri.port or DEFAULT_PORT
            )
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = asyncio.StreamWriter(transport, protocol, reader, loop)

    async def wait_closed(self) -> None:
        # asyncio has one future for all who wait: without a shield, one who is cancelled cancels it for the others.
        await asyncio.shield(super().wait_closed())  # type: ignore[no-untyped-call]


class RawClient(Client):
    """nats-py's client. Receivers of raw bytes go around its queues, and `end` always returns."""

    def __init__(self) -> None:
        super().__init__()
        self.receivers: dict[int, Receiver] = {}
        self._ps = FrameParser(self, self.receivers)
        self._opened: list[asyncio.BaseTransport] = []  # sockets that may still be open
        self._ended = False

    async def end(self) -> None:
        """Close for good, within a few seconds whatever the server does. No socket is left open."""
        self._ended = True
        # A server that reads nothing would hold nats-py in two places, without a limit.
        giving_up = asyncio.get_running_loop().call_later(CLOSING_SECONDS, self.abort)
        try:
            await self._stop_reconnecting()
            await self._send_rest()
            if self._flush_queue is not None:  # else it was never connected, and there is nothing to close
                await self.close()
        finally:
            giving_up.cancel()
            self._cut()

    def _cut(self) -> None:
        # If `end` was itself cancelled, something is left to stop; otherwise this does nothing.
        self._status = Client.CLOSED
        serving = (self._reading_task, self._ping_interval_task, self._flusher_task, self._reconnection_task)
        for task in (*serving, *(subscription._wait_for_msgs_task for subscription in self._subs.values())):
            if task is not None:
                task.cancel()
        self.abort()

    async def _stop_reconnecting(self) -> None:
        # nats-py's own close waits for this task a tenth of a second only, and then goes on beside it.
        task = self._reconnection_task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSING_SECONDS)

    async def _send_rest(self) -> None:
        rest, self._pending, self._pending_data_size = self._pending, [], 0
        if rest and self.is_connected and self._transport is not None:
            with suppress(OSError, RuntimeError):  # the connection has ended meanwhile: its rest is lost with it
                self._transport.writelines(rest)
                await self._transport.drain()  # type: ignore[no-untyped-call]

    async def _process_err(self, err_msg: str) -> None:
        # nats-py closes for good at most errors, though the server would take the next connection.
        if PERMISSIONS_ERR in err_msg:  # of one subject: the connection stays
            await super()._process_err(err_msg)
            return
        error = Error("nats: " + err_msg.strip("'"))
        await self._error_cb(error)
        await self._process_op_err(error)

    async def _attempt_reconnect(self) -> None:
        # A server that hangs reads nothing more: nats-py would wait for the rest to be sent before it goes elsewhere.
        self.abort()
        await super()._attempt_reconnect()

    async def _select_next_server(self) -> None:
        try:
            await super()._select_next_server()
        finally:
            if self._ended:
                self.abort()
        if self._ended:  # a cancel that nats-py has swallowed
            raise NoServersError

    async def _connect_to_server(self, s: Any) -> None:
        self.abort()  # an attempt that failed after the connection was made leaves it open
        s.last_attempt = time.monotonic()
        self._transport = _NatsTransport(self._opened)
        await self._transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])

    def abort(self) -> None:
        """Close every socket at once; what was not sent is lost."""
        for transport in self._opened:
            transport.abort()  # type: ignore[attr-defined]  # of a stream, always
        self._opened.clear()

    def write(self, commands: Sequence[bytes]) -> None:
        """Send without waiting: the flusher that nats-py runs anyway writes it."""
        data = b"".join(commands)
        self._pending.append(data)
        self._pending_data_size += len(data)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())
