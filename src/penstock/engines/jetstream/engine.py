"""Puts the cluster's engine together, and takes it apart again."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import msgspec

from penstock.core.background import Background
from penstock.core.clock import Clock, WallClock
from penstock.engines.jetstream.bus import NatsBus
from penstock.engines.jetstream.cells import CellsMissing, Home, api, ask
from penstock.engines.jetstream.changes import JetStreamChanges
from penstock.engines.jetstream.connection import ELECTING_SECONDS, JetStreamRefused, NatsConnection
from penstock.engines.jetstream.export import JetStreamExport
from penstock.engines.jetstream.log import JetStreamLog
from penstock.engines.jetstream.mailbox import JetStreamMailbox
from penstock.engines.jetstream.registry import JetStreamRegistry
from penstock.engines.jetstream.store import Store
from penstock.engines.jetstream.subjects import Subjects
from penstock.errors import ConfigInvalid, EngineGone, InputInvalid
from penstock.settings import LogSettings

SCHEME = "nats://"
PLACING_SECONDS = 10.0
"""For JetStream to find servers for a new stream: just after the start of a cluster some still count as offline."""

_EXISTS, _NO_PEERS = 10058, 10005


def open_jetstream(
    servers: str,
    *,
    node: str,
    server: str = "127.0.0.1",
    clock: Clock | None = None,
    settings: LogSettings | None = None,
    background: Background | None = None,
) -> JetStreamEngine:
    """The engine on the NATS servers of `nats://a,b,c`; `async with` opens and closes it."""
    clock, settings = clock or WallClock(), settings or LogSettings()
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
        home = Home(connection, settings.prefix, settings.replicas)
        subjects = Subjects(settings.prefix)
        await _make_stream(connection, _config(subjects, settings.replicas))
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


def _config(subjects: Subjects, replicas: int) -> dict[str, Any]:
    return {
        "name": subjects.stream,
        "subjects": [subjects.all],
        "retention": "limits",
        "storage": "file",
        "num_replicas": replicas,
        "max_msgs_per_subject": -1,
        "max_age": 0,
        "discard": "new",  # at a limit of the account: refuse, never drop what was acknowledged
        "allow_direct": True,
        "allow_atomic": True,
        "allow_msg_ttl": True,
        "allow_rollup_hdrs": True,
        "deny_delete": False,
        "deny_purge": False,
    }


async def _make_stream(connection: NatsConnection, config: dict[str, Any]) -> None:
    """See that the stream is there as it must be. One with other settings is refused, and left as it is."""
    name = config["name"]
    try:
        answer = await api(connection, f"STREAM.INFO.{name}", patience=ELECTING_SECONDS)
    except CellsMissing:
        answer = msgspec.json.decode(await _create(connection, name, config))
    except JetStreamRefused as refused:
        raise EngineGone(f"JetStream does not show {name}: {refused.description}") from refused
    found = answer["config"]
    for setting, wanted in config.items():
        if found.get(setting, False) != wanted:
            raise ConfigInvalid(
                "log.engine",
                f"JetStream's stream {name} has {setting} = {found.get(setting)}, not {wanted}",
                remedy=_remedy(setting, found.get(setting)),
            )


async def _create(connection: NatsConnection, name: str, config: dict[str, Any]) -> bytes:
    begun = time.monotonic()
    while True:
        try:
            return await connection.api(f"STREAM.CREATE.{name}", config)
        except EngineGone:  # a leader that dies takes the question along; the same one again changes nothing
            if time.monotonic() - begun > ELECTING_SECONDS or connection.hopeless:
                raise
        except JetStreamRefused as refused:
            if refused.code == _EXISTS:
                return await ask(connection, f"STREAM.INFO.{name}", patience=ELECTING_SECONDS)  # another was quicker
            if refused.code != _NO_PEERS or time.monotonic() - begun > PLACING_SECONDS:
                gone = EngineGone(f"JetStream does not make {name}: {refused.description}")
                gone.remedy = "Give the cluster enough servers with JetStream, or set log.replicas to fewer."
                raise gone from refused
        await asyncio.sleep(0.2)


def _remedy(setting: str, found: object) -> str:
    if setting == "num_replicas":
        return f"Set log.replicas={found}, or change the streams with 'nats stream edit --replicas'."
    return "Give this cluster another log.prefix, or change the stream with the nats program."
