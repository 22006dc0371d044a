"""Coordinates: byte for byte as Event Horizon's writer gives them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.stamp import check_batch, stamp
from penstock.errors import NameInvalid, NotFound, PositionMismatch, StreamExists
from penstock.limits import CHUNK_BYTES
from penstock.values import Batch, Draft, Entry, Expect, Head, Kind
from penstock.wire import eventhorizon

NOW_MS = 1_763_200_000_643  # three digits of milliseconds, as in the worked examples


class Streams:
    """A writer without storage: stamps one batch after the other."""

    def __init__(self, server: str = "10.0.0.5") -> None:
        self.heads: dict[str, Head] = {}
        self.entries: list[Entry] = []
        self._server = server

    def write(self, batch: Batch) -> int:
        """Append; return the byte after the answer's last entry."""
        check_batch(batch)
        stamped = stamp(batch, self.heads.get, next_id=len(self.entries) + 1, now_ms=NOW_MS, server=self._server)
        self.entries += stamped.entries
        self.heads |= stamped.heads
        return stamped.appended.last.end

    def create(self, name: str) -> None:
        self.write(Batch(create=name))

    def append(self, stream: str, *lines: str) -> int:
        return self.write(Batch(tuple(Draft(stream, line.encode()) for line in lines), make_missing=False))

    def meta(self, stream: str, type: str, payload: bytes) -> int:
        return self.write(Batch((Draft(stream, payload, type, kind=Kind.META),)))

    def sizes(self, *names: str) -> list[int]:
        return [self.heads[name].offset for name in names]


def test_the_writer_scenario_of_the_dossier():
    ts = eventhorizon.timestamp(NOW_MS)
    streams = Streams()
    streams.create("/")
    assert streams.sizes("/") == [65]
    streams.create("/_sub")
    assert streams.sizes("/", "/_sub") == [164, 65]
    streams.create("/_sub/billing")
    assert streams.sizes("/_sub", "/_sub/billing") == [180, 65]
    streams.create("/orders")
    assert streams.sizes("/", "/orders") == [267, 65]

    assert streams.meta("/orders", "Subscribed", eventhorizon.subscribed("/_sub/billing", ts)) == 145
    activity = eventhorizon.subscription_activity(["/orders:0:145:10.0.0.5"], ts)
    assert streams.meta("/_sub/billing", "SubscriptionActivity", activity) == 159

    assert [streams.append("/orders", line) for line in ("hello", "", "é", "日本", "😀")] == [152, 154, 158, 166, 172]
    activity = eventhorizon.subscription_activity(["/orders:0:172:10.0.0.5"], ts)
    assert streams.meta("/_sub/billing", "SubscriptionActivity", activity) == 253
    assert streams.meta("/orders", "Unsubscribed", eventhorizon.subscribed("/_sub/billing", ts)) == 254
    assert streams.heads["/orders"].subscribers == ()


def test_what_the_writer_scenario_refuses_changes_nothing():
    streams = Streams()
    for name in ("/", "/orders"):
        streams.create(name)
    before = dict(streams.heads)

    with pytest.raises(StreamExists):
        streams.create("/orders")
    with pytest.raises(NotFound):
        streams.create("/x/y")
    with pytest.raises(NotFound):
        streams.append("/nope", "line")
    with pytest.raises(NameInvalid):
        streams.create("/a:b")
    with pytest.raises(PositionMismatch):
        streams.write(Batch((Draft("/orders", b"x"),), expect=Expect("/orders", chunk=0, offset=64)))
    assert streams.heads == before


def test_the_rotation_of_the_dossier():
    # Given a chunk filled to exactly its limit
    streams = Streams("127.0.0.1")
    for name in ("/", "/s"):
        streams.create(name)
    for _ in range(8191):
        streams.append("/s", "x" * 1022)
    assert streams.append("/s", "x" * 957) == 8_388_608
    # When one more line comes
    end = streams.append("/s", "")
    # Then it still goes into the chunk, the chunk is sealed, and the next one begins with the subscribers
    assert end == 8_388_610
    rotated, created = streams.entries[-2:]
    assert (rotated.type, rotated.chunk, rotated.end) == ("Rotated", 0, 8_388_679)
    assert b'"next":"/s:1:0:127.0.0.1"' in rotated.body
    assert (created.type, created.chunk, created.offset, created.end) == ("Created", 1, 0, 65)
    assert streams.append("/s", "x") == 68
    assert streams.heads["/s"].chunk == 1


def test_a_chunk_that_begins_lists_its_subscribers():
    streams = Streams()
    for name in ("/", "/s"):
        streams.create(name)
    streams.meta("/s", "Subscribed", eventhorizon.subscribed("billing", eventhorizon.timestamp(NOW_MS)))
    while streams.heads["/s"].chunk == 0:
        streams.append("/s", *["x" * 60_000] * 20)

    assert streams.entries[-1].type == "Created"
    assert b'"subscription_ids":["billing"]' in streams.entries[-1].body


def test_meta_entries_do_not_fill_a_chunk_but_find_it_full():
    streams = Streams()
    streams.heads["/s"] = Head("/s", 7, 0, CHUNK_BYTES)
    payload = eventhorizon.subscribed("a", eventhorizon.timestamp(NOW_MS))

    streams.meta("/s", "Subscribed", payload)
    assert streams.heads["/s"].chunk == 0
    streams.meta("/s", "Unsubscribed", payload)
    assert streams.heads["/s"].chunk == 1


def test_a_parent_that_is_only_looked_at_stays_as_it_is():
    streams = Streams()
    for name in ("/", "/users"):
        streams.create(name)
    before = streams.heads["/users"]

    streams.write(Batch((Draft("/users/42", b"x"),)))

    assert streams.heads["/users"] == before


bodies = st.sampled_from([b"", b"x", b"two\nlines", b"\xff", b"y" * 70_000])


@given(st.lists(st.tuples(st.sampled_from(["/", "/a", "/a/b"]), bodies), min_size=1, max_size=12))
def test_one_by_one_or_in_one_batch_the_coordinates_are_the_same(drafts):
    single, together = Streams(), Streams()
    for streams in (single, together):
        for name in ("/", "/a", "/a/b"):
            streams.create(name)

    for stream, body in drafts:
        single.write(Batch((Draft(stream, body),)))
    together.write(Batch(tuple(Draft(stream, body) for stream, body in drafts)))

    assert single.entries == together.entries
    assert single.heads == together.heads
