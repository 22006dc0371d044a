"""The month's switch with senders at work: whatever the order of steps, no accepted message is lost.

A connection node and an endpoint node share an engine. Every call of theirs takes a random number of turns of
the loop, so that the seed decides what comes between what; there is no socket, and the same seed gives the
same order. In the end the user agent comes back once more: what it has not had by then is lost.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.api.auth import Authenticator, open_keys
from penstock.api.context import Context
from penstock.core.clock import ManualClock
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger, decode
from penstock.core.months import month_of, shifted
from penstock.doors.webpush import WebPush
from penstock.doors.webpush.session import AgentSession
from penstock.engines.memory import MemoryEngine
from penstock.http.timers import Wheel
from penstock.settings import LedgerSettings, Settings
from penstock.wire.webpush import Close, PushMessage
from penstock.wire.webpush_errors import EndpointRefused
from penstock.wire.webpush_session import PushSession
from penstock.wire.webpush_tokens import EndpointSubscription
from tests.doors.sps_place import ManualTime
from tests.doors.webpush_place import SharedBus, Stoppable

CHANNEL = "d9b74644-4f97-46aa-b8fa-9393985cd6cd"
SEEDS = range(120)
SENDERS = 6
TTL = 60 * 86_400  # longer than the days that pass


class Wire:
    """The user agent's end of a connection: acknowledges what comes after some turns of the loop."""

    full = False

    def __init__(self, world: World, session: AgentSession) -> None:
        self.world, self.session, self.open = world, session, True
        self.uaid = ""
        self.greeted = asyncio.Event()

    def put(self, frame: bytes) -> None:
        payload = frame[2:] if frame[1] < 126 else frame[4:]
        self.world.later(self.take(json.loads(payload)))
        self.world.later(self.flushed())

    def ping(self) -> None: ...

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self.open:
            self.open = False
            self.session.lost(code)

    async def flushed(self) -> None:
        self.session.flushed()

    async def take(self, said: dict[str, Any]) -> None:
        if said["messageType"] == "hello":
            self.uaid = said["uaid"]
            self.greeted.set()
        if said["messageType"] != "notification" or not self.open:
            return
        await self.world.turns()
        if self.open:
            self.world.received.add(said["version"])
            self.say(messageType="ack", updates=[{"version": said["version"], "channelID": said["channelID"]}])

    def say(self, **message: Any) -> None:
        self.session.received(json.dumps(message))


class World:
    """Two nodes, one user agent, and a number generator that decides who goes first."""

    def __init__(self, seed: int, engine: MemoryEngine, clock: ManualClock) -> None:
        self.random, self.engine, self.clock = random.Random(seed), engine, clock
        self.received: set[str] = set()
        self.accepted: set[str] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.doors: list[WebPush] = []
        self.ledger: Ledger

    async def turns(self) -> None:
        for _ in range(self.random.choice((0, 0, 1, 2, 3, 5, 8, 13))):
            await asyncio.sleep(0)

    def later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def quiet(self) -> None:
        """Return when nothing is under way."""
        still = 0
        while still < 30:
            busy = self.tasks or any(door.agents._tasks for door in self.doors)
            still = 0 if busy else still + 1
            await asyncio.sleep(0)

    def connect(self, uaid: str) -> Wire:
        session = self.doors[0].new_session("http://push.test")
        wire = Wire(self, session)
        session.opened(wire)  # type: ignore[arg-type]
        wire.say(messageType="hello", uaid=uaid)
        return wire

    async def send(self, uaid: str, delay: int) -> None:
        """One sender's message, on the endpoint node."""
        for _ in range(delay):
            await asyncio.sleep(0)
        agents = self.doors[-1].agents
        id = agents.tokens.message_id(uaid, self.clock.now_ms())
        message = PushMessage(uaid, CHANNEL, id, TTL, self.clock.now_ms() + TTL * 1000, b"x", encoding="aes128gcm")
        try:
            await self.doors[-1].endpoint._route(message)
        except EndpointRefused as refused:
            raise AssertionError(f"refused: {refused}") from refused
        self.accepted.add(id)


