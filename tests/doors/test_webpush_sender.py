"""The sender: streams reach browsers through any push service, encrypted, signed, in order, until they are too old."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py_vapid import Vapid02

from penstock.testing import RunningServer, start_server, wait_until
from penstock.wire.vapid import parse_authorization, verify
from penstock.wire.webcrypto import decode64, encode64
from tests.api.client import ask, publish
from tests.doors.push_service import Browser, Push, ask_sender, bind, binding, push_service

FAST = {"webpush_send_retry": 0.05, "webpush_send_retry_longest": 0.2, "webpush_send_timeout": 1}
CONTACT = "mailto:ops@example.net"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("sender") / "data", webpush_contact=CONTACT, **FAST) as running:
        yield running


@pytest.fixture
def stream() -> str:
    return f"/sender/{next(_numbers)}"


def events(server: RunningServer, id: int, recipient: str) -> list[tuple[str, str]]:
    """State and reason of everything that is recorded of an entry."""
    found = ask(server, "GET", "/v1/why", entry=id, recipient=recipient).json
    return [(event["state"], event["reason"]) for event in found["events"]]


def put(server: RunningServer, stream: str, body: bytes, **headers: str) -> int:
    id: int = publish(server, stream, body, **headers).json["id"]
    return id


def test_an_entry_of_a_bound_stream_reaches_the_browser_encrypted_and_signed(
    server: RunningServer, stream: str
) -> None:
    browser = Browser()
    with push_service() as service:
        put(server, stream, b"before")
        id = bind(server, browser.subscription(service.endpoint("a")), stream, ttl=600, urgency="high", topic="news")
        entry = put(server, stream, b'{"item":"boots"}')
        wait_until(lambda: binding(server, id)["sent"] == 1)
    # Then one request came, for the entry that was published after the binding
    assert [browser.read(push.body) for push in service.pushes] == [b'{"item":"boots"}']
    [push] = service.pushes
    assert push.path == "/push/a"
    assert (push.headers["content-encoding"], push.headers["content-type"]) == ("aes128gcm", "application/octet-stream")
    assert (push.headers["urgency"], push.headers["topic"]) == ("high", "news")
    assert 590 <= int(push.headers["ttl"]) <= 600
    # and it is signed with the key that pages subscribe with, for this service
    claims = verify(parse_authorization(push.headers["authorization"]), origin=service.origin, now=time.time())
    assert (encode64(claims.key), claims.sub) == (public_key(server), CONTACT)
    assert Vapid02.verify(push.headers["authorization"])
    assert events(server, entry, id) == [("sent", "accepted by the push service")]


def public_key(server: RunningServer) -> str:
    """Anybody may have it: a page needs it before it has anything else."""
    key: str = ask(server, "GET", "/v1/webpush/key", token=None).json["public_key"]
    return key


def test_bodies_of_any_kind_come_in_order(server: RunningServer, stream: str) -> None:
    browser, bodies = Browser(), [b"", b"\x00\xff", "é".encode(), *(b"%d" % number for number in range(50))]
    with push_service() as service:
        bind(server, browser.subscription(service.endpoint("a")), stream)
        for body in bodies:
            put(server, stream, body)
        wait_until(lambda: len(service.taken) == len(bodies))
    assert [browser.read(push.body) for push in service.taken] == bodies


def test_a_binding_may_begin_earlier_and_cover_a_pattern(server: RunningServer, stream: str) -> None:
    browser = Browser()
    with push_service() as service:
        first = put(server, f"{stream}/a", b"one")
        put(server, f"{stream}/b", b"two")
        bind(server, browser.subscription(service.endpoint("a")), f"{stream}/*", after=first - 1)
        wait_until(lambda: len(service.taken) == 2)
    assert [browser.read(push.body) for push in service.taken] == [b"one", b"two"]


def test_one_message_is_sent_at_once_and_the_answer_says_what_became_of_it(server: RunningServer) -> None:
    browser = Browser()
    with push_service() as service:
        reply = ask_sender(server, browser.subscription(service.endpoint("a")), message="hello é", ttl=5)
        assert (reply.status, reply.json) == (201, {"sent": True, "location": "/m/1"})
        assert [browser.read(push.body) for push in service.pushes] == ["hello é".encode()]
        assert service.pushes[0].headers["ttl"] == "5"


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (410, 404, "subscription_gone"),
        (404, 404, "subscription_gone"),
        (413, 400, "push_refused"),
        (400, 400, "push_refused"),
        (401, 503, "push_service_failed"),
        ((503, {"Retry-After": "7"}), 503, "push_service_failed"),
        ((302, {"Location": "http://127.0.0.1:1/"}), 503, "push_service_failed"),
    ],
)
def test_one_message_that_was_not_taken_says_why(
    server: RunningServer, answer: int | tuple[int, dict[str, str]], status: int, code: str
) -> None:
    with push_service(lambda push: answer) as service:
        reply = ask_sender(server, Browser().subscription(service.endpoint("a")), message="x")
    assert (reply.status, reply.code) == (status, code)
    if isinstance(answer, tuple) and "Retry-After" in answer[1]:
        assert reply.headers["retry-after"] == "7"
    assert len(service.pushes) == 1  # nothing is tried again, and no redirect followed


def test_one_message_to_nobody_says_so(server: RunningServer) -> None:
    with push_service() as service:
        pass
    reply = ask_sender(server, Browser().subscription(service.endpoint("a")), message="x")
    assert (reply.status, reply.code) == (503, "push_service_failed")


@pytest.mark.parametrize("status", [404, 410])
def test_a_subscription_that_is_gone_is_unbound(server: RunningServer, stream: str, status: int) -> None:
    with push_service(lambda push: status) as service:
        id = bind(server, Browser().subscription(service.endpoint("a")), stream)
        entry = put(server, stream, b"x")
        wait_until(lambda: ask(server, "GET", f"/v1/webpush/{id}").status == 404)
        put(server, stream, b"y")
        assert [state for state, _ in events(server, entry, id)] == ["dead"]
    assert len(service.pushes) == 1


def test_a_service_that_fails_gets_the_entry_again_until_it_takes_it(server: RunningServer, stream: str) -> None:
    browser, answers = Browser(), iter([500, 503, (429, {"Retry-After": "0"}), 401])
    with push_service(lambda push: next(answers, 201)) as service:
        id = bind(server, browser.subscription(service.endpoint("a")), stream)
        entry = put(server, stream, b"one")
        put(server, stream, b"two")
        wait_until(lambda: len(service.taken) == 2)
        wait_until(lambda: binding(server, id)["state"] == "waiting")
    assert [browser.read(push.body) for push in service.pushes] == [b"one"] * 5 + [b"two"]
    states = events(server, entry, id)
    assert [state for state, _ in states] == ["retried"] * 4 + ["sent"]
    assert [reason for _, reason in states[:4]] == ["500", "503", "429", "401"]
    # a fresh key and salt for every attempt: the same text never looks the same
    assert len({push.body for push in service.pushes}) == 6


def test_a_service_that_is_down_is_tried_until_it_is_back(server: RunningServer, stream: str) -> None:
    browser = Browser()
    with push_service() as service:
        port = int(service.origin.rpartition(":")[2])
    id = bind(server, browser.subscription(service.endpoint("a")), stream)
    entry = put(server, stream, b"x")
    wait_until(lambda: binding(server, id)["state"] == "failing")
    with push_service(port=port) as service:
        wait_until(lambda: len(service.taken) == 1)
    assert events(server, entry, id)[-1][0] == "sent"


def test_an_entry_that_is_too_old_is_given_up_and_the_next_is_sent(server: RunningServer, stream: str) -> None:
    browser, open = Browser(), threading.Event()
    with push_service(lambda push: 201 if open.is_set() else 401) as service:
        id = bind(server, browser.subscription(service.endpoint("a")), stream)
        old = put(server, stream, b"old", Expires_In="1")
        wait_until(lambda: len(service.pushes) > 0)
        wait_until(lambda: binding(server, id)["dropped"] == 1)
        open.set()
        put(server, stream, b"new")
        wait_until(lambda: len(service.taken) == 1)
    assert browser.read(service.taken[0].body) == b"new"
    assert events(server, old, id)[-1] == ("expired", "last: 401")


def test_a_message_that_lives_for_no_time_is_tried_once(server: RunningServer, stream: str) -> None:
    answers = iter([503])
    with push_service(lambda push: next(answers, 201)) as service:
        id = bind(server, Browser().subscription(service.endpoint("a")), stream, ttl=0)
        entry = put(server, stream, b"x")
        put(server, stream, b"y")
        wait_until(lambda: len(service.taken) == 1)
        assert events(server, entry, id)[-1] == ("dropped", "503")
    assert [push.headers["ttl"] for push in service.pushes] == ["0", "0"]


def test_a_message_that_the_service_never_takes_is_dropped_and_says_why(server: RunningServer, stream: str) -> None:
    browser = Browser()
    with push_service(lambda push: 413 if len(push.body) > 4096 else 201) as service:
        id = bind(server, browser.subscription(service.endpoint("a")), stream)
        large = put(server, stream, bytes(4000))
        put(server, stream, bytes(3993))
        wait_until(lambda: len(service.taken) == 1)
        assert events(server, large, id) == [("dropped", "413")]
    assert len(service.taken[0].body) == 4096


def test_a_dead_service_delays_nobody_else(server: RunningServer, stream: str) -> None:
    release = threading.Event()

    def hang(push: Push) -> int:
        release.wait(20)
        return 201

    with push_service(hang) as dead, push_service() as alive:
        for number in range(20):
            bind(server, Browser().subscription(dead.endpoint(f"{number}")), stream)
        bind(server, Browser().subscription(alive.endpoint("a")), stream)
        for _ in range(5):
            put(server, stream, b"x")
        wait_until(lambda: len(alive.taken) == 5)
        assert dead.taken == []
        assert len(dead.pushes) <= 8  # as many as there are slots
        release.set()


def test_bindings_and_positions_outlive_the_server(tmp_path: Path) -> None:
    browser, stream = Browser(), "/durable"
    with start_server(tmp_path / "data", **FAST) as server, push_service() as service:
        id = bind(server, browser.subscription(service.endpoint("a")), stream)
        key = public_key(server)
        put(server, stream, b"one")
        wait_until(lambda: binding(server, id)["sent"] == 1)
        server.kill()
        server.restart()
        put(server, stream, b"two")
        wait_until(lambda: len(service.taken) == 2)
        server.stop()
        server.restart()
        put(server, stream, b"three")
        wait_until(lambda: len(service.taken) == 3)
        assert [browser.read(push.body) for push in service.taken] == [b"one", b"two", b"three"]
        assert public_key(server) == key


def test_to_bind_again_changes_the_binding_and_sends_nothing_twice(server: RunningServer, stream: str) -> None:
    old, new = Browser(), Browser()
    with push_service() as service:
        id = bind(server, old.subscription(service.endpoint("a")), stream)
        put(server, stream, b"one")
        wait_until(lambda: len(service.taken) == 1)
        reply = ask_sender(server, new.subscription(service.endpoint("a")), stream=stream, after=0, ttl=60)
        assert (reply.status, reply.json["id"], reply.json["ttl"]) == (200, id, 60)
        put(server, stream, b"two")
        wait_until(lambda: len(service.taken) == 2)
    assert new.read(service.taken[1].body) == b"two"


def test_to_bind_again_with_a_private_address_allowed_helps_at_once(server: RunningServer, stream: str) -> None:
    browser = Browser()
    with push_service() as service:
        subscription = browser.subscription(service.endpoint("a"))
        id = ask_sender(server, subscription, stream=stream, allow_private=False).json["id"]
        put(server, stream, b"x")
        wait_until(lambda: "private" in binding(server, id)["error"])
        assert ask_sender(server, subscription, stream=stream).status == 200
        wait_until(lambda: [browser.read(push.body) for push in service.taken] == [b"x"])


def test_an_unbound_browser_gets_nothing_more(server: RunningServer, stream: str) -> None:
    with push_service() as service:
        id = bind(server, Browser().subscription(service.endpoint("a")), stream)
        other = bind(server, Browser().subscription(service.endpoint("b")), stream)
        assert ask(server, "DELETE", f"/v1/webpush/{id}").status == 204
        assert ask(server, "DELETE", f"/v1/webpush/{id}").status == 404
        put(server, stream, b"x")
        wait_until(lambda: binding(server, other)["sent"] == 1)
    assert [push.path for push in service.pushes] == ["/push/b"]


GOOD: dict[str, Any] = {"subscription": Browser().subscription("https://push.example.net/x"), "stream": "/s"}


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"stream": ""}, 400, "input_invalid"),
        ({"message": "both"}, 400, "input_invalid"),
        ({"stream": "no slash"}, 400, "stream_name_invalid"),
        ({"ttl": -1}, 400, "input_invalid"),
        ({"ttl": 10**9}, 400, "input_invalid"),
        ({"ttl": "5"}, 400, "json_invalid"),
        ({"urgency": "soon"}, 400, "input_invalid"),
        ({"topic": "a b"}, 400, "input_invalid"),
        ({"topic": "x" * 33}, 400, "input_invalid"),
        ({"unknown": 1}, 400, "json_invalid"),
        ({"subscription": {"endpoint": "https://x/"}}, 400, "json_invalid"),
        ({"subscription": {**GOOD["subscription"], "endpoint": "ftp://x/"}}, 400, "subscription_invalid"),
        ({"subscription": {**GOOD["subscription"], "endpoint": "https://u:p@x/"}}, 400, "subscription_invalid"),
        ({"subscription": {**GOOD["subscription"], "endpoint": "https://x:99999/"}}, 400, "subscription_invalid"),
        ({"subscription": {**GOOD["subscription"], "endpoint": "https://x/" + "y" * 9000}}, 413, "too_large"),
        (
            {"subscription": {**GOOD["subscription"], "keys": {"p256dh": "AAAA", "auth": "AAAA"}}},
            400,
            "subscription_invalid",
        ),
        (
            {"subscription": {**GOOD["subscription"], "keys": {**Browser().keys, "auth": "AAAA"}}},
            400,
            "subscription_invalid",
        ),
        (
            {"subscription": {**GOOD["subscription"], "keys": {**Browser().keys, "auth": "a b"}}},
            400,
            "subscription_invalid",
        ),
    ],
)
def test_what_cannot_be_bound_is_refused_and_nothing_changes(
    server: RunningServer, change: dict[str, object], status: int, code: str
) -> None:
    before = bound(server)
    reply = ask(server, "POST", "/v1/webpush", json.dumps({**GOOD, **change}).encode())

    assert (reply.status, reply.code) == (status, code)
    assert reply.json["error"]["remedy"]
    assert bound(server) == before


def bound(server: RunningServer) -> list[str]:
    return [one["id"] for one in ask(server, "GET", "/v1/webpush").json["bindings"]]


def token(server: RunningServer, *grants: str) -> str:
    command = [sys.executable, "-m", "penstock", "token", "--data", str(server.data), *grants]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_everybody_sees_only_the_own_bindings(server: RunningServer, stream: str) -> None:
    alice = token(server, "--sub", "alice", "--grant", "webpush", "--subscribe", f"{stream}/>")
    bob = token(server, "--sub", "bob", "--grant", "webpush", "--subscribe", f"{stream}/>")
    nobody = token(server, "--sub", "nobody", "--subscribe", f"{stream}/>")
    subscription = Browser().subscription("https://push.example.net/x")
    made = ask_sender(server, subscription, alice, stream=f"{stream}/a", allow_private=False)
    assert made.status == 201
    id = made.json["id"]
    # Nobody else can see, take over or remove it
    assert ask(server, "GET", "/v1/webpush", token=bob).json["bindings"] == []
    assert [one["id"] for one in ask(server, "GET", "/v1/webpush", token=alice).json["bindings"]] == [id]
    assert ask_sender(server, subscription, bob, stream=f"{stream}/a", allow_private=False).status == 404
    assert ask(server, "DELETE", f"/v1/webpush/{id}", token=bob).status == 404
    # and what is not granted is refused
    assert ask_sender(server, subscription, alice, stream="/other", allow_private=False).status == 403
    assert ask_sender(server, subscription, alice, stream=f"{stream}/a", allow_private=True).status == 403
    assert ask_sender(server, subscription, nobody, stream=f"{stream}/a", allow_private=False).status == 403
    assert ask(server, "POST", "/v1/webpush", json.dumps(GOOD).encode(), token=None).status == 401
    # and the endpoint, which is a capability, is not shown
    assert made.json["service"] == "https://push.example.net"
    assert "push.example.net/x" not in ask(server, "GET", "/v1/webpush").body.decode()
    assert ask(server, "DELETE", f"/v1/webpush/{id}", token=alice).status == 204


def test_a_private_address_is_refused_unless_the_admin_allows_it(server: RunningServer, stream: str) -> None:
    with push_service() as service:
        subscription = Browser().subscription(service.endpoint("a"))
        reply = ask_sender(server, subscription, message="x", allow_private=False)
        assert (reply.status, reply.code) == (400, "address_private")
        id = ask_sender(server, subscription, stream=stream, allow_private=False).json["id"]
        put(server, stream, b"x")
        wait_until(lambda: "private" in binding(server, id)["error"])
        ask(server, "DELETE", f"/v1/webpush/{id}")
    assert service.pushes == []


def test_the_list_has_pages(server: RunningServer, stream: str) -> None:
    made = sorted(bind(server, Browser().subscription(f"https://push.example.net/{n}"), stream) for n in range(3))
    after = f"{int(made[0], 16) - 1:016x}"
    page = ask(server, "GET", "/v1/webpush", after=after, limit=1).json
    assert ([one["id"] for one in page["bindings"]], page["more"]) == (made[:1], True)
    for id in made:
        ask(server, "DELETE", f"/v1/webpush/{id}")


def test_metrics_count_bindings(server: RunningServer, stream: str) -> None:
    id = bind(server, Browser().subscription("https://push.example.net/m"), stream)
    text = ask(server, "GET", "/metrics").body.decode()
    assert "penstock_webpush_bindings" in text
    assert "penstock_webpush_unbound_total" in text
    ask(server, "DELETE", f"/v1/webpush/{id}")


def test_a_given_key_is_used_and_a_wrong_one_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "webpush", "keys", "--new", "--json"]
    pair = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    with start_server(tmp_path / "data", webpush_vapid_key=pair["private_key"]) as server:
        assert public_key(server) == pair["public_key"]
        assert len(decode64(pair["public_key"])) == 65
    for setting in ("webpush.vapid_key=AAAA", "webpush.contact=me@example.net"):
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path / "d"), "--listen", "127.0.0.1:0"]
        ended = subprocess.run([*command, "--set", setting], capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == 2
        assert "config_invalid" in ended.stderr


def cli(server: RunningServer, *arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "webpush", *arguments]
    return subprocess.run(
        [*command, "--url", server.url, "--token", server.admin_token],
        input=input,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_line_sends_binds_lists_and_unbinds(server: RunningServer, stream: str, tmp_path: Path) -> None:
    browser, file = Browser(), tmp_path / "subscription.json"
    with push_service() as service:
        subscription = json.dumps(browser.subscription(service.endpoint("a")))
        file.write_text(subscription)
        # One message
        sent = cli(server, "send", str(file), "hello", "--ttl", "60", "--allow-private")
        assert (sent.returncode, sent.stderr) == (0, "")
        assert browser.read(service.taken[0].body) == b"hello"
        assert cli(server, "send", "-", "again", "--allow-private", input=subscription).returncode == 0
        # A binding
        bound = cli(server, "bind", str(file), stream, "--allow-private", "--json")
        id = json.loads(bound.stdout)["id"]
        put(server, stream, b"x")
        wait_until(lambda: len(service.taken) == 3)
        assert id in cli(server, "list").stdout
        assert cli(server, "unbind", id).returncode == 0
        assert id not in cli(server, "list").stdout
    assert cli(server, "keys").stdout.strip() == public_key(server)
    wrong = cli(server, "send", "-", "x", input="{}")
    assert wrong.returncode == 2
    assert "endpoint" in wrong.stderr


def test_a_slow_service_is_not_overrun(stream: str, server: RunningServer) -> None:
    """As many requests at once as there are slots, never more."""
    at_once, most, lock = 0, 0, threading.Lock()
    gate = threading.Semaphore(0)

    def count(push: Push) -> int:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        gate.acquire(timeout=20)
        with lock:
            at_once -= 1
        return 201

    with push_service(count) as service:
        for number in range(12):
            bind(server, Browser().subscription(service.endpoint(f"{number}")), stream)
        put(server, stream, b"x")
        wait_until(lambda: at_once == 8)
        gate.release(20)
        wait_until(lambda: len(service.taken) >= 12)
        assert most == 8
