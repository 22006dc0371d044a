"""Who owns a thing, on every engine (core/ownership.py); and records that several change at once (core/registry.py)."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.liveness import SingleMember
from penstock.core.ownership import ABSENT, Ownership, Rule
from penstock.core.registry import NEW, change, delete_if, made_once, put_if
from penstock.testing import wait_until_async
from tests.contract.conftest import JETSTREAM, opener
from tests.core.owners import FORM, PREFIX, Thing, comes_back, dies, nodes, owner
from tests.faulty_bus import Faults


@pytest.fixture(params=["memory", "local", JETSTREAM])
def open_shared(request, tmp_path, clock):
    """Opens an engine that several nodes may share."""
    return opener(request, tmp_path, clock)


# ── the newest ────────────────────────────────────────────────────────────────────────────────


async def test_who_claims_last_has_it_and_the_one_before_hears(open_engine):
    async with open_engine() as engine, nodes(engine, "a", "b") as (a, b):
        first = await a.owned.claim("x/y", lambda before: Thing("", 1), seen=ABSENT)
        assert first is not None
        assert first.before is None
        assert a.owned.holds("x/y")

        second = await b.owned.claim("x/y", lambda before: Thing("", 2), seen=ABSENT)

        assert second is not None
        assert second.before == Thing(a.members.me, 1)
        assert second.version > first.version
        await wait_until_async(lambda: a.lost == [("x/y", 1, "b")])
        assert (a.owned.holds("x/y"), b.owned.holds("x/y")) == (False, True)
        assert await owner(a, "x/y") == "b"
        assert [key async for key, _ in a.owned.each("x/")] == ["x/y"]


async def test_a_claim_may_refuse_for_what_the_record_says(open_engine):
    async with open_engine() as engine, nodes(engine, "a", "b") as (a, b):
        await a.claim("x", 5)

        assert await b.owned.claim("x", lambda before: None) is None
        older = await b.owned.claim("x", lambda before: None if before and before.number > 3 else Thing("", 3))

        assert older is None
        assert a.owned.holds("x")


async def test_letting_go_removes_ones_own_claim_only(open_engine):
    async with open_engine() as engine, nodes(engine, "a", "b") as (a, b):
        await a.claim("x", 1)
        await b.claim("x", 2)

        assert not await a.owned.release("x")
        assert await owner(a, "x") == "b"
        assert await b.owned.release("x")
        assert not await b.owned.release("x")
        assert await engine.registry.list(PREFIX) == []


async def test_an_owner_changes_its_record_until_it_is_anothers(open_engine):
    async with open_engine() as engine, nodes(engine, "a", "b", faults=Faults(lose=True)) as (a, b):
        await a.claim("x", 1)
        assert await a.owned.write("x", Thing("", 2))
        assert (await b.owned.look("x")).payload == Thing(a.members.me, 2)
        await b.claim("x", 3)

        assert not await a.owned.write("x", Thing("", 4))

        assert a.lost == [("x", 2, "b")]
        assert (await a.owned.look("x")).payload == Thing(b.members.me, 3)


async def test_a_server_that_is_alone_writes_nothing_again_that_stays_as_it_is(open_engine):
    async with open_engine() as engine:
        first, second = (Ownership(engine.registry, SingleMember(), PREFIX, FORM) for _ in range(2))
        made = await first.claim("x", lambda before: Thing("", 1))
        again = await second.claim("x", lambda before: before)  # as after a restart

        assert made is not None
        assert again is not None
        assert again.version == made.version
        assert second.holds("x")
        changed = await second.claim("x", lambda before: Thing("", 2))
        assert changed is not None
        assert changed.version > made.version


async def test_what_is_forgotten_is_not_missed(open_engine):
    async with open_engine() as engine, nodes(engine, "a", "b") as (a, b):
        await a.claim("x", 1)
        a.owned.forget("x")
        assert not a.owned.holds("x")
        assert await owner(b, "x") == "a"

        await b.claim("x", 2)
        assert a.lost == []
        assert await owner(a, "x") == "b"


async def test_what_is_left_behind_belongs_to_nobody(open_engine):
    async with open_engine() as engine, nodes(engine, "a", "b", rule=Rule.FREE) as (a, b):
        await a.claim("x", 1)
        assert await a.owned.release("x", Thing("", 7))

        again = await b.owned.claim("x", lambda before: before)
        assert again is not None
        assert again.before == Thing("", 7)


async def test_a_lost_message_is_made_up_for_by_the_next_look(open_shared):
    async with open_shared() as engine, nodes(engine, "a", "b", faults=Faults(lose=True)) as (a, b):
        await a.claim("x", 1)
        await b.claim("x", 2)
        assert a.owned.holds("x")

        async def looked() -> bool:
            await a.look()
            return a.lost == [("x", 1, "b")]

        await wait_until_async(looked)
        await b.look()
        assert b.owned.holds("x")


async def test_who_changes_a_record_without_owning_it_tells_the_owner(open_engine):
    async with open_engine() as engine, nodes(engine, "a", "b") as (a, b):
        await a.claim("x", 1)
        done = await change(engine.registry, f"{PREFIX}x", lambda found: FORM.encode(Thing("", 9)))
        assert done.record is not None
        b.owned.tell(a.members.me, "x", done.record.version)

        await wait_until_async(lambda: a.lost == [("x", 1, "")])


# ── the free ──────────────────────────────────────────────────────────────────────────────────


async def test_nobody_takes_what_a_living_node_has(open_engine):
    async with open_engine() as engine, nodes(engine, "a", "b", rule=Rule.FREE) as (a, b):
        assert await a.claim("x", 1)
        assert not await b.claim("x", 2)
        assert await a.claim("x", 3)  # one's own is no hindrance
        assert (await b.owned.look("x")).payload == Thing(a.members.me, 3)


async def test_a_dead_nodes_things_are_free_and_it_knows_when_it_comes_back(open_engine):
    async with open_engine() as engine, nodes(engine, "a", "b", rule=Rule.FREE) as (a, b):
        await a.claim("x", 1)
        await a.claim("y", 1)
        await dies(a, [b])

        assert not a.owned.holds("x"), "a node that cannot show its life acts on nothing"
        assert await b.claim("x", 2)
        await comes_back(a)

        assert a.lost == [("x", 1, None), ("y", 1, None)]
        assert not a.owned.holds("y")
        assert not await a.claim("x", 3)
        assert await a.claim("y", 3)
        assert a.owned.holds("y")


async def test_one_that_joined_a_moment_ago_is_not_taken_for_dead(open_engine):
    free = {"rule": Rule.FREE}
    async with open_engine() as engine, nodes(engine, "a", **free) as (a,), nodes(engine, "b", **free) as (b,):
        assert await b.claim("x", 1)
        assert b.members.me not in a.members.living()

        assert not await a.claim("x", 2)
        assert b.owned.holds("x")


async def test_the_first_of_the_living_sweeps_after_the_dead(open_engine):
    async with open_engine() as engine, nodes(engine, "a", "b", "c") as (a, b, c):
        await b.claim("1")
        await b.claim("2")
        await c.claim("3")
        await dies(b, [a, c])

        await wait_until_async(lambda: sorted(a.swept) == ["1", "2"])
        assert c.swept == []
        assert [key async for key, _ in a.owned.each()] == ["3"]


async def test_a_server_that_is_alone_writes_nothing_if_it_need_not(open_engine):
    async with open_engine() as engine:
        owned = Ownership(engine.registry, SingleMember(), PREFIX, FORM, writes_alone=False)
        async with owned:
            claimed = await owned.claim("x", lambda before: Thing("", 1))
            assert claimed is not None
            assert claimed.payload == owned.mine("x") == Thing("local:0", 1)
            assert await owned.write("x", Thing("", 2))
            assert (await owned.look("x")).payload == Thing("local:0", 2)
            assert owned.holds("x")
            assert await engine.registry.list("") == []
            assert await owned.release("x")
            assert not owned.holds("x")


# ── records that several change at once ───────────────────────────────────────────────────────


async def test_no_change_is_lost_among_those_that_come_at_once(open_engine):
    def one_more(found):
        return b"%d" % (int(found.value) + 1 if found else 1)

    async with open_engine() as engine:
        await asyncio.gather(*(change(engine.registry, "n", one_more) for _ in range(8)))

        done = await change(engine.registry, "n", lambda found: None)
        assert done.record is not None
        assert (done.record.value, done.written) == (b"8", False)
        same = await change(engine.registry, "n", lambda found: b"8")
        assert same == done


async def test_what_is_made_once_is_the_same_for_all(open_engine):
    async with open_engine() as engine:
        values = await asyncio.gather(*(made_once(engine.registry, "key", lambda n=n: b"%d" % n) for n in range(8)))

        assert len(set(values)) == 1
        assert await made_once(engine.registry, "key", lambda: b"never") == values[0]


async def test_put_if_and_delete_if_do_nothing_at_another_version(open_engine):
    async with open_engine() as engine:
        first = await put_if(engine.registry, "k", b"1", NEW)
        assert first is not None
        assert await put_if(engine.registry, "k", b"2", NEW) is None
        second = await put_if(engine.registry, "k", b"2", first.version)
        assert second is not None
        assert not await delete_if(engine.registry, "k", first.version)
        assert await delete_if(engine.registry, "k", second.version)
        assert not await delete_if(engine.registry, "k", second.version)
