"""What hostile clients do through `/v1` and the doors hurts nobody on a node of a cluster either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.testing import NatsCluster, RunningServer, start_nodes
from tests.bystander import test_doors_catalogue as doors
from tests.bystander import test_eventhorizon_catalogue as eventhorizon
from tests.bystander import test_v1_catalogue as v1
from tests.bystander import test_webpush_catalogue as webpush
from tests.bystander.catalogue import run
from tests.bystander.hostile import Hostile
from tests.cluster.homes import new_prefix


@pytest.fixture(scope="module")
def node(nats_alone: NatsCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_node(nats_alone, tmp_path_factory.mktemp("hostile")) as one:
        yield one


@contextmanager
def start_node(nats: NatsCluster, folder: Path) -> Iterator[RunningServer]:
    settings = {"log_prefix": new_prefix(), "log_replicas": 1, "webpush_stored_most": 50}
    settings |= doors.SETTINGS | eventhorizon.SETTINGS
    with ExitStack() as stack:
        (one,) = start_nodes(stack, folder, nats.url, 1, **settings)
        yield one


@pytest.mark.parametrize("behaviour", v1.CATALOGUE, ids=lambda behaviour: behaviour.__name__)
def test_nobody_notices_a_hostile_client_of_a_node(node: RunningServer, behaviour: Callable[[Hostile], None]) -> None:
    v1.check(node, behaviour)


@pytest.mark.parametrize("door", doors.CATALOGUE)
def test_nothing_that_one_peer_of_a_node_does_hurts_another(node: RunningServer, door: str) -> None:
    run(node, *doors.CATALOGUE[door])


def test_nothing_that_a_user_agent_or_a_sender_does_at_a_node_hurts_another(node: RunningServer) -> None:
    run(node, webpush.innocent, webpush.ATTACKS)


def test_nobody_notices_a_hostile_app_of_a_node(nats_alone: NatsCluster, tmp_path: Path) -> None:
    with start_node(nats_alone, tmp_path) as node, eventhorizon.innocent(node) as app:
        for behaviour in eventhorizon.CATALOGUE:
            eventhorizon.check(node, app, behaviour)
