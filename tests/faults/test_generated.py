"""Inputs that nobody thought of, for every door: no 500, no traceback, no hang, and a bystander notices nothing.

With --long 100,000 for each door. The count is of what was answered, left or closed by the server, and is printed.
"""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.testing import RunningServer, start_server
from tests.api.client import ask
from tests.bystander.watching import beside
from tests.faults.failing_routes import FailingServer
from tests.faults.generating import Form, Inputs, forms_of, framed
from tests.faults.sending import HANDSHAKE, Line, Sent, send_alone, send_frames, send_together

COUNT, LONG_COUNT = 1_500, 100_000
TOGETHER, FRAMES = 25, 8  # requests of one connection; frames of one WebSocket, which closes at most mistakes
HELLO = b'{"messageType":"hello","use_webpush":true}'
AGENTS = 16  # among whom the messages are divided
CHANNEL = "11111111-1111-4111-8111-111111111111"


@dataclass
class Prey:
    """What is known of a door by somebody who wants to break it."""

    forms: list[Form]
    sockets: list[str] = field(default_factory=list)  # targets of WebSockets
    commands: list[Any] = field(default_factory=list)
    headers: bytes = b""
    opening: list[bytes] = field(default_factory=list)  # frames that come first, and are right
    held: Line | None = None  # a connection that stays, so that somebody is there


# ── the doors ─────────────────────────────────────────────────────────────────────────────────────


def v1(server: RunningServer) -> Prey:
    document = ask(server, "GET", "/openapi.json").json
    return Prey([form for form in forms_of(document) if not form.path.startswith("/v1/backup")])


def eventhorizon(server: RunningServer) -> Prey:
    ask(server, "POST", "/writer/create_stream", b'{"Name":"/_sub/me"}')
    subscribe = {"Stream": "/f/a", "SubscriptionId": "/_sub/me"}
    report = {"SubscriptionId": "/_sub/me", "Stream": "/f/a", "Ids": [1, 1], "States": [["sent", "why"]]}
    calls: dict[str, Any] = {
        "/writer/create_stream": {"Name": "/f/b"},
        "/writer/append": {"Stream": "/f/a", "Lines": ["one", "two"], "ExpectedOffset": ""},
        "/writer/subscribe": subscribe,
        "/writer/unsubscribe": subscribe,
        "/writer/liveread": {"Cursor": "/f/a:0:0", "MaxLinesToRead": 10},
        "/reader/read": {"Cursor": "/f/a:0:0", "MaxLinesToRead": 10},
        "/reader/report": report,
        "/v1/pushers": {"url": "http://127.0.0.1:1/", "secret": "", "allow_private": False},
    }
    forms = [Form("POST", path, {}, {}, body) for path, body in calls.items()]
    forms += [Form("GET", "/v1/pushers"), Form("GET", "/v1/pushers/x"), Form("DELETE", "/v1/pushers/x")]
    forms += [Form("POST", "/v1/pushers/x/pause", {}, {}, {}), Form("POST", "/v1/pushers/x/resume", {}, {}, {})]
    live = Form("GET", "/reader/notify", {"subscription": "/_sub/me"}, live=True)
    return Prey(forms * 3 + [live])


def sps(server: RunningServer) -> Prey:
    who = {"uid": "7", "hid": "phone"}
    forms = [
        Form("POST", "/subsist", {**who, "o": "1"}),
        Form("GET", "/online", {"uid": "7"}),
        Form("GET", "/rooms", {}),
    ]
    forms += [Form(method, path, {**who, "tid": "a,b"})
              for method, path in (("POST", "/join"), ("POST", "/leave"), ("PUT", "/rooms"))]  # fmt: skip
    forms += [Form("POST", f"/notify_to_{whom}", query, {"Event-Type": "t"}, b"an event")
              for whom, query in (("user", {"uid": "7"}), ("room", {"tid": "a"}), ("all", {}))]  # fmt: skip
    forms.append(Form("POST", "/v1/tokens", {}, {}, {"uid": 7, "ttl": 60, "subscribe": ["/rooms/*"]}))
    live = Form("GET", "/subscribe", {**who, "tid": "a", "o": "0", "i": "60", "s": "60", "format": "sse"}, live=True)
    held = Line(server.port)
    held.send(b"GET /subscribe?uid=7&hid=phone&tid=a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n"
              % server.admin_token.encode())  # fmt: skip
    assert held.answer(head_only=True) == 200
    return Prey(forms * 3 + [live], held=held)


