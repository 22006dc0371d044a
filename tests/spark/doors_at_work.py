"""All five doors at work at once, over kills: what they leave in the log, the mailboxes and the ledger must add up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import ask
from tests.doors.eventhorizon_client import Model, ScriptedApp, add_pusher, append, create, scripted, subscribe
from tests.doors.msgstream_client import emit, login, packs
from tests.doors.push_service import Browser
from tests.doors.sps_client import Wire, notify_id
from tests.doors.trickle_client import get, made, post
from tests.doors.user_agent import UserAgent

FAST = {
    "eventhorizon_activity_interval": 0.05, "eventhorizon_push_retry": 0.05, "eventhorizon_push_retry_longest": 0.2,
    "eventhorizon_push_repeat": 0.3,
}  # fmt: skip
APP, PUSHED = "/_sub/chaos", "/pushed"
USER, DEVICE = "77", "phone"


class Doors:
    """One client of each door. `round` lets each of them get something, and leaves something of it on its way."""

    def __init__(self, server: RunningServer, app: ScriptedApp, model: Model) -> None:
        self.server, self._app, self._model = server, app, model
        self._position = 0  # of the device
        self._segments = 0
        self._agent, self._browser, self._endpoint = "", Browser(), ""
        create(server, APP, PUSHED)
        subscribe(server, PUSHED, APP)
        add_pusher(server, app.url)
        self._channel = made(server, record="true")
        self._session = login(server, "dora", follow=["/dora-follows"])

    def round(self) -> None:
        """Some of everything."""
        self._push()
        self._listen()
        self._watch()
        self._notify()
        self._poll()

    def cut_off(self) -> None:
        """Kill the server while something is on its way through every door."""
        with Wire(self.server, uid=USER, hid=DEVICE, o=self._position).opened(), self._user_agent() as agent:
            self._send_push()
            agent.notification()
            notify_id(self.server, "user", b"on its way", uid=USER)
            emit(self.server, self._session, ["on its way"])
            append(self.server, PUSHED, "on its way")
            self.server.kill()
        self.server.restart()

    # ── Event Horizon ─────────────────────────────────────────────────────────────────────────

    def _push(self) -> None:
        """The app has it, and the server has heard so: its answer may take some moments, and a round takes no more."""
        append(self.server, PUSHED, "one", "two")
        written = ask(self.server, "GET", "/v1/read", stream=PUSHED, limit=1000, **{"from": 0}).json["entries"]
        wait_until(lambda: len(self._model.applied.get(PUSHED, ())) == len(written), within=20)
        last = written[-1]["id"]
        wait_until(lambda: ask(self.server, "GET", "/v1/why", entry=last, recipient=APP).json["verdict"] == "acked")

    # ── sps ───────────────────────────────────────────────────────────────────────────────────

    def _listen(self) -> None:
        """A device comes back with its position, and gets what came meanwhile."""
        missed = notify_id(self.server, "user", b"missed", uid=USER)
        with Wire(self.server, uid=USER, hid=DEVICE, o=self._position).opened() as wire:
            notify_id(self.server, "user", b"for another", uid=USER, hid="tv")
            last = notify_id(self.server, "user", b"live", uid=USER, hid=DEVICE)
            assert missed < last
            while self._position < last:
                self._position = wire.line()["id"]

    # ── Trickle ───────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        for _ in range(2):
            assert post(self.server, self._channel, self._segments, b"segment").status == 200
            assert get(self.server, self._channel, self._segments).body == b"segment"
            self._segments += 1

    # ── Web Push ──────────────────────────────────────────────────────────────────────────────

    def _user_agent(self) -> UserAgent:
        return UserAgent(self.server, self._agent, self._browser)

    def _notify(self) -> None:
        """What waited comes first; all of it is acknowledged. One more is stored for an agent that is away."""
        with self._user_agent() as agent:
            self._agent = agent.uaid
            if not self._endpoint:
                self._endpoint = agent.subscribe()["endpoint"]
            self._send_push(topic="last")
            topic = ""
            while topic != "last":
                message = agent.notification()
                topic = "last" if message["version"] == self._last else ""
                agent.acknowledge(message)
        self._send_push()

    def _send_push(self, topic: str = "") -> None:
        headers = {"TTL": "600", **({"Topic": topic} if topic else {})}
        answer = ask(self.server, "POST", urlsplit(self._endpoint).path, b"", headers, token=None)
        assert answer.status == 201, answer
        self._last = answer.headers["location"].rpartition("/")[2]

    # ── the message stream ────────────────────────────────────────────────────────────────────

    def _poll(self) -> None:
        emit(self.server, self._session, ["hello"])
        ask(self.server, "POST", "/v1/publish", b"1", stream="/dora-follows")
        wait_until(lambda: len(packs(self.server, self._session)) >= 2)
        waiting = sorted(packs(self.server, self._session), key=int)
        packs(self.server, self._session, confirm=",".join(waiting[:-1]))


@contextmanager
def doors_at_work(data: Path) -> Iterator[Doors]:
    """A server whose doors are all in use, and which may be killed."""
    model = Model(APP)
    with scripted(model) as app, start_server(data, **FAST) as server:
        yield Doors(server, app, model)
