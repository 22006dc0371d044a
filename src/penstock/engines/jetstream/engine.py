"""Puts the cluster's engine together, and takes it apart again."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

from penstock.core.background import Background
from penstock.core.clock import Clock, WallClock
from penstock.engines.jetstream.bus import NatsBus
from penstock.engines.jetstream.changes import JetStreamChanges
from penstock.engines.jetstream.connection import NatsConnection
from penstock.engines.jetstream.export import JetStreamExport
from penstock.engines.jetstream.log import JetStreamLog
from penstock.engines.jetstream.log_stream import Store, make_stream
from penstock.engines.jetstream.mailbox import JetStreamMailbox
from penstock.engines.jetstream.newest_messages import Home
from penstock.engines.jetstream.registry import JetStreamRegistry
from penstock.engines.jetstream.subjects import Subjects
from penstock.errors import ConfigInvalid, InputInvalid
from penstock.settings import DEFAULTS, LogSettings

SCHEME = "nats://"
LEAST_PAYLOAD: Final = 1 << 20
"""What a NATS server takes that was told nothing else, and the largest entry needs with its headers."""


def open_jetstream(
    servers: str,
    *,
    node: str,
    server: str = DEFAULTS.eventhorizon.server,
    clock: Clock | None = None,
    settings: LogSettings | None = None,
    background: Background | None = None,
) -> JetStreamEngine:
    """The engine on the NATS servers of `nats://a,b,c`; `async with` opens and closes it."""
    clock, settings = clock or WallClock(), settings or DEFAULTS.log
    return JetStreamEngine(server_urls(servers), node, server, clock, settings, background or Background())


def server_urls(text: str) -> list[str]:
    """`nats://a,b:4223` as a list of addresses."""
    names = [name.strip().removeprefix(SCHEME) for name in text.removeprefix(SCHEME).split(",")]
    if not all(names):
        raise ConfigInvalid("log.engine", f"{text!r} names no server", remedy="Write nats://host:port,host:port.")
    return [SCHEME + name for name in names]


class JetStreamEngine:
    """Log, mailbox, registry and bus of one node of a cluster. It keeps nothing of its own."""

    log: JetStreamLog
    mailbox: JetStreamMailbox
    registry: JetStreamRegistry
    bus: NatsBus
    changes: JetStreamChanges
    export: JetStreamExport

    def __init__(
        self, servers: list[str], node: str, server: str, clock: Clock, settings: LogSettings, background: Background
    ) -> None:
        self._background = background
        self._node, self._server, self._clock, self._settings = node, server, clock, settings
        self._stack = AsyncExitStack()
        self.connection = NatsConnection(
            servers, name=f"penstock {node}", credentials=settings.credentials, prefix=settings.prefix,
            replicas=settings.replicas,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        """Connect and open everything. `EngineGone` without servers; `ConfigInvalid` if their streams do not fit."""
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _open(self) -> None:
        settings, clock = self._settings, self._clock
        connection = await self._stack.enter_async_context(self.connection)
        _check_payload(connection.max_payload)
        home = Home(connection, settings.prefix, settings.replicas)
        subjects = Subjects(settings.prefix)
        await make_stream(connection, subjects, settings.replicas)
        self.mailbox, self.registry = JetStreamMailbox(home, clock), JetStreamRegistry(home, clock)
        self.bus, self.changes = NatsBus(home, self._node), JetStreamChanges(home, self.mailbox)
        await self.registry.open()
        await self.bus.open()
        await self.changes.open()
        self._stack.push_async_callback(self.changes.close)
        self.log = JetStreamLog(
            Store(connection, subjects), self._background, clock=clock, server=self._server,
            durability="quorum+fsync" if settings.synced else "quorum",
            queue=settings.queue, queue_bytes=settings.queue_bytes,
        )  # fmt: skip
        await self._stack.enter_async_context(self.log)
        self.export = JetStreamExport(self.log)

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def leave(self) -> None:
        """The node stops: what cannot be done without a connection is not waited for any more."""
        self.connection.leaving = True

    async def backup(self, directory: Path) -> object:
        """NATS has its own backups, of all streams at once."""
        raise InputInvalid(
            "backup",
            "a node of a cluster holds nothing to copy",
            remedy="Use 'nats account backup'; see docs/cluster.md.",
        )

    @property
    def queued(self) -> int:
        """Entries that wait to be stored."""
        return self.log.queued

    @property
    def trouble(self) -> str:
        """Why this engine should get no requests now; empty when all is well."""
        return self.connection.trouble or self.log.trouble


def _check_payload(largest: int) -> None:
    """Refuse servers that do not take an entry of the largest size."""
    if largest < LEAST_PAYLOAD:
        raise ConfigInvalid(
            "log.engine",
            f"the NATS servers take messages of {largest:,} bytes at most, and an entry may need {LEAST_PAYLOAD:,}",
            remedy="Set max_payload to 2MB in the configuration of each NATS server.",
        )
