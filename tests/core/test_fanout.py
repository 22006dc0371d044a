"""Seats: who is written to directly, who is not, and that a seat is never taken with entries on the way to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.core import fanout
from penstock.core.feed import Feed, Taker
from penstock.core.hub import TOGETHER, Hub
from penstock.core.ledger import Recipients
from penstock.engines.memory import MemoryEngine
from penstock.settings import HubSettings
from penstock.values import Entry
from tests.core.test_hub import Reader, publish, settle


class Ids:
    """Entries as the numbers of their ids."""

    def __init__(self) -> None:
        self.told: list[tuple[list[int], Recipients]] = []

    def for_all(self, entries: tuple[Entry, ...]) -> bytes:
        return b"".join([b"%d " % entry.id for entry in entries])

    def sent(self, entries: tuple[Entry, ...], recipients: Recipients) -> None:
        self.told.append(([entry.id for entry in entries], recipients))


class Wire(Reader):
    """A reader that can be seated: its kernel takes *room* bytes at once."""

    def __init__(self, framing: Ids) -> None:
        super().__init__()
        self.framing = framing
        self.room = 1000
        self.directly: list[int] = []
        self.owed = b""

    @property
    def taker(self) -> Taker | None:
        return None if self.full or self.owed else self

    def send(self, data: bytes, /) -> int:
        if not self.room:
            raise BlockingIOError
        self.directly += [int(id) for id in data[: self.room].split()]
        return min(self.room, len(data))

    def owe(self, entries: Sequence[Entry], data: bytes, sent: int) -> None:
        self.owed += data[sent:]

    def count(self, written: int) -> None:
        """Nobody wants to know."""


def start(hub: Hub, framing: Ids, count: int, streams: tuple[str, ...] = ("/a",)) -> tuple[list[Wire], list[Feed]]:
    wires = [Wire(framing) for _ in range(count)]
    return wires, [hub.start_wire(wire, streams) for wire in wires]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_wires_of_a_busy_stream_are_written_to_directly() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, many=3) as hub:
        await publish(engine, "/a")
        wires, feeds = start(hub, framing := Ids(), 3)
        await publish(engine, "/a")

        assert [wire.directly for wire in wires] == [[hub.position]] * 3
        assert [wire.got for wire in wires] == [[]] * 3
        assert [feed.reached for feed in feeds] == [hub.position] * 3
        assert framing.told == [([hub.position], [wire.who for wire in wires])]


async def test_what_comes_for_several_streams_at_once_goes_to_the_readers_of_each_together() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, many=3) as hub:
        await publish(engine, "/a", "/b")
        framing = Ids()
        (of_a, _), (of_b, _) = start(hub, framing, 3, ("/a",)), start(hub, framing, 3, ("/b",))
        [of_both], _ = start(hub, framing, 1, ("/a", "/b"))
        first = hub.position + 1
        await publish(engine, "/b", "/a", "/b")

        assert [wire.directly for wire in of_a] == [[first + 1]] * 3
        assert [wire.directly for wire in of_b] == [[first, first + 2]] * 3
        assert (of_both.ids, of_both.directly) == ([first, first + 1, first + 2], [])


async def test_a_batch_for_very_many_streams_goes_feed_by_feed() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, many=1) as hub:
        names = [f"/{number}" for number in range(TOGETHER + 1)]
        await publish(engine, *names)
        wires = [start(hub, Ids(), 1, (name,))[0][0] for name in names]
        await publish(engine, *names)

        assert [len(wire.got) for wire in wires] == [1] * TOGETHER + [0]
        assert wires[-1].directly == [hub.position]


async def test_few_readers_have_no_roster() -> None:
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        wires, _ = start(hub, Ids(), fanout.MANY - 1)
        await publish(engine, "/a")

        assert [wire.directly for wire in wires] == [[]] * len(wires)
        assert [len(wire.got) for wire in wires] == [1] * len(wires)


async def test_what_is_not_the_same_for_all_goes_feed_by_feed() -> None:
    class Particular(Ids):
        def for_all(self, entries: tuple[Entry, ...]) -> None:  # type: ignore[override]
            return None

    async with MemoryEngine() as engine, Hub(engine.log, many=1) as hub:
        wires, _ = start(hub, framing := Particular(), 3)
        await publish(engine, "/a")

        assert [len(wire.got) for wire in wires] == [1, 1, 1]
        assert framing.told == []


async def test_wires_with_a_check_of_their_own_are_not_seated() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, many=1) as hub:
        checked, curious = Wire(Ids()), Wire(Ids())
        feeds = [
            hub.start_wire(checked, ("/a",), allow=lambda entry: entry.body == b"y"),
            hub.start_wire(curious, ("/a",), meta=True),
        ]
        await publish(engine, "/a")

        assert [feed.seat for feed in feeds] == [-1, -1]
        assert checked.got == []
        assert len(curious.got) == 2


async def test_a_wire_that_takes_a_part_owes_the_rest_and_is_not_told_as_sent() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, many=1) as hub:
        await publish(engine, *["/a"] * 100)  # ids of three digits
        (slow, quick, blocked), feeds = start(hub, framing := Ids(), 3)
        slow.room, blocked.room = 2, 0
        await publish(engine, "/a")
        first = hub.position
        await publish(engine, "/a")

        assert (slow.owed, blocked.owed) == (b"%d " % (first % 10), b"%d " % first)
        assert quick.directly == [first, hub.position]
        assert [feed.position for feed in feeds[::2]] == [hub.position] * 2
        assert slow.ids == blocked.ids == [hub.position]  # a sink keeps what comes after what it owes
        assert [who for ids, told in framing.told for who in told] == [quick.who] * 2


async def test_the_seat_of_who_left_goes_to_nobody_while_a_round_is_on_its_way() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, many=1, at_once=1) as hub:
        wires, feeds = start(hub, Ids(), 4)
        await publish(engine, "/a")
        feeds[3].stop()
        [late], _ = start(hub, Ids(), 1)
        await turns()
        [later], _ = start(hub, Ids(), 1)

        assert (wires[3].directly, late.directly) == ([], [])
        await publish(engine, "/a")
        await turns()
        assert late.directly == later.directly == [hub.position]


class SeatsAtOnce(Hub):
    """The sabotage: who has caught up is seated although a round with what it has may still come by."""

    def seat(self, feed: Feed, taker: Taker) -> None:
        self._seats.takers[feed.seat] = taker


async def catching_up(make_hub: type[Hub]) -> list[int]:
    """What a wire gets that catches up while an entry is on its way to it."""
    settings = HubSettings(tail=2, recent=50)
    async with MemoryEngine() as engine, make_hub(engine.log, settings, many=1, at_once=1) as hub:
        wires, feeds = start(hub, Ids(), 12)
        last, feed = wires[-1], feeds[-1]
        last.full = True
        feed.leave_seat()  # as a tap says that has something to write
        for _ in range(5):
            await publish(engine, "/a")
            await turns()
        assert feed.behind
        await publish(engine, "/a")
        last.full = False
        feed.resume()
        await settle(feed)
        await turns()
        return sorted([*last.ids, *last.directly])


async def test_who_catches_up_while_an_entry_goes_round_gets_it_once() -> None:
    found = await catching_up(Hub)

    assert found == sorted(set(found))
    assert len(found) == 6


async def test_a_hub_that_seats_too_early_is_found() -> None:
    found = await catching_up(SeatsAtOnce)

    assert len(found) == 7


async def test_a_pattern_that_begins_or_ends_changes_who_is_written_to() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, many=1) as hub:
        [exact], _ = start(hub, Ids(), 1)
        await publish(engine, "/a")
        [wild], [feed] = start(hub, Ids(), 1, (">", "/a"))
        await publish(engine, "/a")
        second = hub.position
        feed.change(("/b",))
        await publish(engine, "/a")

        assert wild.directly == [second]
        assert exact.directly[1:] == [second, hub.position]


async def test_there_are_no_more_rosters_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "ROSTERS", 3)
    async with MemoryEngine() as engine, Hub(engine.log, many=1) as hub:
        [wire], _ = start(hub, Ids(), 1, (">",))
        for number in range(10):
            await publish(engine, f"/{number}")
            await publish(engine, f"/{number}")

        assert len(wire.directly) == 20
        assert len(hub._seats._rosters) == 3
