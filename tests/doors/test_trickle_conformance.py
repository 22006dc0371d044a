"""The protocol over raw sockets: the cases of the original's tests and of probes of the original server.

Where the answers differ on purpose, the test says so; docs/trickle.md lists them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import ask
from tests.doors.trickle_client import (
    Get,
    Post,
    Raw,
    create,
    cut_off,
    delete,
    get,
    head_of,
    made,
    new_channel,
    path,
    post,
    readers,
    request,
    shown,
    waiting,
)

SEQ, LATEST, CLOSED, SIZE = "lp-trickle-seq", "lp-trickle-latest", "lp-trickle-closed", "lp-trickle-size"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("trickle") / "data"
    settings = {"trickle_autocreate": True, "trickle_sign_of_life": 0.25, "trickle_preconnect": 1}
    with start_server(data, **settings) as running:
        yield running


# ── creating ───────────────────────────────────────────────────────────────────────────────────


def test_without_autocreate_nothing_is_made_by_the_way(shared_server: RunningServer) -> None:
    channel = new_channel()

    answer = post(shared_server, channel, 0, b"x")

    assert (answer.status, answer.body, answer.headers["connection"]) == (404, b"Stream not found\n", "close")
    assert get(shared_server, channel, "next").status == 404


def test_without_autocreate_a_404_does_not_wait_for_the_body(shared_server: RunningServer) -> None:
    with Post(shared_server, new_channel(), 0) as posting:
        assert posting.head() == 404


def test_creating_twice_is_creating_once_and_keeps_the_content_type(server: RunningServer) -> None:
    channel = new_channel()

    assert create(server, channel, {"Expect-Content": "text/one"}).status == 200
    assert create(server, channel, {"Expect-Content": "text/two"}).status == 200

    post(server, channel, 0, b"x", Content_Type="text/three")
    assert get(server, channel, 0).headers["content-type"] == "text/one"


def test_the_first_segment_makes_its_channel_with_its_content_type(server: RunningServer) -> None:
    channel = new_channel()

    assert post(server, channel, 0, b"x", Content_Type="video/MP2T").status == 200

    assert get(server, channel, 0).headers["content-type"] == "video/MP2T"


# ── writing and reading ────────────────────────────────────────────────────────────────────────


def test_a_fresh_channel(server: RunningServer) -> None:
    channel = made(server)

    assert head_of(server, channel) == 0
    opened = waiting(server, channel, 0, 1, -1, -2)
    assert all(reader.silent for reader in opened)
    missing = get(server, channel, 2)
    assert (missing.status, missing.body) == (470, b"Entry not found")
    assert (missing.headers[LATEST], missing.headers[SEQ]) == ("0", "2")
    for reader in opened:
        reader.close()
    wait_until(lambda: readers(server, channel) == 0)  # a reader that leaves while it waits is noticed


def test_a_finished_segment(server: RunningServer) -> None:
    channel = made(server)

    written = post(server, channel, 0, b"hello")

    assert (written.status, written.body, written.headers[SEQ]) == (200, b"", "0")
    for asked in (0, -2, "+0", "00"):
        read = get(server, channel, asked)
        assert (read.status, read.body) == (200, b"hello")
        assert (read.headers[SEQ], read.headers[LATEST], read.headers[SIZE]) == ("0", "1", "5")
        assert read.headers["transfer-encoding"] == "chunked"
    assert get(server, channel, 2).headers[LATEST] == "1"


def test_two_segments_read_from_the_start(server: RunningServer) -> None:
    channel = made(server)
    post(server, channel, 0, b"first")
    post(server, channel, 1, b"second")

    with Post(server, channel, 2):
        assert [get(server, channel, seq).body for seq in (0, 1)] == [b"first", b"second"]
        assert [get(server, channel, seq).headers[LATEST] for seq in (0, 1)] == ["2", "2"]


def test_minus_one_publishes_at_the_head_and_says_where(server: RunningServer) -> None:
    channel = made(server)

    assert [post(server, channel, -1, b"x").headers[SEQ] for _ in range(3)] == ["0", "1", "2"]


def test_minus_n_reads_the_nth_from_the_last(server: RunningServer) -> None:
    channel = made(server)
    for number in range(4):
        post(server, channel, -1, b"%d" % number)

    assert [get(server, channel, asked).body for asked in (-2, -3, -4, -5, -6, -100)] == [
        b"3",
        b"2",
        b"1",
        b"0",
        b"0",
        b"0",
    ]


def test_segments_can_be_read_again_in_any_order(server: RunningServer) -> None:
    channel = made(server)
    for number in range(4):
        post(server, channel, number, b"%d" % number)

    assert [get(server, channel, seq).body for seq in (0, 1, 2, 3, 2, 1, 0)] == [
        b"%d" % n for n in (0, 1, 2, 3, 2, 1, 0)
    ]


def test_there_is_no_head_before_the_first_byte_and_bytes_come_as_they_are_sent(server: RunningServer) -> None:
    channel = made(server)
    [reader] = waiting(server, channel, 0)
    with Post(server, channel, 0) as posting, reader:
        assert reader.silent
        assert head_of(server, channel) == 0
        posting.send(b"one-")
        assert (reader.head(), reader.chunk()) == (200, b"one-")
        assert LATEST not in reader.headers
        assert (reader.headers[SEQ], reader.headers[SIZE]) == ("0", "0")
        assert head_of(server, channel) == 1
        posting.send(b"two")
        assert reader.chunk() == b"two"
        assert reader.silent
        assert posting.end().status == 200
        assert reader.chunk() == b""


def test_who_joins_in_the_middle_gets_the_beginning_at_once(server: RunningServer) -> None:
    channel = made(server)
    with Post(server, channel, 0, b"one-", b"two-") as posting:
        wait_until(lambda: shown(server, channel)["bytes"] == 8)
        with Get(server, channel, 0).opened() as reader:
            assert (reader.chunk(), reader.headers[SIZE]) == (b"one-two-", "8")
            posting.send(b"three")
            posting.end()
            assert reader.rest() == b"three"


def test_an_empty_segment(server: RunningServer) -> None:
    channel = made(server)

    written = post(server, channel, 0)

    assert (written.status, written.headers["connection"]) == (200, "close")
    read = get(server, channel, 0)
    assert (read.status, read.body, read.headers[SEQ], read.headers[LATEST]) == (200, b"", "0", "1")
    assert CLOSED not in read.headers


def test_a_chunked_body_without_a_byte_is_an_empty_segment(server: RunningServer) -> None:
    channel = made(server)
    [reader] = waiting(server, channel, 0)

    with Post(server, channel, 0) as posting, reader:
        assert posting.end().status == 200
        assert reader.head() == 200
        assert (reader.headers["content-length"], reader.headers[LATEST]) == ("0", "1")


def test_a_publisher_that_lost_its_connection_goes_on_with_the_same_segment(server: RunningServer) -> None:
    channel = made(server)
    [reader] = waiting(server, channel, 0)
    with reader:
        with Post(server, channel, 0, b"one-"):
            assert (reader.head(), reader.chunk()) == (200, b"one-")
        assert reader.silent

        assert post(server, channel, 0, b"two").status == 200

        assert reader.rest() == b"two"
    assert get(server, channel, 0).body == b"one-two"


def test_a_publisher_can_send_a_segment_again_without_a_byte_twice(server: RunningServer) -> None:
    channel = made(server)
    with Post(server, channel, 0, b"one-"):
        wait_until(lambda: shown(server, channel)["bytes"] == 4)

    assert wait_until(lambda: post(server, channel, 0, b"one-two", Lp_Trickle_Offset="0").status == 200)

    assert get(server, channel, 0).body == b"one-two"
    assert post(server, channel, 1, b"x", Lp_Trickle_Offset="5").code == "offset_beyond"


def test_the_window_keeps_five_and_older_ones_are_missing(server: RunningServer) -> None:
    channel = made(server)
    for number in range(6):
        post(server, channel, number, b"%d" % number)

    gone = get(server, channel, 0)

    assert (gone.status, gone.headers[LATEST], gone.headers["lp-trickle-oldest"]) == (470, "6", "1")
    assert [get(server, channel, seq).body for seq in range(1, 6)] == [b"1", b"2", b"3", b"4", b"5"]


def test_a_channel_may_choose_its_window(server: RunningServer) -> None:
    by_count, by_bytes = made(server, segments=2), made(server, bytes=25)
    for channel in (by_count, by_bytes):
        for number in range(5):
            post(server, channel, number, b"%d" % number * 10)

    for channel in (by_count, by_bytes):
        assert [get(server, channel, seq).status for seq in range(5)] == [470, 470, 470, 200, 200]


# ── refusals ───────────────────────────────────────────────────────────────────────────────────


def test_a_segment_that_ended_is_refused_aloud(server: RunningServer) -> None:
    """The original answers 200 and drops the data."""
    channel = made(server)
    post(server, channel, 0, b"kept")

    again = post(server, channel, 0, b"RESTART")

    assert (again.status, again.code) == (409, "segment_closed")
    assert (again.headers[LATEST], again.headers["connection"]) == ("1", "close")
    assert get(server, channel, 0).body == b"kept"


def test_an_older_seq_never_moves_the_head_back(server: RunningServer) -> None:
    """In the original `POST 3` at head 11 makes it 4."""
    channel = made(server)
    for number in range(8):
        post(server, channel, number, b"x")

    assert post(server, channel, 3, b"x").status == 409
    assert head_of(server, channel) == 8


def test_numbers_must_not_be_left_out(server: RunningServer) -> None:
    channel = made(server)
    post(server, channel, 0, b"x")

    assert [post(server, channel, seq, body).code for seq in (3, 6, 7) for body in (b"x", b"")] == ["seq_gap"] * 6
    assert head_of(server, channel) == 1
    assert get(server, channel, 6).status == 470  # nothing is left of what was refused


def test_publishers_connect_ahead_and_a_lost_segment_costs_no_other(server: RunningServer) -> None:
    channel = made(server)
    post(server, channel, 0, b"x")
    with Post(server, channel, 2) as second, Post(server, channel, 3) as third:  # 1 was lost
        second.send(b"two")
        assert second.end().status == 200
        third.send(b"three")
        assert third.end().status == 200
    assert post(server, channel, 4, b"four").status == 200
    assert [get(server, channel, seq).body for seq in (2, 3, 4)] == [b"two", b"three", b"four"]


def test_a_channel_without_history_takes_the_number_that_comes(server: RunningServer) -> None:
    channel = made(server)
    newest, first = waiting(server, channel, -2, 0)
    with newest, first:
        assert post(server, channel, 37, b"live").headers[SEQ] == "37"
        assert (newest.head(), newest.headers[SEQ], newest.rest()) == (200, "37", b"live")
        assert (first.head(), first.headers[LATEST]) == (470, "37")
    assert head_of(server, channel) == 38
    assert post(server, made(server, record="true"), 37, b"live").code == "seq_gap"


def test_a_second_writer_gets_409_while_the_first_is_active_and_may_reset(server: RunningServer) -> None:
    """In the original both interleave."""
    channel = made(server)
    with Post(server, channel, 0, b"P1") as first:
        wait_until(lambda: head_of(server, channel) == 1)
        busy = post(server, channel, 0, b"Q1")
        assert (busy.status, busy.code, busy.headers["retry-after"]) == (409, "segment_busy", "2")

        assert post(server, channel, 0, b"Q2", Lp_Trickle_Reset="1").status == 200

        assert first.head() == 409
        assert b"segment_replaced" in first.rest()
    assert get(server, channel, 0).body == b"P1Q2"


@pytest.mark.parametrize("seq", ["x", "1.5", "-", "9223372036854775808", "0x1", "%20"])
def test_what_is_no_number_is_400(server: RunningServer, seq: str) -> None:
    channel = made(server)

    for method in ("GET", "POST", "DELETE"):
        answer = ask(server, method, path(channel, seq), b"x" if method == "POST" else None)
        assert (answer.status, answer.body) == (400, b"Invalid idx\n")


def test_who_creates_a_channel_keeps_it_when_the_segment_that_made_it_first_never_comes(server: RunningServer) -> None:
    wanted, unwanted = new_channel(), new_channel()
    with Post(server, wanted, 0):
        assert wait_until(lambda: shown(server, wanted))
        assert create(server, wanted).status == 200
    with Post(server, unwanted, 0):
        assert wait_until(lambda: shown(server, unwanted))
    assert wait_until(lambda: not shown(server, unwanted))  # whose publisher left after the other's
    assert (get(server, wanted, "next").status, get(server, wanted, 99).status) == (200, 470)


def test_a_request_that_is_refused_makes_no_channel(server: RunningServer) -> None:
    """The original makes it first."""
    channel = new_channel()

    assert post(server, channel, "x", b"x").status == 400
    assert post(server, channel, -2, b"x").body == b"Invalid idx\n"
    assert post(server, channel, 0, b"x", Content_Type="x" * 300).status == 400
    assert post(server, channel, 0, b"x", Lp_Trickle_Offset="7").code == "offset_beyond"
    too_large = {"Content-Length": "99999999"}
    with Raw(server, request(server, "POST", path(channel, 0), too_large)) as large:
        assert large.head() == 413
    assert get(server, channel, "next").status == 404


def test_a_segment_without_a_byte_that_fails_makes_no_channel_either(server: RunningServer) -> None:
    broken, lost, late = new_channel(), new_channel(), new_channel()
    with Post(server, broken, 0) as posting:
        posting.socket.sendall(b"zz\r\n")
        assert posting.head() == 400
    with Post(server, lost, 0):
        wait_until(lambda: get(server, lost, "next").status == 200)
    with Post(server, late, 0) as posting:
        assert posting.head() == 408
    for channel in (broken, lost, late):
        wait_until(lambda channel=channel: get(server, channel, "next").status == 404)  # type: ignore[misc]


def test_unknown_parameters_are_passed_over(server: RunningServer) -> None:
    channel = new_channel()

    assert create(server, channel, new="1").status == 200
    assert ask(server, "POST", path(channel, 0), b"x", token_in_url="?").status == 200
    assert get(server, channel, 0, rand="0.1").body == b"x"
    assert get(server, channel, "next", rand="0.1").body == b"1"
    assert ask(server, "DELETE", path(channel, 0), None, x="y").status == 200
    assert ask(server, "DELETE", path(channel), None, x="y").status == 200
    assert create(server, channel, segments="many").status == 400


def test_negative_numbers_never_hang_or_crash(server: RunningServer) -> None:
    """In the original DELETE -1 kills the channel, and the sweeper with it."""
    channel = made(server)
    post(server, channel, 0, b"x")

    assert [post(server, channel, seq, b"x").status for seq in (-2, -3, -5, -(2**63))] == [400] * 4
    assert [delete(server, channel, seq).status for seq in (-1, -2, -5)] == [400] * 3
    assert [get(server, channel, seq).status for seq in (-2, -3, -5, -(2**63))] == [200] * 4
    assert head_of(server, channel) == 1


def test_unknown_channels(server: RunningServer) -> None:
    channel = new_channel()

    assert get(server, channel, 0).status == 404
    assert get(server, channel, "next").status == 404
    assert delete(server, channel).body == b"Invalid stream\n"
    assert delete(server, channel, 0).status == 404


def test_other_methods_and_paths(server: RunningServer) -> None:
    channel = made(server)

    on_segment = ask(server, "PUT", path(channel, 0), b"x")
    on_channel = ask(server, "GET", path(channel))
    assert (on_segment.status, on_segment.headers["allow"]) == (405, "DELETE, GET, HEAD, OPTIONS, POST")
    assert (on_channel.status, on_channel.headers["allow"]) == (405, "DELETE, OPTIONS, POST")
    assert post(server, channel, "next", b"x").status == 400
    assert [ask(server, "GET", path(channel) + rest).status for rest in ("/", "/0/1")] == [404, 404]


def test_a_segment_over_its_limit_is_413_and_ends(server: RunningServer) -> None:
    channel = made(server, bytes=1000)
    [reader] = waiting(server, channel, 0)

    assert post(server, channel, 0, b"x" * 1001).status == 413
    with Post(server, channel, 0, b"x" * 600, b"y" * 600) as posting, reader:
        assert posting.head() == 413
        assert cut_off(reader)
    assert post(server, channel, 0, b"x").code == "segment_closed"
    late = get(server, channel, 0)
    assert (late.status, late.headers[SEQ], late.headers[LATEST]) == (470, "0", "1")
    assert post(server, channel, 1, b"next").status == 200


def test_too_many_channels_and_readers_are_503(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("few") / "data"
    with start_server(data, trickle_channels=2, trickle_waiting=1) as server:
        channel = made(server)
        made(server)
        assert create(server, new_channel()).code == "busy"
        with waiting(server, channel, 0)[0]:
            assert get(server, channel, 0).code == "busy"


# ── time ───────────────────────────────────────────────────────────────────────────────────────


def test_a_publisher_that_waits_gets_signs_of_life_and_then_408(server: RunningServer) -> None:
    channel = made(server)
    with Post(server, channel, 0) as posting:
        assert posting.head() == 408
        assert posting.interims >= 2
        assert posting.headers["lp-trickle-timeout"] == "1"
        assert posting.headers["connection"] == "close"
    assert post(server, channel, 0, b"x").status == 200


def test_a_reader_may_say_how_long_it_waits(server: RunningServer) -> None:
    channel = made(server)

    late = ask(server, "GET", path(channel, 0), None, {"Lp-Trickle-Wait": "1"})

    assert (late.status, late.code, late.headers["lp-trickle-timeout"]) == (408, "segment_timeout", "1")
    assert (late.headers[SEQ], late.headers[LATEST]) == ("0", "0")
    assert ask(server, "GET", path(channel, 0), None, {"Lp-Trickle-Wait": "soon"}).status == 400


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with little patience."""
    with start_server(tmp_path_factory.mktemp("hasty") / "data", trickle_abandon=0.2, trickle_idle=1.5) as running:
        yield running


