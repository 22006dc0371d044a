"""Who owns a thing, when messages and nodes fail (core/ownership.py). Each check is also run on something broken.

The promises of the primitive on every engine are in `tests/contract/test_ownership.py`.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import penstock
from penstock.core.change_watch import RecordChange
from penstock.core.liveness import RENEW_SECONDS
from penstock.core.ownership import Ownership, Rule
from penstock.core.registry import Registry
from penstock.engines.memory import MemoryEngine
from penstock.errors import EngineGone
from penstock.testing import TooLate, wait_until_async
from penstock.values import Record
from tests.core.owners import PREFIX, Node, Thing, comes_back, dies, nodes, owner
from tests.faulty_bus import Blind, Faults
from tests.late_registry import LateRegistry

KEYS = ("x", "y")
NAMES = ("a", "b", "c")


HANDLED = 5
"""Places in the source that see for themselves that a record was changed, at most."""


def test_few_places_see_for_themselves_that_a_record_was_changed() -> None:
    """All others own it, or go through the helpers of `core/registry.py`."""
    source = Path(penstock.__file__).parent
    places = [
        f"{file.relative_to(source)}: {line.strip()}"
        for file in sorted(source.rglob("*.py"))
        for line in file.read_text().splitlines()
        if re.search(r"(except|suppress)\b.*\bVersionMismatch\b", line)
    ]

    assert 2 <= len(places) <= HANDLED, places


# ── a model: what is owned is a dictionary ────────────────────────────────────────────────────


class Wrong(AssertionError):
    """The nodes did not do what the model says."""


Model = dict[str, tuple[str, int]]  # key → the node's name, and the number of its claim

steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.sampled_from(NAMES), st.sampled_from(KEYS)),
        st.tuples(st.just("release"), st.sampled_from(NAMES), st.sampled_from(KEYS)),
        st.tuples(st.just("write"), st.sampled_from(NAMES), st.sampled_from(KEYS)),
        st.tuples(st.just("away"), st.sampled_from(NAMES), st.just("")),
    ),
    max_size=12,
)


async def play(script: list[tuple[str, str, str]], rule: Rule, faults: Faults, kind: type[Ownership[Thing]]) -> None:
    """Do it step by step; after each one, and a look of every node, all know who owns what."""
    model: Model = {}
    async with MemoryEngine() as engine, nodes(engine, *NAMES, rule=rule, faults=faults, kind=kind) as all_nodes:
        by_name = {node.name: node for node in all_nodes}
        for number, (what, name, key) in enumerate(script, start=1):
            node, has = by_name[name], model.get(key, ("", 0))[0]
            if what == "claim":
                got = await node.claim(key, number)
                _check(got == (rule is Rule.NEWEST or has in ("", name)), f"{name} claims {key} of {has}")
                model |= {key: (name, number)} if got else {}
            elif what == "release":
                _check(await node.owned.release(key) == (has == name), f"{name} releases {key} of {has}")
                if has == name:
                    del model[key]
            elif what == "write":
                done = await node.owned.write(key, Thing("", number))
                _check(done == (has == name), f"{name} writes {key} of {has}")
                model |= {key: (name, number)} if done else {}
            else:
                others = [other for other in all_nodes if other is not node]
                await dies(node, others)
                _check(not any(node.owned.holds(one) for one in KEYS), f"{name} is not fenced")
                await comes_back(node)
                await asyncio.gather(*(other.members.watch() for other in others))
                model = {one: claim for one, claim in model.items() if claim[0] != name}
            await _agree(all_nodes, model)


def _check(fits: bool, what: str) -> None:
    if not fits:
        raise Wrong(what)


async def _agree(all_nodes: list[Node], model: Model) -> None:
    for _ in range(20):  # turns of the loop in which looks and sweeps have their time
        for node in all_nodes:
            await node.look()
        await asyncio.sleep(0)
    for key in KEYS:
        holders = [(node.name, mine.number) for node in all_nodes if (mine := node.owned.mine(key)) is not None]
        _check(holders == ([model[key]] if key in model else []), f"{key}: {holders} hold it, not {model.get(key)}")
        if key in model:
            _check(await owner(all_nodes[0], key) == model[key][0], f"{key} is recorded as another's")


@settings(max_examples=60)
@given(steps, st.sampled_from(Rule), st.booleans())
def test_what_is_owned_is_a_dictionary(script: list[tuple[str, str, str]], rule: Rule, lose: bool) -> None:
    asyncio.run(play(script, rule, Faults(lose=lose, twice=not lose), Ownership))


class NeverLooks(Ownership[Thing]):
    """Does not hear what the poller saw."""

    def _record_changed(self, change: RecordChange) -> None:
        pass


class NeverFences(Ownership[Thing]):
    """Goes on with what it owns, whatever became of its membership."""

    def holds(self, key: str) -> bool:
        return key in self._held


class KeepsItsOldLife(NeverFences):
    """Does not notice that it has another name."""

    def _members_changed(self) -> None:
        pass


class TakesFromAll(Ownership[Thing]):
    """Finds everything free."""

    async def _is_free(self, payload: Thing | None) -> bool:
        return True


class ReleasesOthers(Ownership[Thing]):
    """Deletes the record, whoever has it by now."""

    async def release(self, key: str, leave: Thing | None = None) -> bool:
        self._held.pop(key, None)
        return await self._registry.delete(PREFIX + key)


@pytest.mark.parametrize("kind", [NeverLooks, NeverFences, KeepsItsOldLife, TakesFromAll, ReleasesOthers])
def test_the_model_finds_an_ownership_that_is_wrong(kind: type[Ownership[Thing]]) -> None:
    @settings(max_examples=3000, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    @given(steps, st.sampled_from(Rule))
    def check(script: list[tuple[str, str, str]], rule: Rule) -> None:
        asyncio.run(play(script, rule, Faults(lose=True), kind))

    with pytest.raises(Wrong):
        check()


# ── messages and answers that come late, in another order, twice, or never ────────────────────


class Slow:
    """A registry whose writes wait for their turn: some before they are done, some with their answers."""

    def __init__(self, inner: Registry, chance: random.Random) -> None:
        self._inner, self._chance = inner, chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, key: str, value: bytes, **more: Any) -> Record:
        await self._some_turns()
        record = await self._inner.put(key, value, **more)
        await self._some_turns()
        if self._chance.random() < 0.05:
            raise EngineGone("the answer was lost")
        return record

    async def _some_turns(self) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)


async def check_the_newest_has_it(seed: int, kind: type[Ownership[Thing]], see: Callable[[Any], Any] | None) -> None:
    """Nodes claim and let go all at once under every fault; in the end the record's owner, and nobody else, has it."""
    chance, faults = random.Random(seed), Faults()
    more: dict[str, Any] = {"see": see} if see else {}
    async with MemoryEngine() as engine, nodes(engine, *NAMES, faults=faults, kind=kind, **more) as all_nodes:
        for node in all_nodes:
            node.owned._registry = Slow(engine.registry, chance)

        async def life(node: Node) -> None:
            for number in range(12):
                faults.lose, faults.hold, faults.twice = (chance.random() < 0.3 for _ in range(3))
                key = chance.choice(KEYS)
                try:
                    await (node.owned.release(key) if chance.random() < 0.3 else node.claim(key, number))
                except EngineGone:
                    assert await _tried_again(node, key, number)
                if chance.random() < 0.2:
                    faults.release()

        async def looks(node: Node) -> None:
            while True:
                await node.look()
                await asyncio.sleep(0)

        looking = [asyncio.create_task(looks(node)) for node in all_nodes]
        await asyncio.gather(*(life(node) for node in all_nodes))
        for task in looking:
            task.cancel()
        faults.lose = False
        faults.release()

        async def agreed() -> bool:
            for node in all_nodes:
                await node.look()
            return all([await _holders(all_nodes, key) == await _recorded(all_nodes, key) for key in KEYS])

        await wait_until_async(agreed, within=20 if kind is Ownership and see is None else 0.3)


