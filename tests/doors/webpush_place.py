"""Nodes of the door on one memory engine, behind real sockets, in the test's own loop; time is moved by hand.

Each node has its own view of the mailboxes and of the registry, which a test can stop at any call: a node that
is paused between two of its steps is the whole of a race.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from penstock.api.auth import Authenticator, open_keys
from penstock.api.context import Context
from penstock.core.bus import Receiver
from penstock.core.change_watch import ChangePoller, Changes
from penstock.core.clock import ManualClock
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger, LedgerEvent, decode
from penstock.core.liveness import Members, SingleMember
from penstock.doors.webpush import WebPush
from penstock.doors.webpush.agents import Agents
from penstock.doors.webpush.endpoint import Endpoint
from penstock.doors.webpush.router_table import PREFIX, RouterRecord
from penstock.doors.webpush.session import AgentSession
from penstock.engines.memory import MemoryEngine
from penstock.http.listener import Listener
from penstock.http.routing import Router
from penstock.http.timers import Wheel
from penstock.settings import ServerSettings, Settings
from tests.doors.sps_place import ManualTime

WITHIN = 20.0
CODING = {"Content-Encoding": "aes128gcm"}


class SharedBus:
    """A bus for several nodes of one process. What is sent to a node that is cut off is lost."""

    alone = False

    def __init__(self, node: str, nodes: dict[str, SharedBus]) -> None:
        self.node, self._nodes = node, nodes
        self._receivers: dict[str, list[Receiver]] = {}
        self.cut = False
        nodes[node] = self

    def listen(self, topic: str, receiver: Receiver) -> None:
        self._receivers.setdefault(topic, []).append(receiver)

    async def send(self, node: str, topic: str, message: bytes) -> bool:
        await asyncio.sleep(0)
        target = self._nodes.get(node)
        if target is None or topic not in target._receivers or target.cut or self.cut:
            return False
        for receiver in target._receivers[topic]:
            receiver(topic, message)
        return True

    async def hint(self, topic: str, message: bytes) -> None:
        for node in list(self._nodes):
            await self.send(node, topic, message)


class Stop:
    """One place at which calls wait until the test lets them go on."""

    def __init__(self) -> None:
        self.reached, self._open = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await asyncio.wait_for(self._open.wait(), WITHIN)

    async def until_reached(self) -> None:
        await asyncio.wait_for(self.reached.wait(), WITHIN)

    def go_on(self) -> None:
        self._open.set()


class Stoppable:
    """A mailbox or a registry whose calls can be made to wait, before or after they are carried out."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.stops: dict[tuple[str, str], list[Stop]] = {}
        self.pause: Callable[[], Awaitable[None]] | None = None  # taken before and after every call

    def stop(self, when: str, method: str) -> Stop:
        """Have the next call of *method* wait *when* ("before" or "after") it is carried out."""
        stop = Stop()
        self.stops.setdefault((when, method), []).append(stop)
        return stop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._wait("before", name)
            result = await method(*args, **kwargs)
            await self._wait("after", name)
            return result

        return call

    async def _wait(self, when: str, name: str) -> None:
        if self.pause is not None:
            await self.pause()
        if waiting := self.stops.get((when, name)):
            await waiting.pop(0).wait()


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def errno(self) -> int:
        number: int = json.loads(self.body)["errno"]
        return number