def test_a_segment_whose_publisher_is_gone_ends(hasty: RunningServer) -> None:
    channel = made(hasty)
    [reader] = waiting(hasty, channel, 0)
    with reader:
        with Post(hasty, channel, 0, b"half"):
            assert (reader.head(), reader.chunk()) == (200, b"half")
        assert cut_off(reader)
    late = get(hasty, channel, 0)
    assert (late.status, late.headers[LATEST], late.headers["lp-trickle-oldest"]) == (470, "1", "1")


def test_a_number_that_was_given_up_is_missing_for_who_waited(hasty: RunningServer) -> None:
    channel = made(hasty)
    post(hasty, channel, 0, b"zero")
    post(hasty, channel, 2, b"two")
    with waiting(hasty, channel, 1)[0] as reader:
        assert (reader.head(), reader.headers[SEQ], reader.headers[LATEST]) == (470, "1", "2")


def test_the_idle_sweep_counts_every_byte(hasty: RunningServer) -> None:
    """The original sweeps a channel in the middle of a long segment."""
    active, quiet = made(hasty, "active"), made(hasty, "quiet")
    with Post(hasty, active, 0, b"x") as posting:

        def quiet_is_gone() -> bool:
            posting.send(b"x")
            return not shown(hasty, quiet)

        wait_until(quiet_is_gone)
        assert shown(hasty, active)["head"] == 1
        assert posting.end().status == 200


