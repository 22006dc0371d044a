"""What a client and its apps can do to others through the Event Horizon door: a table.

Beside each of its rows are the bystander and an innocent app, which gets every line of its stream, in order.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from penstock.api.auth import Caller
from penstock.doors.eventhorizon import writer
from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import ask
from tests.bystander.hostile import Hostile
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside
from tests.doors.eventhorizon_client import Model, add_pusher, append, create, pusher, scripted, subscribe

MINE, ID, OWN, OWN_ID = "/innocent", "/_sub/innocent", "/mallory/a", "/_sub/mallory/app"
SETTINGS = {"eventhorizon_push_retry": 0.05, "eventhorizon_push_retry_longest": 0.2, "eventhorizon_push_timeout": 2}
LINES = 5
_numbers = count()


class Innocent:
    """An app by the rules, and what was appended for it."""

    def __init__(self, server: RunningServer, model: Model) -> None:
        self._server, self._model = server, model
        self._sent: list[str] = []

    def is_served(self) -> None:
        """Fail unless lines that are appended now reach it, after all that came before, and nothing else does."""
        for _ in range(LINES):
            self._sent.append(f"line {next(_numbers)}")
            append(self._server, MINE, self._sent[-1])
        wait_until(lambda: len(self._model.applied.get(MINE, [])) >= len(self._sent))
        assert self._model.applied[MINE] == self._sent


@contextmanager
def innocent(server: RunningServer) -> Iterator[Innocent]:
    create(server, MINE, ID, "/mallory", OWN, "/_sub/mallory", OWN_ID)
    subscribe(server, MINE, ID)
    subscribe(server, OWN, OWN_ID)
    model = Model(ID)
    with scripted(model) as app:
        add_pusher(server, app.url)
        yield Innocent(server, model)


# ── clients ───────────────────────────────────────────────────────────────────────────────────────


def of_bytes(one: Hostile) -> None:
    """Bodies that are no JSON, or none of this protocol."""
    for path in ("create_stream", "append", "subscribe", "unsubscribe", "liveread"):
        for body in (b"", b"\xff", b'{"\xc9":1}', b"[" * 20_000, b'{"Stream":' * 3_000, b"null", b"7"):
            assert one.ask("POST", f"/writer/{path}", body).status in (400, 403, 404, 413), (path, body[:20])
    for lines in (["a\nb"], ["\ud800"], [None], "text", {"0": "a"}, [["a"]], ["\0"] * 3, [".", "..", "\\.", ""]):
        one.post("/writer/append", Stream=OWN, Lines=lines)


def of_sizes(one: Hostile) -> None:
    """Long lines, many lines, long names, long reasons."""
    for lines in (["x" * 65_000] * 10, ["x" * 70_000], ["x"] * 1_001, ["y" * 1_000] * 900):
        one.post("/writer/append", Stream=OWN, Lines=lines)
    one.post("/writer/append", Stream=OWN, Lines=["x"], ExpectedOffset="9" * 9_000)
    for limit in (-1, 0, 10**9, 2**63, 2**70):
        assert one.post("/reader/read", Cursor=f"{OWN}:0:0", MaxLinesToRead=limit).status in (200, 400)
    reports = [["retried", "y" * 200]] * 500
    one.post("/reader/report", SubscriptionId=OWN_ID, Stream=OWN, Ids=[1, 2], States=reports)
    for url in ("http://x/" + "a" * 9_000, "http://127.0.0.1:99999/", "http://[::1", "gopher://x/"):
        assert one.post("/v1/pushers", url=url).status in (400, 413)


def of_slowness(one: Hostile) -> None:
    """Notices that nobody reads, and bodies that do not come."""
    for _ in range(40):
        one.hold(one.head("GET", f"/reader/notify?subscription={OWN_ID}"))
        one.hold(one.head("POST", "/writer/append", "Content-Length: 100000") + b'{"Stream":')
        one.hold(one.request("POST", "/reader/read", json.dumps({"Cursor": f"{OWN}:0:0"}).encode()) * 20)
    for _ in range(100):
        assert one.post("/writer/append", Stream=OWN, Lines=["x" * 20_000]).status == 201


def of_order(one: Hostile) -> None:
    """The same twice, backwards, and of what is not there."""
    assert one.post("/writer/create_stream", Name=OWN).status in (201, 409)
    for _ in range(50):
        one.post("/writer/subscribe", Stream=OWN, SubscriptionId=OWN_ID)
        one.post("/writer/unsubscribe", Stream=OWN, SubscriptionId=OWN_ID)
    one.post("/writer/unsubscribe", Stream="/mallory/none", SubscriptionId=OWN_ID)
    one.post("/writer/subscribe", Stream=OWN_ID, SubscriptionId=OWN_ID)
    for offset in (f"{OWN}:0:0", f"{OWN}:9:9", f"{MINE}:0:0", f"{OWN}:-1:-1", ":::"):
        one.post("/writer/append", Stream=OWN, Lines=["x"], ExpectedOffset=offset)
    for cursor in (f"{OWN}:0:1", f"{OWN}:0:9223372036854775807", f"{OWN}:-5:0", f"{OWN}:0:0:other:more"):
        assert one.post("/reader/read", Cursor=cursor, MaxLinesToRead=5).status in (200, 400, 404), cursor
    report = {"SubscriptionId": OWN_ID, "Stream": OWN, "States": [["sent", ""]]}
    for ids in ([2, 1], [0, 0], [1, 2**62], [-1, 1], [1]):
        assert one.post("/reader/report", Ids=ids, **report).status == 400
    for verb in ("pause", "resume"):
        assert one.post(f"/v1/pushers/none/{verb}").status == 404


def of_closes(one: Hostile) -> None:
    """Connections that end in the middle."""
    appending = one.request("POST", "/writer/append", json.dumps({"Stream": OWN, "Lines": ["gone"] * 50}).encode())
    for data in (appending, appending[:-30], one.head("GET", f"/reader/notify?subscription={OWN_ID}"), appending * 20):
        for _ in range(30):
            one.cut(data)


def of_names(one: Hostile) -> None:
    """Others' streams, subscriptions and pushers."""
    assert one.post("/writer/append", Stream=MINE, Lines=["from mallory"]).status == 403
    assert one.post("/writer/append", Stream=ID, Lines=["from mallory"]).status == 403
    assert one.post("/writer/unsubscribe", Stream=MINE, SubscriptionId=ID).status == 403
    assert one.post("/writer/subscribe", Stream=MINE, SubscriptionId=OWN_ID).status == 403
    assert one.post("/reader/read", Cursor=f"{MINE}:0:0", MaxLinesToRead=5).status == 403
    assert one.post("/reader/report", SubscriptionId=ID, Stream=MINE, Ids=[1, 1], States=[["acked", ""]]).status == 403
    assert one.ask("GET", "/reader/notify", subscription=ID).status == 403
    assert one.ask("GET", "/v1/pushers").json == {"pushers": [], "more": False}
    for name in ("", "/", "/_sub/", "/_sub/x", "/_ledger", "/mallory/../x", "/mallory/a:0", "/mallory/*"):
        assert one.post("/writer/create_stream", Name=name).status in (400, 403, 409), name
    assert one.post("/v1/pushers", url="http://127.0.0.1:1/", allow_private=True).status == 403