async def _tried_again(node: Node, key: str, number: int) -> bool:
    while True:
        try:
            return await node.claim(key, number)
        except EngineGone:
            continue


async def _holders(all_nodes: list[Node], key: str) -> list[str]:
    return [node.name for node in all_nodes if node.owned.holds(key)]


async def _recorded(all_nodes: list[Node], key: str) -> list[str]:
    found = await owner(all_nodes[0], key)
    return [found] if found else []


@pytest.mark.parametrize("seed", range(12))
async def test_in_the_end_the_newest_has_it_whatever_happened_to_messages(seed: int) -> None:
    await check_the_newest_has_it(seed, Ownership, None)


class BelievesMessages(Ownership[Thing]):
    """Takes every message for the end of what it has, without a look at the record."""

    def _told(self, topic: str, message: bytes) -> None:
        for key in KEYS:
            if f'"{key}"'.encode() in message and key in self._held:
                self._lose(key, None)


async def check_newest_of_seeds(kind: type[Ownership[Thing]], see: Callable[[Any], Any] | None) -> None:
    for seed in range(12):
        await check_the_newest_has_it(seed, kind, see)


@pytest.mark.parametrize(
    ("kind", "see"),
    [
        (NeverLooks, None),
        (Ownership, lambda engine: Blind()),
        (BelievesMessages, None),
    ],
)
async def test_the_same_check_finds_what_hears_or_looks_wrongly(
    kind: type[Ownership[Thing]], see: Callable[[Any], Any] | None
) -> None:
    with pytest.raises(TooLate):
        await check_newest_of_seeds(kind, see)


