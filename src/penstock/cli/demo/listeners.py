"""Those who listen in the demo, each by a protocol of its own and as its real clients do.

Each has a thread. When the server is away they ask again, and say where they were: that is all they do about it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import secrets
import socket
import sqlite3
import threading
import time
import uuid
from abc import ABC, abstractmethod
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Self
from urllib.parse import urlencode

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from penstock.client.api import Client
from penstock.client.asgi_server import serve
from penstock.client.http import HttpClient, ServerUnreachable
from penstock.client.msgstream import MessageStream, SessionEnded
from penstock.client.receiver import Line, Receiver
from penstock.wire.webcrypto import AUTH_BYTES, decode64, decrypt, encode64, load_private, point_of

ORDERS: Final = "/orders"
_AGAIN_SECONDS: Final = 0.1
_JOIN_SECONDS: Final = 5.0
_START_SECONDS: Final = 20.0
_BROKEN: Final = (OSError, EOFError, http.client.HTTPException, WebSocketException)


class Ending(Exception):
    """The listener was asked to end."""


class OrderClient(ABC):
    """Somebody who gets the numbers of orders. Lives in `with`."""

    name: ClassVar[str]
    how: ClassVar[str]  # in words, for the one who watches
    may_repeat: ClassVar[bool] = False  # the protocol delivers at least once, in any order

    def __init__(self, url: str, admin: Client) -> None:
        self.url, self.admin = url, admin
        self.recipient = self.name  # as the ledger calls it
        self.failure: Exception | None = None
        self.arrived: dict[int, float] = {}  # when a number came first
        self._numbers: list[int] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def __enter__(self) -> Self:
        self.prepare()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.hang_up()
        self._thread.join(_JOIN_SECONDS)

    def numbers(self) -> list[int]:
        """What has come so far, as it came."""
        return list(self._numbers)

    @abstractmethod
    def prepare(self) -> None:
        """See to what must be there before it listens."""

    @abstractmethod
    def listen(self) -> None:
        """Listen until the connection breaks; called again then."""

    @abstractmethod
    def hang_up(self) -> None:
        """Break the connection, if there is one."""

    def take(self, number: int) -> None:
        """An order has come."""
        self._numbers.append(number)
        self.arrived.setdefault(number, time.monotonic())

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                with suppress(*_BROKEN):
                    self.listen()
                self._ending.wait(_AGAIN_SECONDS)
        except Ending:
            pass
        except Exception as error:  # noqa: BLE001 - the story looks at it, and ends
            self.failure = error


class Phone(OrderClient):
    """A user agent of Web Push: all orders reach it through the sender, encrypted for it alone."""

    name, how, may_repeat = "phone", "Web Push, encrypted for it alone (RFC 8030, 8291)", True

    def __init__(self, url: str, admin: Client) -> None:
        super().__init__(url, admin)
        self._key, self._auth = load_private(secrets.token_bytes(32)), secrets.token_bytes(AUTH_BYTES)
        self._uaid = ""
        self._socket: ClientConnection | None = None

    def prepare(self) -> None:
        """Subscribe as a page's script does, and bind the stream to the subscription."""
        with self._connect() as wire:
            self._ask(wire, messageType="register", channelID=str(uuid.uuid4()))
            endpoint = json.loads(wire.recv())["pushEndpoint"]
        keys = {"p256dh": encode64(point_of(self._key)), "auth": encode64(self._auth)}
        binding = {
            "subscription": {"endpoint": endpoint, "keys": keys},
            "stream": ORDERS,
            "receipts": True,
            "allow_private": True,
        }
        self.recipient = self.admin.call("POST", "/v1/webpush", body=json.dumps(binding).encode())["id"]

    def listen(self) -> None:
        with self._connect() as self._socket:
            for text in self._socket:
                message = json.loads(text)
                if message["messageType"] == "notification":
                    body = decrypt(decode64(message["data"]), private_key=self._key, auth=self._auth)
                    self.take(number_in(json.loads(body)))
                    update = {"channelID": message["channelID"], "version": message["version"], "code": 100}
                    self._ask(self._socket, messageType="ack", updates=[update])

    def hang_up(self) -> None:
        if self._socket is not None:
            with suppress(*_BROKEN):
                self._socket.socket.shutdown(socket.SHUT_RDWR)

    def _connect(self) -> ClientConnection:
        address = "ws" + self.url.removeprefix("http") + "/"
        wire = connect_websocket(address, subprotocols=[Subprotocol("push-notification")], compression=None)
        self._ask(wire, messageType="hello", use_webpush=True, uaid=self._uaid)
        self._uaid = json.loads(wire.recv())["uaid"]
        return wire

    @staticmethod
    def _ask(wire: ClientConnection, **message: object) -> None:
        wire.send(json.dumps(message))


