"""Trim, expiry and erase: what goes, and what must not change (core/log.py, promise 6)."""

from __future__ import annotations

import pytest

from penstock.core.log import prepare
from penstock.errors import Trimmed
from penstock.values import Batch, Draft, Key, Kind


async def fill(log, stream: str, count: int) -> list[int]:
    return [(await log.append(Batch((Draft(stream, b"%d" % n),)))).last.id for n in range(count)]


# ── trim ───────────────────────────────────────────────────────────────────────────────────────


async def test_trim_drops_what_is_older_and_says_how_much(open_engine):
    async with open_engine() as engine:
        await prepare(engine.log)
        ids = await fill(engine.log, "/s", 10)

        gone = await engine.log.trim(ids[3])

        page = await engine.log.read_after([">"], ids[3])
        assert gone == ids[3]
        assert engine.log.trimmed_upto == ids[3]
        assert [entry.id for entry in page.entries] == ids[4:]
        assert await engine.log.entry(ids[3]) is None
        assert await engine.log.trim(ids[3]) == 0


async def test_reading_below_the_trim_point_says_so(open_engine):
    async with open_engine() as engine:
        ids = await fill(engine.log, "/s", 10)
        offset = (await engine.log.entry(ids[2])).offset
        await engine.log.trim(ids[3])

        for attempt in (
            engine.log.read_after([">"], 0),
            engine.log.read_after(["/s"], ids[3] - 1),
            engine.log.read_index("/s", 3),
            engine.log.read_index("/s", 0, meta=True),
            engine.log.read_cursor("/s", 0, 0),
            engine.log.read_cursor("/s", 0, offset),
        ):
            with pytest.raises(Trimmed):
                await attempt
        kept = await engine.log.read_index("/s", 4)
        cursor = await engine.log.read_cursor("/s", 0, kept.entries[0].offset)
        assert [entry.id for entry in kept.entries] == [entry.id for entry in cursor.entries] == ids[4:]


async def test_trim_never_goes_beyond_what_was_followed(open_engine):
    async with open_engine() as engine:
        ids = await fill(engine.log, "/s", 3)

        await engine.log.trim(10**12)

        assert engine.log.trimmed_upto == ids[-1]
        assert (await engine.log.append(Batch((Draft("/s", b"x"),)))).last.id > ids[-1]


async def test_heads_and_numbering_survive_that_everything_is_trimmed(open_engine):
    async with open_engine() as engine:
        ids = await fill(engine.log, "/s", 5)
        before = await engine.log.head("/s")
        await engine.log.trim(ids[-1])

        assert await engine.log.head("/s") == before
        assert (await engine.log.read_index("/s", 5)).entries == ()
        assert (await engine.log.read_cursor("/s", 0, before.offset)).entries == ()
        answer = await engine.log.append(Batch((Draft("/s", b"next"),)))
        assert (answer.last.index, answer.last.id > ids[-1]) == (5, True)
        assert [entry.body for entry in (await engine.log.read_index("/s", 5)).entries] == [b"next"]


async def test_everything_trimmed_then_a_restart_then_an_append(open_durable):
    async with open_durable() as engine:
        ids = await fill(engine.log, "/s", 5)
        before = await engine.log.head("/s")
        await engine.log.trim(ids[-1])
    async with open_durable() as engine:
        assert engine.log.trimmed_upto == ids[-1] <= engine.log.followed
        assert await engine.log.head("/s") == before
        assert await engine.log.heads("/s") == [before]

        answer = await engine.log.append(Batch((Draft("/s", b"next"),)))

        # Ids may skip numbers, and do where heads are stored among the entries.
        assert (answer.last.index, answer.last.id > ids[-1]) == (5, True)
        assert answer.last.end == before.offset + 6


async def test_a_part_without_its_first_piece_counts_as_trimmed(open_engine):
    async with open_engine() as engine:
        first = await engine.log.append(Batch((Draft("/s", b"1"), Draft("/s", b"part", kind=Kind.PART))))
        await fill(engine.log, "/s", 1)
        await engine.log.trim(first.last.id)

        with pytest.raises(Trimmed):
            await engine.log.read_index("/s", 0)
        assert [entry.index for entry in (await engine.log.read_index("/s", 1)).entries] == [1]


async def test_trimming_leaves_less_to_store(open_engine):
    async with open_engine() as engine:
        for _ in range(30):
            await engine.log.append(Batch((Draft("/s", b"x" * 100_000),)))
        before = await engine.log.stored_bytes()

        await engine.log.trim(engine.log.followed)

        assert before > 3_000_000
        assert await engine.log.stored_bytes() < before / 2


# ── expiry ─────────────────────────────────────────────────────────────────────────────────────


