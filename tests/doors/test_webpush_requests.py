"""What is remembered of a head must not hold where it does not."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.fernet import Fernet

from penstock.core.clock import ManualClock
from penstock.doors.webpush.requests import EndpointRequest, EndpointRequestReader
from penstock.http.requests import Request
from penstock.wire.http_requests import HeadParser
from penstock.wire.webpush_errors import EndpointRefused, Errno
from penstock.wire.webpush_tokens import EndpointSubscription, EndpointTokens

CHANNEL = "d9b74644-4f97-46aa-b8fa-9393985cd6cd"


class Sender:
    """Sends the very same head again and again."""

    def __init__(self, *headers: str) -> None:
        tokens = EndpointTokens([Fernet.generate_key().decode()], b"test")
        self.reader = EndpointRequestReader(tokens, ManualClock(), origin="", body_limit=10, ttl_most=60)
        path = tokens.endpoint(EndpointSubscription("a" * 32, CHANNEL))
        self._captures = tuple(path.removeprefix("/wpush/").split("/"))
        lines = [f"POST {path} HTTP/1.1", "Host: push.test", "Transfer-Encoding: chunked", *headers]
        self._head = HeadParser().parse("\r\n".join([*lines, "", ""]).encode())

    def sends(self, body: bytes = b"", scheme: str = "http") -> EndpointRequest:
        carrier: Any = None
        request = Request(carrier, self._head, "127.0.0.1", scheme)
        request.captures, request.body = self._captures, body
        return self.reader.read(request)


def test_a_head_that_comes_again_is_read_once() -> None:
    sender = Sender("TTL: 100", "Content-Encoding: aes128gcm")

    first, second = sender.sends(b"x"), sender.sends(b"y")

    assert first is second
    assert (first.push.ttl, first.push.coding.encoding, first.subscription.channel) == (60, "aes128gcm", CHANNEL)


def test_the_same_head_with_another_body_is_another_message() -> None:
    """It came in chunks: only the body says how long it is."""
    sender = Sender("TTL: 100", "Content-Encoding: aes128gcm")

    assert sender.sends(b"x").push.coding.encoding == "aes128gcm"
    assert sender.sends(b"").push.coding.encoding == ""
    for _ in range(2):
        with pytest.raises(EndpointRefused) as refused:
            sender.sends(b"x" * 11)
        assert refused.value.errno is Errno.BODY_TOO_LARGE
    assert sender.sends(b"x").push.coding.encoding == "aes128gcm"


def test_a_body_that_is_not_encrypted_is_refused_also_after_an_empty_one() -> None:
    sender = Sender("TTL: 100")

    sender.sends(b"")
    with pytest.raises(EndpointRefused) as refused:
        sender.sends(b"x")

    assert refused.value.errno is Errno.CODING


def test_the_origin_is_that_of_the_request_whoever_sent_the_head_before() -> None:
    """With X-Forwarded-Proto it is https from a trusted proxy, and http from anybody else."""
    sender = Sender("TTL: 0", "X-Forwarded-Proto: https")

    assert [sender.sends(scheme=scheme).origin for scheme in ("https", "http", "https")] == [
        "https://push.test", "http://push.test", "https://push.test",
    ]  # fmt: skip


def test_of_several_headers_with_one_name_the_first_counts() -> None:
    assert Sender("TTL: 7", "TTL: 8").sends().push.ttl == 7
