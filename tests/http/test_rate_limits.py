"""How much one may ask."""

from __future__ import annotations

import pytest

from penstock.http.rate_limits import Caps, RateExceeded, TokenBuckets, TooManyOpen


def test_connections_are_counted_in_all_and_per_address() -> None:
    caps = Caps(3, per_address=2)

    assert [caps.admit("a"), caps.admit("a"), caps.admit("a")] == ["", "", "server.connections_per_address"]
    assert [caps.admit("b"), caps.admit("c")] == ["", "server.connections"]
    caps.release("a")
    assert (caps.admit("c"), caps.open) == ("", 3)


def test_a_connection_that_stands_for_no_address_counts_in_all_only() -> None:
    caps = Caps(3, per_address=1)

    assert [caps.admit(""), caps.admit(""), caps.admit("a"), caps.admit("")] == ["", "", "", "server.connections"]
    for address in ("", "a", ""):
        caps.release(address)
    assert (caps.open, caps.admit("a")) == (0, "")


def test_live_answers_are_counted_by_subject() -> None:
    caps = Caps(10, per_token=2)
    for subject in ("alice", "alice", "bob"):
        caps.open_live(subject)

    with pytest.raises(TooManyOpen, match="connections_per_token of 2"):
        caps.open_live("alice")
    caps.close_live("alice")
    caps.open_live("alice")


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    buckets = TokenBuckets("server.requests_per_token", 2.0, 4.0)
    for _ in range(4):
        buckets.take("a", 10.0)

    with pytest.raises(RateExceeded) as caught:
        buckets.take("a", 10.0)
    assert caught.value.retry_after == 1
    buckets.take("b", 10.0)
    buckets.take("a", 10.5)
    with pytest.raises(RateExceeded):
        buckets.take("a", 10.5)
    for _ in range(4):
        buckets.take("a", 100.0)


def test_a_clock_that_jumps_back_takes_nothing_away() -> None:
    buckets = TokenBuckets("x", 1.0, 2.0)
    buckets.take("a", 10.0)
    buckets.take("a", 5.0)
    with pytest.raises(RateExceeded):
        buckets.take("a", 5.0)


def test_only_so_many_are_remembered() -> None:
    buckets = TokenBuckets("x", 0.001, 1.0, keys=2)
    for key in ("a", "b", "c"):
        buckets.take(key, 0.0)

    buckets.take("a", 0.0)  # forgotten, so allowed again
    with pytest.raises(RateExceeded):
        buckets.take("c", 0.0)


def test_addresses_and_tokens_have_buckets_of_their_own() -> None:
    caps = Caps(10, requests_per_address=1.0, requests_per_token=1.0)
    for _ in range(2):
        caps.request_of_address("a", 0.0)
        caps.request_of_token("a", 0.0)
    with pytest.raises(RateExceeded, match="per_address"):
        caps.request_of_address("a", 0.0)
    with pytest.raises(RateExceeded, match="per_token"):
        caps.request_of_token("a", 0.0)
    Caps(10).request_of_token("a", 0.0)
