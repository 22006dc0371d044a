"""Cursors, lines and messages, byte for byte, with the figures of the original's own tests and of its source."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.values import Entry, Kind
from penstock.wire import eventhorizon as eh
from penstock.wire.eventhorizon import Cursor, CursorInvalid, Line, parse_cursor

# ── cursors ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("/tenants/foo:3:42:poop", "/tenants/foo:3:42:poop"),
        ("/tenants/foo:3:42", "/tenants/foo:3:42"),
        ("/foo:-1:-1", "/foo:-1:-1"),
        ("/foo:0:0", "/foo:0:0"),
        ("/a:007:+5", "/a:7:5"),
        ("/a:1:2:", "/a:1:2"),
        (":0:0", ":0:0"),
        ("/a:0:0:?", "/a:0:0:?"),
        ("/a:9223372036854775807:-9223372036854775808", "/a:9223372036854775807:-9223372036854775808"),
    ],
)
def test_a_cursor_is_read_as_go_reads_it(text: str, again: str) -> None:
    assert str(parse_cursor(text)) == again


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/tenants/foo:3", "too few"),
        ("", "too few"),
        ("/tenants/foo:3:42:server:6", "too many"),
        ("/a:0:0:::1", "too many"),
        ("/tenants/foo:a:42", "chunk index"),
        ("/tenants/foo:3:b", "chunk offset"),
        ("/a: 1:2", "chunk index"),
        ("/a:1_0:2", "chunk index"),
        ("/a::2", "chunk index"),
        ("/a:١:2", "chunk index"),
        ("/a:9223372036854775808:0", "chunk index"),
        ("/a:x:y", "chunk index"),
    ],
)
def test_what_is_no_cursor_is_refused_with_the_part_that_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(CursorInvalid, match=reason):
        parse_cursor(text)


@pytest.mark.parametrize(
    ("one", "other", "ahead"),
    [
        ("/:0:123", "/:0:42", True),
        ("/:0:42", "/:0:123", False),
        ("/:0:42", "/:0:42", False),
        ("/:1:42", "/:0:123", True),
        ("/:0:123", "/:1:42", False),
        ("/:1:42", "/:0:42", True),
    ],
)
def test_which_cursor_is_ahead(one: str, other: str, ahead: bool) -> None:
    assert parse_cursor(one).ahead_of(parse_cursor(other)) is ahead


def test_the_server_part_takes_no_part_in_comparisons() -> None:
    here = parse_cursor("/foo:13:45")

    assert here.same_place(parse_cursor("/foo:13:45:server"))
    assert not here.same_place(parse_cursor("/foo:13:46"))
    assert not here.same_place(parse_cursor("/foo:10:45"))


def test_cursors_of_different_streams_are_not_compared() -> None:
    foo, bar = parse_cursor("/foo:0:0"), parse_cursor("/bar:0:0")
    with pytest.raises(CursorInvalid):
        foo.ahead_of(bar)
    with pytest.raises(CursorInvalid):
        foo.same_place(bar)


names = st.text(st.characters(exclude_characters=":", codec="utf-8"), max_size=20)


@given(names, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), names)
def test_a_cursor_comes_back_as_it_was(stream: str, chunk: int, offset: int, server: str) -> None:
    cursor = Cursor(stream, chunk, offset, server)

    assert parse_cursor(str(cursor)) == cursor


@given(st.text(max_size=40))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    with contextlib.suppress(CursorInvalid):
        parse_cursor(text)


# ── lines ──────────────────────────────────────────────────────────────────────────────────────


def stored(content: str, type: str = "") -> Entry:
    kind = Kind.META if type else Kind.DATA
    return Entry(1, "/a", None if type else 0, 0, 0, 2, kind, type, 0, None, "", content.encode())


@pytest.mark.parametrize(("content", "line"), [("", b" "), ("a", b" a"), ("foobar", b" foobar"), ("/x {", b" /x {")])
def test_a_regular_line_begins_with_a_space(content: str, line: bytes) -> None:
    assert eh.raw_line(stored(content)) == line + b"\n"


def test_a_meta_line_has_a_type_and_a_payload() -> None:
    assert eh.raw_line(stored('{"foo": "bar"}', "poop")) == b'/poop {"foo": "bar"}\n'


@pytest.mark.parametrize("content", ["foo\nbar", "x" * 65_535, "é" * 32_768])
def test_what_no_reader_could_read_back_is_no_line(content: str) -> None:
    assert not eh.is_line(content.encode())


@given(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=100))
def test_every_content_without_a_newline_is_a_line_by_itself(content: str) -> None:
    assert eh.raw_line(stored(content)) == b" " + content.encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "size"), [("", 2), ("é", 4), ("日本", 8), ("😀", 6), ("a\rb\u2028c\u0085d", 12), ("x" * 65_534, 65_536)]
)
def test_the_size_of_a_line_counts_bytes(content: str, size: int) -> None:
    assert eh.line_size(content.encode(), 0) == size


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (1_490_633_600_643, "2017-03-27T16:53:20.643Z"),
        (1_490_633_600_620, "2017-03-27T16:53:20.62Z"),
        (1_490_633_600_600, "2017-03-27T16:53:20.6Z"),
        (1_490_633_600_000, "2017-03-27T16:53:20Z"),
        (1_490_633_600_043, "2017-03-27T16:53:20.043Z"),
    ],
)
def test_the_zeros_at_the_end_of_milliseconds_are_cut(ms: int, text: str) -> None:
    assert eh.timestamp(ms) == text


TS = "2017-03-27T16:53:51.655Z"


@pytest.mark.parametrize(
    ("type", "payload", "size"),
    [
        ("Created", eh.created((), TS), 65),
        ("SubscriptionActivity", eh.subscription_activity(["/sampledata:0:149:127.0.0.1"], TS), 99),
        ("Subscribed", eh.subscribed("/_sub/example-sub", TS), 84),
        ("ChildStreamCreated", eh.child_stream_created("/a&b", "10.0.0.5", TS), 107),
        ("Rotated", eh.rotated("/s", 1, "127.0.0.1", TS), 69),
    ],
)
def test_meta_lines_have_the_originals_sizes(type: str, payload: bytes, size: int) -> None:
    assert eh.meta_size(type, len(payload)) == size


def test_the_keys_stand_in_the_originals_order() -> None:
    assert (
        eh.created(("/_sub/a", "/_sub/b"), TS) == b'{"subscription_ids":["/_sub/a","/_sub/b"],"ts":"%s"}' % TS.encode()
    )
    assert (
        eh.child_stream_created("/a<b>", "10.0.0.5", TS)
        == b'{"name":"/a\\u003cb\\u003e","cursor":"/a\\u003cb\\u003e:0:0:10.0.0.5","ts":"%s"}' % TS.encode()
    )


# ── entries as lines ───────────────────────────────────────────────────────────────────────────


def entry(offset: int, body: bytes, kind: Kind = Kind.DATA, type: str = "", index: int | None = 0) -> Entry:
    if kind is Kind.META:
        size, index = eh.meta_size(type, len(body)), None
    else:
        size = eh.line_size(body, index or 0) if kind is not Kind.PART else 0
    return Entry(1, "/s", index, 0, offset, size, kind, type, 0, None, "", body)


def test_regular_and_meta_lines_as_readers_get_them() -> None:
    made = eh.created((), TS)
    lines = eh.lines_of([entry(0, made, Kind.META, "Created"), entry(65, b"hello")], "10.0.0.5")

    assert lines == [
        Line("/s:0:65:10.0.0.5", made.decode(), "Created", {"subscription_ids": [], "ts": TS}),
        Line("/s:0:72:10.0.0.5", "hello", "", None),
    ]


def test_after_the_last_line_of_a_chunk_a_reader_goes_on_in_the_next() -> None:
    [line] = eh.lines_of([entry(100, eh.rotated("/s", 1, "10.0.0.5", TS), Kind.META, "Rotated")], "10.0.0.5")

    assert line.ptr_after == "/s:1:0:10.0.0.5"


def test_a_body_that_is_no_line_is_shown_as_a_meta_line() -> None:
    [line] = eh.lines_of([entry(0, b"a\nb", index=7)], "x")

    assert (line.meta_type, line.meta_payload) == ("Bytes", {"index": 7, "base64": "YQpi"})
    shown = b'/Bytes {"index":7,"base64":"YQpi"}\n'
    assert line.ptr_after == f"/s:0:{len(shown)}:x"


def test_what_is_gone_is_jumped_over_and_at_the_end_named_so_that_the_cursor_moves() -> None:
    kept, gone = entry(10, b"kept"), entry(0, b"12345678", Kind.EXPIRED)
    trailing = entry(16, b"12", Kind.ERASED)

    assert [line.ptr_after for line in eh.lines_of([gone, kept], "x")] == ["/s:0:16:x"]
    [first, last] = eh.lines_of([kept, trailing], "x")
    assert (first.ptr_after, last.ptr_after) == ("/s:0:16:x", "/s:0:20:x")
    assert (last.meta_type, last.meta_payload) == ("Gone", {"entries": 1})


bodies = st.one_of(st.binary(max_size=60), st.text(max_size=30).map(str.encode))
kinds = st.sampled_from([Kind.DATA, Kind.DATA, Kind.DATA, Kind.EXPIRED, Kind.ERASED, Kind.PART])


@given(st.lists(st.tuples(bodies, kinds), max_size=12))
def test_lines_always_lead_to_the_end_of_what_was_read(drawn: list[tuple[bytes, Kind]]) -> None:
    entries, offset = [], 0
    for index, (body, kind) in enumerate(drawn):
        entries.append(entry(offset, body, kind, index=index))
        offset = entries[-1].end
    lines = eh.lines_of(entries, "x")

    if any(one.kind is not Kind.PART for one in entries):
        assert parse_cursor(lines[-1].ptr_after).offset == offset
    raw = b"".join(eh.raw_line(one) for one in entries)
    kept = sum(one.size for one in entries if one.kind is Kind.DATA)
    assert len(raw) == kept


# ── messages ───────────────────────────────────────────────────────────────────────────────────


def test_the_first_request_of_a_pusher() -> None:
    assert (
        eh.push_request("_query_", "/:-1:-1", [])
        == b'{"SubscriptionId":"_query_","Push":{"FromOffset":"/:-1:-1","Lines":[]}}'
    )


def test_an_answer_has_all_fields_but_an_empty_id() -> None:
    success = eh.PushAnswer("success", "/s:0:1:x", behind_cursors=[])
    wrong = eh.PushAnswer("incorrect_subscription_id", correct_subscription_id="/_sub/a")

    assert json.loads(success.encode()) == {"Code": "success", "AcceptedOffset": "/s:0:1:x", "BehindCursors": []}
    assert json.loads(wrong.encode()) == {
        "Code": "incorrect_subscription_id", "AcceptedOffset": "", "CorrectSubscriptionId": "/_sub/a",
        "BehindCursors": None,
    }  # fmt: skip


def test_what_an_activity_line_tells_of() -> None:
    line = Line("/x:0:1", "", "SubscriptionActivity", {"activity": ["/a:0:1", "/b:2:3:x"]})

    assert eh.mentioned(line) == [Cursor("/a", 0, 1), Cursor("/b", 2, 3, "x")]
    assert eh.mentioned(Line("/x:0:1", "activity")) == []
    with pytest.raises(CursorInvalid):
        eh.mentioned(Line("/x:0:1", "", "SubscriptionActivity", {"activity": ["bad"]}))
    with pytest.raises(CursorInvalid):
        eh.mentioned(Line("/x:0:1", "", "SubscriptionActivity", {"activity": "/a:0:1"}))
