"""What the jobs make of rows: a few literal ones, as Arrow, without Spark."""

from __future__ import annotations

import json
from array import array
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import ManualClock
from penstock.core.ledger import Header, Ledger, Recipient, Recipients, _Columns, _encode, _Row
from penstock.engines.memory import MemoryEngine
from penstock.iceberg.files import arrow_schema
from penstock.pipeline import ledger_rows
from penstock.pipeline.jobs import ledger, rollup
from penstock.wire.ledger import CheckedBatch, LedgerBatch, check_batch
from penstock.wire.table_columns import TABLES
from tests.forgetful_ledger import ForgetsOne

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
NOTHING = rollup._ENTRY.empty_table()


def batch(sequence: int, *rows: tuple[str, str, int, int, str], mark: str = "", items: Any = ()) -> bytes:
    """A ledger batch as a node writes it, of (state, stream, first, last, recipient)."""
    made = []
    for number, (state, stream, first, last, name) in enumerate(rows):
        row = _Row(NOON_MS + number, state, "", stream, first, last)
        row.who = [Recipient("sps", name)]
        made.append(row)
    return _encode(Header("n1", 1, sequence, mark, items=list(items)), _Columns(made))[0]


def events(*bodies: bytes, stream: str = "/_ledger", first: int = 100) -> pa.Table:
    """Entries as `events` has them."""
    rows = [
        {"id": first + number, "stream": stream, "index": number, "kind": "data", "time": NOON, "body": body}
        for number, body in enumerate(bodies)
    ]
    return pa.Table.from_pylist(rows, arrow_schema("events"))


def decoded(*bodies: bytes) -> pa.Table:
    """Batches as rows of `ledger`."""
    unreadable: list[Any] = []
    rows = pa.Table.from_batches(ledger_rows.decode(events(*bodies).to_batches(), unreadable))
    assert unreadable == []
    return rows


def fold(records: pa.Table) -> pa.Table:
    return ledger.fold_deliveries(ledger.deliveries_of(records))


def rows_of(rows: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows.select(list(columns or rows.schema.names)).to_pylist())


def test_batches_of_the_ledger_become_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    item = (NOON_MS, "accepted", "", "webpush", "ua-1", "message-7", "2026_11", 3, NOON_MS + 1000)
    bodies = [
        batch(0, mark="open"),
        batch(1, ("sent", "/a", 5, 9, "alice"), ("acked", "/a", 5, 9, "alice"), items=[item]),
    ]

    found = decoded(*bodies)

    assert rows_of(found, "entry", "state", "recipient", "first", "last", "key", "number", "mark") == [
        (100, "batch", "", 0, 0, "", 0, "open"),
        (101, "accepted", "ua-1", 0, 0, "message-7", 3, ""),
        (101, "acked", "alice", 5, 9, "", 0, ""),
        (101, "batch", "", 0, 0, "", 0, ""),
        (101, "sent", "alice", 5, 9, "", 0, ""),
    ]
    assert [row["expires_at"] for row in found.to_pylist() if row["key"]] == [NOON + timedelta(seconds=1)]
    assert found.schema.names == [one.name for one in TABLES["ledger"]]
    monkeypatch.setattr(ledger_rows, "AT_ONCE", 1)
    assert decoded(*bodies).equals(found), "however many are made at once"


def test_what_cannot_be_read_is_told_and_the_rest_is_read() -> None:
    unreadable: list[Any] = []
    given = events(b"garbage", batch(0, ("sent", "/a", 1, 1, "a")), b"")

    rows = pa.Table.from_batches(ledger_rows.decode(given.to_batches(), unreadable))

    assert rows_of(rows, "entry", "state") == [(101, "batch"), (101, "sent")]
    told = ledger_rows.unreadable_rows(unreadable).to_pylist()
    assert [(row["entry"], row["stream"], row["bytes"], row["path"]) for row in told] == [
        (100, "/_ledger", 7, None),
        (102, "/_ledger", 0, None),
    ]


