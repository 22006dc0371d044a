"""Request heads, chunked bodies and answers as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputInvalid, PeerError
from penstock.limits import CHUNK_EXTENSION_BYTES, HEAD_BYTES, TRAILER_BYTES, URL_BYTES
from penstock.wire import http_chunks, http_requests, http_responses, urls


def parse(raw: bytes) -> http_requests.RequestHead:
    return http_requests.HeadParser().parse(raw)


def status_of(raw: bytes) -> int:
    with pytest.raises(PeerError) as caught:
        parse(raw)
    return caught.value.status


def head(*lines: bytes, first: bytes = b"GET / HTTP/1.1", host: bool = True) -> bytes:
    return b"\r\n".join([first, *([b"Host: a"] if host else []), *lines, b"", b""])


def test_a_head_is_cut_into_its_parts() -> None:
    found = parse(head(b"X-Thing:  spaced \t", b"Content-Length: 12", first=b"POST /a/%62?c=d&e HTTP/1.1"))

    assert (found.method, found.path, found.query) == ("POST", "/a/%62", "c=d&e")
    assert found.headers == [(b"host", b"a"), (b"x-thing", b"spaced"), (b"content-length", b"12")]
    assert (found.length, found.chunked, found.keep_alive, found.http10) == (12, False, True, False)


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: chunked", b"Content-Length: 5"],
        [b"Content-Length: 5", b"Content-Length: 6"],
        [b"Content-Length: 5", b"Content-Length: 5"],
        [b"Content-Length: 5, 5"],
        [b"Content-Length: +5"],
        [b"Content-Length: -5"],
        [b"Content-Length: 0x5"],
        [b"Content-Length: 5 5"],
        [b"Content-Length:"],
        [b"Content-Length: " + b"9" * 30],
        [b"Transfer-Encoding: identity"],
        [b"Transfer-Encoding: gzip, chunked"],
        [b"Transfer-Encoding: chunked, chunked"],
        [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: xchunked"],
        [b"Transfer-Encoding: \x0bchunked"],
        [b"Transfer-Encoding : chunked"],
        [b"Content-Length : 5"],
        [b" Content-Length: 5"],
        [b"X-Folded: a", b" b"],
        [b"X-Folded: a", b"\tb"],
        [b"Host: b"],
        [b"Authorization: Bearer a", b"Authorization: Bearer b"],
        [b"Idempotency-Key: a", b"X: y", b"idempotency-key: a"],
        [b"Expected-Position: 1", b"Expected-Position: 2"],
        [b"Producer: a/1", b"PRODUCER: a/2"],
        [b"X: a\x00b"],
        [b"X: a\x7fb"],
        [b"X: a\rb"],
        [b"X: a\nTransfer-Encoding: chunked"],
        [b"X\x00: a"],
        [b"X[]: a"],
        [b": a"],
        [b"no colon"],
        [b"\xc3\xa4: a"],
    ],
)
def test_what_two_readers_could_understand_differently_is_refused(lines: list[bytes]) -> None:
    assert status_of(head(*lines)) == 400


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (b"GET / HTTP/1.2", 505),
        (b"GET / HTTP/2.0", 505),
        (b"GET / HTTP/0.9", 505),
        (b"GET /", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"GET / HTTP/1.1 ", 400),
        (b"GET / http/1.1", 400),
        (b"GET / HTTP/1.10", 400),
        (b"G\xc3T / HTTP/1.1", 400),
        (b"GET /\xc3\xa4 HTTP/1.1", 400),
        (b"GET /a b HTTP/1.1", 400),
        (b"GET /a\tb HTTP/1.1", 400),
        (b"GET /a#b HTTP/1.1", 400),
        (b"GET a HTTP/1.1", 400),
        (b"GET * HTTP/1.1", 400),
        (b"CONNECT a:80 HTTP/1.1", 400),
        (b"GET ftp://a/ HTTP/1.1", 400),
        (b"GET http://b/ HTTP/1.1", 400),
        (b"GET http://u@a/ HTTP/1.1", 400),
        (b"FROBNICATE / HTTP/1.1", 501),
        (b"get / HTTP/1.1", 501),
        (b"GET /" + b"a" * URL_BYTES + b" HTTP/1.1", 414),
    ],
)
def test_a_bad_request_line_is_refused(first: bytes, status: int) -> None:
    assert status_of(head(first=first)) == status


def test_a_host_is_required_once_and_only_in_1_1() -> None:
    assert status_of(head(host=False)) == 400
    assert status_of(head(b"Host: a b", host=False)) == 400
    assert status_of(head(b"Host: a/b", host=False)) == 400
    assert parse(head(host=False, first=b"GET / HTTP/1.0")).http10


def test_absolute_form_is_understood_when_it_agrees_with_the_host() -> None:
    found = parse(head(first=b"GET http://A/b?c HTTP/1.1"))

    assert (found.path, found.query) == ("/b", "c")
    assert parse(head(first=b"GET http://a HTTP/1.1")).path == "/"


def test_too_many_fields_are_refused() -> None:
    assert len(parse(head(*[b"X: y"] * 99)).headers) == 100
    assert status_of(head(*[b"X: y"] * 100)) == 431


@pytest.mark.parametrize(
    ("lines", "first", "keep_alive"),
    [
        ([], b"GET / HTTP/1.1", True),
        ([b"Connection: close"], b"GET / HTTP/1.1", False),
        ([b"Connection: Foo, CLOSE"], b"GET / HTTP/1.1", False),
        ([], b"GET / HTTP/1.0", False),
        ([b"Connection: keep-alive"], b"GET / HTTP/1.0", True),
    ],
)
def test_who_keeps_the_connection(lines: list[bytes], first: bytes, keep_alive: bool) -> None:
    assert parse(head(*lines, first=first)).keep_alive is keep_alive


def test_http_1_0_knows_no_transfer_coding() -> None:
    assert status_of(head(b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.0")) == 400


def test_an_unknown_expectation_fails() -> None:
    assert status_of(head(b"Expect: a miracle")) == 417
    assert parse(head(b"Expect: 100-Continue")).expects_continue


def test_a_parser_goes_on_after_a_refused_head_and_after_one_with_a_body() -> None:
    parser = http_requests.HeadParser()
    for raw in (head(b"Content-Length: x"), head(b"X: \x00")):
        with pytest.raises(PeerError):
            parser.parse(raw)
    for lines in ([b"Content-Length: 3"], [b"Transfer-Encoding: chunked"], [b"Connection: Upgrade", b"Upgrade: x"], []):
        assert parser.parse(head(*lines)).path == "/"


def test_the_end_of_a_head_is_found_wherever_the_bytes_were_cut() -> None:
    raw = head(b"A: b") + b"rest"
    end = len(raw) - 4
    for size in range(len(raw) + 1):
        looked = max(0, min(size, end) - 1)
        assert http_requests.find_head_end(raw[:size], looked) == (end if size >= end else -1)


def test_an_endless_head_is_refused_before_it_is_complete() -> None:
    with pytest.raises(PeerError) as long_line:
        http_requests.find_head_end(b"GET /" + b"a" * (URL_BYTES + 100))
    with pytest.raises(PeerError) as long_head:
        http_requests.find_head_end(b"GET / HTTP/1.1\r\nX: " + b"a" * HEAD_BYTES)

    assert (long_line.value.status, long_head.value.status) == (414, 431)


@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\nHost: a\n\n", b"GET / HTTP/1.1\r\nHost: a\n", b"\n"])
def test_a_bare_line_feed_is_refused_as_soon_as_it_comes(raw: bytes) -> None:
    with pytest.raises(PeerError, match="400: a bare CR or LF"):
        http_requests.find_head_end(raw)
    for size in range(1, len(raw)):  # and not before it, nor because of a CR that was looked at before
        assert http_requests.find_head_end(b"A: b\r\n"[:size], size - 1) == -1


@given(st.binary(max_size=300))
def test_garbage_is_a_head_or_refused(garbage: bytes) -> None:
    for raw in (garbage + b"\r\n\r\n", head(garbage), head(first=garbage)):
        try:
            found = parse(raw)
        except PeerError as error:
            refused = error.status
        else:
            refused = 400
            assert not (found.chunked and found.length)
        assert 400 <= refused <= 505


# ── chunked bodies ─────────────────────────────────────────────────────────────────────────────


def decode(*cuts: bytes) -> tuple[bytes, bytes | None]:
    decoder = http_chunks.ChunkDecoder()
    pieces: list[bytes] = []
    rest: bytes | None = None
    for data in cuts:
        rest = decoder.feed(data, pieces) if rest is None else rest + data
    return b"".join(pieces), rest


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.binary(max_size=10), st.lists(st.integers(0, 400)))
def test_how_a_chunked_body_is_cut_does_not_matter(pieces: list[bytes], after: bytes, places: list[int]) -> None:
    wire = b"".join(map(http_chunks.chunk, pieces)) + http_chunks.LAST_CHUNK + after

    assert decode(*cut(wire, places)) == (b"".join(pieces), after)
    assert decode(*(bytes([byte]) for byte in wire)) == (b"".join(pieces), after)


def test_extensions_and_trailers_are_dropped() -> None:
    assert decode(b"3;a=b\r\nabc\r\n0;x\r\nX-Sum: 1\r\nY: 2\r\n\r\nnext") == (b"abc", b"next")


@pytest.mark.parametrize(
    "wire",
    [
        b"\r\n",
        b"g\r\n",
        b"-1\r\n",
        b"+3\r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b" 3\r\nabc\r\n",
        b"3 \r\nabc\r\n",
        b"3\nabc\r\n",
        b"3\r\nabc\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc0\r\n\r\n",
        b"3\r\r\nabc",
        b"1" * 16 + b"\r\n",
        b"3;a\x00b\r\nabc\r\n",
        b"3;a\nb\r\nabc\r\n",
        b"3;" + b"a" * CHUNK_EXTENSION_BYTES + b"\r\n",
        b"a" * (CHUNK_EXTENSION_BYTES + 2),
        b"0\r\nno colon\r\n\r\n",
        b"0\r\n folded: x\r\n\r\n",
        b"0\r\nX: a\nb\r\n\r\n",
        b"0\r\n" + b"X: y\r\n" * TRAILER_BYTES,
    ],
)
def test_bad_chunk_framing_is_refused_however_it_is_cut(wire: bytes) -> None:
    with pytest.raises(PeerError):
        decode(wire)
    with pytest.raises(PeerError):
        decode(*(bytes([byte]) for byte in wire))


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_garbage_for_a_body_gives_bytes_or_a_refusal(garbage: bytes, places: list[int]) -> None:
    def outcome(*cuts: bytes) -> object:
        try:
            return decode(*cuts)
        except PeerError:
            return "refused"

    assert outcome(garbage) == outcome(*cut(garbage, places))


# ── answers ────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_is_encoded() -> None:
    date = http_responses.date_line(0)

    assert http_responses.answer(201, b"{}", "application/json", date) == (
        b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
        b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n{}"
    )
    assert http_responses.answer_head(200, 5, "", b"") == b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    assert http_responses.bodiless(470, b"") == b"HTTP/1.1 470 \r\n\r\n"


@pytest.mark.parametrize(
    "field", [("X", "a\r\nY: b"), ("X", "a\nb"), ("X", "\x00"), ("X", " a"), ("X Y", "a"), ("", "a")]
)
def test_a_field_that_would_split_the_answer_is_refused(field: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        http_responses.field_lines((field,))


# ── percent signs ──────────────────────────────────────────────────────────────────────────────


def test_a_query_is_decoded() -> None:
    assert urls.parse_query("a=1&b=%2Forders+x&c&&d=") == {"a": "1", "b": "/orders x", "c": "", "d": ""}


@pytest.mark.parametrize("query", ["a=1&a=2", "a=1&%61=2", "a=%", "a=%4", "a=%zz", "a=%ff", "a=%00"])
def test_a_doubtful_query_is_refused(query: str) -> None:
    with pytest.raises(InputInvalid):
        urls.parse_query(query)


@pytest.mark.parametrize("level", ["%", "%4", "%zz", "%ff", "%00", "a%0ab", "%7f"])
def test_a_doubtful_level_is_refused(level: str) -> None:
    with pytest.raises(InputInvalid):
        urls.decode_level(level)


@given(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x2FF, exclude_characters="\x7f"), max_size=20))
def test_levels_and_parameters_survive_encoding(text: str) -> None:
    encoded = "".join(f"%{byte:02X}" for byte in text.encode())

    assert urls.decode_level(encoded) == text
    assert urls.parse_query(f"a={encoded}") == {"a": text}
