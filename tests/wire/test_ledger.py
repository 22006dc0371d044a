"""The ledger's two readers, the server's and the lake's, agree on everything a node may write."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.core.ledger import Header, LedgerEvent, Recipient, Recipients, _Columns, _encode, _Row, decode
from penstock.iceberg.files import arrow_schema
from penstock.pipeline.ledger_rows import BATCH, BatchRows
from penstock.wire.ledger import FAILED, FINAL, LATEST_MS, RANKS, STATES, verdict

SOURCE = Path(penstock.__file__).parent

AS_NUMBERS = pa.schema(
    [field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field for field in arrow_schema("ledger")]
)

text = st.text(max_size=12)
ids = st.integers(0, 2**62)
milliseconds = st.integers(0, LATEST_MS)
who = st.builds(Recipient, text, text)
items = st.lists(st.tuples(milliseconds, text, text, text, text, text, text, ids, st.none() | milliseconds), max_size=4)


@st.composite
def rows(draw: st.DrawFn) -> _Row:
    row = _Row(draw(milliseconds), draw(text), draw(text), draw(text), draw(ids), draw(ids))
    row.who = draw(st.lists(who, max_size=5))
    return row


@st.composite
def rows_of_groups(draw: st.DrawFn) -> list[_Row]:
    """Rows of which some speak of the same recipients, and others of some of these."""
    groups = draw(st.lists(st.lists(who, max_size=5).map(Recipients), max_size=3))
    found = draw(st.lists(rows(), max_size=6))
    for row in found:
        if groups and draw(st.booleans()):
            group = draw(st.sampled_from(groups))
            row.who = group if draw(st.booleans()) else list(group[1:])
    return found


def rows_in_the_lake(body: bytes) -> tuple[tuple[object, ...], list[LedgerEvent]]:
    """What the lake's rows of a batch tell of the batch itself, and of what happened."""
    made = BatchRows()
    made.add(7, body)
    own, *rows = made.arrow().cast(AS_NUMBERS).to_pylist()
    assert (own["entry"], own["state"], own["time"]) == (7, BATCH, None)
    events = []
    for row in rows:
        expires_ms = None if row["expires_at"] is None else row["expires_at"] // 1000
        same = {name: row[name] for name in LedgerEvent.__struct_fields__ if name in row}
        events.append(LedgerEvent(row["time"] // 1000, **same, expires_ms=expires_ms))
    return tuple(own[name] for name in ("node", "epoch", "sequence", "mark", "lost")), events


@given(text, ids, ids, st.sampled_from(["", "open", "close"]), ids, rows_of_groups(), items)
def test_both_readers_see_the_same(
    node: str, epoch: int, sequence: int, mark: str, lost: int, rows: list[_Row], items: list[tuple[object, ...]]
) -> None:
    header = Header(node, epoch, sequence, mark, lost, items=items)  # type: ignore[arg-type]
    body, _ = _encode(header, _Columns(rows))

    batch, records = rows_in_the_lake(body)

    _, events = decode(body)
    assert batch == (node, epoch, sequence, mark, lost)
    assert records == events
    assert [(event.ms, event.door, event.recipient) for event in events[: len(events) - len(items)]] == [
        (row.ms, one.door, one.name) for row in rows for one in row.who
    ]


def test_a_group_is_named_once_for_all_rows_that_speak_of_it() -> None:
    group = Recipients([Recipient("sps", f"user-{number}") for number in range(100)])
    rows = [_Row(1, "sent", "", "/a", id, id) for id in range(1, 21)]
    for row in rows:
        row.who = group
    body, _ = _encode(Header("n", 1, 0), _Columns(rows))

    assert body.count(b'"user-7"') == 1
    assert len(body) < 100 * 20 + 100 * 4 + 20 * 40
    assert len(decode(body)[1]) == 2000


def test_batches_of_before_there_were_groups_are_read_as_ever() -> None:
    said = batch(rows=[ROW, [2, "sent", "", "/b", 3, 3, 2]], who=[["d", "r"], ["d", "s"]])
    body = said + b"\1\0\0\0" + b"\0\0\0\0" + b"\1\0\0\0"

    _, records = rows_in_the_lake(body)

    assert [(one.stream, one.recipient) for one in records] == [("/a", "s"), ("/b", "r"), ("/b", "s")]
    assert [(one.stream, one.recipient) for one in decode(body)[1]] == [("/a", "s"), ("/b", "r"), ("/b", "s")]


def batch(**said: object) -> bytes:
    return msgspec.json.encode({"node": "n", "epoch": 1, "sequence": 0, **said}) + b"\n"


ROW = [1, "sent", "", "/a", 1, 2, 1]
ITEM = [1, "sent", "", "d", "r", "k", "2026_11", 1, None]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]\n", b"null", b"not json", b'{"node":"n"}\n', b"\xff\n", b"[" * 100_000,
        batch(node=7), batch(epoch="1"), batch(sequence=-1), batch(lost=None), batch(mark=[]),
        batch() + b"\0", batch() + b"\0\0\0\0", batch(rows=[ROW]), batch(rows=[ROW], who=[["d", "r"]]),
        batch(rows=[ROW]) + b"\0\0\0\0", batch(rows=[ROW], who=[["d", "r"]]) + b"\1\0\0\0",
        batch(rows=[ROW], who=[["d", 7]]) + b"\0\0\0\0", batch(rows=[[*ROW[:6], -1]]), batch(rows=7),
        batch(rows=[[LATEST_MS + 1, *ROW[1:]]], who=[["d", "r"]]) + b"\0\0\0\0", batch(items=[ITEM[:8]]),
        batch(items=[[*ITEM[:8], "soon"]]), batch(items=[[*ITEM[:7], 2**64, None]]), batch(items={"a": 1}),
        batch(rows=[ROW], who=[["d", "r"]], groups=[1]) + b"\0\0\0\0", batch(rows=[ROW], groups=7), batch(groups=["1"]),
        batch(rows=[[*ROW[:6], 0]], who=[["d", "r"]], groups=[2]) + b"\0\0\0\0", batch(groups=[1]),
        batch(items=[[True, *ITEM[1:]]]), batch(node="x").replace(b'"x"', b'"\\ud800"'),
    ],
)  # fmt: skip
def test_what_is_no_batch_is_an_error_of_one_kind(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        BatchRows().add(1, body)


@given(st.binary(max_size=200), st.integers(0, 400), st.binary(max_size=8))
def test_garbage_is_a_batch_or_an_error_of_one_kind(garbage: bytes, place: int, other: bytes) -> None:
    whole = batch(rows=[ROW], who=[["d", "r"]], items=[ITEM]) + b"\0\0\0\0"
    for body in (garbage, whole[:place] + other + whole[place + len(other) :]):
        try:
            rows_in_the_lake(body)
        except ValueError:
            continue


# ── states ─────────────────────────────────────────────────────────────────────────────────────


def test_an_attempt_that_was_taken_after_failed_ones_is_told_as_sent() -> None:
    attempts = [("", "retried", 1), ("", "retried", 2), ("", "sent", 3)]

    assert verdict(attempts) == "sent"
    assert verdict([*attempts, ("", "sent", 4), ("", "retried", 4)]) == "retried"
    assert verdict([("", "acked", 1), *attempts]) == "acked"


def test_an_item_that_moved_is_told_by_where_it_waits_now() -> None:
    left = [("2026_11/3", "accepted", 1), ("2026_11/3", "sent", 2), ("2026_11/3", "moved", 5)]

    assert verdict(left) == "accepted"
    assert verdict([*left, ("2026_12/1", "sent", 6)]) == "sent"
    assert verdict([*left, ("2026_12/1", "acked", 6)]) == "acked"


def test_names_of_states_are_given_once_and_in_order_of_rank() -> None:
    assert len(RANKS) == len(STATES)
    assert [state.rank for state in STATES] == sorted(state.rank for state in STATES)
    assert verdict([("", "of a later version", 9), ("", "accepted", 1)]) == "accepted"


def test_no_second_list_of_states_stands_in_the_source() -> None:
    """Three states in a list are one, if it is about states for the most part."""
    lists = []
    for path in sorted([*SOURCE.rglob("*.py"), *SOURCE.rglob("*.js")]):
        text = path.read_text()
        if sum(f'"{state}"' in text for state in RANKS) < 3:
            continue
        named = lists_of_python(text) if path.suffix == ".py" else lists_of_javascript(text)
        states = [names for names in named if len(names & RANKS.keys()) > max(2, len(names) / 2)]
        lists += [str(path.relative_to(SOURCE))] * len(states)

    assert lists == [
        "console/pipeline.js",  # what a chart shows
        *["console/states.js"] * 2,  # those that the next test holds
        "doors/eventhorizon/requests.py",  # what a pusher that runs elsewhere may report
    ]


def lists_of_python(text: str) -> Iterator[set[object]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            yield {one.value for one in node.elts if isinstance(one, ast.Constant)}


def lists_of_javascript(text: str) -> Iterator[set[str]]:
    for found in re.finditer(r"\[([^][]*)\]", text):
        yield set(re.findall(r'"(\w+)"', found[1]))


def test_the_console_names_the_same_states_as_failed_and_as_final() -> None:
    text = (SOURCE / "console/states.js").read_text()

    for name, states in (("FAILED", FAILED), ("FINAL", FINAL)):
        listed = re.search(rf"const {name} = \[(.*)\];", text)
        assert listed is not None, name
        assert tuple(re.findall(r"\w+", listed[1])) == states


def test_the_console_has_a_look_and_a_meaning_for_each_state() -> None:
    looks, _, rest = (SOURCE / "console/states.js").read_text().partition("};")
    meanings = rest.partition("MEANING = {")[2].partition("};")[0]
    for state in STATES:
        assert f'"{state.name}"' in looks, state.name
        assert f"{state.name}: " in meanings, state.name
