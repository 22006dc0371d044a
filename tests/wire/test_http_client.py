"""Answers to our own requests, as bytes: bounded, however they are cut."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PeerError
from penstock.limits import ANSWER_HEAD_BYTES
from penstock.wire import http_chunks, http_client
from penstock.wire.http_chunks import LAST_CHUNK, chunk
from penstock.wire.http_client import AnswerReader, request_head

LIMIT = 4096
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(*pieces: bytes) -> AnswerReader:
    reader = AnswerReader(LIMIT)
    for piece in pieces:
        reader.feed(piece)
    return reader


def outcome(*pieces: bytes) -> object:
    try:
        reader = read(*pieces)
        reader.end()
    except PeerError as error:
        return error.status
    return reader.complete, reader.status, reader.headers, bytes(reader.body), reader.keep_alive


@given(st.lists(st.integers(0, 400), max_size=8), st.integers(0, 3), st.binary(max_size=60), st.sampled_from("lce"))
def test_how_the_bytes_are_cut_does_not_matter(places: list[int], interims: int, body: bytes, kind: str) -> None:
    heads = {"l": b"Content-Length: %d\r\n" % len(body), "c": b"Transfer-Encoding: chunked\r\n", "e": b""}
    framed = (chunk(body) if body else b"") + LAST_CHUNK if kind == "c" else body
    whole = INTERIM * interims + b"HTTP/1.1 201 Created\r\nX:  y \r\n" + heads[kind] + b"\r\n" + framed
    cuts = [0, *sorted(place for place in places if place < len(whole)), len(whole)]
    pieces = [whole[begin:end] for begin, end in pairwise(cuts)]

    found = outcome(*pieces)

    assert found == outcome(*(whole[at : at + 1] for at in range(len(whole)))) == outcome(whole)
    assert isinstance(found, tuple)
    assert (found[0], found[1], found[2]["x"], found[3]) == (True, 201, "y", body)
    assert found[4] == (kind != "e")


@given(st.lists(st.binary(max_size=80), max_size=5))
def test_garbage_is_a_broken_answer_and_nothing_else(pieces: list[bytes]) -> None:
    assert outcome(b"HTTP/1.1 ", *pieces) is not None
    assert outcome(CHUNKED, *pieces) is not None


ENDLESS = {
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 1000),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 100),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40),
    "interim answers with headers": (b"", INTERIM * 30),
    "a status line": (b"HTTP/1.1 200 ", b"O" * 1000),
    "trailers": (CHUNKED + b"0\r\n", b"X: y\r\n" * 100),
    "a trailer": (CHUNKED + b"0\r\nX: ", b"x" * 1000),
    "a chunk extension": (CHUNKED + b"1;", b"x" * 1000),
    "chunk extensions": (CHUNKED, b"1;xxxxxxxxxxxxxxxxxx\r\nx\r\n" * 40),
    "tiny chunks": (CHUNKED, b"1\r\nx\r\n" * 100),
    "a chunk": (CHUNKED + b"fffffffffffffff\r\n", b"x" * 1000),
    "a body": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1000),
}


def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotage: neither heads nor bodies nor what frames them are bounded."""
    honest = AnswerReader.__init__
    monkeypatch.setattr(http_client, "ANSWER_HEAD_BYTES", 1 << 40)
    monkeypatch.setattr(http_chunks, "CHUNK_EXTENSION_BYTES", 1 << 40)
    monkeypatch.setattr(http_chunks, "TRAILER_BYTES", 1 << 40)
    monkeypatch.setattr(AnswerReader, "__init__", lambda self, limit_bytes: honest(self, None))


@pytest.mark.parametrize("sabotage", [None, no_limits])
@pytest.mark.parametrize("what", ENDLESS)
def test_what_never_ends_is_refused_within_its_limit(
    monkeypatch: pytest.MonkeyPatch, what: str, sabotage: Callable[[pytest.MonkeyPatch], None] | None
) -> None:
    begin, again = ENDLESS[what]
    most = ANSWER_HEAD_BYTES + 2 * LIMIT + len(again)
    if sabotage:
        sabotage(monkeypatch)

    assert (outcome(begin, *[again] * (most // len(again) + 1)) == 502) == (sabotage is None)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4097\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 099 No\r\n\r\n",
        b"\r\n\r\n\r\n\r\n",
    ],
)
def test_a_head_that_cannot_be_meant_is_refused(head: bytes) -> None:
    assert outcome(head) == 502


def test_what_is_taken_as_it_comes_has_no_limit() -> None:
    reader = AnswerReader(None)
    reader.feed(INTERIM + CHUNKED)
    taken = 0
    for _ in range(20_000):  # more framing, and more body, than an answer with a limit may have
        reader.feed(b"1;y\r\nx\r\n")
        taken += len(reader.take())

    assert (taken, bytes(reader.body), reader.interims, reader.complete) == (20_000, b"", 1, False)
    reader.feed(LAST_CHUNK)
    assert reader.complete


def test_the_answer_to_a_head_request_ends_with_its_head() -> None:
    reader = AnswerReader(LIMIT, bodiless=True)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n")

    assert (reader.complete, reader.keep_alive, reader.headers["content-length"]) == (True, True, "9000")


def test_a_request_is_written_as_it_is_given_byte_for_byte() -> None:
    value = b"caf\xe9 \xc3\xa9".decode(errors="surrogateescape")

    head = request_head("GET", "/a?b", "h:1", (("X", value), ("Y", "é")))

    assert head == b"GET /a?b HTTP/1.1\r\nHost: h:1\r\nX: caf\xe9 \xc3\xa9\r\nY: \xc3\xa9\r\n\r\n"


def test_a_trailer_changes_no_field() -> None:
    reader = read(CHUNKED + b"0\r\nRetry-After: 9999\r\n\r\n")

    assert (reader.complete, reader.headers) == (True, {"transfer-encoding": "chunked"})


def test_what_follows_an_answer_costs_the_connection() -> None:
    assert read(b"HTTP/1.1 204 No Content\r\n\r\n").keep_alive
    assert not read(b"HTTP/1.1 204 No Content\r\n\r\nmore").keep_alive
    assert not read(b"HTTP/1.0 204 No Content\r\n\r\n").keep_alive
