"""Some of the contract suite once more, on three servers with three replicas: what a quorum could change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.engines.jetstream import JetStreamEngine, open_jetstream
from penstock.settings import LogSettings
from penstock.testing.nats import NatsCluster
from tests.cluster.homes import new_prefix
from tests.contract.test_append import (
    test_a_batch_over_several_streams_is_stored_whole,
    test_a_key_repeated_while_the_first_is_in_flight_is_a_repeat_too,
    test_entries_become_visible_in_the_order_of_their_ids,
    test_followers_have_seen_an_entry_before_its_append_is_done,
    test_the_largest_batch_may_have_a_key_and_make_its_stream,
)
from tests.contract.test_retention import (
    test_a_restart_changes_nothing,
    test_an_erased_entry_keeps_its_place,
    test_everything_trimmed_then_a_restart_then_an_append,
)

__all__ = [
    "test_a_batch_over_several_streams_is_stored_whole",
    "test_a_key_repeated_while_the_first_is_in_flight_is_a_repeat_too",
    "test_a_restart_changes_nothing",
    "test_an_erased_entry_keeps_its_place",
    "test_entries_become_visible_in_the_order_of_their_ids",
    "test_everything_trimmed_then_a_restart_then_an_append",
    "test_followers_have_seen_an_entry_before_its_append_is_done",
    "test_the_largest_batch_may_have_a_key_and_make_its_stream",
]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_engine(nats_three: NatsCluster, clock: ManualClock) -> Callable[[], JetStreamEngine]:
    settings = LogSettings(prefix=new_prefix(), replicas=3)
    return lambda: open_jetstream(nats_three.url, node="here", clock=clock, settings=settings)


@pytest.fixture
def open_durable(open_engine: Any) -> Any:
    return open_engine