# ── apps ──────────────────────────────────────────────────────────────────────────────────────────

OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"
ANSWERS: dict[str, bytes] = {
    "nothing": b"",
    "garbage": b"\0\xff" * 500,
    "another protocol": b"220 smtp ready\r\n",
    "no end": b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\nx",
    "too long": b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000,
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "elsewhere": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "deep": OK % (40_000, b"[" * 40_000),
    "another's subscription": OK % (69, b'{"Code":"incorrect_subscription_id","CorrectSubscriptionId":"' + b'/_sub/i"'),
    "nobody's subscription": OK % (63, b'{"Code":"incorrect_subscription_id","CorrectSubscriptionId":""}'),
    "a strange code": OK % (14, b'{"Code":"wow"}'),
    "two answers": (OK % (2, b"{}")) * 40,
}


@contextmanager
def hostile_app(answer: bytes, hold: bool) -> Iterator[str]:
    """An app that answers everything with the same bytes, and hangs up, or does not."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                one, _ = listener.accept()
                with suppress(OSError):
                    one.settimeout(5)
                    one.recv(65_536)
                    one.sendall(answer)
                held.append(one)
                if not hold:
                    one.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for one in held:
            one.close()


def of_apps(one: Hostile) -> None:
    """Apps that answer anything but what the protocol has, each while lines wait for it."""
    with ExitStack() as apps:
        answers = [(answer, hold) for answer in ANSWERS.values() for hold in (False, True)]
        pushers = [add_pusher(one.server, apps.enter_context(hostile_app(*how))) for how in answers]
        for number in range(50):
            one.post("/writer/append", Stream=OWN, Lines=[f"{number}"])
        wait_until(lambda: all(pusher(one.server, id)["error"] for id in pushers))
        for id in pushers:
            assert one.ask("DELETE", f"/v1/pushers/{id}").status == 404  # it is another's
            assert ask(one.server, "DELETE", f"/v1/pushers/{id}").status == 204


CATALOGUE: tuple[Callable[[Hostile], None], ...] = (
    of_bytes, of_sizes, of_slowness, of_order, of_closes, of_names, of_apps,
)  # fmt: skip


@pytest.fixture(scope="module", params=[1, 2], ids=["process", "workers"])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, Innocent]]:
    data, settings = tmp_path_factory.mktemp("eh") / "data", {**SETTINGS, "server_workers": request.param}
    with start_server(data, **settings) as running, innocent(running) as app:
        yield running, app


def check(server: RunningServer, app: Innocent, behaviour: Callable[[Hostile], None]) -> None:
    with Hostile(server, "/mallory", "pushers") as hostile:
        with beside(server) as bystander:
            behaviour(hostile)
            app.is_served()
        bystander.noticed_nothing()
    assert "Traceback" not in server.log_text()


@pytest.mark.parametrize("behaviour", CATALOGUE, ids=lambda behaviour: behaviour.__name__)
def test_nobody_notices_a_hostile_client_or_app(
    shared: tuple[RunningServer, Innocent], behaviour: Callable[[Hostile], None]
) -> None:
    check(*shared, behaviour)


FEW = 20


def few_subscribers() -> None:
    """The setting: a limit that is soon reached."""
    writer.SUBSCRIBERS = FEW  # type: ignore[misc]


def any_number_of_subscribers() -> None:
    """The sabotage: no limit."""
    writer.SUBSCRIBERS = 1 << 40  # type: ignore[misc]


def of_subscribers(one: Hostile) -> None:
    """As many subscriptions to one stream as it takes."""
    names = [f"{OWN_ID}/{number}" for number in range(FEW + 5)]
    for name in names:
        one.post("/writer/create_stream", Name=name)
    # One is taken already; once more is no mistake, and who leaves makes room.
    answers = [one.post("/writer/subscribe", Stream=OWN, SubscriptionId=name).status for name in (*names, names[0])]
    assert answers == [200] * (FEW - 1) + [413] * 6 + [200]
    assert one.post("/writer/unsubscribe", Stream=OWN, SubscriptionId=names[0]).status == 200
    assert one.post("/writer/subscribe", Stream=OWN, SubscriptionId=names[-1]).status == 200


@pytest.mark.parametrize("sabotage", [few_subscribers, any_number_of_subscribers])
def test_the_subscribers_of_a_stream_are_limited(tmp_path: Path, sabotage: Callable[[], None]) -> None:
    with start_sabotaged(tmp_path / "data", sabotage, **SETTINGS) as server, innocent(server) as app:
        if sabotage is few_subscribers:
            check(server, app, of_subscribers)
        else:
            with pytest.raises(AssertionError, match="413"):
                check(server, app, of_subscribers)


def everybody_may_publish() -> None:
    """The sabotage: rights are not looked at."""
    Caller.check_publish = lambda self, stream: None  # type: ignore[method-assign]


def append_for_somebody_else(one: Hostile) -> None:
    """A row of the table without its look at the answer: the innocent app must see it by itself."""
    one.post("/writer/append", Stream=MINE, Lines=["from mallory"])


@pytest.mark.parametrize("sabotage", [None, everybody_may_publish])
def test_the_app_notices_what_a_guard_no_longer_stops(tmp_path: Path, sabotage: Callable[[], None] | None) -> None:
    with start_sabotaged(tmp_path / "data", sabotage, **SETTINGS) as server, innocent(server) as app:
        if sabotage is None:
            check(server, app, append_for_somebody_else)
        else:
            with pytest.raises(AssertionError, match="from mallory"):
                check(server, app, append_for_somebody_else)
