"""What the throughput says of a log and its ledger."""

from __future__ import annotations

from penstock.core.clock import ManualClock
from penstock.core.ledger import Ledger, Recipient
from penstock.core.throughput import WATCHED_MS, Throughput
from penstock.engines.memory import MemoryEngine
from penstock.values import Batch, Draft

people = [Recipient("v1", name) for name in ("alice", "bob", "carol")]


def seen(throughput: Throughput) -> dict[str, float]:
    """How many deliveries took at most so long, where that number grows."""
    buckets = throughput.seconds.cumulative()
    before = [0.0, *(count for _, count in buckets)]
    return {bound: count for (bound, count), less in zip(buckets, before, strict=False) if count != less}


async def test_a_delivery_is_timed_from_its_append_to_its_flush() -> None:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        throughput = Throughput(clock)
        engine.log.follow(throughput.follow)
        ledger = Ledger(engine.log, clock, node="n1", throughput=throughput)
        # Given two who get an entry after 10 ms, and one who gets it half a second later
        id = (await engine.log.append(Batch((Draft("/a", b"x"),)))).last.id
        clock.advance(0.01)
        for who in people[:2]:
            ledger.sent(who, "/a", id, id)
        await ledger.flush()
        clock.advance(0.49)
        ledger.sent(people[2], "/a", id - 1, id + 1)
        ledger.record(people[2], "dropped", "/a", id, id)
        ledger.sent(people[2], "/b", id, id)
        await ledger.flush()
        # Then all three are in the histogram, and what is no delivery of it is not
        assert seen(throughput) == {"0.01": 2, "0.5": 3}
        assert round(throughput.seconds.total, 3) == 0.520
        assert throughput.delivered == 4
        # When it is forgotten, a replay does not count as a late delivery
        clock.advance(WATCHED_MS / 1000)
        await ledger.flush()
        ledger.sent(people[0], "/c", 1, 1)
        await ledger.flush()
        ledger.sent(people[0], "/a", id, id)
        await ledger.flush()
        assert throughput.seconds.cumulative()[-1] == ("+Inf", 3)


async def test_entries_are_counted_and_few_are_noted() -> None:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        throughput = Throughput(clock)
        engine.log.follow(throughput.follow)
        ledger = Ledger(engine.log, clock, node="n1", throughput=throughput)
        ids = [(await engine.log.append(Batch((Draft("/a", b"x"),)))).last.id for _ in range(100)]

        ledger.sent(people[0], "/a", ids[0], ids[-1])
        await ledger.flush()

        assert throughput.appended >= 100
        assert throughput.seconds.cumulative()[-1] == ("+Inf", 1)  # the one that was noted at the beginning


async def test_deliveries_are_counted_by_door_and_a_few_stand_for_many() -> None:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        throughput = Throughput(clock)
        ledger = Ledger(engine.log, clock, node="n1", throughput=throughput)
        crowd = [Recipient("sps" if number % 4 else "v1", str(number)) for number in range(1000)]
        for who in crowd:
            ledger.sent(who, "/a", 7, 7)
        ledger.sent(people[0], "/b", 8, 9)
        ledger.record(people[0], "retried", "/b", 8, 9)
        ledger.record_item(Recipient("webpush", "agent"), "sent", "message", "2026_11", 1)
        ledger.record_item(Recipient("webpush", "agent"), "expired", "message", "2026_11", 1)
        await ledger.flush()

        assert round(sum(throughput.by_door.values())) == 1002
        assert throughput.by_door["webpush"] == 1
        assert 600 < throughput.by_door["sps"] < 900
        assert throughput.states == {"sent": 1002, "retried": 1, "expired": 1}