class Agent:
    """A user agent, on somebody else's WebSocket client."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.uaid = ""

    async def say(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(await asyncio.wait_for(self.socket.recv(), WITHIN))
        return heard

    async def hello(self, uaid: str = "", **more: Any) -> dict[str, Any]:
        await self.say(messageType="hello", uaid=uaid, use_webpush=True, **more)
        heard = await self.hear()
        self.uaid = heard["uaid"]
        return heard

    async def register(self, channel: str, **more: Any) -> str:
        await self.say(messageType="register", channelID=channel, **more)
        heard = await self.hear()
        assert heard["status"] == 200, heard
        endpoint: str = heard["pushEndpoint"]
        return endpoint

    async def notification(self) -> dict[str, Any]:
        heard = await self.hear()
        assert heard["messageType"] == "notification", heard
        return heard

    async def ack(self, *notifications: dict[str, Any]) -> None:
        updates = [{"channelID": one["channelID"], "version": one["version"], "code": 100} for one in notifications]
        await self.say(messageType="ack", updates=updates)

    async def closed(self) -> int:
        """The close code that the service gave, after everything that it still said."""
        with suppress(ConnectionClosed):
            while True:
                await asyncio.wait_for(self.socket.recv(), WITHIN)
        await self.socket.wait_closed()
        assert self.socket.close_code is not None
        return self.socket.close_code

    async def heard(self) -> list[str]:
        """Versions of the notifications that came, and of those that are on their way."""
        versions = []
        for _ in range(3):  # a check of the storage may be due: it comes between two commands
            await self.say(messageType="unregister", channelID="00000000-0000-4000-8000-000000000000")
            while (heard := await self.hear())["messageType"] == "notification":
                versions.append(heard["version"])
        return versions

    async def ping_pong(self) -> None:
        """Return when everything that was said so far was carried out."""
        await self.say(messageType="unregister", channelID="00000000-0000-4000-8000-000000000000")
        assert (await self.hear())["messageType"] == "unregister"


class NodePlace:
    """One node."""

    def __init__(
        self, place: Place, name: str, settings: Settings, make: type[Agents], endpoint: type[Endpoint], *, over: str,
        changes: Changes | None = None,
    ) -> None:  # fmt: skip
        self.change_poller = ChangePoller(changes)
        self.place, self.name = place, name
        self.mailbox, self.registry = Stoppable(place.engine.mailbox), Stoppable(place.engine.registry)
        self.bus: Any = place.engine.bus if over == "alone" else SharedBus(name, place.buses)
        self.members: Any = SingleMember() if self.bus.alone else Members(place.engine.registry, self.bus)
        self._settings, self._over = settings, over
        self._kind, self._endpoint = make, endpoint
        self.door: WebPush
        self.listener: Listener
        self.internal: Listener

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NodePlace]:
        place = self.place
        context = Context(
            place.engine.log, self.mailbox, self.registry, self.bus, place.hub, place.ledger, place.authenticator,
            place.clock, Wheel(place.time), 1024 * 1024, members=self.members, change_poller=self.change_poller,
        )  # type: ignore[arg-type]  # fmt: skip

        class Door(WebPush):
            agents_kind = self._kind
            session_kind = getattr(self._kind, "kind", AgentSession)  # a worse session comes with its agents
            endpoint_kind = self._endpoint

        async with Door(context, self._settings, place.time.time) as self.door:
            rows = self.door.internal_routes()
            async with (
                Listener(Router(rows), ServerSettings(listen="127.0.0.1:0")) as self.internal,
                Listener(Router(self.door.routes()), ServerSettings(listen="127.0.0.1:0")) as self.listener,
            ):
                if self._over == "http":
                    self.door.reachable(self.internal.url)
                try:
                    yield self
                finally:
                    await place.hang_up()

    @property
    def agents(self) -> Agents:
        return self.door.agents

    async def connect(self) -> Agent:
        host, port = self.listener.address
        socket = await connect(
            f"ws://{host}:{port}/", subprotocols=["push-notification"], ping_interval=None, close_timeout=1  # type: ignore[list-item]
        )  # fmt: skip
        agent = Agent(socket)
        self.place.agents.append(agent)
        return agent

    async def agent(self, uaid: str = "") -> Agent:
        """A user agent that has had its hello."""
        agent = await self.connect()
        await agent.hello(uaid)
        return agent

    async def send(
        self, endpoint: str, body: bytes = b"", method: str = "POST", listener: Listener | None = None, **headers: str
    ) -> Reply:
        """One request from a sender; headers are given with underscores."""
        fields = {"TTL": "600", **(CODING if body else {}), **{k.replace("_", "-"): v for k, v in headers.items()}}
        return await self.ask(method, urlsplit(endpoint).path, body, fields, listener)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Reply:  # fmt: skip
        reader, writer = await asyncio.open_connection(*(listener or self.listener).address)
        lines = [f"{method} {path} HTTP/1.1", "Host: push.test", "Connection: close", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items() if value]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        raw = await asyncio.wait_for(reader.read(-1), WITHIN)
        writer.close()
        head, _, rest = raw.partition(b"\r\n\r\n")
        first, *fields = head.decode().split("\r\n")
        named: dict[str, str] = {}
        for name, _, value in (field.partition(":") for field in fields):
            before = named.get(name.lower())  # one that comes again adds to the first
            named[name.lower()] = f"{before}, {value.strip()}" if before else value.strip()
        return Reply(int(first.split()[1]), named, rest)


class Place:
    """The engine, its clock, and the nodes."""

    def __init__(
        self, engine: MemoryEngine, hub: Hub, clock: ManualClock, ledger: Ledger, authenticator: Authenticator
    ) -> None:
        self.engine, self.hub, self.clock, self.ledger, self.authenticator = engine, hub, clock, ledger, authenticator
        self.time = ManualTime()
        self.buses: dict[str, SharedBus] = {}
        self.agents: list[Agent] = []
        self.nodes: list[NodePlace] = []

    async def hang_up(self) -> None:
        for agent in self.agents:
            agent.socket.transport.abort()
        await asyncio.gather(*(agent.socket.wait_closed() for agent in self.agents))

    async def record(self, uaid: str) -> RouterRecord | None:
        found = await self.engine.registry.get(PREFIX + uaid)
        return None if found is None else msgspec.json.decode(found.value, type=RouterRecord)

    async def stored(self, uaid: str, month: str) -> list[bytes]:
        return [item.body for item in await self.engine.mailbox.take(uaid, month)]

    async def ledger_events(self, uaid: str) -> list[LedgerEvent]:
        await self.ledger.flush()
        page = await self.engine.log.read_after(("/_ledger",), 0)
        events = [event for entry in page.entries for event in decode(entry.body)[1]]
        return [event for event in events if event.recipient == uaid]

    async def states(self, uaid: str) -> list[str]:
        return [event.state for event in await self.ledger_events(uaid)]


@asynccontextmanager
async def place(
    keys: Path,
    *,
    nodes: int = 1,
    over: str = "alone",
    make: type[Agents] = Agents,
    endpoint: type[Endpoint] = Endpoint,
    changes: Callable[[MemoryEngine], Changes | None] = lambda engine: None,
    **settings: Any,
) -> AsyncIterator[Place]:
    """Nodes that run in the block: alone, or talking over the "bus" or over "http"."""
    over = "bus" if nodes > 1 and over == "alone" else over
    chosen = Settings()
    chosen = replace(chosen, webpush=replace(chosen.webpush, **{"origin": "http://push.test", **settings}))
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine, Hub(engine.log) as hub:
        ledger = Ledger(engine.log, clock, node="test")
        await ledger.open(engine.registry)
        made = Place(engine, hub, clock, ledger, Authenticator(open_keys(keys), "admin"))
        made.nodes = [
            NodePlace(made, f"n{number}", chosen, make, endpoint, over=over, changes=changes(engine))
            for number in range(nodes)
        ]
        async with AsyncExitStack() as stack:
            members = [node.members for node in made.nodes if not node.members.alone]
            for one in members:
                await stack.enter_async_context(one)
            for one in members:
                await one.watch()  # now they know each other
            for node in made.nodes:
                await stack.enter_async_context(node.running())
            yield made
        await ledger.close()
