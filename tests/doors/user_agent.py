"""A user agent on the `websockets` package: says hello, subscribes, reads what comes, and acknowledges it."""

from __future__ import annotations

import base64
import json
import uuid
from contextlib import ExitStack
from typing import Any, Self

import http_ece
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from penstock.testing import RunningServer
from tests.api.client import ask
from tests.doors.push_service import Browser


class UserAgent:
    """One session. A later one with the same *uaid* goes on where this one ended; keys are kept by the caller."""

    def __init__(self, server: RunningServer, uaid: str = "", browser: Browser | None = None) -> None:
        self.browser = browser or Browser()
        self.channels: list[str] = []
        self.uaid = uaid
        self._stack = ExitStack()
        self._url = f"ws://127.0.0.1:{server.port}/"

    def __enter__(self) -> Self:
        opening = connect(self._url, subprotocols=[Subprotocol("push-notification")], compression=None, max_size=None)
        self._socket = self._stack.enter_context(opening)
        answer = self.ask({"messageType": "hello", "use_webpush": True, "uaid": self.uaid})
        assert answer["status"] == 200, answer
        self.uaid = answer["uaid"]
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def send(self, message: dict[str, Any]) -> None:
        self._socket.send(json.dumps(message))

    def receive(self, within: float = 60) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(timeout=within))
        return message

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self.send(message)
        return self.receive()

    def subscribe(self, key: str = "", channel: str = "") -> dict[str, Any]:
        """What a page would give to its server; *key* is the one sender that may use it."""
        channel = channel or str(uuid.uuid4())
        message = {"messageType": "register", "channelID": channel, **({"key": key} if key else {})}
        answer = self.ask(message)
        assert (answer["status"], answer["channelID"]) == (200, channel), answer
        self.channels.append(channel)
        return self.browser.subscription(answer["pushEndpoint"])

    def notification(self, within: float = 60) -> dict[str, Any]:
        message = self.receive(within)
        assert message["messageType"] == "notification", message
        return message

    def acknowledge(self, message: dict[str, Any], code: int = 100) -> None:
        update = {"channelID": message["channelID"], "version": message["version"], "code": code}
        self.send({"messageType": "ack", "updates": [update]})

    def read(self, within: float = 60) -> bytes:
        """The next message, decrypted and acknowledged."""
        message = self.notification(within)
        body = self.decrypt(message)
        self.acknowledge(message)
        return body

    def decrypt(self, message: dict[str, Any]) -> bytes:
        """With others' code: nothing of ours tells whether it is right."""
        if "data" not in message:
            return b""
        data, headers = _decode(message["data"]), message["headers"]
        keys = {"version": headers["encoding"], "private_key": self.browser.key, "auth_secret": self.browser.auth}
        if headers["encoding"] == "aesgcm":
            keys |= {"salt": _parameter(headers["encryption"], "salt"), "dh": _parameter(headers["crypto_key"], "dh")}
        opened: bytes = http_ece.decrypt(data, **keys)
        return opened


def connected(server: RunningServer) -> float:
    """User agents that the server believes to be there: it hears of an end a moment after it."""
    lines = ask(server, "GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("penstock_webpush_user_agents "))


def _parameter(header: str, name: str) -> bytes:
    found = dict(part.strip().split("=", 1) for part in header.replace(",", ";").split(";"))
    return _decode(found[name])


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
