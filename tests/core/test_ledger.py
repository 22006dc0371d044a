"""What the ledger writes is what it was told, in numbered batches."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.clock import ManualClock
from penstock.core.ledger import LEDGER_BATCH_RECORDS, STREAM, Header, Ledger, LedgerEvent, Recipient, decode
from penstock.engines.memory import MemoryEngine
from penstock.settings import LedgerSettings
from penstock.values import Entry

people = [Recipient("v1", name) for name in ("alice", "bob", "çelik", 'quo"te')]
intervals = st.tuples(st.sampled_from(["/a", "/b"]), st.integers(1, 50), st.integers(0, 5))
records = st.lists(st.tuples(st.sampled_from(people), intervals), max_size=40)


async def _batches(engine: MemoryEngine) -> list[tuple[Entry, Header, list[LedgerEvent]]]:
    page = await engine.log.read_after((STREAM,), 0)
    return [(entry, *decode(entry.body)) for entry in page.entries]


@settings(max_examples=60, deadline=None)
@given(records)
def test_everything_recorded_is_read_back(told: list[tuple[Recipient, tuple[str, int, int]]]) -> None:
    async def scenario() -> None:
        async with MemoryEngine() as engine:
            ledger = Ledger(engine.log, ManualClock(), node="n1")
            await ledger.open(engine.registry)
            for who, (stream, first, more) in told:
                ledger.sent(who, stream, first, first + more)
            await ledger.flush()

            events = [event for _, _, events in await _batches(engine) for event in events]

            expected = [("sent", who.name, stream, first, first + more) for who, (stream, first, more) in told]
            assert sorted((e.state, e.recipient, e.stream, e.first, e.last) for e in events) == sorted(expected)

    asyncio.run(scenario())


groups = st.sampled_from([people, people[::-1], people[:2], people[2:], [people[0], people[0]]])


@settings(max_examples=60, deadline=None)
@given(st.lists(groups, max_size=8))
def test_one_event_after_the_other_for_the_same_or_other_recipients(rounds: list[list[Recipient]]) -> None:
    async def scenario() -> None:
        async with MemoryEngine() as engine:
            ledger = Ledger(engine.log, ManualClock(), node="n1")
            await ledger.open(engine.registry)
            for id, group in enumerate(rounds, 1):
                for who in group:
                    ledger.sent(who, "/a", id, id)
            await ledger.flush()

            events = [(event.first, event.recipient) for _, _, events in await _batches(engine) for event in events]

            assert events == [(id, who.name) for id, group in enumerate(rounds, 1) for who in group]

    asyncio.run(scenario())


async def test_batches_of_an_epoch_are_numbered_without_a_gap_between_open_and_close() -> None:
    async with MemoryEngine() as engine:
        for _ in range(2):
            ledger = Ledger(engine.log, ManualClock(), node="n1")
            await ledger.open(engine.registry)
            for number in range(3):
                ledger.record(people[0], "acked", "/a", number + 1, number + 1)
                await ledger.flush()
            await ledger.close()

        headers = [header for _, header, _ in await _batches(engine)]

        assert [(h.epoch, h.sequence, h.mark) for h in headers] == [
            (epoch, sequence, {0: "open", 4: "close"}.get(sequence, "")) for epoch in (1, 2) for sequence in range(5)
        ]


async def test_the_attributes_of_a_batch_name_the_ids_it_speaks_of() -> None:
    async with MemoryEngine() as engine:
        ledger = Ledger(engine.log, ManualClock(), node="n1")
        await ledger.open(engine.registry)
        ledger.sent(people[0], "/a", 7, 9)
        ledger.record(people[1], "dropped", "/b", 3, 3, reason="token expired")
        await ledger.flush()

        entry, _, events = (await _batches(engine))[-1]

        assert '"min":"3"' in entry.attributes
        assert '"max":"9"' in entry.attributes
        assert events[1].reason == "token expired"


async def test_a_huge_fan_out_is_cut_into_batches_that_fit_into_entries() -> None:
    many = [Recipient("sps", f"user-{n:06d}-" + "x" * 200) for n in range(9_000)]
    async with MemoryEngine() as engine:
        ledger = Ledger(engine.log, ManualClock(), node="n1")
        await ledger.open(engine.registry)
        for who in many:
            ledger.sent(who, "/a", 1, 1)
        await ledger.flush()

        events = [event for _, _, events in await _batches(engine) for event in events]

        assert [event.recipient for event in events] == [who.name for who in many]


async def test_a_steady_fan_out_makes_batches_before_their_time() -> None:
    async with MemoryEngine() as engine:
        ledger = Ledger(engine.log, ManualClock(), node="n1")
        await ledger.open(engine.registry)
        wires = [Recipient("v1", f"wire-{number}") for number in range(100)]
        for event in range(100):
            for who in wires:
                ledger.sent(who, "/a", event + 1, event + 1)
        await ledger.flush()

        sizes = [len(events) for _, _, events in await _batches(engine) if events]

        assert sum(sizes) == 10_000
        assert max(sizes) < LEDGER_BATCH_RECORDS + len(wires)


async def test_items_are_recorded_with_their_number() -> None:
    async with MemoryEngine() as engine:
        ledger = Ledger(engine.log, ManualClock(), node="n1")
        await ledger.open(engine.registry)
        ledger.record_item(people[2], "acked", "message-1", "2026_11", 4, expires_ms=99)
        await ledger.flush()

        (event,) = (await _batches(engine))[-1][2]

        assert (event.recipient, event.key, event.month, event.number, event.expires_ms) == (
            "çelik", "message-1", "2026_11", 4, 99,
        )  # fmt: skip


async def test_many_items_at_once_are_cut_into_batches_that_fit_into_entries() -> None:
    who, key = Recipient("webpush", "u" * 256), "k" * 256
    async with MemoryEngine() as engine:
        ledger = Ledger(engine.log, ManualClock(), node="n1")
        await ledger.open(engine.registry)
        for number in range(5_000):
            ledger.record_item(who, "acked", key, "2026_11", number, reason="r" * 100)
        await ledger.flush()

        events = [event for _, _, events in await _batches(engine) for event in events]

        assert [event.number for event in events] == list(range(5_000))


async def test_a_ledger_that_is_switched_off_writes_nothing() -> None:
    async with MemoryEngine() as engine:
        ledger = Ledger(engine.log, ManualClock(), node="n1", settings=LedgerSettings(enabled=False))
        await ledger.open(engine.registry)
        ledger.sent(people[0], "/a", 1, 1)
        await ledger.close()

        assert await _batches(engine) == []
