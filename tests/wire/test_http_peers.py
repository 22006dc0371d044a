"""One parser reads the heads of all peers: what one of them sends must never reach another's request."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import PeerError
from penstock.wire import http_requests

GOOD = [
    b"GET /v1/read?stream=/a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\n\r\n",
    b"POST /v1/publish?stream=/a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
    b"POST /v1/publish HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /msgstream HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
]
SAID = (
    "method",
    "path",
    "query",
    "http10",
    "headers",
    "keep_alive",
    "length",
    "chunked",
    "expects_continue",
    "upgrade",
)

names = st.sampled_from(
    [b"Connection", b"Proxy-Connection", b"Upgrade", b"Content-Length", b"Transfer-Encoding", b"Keep-Alive", b"Host",
     b"Expect", b"Trailer", b"TE", b"HTTP2-Settings", b"Sec-WebSocket-Key", b"X"]
)  # fmt: skip
values = st.sampled_from(
    [b"close", b"keep-alive", b"upgrade", b"Upgrade, close", b"keep-alive, close", b"websocket", b"h2c", b"chunked",
     b"gzip, chunked", b"identity", b"0", b"5", b"99999999999999999999", b"-1", b"100-continue", b"", b"a", b"\xff"]
)  # fmt: skip
fields = st.tuples(names, values).map(lambda pair: b"%b: %b\r\n" % pair)
lines = st.one_of(fields, st.binary(max_size=12).map(lambda text: text + b"\r\n"))
first_lines = st.builds(
    b"%b %b HTTP/%b\r\n".__mod__,
    st.tuples(
        st.sampled_from([b"GET", b"POST", b"HEAD", b"CONNECT", b"OPTIONS", b"PRI", b"SOURCE", b"get", b"X"]),
        st.sampled_from([b"/", b"*", b"a:443", b"http://a/b", b"/\xff", b"/?q#f"]),
        st.sampled_from([b"1.1", b"1.0", b"0.9", b"2.0", b"1.2"]),
    ),
)  # fmt: skip
heads = st.builds(
    lambda first, rest, hosted: first + (b"Host: a\r\n" if hosted else b"") + b"".join(rest) + b"\r\n",
    first_lines,
    st.lists(lines, max_size=6),
    st.booleans(),
)


def outcome(parser: http_requests.HeadParser, raw: bytes) -> object:
    """What a peer hears of its head, or what a handler sees of it."""
    try:
        head = parser.parse(raw)
    except PeerError as error:
        return error.status, error.detail
    return [getattr(head, name) for name in SAID]


@given(st.lists(st.tuples(heads, st.integers(1, 3)), max_size=8), st.one_of(st.sampled_from(GOOD), heads))
@example([(b"GET / HTTP/1.1\r\nHost: a\r\nProxy-Connection: close\r\n\r\n", 1)], GOOD[0])
@example([(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n", 1)], GOOD[0])
def test_a_head_is_understood_as_if_nobody_had_sent_one_before(others: list[tuple[bytes, int]], own: bytes) -> None:
    shared = http_requests.HeadParser()
    for raw, times in others:  # a head that comes again is remembered
        for _ in range(times):
            outcome(shared, raw)

    alone = outcome(http_requests.HeadParser(), own)

    assert [outcome(shared, own) for _ in range(3)] == [alone] * 3


def line_again(first_line: bytes, fields: bytes) -> tuple[object, object]:
    """How a head is understood whose fields were here before with another request line, and how it is alone."""
    shared = http_requests.HeadParser()
    for _ in range(2):
        shared.parse(b"POST /v1/publish?stream=/a HTTP/1.1" + fields)
    raw = first_line + fields
    return outcome(shared, raw), outcome(http_requests.HeadParser(), raw)


known_fields = st.sampled_from([raw[raw.find(b"\r\n") :] for raw in GOOD if b"Host" in raw])
targets = st.one_of(
    st.sampled_from(
        [b"/", b"*", b"a:443", b"http://a/b", b"http://b/b", b"/\xff", b"/?q#f", b"/a%2Fb?c=%", b"/a" * 999]
    ),
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7F), max_size=12).map(lambda text: b"/" + text.encode()),
)


@given(
    st.sampled_from([b"POST", b"GET", b"HEAD", b"CONNECT", b"OPTIONS", b"PRI", b"post", b"X"]),
    targets,
    st.sampled_from([b"1.1", b"1.0", b"2.0"]),
    known_fields,
)
def test_a_head_is_understood_as_if_its_fields_were_new(
    method: bytes, target: bytes, version: bytes, fields: bytes
) -> None:
    again, alone = line_again(b"%b %b HTTP/%b" % (method, target, version), fields)

    assert again == alone


def test_a_parser_that_trusts_every_line_with_known_fields_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = re.compile(rb"([A-Z]+) ([^?]*)(?:\?(.*))? HTTP/1\.1")
    monkeypatch.setattr(http_requests, "_SAFE_LINE", trusting)

    again, alone = line_again(b"POST /?q#f HTTP/1.1", b"\r\nHost: a\r\n\r\n")

    assert (again != alone, alone) == (True, (400, "a fragment in the request target"))


def test_many_targets_with_the_same_fields_cost_no_second_look_at_them() -> None:
    parser = http_requests.HeadParser()
    fields = b"\r\nHost: a\r\nAuthorization: Bearer x\r\n\r\n"

    heads = [parser.parse(b"GET /v1/read?stream=/%d HTTP/1.1" % number + fields) for number in range(5)]

    assert len({id(head.fields_memo) for head in heads[1:]}) == 1
    assert [head.query for head in heads] == [f"stream=/{number}" for number in range(5)]
    assert len({id(head.memo) for head in heads}) == 5
