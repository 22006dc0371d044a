"""The client's side of the message stream, over any of its three transports.

    stream = MessageStream("http://127.0.0.1:8800", session_key)
    stream.on("shop", lambda path, data: print(path, data))
    stream.run()

or, without listeners:

    for message in stream.messages():
        print(message.type, message.data)

Messages come in the order of their packs, each once, however often the server sends them: a pack is confirmed when
its last message was handled, one that comes again is only confirmed again, and what is behind a gap waits for it.
A client that breaks off in the middle of a pack has not confirmed it: the next one gets it whole.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol
from urllib.parse import quote

from penstock.client.http import ApiError, HttpClient, ServerUnreachable, parse_server_url
from penstock.errors import InputInvalid, PenstockError
from penstock.wire.msgstream import LONG, SHORT, WEBSOCKET, Inbox, Received, read
from penstock.wire.retrying import RetryPolicy

Listener = Callable[[str, Any], None]
POLL_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 90.0
"""For an answer to a long poll: the server's heartbeat is a minute."""


class SessionEnded(PenstockError):
    """The server knows no such session, or not any more: log in again."""

    code = "session_ended"
    remedy = "Log in again: the backend makes a new session with POST /v1/sessions."

    def __init__(self, reason: str) -> None:
        super().__init__(f"the session is over: {reason}")
        self.reason = reason


class Transport(Protocol):
    """A way to the server."""

    def receive(self, confirm: Sequence[int]) -> bytes | str | None:
        """Hand over the ids of packs that were handled, and wait for a delivery; None if there is none now.

        Raises `ServerUnreachable` or `ApiError`; then nothing was handed over for certain.
        """
        ...

    def close(self) -> None:
        """Let go of the connection; the next call opens another."""
        ...


class MessageStream:
    """One session's messages. Use it from one thread."""

    def __init__(
        self,
        url: str,
        session_key: str,
        *,
        transport: str = LONG,
        interval: float = POLL_SECONDS,
        retry: float = RETRY_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """*interval* is between two short polls.

        *retry* is how long to wait when the server cannot be reached: at first, and twice as long after each failure
        in a row, up to half a minute; chance takes up to half of it away, as all clients of a server lose it together.
        """
        if transport not in (SHORT, LONG, WEBSOCKET):
            raise InputInvalid("transport", f"{transport!r} is none of {SHORT}, {LONG}, {WEBSOCKET}")
        socket = transport == WEBSOCKET
        self._transport: Transport = (
            _WebSocketTransport(url, session_key) if socket else _PollTransport(url, session_key, transport)
        )
        self._interval, self._sleep = interval if transport == SHORT else 0.0, sleep
        self._retry = RetryPolicy(retry, max(retry, LONGEST_RETRY_SECONDS))
        self._inbox = Inbox()
        self._listeners: dict[str, list[Listener]] = {}
        self._confirm: list[int] = []  # handled, and not handed over yet

    def on(self, path: str, listener: Listener) -> None:
        """Call *listener* with (type, data) for every message of that type, or of a type beneath it."""
        self._listeners.setdefault(path, []).append(listener)

    def run(self) -> None:
        """Tell listeners, from the most to the least specific; raises `SessionEnded` when the session is over."""
        for message in self.messages():
            for path in message.paths():
                for listener in self._listeners.get(path, ()):
                    listener(message.type, message.data)

    def messages(self) -> Iterator[Received]:
        """Messages without an end. A server that is away is waited for; `SessionEnded` ends it."""
        try:
            while True:
                text = self._receive()
                if text is not None:
                    yield from self._take(text)
                if not self._confirm and self._interval:
                    self._sleep(self._interval)
        finally:
            self._transport.close()

    def _receive(self) -> bytes | str | None:
        failures = 0
        while True:
            confirm = tuple(self._confirm)
            try:
                text = self._transport.receive(confirm)
            except (ServerUnreachable, ApiError) as error:
                if isinstance(error, ApiError) and 400 <= error.status < 500:
                    raise
                self._transport.close()
                failures += 1
                asked = getattr(error, "retry_after", None)
                self._sleep(self._retry.delay(failures, random.random(), asked))  # noqa: S311 - guards nothing
            else:
                del self._confirm[: len(confirm)]
                return text

    def _take(self, text: bytes | str) -> Iterator[Received]:
        taken = self._inbox.take(read(text))
        self._confirm += taken.again
        for id, messages in taken.packs:
            yield from messages
            self._confirm.append(id)  # only now has it been handled
        if taken.unset:
            raise SessionEnded(taken.unset)


class _PollTransport:
    """Short or long polls, on one connection that is kept."""

    def __init__(self, url: str, session_key: str, transport: str) -> None:
        self._http = HttpClient(url, timeout=ANSWER_SECONDS)
        self._query = {"sessionKey": session_key, "transport": transport}

    def receive(self, confirm: Sequence[int]) -> bytes | None:
        ids = {"confirmIds": ",".join(map(str, confirm))} if confirm else {}
        return self._http.send("GET", "/msgstream", self._query | ids) or None

    def close(self) -> None:
        self._http.close()


class _WebSocketTransport:
    """A WebSocket: opened when it is needed, and again when it was closed."""

    def __init__(self, url: str, session_key: str) -> None:
        place, self._url = parse_server_url(url), url
        scheme = "wss" if place.secure else "ws"
        self._address = f"{scheme}://{place.authority}{place.target}/msgstream?sessionKey={quote(session_key)}"
        self._opened: Any = None  # a ClientConnection; websockets' client is imported when it is used
        self._context: Any = None

    def receive(self, confirm: Sequence[int]) -> bytes | str | None:
        from websockets.exceptions import ConnectionClosed, WebSocketException

        try:
            if self._opened is None:
                self._open()
            if confirm:
                with suppress(ConnectionClosed):  # what was said before it was closed is still to be read
                    self._opened.send(",".join(map(str, confirm)))
            text: bytes | str = self._opened.recv()
        except (OSError, EOFError, WebSocketException) as error:
            raise ServerUnreachable(self._url, error) from error
        return text

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            self._context.__exit__(None, None, None)

    def _open(self) -> None:
        from websockets.sync.client import connect

        self._context = connect(self._address, max_size=None)
        self._opened = self._context.__enter__()