async def append_expiring(engine, clock, seconds: float = 10) -> int:
    draft = Draft("/s", b"secret", type="t", attributes='{"a":"b"}', expires_ms=clock.now_ms() + int(seconds * 1000))
    return (await engine.log.append(Batch((draft,)))).last.id


async def reads(log, id: int, *, meta: bool) -> list:
    """The entry with this id, as every way of reading shows it."""
    pages = [
        await log.read_index("/s", 0, meta=meta),
        await log.read_after([">"], 0, meta=meta),
        await log.read_after(["/s"], 0, meta=meta),
    ]
    if meta:
        pages.append(await log.read_cursor("/s", 0, 0))
    return [next((entry for entry in page.entries if entry.id == id), None) for page in pages]


@pytest.mark.parametrize("swept", [False, True])
async def test_an_expired_entry_is_a_tombstone_from_its_time_on(open_engine, clock, swept):
    async with open_engine() as engine:
        id = await append_expiring(engine, clock)
        await fill(engine.log, "/s", 1)
        clock.advance(9.999)
        assert [entry.body for entry in await reads(engine.log, id, meta=False)] == [b"secret"] * 3
        assert await engine.log.expire() == 0
        clock.advance(0.001)
        if swept:
            assert await engine.log.expire() == 1
            assert await engine.log.expire() == 0

        assert await reads(engine.log, id, meta=False) == [None] * 3
        for entry in [*await reads(engine.log, id, meta=True), await engine.log.entry(id)]:
            assert (entry.kind, entry.index, entry.body) == (Kind.EXPIRED, 0, b"")
            assert (entry.type, entry.attributes) == ("", "")
            assert entry.size == len(b"secret") + 2
        assert (await engine.log.head("/s")).next_index == 2


async def test_expiry_takes_at_most_as_many_as_asked(open_engine, clock):
    async with open_engine() as engine:
        for _ in range(5):
            await append_expiring(engine, clock)
        clock.advance(11)

        assert [await engine.log.expire(limit=3), await engine.log.expire(limit=3), await engine.log.expire()] == [
            3,
            2,
            0,
        ]


async def test_a_page_full_of_expired_entries_is_passed_over(open_engine, clock):
    async with open_engine() as engine:
        for _ in range(7):
            await append_expiring(engine, clock)
        await fill(engine.log, "/s", 1)
        clock.advance(11)

        page = await engine.log.read_index("/s", 0, limit=2)

        assert [entry.index for entry in page.entries] == [7]


# ── erase ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_erased_entry_keeps_its_place(open_engine, clock):
    async with open_engine() as engine:
        ids = await fill(engine.log, "/s", 3)

        assert await engine.log.erase([ids[1], 1, 10**6]) == 1
        assert await engine.log.erase([ids[1]]) == 0

        assert [entry.index for entry in (await engine.log.read_index("/s", 0)).entries] == [0, 2]
        for entry in await reads(engine.log, ids[1], meta=True):
            assert (entry.kind, entry.index, entry.body, entry.size) == (Kind.ERASED, 1, b"", 3)


async def test_the_parts_of_an_erased_entry_go_with_it(open_engine):
    async with open_engine() as engine:
        parts = (Draft("/s", b"more", kind=Kind.PART), Draft("/s", b"more", kind=Kind.PART))
        first = await engine.log.append(Batch((Draft("/s", b"big"), *parts, Draft("/t", b"x"))))
        second = await engine.log.append(Batch((Draft("/s", b"big"), *parts)))

        assert await engine.log.erase([first.first.id]) == 1

        left = (await engine.log.read_after(["/s"], 0)).entries
        assert [entry.body for entry in left] == [b"big", b"more", b"more"]
        assert left[0].id == second.first.id
        whole = (await engine.log.read_index("/s", 0, meta=True)).entries
        assert [entry.kind for entry in whole].count(Kind.ERASED) == 3


# ── restart ────────────────────────────────────────────────────────────────────────────────────


async def test_a_restart_changes_nothing(open_durable, clock):
    key = Key("alice", "/s", "k", b"d")
    async with open_durable() as engine:
        await prepare(engine.log)
        await append_expiring(engine, clock)
        first = await engine.log.append(Batch((Draft("/s", b"1"), Draft("/t/u", b"2")), key=key))
        before = (await engine.log.read_after([">"], 0, meta=True), await engine.log.heads(">"), engine.log.followed)
    async with open_durable() as engine:
        after = (await engine.log.read_after([">"], 0, meta=True), await engine.log.heads(">"), engine.log.followed)
        again = await engine.log.append(Batch((Draft("/s", b"1"), Draft("/t/u", b"2")), key=key))

    assert after == before
    assert (again.repeated, again.last) == (True, first.last)