# ── HTTP ───────────────────────────────────────────────────────────────────────────────────────


def test_http_1_0_gets_raw_bytes_and_the_end_of_the_connection(server: RunningServer) -> None:
    channel = made(server)
    with Get(server, channel, 0, version="1.0") as reader:
        wait_until(lambda: readers(server, channel) == 1)
        post(server, channel, 0, b"raw")
        assert reader.head() == 200
        assert "transfer-encoding" not in reader.headers
        assert reader.rest() == b"raw"


def test_a_cut_shows_also_where_the_end_of_the_connection_is_the_end_of_the_body(hasty: RunningServer) -> None:
    channel = made(hasty)
    with Get(hasty, channel, 0, version="1.0") as reader:
        wait_until(lambda: readers(hasty, channel) == 1)
        with Post(hasty, channel, 0, b"half"):
            assert (reader.head(), reader.file.read(4)) == (200, b"half")
        with pytest.raises(ConnectionResetError):
            reader.file.read()


def test_head_waits_and_answers_like_get_without_a_body(server: RunningServer) -> None:
    channel = made(server)
    with Get(server, channel, 0, method="HEAD") as reader:
        wait_until(lambda: readers(server, channel) == 1)
        assert reader.silent
        post(server, channel, 0, b"body")
        assert (reader.head(), reader.headers[SEQ]) == (200, "0")
    wait_until(lambda: readers(server, channel) == 0)