def test_the_state_that_counts_is_the_one_of_the_highest_rank() -> None:
    states = [("sent", "/a", 1, 1, "a"), ("retried", "/a", 1, 1, "a"), ("acked", "/a", 1, 1, "a")]
    states += [("sent", "/a", 1, 1, "b"), ("dropped", "/a", 1, 1, "b"), ("retried", "/a", 2, 2, "b")]

    folded = fold(decoded(batch(0, *states)))

    assert folded.schema.names == [one.name for one in TABLES["deliveries"]]
    assert rows_of(folded, "recipient", "first", "state", "attempts") == [
        ("a", 1, "acked", 2),
        ("b", 1, "dropped", 1),
        ("b", 2, "retried", 1),
    ]


def test_folding_in_steps_gives_what_folding_at_once_gives() -> None:
    one, two = batch(0, ("sent", "/a", 1, 1, "a"), ("sent", "/a", 2, 2, "a")), batch(1, ("acked", "/a", 1, 1, "a"))
    steps = [fold(decoded(one)), ledger.deliveries_of(decoded(one, two).filter(pa.compute.field("sequence") == 1))]

    in_steps = ledger.fold_deliveries(pa.concat_tables(steps))

    assert sorted(map(repr, in_steps.to_pylist())) == sorted(map(repr, fold(decoded(one, two)).to_pylist()))


@pytest.mark.parametrize("kind", [Ledger, ForgetsOne])
async def test_a_group_becomes_a_delivery_for_each_of_its_members(kind: type[Ledger]) -> None:
    group = Recipients([Recipient("v1", f"reader-{number:03}") for number in range(600)])
    async with MemoryEngine() as engine:
        recording = kind(engine.log, ManualClock(), node="n1")
        await recording.open(engine.registry)
        recording.sent_to_all(group, "/a", 5, 5)
        recording.sent_to_all(Recipients(group[1:]), "/a", 6, 6)  # the first is slow
        recording.sent_to_all(group, "/a", 7, 9)
        await recording.flush()
        bodies = [entry.body for entry in (await engine.log.read_after(("/_ledger",), 0)).entries if entry.body]

    found = rows_of(fold(decoded(*bodies)), "first", "last", "recipient", "state")
    all_of_them = [
        (first, last, one.name, "sent") for first, last in ((5, 5), (6, 6), (7, 9)) for one in group[first == 6 :]
    ]
    assert (found == all_of_them) == (kind is Ledger)


def test_sums_count_the_entries_of_an_interval_and_the_latency_of_its_last() -> None:
    published = [(5, 10, NOON - timedelta(seconds=9)), (9, 12, NOON - timedelta(milliseconds=3))]
    entries = pa.Table.from_pylist(
        [dict(zip(NOTHING.schema.names, one, strict=True)) for one in published], NOTHING.schema
    )

    rows = rollup.add_up(rollup.delivered(decoded(batch(0, ("sent", "/a", 5, 9, "alice"))), entries))

    assert rows_of(rows, "stream", "door", "state", "count", "latency_ms") == [("/a", "sps", "sent", 3, 4)]
    assert rows.schema.names == [one.name for one in TABLES["rollup_hourly"]]


def test_an_entry_that_is_not_known_counts_without_a_latency() -> None:
    records = decoded(batch(0, ("sent", "/a", 5, 9, "alice"), ("confirmed", "", 0, 9, "alice")))

    rows = rollup.delivered(records, NOTHING)

    assert rows_of(rows, "state", "count", "latency_ms") == [("confirmed", 1, None), ("sent", 1, None)]


def test_what_was_published_is_summed_up_without_the_streams_of_the_system() -> None:
    both = pa.concat_tables([events(b"12345", b"678", stream="/a"), events(batch(0))])

    assert rows_of(rollup.add_up(rollup.accepted(both)), "hour", "stream", "state", "count", "bytes") == [
        (NOON, "/a", "accepted", 2, 8)
    ]


