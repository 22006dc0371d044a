"""The registry: compare-and-set, versions, expiry, lists (core/registry.py), and the bus (core/bus.py)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock.core.registry import NEW, each
from penstock.errors import InputInvalid, TooLarge, VersionMismatch
from penstock.limits import RECORD_BYTES, RECORD_KEY_BYTES


async def test_a_record_is_read_back_as_it_was_put(open_engine):
    async with open_engine() as engine:
        record = await engine.registry.put("pushers/7", b"\x00value")

        assert (record.key, record.value, record.expires_ms) == ("pushers/7", b"\x00value", None)
        assert await engine.registry.get("pushers/7") == record
        assert await engine.registry.get("pushers/8") is None


async def test_versions_rise_with_every_change_of_any_record(open_engine):
    async with open_engine() as engine:
        versions = [(await engine.registry.put(key, b"")).version for key in ("a", "b", "a", "c", "a")]

        assert versions == sorted(set(versions))
        assert versions[0] > NEW


async def test_a_version_is_never_used_again_after_a_delete(open_engine):
    async with open_engine() as engine:
        seen = set()
        for _ in range(5):
            seen.add((await engine.registry.put("a", b"", expect=NEW)).version)
            assert await engine.registry.delete("a")

        assert len(seen) == 5


async def test_versions_go_on_after_a_restart(open_durable):
    async with open_durable() as engine:
        first = await engine.registry.put("a", b"1")
        await engine.registry.put("b", b"2")
        await engine.registry.delete("b")
    async with open_durable() as engine:
        assert await engine.registry.get("a") == first
        assert (await engine.registry.put("b", b"3", expect=NEW)).version > first.version + 1


async def test_an_expected_version_must_be_the_real_one(open_engine):
    async with open_engine() as engine:
        first = await engine.registry.put("a", b"1", expect=NEW)
        second = await engine.registry.put("a", b"2", expect=first.version)
        for wrong in (NEW, first.version, second.version + 1):
            with pytest.raises(VersionMismatch) as refused:
                await engine.registry.put("a", b"3", expect=wrong)
            with pytest.raises(VersionMismatch):
                await engine.registry.delete("a", expect=wrong)

        assert refused.value.actual == second.version
        assert (await engine.registry.get("a")).value == b"2"
        assert await engine.registry.delete("a", expect=second.version)


async def test_of_several_writers_with_one_expectation_one_wins(open_engine):
    async with open_engine() as engine:
        attempts = [engine.registry.put("lease", b"%d" % n, expect=NEW) for n in range(8)]

        answers = await asyncio.gather(*attempts, return_exceptions=True)

        winners = [answer for answer in answers if not isinstance(answer, VersionMismatch)]
        assert winners == [await engine.registry.get("lease")]


async def test_deleting_says_whether_there_was_something(open_engine):
    async with open_engine() as engine:
        await engine.registry.put("a", b"")

        assert [await engine.registry.delete("a"), await engine.registry.delete("a")] == [True, False]
        assert not await engine.registry.delete("b", expect=NEW)


async def test_an_expired_record_counts_as_absent(open_engine, clock):
    async with open_engine() as engine:
        record = await engine.registry.put("a", b"1", expires_ms=clock.now_ms() + 1000)
        clock.advance(0.999)
        assert await engine.registry.get("a") == record
        clock.advance(0.001)

        assert await engine.registry.get("a") is None
        assert await engine.registry.list("") == []
        with pytest.raises(VersionMismatch):
            await engine.registry.put("a", b"2", expect=record.version)
        assert (await engine.registry.put("a", b"2", expect=NEW)).version > record.version


async def test_expired_records_are_removed_in_portions(open_engine, clock):
    async with open_engine() as engine:
        for number in range(5):
            await engine.registry.put(f"r/{number}", b"", expires_ms=clock.now_ms() + 1)
        await engine.registry.put("stays", b"")
        assert await engine.registry.expire() == 0
        clock.advance(1)

        assert [
            await engine.registry.expire(limit=3),
            await engine.registry.expire(),
            await engine.registry.expire(),
        ] == [3, 2, 0]
        assert await engine.registry.get("stays")


async def test_deleting_an_expired_record_finds_nothing(open_engine, clock):
    async with open_engine() as engine:
        await engine.registry.put("a", b"", expires_ms=clock.now_ms() + 1)
        clock.advance(1)

        assert not await engine.registry.delete("a")


async def test_records_are_listed_by_prefix_in_order_of_their_bytes(open_engine):
    keys = ["a/1", "a/10", "a/2", "a/\u00e9", "a/\U0010ffff\U0010ffff", "b/1"]
    async with open_engine() as engine:
        for key in reversed(keys):
            await engine.registry.put(key, key.encode())

        listed, after = [], ""
        while page := await engine.registry.list("a/", after=after, limit=2):
            listed += [record.key for record in page]
            after = listed[-1]

        assert listed == keys[:5]
        assert [record.key for record in await engine.registry.list("")] == keys


@pytest.mark.parametrize("key", ["", "x" * (RECORD_KEY_BYTES + 1), "\ud800"])
async def test_a_record_without_a_proper_key_is_refused(open_engine, key):
    async with open_engine() as engine:
        for attempt in (engine.registry.put(key, b""), engine.registry.get(key), engine.registry.delete(key)):
            with pytest.raises(InputInvalid):
                await attempt


async def test_a_record_that_is_too_large_is_refused(open_engine):
    async with open_engine() as engine:
        with pytest.raises(TooLarge):
            await engine.registry.put("a", b"x" * (RECORD_BYTES + 1))
        assert await engine.registry.put("a", b"x" * RECORD_BYTES)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
async def test_each_gives_all_records_however_many_pages_they_are(open_engine, count):
    async with open_engine() as engine:
        keys = [f"a/{number}" for number in range(count)]
        for key in ("a", *keys, "b/0"):
            await engine.registry.put(key, key.encode())

        assert [record.value.decode() async for record in each(engine.registry, "a/", page=2)] == keys
        assert [record.key async for record in each(engine.registry, "a/", after="a/1", page=2)] == keys[2:]


async def test_each_goes_on_where_its_records_are_deleted_meanwhile(open_engine):
    async with open_engine() as engine:
        keys = [f"a/{number}" for number in range(5)]
        for key in keys:
            await engine.registry.put(key, b"")

        seen = []
        async for record in each(engine.registry, "a/", page=2):
            await engine.registry.delete(record.key)
            seen.append(record.key)
        assert seen == keys


async def test_a_message_reaches_the_node_it_names_and_a_hint_reaches_all(open_engine):
    async with open_engine() as engine:
        received: list[tuple[str, bytes]] = []
        engine.bus.listen("wake", lambda topic, message: received.append((topic, message)))

        assert await engine.bus.send(engine.bus.node, "wake", b"one")
        assert not await engine.bus.send("elsewhere", "wake", b"two")
        await engine.bus.hint("wake", b"three")

        assert received == [("wake", b"one"), ("wake", b"three")]


async def test_a_receiver_that_fails_costs_its_message_and_nobody_else_anything(open_engine):
    async with open_engine() as engine:
        bus, received = engine.bus, []
        bus.listen("wake", lambda topic, message: msgspec.json.decode(message))
        bus.listen("wake", lambda topic, message: received.append(message))

        assert await bus.send(bus.node, "wake", b"{")
        await bus.hint("wake", b"}")

        assert await bus.send(bus.node, "wake", b"1")  # nor has what carries them ended
        assert received == [b"{", b"}", b"1"]
        assert bus.dropped == 2
        assert await engine.registry.put("a", b"still here")
