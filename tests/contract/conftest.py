"""Which engines the contract suite runs on. A further engine joins by a line in `FACTORIES`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import Clock, ManualClock
from penstock.storage.memory import MemoryEngine
from penstock.storage.sqlite import open_sqlite

Opened = AbstractAsyncContextManager[Any]
Factory = Callable[[Path, Clock], Opened]


def memory(directory: Path, clock: Clock) -> Opened:
    return MemoryEngine(node="here", clock=clock)


def sqlite(directory: Path, clock: Clock) -> Opened:
    return open_sqlite(directory, node="here", clock=clock)


FACTORIES: dict[str, Factory] = {"memory": memory, "sqlite": sqlite}
DURABLE = ("sqlite",)
"""These can be opened again on what they stored."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=FACTORIES)
def open_engine(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Callable[[], Opened]:
    """Opens an engine of each kind on an empty store."""
    return lambda: FACTORIES[request.param](tmp_path, clock)


@pytest.fixture(params=DURABLE)
def open_durable(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Callable[[], Opened]:
    """As `open_engine`; every further call opens what the last one left."""
    return lambda: FACTORIES[request.param](tmp_path, clock)