def trickle(server: RunningServer) -> Prey:
    ask(server, "POST", "/trickle/a")
    forms = [
        Form("POST", "/trickle/a", {"record": "true"}, {"Expect-Content": "text/plain"}),
        Form("DELETE", "/trickle/b"),
    ]
    forms += [Form("POST", f"/trickle/{name}", {"segments": "3", "bytes": "99", "seconds": "9"}) for name in "ab"]
    forms += [
        Form("POST", f"/trickle/a/{seq}", {}, {"Content-Type": "text/plain"}, b"segment") for seq in (0, 1, 2, -1)
    ]
    forms += [Form("DELETE", "/trickle/a/1"), Form("GET", "/v1/channels")]
    forms.append(Form("POST", "/v1/capabilities", {}, {}, {"channel": "a", "rights": ["publish"], "ttl": 60}))
    live = [Form("GET", f"/trickle/{name}", {"consumer": "me"}, {"Lp-Trickle-Wait": "1"}, live=True)
            for name in ("a/0", "a/next", "a/-1", "~/f/a")]  # fmt: skip
    return Prey(forms * 4 + live)


def webpush(server: RunningServer) -> Prey:
    headers = {"TTL": "60", "Content-Encoding": "aes128gcm"}
    old = {"TTL": "0", "Content-Encoding": "aesgcm", "Encryption": "salt=AAAA", "Crypto-Key": "dh=AAAA"}
    forms = []
    for endpoint in [urlsplit(_endpoint(server)).path for _ in range(AGENTS)]:
        forms += [Form(method, endpoint, {}, headers, b"x" * 100, token=False) for method in ("POST", "PUT")]
        more = {**headers, "Topic": "t", "Urgency": "low", "Prefer": "respond-async"}
        forms += [
            Form("POST", endpoint, {}, more, b"", token=False),
            Form("POST", endpoint, {}, old, b"x", token=False),
        ]
    keys = {"p256dh": "B" * 87, "auth": "A" * 22}
    bound = {"subscription": {"endpoint": "http://127.0.0.1:1/", "keys": keys}, "stream": "/f/a", "ttl": 60}
    forms += [
        Form("DELETE", "/m/gAAAAA"), Form("GET", "/v1/webpush", {"limit": "3"}), Form("GET", "/v1/webpush/x"),
        Form("POST", "/v1/webpush", {}, {}, {**bound, "topic": "t"}),
    ] * AGENTS  # fmt: skip
    update = {"channelID": CHANNEL, "version": "1", "code": 100}
    commands: list[Any] = [
        {"messageType": "hello", "uaid": "", "use_webpush": True, "channelIDs": [], "broadcasts": {"a": "b"}},
        {"messageType": "register", "channelID": CHANNEL, "key": None}, {"messageType": "ack", "updates": [update]},
        {"messageType": "unregister", "channelID": CHANNEL, "code": 200}, {},
        {"messageType": "nack", "code": 302, "version": "1"}, {"messageType": "ping"},
        {"messageType": "broadcast_subscribe", "broadcasts": {"a": "b"}},
    ]  # fmt: skip
    return Prey(
        forms, ["/"], commands, b"Sec-WebSocket-Protocol: push-notification\r\n", [framed(0x81, HELLO, b"mask")]
    )


def _endpoint(server: RunningServer) -> str:
    """The endpoint of a channel that was just registered."""
    with Line(server.port) as line:
        line.send(HANDSHAKE % (b"/", b""))
        assert line.answer() == 101
        for said in (HELLO,
                     b'{"messageType":"register","channelID":"%b"}' % CHANNEL.encode()):  # fmt: skip
            line.send(framed(0x81, said, b"mask"))
            head = line.take(2) or b""
            size = head[1] if head[1] < 126 else int.from_bytes(line.take(2) or b"", "big")
            answer = line.take(size) or b""
    found: str = json.loads(answer)["pushEndpoint"]
    return found


