"""Puts a node together and runs it: engine, hub, ledger, doors, listener."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

from penstock.api.auth import Gate, open_admin_token, open_keys
from penstock.api.context import Context
from penstock.api.door import Door, Internal, Lodging, MakeDoor
from penstock.api.v1.erasing import Erasing
from penstock.api.v1.export import Exporter
from penstock.api.v1.openapi import Document
from penstock.api.v1.operations import Operations
from penstock.api.v1.publish import Publisher
from penstock.api.v1.retention import Retention
from penstock.api.v1.routes import v1_routes
from penstock.core.background import Background
from penstock.core.bus import Bus
from penstock.core.clock import Clock, WallClock
from penstock.core.epoch import open_epoch
from penstock.core.export import Export
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.core.log import Log, prepare
from penstock.core.lookout import Changes, Lookout
from penstock.core.mailbox import Mailbox
from penstock.core.members import Alone, Members
from penstock.core.metering import Sample
from penstock.core.registry import Registry, made_once
from penstock.core.throughput import Throughput
from penstock.doors.eventhorizon import EventHorizon
from penstock.doors.msgstream import MessageStream
from penstock.doors.sps import Sps
from penstock.doors.trickle import Trickle
from penstock.doors.webpush import WebPush
from penstock.doors.webpush_sender import WebPushSender
from penstock.engines.lake import ColdLog, Deliveries, open_lake
from penstock.engines.sqlite import open_sqlite
from penstock.engines.sqlite.engine import SqliteOptions
from penstock.engines.sqlite.writer import Limits
from penstock.errors import ConfigInvalid, PenstockError
from penstock.http.listener import Listener, make_caps
from penstock.http.loop import run_loop
from penstock.http.routing import Route, Router
from penstock.http.tls import map_large_buffers
from penstock.http.wheel import Wheel
from penstock.limits import ADMIN_TOKEN_CHARACTERS
from penstock.node.housekeeping import INTERVAL_SECONDS, Housekeeping
from penstock.node.metrics import Metrics
from penstock.node.months import Tables
from penstock.node.trimming import Trimming
from penstock.settings import Settings
from penstock.units import parse_keep
from penstock.wire.trickle import HEADERS

log = logging.getLogger("penstock")

NODE = "local"  # a node that is alone needs no other name
DOORS: dict[str, tuple[MakeDoor, ...]] = {
    "eventhorizon": (EventHorizon,),
    "sps": (Sps,),
    "webpush": (WebPush, WebPushSender),
    "trickle": (Trickle,),
    "msgstream": (MessageStream,),
}
"""The doors there are, besides the own API, which is always open."""


EXPOSED = ("Retry-After", *HEADERS)
"""Headers that a page of another origin may read."""

SWITCH_SECONDS = 0.0005
"""After which the loop lets another thread have the interpreter that wants it. The writer's thread wants it several
times for each commit: with Python's 5 ms a loop that is busy with one peer delays everybody's publish by as many times
5 ms. Measured beside a flood of WebSocket frames: 85–130 ms of the loop's time before an answer instead of 195–340."""


class Engine(Protocol):
    """A storage engine: the four contracts in one."""

    @property
    def log(self) -> Log: ...
    @property
    def mailbox(self) -> Mailbox: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def bus(self) -> Bus: ...
    @property
    def export(self) -> Export: ...

    @property
    def changes(self) -> Changes | None:
        """What other nodes do; None when there are none."""
        ...

    @property
    def trouble(self) -> str:
        """Why it should get no requests now; empty when all is well."""
        ...

    @property
    def queued(self) -> int:
        """Batches that wait to be stored."""
        ...

    async def backup(self, directory: Path) -> object:
        """Copy everything into an empty directory while running."""
        ...


@runtime_checkable
class Distant(Protocol):
    """An engine that is elsewhere, and may be gone when a node stops."""

    def leave(self) -> None:
        """Do not wait any more for what cannot be reached."""
        ...


