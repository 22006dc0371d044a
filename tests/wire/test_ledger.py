"""The ledger's two readers agree on everything a node may write."""

from __future__ import annotations

from dataclasses import astuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ledger import Header, _Columns, _encode, _Row, decode, recipient
from penstock.wire.ledger import decode_batch

text = st.text(max_size=12)
ids = st.integers(0, 2**62)
who = st.builds(recipient, text, text)
items = st.lists(st.tuples(ids, text, text, text, text, text, text, ids, st.none() | ids), max_size=4)


@st.composite
def rows(draw: st.DrawFn) -> _Row:
    row = _Row(draw(ids), draw(text), draw(text), draw(text), draw(ids), draw(ids))
    row.who = draw(st.lists(who, max_size=5))
    return row


@given(text, ids, ids, st.sampled_from(["", "open", "close"]), ids, st.lists(rows(), max_size=4), items)
def test_both_readers_see_the_same(
    node: str, epoch: int, sequence: int, mark: str, lost: int, rows: list[_Row], items: list[tuple[object, ...]]
) -> None:
    header = Header(node, epoch, sequence, mark, lost, items=items)  # type: ignore[arg-type]
    body, _ = _encode(header, _Columns(rows))

    batch, records = decode_batch(body)

    _, events = decode(body)
    assert astuple(batch) == (node, epoch, sequence, mark, lost)
    assert [astuple(record) for record in records] == [msgspec.structs.astuple(event) for event in events]


@pytest.mark.parametrize("body", [b"", b"{}", b"[]\n", b"null", b"not json", b'{"node":"n"}\n', b"\xff\n"])
def test_what_is_no_batch_is_an_error_of_one_kind(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_batch(body)
