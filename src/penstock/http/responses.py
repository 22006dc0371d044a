"""What a handler may return: a response, a future of one (`Later`), or an object that answers by itself (`Held`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from penstock.core.promise import Pending

Headers = tuple[tuple[str, str], ...]


class Response:
    """A complete answer."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self, status: int, body: bytes = b"", content_type: str = "application/json", headers: Headers = ()
    ) -> None:
        self.status, self.body, self.content_type, self.headers = status, body, content_type, headers

    def __repr__(self) -> str:
        return f"Response({self.status}, {len(self.body)} bytes of {self.content_type})"


class Later:
    """An answer that *render* makes of a future's result when it is there: cheaper than a second future.

    If there is an exception instead, *failed* makes it, where it is given. Either may also return a coroutine,
    when there turns out to be more to wait for.
    """

    __slots__ = ("failed", "future", "render")

    def __init__(
        self,
        future: Pending[Any],
        render: Callable[[Any], Response | Coroutine[Any, Any, Response]],
        failed: Callable[[BaseException], Response | Coroutine[Any, Any, Response]] | None = None,
    ) -> None:
        self.future, self.render, self.failed = future, render, failed


class Held:
    """An object that answers later, with `request.answer` or `request.open`; `lost` if the peer leaves first."""

    __slots__ = ()

    def lost(self) -> None:
        """The peer is gone before it was answered. An owner of an outlet hears the same of a live answer."""
        raise NotImplementedError

    def draining(self) -> None:
        """The server is about to stop: answer now, or be cut when its patience ends."""


LIVE: Final = Response(0)
"""What a plain handler returns after `request.open` or `request.accept_websocket`."""

HandlerAnswer = Response | Later | Held | asyncio.Future[Response] | Coroutine[Any, Any, Response | Held | None]
