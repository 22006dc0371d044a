"""Which engines the contract suite runs on. A further engine joins by a line in `FACTORIES`.

The cluster's engine runs in the group `cluster`, on one real NATS server for all tests, each in a namespace of
its own; `tests/cluster/` runs some of the suite again on three servers with three replicas.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import Clock, ManualClock
from penstock.engines.jetstream import open_jetstream
from penstock.engines.local import LogServer, WorkerEngine, open_worker_engine
from penstock.engines.memory import MemoryEngine
from penstock.engines.sqlite import open_sqlite
from penstock.settings import LogSettings
from penstock.testing.nats import NatsCluster, start_nats

Opened = AbstractAsyncContextManager[Any]
Factory = Callable[[Path, Clock], Opened]


def memory(directory: Path, clock: Clock) -> Opened:
    return MemoryEngine(node="here", clock=clock)


def sqlite(directory: Path, clock: Clock) -> Opened:
    return open_sqlite(directory, node="here", clock=clock)


@asynccontextmanager
async def local(directory: Path, clock: Clock) -> AsyncIterator[WorkerEngine]:
    """A worker and its log process, here in one loop with a real socket between them."""
    path = directory / "log.sock"
    async with (
        open_sqlite(directory, node="log", clock=clock) as kept,
        LogServer(kept, path),
        open_worker_engine(path, node="here", settings=LogSettings(), selective=False) as engine,
    ):
        yield engine


FACTORIES: dict[str, Factory] = {"memory": memory, "sqlite": sqlite, "local": local}
JETSTREAM = pytest.param("jetstream", marks=pytest.mark.cluster)
DURABLE = ("sqlite", "local", JETSTREAM)
"""These can be opened again on what they stored."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def contract_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """One NATS server; what is proved here does not depend on its disk, so it need not wait for that."""
    with start_nats(tmp_path_factory.mktemp("nats"), sync="2m") as cluster:
        yield cluster


def opener(request: pytest.FixtureRequest, directory: Path, clock: Clock) -> Callable[[], Opened]:
    if request.param != "jetstream":
        return lambda: FACTORIES[request.param](directory, clock)
    servers = request.getfixturevalue("contract_nats").url
    settings = LogSettings(prefix=f"test_{uuid.uuid4().hex}", replicas=1)
    return lambda: open_jetstream(servers, node="here", clock=clock, settings=settings)


@pytest.fixture(params=[*FACTORIES, JETSTREAM])
def open_engine(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Callable[[], Opened]:
    """Opens an engine of each kind on an empty store."""
    return opener(request, tmp_path, clock)


@pytest.fixture(params=DURABLE)
def open_durable(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Callable[[], Opened]:
    """As `open_engine`; every further call opens what the last one left."""
    return opener(request, tmp_path, clock)