def test_recipients_are_remembered_by_their_first_and_last_sign() -> None:
    records = decoded(batch(0, ("sent", "/a", 1, 1, "a"), ("sent", "/a", 2, 2, "a")))

    heard = rollup.merge_activity(rollup.heard_of(records))

    assert heard.schema.names == [one.name for one in TABLES["activity"]]
    (row,) = heard.to_pylist()
    assert (row["recipient"], row["records"]) == ("a", 2)
    assert row["last_time"] - row["first_time"] == timedelta(milliseconds=1)


# ── damaged batches ────────────────────────────────────────────────────────────────────────────


def believing(body: bytes) -> Any:
    """The sabotage: a batch as it was read once, half characters included."""
    said = json.loads(body.partition(b"\n")[0])
    head = LedgerBatch(said["node"], said["epoch"], said["sequence"], "", 0)
    return CheckedBatch(head, said["who"], [(said["rows"][0], array("I", [0]))], [])


@pytest.mark.parametrize("sabotage", [None, believing])
def test_a_batch_with_half_a_character_is_put_aside_and_its_neighbours_are_read(
    sabotage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = [batch(number, ("sent", "/s", 1, 1, "한")) for number in range(3)]
    bad = good[1].replace("한".encode(), b"\xed\xb5\x9c")
    unreadable: list[Any] = []
    if sabotage:
        monkeypatch.setattr(ledger_rows, "check_batch", sabotage)

    rows = pa.Table.from_batches(ledger_rows.decode(events(good[0], bad, good[2]).to_batches(), unreadable))

    assert [(entry, stream) for entry, stream, *_ in unreadable] == [(101, "/_ledger")]
    assert rows_of(rows, "entry", "state") == [(100, "batch"), (100, "sent"), (102, "batch"), (102, "sent")]


def test_without_the_check_and_the_net_one_batch_would_stop_all(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = batch(0, ("sent", "/s", 1, 1, "한")).replace("한".encode(), b"\xed\xb5\x9c")
    monkeypatch.setattr(ledger_rows, "check_batch", believing)
    monkeypatch.setattr(ledger_rows, "_finished", lambda made, added, unreadable: iter([made.arrow()]))

    with pytest.raises(UnicodeEncodeError):
        list(ledger_rows.decode(events(bad).to_batches(), []))


@given(st.data())
def test_whatever_is_wrong_with_a_batch_the_others_are_read(data: st.DataObject) -> None:
    whole = batch(
        1, ("sent", "/s", 1, 1, "한"), items=[(NOON_MS, "acked", "", "webpush", "ü", "m", "2026_11", 3, None)]
    )
    body = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    unreadable: list[Any] = []

    rows = pa.Table.from_batches(ledger_rows.decode(events(batch(0), bytes(body), batch(2)).to_batches(), unreadable))

    assert {100, 102} <= set(rows["entry"].to_pylist())
    assert (101 in rows["entry"].to_pylist()) != bool(unreadable)


@pytest.mark.parametrize("who", ['{"sps":1,"a":2}', '"ab"', '[{"sps":1,"u":2}]', '["ab"]'])
def test_recipients_that_are_no_lists_are_none(who: str) -> None:
    body = f'{{"node":"n","epoch":1,"sequence":0,"who":{who},"rows":[],"items":[],"groups":[]}}\n'.encode()

    with pytest.raises(ValueError, match="no ledger batch"):
        check_batch(body)


def test_a_record_of_the_last_possible_year_is_summed_up() -> None:
    ms = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp() * 1000)
    late = decoded(batch(0, ("sent", "/s", 1, 1, "a")).replace(str(NOON_MS).encode(), str(ms).encode()))
    entries = pa.Table.from_pylist([{"id": 1, "index": 0, "time": NOON}], rollup._ENTRY)

    [row] = rollup.delivered(late, entries).to_pylist()

    assert (row["hour"].year, row["count"]) == (9999, 1)
    assert row["latency_ms"] >= ms - NOON_MS
