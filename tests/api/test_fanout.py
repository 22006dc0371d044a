"""Wires that are written to together get exactly what each would get alone, and the ledger says the same of both.

One script of joins, leaves, kills, slow readers and publishes is played on real sockets twice: with a hub that seats
wires (`core/fanout.py`), and with one that offers each entry to each feed. The kernel is given so little room that a
large event is never taken at once: then a wire leaves its seat in the middle of an event. Readers use all framings
that have seats, and decode what they get (`wire_forms.py`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.api.auth import Authenticator, open_keys
from penstock.api.context import Context
from penstock.api.v1.tail import TailApi, TailWire
from penstock.core.clock import ManualClock
from penstock.core.fanout import ABSENT
from penstock.core.feed import Feed, WireSink
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.core.matching import matches
from penstock.core.why import Why
from penstock.doors.sps import Sps
from penstock.doors.sps.wire import DeviceWire
from penstock.engines.memory import MemoryEngine
from penstock.http.event_loop import run_loop
from penstock.http.listener import Listener
from penstock.http.routing import Route, Router
from penstock.http.timers import Wheel
from penstock.settings import HubSettings, LedgerSettings, ServerSettings, Settings, SpsSettings
from penstock.testing import wait_until_async
from penstock.values import Batch, Draft, Entry
from tests.api.wire_forms import FORMS, Got, WireForm
from tests.forgetful_ledger import ForgetsOne

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
    """One wire as its reader sees it."""

    name: str
    wanted: str
    form: WireForm
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
    def got(self) -> Got:
        """The entries that came whole. Anything that breaks the framing fails here."""
        return self.form.read(bytes(self.data))


class World:
    """A server, its wires, and what was published."""

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

    def expected(self, client: Client) -> Got:
        """What it is to get."""
        later = [e for e in self.engine.log._entries if e.id > client.after and e.index is not None]
        return [(e.id, e.body) for e in later if any(matches(one, e.stream) for one in client.wanted.split(","))]

    async def open(self, wanted: str, back: int | None, form: str = "plain") -> None:
        """Another wire, from now on or from some ids back."""
        name = str(1000 + len(self.clients))
        wanted = "/*,/c/*" if wanted == ">" and FORMS[form].door == "sps" else wanted  # a topic names streams
        after = self.hub.position if back is None else max(0, self.hub.position - back)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self.listener.address)
        sock.send(FORMS[form].request(name, wanted, None if back is None else after))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await asyncio.get_running_loop().sock_recv(sock, 1)
        assert head.split()[1] in (b"200", b"101"), head
        self.clients.append(Client(name, wanted, FORMS[form], sock, after))
        self.give_room(4096)

    def give_room(self, size: int) -> None:
        """Let the kernel hold so many bytes for each wire, on either side."""
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

    async def settle(self) -> None:
        """Wait until everybody has everything and is seated, where there are seats."""
        seats = 0 if isinstance(self.hub, FeedByFeed) else len(self.clients)
        await wait_until_async(lambda: self.all_have_everything() and self.seated == seats)

    async def turn(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)


@asynccontextmanager
async def world(
    keys: Path,
    make_hub: type[Hub] = Hub,
    make_ledger: type[Ledger] = Ledger,
    wire: type[TailWire] = TailWire,
    device: type[DeviceWire] = DeviceWire,
    at_once: int = 2,
    many: int = 3,
) -> AsyncIterator[World]:
    """A server with small blocks. *make_hub*, *make_ledger*, *wire* and *device* may do something wrong."""
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
        async with AsyncExitStack() as stack:
            # Nothing but a script's events: no presence
            sps = Sps(context, replace(Settings(), sps=SpsSettings(presence=False)))
            sps.wires.kind = device
            await stack.enter_async_context(sps)
            table = Router([Route("GET", "/v1/tail", tails, timeout=None, door="v1"), *sps.routes()])
            server = ServerSettings(listen="127.0.0.1:0", drain_seconds=0.1)
            made = World(engine, hub, ledger, await stack.enter_async_context(Listener(table, server, wheel=wheel)))
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
    st.tuples(st.just("open"), st.sampled_from(WISHES), st.none() | st.integers(0, 12), st.sampled_from([*FORMS])),
    st.lists(drafts, min_size=1, max_size=4).map(lambda batch: ("publish", *batch)),
    st.tuples(st.just("publish"), drafts),
    st.tuples(st.just("slow"), numbers),
    st.tuples(st.just("read"), numbers),
    st.tuples(st.just("kill"), numbers),
    st.tuples(st.just("turn"), st.integers(1, 8)),
)


def begin(*forms: str) -> list[Step]:
    """Seven wires, in these framings by turns; of the last, two want more than one stream."""
    wishes = ["/a", "/a", "/a", "/a", "/a", "/a,/b", ">"]
    return [("open", wanted, None, form) for wanted, form in zip(wishes, cycle(forms), strict=False)]


settled: list[Step] = [("publish", ("/a", 10)), ("settle",)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=25))
def test_wires_get_the_same_together_and_alone(script: list[Step]) -> None:
    script = [*begin(*FORMS), *settled, *script]

    assert play(script) == play(script, make_hub=FeedByFeed)


# ── what a wrong one would do ─────────────────────────────────────────────────────────────────────


def slow_one(*forms: str) -> list[Step]:
    """One is not read from while a large event comes; all leave their seats in the middle of it.

    Two more come at the end: whoever waits for bytes that never come takes theirs for them, and is found.
    """
    return [
        *begin(*forms), *settled,
        ("slow", 2), ("publish", ("/a", LARGE)), ("publish", ("/a", 10)), ("turn", 9), ("read", 2), ("turn", 9),
        ("publish", ("/a", 10)), ("publish", ("/a", LARGE)), ("publish", ("/a", LARGE)),
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


class DeviceOwesTooMuch(DeviceWire):
    """As `OwesTooMuch`."""

    __slots__ = ()

    def owe(self, entries: Sequence[Entry], data: bytes, sent: int) -> None:
        super().owe(entries, data, max(0, sent - 1))


class DeviceOwesTooLittle(DeviceWire):
    """As `OwesTooLittle`."""

    __slots__ = ()

    def owe(self, entries: Sequence[Entry], data: bytes, sent: int) -> None:
        super().owe(entries, data, len(data) - 1)


class ForgetsPositions(Hub):
    """The sabotage: who leaves its seat goes on where it sat down."""

    def vacate(self, seat: int) -> int | None:
        return 0 if super().vacate(seat) is not None else None


@pytest.mark.parametrize("form", FORMS)
def test_a_slow_wire_loses_nothing(form: str) -> None:
    assert play(slow_one(form)) == play(slow_one(form), make_hub=FeedByFeed)


class RecordsNothing(Ledger):
    """A ledger that is switched off."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"settings": LedgerSettings(enabled=False)})


