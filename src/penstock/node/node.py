"""Puts a node together: engine, hub, ledger, doors, listener. It is taken apart in reverse."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Self

from penstock.api.auth import Authenticator, open_admin_token, open_keys
from penstock.api.console import console_routes
from penstock.api.context import Context
from penstock.api.door import Door, MonthlyDoor, RecipientsDoor, ServingDoor
from penstock.api.iceberg import IcebergCatalog
from penstock.api.recipients import RecipientKind
from penstock.api.v1.erasing import ErasureApi
from penstock.api.v1.export import ExportApi
from penstock.api.v1.lake_sql import LakeSqlApi
from penstock.api.v1.openapi import OpenApiDocument
from penstock.api.v1.operations import OperationsApi
from penstock.api.v1.operator_actions import ActionLog
from penstock.api.v1.pipeline import PipelineApi
from penstock.api.v1.publish import PublishApi
from penstock.api.v1.recipients import RecipientsApi
from penstock.api.v1.retention import RetentionApi
from penstock.api.v1.routes import v1_routes
from penstock.api.v1.stats import StatsApi
from penstock.api.v1.tail_recipients import ConsumerRecipients, TailRecipients
from penstock.api.v1.trouble import TroubleApi
from penstock.api.v1.typed_tables import TypedTablesApi
from penstock.core.all_workers import CONSUMERS, FLUSH, Consumer, OtherWorkers, consumers_of
from penstock.core.background import Background
from penstock.core.busy_streams import StreamTraffic
from penstock.core.change_watch import ChangePoller
from penstock.core.clock import Clock, WallClock
from penstock.core.epoch import open_epoch
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.core.liveness import Members, Membership, SingleMember
from penstock.core.log import prepare
from penstock.core.metering import Sample
from penstock.core.throughput import Throughput
from penstock.core.typed_tables import adopt_former_records
from penstock.core.wanted_streams import WantedStreams
from penstock.engines.lake import (
    ColdLog,
    Deliveries,
    Figures,
    HistoryExport,
    LakeQuestions,
    LakeReader,
    open_lake,
)
from penstock.errors import PenstockError
from penstock.http.listener import Listener, make_caps
from penstock.http.routing import Route, Router
from penstock.http.timers import Wheel
from penstock.limits import ADMIN_TOKEN_CHARACTERS
from penstock.node.doors import open_doors, open_internally
from penstock.node.engine import KnowsMembers, RemoteEngine, check_server_name, log_socket, open_engine
from penstock.node.housekeeping import INTERVAL_SECONDS, Housekeeping
from penstock.node.mailbox_months import MailboxMonths
from penstock.node.metrics import Metrics, samples
from penstock.node.stats_sampling import STEP_SECONDS, Sampler
from penstock.node.trim_limit import LakeTrimLimit
from penstock.settings import AuthSettings, Settings
from penstock.units import parse_keep
from penstock.wire.trickle import EXPOSED_HEADERS

log = logging.getLogger("penstock")


class Node:
    """A running server. Lives in `async with`: ready inside, drained and closed after it."""

    def __init__(self, settings: Settings, data: Path, on_lost: Callable[[], None] = lambda: None) -> None:
        """*on_lost* is called in a worker that has lost its log process: it cannot do anything more."""
        self._settings, self._data, self._on_lost = settings, data, on_lost
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
        if isinstance(self._engine, RemoteEngine):
            self._engine.leave()
        await self._stack.aclose()

    async def _start(self) -> None:
        """Start the parts in the order in which they need each other; the stack ends them in reverse."""
        settings, enter, clock = self._settings, self._stack.enter_async_context, WallClock()
        engine = self._engine = await enter(open_engine(settings, self._data, clock, self._background, self._on_lost))
        await check_server_name(engine, settings.eventhorizon.server)
        await prepare(engine.log)
        lake = await enter(open_lake(settings.lake.url, engine.registry)) if settings.lake.url else None
        source = ColdLog(engine.log, lake, clock) if lake else engine.log
        self._rates = Throughput(clock)
        self._traffic = StreamTraffic()
        engine.log.follow(self._rates.follow, WantedStreams())
        engine.log.follow(self._traffic.follow, WantedStreams())
        selective = log_socket(settings) is not None
        self._hub = await enter(
            Hub(source, settings.hub, selective=selective, alone=engine.bus.alone, background=self._background)
        )
        self._rates.index_of = self._hub.index_of
        self._ledger = Ledger(engine.log, clock, node=engine.bus.node, settings=settings.ledger, throughput=self._rates)
        await self._ledger.open(engine.registry)
        await open_epoch(engine.registry, secrets.token_hex(8))
        await adopt_former_records(engine.registry)
        self._stack.push_async_callback(self._close_ledger)
        trimming = LakeTrimLimit(engine.log, engine.registry, lake)
        self._start_housekeeping(clock, trimming)
        self._authenticator = open_authenticator(self._data, settings.auth)
        change_poller = ChangePoller(engine.changes, self._background)
        members = await self._membership()
        context = Context(
            source, engine.mailbox, engine.registry, engine.bus, self._hub, self._ledger, self._authenticator, clock,
            wheel := Wheel(asyncio.get_running_loop(), self._background),
            settings.server.body_limit,
            caps := make_caps(settings.server),
            members,
            self._background, change_poller, self._other_workers(members),
        )  # fmt: skip
        self._stats = StatsApi(context)
        routes = self._routes(context, trimming, lake)
        self._doors = await open_doors(self._stack, context, settings)
        months = MailboxMonths(context, [door for door in self._doors if isinstance(door, MonthlyDoor)])
        self._housekeeping.daily = months.daily
        self.routes = (*routes, *(row for door in self._doors for row in door.routes()), *months.routes())
        await enter(change_poller)
        await open_internally(self._stack, settings.server, self._doors)
        router = Router(self.routes)
        self._listener = await enter(
            Listener(router, settings.server, expose=EXPOSED_HEADERS, clock=clock, wheel=wheel, caps=caps)
        )
        self._start_sampling(clock, trimming)

    def _start_housekeeping(self, clock: Clock, trimming: LakeTrimLimit) -> None:
        engine, (keep_seconds, keep_bytes) = self._engine, parse_keep(self._settings.log.keep)
        if keep_seconds is None and keep_bytes is None:
            log.warning("log.keeps_everything", extra={"remedy": "set log.keep to an age or a size"})
        self._housekeeping = Housekeeping(
            engine.log, engine.mailbox, engine.registry, clock, self._data,
            keep_seconds=keep_seconds, keep_bytes=keep_bytes, bound=trimming.bound,
            # Workers have one clock.
            node="" if engine.bus.alone or isinstance(engine, KnowsMembers) else engine.bus.node,
        )  # fmt: skip
        loop = self._background.every(INTERVAL_SECONDS, "housekeeping", self._keep_house, at_once=True)
        self._stack.push_async_callback(loop.stop)

    def _start_sampling(self, clock: Clock, trimming: LakeTrimLimit) -> None:
        sampler = Sampler(
            self._stats,
            clock,
            self._engine,
            self._hub,
            self._ledger,
            self._rates,
            self._traffic,
            self._listener,
            trimming,
            [door for door in self._doors if isinstance(door, ServingDoor)],
        )
        loop = self._background.every(STEP_SECONDS, "statistics", sampler.round)
        self._stack.push_async_callback(loop.stop)

    async def _membership(self) -> Membership:
        engine = self._engine
        if isinstance(engine, KnowsMembers):
            return engine.members
        if engine.bus.alone:
            return SingleMember()
        members = Members(engine.registry, engine.bus, background=self._background)
        return await self._stack.enter_async_context(members)

    async def _keep_house(self) -> None:
        """One round of housekeeping. Of the workers of a machine only the first one does it."""
        members = self._engine.members if isinstance(self._engine, KnowsMembers) else None
        if members is None or members.living()[0] == members.me:
            await self._housekeeping.round()

    def _other_workers(self, members: Membership) -> OtherWorkers:
        """The other workers of this machine, or nodes of this cluster; nobody, if there are none."""
        engine = self._engine
        other_workers = OtherWorkers()
        if not members.alone:
            find_readers = engine.find_readers if isinstance(engine, KnowsMembers) else None
            other_workers = OtherWorkers(engine.bus, members, find_readers)

        async def consumers(recipient: bytes) -> list[Consumer]:
            return consumers_of(self._hub, recipient.decode())

        async def flush(_: bytes) -> bool:
            await self._ledger.flush()
            return True

        other_workers.answer(CONSUMERS, consumers)
        other_workers.answer(FLUSH, flush)
        return other_workers

    def _routes(self, context: Context, trimming: LakeTrimLimit, lake: LakeReader | None) -> list[Route]:
        """What every node answers, whichever doors are open."""
        engine, publisher = self._engine, PublishApi(context)
        folded = Deliveries(lake) if lake else None
        operations = OperationsApi(context, engine.backup, self._why_not_ready, folded)
        histograms = {
            "publish_seconds": ("From a publish of one event to its answer; one in 16 is timed.", publisher.seconds),
            "publish_lines_seconds": ("From a publish of many lines to its answer.", publisher.lines_seconds),
            "delivery_seconds": ("From an append to the reader's socket; a sample of entries.", self._rates.seconds),
        }
        keeper = engine.counts if isinstance(engine, KnowsMembers) else None
        metrics = Metrics(context, self._samples, histograms, keeper, public=self._settings.metrics.public)
        history = HistoryExport(engine.log, engine.export, lake, context.clock) if lake else None
        exporter, document = ExportApi(context, engine.export, history), OpenApiDocument(lambda: self.routes)
        kinds, actions = partial(self._recipient_kinds, context), ActionLog(context)
        return [
            *v1_routes(context, publisher, operations, exporter, document, self._traffic),
            *self._stats.routes(),
            *PipelineApi(context, Figures(lake) if lake else None, history).routes(),
            *LakeSqlApi(context, LakeQuestions(lake) if lake else None).routes(),
            *RetentionApi(context, engine.log, trimming, self._settings.log.keep).routes(),
            *ErasureApi(context).routes(),
            *TypedTablesApi(context, actions).routes(),
            *RecipientsApi(context, kinds, actions).routes(),
            *TroubleApi(context, kinds, actions).routes(),
            *IcebergCatalog(context, lake, self._settings.lake).routes(),
            Route("GET", "/metrics", metrics),
            *console_routes(),
        ]

    def _recipient_kinds(self, context: Context) -> list[RecipientKind]:
        """The kinds of recipients that the open doors have, and those that every node has."""
        of_doors = [kind for door in self._doors if isinstance(door, RecipientsDoor) for kind in door.recipient_kinds()]
        return [TailRecipients(context), *of_doors, ConsumerRecipients(context)]

    async def _close_ledger(self) -> None:
        """A log that takes nothing any more must not hold up the stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5 if self._engine.trouble else 5):
                await self._ledger.close()

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
        done = [_tried(self._listener.reload_tls), _tried(self._reload_keys)]
        if all(done):
            log.info("reload.done")

    def _reload_keys(self) -> None:
        self._authenticator.replace_keys(open_keys(self._data))

    def _why_not_ready(self) -> str:
        return "draining" if self._draining else self._engine.trouble

    def _samples(self) -> Iterator[Sample]:
        yield from samples(self._listener, self._engine, self._hub, self._ledger, self._rates, self._housekeeping)
        yield from self._background.samples()
        for door in self._doors:
            yield from door.samples()


def open_authenticator(data: Path, auth: AuthSettings) -> Authenticator:
    """Who may come in, by the keys in *data* and the admin token."""
    admin_token = open_admin_token(data, auth.admin_token, auth.admin_token_file)
    if len(admin_token) < ADMIN_TOKEN_CHARACTERS:
        remedy = f"give {ADMIN_TOKEN_CHARACTERS} characters or more, or none: the server makes one"
        log.warning("auth.admin_token_short", extra={"remedy": remedy})
    return Authenticator(open_keys(data), admin_token)


def _tried(reload: Callable[[], None]) -> bool:
    try:
        reload()
    except (PenstockError, OSError) as error:
        log.error("reload.failed", extra={"error": str(error)})
        return False
    return True