def run(settings: Settings, data: Path) -> int:
    """Run a node until it is told to stop; returns the exit code."""
    check_doors(settings.server.doors)
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigInvalid("--data", f"{data} cannot be made: {error.strerror}") from error
    # Hardly anything here is part of a cycle, and looking for some among thousands of connections takes longer
    # than a publish. What was made up to now stays for good.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    sys.setswitchinterval(SWITCH_SECONDS)
    if settings.server.tls_certificate:
        map_large_buffers()
    run_loop(_run(settings, data))
    return 0


def check_doors(names: tuple[str, ...]) -> None:
    """Refuse a door that does not exist."""
    known = ("all", "none", *DOORS)
    for name in names:
        if name not in known:
            raise ConfigInvalid("server.doors", f"there is no door {name!r}", remedy=f"Known: {', '.join(known)}.")


async def _run(settings: Settings, data: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Node(settings, data) as node:
        loop.add_signal_handler(signal.SIGHUP, node.reload)
        print(f"penstock ready on {node.url} durability={node.durability}", flush=True)  # noqa: T201
        await stop.wait()
        log.info("server.stopping")


class Node:
    """A running server. Lives in `async with`: ready inside, drained and closed after it."""

    def __init__(self, settings: Settings, data: Path) -> None:
        self._settings, self._data = settings, data
        self._stack = AsyncExitStack()
        self._draining = False
        self._doors: list[Door] = []
        self._background = Background()
        self.routes: tuple[Route, ...] = ()  # all that the public listener answers

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._draining = True
        if isinstance(self._engine, Distant):
            self._engine.leave()
        await self._stack.aclose()

    async def _start(self) -> None:
        """Start the parts in the order in which they need each other; the stack ends them in reverse."""
        settings, enter, clock = self._settings, self._stack.enter_async_context, WallClock()
        engine = self._engine = await enter(_open_engine(settings, self._data, clock, self._background))
        await _check_server_name(engine, settings.eventhorizon.server)
        await prepare(engine.log)
        self._lake = await enter(open_lake(settings.lake.url)) if settings.lake.url else None
        source = ColdLog(engine.log, self._lake, clock) if self._lake else engine.log
        self._folded = Deliveries(self._lake, engine.registry) if self._lake else None
        self._trimming = Trimming(engine.log, engine.registry, self._lake)
        self._rates = Throughput(clock)
        engine.log.follow(self._rates.follow)
        self._hub = await enter(Hub(source, settings.hub))
        self._ledger = Ledger(engine.log, clock, node=engine.bus.node, settings=settings.ledger, throughput=self._rates)
        await self._ledger.open(engine.registry)
        await open_epoch(engine.registry, secrets.token_hex(8))
        self._stack.push_async_callback(self._close_ledger)
        await self._start_housekeeping(clock)
        auth = settings.auth
        admin_token = open_admin_token(self._data, auth.admin_token, auth.admin_token_file)
        if len(admin_token) < ADMIN_TOKEN_CHARACTERS:
            remedy = f"give {ADMIN_TOKEN_CHARACTERS} characters or more, or none: the server makes one"
            log.warning("auth.admin_token_short", extra={"remedy": remedy})
        self._gate = Gate(open_keys(self._data), admin_token)
        lookout = Lookout(engine.changes, self._background)
        context = Context(
            source,
            engine.mailbox,
            engine.registry,
            engine.bus,
            self._hub,
            self._ledger,
            self._gate,
            clock,
            wheel := Wheel(asyncio.get_running_loop()),
            settings.server.body_limit,
            caps := make_caps(settings.server),
            Alone() if engine.bus.alone else await enter(self._members(engine)),
            self._background,
            lookout,
        )
        routes = self._routes(context) + Retention(context, engine.log, self._trimming).routes()
        routes += Erasing(context).routes()
        for name, makes in DOORS.items():
            for make in makes if {"all", name}.intersection(settings.server.doors) else ():
                door = await enter(make(context, settings))
                self._doors.append(door)
                routes += door.routes()
        tables = Tables(context, [door for door in self._doors if isinstance(door, Lodging)])
        self._housekeeping.daily = tables.daily
        routes += tables.routes()
        self.routes = tuple(routes)
        await enter(lookout)
        await self._open_internally()
        self._listener = await enter(
            Listener(Router(routes), settings.server, expose=EXPOSED, clock=clock, wheel=wheel, caps=caps)
        )

    def _members(self, engine: Engine) -> Members:
        return Members(engine.registry, engine.bus, background=self._background)

    async def _open_internally(self) -> None:
        """Open the listener for other nodes, if there is to be one; it is closed after the public one."""
        server = self._settings.server
        doors = [door for door in self._doors if isinstance(door, Internal)]
        if not server.internal_listen or not doors:
            return
        # A node asks for many: caps are for those who come from outside.
        settings = replace(
            server, listen=server.internal_listen, connections_per_address=0, connections_per_token=0,
            requests_per_address=0.0, requests_per_token=0.0,
        )  # fmt: skip
        rows = [row for door in doors for row in door.internal_routes()]
        listener = await self._stack.enter_async_context(Listener(Router(rows), settings))
        log.info("internal.listening", extra={"url": listener.url})
        for door in doors:
            door.reachable(server.internal_address or listener.url)

    async def _close_ledger(self) -> None:
        """A log that takes nothing any more must not hold up the stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5 if self._engine.trouble else 5):
                await self._ledger.close()

    async def _start_housekeeping(self, clock: Clock) -> None:
        keep_seconds, keep_bytes = parse_keep(self._settings.log.keep)
        if keep_seconds is None and keep_bytes is None:
            log.warning("log.keeps_everything", extra={"remedy": "set log.keep to an age or a size"})
        engine = self._engine
        self._housekeeping = Housekeeping(
            engine.log,
            engine.mailbox,
            engine.registry,
            clock,
            self._data,
            keep_seconds=keep_seconds,
            keep_bytes=keep_bytes,
            bound=self._trimming.bound,
        )
        round = self._housekeeping.round
        loop = self._background.every(INTERVAL_SECONDS, "housekeeping", round, at_once=True)
        self._stack.push_async_callback(loop.stop)

    def _routes(self, context: Context) -> list[Route]:
        self._publisher = Publisher(context)
        operations = Operations(context, self._engine.backup, self._why_not_ready, self._folded)
        publisher = self._publisher
        histograms = {
            "publish_seconds": ("From a publish of one event to its answer; one in 16 is timed.", publisher.seconds),
            "publish_lines_seconds": ("From a publish of many lines to its answer.", publisher.lines_seconds),
            "delivery_seconds": ("From an append to the reader's socket; a sample of entries.", self._rates.seconds),
        }
        metrics = Metrics(context, self._samples, histograms, public=self._settings.metrics.public)
        exporter, document = Exporter(context, self._engine.export), Document(lambda: self.routes)
        return [
            *v1_routes(context, self._publisher, operations, exporter, document),
            Route("GET", "/metrics", metrics),
        ]

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._listener.url

    @property
    def durability(self) -> str:
        """What an acknowledgement means."""
        return self._engine.log.durability

    def reload(self) -> None:
        """Read certificate and keys again; connections stay, and so does what was in use if the new cannot be used."""
        done = [self._try(self._listener.reload_tls), self._try(self._reload_keys)]
        if all(done):
            log.info("reload.done")

    def _reload_keys(self) -> None:
        self._gate.replace_keys(open_keys(self._data))

    def _try(self, reload: Callable[[], None]) -> bool:
        try:
            reload()
        except (PenstockError, OSError) as error:
            log.error("reload.failed", extra={"error": str(error)})
            return False
        return True

    def _why_not_ready(self) -> str:
        return "draining" if self._draining else self._engine.trouble

    def _samples(self) -> Iterator[Sample]:
        """What `/metrics` shows."""
        counters, hub, house = self._listener.counters, self._hub, self._housekeeping
        yield "gauge", "connections", "Connections that are open.", counters.opened - counters.closed, {}
        for name, count in counters.live.items():
            yield "gauge", "live", "Live answers and WebSockets that are open.", count, {"door": name}
        yield "counter", "requests", "Requests that came.", counters.requests, {}
        yield "counter", "refused", "Connections closed at once, over a cap.", counters.refused, {}
        yield "counter", "cut", "Connections cut because the peer took nothing.", counters.cut, {}
        yield "gauge", "bodies_bytes", "Bytes of larger request bodies that are held.", self._listener.body_bytes, {}
        yield "counter", "received_bytes", "Bytes that came.", counters.bytes_in, {}
        yield "counter", "sent_bytes", "Bytes that went out.", self._listener.bytes_out, {}
        yield "counter", "appended", "Entries that came into the log.", self._rates.appended, {}
        yield "counter", "deliveries", "Entries of a stream handed to one reader's socket.", self._rates.delivered, {}
        yield "counter", "ledger_records", "Records that the ledger has stored.", self._ledger.recorded, {}
        yield "counter", "behind", "Times that a feed fell behind.", hub.went_behind, {}
        yield "gauge", "feeds", "Feeds that are open.", len(hub.feeds), {}
        yield "gauge", "feeds_waiting", "Feeds that wait for a page of the log.", hub.waiting_line, {}
        yield (
            "gauge",
            "lag",
            "Ids between the slowest feed and the log's end.",
            max((feed.lag for feed in hub.feeds), default=0),
            {},
        )
        yield "gauge", "log_id", "Highest id that is visible.", hub.position, {}
        yield "gauge", "log_trimmed_id", "Highest id that was trimmed.", self._engine.log.trimmed_upto, {}
        yield "gauge", "log_queue", "Batches that wait for the writer.", self._engine.queued, {}
        yield "gauge", "log_trouble", "1 while the storage is why /ready is 503.", int(bool(self._engine.trouble)), {}
        yield "gauge", "log_bytes", "Bytes of the log.", house.stored_bytes, {}
        yield "gauge", "disk_days_left", "Days until the disk is full at this pace.", house.days_until_full, {}
        yield "counter", "expired", "Entries whose time ran out.", house.expired, {}
        yield "counter", "trimmed", "Entries that log.keep dropped.", house.trimmed, {}
        yield "counter", "ledger_lost", "Records that the log did not take in time.", self._ledger.lost, {}
        yield "counter", "feeds_failed", "Live readers that were ended by a defect.", hub.failed, {}
        failed = self._engine.log.followers.failed
        yield "counter", "followers_failed", "Times that a part of the server failed at new entries.", failed, {}
        yield "counter", "ledger_refused", "Records that the log refuses for good.", self._ledger.refused, {}
        dropped = self._engine.bus.dropped
        yield "counter", "bus_dropped", "Messages of other nodes that could not be taken.", dropped, {}
        yield from self._background.samples()
        for door in self._doors:
            yield from door.samples()


def _open_engine(
    settings: Settings, data: Path, clock: Clock, background: Background
) -> AbstractAsyncContextManager[Engine]:
    server = settings.eventhorizon.server
    if settings.log.engine == "memory":
        from penstock.engines.memory import MemoryEngine

        return MemoryEngine(node=NODE, server=server, clock=clock)
    log_settings = settings.log
    if log_settings.engine.startswith("nats://"):
        return _open_cluster(settings, clock, background)
    limits = Limits(
        queue_jobs=log_settings.queue,
        queue_bytes=log_settings.queue_bytes,
        fold_entries=log_settings.fold,
        gather_ms=log_settings.gather_ms,
    )
    options = SqliteOptions(limits=limits, readers=log_settings.readers)
    return open_sqlite(data, node=NODE, server=server, clock=clock, options=options)


def _open_cluster(settings: Settings, clock: Clock, background: Background) -> AbstractAsyncContextManager[Engine]:
    from penstock.engines.jetstream import engine as jetstream

    node = settings.server.node or f"{socket.gethostname()}-{secrets.token_hex(4)}"
    return jetstream.open_jetstream(
        settings.log.engine,
        node=node,
        server=settings.eventhorizon.server,
        clock=clock,
        settings=settings.log,
        background=background,
    )


async def _check_server_name(engine: Engine, server: str) -> None:
    """Cursors carry this name for ever: it is fixed at the first start."""
    if (was := (await made_once(engine.registry, "eventhorizon/server", server.encode)).decode()) != server:
        raise ConfigInvalid(
            "eventhorizon.server", f"is {server!r}, but cursors of this log say {was!r}", remedy=f"Set it to {was}."
        )