class WebPage(OrderClient):
    """A page with an open wire of sps. It remembers the id of the last event, and names it when it comes back."""

    name, how = "page", "sps, one HTTP answer that does not end"

    def __init__(self, url: str, admin: Client) -> None:
        super().__init__(url, admin)
        self.recipient = "7/page"
        self.position: int | None = None  # id of the last event
        self._may_connect = threading.Event()
        self._may_connect.set()
        self._open = threading.Event()
        self._connection: http.client.HTTPConnection | None = None

    def prepare(self) -> None:
        wanted = json.dumps({"uid": 7, "ttl": 3600, "subscribe": [ORDERS]}).encode()
        self._token = self.admin.call("POST", "/v1/tokens", body=wanted)["token"]

    def listen(self) -> None:
        self._may_connect.wait()
        query = {"uid": 7, "hid": "page", "tid": ORDERS}
        with closing(http.client.HTTPConnection(self.url.partition("//")[2])) as self._connection:
            headers = {"Authorization": f"Bearer {self._token}"}
            self._connection.request("GET", f"/subscribe?{urlencode(query | self.place())}", headers=headers)
            response = self._connection.getresponse()
            if response.status != 200:
                raise http.client.HTTPException(f"{response.status} instead of a wire")
            for line in response:
                if line.strip():
                    self._hear(json.loads(line))

    def place(self) -> dict[str, int]:
        """Where it goes on, as it says it to the server."""
        return {} if self.position is None else {"o": self.position}

    def wait_for_the_wire(self, within: float) -> bool:
        """Whether the server has said `open`."""
        return self._open.wait(within)

    def cut(self) -> None:
        """Break the connection, as a tunnel does, and stay away."""
        self._may_connect.clear()
        self.hang_up()

    def come_back(self) -> None:
        self._may_connect.set()

    def confirm(self) -> None:
        """Say that all up to the position was shown."""
        HttpClient(self.url, self._token, keep=False).send("POST", "/subsist", {"uid": 7, "hid": "page"} | self.place())

    def hang_up(self) -> None:
        if self._ending.is_set():
            self.come_back()  # to find that it is over
        if self._connection is not None and self._connection.sock is not None:
            with suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "open":
            self._open.set()
        elif "id" in event:
            self.take(number_in(event["data"]))
            self.position = event["id"]


class App(OrderClient):
    """An app with a database: lines are pushed to it, and stored in one transaction with its position."""

    name, how = "app", "Event Horizon, pushed into its own SQLite"

    def __init__(self, url: str, admin: Client, database: Path) -> None:
        super().__init__(url, admin)
        self.recipient = "/_sub/shop"
        self._database, self._auth = database, secrets.token_hex(8)
        self._port, self._serving = 0, threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._serving.wait(_START_SECONDS)
        address = f"http://127.0.0.1:{self._port}/_eventhorizon_push?auth={self._auth}"
        self._post("/v1/pushers", url=address, allow_private=True)
        return self

    def prepare(self) -> None:
        with closing(sqlite3.connect(self._database)) as database:
            database.execute("CREATE TABLE orders (place INTEGER PRIMARY KEY, number INTEGER)")
        self._post("/writer/create_stream", Name=self.recipient)
        self._post("/writer/create_stream", Name=ORDERS)
        self._post("/writer/subscribe", Stream=ORDERS, SubscriptionId=self.recipient)

    def listen(self) -> None:
        asyncio.run(self._serve())

    def numbers(self) -> list[int]:
        """What its database has: nothing else counts."""
        with closing(sqlite3.connect(self._database)) as database:
            return [number for (number,) in database.execute("SELECT number FROM orders ORDER BY place")]

    def hang_up(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)

    async def _serve(self) -> None:
        receiver = Receiver(self.recipient, lambda: sqlite3.connect(self._database), self._store, auth=self._auth)
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with await serve(receiver) as server:
            self._port = server.sockets[0].getsockname()[1]
            self._serving.set()
            await self._over.wait()
        await asyncio.to_thread(receiver.close)

    def _store(self, stream: str, line: Line, database: sqlite3.Connection) -> None:
        if stream == ORDERS and not line.meta_type:
            number = number_in(json.loads(line.content))
            database.execute("INSERT INTO orders (number) VALUES (?)", (number,))
            self.arrived.setdefault(number, time.monotonic())

    def _post(self, path: str, **fields: object) -> None:
        self.admin.send("POST", path, body=json.dumps(fields).encode())


class Game(OrderClient):
    """A session of the message stream that follows the orders; it confirms each pack after it was handled."""

    name, how = "game", "message stream, packs on a WebSocket"

    def prepare(self) -> None:
        wanted = json.dumps({"actorId": self.name, "follow": [ORDERS], "ttl": 3600}).encode()
        key = self.admin.call("POST", "/v1/sessions", body=wanted)["sessionKey"]
        self._stream = MessageStream(self.url, key, transport="websocket", sleep=self._pause)

    def listen(self) -> None:
        try:
            for message in self._stream.messages():
                self.take(number_in(message.data))
        except SessionEnded:
            raise Ending from None

    def hang_up(self) -> None:
        """Log out: that ends what its client waits for."""
        with suppress(ServerUnreachable):
            self.admin.send("DELETE", f"/v1/sessions/{self.name}")

    def _pause(self, seconds: float) -> None:
        if self._ending.wait(_AGAIN_SECONDS):
            raise Ending


def number_in(order: Any) -> int:
    """The number of an order, from what was published."""
    number: int = order["order"]
    return number
