"""Recorded channels: segments in the log, for every door, after the close and after a restart; and who got them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.limits import ENTRY_BYTES
from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import ask, publish
from tests.doors.trickle_client import (
    Get,
    Post,
    create,
    delete,
    get,
    head_of,
    made,
    new_channel,
    path,
    post,
    readers,
    shown,
    waiting,
)

CLOSED, LATEST, SEQ = "lp-trickle-closed", "lp-trickle-latest", "lp-trickle-seq"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("recorded") / "data", trickle_abandon=0.3) as running:
        yield running


def stream_of(channel: str, epoch: int = 1) -> str:
    return f"/channels/{channel}/{epoch}"


def logged(server: RunningServer, channel: str, epoch: int = 1) -> list[str]:
    page = ask(server, "GET", "/v1/read", stream=stream_of(channel, epoch), limit=1000)
    return [entry["data"] for entry in page.json["entries"]]


def test_a_segment_is_in_the_log_when_it_is_acknowledged(server: RunningServer) -> None:
    channel = made(server, record="true")

    for number in range(7):
        assert post(server, channel, number, b"%d" % number).status == 200
        assert logged(server, channel)[number:] == [str(number)]


@pytest.mark.parametrize("body", [b"", b"short", b"x" * (2 * ENTRY_BYTES + 17)], ids=["empty", "short", "in parts"])
def test_after_a_crash_a_publisher_without_an_answer_learns_that_all_was_taken(tmp_path: Path, body: bytes) -> None:
    with start_server(tmp_path / "data") as server:
        channel = made(server, record="true")
        post(server, channel, 0, b"zero")
        post(server, channel, 1, body)
        server.kill()
        server.restart()

        again = post(server, channel, 1, body, Lp_Trickle_Offset="0")

        assert (again.status, again.json["error"]["code"]) == (409, "segment_closed")
        assert (again.headers[LATEST], again.headers["lp-trickle-size"]) == ("2", str(len(body)))
        assert "lp-trickle-size" not in post(server, channel, 0, b"zero", Lp_Trickle_Offset="0").headers
        assert post(server, channel, 2, b"two").status == 200


def test_after_a_crash_a_segment_that_was_cut_does_not_pass_for_a_whole_one(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", trickle_abandon=0.3) as server:
        channel = made(server, record="true")
        with Post(server, channel, 0) as publisher:
            publisher.send(b"half of it")
        wait_until(lambda: ask(server, "GET", "/v1/read", stream=stream_of(channel)).status == 200)
        assert logged(server, channel) == ["half of it"]
        server.kill()
        server.restart()

        again = post(server, channel, 0, b"half of it", Lp_Trickle_Offset="0")

        assert again.status == 409
        assert "lp-trickle-size" not in again.headers


def test_what_left_the_window_is_read_from_the_log(server: RunningServer) -> None:
    channel = made(server, record="true", segments=2)
    for number in range(7):
        post(server, channel, number, b"%d" % number)

    assert [get(server, channel, seq).body for seq in range(7)] == [b"%d" % n for n in range(7)]
    assert get(server, channel, 0).headers[LATEST] == "7"
    assert get(server, channel, -8).body == b"0"


def test_segments_enter_the_log_in_the_order_of_their_numbers(server: RunningServer) -> None:
    channel = made(server, record="true")
    with Post(server, channel, 0, b"zero") as first:
        wait_until(lambda: head_of(server, channel) == 1)
        with Post(server, channel, 1, b"one") as second:
            wait_until(lambda: head_of(server, channel) == 2)
            second.socket.sendall(b"0\r\n\r\n")
            assert second.silent
            assert first.end().status == 200
            assert second.head() == 200
    assert logged(server, channel) == ["zero", "one"]


def test_a_number_that_was_given_up_is_an_empty_entry_with_the_reason(server: RunningServer) -> None:
    channel = made(server, record="true")
    with Post(server, channel, 0, b"half"):
        wait_until(lambda: head_of(server, channel) == 1)
    post(server, channel, 1, b"whole")

    entries = ask(server, "GET", "/v1/read", stream=stream_of(channel)).json["entries"]
    assert [(entry["index"], entry["data"], entry.get("attributes")) for entry in entries] == [
        (0, "half", {"end": "abandoned"}),
        (1, "whole", None),
    ]
    delete(server, channel)  # from now on it is read from the log
    late = get(server, channel, 0)
    assert (late.status, late.headers[LATEST]) == (470, "1")
    assert get(server, stream_of(channel), 0).status == 470
    assert get(server, channel, 1).body == b"whole"


def test_a_large_segment_is_one_index_and_every_byte_of_it_comes_back(server: RunningServer) -> None:
    channel = made(server, record="true", segments=1)
    large = bytes(range(256)) * (ENTRY_BYTES // 256 * 3)

    assert post(server, channel, 0, large).status == 200
    post(server, channel, 1, b"next")
    post(server, channel, 2, b"next")

    assert get(server, channel, 0).body == large
    assert shown(server, channel)["head"] == 3
    assert post(server, channel, 3, bytes(5 * 1024 * 1024)).status == 413


def test_a_closed_channel_is_read_from_the_log_and_says_that_it_ends(server: RunningServer) -> None:
    channel = made(server, record="true")
    for body in (b"one", b"two"):
        post(server, channel, -1, body)
    assert delete(server, channel).status == 200

    assert [get(server, channel, seq).body for seq in (0, 1, -2)] == [b"one", b"two", b"two"]
    for beyond in (2, 99, -1):
        end = get(server, channel, beyond)
        assert (end.status, end.body, end.headers[CLOSED]) == (200, b"", "terminated")
    over = get(server, channel, "next")
    assert (over.body, over.headers[CLOSED]) == (b"2", "terminated")
    assert post(server, channel, 2, b"x").status == 404
    assert delete(server, channel).status == 400


def test_a_channel_made_anew_is_a_new_epoch(server: RunningServer) -> None:
    channel = made(server, record="true")
    post(server, channel, 0, b"first life")
    delete(server, channel)

    assert create(server, channel, record="true").headers["lp-trickle-epoch"] == "2"
    post(server, channel, 0, b"second life")

    assert get(server, channel, 0).body == b"second life"
    assert (logged(server, channel, 1), logged(server, channel, 2)) == (["first life"], ["second life"])


def test_epochs_are_counted_on_by_channels_that_are_not_recorded(server: RunningServer) -> None:
    channel = made(server, record="true")
    post(server, channel, 0, b"first life")
    delete(server, channel)
    assert create(server, channel).headers["lp-trickle-epoch"] == "2"
    delete(server, channel)
    assert get(server, channel, 0).headers[CLOSED] == "terminated"

    assert create(server, channel, record="true").headers["lp-trickle-epoch"] == "3"

    assert post(server, channel, 0, b"third life").status == 200
    assert logged(server, channel, 3) == ["third life"]


def test_the_content_type_is_kept(server: RunningServer) -> None:
    channel = new_channel()
    create(server, channel, {"Expect-Content": "video/MP2T"}, record="true")
    post(server, channel, 0, b"x")
    delete(server, channel)

    assert get(server, channel, 0).headers["content-type"] == "video/MP2T"


@pytest.mark.parametrize("stop", ["gracefully", "with kill -9"])
def test_recorded_channels_survive_a_restart(tmp_path: Path, stop: str) -> None:
    with start_server(tmp_path / "data") as server:
        closed, going_on, plain = made(server, record="true"), made(server, record="true"), made(server)
        for channel in (closed, going_on, plain):
            post(server, channel, 0, b"zero")
        delete(server, closed)
        if stop == "with kill -9":
            server.kill()
        server.restart()

        assert get(server, closed, 0).body == b"zero"
        assert get(server, closed, 1).headers[CLOSED] == "terminated"
        assert head_of(server, going_on) == 1
        assert post(server, going_on, 0, b"again").status == 409
        assert post(server, going_on, 1, b"one").status == 200
        assert [get(server, going_on, seq).body for seq in (0, 1)] == [b"zero", b"one"]
        assert get(server, plain, 0).status == 404
        assert create(server, plain).status == 200


def test_waiting_readers_and_publishers_do_not_hold_up_a_stop(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", server_drain_seconds=60) as server:
        channel = made(server)
        with (
            Post(server, channel, 0, b"half") as posting,
            waiting(server, channel, 1)[0] as edge,
            Get(server, channel, 0).opened() as middle,
        ):
            assert server.stop(within=15) == 0
            assert (posting.head(), edge.head()) == (503, 503)
            assert middle.chunk() == b"half"
            assert middle.file.read() == b""  # cut, so that nobody takes it for the whole segment


# ── streams as channels ────────────────────────────────────────────────────────────────────────


def test_any_stream_is_a_channel(server: RunningServer) -> None:
    stream = f"/orders/{new_channel()}"
    for body in (b"one", b"two"):
        publish(server, stream, body)

    for channel in (stream, f"~{stream}"):
        target = f"/trickle/{channel}" if channel.startswith("~") else path(stream)
        assert [ask(server, "GET", f"{target}/{seq}").body for seq in (0, 1, -2, "next")] == [
            b"one",
            b"two",
            b"two",
            b"2",
        ]
        assert ask(server, "GET", f"{target}/9").status == 470
    assert ask(server, "GET", "/trickle/~/not/there/0").status == 404
    assert post(server, stream, 2, b"x").status == 403
    assert delete(server, stream).status == 403


def test_the_next_entry_of_a_stream_can_be_waited_for(server: RunningServer) -> None:
    stream = f"/orders/{new_channel()}"
    publish(server, stream, b"one")
    with Get(server, stream, 1) as reader:
        wait_until(lambda: any(c["streams"] == [stream] for c in consumers(server)))
        publish(server, stream, b"two")
        assert (reader.head(), reader.headers[SEQ], reader.rest()) == (200, "1", b"two")
    with Get(server, stream, -1, Lp_Trickle_Wait="1") as late:
        assert late.head() == 408
    assert not [c for c in consumers(server) if c["streams"] == [stream]]


def consumers(server: RunningServer) -> list[dict[str, object]]:
    found: list[dict[str, object]] = ask(server, "GET", "/v1/consumers").json["consumers"]
    return found


def test_a_large_recorded_segment_reaches_who_waits_for_it_as_a_stream(server: RunningServer) -> None:
    channel = made(server, record="true")
    post(server, channel, 0, b"small")
    large = bytes(range(256)) * (ENTRY_BYTES // 256 * 2)
    with Get(server, stream_of(channel), 1) as reader:
        wait_until(lambda: consumers(server))
        post(server, channel, 1, large)
        assert (reader.head(), reader.rest()) == (200, large)


# ── why ────────────────────────────────────────────────────────────────────────────────────────


def verdict(server: RunningServer, entry: int, recipient: str) -> str:
    found: str = ask(server, "GET", "/v1/why", entry=entry, recipient=recipient).json["verdict"]
    return found


def test_why_knows_who_got_a_segment(server: RunningServer) -> None:
    channel = made(server, record="true")
    with Get(server, channel, 0, query="consumer=live") as live:
        wait_until(lambda: readers(server, channel) == 1)
        post(server, channel, 0, b"segment")
        assert (live.head(), live.rest()) == (200, b"segment")
    assert get(server, channel, 0, consumer="late").body == b"segment"
    delete(server, channel)
    assert get(server, channel, 0, consumer="replay").body == b"segment"

    entry = ask(server, "GET", "/v1/read", stream=stream_of(channel)).json["entries"][0]["id"]
    for recipient in ("live", "late", "replay"):
        wait_until(lambda recipient=recipient: verdict(server, entry, recipient) == "sent")  # type: ignore[misc]
    assert verdict(server, entry, "nobody") == "no_record"


def test_why_knows_that_a_reader_was_too_slow(server: RunningServer) -> None:
    channel = made(server, record="true", bytes=5_000_000, segments=2)
    piece = bytes(4_000_000)  # more than the kernel holds for a reader that does not read
    post(server, channel, 0, piece)
    with Get(server, channel, 0, query="consumer=slow", receive_buffer=4096).opened() as slow:
        wait_until(lambda: readers(server, channel) == 1)
        post(server, channel, 1, piece)
        with pytest.raises((OSError, EOFError)):
            slow.rest()  # cut: it must not look like the end of the segment

    entry = ask(server, "GET", "/v1/read", stream=stream_of(channel), limit=1).json["entries"][0]["id"]
    wait_until(lambda: verdict(server, entry, "slow") == "dropped")
    words = ask(server, "GET", "/v1/why", entry=entry, recipient="slow").json["words"]
    assert "too slow for the window" in words
    assert get(server, channel, 0).body == piece  # the log has it
