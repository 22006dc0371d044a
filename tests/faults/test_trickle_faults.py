"""What can go wrong around a channel, each with a door that gets it wrong: the same check must then fail."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.core.bus import LocalBus
from penstock.core.liveness import Members
from penstock.core.log import Log
from penstock.doors.trickle import Trickle
from penstock.doors.trickle.channel import RECORD_BACKLOG_BYTES, LiveChannel, Recorder, WaitingPublisher
from penstock.doors.trickle.channels import Channels
from penstock.doors.trickle.cluster import ChannelOwners, KnownChannel
from penstock.doors.trickle.forwarding import Forwarder, Forwarding
from penstock.doors.trickle.posting import Posting
from penstock.doors.trickle.reading import SegmentReading
from penstock.doors.trickle.streams import Following
from penstock.engines.memory import MemoryEngine
from penstock.errors import DiskFull, PenstockError
from penstock.testing import wait_until_async
from penstock.values import Appended, Batch, Draft, Head
from penstock.wire.trickle_channel import Segment
from tests.doors.trickle_place import Place, place

RECORDED = "rec?record=true"
STREAM = "/channels/rec/1"
Door = type[Trickle]


def door_with(
    channel: type[LiveChannel] = LiveChannel,
    recorder: type[Recorder] = Recorder,
    owners: type[ChannelOwners] = ChannelOwners,
    **parts: Any,
) -> Door:
    """A door with some of its parts exchanged for worse ones."""
    channels = type("WorseChannels", (Channels,), {"kind": channel, "recording": recorder, "ownership": owners})
    return type("WorseTrickle", (Trickle,), {"kind": channels, **parts})


class SlowLog:
    """A log that stores when it is told to, and fails as often as it is told to."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.held: list[tuple[Batch, asyncio.Future[Appended]]] = []
        self.failures = 0
        self.holding = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        if self.failures and batch.drafts and batch.drafts[0].stream == STREAM:
            self.failures -= 1
            failed: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            failed.set_exception(DiskFull("the disk is full"))
            return failed
        if not self.holding:
            return self._log.append(batch)
        waiting: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.held.append((batch, waiting))
        return waiting

    async def let_go(self) -> None:
        self.holding = False
        for batch, waiting in self.held:
            waiting.set_result(await self._log.append(batch))


# ── acknowledged means stored ──────────────────────────────────────────────────────────────────


class ConfirmingAtOnce(LiveChannel):
    def confirm(self, publisher: WaitingPublisher) -> None:
        publisher.confirmed()


async def nothing_is_acknowledged_before_it_is_stored(tmp_path: Path, door: Door) -> None:
    logs: list[SlowLog] = []

    def slow(log: Log) -> SlowLog:
        logs.append(SlowLog(log))
        return logs[0]

    async with place(tmp_path, log=slow, make=door) as node:
        assert await node.ask("POST", RECORDED) == 200
        logs[0].holding = True
        live = await node.get("rec", 0)
        posting = await node.post("rec", 0, b"bytes", end=True)
        answering = asyncio.create_task(posting.head())
        assert await live.head() == 200  # live bytes do not wait
        assert await live.rest() == b"bytes"
        await wait_until_async(lambda: logs[0].held)
        assert await node.ask("GET", "rec/next") == 200  # an answer sent before this one would be here
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(5)))
        assert not answering.done()
        await logs[0].let_go()
        assert await answering == 200
        assert await node.recorded(STREAM) == [b"bytes"]


@pytest.mark.parametrize(("door", "holds"), [(Trickle, True), (door_with(ConfirmingAtOnce), False)])
async def test_nothing_is_acknowledged_before_it_is_stored(tmp_path: Path, door: Door, holds: bool) -> None:
    await expect(nothing_is_acknowledged_before_it_is_stored(tmp_path, door), holds)


async def expect(check: Any, holds: bool) -> None:
    """The check passes for the door as it is, and fails for one that was sabotaged."""
    if holds:
        await check
        return
    with pytest.raises((AssertionError, asyncio.IncompleteReadError, TimeoutError, BaseExceptionGroup)):
        await check


def patience(door: Door) -> float:
    """For what comes in the end; of a sabotaged door nothing is hoped for."""
    return 20 if door is Trickle else 2


# ── a full disk ────────────────────────────────────────────────────────────────────────────────


class ForgettingWhatFailed(Recorder):
    def _failed(self, error: BaseException) -> None:
        super()._failed(error)
        self._waiting.pop(self.next)
        self.next += 1


