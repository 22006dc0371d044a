"""How channels and segments end, and who hears of it: the cases of the original's tests, over raw sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing import RunningServer, start_server, wait_until
from tests.doors.trickle_client import Get, Post, create, cut_off, delete, get, head_of, made, post, waiting

SEQ, LATEST, CLOSED = "lp-trickle-seq", "lp-trickle-latest", "lp-trickle-closed"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("ends") / "data", trickle_autocreate=True) as running:
        yield running


def test_deleting_a_segment_that_is_only_connected_to(server: RunningServer) -> None:
    channel = made(server)
    [reader] = waiting(server, channel, 0)
    with Post(server, channel, 0) as posting, reader:
        assert wait_until(lambda: delete(server, channel, 0).status == 200)
        assert (posting.head(), posting.headers[SEQ], posting.headers["connection"]) == (200, "0", "close")
        assert (reader.head(), reader.headers["content-length"], reader.headers[SEQ]) == (200, "0", "0")
    assert head_of(server, channel) == 1


def test_deleting_a_segment_in_the_middle_tells_its_publisher(server: RunningServer) -> None:
    """In the original the publisher goes on and is told that all went well."""
    channel = made(server)
    with Post(server, channel, 0, b"half") as posting:
        with Get(server, channel, 0).opened() as reader:
            assert reader.chunk() == b"half"
            assert delete(server, channel, 0).status == 200
            assert reader.chunk() == b""
        assert posting.head() == 409
    assert delete(server, channel, 0).status == 200
    assert delete(server, channel, 7).body == b"Nonexistent segment\n"
    assert get(server, channel, 0).body == b"half"


def test_closing_a_channel_reaches_everybody(server: RunningServer) -> None:
    channel = made(server)
    with (
        Post(server, channel, 0, b"half") as mid,
        Get(server, channel, 0).opened() as middle,
        Post(server, channel, 1) as ahead,
        waiting(server, channel, 1)[0] as edge,
    ):
        assert middle.chunk() == b"half"

        assert delete(server, channel).status == 200

        assert middle.chunk() == b""
        assert (edge.head(), edge.headers[CLOSED], edge.headers[SEQ]) == (200, "terminated", "1")
        assert (ahead.head(), ahead.headers[CLOSED], ahead.headers["connection"]) == (200, "terminated", "close")
        assert (mid.head(), mid.headers[CLOSED]) == (409, "terminated")
    over = [get(server, channel, seq) for seq in ("next", 1, 99, -1)]
    assert [(one.status, one.headers[CLOSED], one.headers[LATEST]) for one in over] == [(200, "terminated", "1")] * 4
    assert delete(server, channel).status == 400


def test_a_reader_that_was_one_behind_at_the_close_gets_the_tail(server: RunningServer) -> None:
    """In the original the tail is lost."""
    channel = made(server)
    post(server, channel, 0, b"tail")
    delete(server, channel)

    assert get(server, channel, 0).body == b"tail"
    over = get(server, channel, 1)
    assert (over.status, over.body, over.headers[CLOSED], over.headers[SEQ]) == (200, b"", "terminated", "1")


def test_a_segment_without_a_byte_is_not_the_end_of_a_closed_channel(server: RunningServer) -> None:
    channel = made(server)
    for body in (b"zero", b"", b"two"):
        post(server, channel, -1, body)
    delete(server, channel)

    empty = get(server, channel, 1)
    assert (empty.status, empty.body, empty.headers[SEQ], CLOSED in empty.headers) == (200, b"", "1", False)
    assert get(server, channel, 2).body == b"two"
    assert get(server, channel, 3).headers[CLOSED] == "terminated"


def test_a_reader_of_a_number_that_was_left_out_is_not_told_that_the_channel_ends_there(server: RunningServer) -> None:
    channel = made(server)
    post(server, channel, 0, b"zero")
    post(server, channel, 2, b"two")
    with waiting(server, channel, 1)[0] as reader:
        delete(server, channel)

        assert (reader.head(), reader.headers[SEQ], CLOSED in reader.headers) == (200, "1", False)
    assert get(server, channel, 2).body == b"two"


def test_a_channel_made_anew_begins_anew(server: RunningServer) -> None:
    channel = made(server)
    post(server, channel, 0, b"old")
    delete(server, channel)

    create(server, channel)

    assert head_of(server, channel) == 0
    post(server, channel, 0, b"new")
    assert get(server, channel, 0).body == b"new"


def test_reset_frees_the_readers_of_a_dead_publisher(server: RunningServer) -> None:
    channel = made(server)
    with Post(server, channel, 0, b"Hello") as old, Get(server, channel, 0).opened() as reader:
        assert reader.chunk() == b"Hello"

        answer = post(server, channel, -1, b"after-reset", Lp_Trickle_Reset="1")

        assert (answer.status, answer.headers[SEQ]) == (200, "1")
        assert reader.chunk() == b""
        assert old.head() == 409
    assert [get(server, channel, seq).body for seq in (0, 1)] == [b"Hello", b"after-reset"]


def test_a_slot_that_is_reused_frees_the_readers_of_the_old_one(server: RunningServer) -> None:
    """In the original they hang for ever, past the end of the channel."""
    channel = made(server)
    with Post(server, channel, 0, b"half"):
        reader = Get(server, channel, 0).opened()
        assert reader.chunk() == b"half"
    with reader:
        for seq in range(1, 7):
            post(server, channel, seq, b"x")
        assert cut_off(reader)
