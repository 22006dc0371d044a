"""Trickle channels of several nodes: every one serves each of them, and a recorded one outlives its node."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from http.client import IncompleteRead
from pathlib import Path

from penstock.testing import NatsCluster, RunningServer, start_nodes, wait_until
from tests.cluster.homes import new_prefix
from tests.doors.trickle_client import Get, Post, create, delete, get, made, post, readers

SMALL = {"trickle_segment_bytes": 100_000, "trickle_abandon": 0.3}


def is_cut_off(node: RunningServer, channel: str, seq: int) -> bool:
    """Whether the segment ended without being whole; as long as it might go on, its readers are cut off."""
    try:
        return get(node, channel, seq).status == 470
    except IncompleteRead:
        return False


def test_every_node_serves_every_channel_and_a_recorded_one_outlives_its_node(engine: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        one, two = start_nodes(stack, tmp_path, engine, 2, log_prefix=new_prefix(), log_replicas=1, **SMALL)
        # Given channels on one node
        recorded, plain = made(one, record="true"), made(one)
        assert create(two, plain).status == 200
        # When they are written and read through the other, live
        for channel in (recorded, plain):
            assert post(two, channel, 0, b"zero").headers["lp-trickle-seq"] == "0"
            with Get(two, channel, 1) as reader:
                wait_until(lambda channel=channel: readers(one, channel) == 1)  # type: ignore[misc]
                with Post(two, channel, 1, b"live") as posting:
                    assert (reader.head(), reader.chunk()) == (200, b"live")
                    assert posting.end().status == 200
                assert reader.chunk() == b""
            assert [get(node, channel, seq).body for node in (one, two) for seq in (0, 1)] == [b"zero", b"live"] * 2
            assert get(two, channel, 7).status == 470
            # What is too large is said to be so
            with Post(two, channel, 2, b"x" * 60_000, b"y" * 60_000) as posting:
                assert posting.head() == 413
            wait_until(lambda channel=channel: is_cut_off(two, channel, 2))  # type: ignore[misc]
        # and their node dies
        one.kill()
        # Then the other goes on with what was recorded
        wait_until(lambda: get(two, recorded, 1).status == 200)
        assert [get(two, recorded, seq).body for seq in (0, 1)] == [b"zero", b"live"]
        assert post(two, recorded, 3, b"three").status == 200
        assert get(two, plain, 0).status == 404
        assert delete(two, recorded).status == 200
        assert get(two, recorded, 3).body == b"three"


def test_who_waits_at_another_node_hears_that_the_owner_stands_still(nats_alone: NatsCluster, tmp_path: Path) -> None:
    with ExitStack() as stack:
        settings = {"log_prefix": new_prefix(), "log_replicas": 1}
        one, two = start_nodes(stack, tmp_path, nats_alone.url, 2, **settings, **SMALL)
        theirs, own = made(one), made(two)
        with Get(two, theirs, 0) as waiting, Get(two, own, 0) as innocent:
            wait_until(lambda: (readers(one, theirs), readers(two, own)) == (1, 1))
            one.process.send_signal(signal.SIGSTOP)  # its kernel goes on: no connection breaks
            try:
                assert waiting.head() == 503
            finally:
                one.process.send_signal(signal.SIGCONT)
            assert post(two, own, 0, b"mine").status == 200
            assert (innocent.head(), innocent.chunk()) == (200, b"mine")
