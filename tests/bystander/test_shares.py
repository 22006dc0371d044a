"""One subject takes all that it can of a room that all share: others still get in, and so does the admin."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.api import shares
from penstock.api.auth import open_keys
from penstock.doors.eventhorizon import pushers
from penstock.doors.webpush_sender import door as sender
from penstock.testing import RunningServer, wait_until
from tests.api.client import Reply, ask
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside
from tests.doors.push_service import Browser

ROOM, SIZE = 8, 16 * 1024
GRANTS = ("pushers", "webpush", "channels")


def small_rooms() -> None:
    """No sabotage: a room of ten thousand takes a test too long to fill."""
    pushers.PUSHERS = sender.BINDINGS = ROOM


def without_shares() -> None:
    """The sabotage: who comes first may have everything."""
    small_rooms()
    shares.SUBJECT_SHARE = 1


class Client:
    """Somebody with a token. What it opens by turns with the token and with rights that it has made is one share."""

    def __init__(self, server: RunningServer, name: str) -> None:
        self.server, self.name, self._count = server, name, 0
        streams = ("/m/>", "/channels/*")
        keys = open_keys(server.data)
        self._token = server.admin_token
        if name != "admin":
            self._token = keys.issue(name, publish=streams, subscribe=streams, grants=GRANTS)
        self._held: list[socket.socket] = []

    def close(self) -> None:
        for held in self._held:
            held.close()

    def bind(self) -> int:
        """Have a stream sent to one more browser."""
        subscription = Browser().subscription(f"https://push.invalid/{self._next()}")
        return self._post("/v1/webpush", subscription=subscription, stream="/m/x")

    def push(self) -> int:
        """Have one more app be pushed to."""
        return self._post("/v1/pushers", url=f"https://app.invalid/{self._next()}", secret="x" * 32)

    def make_channel(self) -> int:
        """Make one more channel."""
        name = self._next()
        return self._ask(f"/trickle/{self._right(name) if self._count % 2 else name}").status

    def fill(self) -> int:
        """Leave as much in one more channel as makes ROOM of them too much."""
        held, name = gauge(self.server, "trickle_bytes"), self._next()
        made = self._ask(f"/trickle/{self._right(name) if self._count % 2 else name}")
        status = self._ask(f"/trickle/{name}/0", bytes(SIZE)).status
        if (made.status, status) == (200, 200):
            wait_until(lambda: gauge(self.server, "trickle_bytes") >= held + SIZE)  # it is looked at once a second
        return status

    def wait(self) -> int:
        """Have one more reader wait for what does not come."""
        name, before = f"{self.name}-waits", gauge(self.server, "trickle_waiting")
        assert self._ask(f"/trickle/{name}").status == 200
        self._next()
        held = socket.create_connection(("127.0.0.1", self.server.port), timeout=20)
        self._held.append(held)
        channel, who = (self._right(name), "none") if self._count % 2 else (name, self._token)
        held.sendall(f"GET /trickle/{channel}/0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {who}\r\n\r\n".encode())
        wait_until(lambda: gauge(self.server, "trickle_waiting") > before or select.select([held], (), (), 0)[0])
        return int(held.recv(12)[9:]) if select.select([held], (), (), 0)[0] else 200

    def _next(self) -> str:
        self._count += 1
        return f"{self.name}-{self._count}"

    def _post(self, path: str, **fields: object) -> int:
        return self._ask(path, json.dumps(fields).encode()).status

    def _ask(self, path: str, body: bytes = b"") -> Reply:
        return ask(self.server, "POST", path, body, token=self._token)

    def _right(self, channel: str) -> str:
        order = {"channel": channel, "rights": ["publish", "subscribe"]}
        sealed: str = self._ask("/v1/capabilities", json.dumps(order).encode()).json["channel"]
        return sealed


def gauge(server: RunningServer, name: str) -> float:
    lines = ask(server, "GET", "/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"penstock_{name} ")).split()[-1])


TAKEN = {200, 201}
ROOMS: list[tuple[Callable[[Client], int], dict[str, int]]] = [
    (Client.bind, {}),
    (Client.push, {}),
    (Client.make_channel, {"trickle_channels": ROOM}),
    (Client.fill, {"trickle_memory_bytes": ROOM * SIZE}),
    (Client.wait, {"trickle_waiting": ROOM}),
]


@pytest.mark.parametrize("sabotage", [small_rooms, without_shares])
@pytest.mark.parametrize(("take", "settings"), ROOMS, ids=[take.__name__ for take, _ in ROOMS])
def test_one_subject_leaves_room_for_others_and_the_admin_may_have_all_that_is_left(
    tmp_path: Path, take: Callable[[Client], int], settings: dict[str, int], sabotage: Callable[[], None]
) -> None:
    with (
        start_sabotaged(tmp_path / "data", sabotage, **settings) as server,
        closing(Client(server, "mallory")) as mallory,
        closing(Client(server, "innocent")) as innocent,
        closing(Client(server, "admin")) as admin,
    ):
        with beside(server) as bystander:
            found = {
                one.name: [take(one) in TAKEN for _ in range(times)].count(True)
                for one, times in ((mallory, ROOM), (innocent, 1), (admin, ROOM))
            }
        bystander.noticed_nothing()

        half = {"mallory": ROOM // 2, "innocent": 1, "admin": ROOM // 2 - 1}
        assert found == ({"mallory": ROOM, "innocent": 0, "admin": 0} if sabotage is without_shares else half)