async def a_full_disk_loses_nothing_and_confirms_nothing(tmp_path: Path, door: Door) -> None:
    logs: list[SlowLog] = []

    def failing(log: Log) -> SlowLog:
        logs.append(SlowLog(log))
        return logs[0]

    async with place(tmp_path, log=failing, make=door) as node:
        assert await node.ask("POST", RECORDED) == 200
        assert await node.publish("rec", 0, b"zero") == 200
        logs[0].failures = 2
        assert await node.publish("rec", 1, b"one") == 507
        waiting = asyncio.create_task(node.publish("rec", 2, b"two"))
        await node.head_is("rec", 3)

        async def all_there() -> bool:
            node.advance(1)
            return await node.recorded(STREAM) == [b"zero", b"one", b"two"]

        await wait_until_async(all_there, within=patience(door))
        assert await waiting in (200, 507)


@pytest.mark.parametrize(("door", "holds"), [(Trickle, True), (door_with(recorder=ForgettingWhatFailed), False)])
async def test_a_full_disk_loses_nothing_and_confirms_nothing(tmp_path: Path, door: Door, holds: bool) -> None:
    await expect(a_full_disk_loses_nothing_and_confirms_nothing(tmp_path, door), holds)


# ── a slow disk ────────────────────────────────────────────────────────────────────────────────


class NeverFull(Posting):
    full = False  # type: ignore[assignment]


async def publishers_wait_for_a_slow_disk(tmp_path: Path, door: Door) -> None:
    logs: list[SlowLog] = []

    def slow(log: Log) -> SlowLog:
        logs.append(SlowLog(log))
        return logs[0]

    large = bytes(4_000_000)
    async with place(tmp_path, log=slow, make=door) as node:
        assert await node.ask("POST", f"{RECORDED}&segments=8") == 200  # all are begun before the first has ended
        logs[0].holding = True
        postings = []
        for seq in range(8):
            postings.append(await node.post("rec", seq, large, end=True))
            await node.head_is("rec", seq + 1)  # of those that must wait only a first piece is taken
        await wait_until_async(lambda: node.door.channels.relayed >= RECORD_BACKLOG_BYTES)
        for _ in range(20):
            await node.ask("GET", "rec/next")  # the server has time to read on, if it would
        assert node.door.channels.relayed < RECORD_BACKLOG_BYTES + 2 * len(large)
        await logs[0].let_go()
        assert [await posting.head() for posting in postings] == [200] * 8
        channel = node.door.channels.get("rec")
        assert channel is not None
        assert channel.recorder is not None
        assert channel.recorder.next == 8


@pytest.mark.parametrize(("door", "holds"), [(Trickle, True), (door_with(posting=NeverFull), False)])
async def test_publishers_wait_for_a_slow_disk(tmp_path: Path, door: Door, holds: bool) -> None:
    await expect(publishers_wait_for_a_slow_disk(tmp_path, door), holds)


# ── a close that takes its time ────────────────────────────────────────────────────────────────


class OpenWhileClosing(Channels):
    async def find(self, name: str) -> LiveChannel | KnownChannel:
        self._closing, closing = {}, self._closing
        try:
            return await super().find(name)
        finally:
            self._closing |= closing


async def a_channel_that_is_being_closed_is_not_opened_again(tmp_path: Path, door: Door) -> None:
    logs: list[SlowLog] = []

    def slow(log: Log) -> SlowLog:
        logs.append(SlowLog(log))
        return logs[0]

    async with place(tmp_path, log=slow, make=door, autocreate=False) as node:
        assert await node.ask("POST", RECORDED) == 200
        logs[0].holding = True
        await node.post("rec", 0, b"last words", end=True)
        await wait_until_async(lambda: logs[0].held)
        closing = asyncio.create_task(node.ask("DELETE", "rec"))
        await wait_until_async(lambda: node.door.channels.get("rec") is None)
        asking = await node.get("rec", "next")
        creating = asyncio.create_task(node.ask("POST", RECORDED))
        await node.ask("POST", "other")
        await logs[0].let_go()
        assert (await closing, await asking.head(), await creating) == (200, 200, 200)
        assert asking.headers["lp-trickle-latest"] == "1"
        channel = node.door.channels.get("rec")
        assert channel is not None
        assert channel.epoch == 2
        assert await node.recorded(STREAM) == [b"last words"]


