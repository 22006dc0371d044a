"""Real NATS servers for the cluster's tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.testing import NatsCluster, RunningServer, start_log_process, start_nats, start_nodes
from tests.cluster.homes import new_prefix


@pytest.fixture(scope="session")
def nats_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """One server for all tests that do not disturb it: use a namespace of your own."""
    with start_nats(tmp_path_factory.mktemp("nats-alone")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def nats_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Three servers for all tests that do not disturb them: use a namespace of your own."""
    with start_nats(tmp_path_factory.mktemp("nats-three"), servers=3) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=["nats", "workers"])
def nodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningServer]]:
    """Three nodes on three servers, and three workers of one log process, each with a port of its own.

    They are for all tests: use names of your own, and start again what you kill.
    """
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "nats":
            engine = request.getfixturevalue("nats_three").url
        else:
            engine = stack.enter_context(start_log_process(folder / "log"))
        yield start_nodes(stack, folder, engine, log_prefix=new_prefix())


@pytest.fixture(params=["nats", "workers"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """What nodes of the test's own run on: a NATS server, and a log process whose workers they are."""
    if request.param == "nats":
        yield request.getfixturevalue("nats_alone").url
    else:
        with start_log_process(tmp_path / "log") as address:
            yield address


@pytest.fixture
def nats_own(tmp_path: Path) -> Iterator[NatsCluster]:
    """Three servers of the test's own, to be killed, paused and restarted."""
    with start_nats(tmp_path / "nats", servers=3) as cluster:
        yield cluster