async def lost(seed: int, keys: Path, make: type[AgentSession], *, alone: bool = False) -> set[str]:
    """Run a switch of the month; the accepted messages that never arrived."""
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine, Hub(engine.log) as hub:
        world = World(seed, engine, clock)
        by_no_timer = LedgerSettings(flush_ms=10**7)  # always in the same order
        ledger = world.ledger = Ledger(engine.log, clock, node="test", settings=by_no_timer)
        await ledger.open(engine.registry)
        buses: dict[str, SharedBus] = {}
        for name in ("both",) if alone else ("connection", "endpoint"):
            mailbox, registry = Stoppable(engine.mailbox), Stoppable(engine.registry)
            context = Context(
                engine.log, mailbox, registry, engine.bus if alone else SharedBus(name, buses), hub, ledger,
                Authenticator(keys_of(keys), "admin"),
                clock, Wheel(ManualTime()), 1024 * 1024,
            )  # type: ignore[arg-type]  # fmt: skip

            class Door(WebPush):
                session_kind = make

            door = await Door(context, Settings()).__aenter__()
            mailbox.pause = registry.pause = world.turns
            world.doors.append(door)
        try:
            return await switch(world)
        finally:
            await world.quiet()
            for door in world.doors:
                await door.__aexit__(None, None, None)
            await world.quiet()


_KEYS: dict[Path, Any] = {}


def keys_of(folder: Path) -> Any:
    return _KEYS.setdefault(folder, open_keys(folder))


async def switch(world: World) -> set[str]:
    wire = world.connect("")
    await wire.greeted.wait()
    wire.say(messageType="register", channelID=CHANNEL)
    await world.quiet()
    wire.close(Close.GOING_AWAY)
    for _ in range(world.random.randrange(4)):
        await world.send(wire.uaid, 0)
    await to_next_month(world)
    for number in range(SENDERS):
        world.later(world.send(wire.uaid, world.random.randrange(20 * (number + 1))))
    again = world.connect(wire.uaid)
    if world.random.random() < 0.5:  # it breaks in the middle of it
        for _ in range(world.random.randrange(120)):
            await asyncio.sleep(0)
        again.close(Close.GOING_AWAY)
        again = world.connect(wire.uaid)
    await world.quiet()
    again.close(Close.GOING_AWAY)
    await world.quiet()
    last = world.connect(wire.uaid)
    await world.quiet()
    assert last.uaid == wire.uaid
    record = await world.doors[0].agents.router.find(wire.uaid)
    assert record is not None
    assert record.month == month_of(world.clock.now_ms())
    assert len(world.accepted) >= SENDERS
    assert await unaccounted(world) == set()
    return world.accepted - world.received


async def unaccounted(world: World) -> set[tuple[str, int]]:
    """Items that are neither pending nor closed by a record of the ledger."""
    await world.ledger.flush()
    page = await world.engine.log.read_after(("/_ledger",), 0)
    events = [event for entry in page.entries for event in decode(entry.body)[1]]
    closed = {(event.month, event.number) for event in events if event.state in ("acked", "dropped", "expired")}
    given: set[tuple[str, int]] = set()
    for month in await world.engine.mailbox.months():
        for head in await world.engine.mailbox.recipients(month):
            pending = {item.number for item in await world.engine.mailbox.take(head.recipient, month)}
            given |= {(month, number) for number in range(1, head.next_number) if number not in pending}
    return given - closed


async def to_next_month(world: World) -> None:
    month = month_of(world.clock.now_ms())
    while month_of(world.clock.now_ms()) == month:
        world.clock.advance(86_400)
    await world.engine.mailbox.make_month(shifted(month, 2))


class NeverLooksBackMachine(PushSession):
    """The old month is not read again after the switch."""

    reads_previous = False


class NeverLooksBack(AgentSession):
    machine = NeverLooksBackMachine


@pytest.mark.parametrize("alone", [False, True], ids=["two nodes", "alone"])
async def test_no_message_is_lost_when_the_month_switches(tmp_path: Path, alone: bool) -> None:
    assert [seed for seed in SEEDS if await lost(seed, tmp_path, AgentSession, alone=alone)] == []


async def test_without_the_second_read_of_the_old_month_messages_are_lost(tmp_path: Path) -> None:
    assert [seed for seed in SEEDS if await lost(seed, tmp_path, NeverLooksBack)] != []


@pytest.mark.long
async def test_no_message_is_lost_in_many_more_orders(tmp_path: Path) -> None:
    assert [seed for seed in range(1000, 4000) if await lost(seed, tmp_path, AgentSession)] == []


async def test_the_same_seed_gives_the_same_order(tmp_path: Path) -> None:
    runs = [[bool(await lost(seed, tmp_path, NeverLooksBack)) for seed in range(30)] for _ in range(2)]

    assert runs[0] == runs[1]


def test_a_subscription_survives_the_switch_of_keys() -> None:
    from cryptography.fernet import Fernet

    from penstock.wire.webpush_tokens import EndpointTokens

    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    subscription = EndpointSubscription("a" * 32, CHANNEL)
    token = EndpointTokens([old], b"test").endpoint(subscription).rpartition("/")[2]

    assert EndpointTokens([new, old], b"test").subscription("v1", token) == subscription
    with pytest.raises(EndpointRefused):
        EndpointTokens([new], b"test").subscription("v1", token)
