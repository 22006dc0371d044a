"""A client of the message stream for tests: http.client for polls, the websockets library for sockets."""

from __future__ import annotations

import http.client
import json
import threading
from itertools import count
from typing import Any
from urllib.parse import urlencode

from websockets.sync.client import ClientConnection, connect

from penstock.testing import RunningServer, wait_until
from tests.api.client import Reply, ask

_actors = count(1)


def new_actor() -> str:
    """An actor that no other test has."""
    return f"actor{next(_actors)}"


def login(server: RunningServer, actor: str = "", **wanted: Any) -> str:
    """Begin a session; returns its key."""
    body = json.dumps({"actorId": actor or new_actor(), **wanted}).encode()
    answer = ask(server, "POST", "/v1/sessions", body)
    assert answer.status == 201, answer
    key: str = answer.json["sessionKey"]
    return key


def actor_of(key: str) -> str:
    return key.rpartition(":")[0]


def emit(server: RunningServer, key: str, *messages: list[Any]) -> int:
    """Emit messages to the session's actor; returns the pack's id."""
    actor = actor_of(key)
    answer = emit_raw(server, {"actors": [actor], "messages": messages or [["test"]]})
    assert answer.status == 200, answer
    id: int = answer.json["packs"][actor]
    return id


def emit_raw(server: RunningServer, wanted: Any, token: str = "") -> Reply:
    return ask(server, "POST", "/v1/emit", json.dumps(wanted).encode(), token=token)


def poll(
    server: RunningServer,
    key: str,
    confirm: str = "",
    transport: str = "shortpolling",
    method: str = "GET",
    **more: str,
) -> Reply:
    """One poll on a connection of its own."""
    params = {"sessionKey": key, "transport": transport, **more}
    if confirm:
        params["confirmIds"] = confirm
    return ask(server, method, "/msgstream", token=None, **params)


def packs(server: RunningServer, key: str, confirm: str = "") -> dict[str, Any]:
    """What a short poll gets."""
    answer = poll(server, key, confirm)
    assert answer.status in (200, 204), answer
    got: dict[str, Any] = answer.json if answer.status == 200 else {}
    return got


class LongPoll:
    """A long poll that is under way."""

    def __init__(self, server: RunningServer, key: str, confirm: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        params = {"sessionKey": key, "transport": "longpolling", "confirmIds": confirm}
        self._connection.request("GET", "/msgstream?" + urlencode(params))
        self._answer: Reply | None = None
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self._server, self._key = server, key

    def _read(self) -> None:
        try:
            answer = self._connection.getresponse()
            self._answer = Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            pass  # it was aborted

    def held(self) -> LongPoll:
        """Return when the server holds it."""
        wait_until(lambda: connected(self._server, self._key) == "longpolling")
        return self

    def answer(self) -> Reply:
        self._thread.join(20)
        assert self._answer is not None
        self._connection.close()
        return self._answer

    def abort(self) -> None:
        sock = self._connection.sock
        assert sock is not None
        sock.shutdown(2)
        self._thread.join(20)
        self._connection.close()


def connected(server: RunningServer, key: str) -> str:
    """The transport by which a session is connected; empty if it is not."""
    transport: str = ask(server, "GET", f"/v1/sessions/{actor_of(key)}").json.get("connected", "")
    return transport


def open_socket(server: RunningServer, key: str, **more: str) -> ClientConnection:
    """A WebSocket; to be used in `with`."""
    query = urlencode({"sessionKey": key, **more})
    return connect(f"ws://127.0.0.1:{server.port}/msgstream?{query}", open_timeout=20, close_timeout=20)


def receive(socket: ClientConnection) -> dict[str, Any]:
    """The next delivery."""
    got: dict[str, Any] = json.loads(socket.recv(20))
    return got
