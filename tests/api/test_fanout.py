"""Wires that are written to together get exactly what each would get alone, and the ledger says the same of both.

One script of joins, leaves, kills, slow readers and publishes is played on real sockets twice: with a hub that seats
wires (`core/fanout.py`), and with one that offers each entry to each feed. The kernel is given so little room that a
large event is never taken at once: then a wire leaves its seat in the middle of an event.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.api.auth import Authenticator, open_keys
from penstock.api.context import Context
from penstock.api.v1.tail import TailApi, TailWire
from penstock.core.clock import ManualClock
from penstock.core.fanout import ABSENT
from penstock.core.feed import Feed, WireSink
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger, Recipients
from penstock.core.matching import matches
from penstock.core.why import Why
from penstock.engines.memory import MemoryEngine
from penstock.http.event_loop import run_loop
from penstock.http.listener import Listener
from penstock.http.routing import Route, Router
from penstock.http.timers import Wheel
from penstock.settings import HubSettings, LedgerSettings, ServerSettings
from penstock.testing import TooLate, wait_until_async
from penstock.values import Batch, Draft, Entry

STREAMS = ("/a", "/b", "/c/d")
WISHES = ("/a", "/a,/b", ">", "/c/*", "/a,/*")
LARGE = 60_000  # bytes: more than the sockets of a test hold
Step = tuple[Any, ...]


class Unequal(AssertionError):
    """A wire did not get what it should have got, or the ledger does not know it."""


class FeedByFeed(Hub):
    """The hub without seats: what all others are compared with."""

    def start_wire(self, sink: WireSink, patterns: tuple[str, ...], **options: Any) -> Feed:
        return self.start(sink, patterns, **options)


@dataclass
class Client:
    """One tail as its reader sees it."""

    name: str
    wanted: str
    sock: socket.socket
    after: int
    data: bytearray = field(default_factory=bytearray)
    slow: bool = False
    killed: bool = False

    def read(self) -> None:
        """Take what is there."""
        if not self.killed and not self.slow:
            with suppress(BlockingIOError):
                while got := self.sock.recv(65536):
                    self.data += got

    @property
    def got(self) -> list[tuple[int, bytes]]:
        """The entries that came whole: ids and bodies. Anything that is no line of JSON fails here."""
        whole, _, _ = bytes(self.data).rpartition(b"\n")
        return [(line["id"], line["data"].encode()) for line in map(json.loads, whole.splitlines())]


class World:
    """A server, its tails, and what was published."""

    def __init__(self, engine: MemoryEngine, hub: Hub, ledger: Ledger, listener: Listener) -> None:
        self.engine, self.hub, self.ledger, self.listener = engine, hub, ledger, listener
        self.clients: list[Client] = []
        self.published = 0

    async def run(self, script: Sequence[Step]) -> dict[str, list[tuple[int, str, int]]]:
        """Play it; then what each who was not killed got: ids, what `why` says of them, from how many records."""
        for name, *arguments in script:
            await getattr(self, name)(*arguments)
        self.give_room(1 << 20)
        for client in self.clients:
            client.slow = False
        await wait_until_async(self.all_have_everything)
        found = {}
        for client in self.clients:
            if not client.killed:
                why = Why(self.engine.log, self.ledger, self.hub)
                told = [await why.entry(id, client.name) for id, _ in client.got]
                found[client.name] = [(answer.entry, answer.verdict, len(answer.events)) for answer in told]
        return found  # type: ignore[return-value]

    def all_have_everything(self) -> bool:
        for client in self.clients:
            client.read()
        return all(client.killed or len(client.got) >= len(self.expected(client)) for client in self.clients)

    def expected(self, client: Client) -> list[tuple[int, bytes]]:
        """What it is to get."""
        later = [e for e in self.engine.log._entries if e.id > client.after and e.index is not None]
        return [(e.id, e.body) for e in later if any(matches(one, e.stream) for one in client.wanted.split(","))]

    async def open(self, wanted: str, back: int | None) -> None:
        """Another tail, from now on or from some ids back."""
        name = f"reader-{len(self.clients)}"
        after = self.hub.position if back is None else max(0, self.hub.position - back)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self.listener.address)
        query = f"streams={wanted}&consumer={name}" + ("" if back is None else f"&after={after}")
        sock.send(f"GET /v1/tail?{query} HTTP/1.0\r\nAuthorization: Bearer admin\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await asyncio.get_running_loop().sock_recv(sock, 1)
        self.clients.append(Client(name, wanted, sock, after))
        self.give_room(4096)

    def give_room(self, size: int) -> None:
        """Let the kernel hold so many bytes for each tail, on either side."""
        for client in self.clients:
            if not client.killed:
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        for connection in self.listener._shared.connections:
            if (sock := connection.sock) is not None:  # type: ignore[attr-defined]
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    async def publish(self, *drafts: tuple[str, int]) -> None:
        """In one batch, sizes given."""
        self.published += 1
        bodies = [(b"%d-" % self.published) * (size // 10) for _, size in drafts]
        pairs = zip(drafts, bodies, strict=True)
        await self.engine.log.append(Batch(tuple(Draft(stream, body) for (stream, _), body in pairs)))

    @property
    def seated(self) -> int:
        """Wires that are written to together."""
        return sum(taker is not ABSENT for taker in self.hub._seats.takers)

    async def slow(self, number: int) -> None:
        if number < len(self.clients):
            self.clients[number].slow = True

    async def read(self, number: int) -> None:
        if number < len(self.clients):
            self.clients[number].slow = False
            self.clients[number].read()

    async def kill(self, number: int) -> None:
        if number < len(self.clients) and not self.clients[number].killed:
            self.clients[number].read()
            self.clients[number].killed = True
            self.clients[number].sock.close()

    async def turn(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)


@asynccontextmanager
async def world(
    keys: Path,
    make_hub: type[Hub] = Hub,
    make_ledger: type[Ledger] = Ledger,
    wire: type[TailWire] = TailWire,
    at_once: int = 2,
    many: int = 3,
) -> AsyncIterator[World]:
    """A server with small blocks. *make_hub*, *make_ledger* and *wire* may be such that do something wrong."""
    options: dict[str, Any] = {"at_once": at_once, "many": many}
    async with MemoryEngine() as engine, make_hub(engine.log, HubSettings(tail=4, recent=8), **options) as hub:
        clock = ManualClock()
        # Its batches come at the end: else ids would depend on how long a script takes.
        ledger = make_ledger(engine.log, clock, node="test", settings=LedgerSettings(flush_ms=1e6))
        await ledger.open(engine.registry)
        wheel = Wheel(asyncio.get_running_loop())
        authenticator = Authenticator(open_keys(keys), "admin")
        context = Context(
            engine.log, engine.mailbox, engine.registry, engine.bus, hub, ledger, authenticator, clock, wheel, 1 << 20
        )
        tails = TailApi(context)
        tails.kind = wire
        table = Router([Route("GET", "/v1/tail", tails, timeout=None, door="v1")])
        async with Listener(table, ServerSettings(listen="127.0.0.1:0", drain_seconds=0.1), wheel=wheel) as listener:
            made = World(engine, hub, ledger, listener)
            try:
                yield made
            finally:
                for client in made.clients:
                    client.sock.close()
        await ledger.close()


def play(script: Sequence[Step], **made_with: Any) -> dict[str, list[tuple[int, str, int]]]:
    """What came of a script, after it was compared with the model."""

    async def run() -> dict[str, list[tuple[int, str, int]]]:
        with TemporaryDirectory() as keys:
            async with asyncio.timeout(30), world(Path(keys), **made_with) as here:
                found = await here.run(script)
                for client in here.clients:
                    got, expected = client.got, here.expected(client)
                    if got != (expected[: len(got)] if client.killed else expected):
                        raise Unequal(f"{client.name} got {[id for id, _ in got]}, not {[id for id, _ in expected]}")
                return found

    return run_loop(run())


numbers = st.integers(0, 9)
drafts = st.tuples(st.sampled_from(STREAMS), st.sampled_from((10, 10, 10, LARGE)))
steps = st.one_of(
    st.tuples(st.just("open"), st.sampled_from(WISHES), st.none() | st.integers(0, 12)),
    st.lists(drafts, min_size=1, max_size=4).map(lambda batch: ("publish", *batch)),
    st.tuples(st.just("publish"), drafts),
    st.tuples(st.just("slow"), numbers),
    st.tuples(st.just("read"), numbers),
    st.tuples(st.just("kill"), numbers),
    st.tuples(st.just("turn"), st.integers(1, 8)),
)
BEGIN: list[Step] = [*[("open", "/a", None)] * 5, ("open", "/a,/b", None), ("open", ">", None)]
settled: list[Step] = [("publish", ("/a", 10)), ("turn", 20)]  # all streams exist, and everybody is seated


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=25))
def test_wires_get_the_same_together_and_alone(script: list[Step]) -> None:
    script = [*BEGIN, *settled, *script]

    assert play(script) == play(script, make_hub=FeedByFeed)


# ── what a wrong one would do ─────────────────────────────────────────────────────────────────────

SLOW_ONE: list[Step] = [
    *BEGIN, *settled,
    ("slow", 2), ("publish", ("/a", LARGE)), ("publish", ("/a", 10)), ("turn", 9), ("read", 2), ("turn", 9),
    ("publish", ("/a", 10)),
]  # fmt: skip


class OwesTooMuch(TailWire):
    """The sabotage: a byte that the kernel has taken is written again."""

    __slots__ = ()

    def owe(self, entries: Sequence[Entry], data: bytes, sent: int) -> None:
        super().owe(entries, data, max(0, sent - 1))


class OwesTooLittle(TailWire):
    """The sabotage: what the kernel did not take is forgotten."""

    __slots__ = ()

    def owe(self, entries: Sequence[Entry], data: bytes, sent: int) -> None:
        super().owe(entries, data, len(data) - 1)


class ForgetsOne(Ledger):
    """The sabotage: the last of a group is missing from what the ledger says of it."""

    def sent_to_all(self, who: Recipients, stream: str, first: int, last: int) -> None:
        super().sent_to_all(Recipients(who[:-1]), stream, first, last)


class ForgetsPositions(Hub):
    """The sabotage: who leaves its seat goes on where it sat down."""

    def vacate(self, seat: int) -> int | None:
        return 0 if super().vacate(seat) is not None else None


def test_a_slow_wire_loses_nothing() -> None:
    assert play(SLOW_ONE) == play(SLOW_ONE, make_hub=FeedByFeed)


class RecordsNothing(Ledger):
    """A ledger that is switched off."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"settings": LedgerSettings(enabled=False)})