def msgstream(server: RunningServer) -> Prey:
    keys = [
        ask(server, "POST", "/v1/sessions", b'{"actorId":"actor%d"}' % number).json["sessionKey"] for number in (1, 2)
    ]
    polls = [{"transport": "shortpolling", "sessionKey": key, "confirmIds": "1,2"} for key in keys]
    emit = {"messages": [["a.b", {"c": 1}], ["d"]], "actors": ["actor1", "actor2", "nobody"]}
    forms = [
        Form(method, path, query)
        for query in polls
        for method, path in (("GET", "/msgstream"), ("POST", "/msgstream/"))
    ]
    forms += [Form("POST", "/v1/emit", {}, {}, emit), Form("POST", "/v1/actors", {}, {}, {"actors": ["actor1", "x"]})]
    forms += [Form("POST", "/v1/emit", {}, {}, {"messages": [["a"]], "streams": ["/f/a"]})]
    forms += [
        Form(
            "POST", "/v1/sessions", {}, {}, {"actorId": "actor3", "ttl": 60, "meta": {}, "follow": ["/f/a"], "after": 0}
        )
    ]
    forms += [
        Form("GET", "/v1/sessions", {"limit": "3"}),
        Form("GET", "/v1/sessions/actor1"),
        Form("DELETE", "/v1/sessions/actor3"),
    ]
    live = Form("GET", "/msgstream", {"transport": "longpolling", "sessionKey": keys[0]}, live=True)
    sockets = [f"/msgstream?transport=websocket&sessionKey={key}" for key in (*keys, "actor1:x", "nobody:x")]
    return Prey(forms * 2 + [live], sockets, ["1,2", 1, "1", [1, 2]])


DOORS: dict[str, Callable[[RunningServer], Prey]] = {
    "v1": v1, "eventhorizon": eventhorizon, "sps": sps, "trickle": trickle, "webpush": webpush, "msgstream": msgstream,
}  # fmt: skip


# ── the test ──────────────────────────────────────────────────────────────────────────────────────


def attack(server: RunningServer, prey: Prey, count: int, name: str) -> None:
    """Send *count* inputs. `AssertionError` if one of them is answered with a failure, or not at all."""
    seed = secrets.randbelow(2**31)
    chance, sent = random.Random(seed), Sent()
    inputs = Inputs(chance, prey.forms, server.admin_token, prey.commands)
    try:
        while sent.count < count:
            if prey.sockets and chance.random() < 0.5:
                frames = [*prey.opening, *(inputs.frame() for _ in range(chance.randrange(1, FRAMES)))]
                send_frames(server.port, chance.choice(prey.sockets), frames, sent, prey.headers)
            made = [inputs.request() for _ in range(TOGETHER)]
            send_together(server.port, [one for one in made if one.framed and not one.live], sent)
            for one in made:
                if not one.framed or one.live:
                    send_alone(server.port, one, sent)
    finally:
        print(f"generated: {name} seed={seed} inputs={sent.count:,} frames={sent.frames:,} {dict(sent.answers)}")  # noqa: T201


def what_was_logged(server: RunningServer, since: int = 0) -> list[str]:
    """Lines that say that something of ours failed, from that character of the log on."""
    lines = server.log_text()[since:].splitlines()
    return [line for line in lines if "Traceback" in line or " error " in line[:40] or "request.failed" in line]


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for this file alone: what is sent here trims its log."""
    with start_server(tmp_path_factory.mktemp("generated") / "data") as running:
        yield running


def check(victim: RunningServer, door: str, count: int) -> None:
    for number in range(5):
        ask(victim, "POST", "/v1/publish", b"%d" % number, stream="/f/a")
    prey, since = DOORS[door](victim), len(victim.log_text())
    with beside(victim) as bystander:
        attack(victim, prey, count, door)
    if prey.held is not None:
        prey.held.close()
    assert what_was_logged(victim, since) == []
    bystander.noticed_nothing()


@pytest.mark.parametrize("door", DOORS)
def test_nothing_that_is_sent_makes_a_door_fail(victim: RunningServer, door: str) -> None:
    check(victim, door, COUNT)


@pytest.mark.long
@pytest.mark.parametrize("door", DOORS)
def test_nothing_of_a_hundred_thousand_makes_a_door_fail(tmp_path: Path, door: str) -> None:
    with start_server(tmp_path / "data") as server:
        check(server, door, LONG_COUNT)


@pytest.mark.parametrize(("path", "why"), [("/v1/fails", "500"), ("/v1/hangs", "no answer within")])
def test_a_route_that_fails_or_hangs_is_found(
    path: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.faults.sending.PATIENCE", 2.0)
    server = FailingServer(tmp_path / "data", (), {})
    try:
        prey = v1(server)
        prey.forms = [form for form in prey.forms if form.path == path]
        with pytest.raises(AssertionError, match=why):
            attack(server, prey, 300, path)
    finally:
        server.kill()


def test_a_line_that_says_failure_is_found(victim: RunningServer, tmp_path: Path) -> None:
    server = FailingServer(tmp_path / "data", (), {})
    try:
        assert ask(server, "POST", "/v1/fails", b"[]").status == 500
        assert what_was_logged(server)
    finally:
        server.kill()
