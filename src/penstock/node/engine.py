"""Which storage engine a node has, and what it must be able to do."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from penstock.core.background import Background
from penstock.core.bus import Bus
from penstock.core.change_watch import Changes
from penstock.core.clock import Clock
from penstock.core.liveness import Membership
from penstock.core.metering import Sample
from penstock.core.registry import made_once
from penstock.core.storage import Storage
from penstock.engines.sqlite import open_sqlite
from penstock.engines.sqlite.engine import SqliteOptions
from penstock.engines.sqlite.writer import Limits
from penstock.errors import ConfigInvalid
from penstock.settings import Settings

NODE = "local"  # a node that is alone needs no other name


class Engine(Storage, Protocol):
    """A storage engine with all its contracts: those of `Storage`, the bus, and the changes by other nodes."""

    @property
    def bus(self) -> Bus: ...

    @property
    def changes(self) -> Changes | None:
        """What other nodes do; None when there are none."""
        ...


@runtime_checkable
class RemoteEngine(Protocol):
    """An engine on other machines, which may be unreachable while a node stops."""

    def leave(self) -> None:
        """Do not wait any more for what cannot be reached."""
        ...


@runtime_checkable
class KnowsMembers(Protocol):
    """An engine that knows by itself which nodes are alive: the workers of one machine."""

    @property
    def members(self) -> Membership: ...

    async def find_readers(self, streams: Sequence[str]) -> list[str]:
        """The other workers that have a reader of any of these streams."""
        ...

    async def counts(self) -> list[Sample]:
        """What the process that keeps the log has counted."""
        ...


def log_socket(settings: Settings) -> Path | None:
    """The socket of the log process, if this node is a worker of one."""
    scheme, _, path = settings.log.engine.partition(":")
    return Path(path) if scheme == "unix" else None


def open_engine(
    settings: Settings, data: Path, clock: Clock, background: Background, on_lost: Callable[[], None] = lambda: None
) -> AbstractAsyncContextManager[Engine]:
    """The engine that `log.engine` names; to be entered. A worker calls *on_lost* when it has lost its log process."""
    given, server = settings.log, settings.eventhorizon.server
    if given.engine == "memory":
        from penstock.engines.memory import MemoryEngine

        return MemoryEngine(node=NODE, server=server, clock=clock)
    if given.engine.startswith("nats://"):
        from penstock.engines.jetstream.engine import open_jetstream

        node = settings.server.node or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        return open_jetstream(
            given.engine, node=node, server=server, clock=clock, settings=given, background=background
        )
    if (socket_path := log_socket(settings)) is not None:
        from penstock.engines.local import open_worker_engine

        node = settings.server.node or f"worker-{secrets.token_hex(4)}"
        return open_worker_engine(socket_path, node=node, settings=given, background=background, on_lost=on_lost)
    limits = Limits(
        queue_jobs=given.queue, queue_bytes=given.queue_bytes, fold_entries=given.fold, gather_ms=given.gather_ms
    )
    options = SqliteOptions(limits=limits, readers=given.readers)
    return open_sqlite(data, node=NODE, server=server, clock=clock, options=options)


async def check_server_name(engine: Engine, server: str) -> None:
    """Cursors carry this name for ever: it is fixed at the first start."""
    if (was := (await made_once(engine.registry, "eventhorizon/server", server.encode)).decode()) != server:
        raise ConfigInvalid(
            "eventhorizon.server", f"is {server!r}, but cursors of this log say {was!r}", remedy=f"Set it to {was}."
        )