async def check_own_change(kind: type[Ownership[Thing]]) -> None:
    """The poller tells of a change of our own before its answer is here."""
    async with MemoryEngine() as engine, nodes(engine, "a", "b", kind=kind) as (a, _):
        await a.claim("x", 1)
        gate = LateRegistry(engine.registry)
        a.owned._registry = gate
        writing = asyncio.create_task(a.owned.write("x", Thing("", 2)))
        await gate.stored.wait()
        for _ in range(5):
            await a.look()
            await asyncio.sleep(0)
        gate.answer.set()

        assert await writing
        assert a.owned.holds("x")
        assert a.lost == []


async def test_its_own_change_is_not_taken_for_anothers() -> None:
    await check_own_change(Ownership)


class DoubtsAtOnce(Ownership[Thing]):
    """Does not wait for the answer of its own change."""

    @contextmanager
    def _change_of(self, key: str) -> Iterator[None]:
        yield


async def test_the_same_check_finds_one_that_does_not_wait() -> None:
    with pytest.raises(AssertionError):
        await check_own_change(DoubtsAtOnce)


async def check_replaced_early(kind: type[Ownership[Thing]], within: float = 20) -> None:
    """Another node claims before this one knows that its own claim has come through."""
    async with MemoryEngine() as engine, nodes(engine, "a", "b", kind=kind) as (a, b):
        gate = LateRegistry(engine.registry)
        a.owned._registry = gate
        claiming = asyncio.create_task(a.claim("x", 1))
        await gate.stored.wait()
        await b.claim("x", 2)
        await wait_until_async(lambda: a.owned._heard)
        await a.look()
        gate.answer.set()

        assert await claiming
        await wait_until_async(lambda: a.lost == [("x", 1, "b")], within)
        assert b.owned.holds("x")


async def test_a_claim_that_was_replaced_before_it_was_answered_is_lost() -> None:
    await check_replaced_early(Ownership)


class ForgetsWhatItHeard(Ownership[Thing]):
    """Passes over what it hears of a record while its own claim is on its way."""

    @contextmanager
    def _change_of(self, key: str) -> Iterator[None]:
        with super()._change_of(key):
            yield
            self._heard.pop(key, None)


async def test_the_same_check_finds_one_that_forgets_what_it_heard() -> None:
    with pytest.raises(TooLate):
        await check_replaced_early(ForgetsWhatItHeard, 0.3)


class SlowToDelete:
    """A registry that deletes when it is told to."""

    def __init__(self, inner: Registry) -> None:
        self._inner, self.stored, self.answer = inner, asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def delete(self, key: str, **more: Any) -> bool:
        self.stored.set()
        await self.answer.wait()
        return await self._inner.delete(key, **more)


