"""Registry, mailbox and bus on real NATS servers, each test in a namespace of its own."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from penstock.core.clock import Clock, ManualClock
from penstock.engines.jetstream.bus import NatsBus
from penstock.engines.jetstream.connection import NatsConnection
from penstock.engines.jetstream.mailbox import JetStreamMailbox
from penstock.engines.jetstream.newest_messages import Home
from penstock.engines.jetstream.registry import JetStreamRegistry
from penstock.testing import NatsCluster


@dataclass
class Opened:
    home: Home
    registry: JetStreamRegistry
    mailbox: JetStreamMailbox
    bus: NatsBus


def new_prefix() -> str:
    """A namespace that no other test has."""
    return "t" + secrets.token_hex(5)


@asynccontextmanager
async def opened(
    nats: NatsCluster,
    prefix: str = "",
    *,
    node: str = "here",
    clock: Clock | None = None,
    kind: type[NatsConnection] = NatsConnection,
) -> AsyncIterator[Opened]:
    """One node's view. *kind* may be a connection that loses something."""
    clock = clock or ManualClock()
    async with kind([server.url for server in nats.servers], name=node) as connection:
        home = Home(connection, prefix or new_prefix(), len(nats.servers))
        parts = Opened(home, JetStreamRegistry(home, clock), JetStreamMailbox(home, clock), NatsBus(home, node))
        await parts.registry.open()
        await parts.bus.open()
        yield parts
