"""The door from outside: pywebpush sends, `websockets` receives, http_ece decrypts; then our own sender sends."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from py_vapid import Vapid02
from pywebpush import WebPushException, webpush

from penstock.testing import RunningServer, start_server, wait_until
from penstock.wire.webcrypto import encode64, load_private, point_of
from tests.api.client import ask
from tests.doors.push_service import ask_sender, bind, binding
from tests.doors.test_webpush_sender import events, public_key, put
from tests.doors.user_agent import UserAgent, connected

KEY = load_private(b"\x05" * 32)
OTHER = load_private(b"\x06" * 32)
PUBLIC = encode64(point_of(KEY))
CODINGS = ("aes128gcm", "aesgcm")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("outside") / "data") as running:
        yield running


def vapid(key: object = KEY) -> Vapid02:
    return Vapid02.from_pem(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))  # type: ignore[attr-defined]


def send(subscription: dict[str, object], text: str, **fields: object) -> int:
    """As an application server does it; its library checks nothing of ours."""
    given = {"vapid_private_key": vapid(), "vapid_claims": {"sub": "mailto:me@example.net"}, "ttl": 60, **fields}
    answer = webpush(subscription, text, **given)
    assert answer.headers["location"]
    status: int = answer.status_code
    return status


@pytest.mark.parametrize("coding", CODINGS)
def test_a_message_of_pywebpush_is_read_by_the_user_agent(server: RunningServer, coding: str) -> None:
    with UserAgent(server) as agent:
        subscription = agent.subscribe(PUBLIC)
        assert "/wpush/v2/" in subscription["endpoint"]
        assert send(subscription, "hello é", content_encoding=coding) == 201
        assert agent.read() == "hello é".encode()


def test_without_a_key_anybody_may_send(server: RunningServer) -> None:
    with UserAgent(server) as agent:
        subscription = agent.subscribe()
        assert "/wpush/v1/" in subscription["endpoint"]
        assert send(subscription, "signed") == 201
        assert agent.read() == b"signed"
        assert webpush(subscription, "plain", ttl=60).status_code == 201
        assert agent.read() == b"plain"


@pytest.mark.parametrize("coding", CODINGS)
def test_messages_wait_for_a_user_agent_that_is_away(server: RunningServer, coding: str) -> None:
    with UserAgent(server) as agent:
        subscription = agent.subscribe(PUBLIC)
    wait_until(lambda: connected(server) == 0)
    for number in range(5):
        assert send(subscription, f"{number}", content_encoding=coding) == 201
    with UserAgent(server, agent.uaid, agent.browser) as again:
        assert again.uaid == agent.uaid
        assert [again.read() for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_message_without_a_body_is_a_bare_notification(server: RunningServer) -> None:
    with UserAgent(server) as agent:
        subscription = agent.subscribe()
        assert webpush({"endpoint": subscription["endpoint"]}, ttl=60).status_code == 201
        message = agent.notification()
        assert "data" not in message
        assert "headers" not in message


def test_a_sender_with_another_key_hears_which_check_failed(server: RunningServer) -> None:
    with UserAgent(server) as agent:
        subscription = agent.subscribe(PUBLIC)
        wrong = {
            "key_mismatch": {"vapid_private_key": vapid(OTHER)},
            "aud_mismatch": {"vapid_claims": {"sub": "mailto:me@example.net", "aud": "https://elsewhere.example.net"}},
            "exp_too_far": {"vapid_claims": {"sub": "mailto:me@example.net", "exp": int(time.time()) + 90_000}},
        }
        for check, fields in wrong.items():
            with pytest.raises(WebPushException) as caught:
                send(subscription, "x", **fields)
            answer = caught.value.response
            assert answer is not None
            assert answer.status_code == 401
            assert check in answer.json()["message"], check


def test_our_sender_and_our_service_are_two_strangers_that_understand_each_other(server: RunningServer) -> None:
    stream = "/outside/both"
    with UserAgent(server) as agent:
        # Given a browser that subscribed with the sender's key
        subscription = agent.subscribe(public_key(server))
        assert ask_sender(server, subscription, message="one message").status == 201
        assert agent.read() == b"one message"
        # When it is bound to a stream
        id = bind(server, subscription, stream)
        entries = [put(server, stream, b"%d" % number) for number in range(10)]
        # Then every entry arrives; one that comes during a look into the storage may overtake those in it
        assert sorted(agent.read() for _ in entries) == [b"%d" % number for number in range(10)]
        assert events(server, entries[0], id) == [("sent", "accepted by the push service")]
        # And a browser that unsubscribes is unbound with the next entry
        assert agent.ask({"messageType": "unregister", "channelID": agent.channels[0]})["status"] == 200
        put(server, stream, b"too late")
        wait_until(lambda: ask(server, "GET", f"/v1/webpush/{id}").status == 404)


def test_a_receipt_proves_that_an_entry_reached_the_user_agent(server: RunningServer) -> None:
    stream = "/outside/proved"
    with UserAgent(server) as agent:
        # Given a binding with receipts, and two entries of which one is acknowledged
        id = bind(server, agent.subscribe(public_key(server)), stream, receipts=True)
        first, second = put(server, stream, b"first"), put(server, stream, b"second")
        assert agent.read() == b"first"
        message = agent.notification()
        assert agent.decrypt(message) == b"second"
        # Then the ledger tells the two apart
        wait_until(lambda: binding(server, id)["acked"] == 1)
        assert events(server, first, id)[-1] == ("acked", "by the user agent")
        assert [state for state, _ in events(server, second, id)] == ["sent"]
        # and an acknowledgement that comes after a restart counts, too
        server.restart()
    with UserAgent(server, agent.uaid, agent.browser) as agent:
        assert agent.read() == b"second"
        wait_until(lambda: events(server, second, id)[-1] == ("acked", "by the user agent"))


def test_a_message_that_the_service_gave_up_is_known_to_be(server: RunningServer) -> None:
    stream = "/outside/given-up"
    with UserAgent(server) as agent:
        subscription = agent.subscribe(public_key(server))
        id = bind(server, subscription, stream, receipts=True, topic="one")
        wait_until(lambda: connected(server) == 1)
    wait_until(lambda: connected(server) == 0)
    replaced, newer = put(server, stream, b"old"), put(server, stream, b"new")
    wait_until(lambda: events(server, replaced, id)[-1:] == [("dropped", "given up by the push service")])
    wait_until(lambda: [state for state, _ in events(server, newer, id)] == ["sent"])


def test_the_sender_gives_the_time_that_is_left(server: RunningServer) -> None:
    with UserAgent(server) as agent:
        subscription = agent.subscribe(public_key(server))
        reply = ask_sender(server, subscription, message=json.dumps({"n": 1}), ttl=30, urgency="low", topic="a")
        assert reply.status == 201
        assert "/m/" in reply.json["location"]
        assert json.loads(agent.read()) == {"n": 1}