@pytest.mark.parametrize(
    ("door", "holds"), [(Trickle, True), (type("Hasty", (Trickle,), {"kind": OpenWhileClosing}), False)]
)
async def test_a_channel_that_is_being_closed_is_not_opened_again(tmp_path: Path, door: Door, holds: bool) -> None:
    await expect(a_channel_that_is_being_closed_is_not_opened_again(tmp_path, door), holds)


# ── a slow reader ──────────────────────────────────────────────────────────────────────────────


class KeepingForSlowReaders(LiveChannel):
    def _make_room(self) -> None:
        """Nobody is ever given up."""

    def _let_go(self, segment: Segment, now: float) -> None:
        del self._segments[segment.seq]


async def a_reader_that_never_reads_costs_a_bounded_amount(tmp_path: Path, door: Door) -> None:
    piece = bytes(1_000_000)
    async with place(tmp_path, make=door, window_bytes=9_000_000) as node:
        assert await node.ask("POST", "ch") == 200
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.setblocking(False)
        await asyncio.get_running_loop().sock_connect(lazy, node.listener.address)
        reader = await node.get("ch", 0, sock=lazy)
        assert await node.publish("ch", 0, piece * 8) == 200
        channel = node.door.channels.get("ch")
        assert channel is not None
        for seq in range(1, 9):
            assert await node.publish("ch", seq, piece) == 200
            assert channel.size <= 9_000_000
        assert channel.slow == 1
        assert await reader.head() == 200
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.rest()


@pytest.mark.parametrize(("door", "holds"), [(Trickle, True), (door_with(KeepingForSlowReaders), False)])
async def test_a_reader_that_never_reads_costs_a_bounded_amount(tmp_path: Path, door: Door, holds: bool) -> None:
    await expect(a_reader_that_never_reads_costs_a_bounded_amount(tmp_path, door), holds)


# ── peers that leave ───────────────────────────────────────────────────────────────────────────


class NeverNoticingReaders(SegmentReading):
    def lost(self) -> None:
        """As the original does."""


class NeverNoticingPublishers(Posting):
    def lost(self) -> None:
        """Neither here …"""

    def end(self, error: PenstockError | None) -> None:
        """… nor there."""


async def whoever_leaves_is_forgotten(tmp_path: Path, door: Door) -> None:
    async with place(tmp_path, make=door) as node:
        assert await node.ask("POST", "ch") == 200
        channel = node.door.channels.get("ch")
        assert channel is not None
        waiting = [await node.get("ch", 0) for _ in range(20)]
        connected = await node.post("ch", 0)
        await wait_until_async(lambda: any(len(s.readers) == 20 and s.writer for s in channel))
        for peer in (*waiting, connected):
            peer.cut()
        await wait_until_async(lambda: not any(s.readers or s.writer for s in channel), within=patience(door))
        assert node.door.channels.readers.taken == 0
        assert await node.publish("ch", 0, b"another one") == 200


@pytest.mark.parametrize(
    ("door", "holds"),
    [
        (Trickle, True),
        (door_with(reading=NeverNoticingReaders), False),
        (door_with(posting=NeverNoticingPublishers), False),
    ],
)
async def test_whoever_leaves_is_forgotten(tmp_path: Path, door: Door, holds: bool) -> None:
    await expect(whoever_leaves_is_forgotten(tmp_path, door), holds)


class ForgettingItsFeed(Following):
    def stop(self) -> None:
        """Whoever has its answer wants no more; but the hub does not hear of it."""


async def an_answered_reader_of_a_stream_leaves_nothing_behind(tmp_path: Path, door: Door) -> None:
    """The entry comes between a look at the stream's head and the beginning of the feed."""
    logs: list[StaleHead] = []

    def stale(log: Log) -> StaleHead:
        logs.append(StaleHead(log))
        return logs[0]

    async with place(tmp_path, log=stale, make=door) as node:
        await node.engine.log.append(Batch((Draft("/orders", b"one"),)))
        logs[0].seen = await node.engine.log.head("/orders")
        second = await node.engine.log.append(Batch((Draft("/orders", b"two"),)))
        await wait_until_async(lambda: node.hub.position >= second.last.id)
        assert await node.read("~/orders", 1) == b"two"
        await wait_until_async(lambda: not node.hub.readers("/orders"), within=patience(door))