def test_expect_100_continue(server: RunningServer) -> None:
    channel = made(server)
    with Post(server, channel, 0, Expect="100-continue") as posting:
        assert posting.file.readline() == b"HTTP/1.1 100 Continue\r\n"
        posting.file.readline()
        posting.send(b"x")
        assert posting.end().status == 200


def test_one_connection_reads_segment_after_segment(server: RunningServer) -> None:
    channel = made(server)
    with Get(server, channel, 0) as reader:
        for seq in range(3):
            post(server, channel, seq, b"%d" % seq)
            assert (reader.head(), reader.rest()) == (200, b"%d" % seq)
            reader.socket.sendall(request(server, "GET", path(channel, seq + 1), {}))


def test_a_name_with_an_encoded_slash_is_one_channel(server: RunningServer) -> None:
    channel = made(server, "a/b")

    assert post(server, channel, 0, b"x").status == 200
    assert get(server, channel, 0).body == b"x"


def test_the_status_of_a_missing_segment_can_be_the_seeds_and_the_base_path_another(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", trickle_missing_status=404, trickle_base="/ai/trickle/") as server:
        assert ask(server, "POST", "/ai/trickle/ch").status == 200
        missing = ask(server, "GET", "/ai/trickle/ch/9")
        assert (missing.status, missing.headers[LATEST]) == (404, "0")
        assert ask(server, "POST", "/trickle/ch").status == 404


def test_garbage_in_the_middle_of_a_body_leaves_the_segment_to_the_next(server: RunningServer) -> None:
    channel = made(server)
    with Post(server, channel, 0, b"good") as posting:
        posting.socket.sendall(b"zz\r\n")
        assert posting.head() == 400
        posting.socket.shutdown(socket.SHUT_RDWR)
    assert wait_until(lambda: post(server, channel, 0, b"-more").status == 200)
    assert get(server, channel, 0).body == b"good-more"
