"""The message stream, pure: what is asked, how packs look, and in which order a client takes them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputInvalid, PeerError, TooLarge
from penstock.limits import PACK_BYTES
from penstock.values import Entry, Kind
from penstock.wire import msgstream
from penstock.wire.msgstream import EmittedMessage, Inbox, Received, check_messages, confirmed, delivery, parse, read

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
types = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.isprintable)
messages = st.lists(st.tuples(types) | st.tuples(types, json_values), min_size=1, max_size=4)


# ── what is asked ──────────────────────────────────────────────────────────────────────────────


@given(st.text(), st.lists(st.integers(1, 10**18 - 1), max_size=5), st.sampled_from(["shortpolling", "longpolling"]))
def test_a_poll_is_read_as_it_was_written(key: str, ids: list[int], transport: str) -> None:
    key = key.encode(errors="replace").decode()
    written = {"rand": "1", "transport": transport, "sessionKey": key, "confirmIds": ",".join(map(str, ids))}
    asked = parse(urlencode(written))

    assert (asked.transport, asked.session_key, asked.confirm) == (transport, key, tuple(dict.fromkeys(ids)))
    assert msgstream.why_no_poll(asked) == ""


@given(st.text())
def test_whatever_is_asked_gives_a_value(query: str) -> None:
    asked = parse(query)

    assert isinstance(msgstream.why_no_poll(asked), str)
    msgstream.split_key(asked.session_key)


@given(st.text(st.sampled_from("0123456789, -+.eE\u0663x")))
def test_only_plain_numbers_confirm(text: str) -> None:
    right = [part for part in text.split(",") if part.isascii() and part.isdigit() and str(int(part)) == part != "0"]

    assert list(confirmed(text)) == list(dict.fromkeys(int(part) for part in right if len(part) <= 18))


@pytest.mark.parametrize(
    ("key", "parts"),
    [("a:b", ("a", "b")), ("a:b:c", ("a:b", "c")), ("a:", ("a", "")), ("ab", None), ("", None), (None, None)],
)
def test_a_key_is_cut_at_its_last_colon(key: str | None, parts: tuple[str, str] | None) -> None:
    assert msgstream.split_key(key) == parts


# ── packs ──────────────────────────────────────────────────────────────────────────────────────


def made(written: list[Any]) -> list[EmittedMessage]:
    raw = msgspec.json.decode(json.dumps(written).encode(), type=list[list[msgspec.Raw]])
    return check_messages(raw)


@given(st.lists(messages, min_size=1, max_size=4))
def test_a_client_reads_what_a_server_wrote(packs: list[list[Any]]) -> None:
    texts = [msgstream.pack([one.encoded() for one in made(written)]) for written in packs]
    text = delivery(enumerate(texts, start=1))

    expected = {
        number: [Received(one[0], *one[1:], **({"has_data": True} if len(one) == 2 else {})) for one in written]
        for number, written in enumerate(packs, start=1)
    }
    assert read(text) == expected
    assert json.loads(text) == {str(number): [list(one) for one in written] for number, written in enumerate(packs, 1)}


@given(st.binary() | st.text() | json_values.map(json.dumps))
def test_garbage_is_refused_in_one_way(text: bytes | str) -> None:
    with suppress(PeerError):
        assert all(isinstance(id, int) for id in read(text))


def test_the_end_of_a_session_is_pack_0() -> None:
    assert msgstream.unset('no"ne') == b'{"0":[["session.unset","no\\"ne"]]}'
    assert Inbox().take(read(msgstream.unset("expired"))).unset == "expired"


def test_types_are_checked() -> None:
    for wrong in ([[]], [[1]], [["a", 1, 2]], [[""]], [["x" * 257]], [["\n"]]):
        with pytest.raises(InputInvalid):
            made(wrong)
    with pytest.raises(InputInvalid):
        made([])
    with pytest.raises(TooLarge):
        made([["a", "x" * PACK_BYTES]])


def entry(body: bytes, type: str = "", stream: str = "/shop/eu") -> Entry:
    return Entry(7, stream, 3, 0, 0, 1, Kind.DATA, type, 0, None, "", body)


@pytest.mark.parametrize(
    ("made_of", "text"),
    [
        (entry(b'{"a": 1}'), b'[["shop.eu",{"a": 1}]]'),
        (entry(b" 17\n"), b'[["shop.eu",17]]'),
        (entry(b"plain"), b'[["shop.eu","plain"]]'),
        (entry(b"\xff"), b'[["shop.eu",{"data_base64":"/w=="}]]'),
        (entry(b""), b'[["shop.eu"]]'),
        (entry(b"1", "a.b"), b'[["a.b",1]]'),
        (entry(b"1", stream="/"), b'[["root",1]]'),
        (entry(b"x" * (PACK_BYTES + 1)), b'[["shop.eu",{"stream":"/shop/eu","index":3}]]'),
        (entry(b'[["a"],["b",2]]', msgstream.PACK_TYPE), b'[["a"],["b",2]]'),
    ],
)
def test_an_entry_is_a_pack(made_of: Entry, text: bytes) -> None:
    assert msgstream.entry_pack(made_of) == text
    assert json.loads(text)


@given(st.binary(max_size=40), types)
def test_whatever_was_published_is_a_pack_that_can_be_read(body: bytes, type: str) -> None:
    assert read(delivery([(1, msgstream.entry_pack(entry(body, type)))]))[1][0].type == type


# ── the client's order ─────────────────────────────────────────────────────────────────────────


def test_paths_go_from_the_most_to_the_least_specific() -> None:
    assert list(Received("a.b.c").paths()) == ["a.b.c", "a.b", "a"]
    assert list(Received("a").paths()) == ["a"]


def packs_of(*ids: int) -> dict[int, list[Received]]:
    return {id: [Received(f"m{id}")] for id in ids}


@given(st.integers(1, 30), st.lists(st.lists(st.integers(0, 12), max_size=6), max_size=12))
def test_each_pack_is_handed_out_once_and_in_order(first: int, deliveries: list[list[int]]) -> None:
    inbox, handed, seen = Inbox(), [], set()
    begin = None
    for offsets in deliveries:
        ids = sorted({first + offset for offset in offsets})
        taken = inbox.take(packs_of(*ids))
        if begin is None and ids:
            begin = ids[0]
        again = [id for id in ids if id in handed or id < (begin or 0)]
        assert taken.again == again
        handed += [id for id, _ in taken.packs]
        seen |= set(ids)

    assert handed == list(range(begin or 0, (begin or 0) + len(handed)))
    assert (begin or 0) + len(handed) not in seen or begin is None