@pytest.mark.parametrize("ledger", [Ledger, RecordsNothing])
def test_wires_are_seated_whether_or_not_deliveries_are_recorded(ledger: type[Ledger]) -> None:
    async def run() -> None:
        with TemporaryDirectory() as keys:
            async with asyncio.timeout(30), world(Path(keys), make_ledger=ledger) as here:
                await here.run([*BEGIN, *settled])
                await wait_until_async(lambda: here.seated == len(BEGIN))
                # One that is slow leaves its seat, and comes back to it
                await here.run([("slow", 2), ("publish", ("/a", LARGE))])
                await here.run([("publish", ("/a", 10))])
                await wait_until_async(lambda: here.seated == len(BEGIN))

    run_loop(run())


def test_a_slow_wire_loses_nothing_where_nothing_is_recorded() -> None:
    assert play(SLOW_ONE, make_ledger=RecordsNothing) == play(SLOW_ONE, make_ledger=RecordsNothing, make_hub=FeedByFeed)


@pytest.mark.parametrize("wire", [OwesTooMuch, OwesTooLittle])
def test_the_model_finds_wires_that_leave_with_wrong_bytes(wire: type[TailWire]) -> None:
    with pytest.raises((Unequal, TooLate, ValueError)):
        play(SLOW_ONE, wire=wire)


def test_the_model_finds_a_member_that_is_missing_from_the_ledger() -> None:
    assert play(SLOW_ONE, make_ledger=ForgetsOne) != play(SLOW_ONE, make_hub=FeedByFeed)


def test_the_model_finds_a_hub_that_loses_its_place() -> None:
    @settings(max_examples=300, deadline=None, phases=[Phase.generate], database=None, derandomize=True)
    @given(st.lists(steps, max_size=25))
    def search(script: list[Step]) -> None:
        play([*BEGIN, *settled, *script], make_hub=ForgetsPositions)

    with pytest.raises(Unequal):
        search()
