"""A server elsewhere as the source of a pusher that runs by itself."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, Final, Self
from urllib.parse import quote

import msgspec

from penstock.errors import InputInvalid, OperatorError, PeerError, PenstockError
from penstock.http.client import Answer, OutgoingError, Target, parse_url
from penstock.wire.eventhorizon import Cursor, CursorInvalid, ReadLines, parse_cursor
from penstock.wire.http_client import AnswerReader
from penstock.wire.retrying import RetryPolicy

log = logging.getLogger("penstock.pusher")

Wake = Callable[[Cursor], None]
_READ_BYTES: Final = 64 * 1024 * 1024
_RETRY: Final = RetryPolicy(first=0.1, longest=5.0)


class SourceFailed(OperatorError):
    """The server did not answer, or not with what was asked."""

    code = "server_failed"
    remedy = "Look at the server; the pusher tries again by itself."


class _Notice(msgspec.Struct, rename="pascal"):
    cursor: str = ""


class RemoteSource:
    """Reads through `/reader/*`. Lives in `async with`, with the connection that tells it what moved."""

    def __init__(self, server: str, token: str) -> None:
        self._server, self._headers = server.rstrip("/"), (("Authorization", f"Bearer {token}"),)
        self._reads = self._target("/reader/read", limit_bytes=_READ_BYTES)
        self._reports = self._target("/reader/report")
        self._tasks: dict[Wake, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for target in (self._reads, self._reports):
            target.close()

    async def read(self, cursor: Cursor) -> ReadLines:
        answer = await self._send(self._reads, msgspec.json.encode({"Cursor": str(cursor)}))
        try:
            return msgspec.json.decode(answer.body, type=ReadLines)
        except msgspec.MsgspecError as error:
            raise SourceFailed(f"the server's lines cannot be read: {error}") from None

    async def record(self, id: str, stream: str, ids: list[int], *states: tuple[str, str]) -> None:
        if ids and not stream.startswith("/_"):
            said = {"SubscriptionId": id, "Stream": stream, "Ids": [ids[0], ids[-1]], "States": states}
            await self._send(self._reports, msgspec.json.encode(said))

    def watch(self, id: str, wake: Wake) -> None:
        self._tasks[wake] = asyncio.create_task(self._listen(id, wake))

    def unwatch(self, id: str, wake: Wake) -> None:
        self._tasks.pop(wake).cancel()

    async def _listen(self, id: str, wake: Wake) -> None:
        """Hand on what the server says, over one connection after the other.

        What is said while there is none is not lost: the subscription's stream tells of it a little later.
        """
        target = self._target(f"/reader/notify?subscription={quote(id)}", timeout=None, limit_bytes=None)
        failures = 0
        while True:
            notices = _Notices(wake)
            try:
                await self._send(target, b"", method="GET", on_piece=notices.take)
            except PenstockError as error:
                log.warning("notify.lost", extra={"error": str(error)})
            failures = 1 if notices.heard else failures + 1
            await asyncio.sleep(_RETRY.delay(failures, random.random()))  # noqa: S311 - spreads retries, guards nothing

    async def _send(self, target: Target, body: bytes, **how: Any) -> Answer:
        try:
            answer = await target.post(body, self._headers, **how)
        except OutgoingError as error:
            raise SourceFailed(str(error)) from None
        if answer.status == 200:
            return answer
        said = f"the server answered {answer.status}: {answer.body[:300].decode(errors='replace')}"
        raise SourceFailed(said) if answer.status >= 500 else InputInvalid("request", said)

    def _target(self, path: str, **limits: Any) -> Target:
        return Target(parse_url(self._server + path), allow_private=True, **limits)


class _Notices:
    """The lines of an answer without an end, each of which tells how far a stream goes."""

    def __init__(self, wake: Wake) -> None:
        self._wake, self._rest = wake, b""
        self.heard = False

    def take(self, answer: AnswerReader) -> None:
        if answer.status != 200:
            return
        self.heard = True
        *lines, self._rest = (self._rest + answer.take()).split(b"\n")
        for line in lines:
            self._tell(line)

    def _tell(self, line: bytes) -> None:
        try:
            notice = msgspec.json.decode(line, type=_Notice)
            if notice.cursor:
                self._wake(parse_cursor(notice.cursor))
        except (msgspec.MsgspecError, CursorInvalid):
            raise PeerError(502, "a notice of the server cannot be read") from None
