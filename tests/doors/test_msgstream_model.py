"""Random emits, connects, disconnects, confirms and crashes over all three transports, against a model.

The model knows what every session must get: each message that was acknowledged after its login, exactly once, in
packs that are numbered 1, 2, 3 … without a gap, each number with the same contents whenever it comes. What was
confirmed by a poll that got its answer never comes again. A message whose emit was cut off by a crash may be there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from penstock.doors.msgstream import MessageStreamDoor
from penstock.doors.msgstream.session import Session
from penstock.doors.msgstream.sessions import Sessions
from penstock.http.event_loop import run_loop
from penstock.testing import wait_until_async
from penstock.values import Entry, Item, NewItem
from penstock.wire.msgstream_actions import Action, Numbered, SessionRecord
from tests.doors.msgstream_place import Place, place, two_nodes

STREAM = "/followed"
PATIENCE = 5  # seconds for a script, which takes a small part of one
# A crash may come between a request's arrival and its first step.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


class Wrong(AssertionError):
    """The door did not do what the model says."""


@dataclass
class Client:
    """One session, as its client sees it, and what the model knows of it."""

    actor: str
    key: str
    must: list[str] = field(default_factory=list)  # messages it must get, in order of acknowledgement
    may: set[str] = field(default_factory=set)  # those whose emit was cut off
    got: dict[int, str] = field(default_factory=dict)
    certain: set[int] = field(default_factory=set)  # confirmed, and the confirmation was answered
    unconfirmed: set[int] = field(default_factory=set)
    sockets: list[ClientConnection] = field(default_factory=list)

    def take(self, text: str | bytes, certain: set[int]) -> None:
        """A delivery has come; *certain* is what was confirmed for certain before it could begin."""
        packs = {int(id): json.dumps(messages) for id, messages in json.loads(text).items()}
        if list(packs) != sorted(packs):
            raise Wrong(f"not ascending: {list(packs)}")
        for id, messages in packs.items():
            if id == 0:
                raise Wrong(f"{self.actor} was turned away: {messages}")
            if id in certain:
                raise Wrong(f"pack {id} of {self.actor} came again after it was confirmed")
            if self.got.setdefault(id, messages) != messages:
                raise Wrong(f"pack {id} of {self.actor} was {self.got[id]} and is {messages}")
            self.unconfirmed.add(id)

    def check(self) -> None:
        """At the end, when everything was asked for."""
        if sorted(self.got) != list(range(1, len(self.got) + 1)):
            raise Wrong(f"ids of {self.actor} are {sorted(self.got)}")
        told = [json.loads(self.got[id])[0][0] for id in sorted(self.got)]
        if sorted(name for name in told if name not in self.may) != sorted(self.must) or len(set(told)) != len(told):
            raise Wrong(f"{self.actor} must have {self.must}, may have {self.may}, has {told}")


class World:
    """Clients, a backend and the model."""

    def __init__(self, *places: Place) -> None:
        self._places = cycle(places)  # whoever asks something asks the next one
        self._count = 0
        self.clients: dict[str, Client] = {}
        self._backend: list[asyncio.Task[None]] = []
        self._connections: list[asyncio.Task[None]] = []

    async def run(self, steps: list[tuple[Any, ...]]) -> None:
        try:
            for name, *arguments in steps:
                await getattr(self, name)(*arguments)
            await self.settle()
            await self._collect()
            while any(not task.done() for task in self._connections):
                await self._collect()  # a poll ends whatever the session has open, but may overtake it
            await asyncio.gather(*self._connections)
        finally:
            await self._hang_up()
        for client in self.clients.values():
            client.check()

    @property
    def _here(self) -> Place:
        return next(self._places)

    async def settle(self) -> None:
        tasks, self._backend = self._backend, []
        await asyncio.gather(*tasks)

    async def _hang_up(self) -> None:
        tasks = [*self._backend, *self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self.clients.values():
            for socket in client.sockets:
                socket.transport.abort()

    def _name(self) -> str:
        self._count += 1
        return f"m{self._count}"

    # ── the backend ───────────────────────────────────────────────────────────────────────────

    async def login(self, actor: str) -> None:
        if actor not in self.clients:
            await self.settle()  # a broadcast under way could rightly come or not
            self.clients[actor] = Client(actor, await self._here.login(actor, follow=[STREAM]))

    async def emit(self, actor: str) -> None:
        client, name = self.clients.get(actor), self._name()
        if client is None:
            return
        client.may.add(name)
        answer = await self._here.emit(actor, [name])
        if answer.status == 200:
            client.may.discard(name)
            client.must.append(name)

    async def everybody(self, how: str) -> None:
        """A broadcast, or a message into the stream that all follow."""
        name = self._name()
        target: dict[str, Any] = {"broadcast": True} if how == "broadcast" else {"streams": [STREAM]}
        for client in self.clients.values():
            client.may.add(name)
        answer = await self._here.ask("POST", "/v1/emit", {**target, "messages": [[name]]})
        if answer.status == 200:
            for client in self.clients.values():
                client.may.discard(name)
                client.must.append(name)

    async def meanwhile(self, actor: str, how: str, count: int) -> None:
        """Begin something, and go on with the next step while that runs."""
        for _ in range(count):
            work = self.everybody(how) if how != "emit" else self.emit(actor)
            self._backend.append(asyncio.create_task(work))
        await asyncio.sleep(0)

    # ── clients ───────────────────────────────────────────────────────────────────────────────

    async def poll(self, actor: str, transport: str, confirm: bool) -> None:
        """A poll, awaited if it is short; a long one runs on beside what follows."""
        client = self.clients.get(actor)
        if client is not None:
            work = self._poll(client, transport, confirm)
            if transport == "shortpolling":
                await work
            else:
                self._connections.append(asyncio.create_task(work))
                await asyncio.sleep(0)

    async def _poll(self, client: Client, transport: str, confirm: bool) -> None:
        ids, certain = set(client.unconfirmed) if confirm else set(), set(client.certain)
        answer = await self._here.poll(client.key, ",".join(map(str, sorted(ids))), transport)
        if answer.status in (200, 204):
            client.certain |= ids
            client.unconfirmed -= ids
            if answer.status == 200:
                client.take(answer.body, certain | ids)

    async def socket(self, actor: str) -> None:
        """Open a WebSocket and listen."""
        client = self.clients.get(actor)
        if client is not None:
            with suppress(OSError, InvalidHandshake, ConnectionClosed):
                opened = await connect(self._here.url(client.key), ping_interval=None)
                client.sockets.append(opened)
                self._connections.append(asyncio.create_task(self._listen(client, opened)))

    async def _listen(self, client: Client, opened: ClientConnection) -> None:
        certain = set(client.certain)
        with suppress(OSError, ConnectionClosed):
            async for text in opened:
                client.take(text, certain)

    async def confirm(self, actor: str) -> None:
        """Confirm over the newest socket. There is no answer, so it is not certain."""
        client = self.clients.get(actor)
        if client is not None and client.sockets:
            with suppress(OSError, ConnectionClosed):
                await client.sockets[-1].send(",".join(map(str, sorted(client.unconfirmed))))

    async def leave(self, actor: str) -> None:
        """Cut the sockets."""
        client = self.clients.get(actor)
        if client is not None:
            for opened in client.sockets:
                opened.transport.abort()

    async def crash(self) -> None:
        """Take the server away in the middle of everything, and start it again."""
        await self._here.crash()

    async def _collect(self) -> None:
        """Ask for everything that is left, and confirm it. A poll that is displaced gets a 204 as well."""
        for client in self.clients.values():
            in_vain = 0
            while in_vain < 4:
                before = len(client.certain), len(client.got)
                await self._poll(client, "shortpolling", confirm=True)
                same = before == (len(client.certain), len(client.got)) and not client.unconfirmed
                in_vain = in_vain + 1 if same else 0


actors = st.sampled_from(["alice", "alice", "alice", "bob"])
ways = st.sampled_from(["emit", "emit", "broadcast", "stream"])
transports = st.sampled_from(["shortpolling", "shortpolling", "longpolling"])
steps = st.lists(
    st.one_of(
        actors.map(lambda actor: ("login", actor)),
        actors.map(lambda actor: ("emit", actor)),
        st.sampled_from(["broadcast", "stream"]).map(lambda how: ("everybody", how)),
        st.tuples(st.just("meanwhile"), actors, ways, st.integers(1, 4)),
        st.tuples(st.just("poll"), actors, transports, st.booleans()),
        st.tuples(st.just("poll"), actors, transports, st.booleans()),
        actors.map(lambda actor: ("socket", actor)),
        actors.map(lambda actor: ("confirm", actor)),
        actors.map(lambda actor: ("leave", actor)),
        st.just(("crash",)),
    ),
    min_size=8,
    max_size=30,
).map(lambda script: [("login", "alice"), *script])


# On uvloop, as the server: asyncio's own listener leaves connections open that come while it closes (Python 3.11).


async def play(script: list[tuple[Any, ...]], make: type[MessageStreamDoor] = MessageStreamDoor) -> None:
    with TemporaryDirectory() as keys:
        async with place(Path(keys), make, recent=6) as here:
            try:
                async with asyncio.timeout(PATIENCE):
                    await World(here).run(script)
            except TimeoutError:
                raise Wrong("somebody waits without an end") from None


async def play_on_two(script: list[tuple[Any, ...]], make: type[MessageStreamDoor] = MessageStreamDoor) -> None:
    """The same on two nodes that share their data; every other hint from one to the other is lost."""
    with TemporaryDirectory() as keys:
        async with two_nodes(Path(keys), make) as (one, two, wires):
            wires.loses_every_other = True
            try:
                async with asyncio.timeout(PATIENCE):
                    await World(one, two).run(script)
            except TimeoutError:
                raise Wrong("somebody waits without an end") from None


# The server stops while a poll that confirms still looks for its session.
STOPPED_EARLY = [
    ("login", "alice"),
    ("socket", "alice"),
    *[("everybody", "broadcast")] * 2,
    ("leave", "alice"),
    ("crash",),
    ("poll", "alice", "longpolling", True),
    *[("crash",)] * 2,
    ("poll", "alice", "shortpolling", True),
]


@settings(max_examples=50)
@example(STOPPED_EARLY)
@given(steps)
def test_nothing_is_lost_nothing_skipped_and_nothing_confirmed_comes_again(script: list[tuple[Any, ...]]) -> None:
    run_loop(play(script))


@settings(max_examples=25)
@given(steps)
def test_nor_is_it_on_two_nodes(script: list[tuple[Any, ...]]) -> None:
    run_loop(play_on_two(script))


@pytest.mark.long
@settings(max_examples=600)
@given(steps)
def test_the_same_at_length(script: list[tuple[Any, ...]]) -> None:
    run_loop(play(script))


# ── sabotage: the same test finds a door that does one thing wrong ─────────────────────────────


class AnswersTooEarly(Session):
    """Tells a poll that its confirmation holds, and stores it after that."""

    __slots__ = ()

    async def _confirm(self, packs: list[Numbered]) -> list[Action]:
        self.home.tasks.start(self._confirm_later([number for number, _ in packs]))
        return self.machine.confirmed()

    async def _confirm_later(self, numbers: list[int]) -> None:
        await asyncio.sleep(0.01)  # the sabotage itself: a confirmation that is answered before it is stored
        await self.home.context.mailbox.confirm(self.mailbox, self.record.month, numbers)


class ForgetsThePosition(Session):
    """Stores followed entries without saying how far it has read."""

    __slots__ = ()

    async def _store(self, entries: Sequence[Entry], expect: int) -> list[Action]:
        answer = await super()._store(entries, expect)
        box = self.home.context.mailbox._make(self.mailbox, self.record.month)  # type: ignore[attr-defined]
        box.position = min(box.position, expect)
        return answer


class KeepsNothing(Sessions):
    """Acknowledges an emit without storing it."""

    async def put(self, session: Session, new: NewItem) -> Item:
        return Item(session.machine.newest + 1, 0, new.message_id, None, new.body, "", "", "", None)


class CountsAnew(Sessions):
    """Begins to count at 1 after a restart."""

    async def _load(self, actor: str, record: SessionRecord) -> Session | None:
        session = await super()._load(actor, record)
        if session is not None and not session.machine.packs:
            session.record.base = session.machine.newest
        return session


def with_session(kind: type[Session]) -> type[MessageStreamDoor]:
    return type(kind.__name__, (MessageStreamDoor,), {"kind": type("Sessions", (Sessions,), {"kind": kind})})


LOGIN, EMIT, CRASH = ("login", "alice"), ("emit", "alice"), ("crash",)
TAKE, CONFIRM = (("poll", "alice", "shortpolling", confirm) for confirm in (False, True))
SABOTAGED = {
    "confirms before it is durable": (with_session(AnswersTooEarly), [LOGIN, EMIT, TAKE, CONFIRM, CRASH]),
    "forgets the position": (with_session(ForgetsThePosition), [LOGIN, ("everybody", "stream"), TAKE, CRASH, TAKE]),
    "keeps nothing": (
        type("Keeps", (MessageStreamDoor,), {"kind": KeepsNothing}),
        [LOGIN, EMIT],
    ),
    "counts anew": (
        type("Counts", (MessageStreamDoor,), {"kind": CountsAnew}),
        [LOGIN, EMIT, TAKE, CONFIRM, CRASH, EMIT, TAKE],
    ),
}


@pytest.mark.parametrize("name", SABOTAGED)
def test_the_model_finds_a_door_that_is_wrong(name: str) -> None:
    make, script = SABOTAGED[name]
    run_loop(play(script))

    with pytest.raises(Wrong):
        run_loop(play(script, make))


def test_waiting_is_possible_here() -> None:
    """The model's place serves: an emit to a long poll is answered at once, not by the heartbeat."""

    async def try_it() -> None:
        with TemporaryDirectory() as keys:
            async with place(Path(keys)) as here:
                key = await here.login("alice")
                polling = asyncio.create_task(here.poll(key, transport="longpolling"))
                await wait_until_async(lambda: here.door.sessions.connected == 1)
                await here.emit("alice", ["now"])
                assert (await polling).json == {"1": [["now"]]}

    run_loop(try_it())