async def test_a_release_on_its_way_does_not_take_away_what_was_claimed_again() -> None:
    async with MemoryEngine() as engine, nodes(engine, "a", "b", rule=Rule.FREE) as (a, b):
        await a.claim("x", 1)
        gate = SlowToDelete(engine.registry)
        a.owned._registry = gate
        releasing = asyncio.create_task(a.owned.release("x"))
        await gate.stored.wait()
        assert await a.claim("x", 1)
        gate.answer.set()

        assert not await releasing
        assert a.owned.holds("x")
        assert not await b.claim("x", 2)


class FromTheFormerLeader:
    """A registry that answers from the past for a moment, as a leader that was replaced and does not know it yet."""

    def __init__(self, inner: Registry, past: Record) -> None:
        self._inner, self._past, self.answers = inner, past, 3

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, key: str) -> Record | None:
        self.answers -= 1
        return self._past if self.answers > 0 else await self._inner.get(key)


async def test_an_answer_from_the_past_takes_nothing_from_anybody_and_gives_nothing_to_anybody() -> None:
    async with MemoryEngine() as engine, nodes(engine, "a", "b", rule=Rule.FREE) as (a, b):
        await a.claim("x", 1)
        past = await engine.registry.get(f"{PREFIX}x")
        assert past is not None
        await a.owned.release("x")
        await b.claim("x", 2)
        a.owned._registry = FromTheFormerLeader(engine.registry, past)
        assert not await a.claim("x", 1), "the record says so no more"

        reads = FromTheFormerLeader(engine.registry, past)
        b.owned._registry = reads
        b.owned.tell(b.members.me, "x", 1_000)
        await wait_until_async(lambda: reads.answers <= 0)
        assert b.lost == []
        assert b.owned.holds("x")


async def test_a_loser_that_does_not_listen_is_told_until_it_does_or_dies() -> None:
    async with MemoryEngine() as engine, nodes(engine, "a", "b", see=lambda engine: Blind()) as (a, b):
        network = a.owned._bus._bus._network  # type: ignore[union-attr]
        await a.claim("x", 1)
        await a.claim("y", 1)
        network.cut.add("a")
        await b.claim("x", 2)
        await wait_until_async(lambda: b.owned._untold)
        network.cut.clear()
        await wait_until_async(lambda: a.lost == [("x", 1, "b")])
        assert not b.owned._untold

        network.cut.add("a")
        await b.claim("y", 2)
        await dies(a, [b])
        await wait_until_async(lambda: not b.owned._untold)


# ── nodes that stop and come back ─────────────────────────────────────────────────────────────


async def check_never_two(seed: int, kind: type[Ownership[Thing]]) -> None:
    """Nodes stop, come back and see each other late; at no moment do two hold what only one may have."""
    chance = random.Random(seed)
    async with MemoryEngine() as engine, nodes(engine, *NAMES, rule=Rule.FREE, kind=kind) as all_nodes:
        for _ in range(60):
            awake = [node for node in all_nodes if chance.random() < 0.6]
            for _ in range(chance.randrange(1, 8)):
                passed = chance.choice([0.3, RENEW_SECONDS])
                for node in all_nodes:
                    node.now += passed
                for node in awake:
                    await node.members.renew()
                    if chance.random() < 0.6:
                        await node.members.watch()
                    key = chance.choice(KEYS)
                    await (node.owned.release(key) if chance.random() < 0.2 else node.claim(key))
                    for key in KEYS:
                        assert len(await _holders(all_nodes, key)) <= 1, (seed, key)


@pytest.mark.parametrize("seed", range(8))
async def test_two_nodes_never_hold_what_only_one_may_have(seed: int) -> None:
    await check_never_two(seed, Ownership)


class TrustsWhatItHasSeen(Ownership[Thing]):
    """Takes a node for dead that it has not seen yet."""

    async def _is_free(self, payload: Thing | None) -> bool:
        living = self._members.living()
        return self._members.holds and (payload is None or payload.member not in living or payload.member == living[0])


@pytest.mark.parametrize("kind", [NeverFences, TakesFromAll, TrustsWhatItHasSeen])
async def test_the_same_check_finds_what_does_not_fence(kind: type[Ownership[Thing]]) -> None:
    with pytest.raises(AssertionError):
        await asyncio.gather(*(check_never_two(seed, kind) for seed in range(8)))