class StaleHead:
    """A log that says what a stream's head was a moment ago."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.seen: Head | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def head(self, stream: str) -> Head | None:
        return self.seen or await self._log.head(stream)


class ForgettingStreams(Trickle):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._streams.following = ForgettingItsFeed


@pytest.mark.parametrize(("door", "holds"), [(Trickle, True), (ForgettingStreams, False)])
async def test_an_answered_reader_of_a_stream_leaves_nothing_behind(tmp_path: Path, door: Door, holds: bool) -> None:
    await expect(an_answered_reader_of_a_stream_leaves_nothing_behind(tmp_path, door), holds)


# ── two nodes ──────────────────────────────────────────────────────────────────────────────────


class BelievingInNobody(ChannelOwners):
    async def look(self, name: str) -> KnownChannel:
        async def is_dead(member: str) -> bool:
            return member != self._members.me

        self._members.is_dead = is_dead  # type: ignore[method-assign]
        return await super().look(name)


class Cluster:
    """Two nodes on one engine; the time of their membership is moved by hand."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._now = 1000.0
        self.members = {node: Members(engine.registry, LocalBus(node), lambda: self._now) for node in ("one", "two")}

    async def meet(self, *living: str) -> None:
        """Those who live renew their records, and all look at each other."""
        for node in living:
            await self.members[node].renew()
        for members in self.members.values():
            await members.watch()

    async def pass_time(self, *living: str) -> None:
        """So much that a node that does not renew is dead to the others."""
        for _ in range(8):
            self._now += 1
            await self.meet(*living)


@asynccontextmanager
async def two_nodes(keys: Path, door: Door) -> AsyncIterator[tuple[Place, Place, Cluster]]:
    async with MemoryEngine() as engine:
        cluster = Cluster(engine)
        await cluster.meet("one", "two")
        one, two = cluster.members.values()
        async with (
            place(keys, make=door, engine=engine, members=one, node="one") as first,
            place(keys, make=door, engine=engine, members=two, node="two") as second,
        ):
            yield first, second, cluster


async def a_channel_has_one_owner_and_every_node_knows_it(tmp_path: Path, door: Door) -> None:
    async with two_nodes(tmp_path, door) as (one, two, cluster):
        assert await one.ask("POST", RECORDED) == 200
        assert await one.publish("rec", 0, b"zero") == 200
        assert await two.publish("rec", 1, b"through two") == 200
        assert two.door.channels.get("rec") is None
        waiting = await two.get("rec", 2)
        await wait_until_async(lambda: one.door.channels.readers.taken == 1)
        posting = await two.post("rec", 2, b"live, ")
        assert await waiting.head() == 200
        assert waiting.headers["lp-trickle-seq"] == "2"
        posting.send(b"byte by byte", end=True)
        assert await posting.head() == 200
        assert await waiting.rest() == b"live, byte by byte"
        assert await two.read("rec", 0) == b"zero"
        assert await two.ask("GET", "rec/9") == 470
        assert await two.publish("rec", 0, b"again") == 409

        await cluster.pass_time("two")

        assert await two.read("rec", 1) == b"through two"
        assert await two.publish("rec", 3, b"taken over") == 200
        assert await two.recorded(STREAM) == [b"zero", b"through two", b"live, byte by byte", b"taken over"]
        assert await two.ask("DELETE", "rec") == 200


@pytest.mark.parametrize(("door", "holds"), [(Trickle, True), (door_with(owners=BelievingInNobody), False)])
async def test_a_channel_has_one_owner_and_every_node_knows_it(tmp_path: Path, door: Door, holds: bool) -> None:
    await expect(a_channel_has_one_owner_and_every_node_knows_it(tmp_path, door), holds)


class WaitingForEver(Forwarder):
    """Hears of no node that is gone."""

    def _look_at(self, one: Forwarding) -> None:
        pass


async def an_owner_that_falls_silent_keeps_nobody_waiting(tmp_path: Path, door: Door) -> None:
    async with two_nodes(tmp_path, door) as (one, two, cluster):
        # Given a reader in the middle of a segment, one that waits, and a publisher, all through another node
        assert await one.publish("cam", 0, b"zero") == 200
        posting = await two.post("cam", 1, b"half")
        reading, waiting = await two.get("cam", 1), await two.get("cam", 2)
        assert await reading.head() == 200
        await wait_until_async(lambda: one.door.channels.readers.taken == 1)
        # and others, of a channel of that node
        assert await two.publish("own", 0, b"zero") == 200
        innocent = await two.get("own", 1)
        await wait_until_async(lambda: two.door.channels.readers.taken == 1)
        # When the owner shows no life: its connections stay as they are
        await cluster.pass_time("two")
        # Then nobody takes what came for all there is, or waits
        async with asyncio.timeout(patience(door)):
            assert await waiting.head() == 503
            assert await posting.head() == 503
            with pytest.raises(asyncio.IncompleteReadError):
                await reading.rest()
        assert await two.publish("own", 1, b"one") == 200
        assert await innocent.head() == 200
        assert await innocent.rest() == b"one"
        assert not two.door._forwarder._under_way