@pytest.mark.parametrize("ledger", [Ledger, RecordsNothing])
def test_wires_are_seated_whether_or_not_deliveries_are_recorded(ledger: type[Ledger]) -> None:
    async def run() -> None:
        with TemporaryDirectory() as keys:
            async with asyncio.timeout(30), world(Path(keys), make_ledger=ledger) as here:
                await here.run([*begin(*FORMS), *settled])
                await wait_until_async(lambda: here.seated == 7)
                # One that is slow leaves its seat, and comes back to it
                await here.run([("slow", 2), ("publish", ("/a", LARGE))])
                await here.run([("publish", ("/a", 10))])
                await wait_until_async(lambda: here.seated == 7)

    run_loop(run())


def test_a_slow_wire_loses_nothing_where_nothing_is_recorded() -> None:
    script = slow_one(*FORMS)

    assert play(script, make_ledger=RecordsNothing) == play(script, make_ledger=RecordsNothing, make_hub=FeedByFeed)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "wrong", [(OwesTooMuch, DeviceOwesTooMuch), (OwesTooLittle, DeviceOwesTooLittle)], ids=["much", "little"]
)
def test_the_model_finds_wires_that_leave_with_wrong_bytes(
    wrong: tuple[type[TailWire], type[DeviceWire]], form: str
) -> None:
    wire, device = wrong

    with pytest.raises((Unequal, ValueError)):
        play(slow_one(form), wire=wire, device=device)


def test_the_model_finds_a_member_that_is_missing_from_the_ledger() -> None:
    script = slow_one(*FORMS)

    assert play(script, make_ledger=ForgetsOne) != play(script, make_hub=FeedByFeed)


@pytest.mark.parametrize("form", FORMS)
def test_the_model_finds_a_hub_that_loses_its_place(form: str) -> None:
    # Whoever wants several of these streams leaves its seat before the round
    script = [*begin(form), *settled, ("publish", ("/a", 10), ("/b", 10), ("/c/d", 10))]

    with pytest.raises(Unequal):
        play(script, make_hub=ForgetsPositions)
