"""What moved in a subscribed stream is announced, whatever crashes between the append and the announcement."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import ManualClock
from penstock.core.log import prepare
from penstock.doors.eventhorizon.activity import Activity
from penstock.doors.eventhorizon.subscriptions import Subscriptions
from penstock.engines.memory import MemoryEngine
from penstock.testing import start_server, wait_until
from penstock.values import Batch, Draft, Kind
from penstock.wire.eventhorizon import Cursor, parse_cursor, subscribed, timestamp
from tests.doors.eventhorizon_client import append, create, lines, subscribe

STREAMS = ("/a", "/b", "/c")
SUBSCRIBERS = ("/_sub/x", "/_sub/y")


class Crash(Exception):
    """The process ends here."""


class Forgetful(Subscriptions):
    """The sabotage: what moved is known in memory only."""

    async def load(self) -> None:
        await super().load()
        self.moved = {}


class Door:
    """What the door does between a start and a crash."""

    def __init__(self, engine: MemoryEngine, kind: type[Subscriptions]) -> None:
        self._engine, self._log = engine, engine.log
        self.subscriptions = kind(engine.log, engine.registry)
        self.activity = Activity(engine.log, self.subscriptions, ManualClock())

    async def change(self, what: str, stream: str, id: str, *, crash: bool) -> None:
        head = await self._log.head(stream)
        assert head is not None
        if (what == "Subscribed") == (id in head.subscribers):
            return
        if what == "Subscribed":
            await self.subscriptions.keep(stream, id)
            if crash:
                raise Crash
        record = await self.subscriptions.kept(stream, id)
        draft = Draft(stream, subscribed(id, timestamp(0)), what, kind=Kind.META)
        await self._log.append(Batch((draft,)))
        if crash:
            raise Crash
        if what == "Unsubscribed" and record is not None:
            await self.subscriptions.drop(record)

    async def tick(self, *, crash: bool) -> None:
        if crash:

            async def fail(upto: int) -> None:
                raise Crash

            self.subscriptions.announced = fail  # type: ignore[method-assign]
        await self.activity.tick()
        if crash:
            raise Crash  # there was nothing to announce


steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "Subscribed", "Subscribed", "Unsubscribed", "tick", "restart"]),
        st.sampled_from(STREAMS),
        st.sampled_from(SUBSCRIBERS),
        st.booleans(),
    ),
    max_size=40,
)
Steps = list[tuple[str, str, str, bool]]


async def missing(kind: type[Subscriptions], plan: Steps) -> list[str]:
    """Streams whose newest position a subscriber was never told, after all steps and one more announcement."""
    async with MemoryEngine(node="n", server="s", clock=ManualClock()) as engine:
        await prepare(engine.log)
        for name in (*STREAMS, *SUBSCRIBERS):
            await engine.log.append(Batch(create=name))
        door = await started(engine, kind)
        for what, stream, id, crash in plan:
            try:
                if what == "append":
                    await engine.log.append(Batch((Draft(stream, b"x"),)))
                elif what == "tick":
                    await door.tick(crash=crash)
                elif what == "restart":
                    raise Crash
                else:
                    await door.change(what, stream, id, crash=crash)
            except Crash:
                door = await started(engine, kind)
        await door.tick(crash=False)
        return [text for id in SUBSCRIBERS for text in await untold(engine, id)]


async def started(engine: MemoryEngine, kind: type[Subscriptions]) -> Door:
    door = Door(engine, kind)
    await door.subscriptions.load()
    return door


async def untold(engine: MemoryEngine, id: str) -> list[str]:
    page = await engine.log.read_cursor(id, 0, 0)
    told: dict[str, Cursor] = {}
    for entry in page.entries:
        if entry.type == "SubscriptionActivity":
            told |= {(cursor := parse_cursor(text)).stream: cursor for text in json.loads(entry.body)["activity"]}
    found = []
    for stream in STREAMS:
        head = await engine.log.head(stream)
        assert head is not None
        here = Cursor(stream, head.chunk, head.offset)
        if id in head.subscribers and not (stream in told and told[stream].same_place(here)):
            found.append(f"{id} {here}")
    return found


@given(steps)
def test_every_subscriber_hears_of_every_stream_whatever_crashes(plan: Steps) -> None:
    assert asyncio.run(missing(Subscriptions, plan)) == []


LOSES = [("Subscribed", "/a", "/_sub/x", False), ("tick", "/a", "/_sub/x", False),
         ("append", "/a", "/_sub/x", False), ("restart", "/a", "/_sub/x", False)]  # fmt: skip


def test_a_door_that_keeps_in_memory_what_moved_is_found_out() -> None:
    assert asyncio.run(missing(Subscriptions, LOSES)) == []
    assert asyncio.run(missing(Forgetful, LOSES)) != []


def test_an_append_just_before_kill_9_is_announced_after_the_restart(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", eventhorizon_activity_interval=600) as server:
        create(server, "/_sub/k", "/k")
        subscribe(server, "/k", "/_sub/k")
        at = append(server, "/k", "x")
        server.kill()
        server.arguments = ("--set=eventhorizon.activity_interval=0.05",)
        server.restart()
        wait_until(lambda: at in str(lines(server, "/_sub/k:0:0")))

        # And once announced it is not announced again by every start. That it was is stored after it is told: what
        # comes to another stream later is told when that is done.
        create(server, "/_sub/later", "/later")
        subscribe(server, "/later", "/_sub/later")
        later = append(server, "/later", "x")
        wait_until(lambda: later in str(lines(server, "/_sub/later:0:0")))
        count = len(lines(server, "/_sub/k:0:0"))
        server.kill()
        server.restart()
        create(server, "/_sub/other", "/other")
        subscribe(server, "/other", "/_sub/other")
        wait_until(lambda: "SubscriptionActivity" in str(lines(server, "/_sub/other:0:0")))
        assert len(lines(server, "/_sub/k:0:0")) == count


def test_subscriptions_outlive_kill_9(tmp_path: Path) -> None:
    names = [f"/many/{number}" for number in range(100)]
    with start_server(tmp_path / "data", eventhorizon_activity_interval=0.1) as server:
        create(server, "/_sub/many", "/many", *names)
        for name in names:
            subscribe(server, name, "/_sub/many")
        server.kill()
        server.restart()
        wanted = {append(server, name, "x") for name in names}

        def told() -> set[str]:
            found = lines(server, "/_sub/many:0:0")
            return {cursor for line in found for cursor in line["MetaPayload"].get("activity", [])}

        wait_until(lambda: wanted <= told())