@pytest.mark.parametrize(("door", "holds"), [(Trickle, True), (door_with(forwarding=WaitingForEver), False)])
async def test_an_owner_that_falls_silent_keeps_nobody_waiting(tmp_path: Path, door: Door, holds: bool) -> None:
    await expect(an_owner_that_falls_silent_keeps_nobody_waiting(tmp_path, door), holds)


async def test_whoever_is_gone_leaves_no_request_that_is_sent_on(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, Trickle) as (one, two, _):
        assert await one.publish("cam", 0, b"zero") == 200
        assert await two.read("cam", 0) == b"zero"
        waiting = await two.get("cam", 1)
        await wait_until_async(lambda: one.door.channels.readers.taken == 1)
        assert len(two.door._forwarder._under_way) == 1

        waiting.cut()

        await wait_until_async(lambda: not two.door._forwarder._under_way)
        await wait_until_async(lambda: one.door.channels.readers.taken == 0)


class PoliteReading(SegmentReading):
    """Ends a segment that was cut as any other."""

    def moved(self) -> None:
        end, self._segment.end = self._segment.end, self._segment.end and "complete"
        super().moved()
        self._segment.end = end


async def what_was_cut_looks_cut_through_every_node(tmp_path: Path, door: Door) -> None:
    async with two_nodes(tmp_path, door) as (one, two, _):
        assert await one.ask("POST", "ch") == 200
        posting = await two.post("ch", 0, b"half")
        readers = [await node.get("ch", 0) for node in (one, two)]
        for reader in readers:
            assert await reader.head() == 200
            assert await reader.reader.readexactly(9) == b"4\r\nhalf\r\n"
        posting.cut()
        channel = one.door.channels.get("ch")
        assert channel is not None
        await wait_until_async(lambda: not any(segment.writer for segment in channel))
        one.advance(12)
        for reader in readers:
            rest = await asyncio.gather(reader.rest(), return_exceptions=True)
            assert isinstance(rest[0], ConnectionError | asyncio.IncompleteReadError), rest
        for node in (one, two):
            late = await node.get("ch", 0)
            assert (await late.head(), late.headers["lp-trickle-latest"]) == (470, "1")


@pytest.mark.parametrize(("door", "holds"), [(Trickle, True), (door_with(reading=PoliteReading), False)])
async def test_what_was_cut_looks_cut_through_every_node(tmp_path: Path, door: Door, holds: bool) -> None:
    await expect(what_was_cut_looks_cut_through_every_node(tmp_path, door), holds)


class ExpectingNothing(Recorder):
    def _batch(self, segment: Segment) -> Batch:
        return msgspec.structs.replace(super()._batch(segment), expect=None)


async def who_lost_its_channel_cannot_write_into_it(tmp_path: Path, door: Door) -> None:
    """A node that was cut off, and came back before it knew, believes that the channel is still its own."""
    async with two_nodes(tmp_path, door) as (one, two, cluster):
        assert await one.ask("POST", RECORDED) == 200
        assert await one.publish("rec", 0, b"zero") == 200
        await cluster.pass_time("two")
        assert await one.publish("rec", 1, b"while it knows that it may be dead") == 503
        assert await two.publish("rec", 1, b"by two") == 200
        cluster.members["one"].me = "one:again"
        cluster.members["one"]._renewed = float("inf")  # as if it had never doubted
        assert await one.publish("rec", 1, b"by one") == 409
        assert await two.recorded(STREAM) == [b"zero", b"by two"]
        assert one.door.channels.get("rec") is None


@pytest.mark.parametrize(("door", "holds"), [(Trickle, True), (door_with(recorder=ExpectingNothing), False)])
async def test_a_node_that_lost_its_channel_cannot_write_into_it(tmp_path: Path, door: Door, holds: bool) -> None:
    await expect(who_lost_its_channel_cannot_write_into_it(tmp_path, door), holds)
