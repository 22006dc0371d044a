"""Signatures, against the standard's own package."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from penstock.errors import InputInvalid
from penstock.wire import webhooks

NOW = 1_800_000_000
keys = st.binary(min_size=24, max_size=64)
printable = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


def clock() -> int:
    """The seconds of now, for the package, which reads the clock itself."""
    return int(datetime.now(UTC).timestamp())


def secret_of(key: bytes) -> str:
    return "whsec_" + b64encode(key).decode()


@given(keys, printable, st.text(max_size=200))
def test_the_standards_package_accepts_what_is_signed_here(key: bytes, id: str, body: str) -> None:
    headers = dict(webhooks.sign(key, id, clock(), body.encode()))

    Webhook(secret_of(key)).verify(body, headers, json_parse=False)


@given(keys, printable, st.text(max_size=200))
def test_what_the_standards_package_signs_is_accepted_here(key: bytes, id: str, body: str) -> None:
    signature = Webhook(secret_of(key)).sign(id, datetime.fromtimestamp(NOW, UTC), body)
    headers = {"webhook-id": id, "webhook-timestamp": str(NOW), "webhook-signature": f"v0,xx {signature}"}

    webhooks.verify(key, headers, body.encode(), NOW)


def test_a_change_of_anything_is_refused_here_and_there() -> None:
    key, body = b"k" * 32, b'{"a":1}'
    good = dict(webhooks.sign(key, "msg_1", NOW, body))
    webhooks.verify(key, good, body, NOW)
    for headers, sent in [
        (good, b'{"a":2}'),
        ({**good, "webhook-id": "msg_2"}, body),
        ({**good, "webhook-timestamp": str(NOW - 1)}, body),
        ({**good, "webhook-signature": "v1,AAAA"}, body),
        ({**good, "webhook-signature": ""}, body),
        ({**good, "webhook-timestamp": "soon"}, body),
        ({name: value for name, value in good.items() if name != "webhook-id"}, body),
    ]:
        with pytest.raises(webhooks.SignatureInvalid):
            webhooks.verify(key, headers, sent, NOW)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret_of(key)).verify(b'{"a":2}', dict(webhooks.sign(key, "msg_1", clock(), body)))


@pytest.mark.parametrize("away", [-301, 301])
def test_what_was_signed_long_ago_or_in_the_future_is_refused(away: int) -> None:
    headers = dict(webhooks.sign(b"k" * 32, "msg_1", NOW, b""))

    webhooks.verify(b"k" * 32, headers, b"", NOW + away - away // abs(away))
    with pytest.raises(webhooks.SignatureInvalid):
        webhooks.verify(b"k" * 32, headers, b"", NOW + away)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_not base64", "whsec_" + b64encode(b"short").decode()])
def test_a_secret_that_is_none_is_refused(secret: str) -> None:
    with pytest.raises(InputInvalid):
        webhooks.parse_secret(secret)


def test_the_same_message_has_the_same_id() -> None:
    assert webhooks.message_id("/_sub/a", "/s:0:1") == webhooks.message_id("/_sub/a", "/s:0:1")
    assert webhooks.message_id("/_sub/a", "/s:0:1") != webhooks.message_id("/_sub/a/s:0:1")
