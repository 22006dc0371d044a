"""Random comings, goings, joins, leaves and publishes against a model: nothing lost, nothing twice, in order.

The model knows what was published, in order of id, and which topics each wire had at each of them. A wire
that went on after id N must have got exactly the matching events after N, in order; one that was cut, a
beginning of them. Publishes run while wires open and break: that is where the seam is.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.doors.sps import Sps
from penstock.doors.sps.wire import DeviceWire
from penstock.doors.sps.wires import Wires
from penstock.testing import TooLate, wait_until_async
from penstock.values import Entry
from tests.doors.sps_place import Place, place


class Wrong(AssertionError):
    """The door did not do what the model says."""


@dataclass
class Event:
    """Something published."""

    id: int
    target: str  # user, room or all
    params: dict[str, str]

    def is_for(self, uid: str, hid: str, rooms: frozenset[str]) -> bool:
        if self.target == "user":
            return self.params["uid"] == uid and self.params.get("hid", hid) == hid
        return self.target == "all" or not rooms.isdisjoint(self.params["tid"].split(","))


@dataclass
class Session:
    """One wire, as its client sees it, and what the model knows of it."""

    uid: str
    hid: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    after: int
    rooms: list[tuple[int, frozenset[str]]]  # from which id on it had which
    got: list[int] = field(default_factory=list)
    ended: bool = False
    whole: bool = True  # it was not cut

    async def read(self) -> None:
        """Take everything that comes, until the wire ends."""
        while line := await self.reader.readline():
            event = json.loads(line)
            if "id" in event:
                self.got.append(event["id"])
        self.ended = True

    def topics_at(self, id: int) -> frozenset[str]:
        return [rooms for since, rooms in self.rooms if since < id][-1]

    def expected(self, events: list[Event]) -> list[int]:
        return [e.id for e in events if e.id > self.after and e.is_for(self.uid, self.hid, self.topics_at(e.id))]


class World:
    """Clients, publishers and the model."""

    def __init__(self, here: Place, patience: float) -> None:
        self._here, self._patience = here, patience
        self.events: list[Event] = []
        self.sessions: list[Session] = []
        self._live: dict[tuple[str, str], Session] = {}
        self._seen: dict[tuple[str, str], int] = {}  # the id with which a device comes back
        self._readers = asyncio.TaskGroup()
        self._publishing: list[asyncio.Task[None]] = []

    async def run(self, steps: list[tuple[Any, ...]]) -> None:
        async with self._readers:
            for name, *arguments in steps:
                await getattr(self, name)(*arguments)
            await self.settle()
            await self.publish("all", {})
            with suppress(TooLate):  # the model says it better
                await wait_until_async(
                    lambda: all(s.ended or s.got[-1:] == [self.last] for s in self.sessions), self._patience
                )
            await self._here.hang_up()

    @property
    def last(self) -> int:
        return max((event.id for event in self.events), default=0)

    async def settle(self) -> None:
        for task in self._publishing:
            await task
        self._publishing = []

    async def ask(self, method: str, target: str, params: dict[str, str], body: bytes = b"") -> Any:
        query = "&".join(f"{name}={value}" for name, value in params.items())
        reader, writer = await self._here.connect()
        head = (
            f"{method} {target}?{query} HTTP/1.0\r\nAuthorization: Bearer admin\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.read()
        assert b" 200 " in answer[:20], answer
        return json.loads(answer.partition(b"\r\n\r\n")[2])

    async def publish(self, target: str, params: dict[str, str]) -> None:
        answer = await self.ask("POST", f"/notify_to_{target}", params, b"x")
        self.events.append(Event(answer["id"], target, params))

    async def publish_meanwhile(self, target: str, params: dict[str, str], count: int) -> None:
        """Begin to publish, and go on with the next step while that runs."""
        self._publishing += [asyncio.create_task(self.publish(target, params)) for _ in range(count)]
        await asyncio.sleep(0)

    async def subscribe(self, uid: str, hid: str, rooms: frozenset[str], resume: bool) -> None:
        key = (uid, hid)
        query = f"uid={uid}&hid={hid}&tid={','.join(rooms)}"
        if resume and key in self._seen:
            query += f"&o={self._position(key)}"
        after = self._position(key) if resume and key in self._seen else None
        reader, writer = await self._here.subscribe(query)
        opened = json.loads(await reader.readline())
        session = Session(uid, hid, reader, writer, opened["newest"] if after is None else after, [(-1, rooms)])
        self.sessions.append(session)
        if before := self._live.get(key):
            before.whole = False
        self._live[key] = session
        self._seen[key] = session.after
        self._readers.create_task(session.read())

    def _position(self, key: tuple[str, str]) -> int:
        """What the device has consumed so far."""
        session = self._live.get(key)
        got = session.got[-1:] if session else []
        self._seen[key] = got[0] if got else self._seen[key]
        return self._seen[key]

    async def disconnect(self, uid: str, hid: str) -> None:
        if session := self._live.get((uid, hid)):
            self._position((uid, hid))
            del self._live[uid, hid]
            session.whole = False
            session.writer.transport.abort()
            session.ended = True

    async def change(self, uid: str, hid: str, how: str, rooms: frozenset[str]) -> None:
        session = self._live.get((uid, hid))
        if session is None:
            return
        await self.settle()  # an event published meanwhile could rightly go either way
        has = session.rooms[-1][1]
        now = {"join": has | rooms, "leave": has - rooms, "rooms": rooms}[how]
        method, path = ("PUT", "/rooms") if how == "rooms" else ("POST", f"/{how}")
        await self.ask(method, path, {"uid": uid, "hid": hid, "tid": ",".join(rooms)})
        session.rooms.append((self.last, now))

    def check(self) -> None:
        events = sorted(self.events, key=lambda event: event.id)
        for session in self.sessions:
            expected = session.expected(events)
            if session.got != (expected if session.whole else expected[: len(session.got)]):
                raise Wrong(f"expected {expected}, got {session.got} after {session.after} in {session.rooms}")


some_rooms = st.sampled_from(
    [frozenset[str](), frozenset({"earth"}), frozenset({"mars"}), frozenset({"earth", "mars"})]
)
# Mostly the same device and rooms: what can go wrong needs several steps about one of them.
users, devices = st.sampled_from(["1", "1", "1", "2"]), st.sampled_from(["", "", "tv"])
targets = st.one_of(
    st.tuples(st.just("all"), st.just({})),
    st.tuples(st.just("user"), users.map(lambda uid: {"uid": uid})),
    st.tuples(st.just("user"), users.map(lambda uid: {"uid": uid, "hid": "tv"})),
    st.tuples(st.just("room"), some_rooms.filter(bool).map(lambda rooms: {"tid": ",".join(sorted(rooms))})),
)
steps = st.lists(
    st.one_of(
        targets.map(lambda target: ("publish", *target)),
        st.tuples(targets, st.integers(1, 6)).map(lambda both: ("publish_meanwhile", *both[0], both[1])),
        st.tuples(users, devices, some_rooms, st.sampled_from([True, True, False])).map(lambda s: ("subscribe", *s)),
        st.tuples(st.just("disconnect"), users, devices),
        st.tuples(st.just("change"), users, devices, st.sampled_from(["join", "leave", "rooms"]), some_rooms),
    ),
    min_size=12,
    max_size=40,
)


async def play(script: list[tuple[Any, ...]], make: type[Sps] = Sps) -> None:
    """Run a script on a door whose hub remembers next to nothing, so that wires are often behind."""
    with TemporaryDirectory() as keys:
        async with place(Path(keys), recent=4, tail=2, make=make) as here:
            world = World(here, patience=20 if make is Sps else 2)  # a door that is wrong may never send the last
            await world.run(script)
            world.check()


@settings(max_examples=60)
@given(steps)
def test_nothing_is_lost_nothing_comes_twice_and_order_is_kept(script: list[tuple[Any, ...]]) -> None:
    asyncio.run(play(script))


# ── sabotage: the same test finds a door that does one thing wrong ─────────────────────────────


class TakesAll(DeviceWire):
    """Lets events for other devices and rooms through."""

    def wants(self, entry: Entry) -> bool:
        return True


class TakesOneTooMany(Wires):
    """Goes on at the id that a device names instead of after it."""

    def beginning(self, after: int | None) -> int:
        return super().beginning(None if after is None else max(0, after - 1))


class ForgetsWhatWasMissed(Wires):
    """Is always live."""

    def beginning(self, after: int | None) -> int:
        return super().beginning(None)


class ChangesNothing(DeviceWire):
    """Answers a join or leave, and goes on as before."""

    def change(self, topics: tuple[str, ...], narrow: object) -> None:
        self.topics = topics


class Forgetful(Sps):
    kind = ForgetsWhatWasMissed


class Repeating(Sps):
    kind = TakesOneTooMany


class Leaking(Sps):
    kind = type("LeakingWires", (Wires,), {"kind": TakesAll})


class Unchanging(Sps):
    kind = type("UnchangingWires", (Wires,), {"kind": ChangesNothing})


@pytest.mark.parametrize("make", [Forgetful, Repeating, Leaking, Unchanging])
def test_the_model_finds_a_door_that_is_wrong(make: type[Sps]) -> None:
    @settings(max_examples=500, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    @given(steps)
    def check(script: list[tuple[Any, ...]]) -> None:
        asyncio.run(play(script, make))

    with pytest.raises(Wrong):
        check()
