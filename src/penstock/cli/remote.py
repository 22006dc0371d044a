"""A server somewhere else as the source of a pusher that runs by itself."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import quote

import msgspec

from penstock.errors import InputInvalid, OperatorError
from penstock.http.outgoing import Answer, OutgoingError, Target, parse_url
from penstock.wire.eventhorizon import Cursor, CursorInvalid, ReadLines, parse_cursor

log = logging.getLogger("penstock.pusher")

Wake = Callable[[Cursor], None]
_READ_BYTES = 64 * 1024 * 1024
_LONGEST_PAUSE = 5.0


class ServerFailed(OperatorError):
    """The server did not answer, or not with what was asked."""

    code = "server_failed"
    remedy = "Look at the server; the pusher tries again by itself."


class _Notice(msgspec.Struct, rename="pascal"):
    cursor: str = ""


class RemoteSource:
    """Reads through `/reader/*`. Lives in `async with`, with the connection that tells it what moved."""

    def __init__(self, server: str, token: str) -> None:
        self._server, self._headers = server.rstrip("/"), (("Authorization", f"Bearer {token}"),)
        self._reads = self._target("/reader/read")
        self._reports = self._target("/reader/report")
        self._tasks: dict[Wake, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for target in (self._reads, self._reports):
            target.close()

    async def read(self, cursor: Cursor) -> ReadLines:
        answer = await self._post(self._reads, {"Cursor": str(cursor)})
        try:
            return msgspec.json.decode(answer.body, type=ReadLines)
        except msgspec.MsgspecError as error:
            raise ServerFailed(f"the server's lines cannot be read: {error}") from None

    async def record(self, id: str, stream: str, ids: list[int], *states: tuple[str, str]) -> None:
        if ids and not stream.startswith("/_"):
            said = {"SubscriptionId": id, "Stream": stream, "Ids": [ids[0], ids[-1]], "States": states}
            await self._post(self._reports, said)

    def watch(self, id: str, wake: Wake) -> None:
        self._tasks[wake] = asyncio.create_task(self._listen(id, wake))

    def unwatch(self, id: str, wake: Wake) -> None:
        self._tasks.pop(wake).cancel()

    async def _post(self, target: Target, value: object) -> Answer:
        try:
            answer = await target.post(msgspec.json.encode(value), self._headers)
        except OutgoingError as error:
            raise ServerFailed(str(error)) from None
        if answer.status == 200:
            return answer
        said = answer.body[:300].decode(errors="replace")
        if answer.status >= 500:
            raise ServerFailed(f"the server answered {answer.status}: {said}")
        raise InputInvalid("request", f"the server answered {answer.status}: {said}")

    async def _listen(self, id: str, wake: Wake) -> None:
        """Hand on what the server says, over one connection after the other.

        What is said while there is none is not lost: the subscription's stream tells of it a little later.
        """
        pause = 0.1
        while True:
            try:
                await self._hear(id, wake)
                pause = 0.1
            except (OSError, ServerFailed) as error:
                log.warning("notify.lost", extra={"error": str(error)})
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _hear(self, id: str, wake: Wake) -> None:
        url = parse_url(f"{self._server}/reader/notify?subscription={quote(id)}")
        context = ssl.create_default_context() if url.secure else None
        reader, writer = await asyncio.open_connection(url.host, url.port, ssl=context)
        try:
            # HTTP/1.0: the lines come as they are, without the marks of chunks.
            head = [f"GET {url.target} HTTP/1.0", f"Host: {url.host}", *(f"{k}: {v}" for k, v in self._headers)]
            writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
            await _expect_ok(reader)
            while line := await reader.readline():
                _tell(line, wake)
        finally:
            writer.close()

    def _target(self, path: str) -> Target:
        return Target(parse_url(self._server + path), allow_private=True, limit_bytes=_READ_BYTES)


async def _expect_ok(reader: asyncio.StreamReader) -> None:
    status = await reader.readline()
    while await reader.readline() not in (b"\r\n", b""):
        pass
    if status.split(b" ")[1:2] != [b"200"]:
        raise ServerFailed(f"the server answered {status.decode(errors='replace').strip()!r}")


def _tell(line: bytes, wake: Wake) -> None:
    try:
        notice = msgspec.json.decode(line, type=_Notice)
        if notice.cursor:
            wake(parse_cursor(notice.cursor))
    except (msgspec.MsgspecError, CursorInvalid):
        raise ServerFailed("a notice of the server cannot be read") from None
