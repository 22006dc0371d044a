from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.wire import webpush
from penstock.wire.webpush import Close, Mistake, PushMessage
from penstock.wire.webpush_endpoint import PushHeaders, parse_push, parse_ttl
from penstock.wire.webpush_errors import ERRNOS, EndpointRefused, Errno

CHANNEL = "d9b74644-4f97-46aa-b8fa-9393985cd6cd"
UAID = "a" * 32

versions = st.text("abcXYZ019-_", min_size=1, max_size=80)
texts = st.text("abc=;,_-", max_size=30)
messages = st.builds(
    PushMessage,
    uaid=st.just(UAID),
    channel=st.just(CHANNEL),
    version=versions,
    ttl=st.integers(0, 10**7),
    expires_ms=st.integers(1, 2**45),
    body=st.binary(max_size=300),
    topic=texts,
    urgency=texts,
    encoding=st.sampled_from(["", "aes128gcm", "aesgcm"]),
    encryption=texts,
    crypto_key=texts,
    receipt=texts,
)


def said(**message: object) -> str:
    return json.dumps(message)


@pytest.mark.parametrize(
    ("frame", "heard"),
    [
        ("{}", webpush.Ping()),
        (" {} \n", webpush.Ping()),
        (said(messageType="ping"), webpush.Ping()),
        (said(messageType="hello", uaid=UAID, channelIDs=["x", 7], use_webpush=True), webpush.Hello(UAID)),
        (said(messageType="hello", broadcasts={"a": "b"}), webpush.Hello("", {"a": "b"})),
        (said(messageType="register", channelID=CHANNEL, key="k"), webpush.Register(CHANNEL, "k")),
        (said(messageType="unregister", channelID=7), webpush.Unregister(7)),
        (said(messageType="ack", updates=[{"version": "v"}]), webpush.AckUpdates([webpush.Update("v")])),
        (said(messageType="nack", version="v", code=301), webpush.Nack("v", 301)),
        (said(messageType="broadcast_subscribe", broadcasts={}), webpush.BroadcastSubscribe({})),
    ],
)
def test_what_user_agents_say(frame: str, heard: object) -> None:
    assert webpush.parse(frame) == heard


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"{}", Close.NOT_TEXT),
        ("", Close.FAILED),
        ("[]", Close.FAILED),
        ("null", Close.FAILED),
        (said(messageType="strange"), Close.FAILED),
        (said(uaid=UAID), Close.FAILED),
        (said(messageType="ack", updates=[{}]), Close.FAILED),
        (said(messageType="ack", updates=7), Close.FAILED),
        ('{"messageType":"hello","uaid":"\ud800"}', Close.FAILED),
        ('{"messageType":"register","channelID":' + "[" * 50_000 + "]" * 50_000 + "}", Close.FAILED),
    ],
)
def test_a_mistake_has_its_close_code(frame: str | bytes, code: Close) -> None:
    heard = webpush.parse(frame)

    assert isinstance(heard, Mistake)
    assert heard.code == code


@given(st.text() | st.binary() | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_garbage_gives_a_value_and_never_an_exception(frame: str | bytes) -> None:
    webpush.parse(frame)


@given(messages)
def test_a_notification_is_one_json_object_without_what_stays_here(message: PushMessage) -> None:
    shown = json.loads(webpush.notification(message))

    assert shown["version"] == message.version
    assert ("data" in shown) == ("headers" in shown) == bool(message.body)
    assert not shown.keys() & {"ttl", "topic", "timestamp", "urgency", "receipt"}


@given(messages, st.integers(0, 2**45))
def test_what_one_node_passes_on_the_other_understands(message: PushMessage, now_ms: int) -> None:
    assert webpush.passed_on(UAID, webpush.pass_on(message, now_ms)) == message


def test_another_nodes_message_without_our_fields_has_its_end_from_its_ttl() -> None:
    body = json.dumps({"channelID": CHANNEL, "version": "v", "ttl": 60, "timestamp": 1000}).encode()

    assert webpush.passed_on(UAID, body).expires_ms == 1_060_000


@pytest.mark.parametrize("body", [b"", b"{}", b'{"channelID":"x","version":"v","ttl":1,"timestamp":1}', b"[]"])
def test_what_is_no_message_is_refused_between_nodes_too(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - msgspec's errors are such
        webpush.passed_on(UAID, body)


def test_every_number_has_a_status_and_a_remedy() -> None:
    assert set(ERRNOS) == set(Errno)
    for errno in Errno:
        shown = json.loads(EndpointRefused(errno, "it is so").body())
        assert (shown["errno"], shown["code"]) == (errno, ERRNOS[errno].status)
        assert shown["message"] == f"it is so. {ERRNOS[errno].remedy}"


@given(st.text(max_size=30))
@example("0\x1f")
def test_a_ttl_is_a_whole_number_or_is_refused(text: str) -> None:
    try:
        seconds = parse_ttl(text)
    except EndpointRefused as refused:
        errno = refused.errno
    else:
        assert seconds == int(text) >= 0
        return
    assert errno in (Errno.TTL_INVALID, Errno.TTL_NEGATIVE)


@given(
    st.builds(PushHeaders, ttl=st.none() | st.just("60") | texts, topic=st.none() | texts, content_encoding=texts),
    st.integers(0, 5000),
)
def test_headers_are_understood_or_refused(headers: PushHeaders, body_bytes: int) -> None:
    try:
        push = parse_push(headers, body_bytes, body_limit=4096, ttl_most=30)
    except EndpointRefused:
        return
    assert push.ttl <= 30
    assert len(push.topic) <= 32


def test_what_is_preferred_may_stand_among_other_things() -> None:
    headers = PushHeaders(ttl="1", prefer="wait=3, Respond-Async")

    assert parse_push(headers, 0, body_limit=1, ttl_most=1).respond_async
    assert not parse_push(headers._replace(prefer="respond-asyncs"), 0, body_limit=1, ttl_most=1).respond_async
