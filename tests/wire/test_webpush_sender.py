"""What a sender decides: whom it believes, and what it makes of an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputInvalid
from penstock.values import Entry, Kind
from penstock.wire.webcrypto import encode64, load_private, point_of
from penstock.wire.webpush_sender import (
    PushKeys,
    PushOutcome,
    PushSubscription,
    SendOptions,
    check_send_options,
    check_subscription,
    deadline_ms,
    judge,
    push_headers,
)

POINT = point_of(load_private(b"\x01" * 32))
KEYS = PushKeys(encode64(POINT), encode64(bytes(16)))


def test_a_subscription_becomes_bytes() -> None:
    receiver = check_subscription(PushSubscription("https://push.example.net/x", KEYS))

    assert (receiver.key, receiver.auth) == (POINT, bytes(16))


@given(st.text(max_size=50), st.text(max_size=90), st.text(max_size=30))
def test_any_subscription_is_refused_in_words(endpoint: str, key: str, auth: str) -> None:
    for given_keys in (PushKeys(key, auth), PushKeys(KEYS.p256dh, auth), PushKeys(key, KEYS.auth)):
        with pytest.raises(InputInvalid):
            check_subscription(PushSubscription(endpoint, given_keys))


@pytest.mark.parametrize(
    ("status", "outcome", "everybody"),
    [
        (200, PushOutcome.ACCEPTED, False),
        (201, PushOutcome.ACCEPTED, False),
        (202, PushOutcome.ACCEPTED, False),
        (302, PushOutcome.LATER, False),
        (400, PushOutcome.REFUSED, False),
        (401, PushOutcome.LATER, False),
        (403, PushOutcome.LATER, False),
        (404, PushOutcome.GONE, False),
        (410, PushOutcome.GONE, False),
        (413, PushOutcome.REFUSED, False),
        (429, PushOutcome.LATER, True),
        (500, PushOutcome.LATER, True),
        (503, PushOutcome.LATER, True),
    ],
)
def test_what_a_status_means(status: int, outcome: PushOutcome, everybody: bool) -> None:
    verdict = judge(status, {})

    assert (verdict.outcome, verdict.everybody) == (outcome, everybody)


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7.0), ("0", 0.0), ("", None), ("-1", None), ("1e9", None), ("Wed, 21 Oct", None)]
)
def test_retry_after_in_seconds_counts(text: str, seconds: float | None) -> None:
    assert judge(503, {"retry-after": text}).retry_after == seconds


@pytest.mark.parametrize(
    ("link", "receipt"),
    [
        ('<https://p/r/1>; rel="urn:ietf:params:push:receipt"', "https://p/r/1"),
        ('<https://p/x>; rel="next", <https://p/r/2>;rel="urn:ietf:params:push:receipt"', "https://p/r/2"),
        ('<https://p/x>; rel="next"', ""),
        ("", ""),
    ],
)
def test_where_receipts_come_is_in_a_link(link: str, receipt: str) -> None:
    verdict = judge(202, {"link": link, "location": "https://p/m/1"})

    assert (verdict.outcome, verdict.receipt, verdict.location) == (PushOutcome.ACCEPTED, receipt, "https://p/m/1")


@given(st.integers(100, 599), st.dictionaries(st.sampled_from(["retry-after", "location"]), st.text()), st.binary())
def test_any_answer_has_a_meaning(status: int, headers: dict[str, str], body: bytes) -> None:
    assert judge(status, headers, body).reason.isprintable()


def test_headers_say_what_was_wished() -> None:
    plain = dict(push_headers(SendOptions(60), "vapid t=a,k=b"))
    assert plain == {"TTL": "60", "Content-Encoding": "aes128gcm", "Authorization": "vapid t=a,k=b"}
    assert dict(push_headers(SendOptions(60), "x", ""))["Prefer"] == "respond-async"
    assert dict(push_headers(SendOptions(60), "x", "https://p/r/1"))["Push-Receipt"] == "<https://p/r/1>"
    full = dict(push_headers(SendOptions(0, "low", "a_b-1"), "x"))
    assert (full["TTL"], full["Urgency"], full["Topic"]) == ("0", "low", "a_b-1")


@pytest.mark.parametrize(
    "options",
    [
        SendOptions(-1),
        SendOptions(101),
        SendOptions(1, "soon"),
        SendOptions(1, "", "a b"),
        SendOptions(1, "", "a" * 33),
    ],
)
def test_a_wish_that_no_service_takes_is_refused(options: SendOptions) -> None:
    with pytest.raises(InputInvalid):
        check_send_options(options, 100)


def test_an_entry_is_too_old_at_the_earlier_of_both_times() -> None:
    def entry(expires_ms: int | None) -> Entry:
        return Entry(1, "/s", 0, 0, 0, 0, Kind.DATA, "", 5_000, expires_ms, "", b"")

    assert deadline_ms(entry(None), 10) == 15_000
    assert deadline_ms(entry(9_000), 10) == 9_000
    assert deadline_ms(entry(99_000), 10) == 15_000
