"""The message stream on the memory engine behind a real socket, with storage that takes its time.

A write counts when the engine has it, a few turns of the loop after it was asked for. `crash` takes the server away
in the middle of whatever it was doing: writes that had not reached the engine by then never do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from penstock.api.auth import Authenticator, open_keys
from penstock.api.context import Context
from penstock.core.bus import Bus, Receiver
from penstock.core.change_watch import ChangePoller, Changes
from penstock.core.clock import ManualClock
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.core.liveness import Members, SingleMember
from penstock.doors.msgstream import MessageStreamDoor
from penstock.engines.memory import MemoryChanges, MemoryEngine, MemoryMailbox, MemoryRegistry
from penstock.http.listener import Listener
from penstock.http.routing import Router
from penstock.http.timers import Wheel
from penstock.settings import HubSettings, MsgstreamSettings, ServerSettings, Settings
from penstock.values import Item, NewItem, Record

TURNS = 3  # of the loop, until a write is durable


class SlowMailbox(MemoryMailbox):
    """Takes a moment before it has stored something."""

    async def put(
        self,
        recipient: str,
        month: str,
        items: Sequence[NewItem],
        *,
        position: int | None = None,
        expect: int | None = None,
    ) -> list[Item]:
        await _a_moment()
        return await super().put(recipient, month, items, position=position, expect=expect)

    async def confirm(self, recipient: str, month: str, numbers: Sequence[int]) -> list[Item]:
        await _a_moment()
        return await super().confirm(recipient, month, numbers)


class SlowRegistry(MemoryRegistry):
    """Takes a moment before it has stored something."""

    async def put(self, key: str, value: bytes, *, expect: int | None = None, expires_ms: int | None = None) -> Record:
        await _a_moment()
        return await super().put(key, value, expect=expect, expires_ms=expires_ms)


async def _a_moment() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Answer:
    """An answer to a request."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        self.status = int(head.split()[1]) if head else 0  # 0: it was cut

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Place:
    """One node."""

    def __init__(
        self,
        engine: MemoryEngine,
        clock: ManualClock,
        keys: Path,
        make: type[MessageStreamDoor],
        settings: MsgstreamSettings,
        bus: Bus | None = None,
        recent: int = 8192,
        look_seconds: float = 0.0,
        changes: Changes | None = None,
    ) -> None:
        self._look_seconds = look_seconds  # between looks for changes of other nodes; 0: there are none
        self._changes = changes
        self.engine, self.clock, self._keys, self._make, self._settings = engine, clock, keys, make, settings
        self._bus, self._recent = bus, recent
        self._stack = AsyncExitStack()
        self._asking: set[asyncio.StreamWriter] = set()
        self.door: MessageStreamDoor
        self.listener: Listener
        self.ledger: Ledger
        self.change_poller: ChangePoller
        self.members: SingleMember | Members

    async def start(self) -> None:
        engine, enter = self.engine, self._stack.enter_async_context
        hub = await enter(Hub(engine.log, HubSettings(recent=self._recent, tail=4)))
        self.ledger = Ledger(engine.log, self.clock, node=(self._bus or engine.bus).node)
        await self.ledger.open(engine.registry)
        wheel = Wheel(asyncio.get_running_loop())
        changes = (self._changes or MemoryChanges(engine)) if self._look_seconds else None
        self.change_poller = ChangePoller(changes, seconds=self._look_seconds)
        self.members = SingleMember() if self._bus is None else await enter(Members(engine.registry, self._bus))
        context = Context(
            engine.log, engine.mailbox, engine.registry, self._bus or engine.bus, hub, self.ledger,
            Authenticator(open_keys(self._keys), "admin"), self.clock, wheel, 1 << 20, members=self.members,
            change_poller=self.change_poller,
        )  # fmt: skip
        self.door = await enter(self._make(context, Settings(msgstream=self._settings)))
        await enter(self.change_poller)
        settings = ServerSettings(listen="127.0.0.1:0", drain_seconds=0.001)
        self.listener = await enter(Listener(Router(self.door.routes()), settings, clock=self.clock, wheel=wheel))

    async def stop(self) -> None:
        await self._stack.aclose()
        await self.ledger.flush()
        for _ in range(10):  # turns of the loop, for connections that were accepted at the last moment to be cut
            await asyncio.sleep(0)

    async def crash(self) -> None:
        """Lose everything but what is durable, and start again."""
        await self.stop()
        for writer in self._asking:
            writer.transport.abort()  # nobody answers a connection that was still waiting to be accepted
        self._stack = AsyncExitStack()
        await self.start()

    async def ask(self, method: str, path: str, body: Any = None, **params: str) -> Answer:
        """One request on a connection of its own."""
        try:
            reader, writer = await asyncio.open_connection(*self.listener.address)
        except OSError:
            return Answer(b"")
        self._asking.add(writer)
        data = b"" if body is None else json.dumps(body).encode()
        target = path + ("?" + urlencode(params) if params else "")
        writer.write(
            f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer admin\r\n"
            f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        try:
            return Answer(await reader.read())
        except OSError:
            return Answer(b"")
        finally:
            self._asking.discard(writer)
            writer.transport.abort()

    async def login(self, actor: str, **wanted: Any) -> str:
        answer = await self.ask("POST", "/v1/sessions", {"actorId": actor, **wanted})
        key: str = answer.json["sessionKey"]
        return key

    async def emit(self, actor: str, *messages: list[Any]) -> Answer:
        return await self.ask("POST", "/v1/emit", {"actors": [actor], "messages": messages or [["test"]]})

    async def poll(self, key: str, confirm: str = "", transport: str = "shortpolling") -> Answer:
        return await self.ask("GET", "/msgstream", sessionKey=key, transport=transport, confirmIds=confirm)

    def stored(self, actor: str, month: str) -> int:
        """How many items were stored for an actor in a month."""
        return self.engine.mailbox._box(f"msgstream/{actor}", month).next_number - 1

    def url(self, key: str) -> str:
        """The address of a session's WebSocket."""
        host, port = self.listener.address
        return f"ws://{host}:{port}/msgstream?{urlencode({'sessionKey': key})}"


def slow_engine(clock: ManualClock) -> MemoryEngine:
    """A memory engine whose mailbox and registry take their time."""
    engine = MemoryEngine(clock=clock)
    engine.mailbox, engine.registry = SlowMailbox(clock), SlowRegistry(clock)
    return engine


@asynccontextmanager
async def place(
    keys: Path, make: type[MessageStreamDoor] = MessageStreamDoor, *, recent: int = 8192, **settings: Any
) -> AsyncIterator[Place]:
    """A door that is open in the block. *make* may be one that does something wrong."""
    clock = ManualClock()
    async with slow_engine(clock) as engine:
        here = Place(engine, clock, keys, make, replace(MsgstreamSettings(), **settings), recent=recent)
        await here.start()
        try:
            yield here
        finally:
            await here.stop()


class Wires:
    """What joins the nodes of a test."""

    def __init__(self) -> None:
        self.deaf = False
        self.loses_every_other = False
        self._sent = 0
        self.receivers: dict[str, dict[str, list[Receiver]]] = {}

    def lose(self) -> bool:
        """Whether the next message is lost."""
        self._sent += 1
        return self.deaf or (self.loses_every_other and self._sent % 2 == 0)


class NodeBus:
    """A bus of several nodes in one process; some messages may be lost."""

    alone = False

    def __init__(self, node: str, wires: Wires) -> None:
        self.node, self._wires = node, wires
        wires.receivers[node] = {}

    def listen(self, topic: str, receiver: Receiver) -> None:
        self._wires.receivers[self.node].setdefault(topic, []).append(receiver)

    async def send(self, node: str, topic: str, message: bytes) -> bool:
        receivers = self._wires.receivers.get(node, {}).get(topic, [])
        for receiver in receivers if not self._wires.lose() else ():
            receiver(topic, message)
        return bool(receivers)

    async def hint(self, topic: str, message: bytes) -> None:
        for node in self._wires.receivers:
            await self.send(node, topic, message)


@asynccontextmanager
async def two_nodes(
    keys: Path, make: type[MessageStreamDoor] = MessageStreamDoor, look_seconds: float = 0.1
) -> AsyncIterator[tuple[Place, Place, Wires]]:
    clock, wires, settings = ManualClock(), Wires(), MsgstreamSettings()
    async with slow_engine(clock) as engine:
        one, two = (
            Place(engine, clock, keys, make, settings, NodeBus(name, wires), look_seconds=look_seconds)
            for name in ("one", "two")
        )
        await one.start()
        await two.start()
        try:
            yield one, two, wires
        finally:
            await two.stop()
            await one.stop()
