"""Nodes that are killed under load: what was acknowledged is in the log, once, in the order of its publisher."""

from __future__ import annotations

import pytest

from penstock.testing import RunningServer, wait_until
from tests.cluster.homes import new_prefix
from tests.cluster.test_nodes import Publisher, bodies

Nodes = list[RunningServer]


@pytest.mark.parametrize("count", [2, pytest.param(1, marks=pytest.mark.long)])
def test_killed_nodes_lose_and_double_no_publish(nodes: Nodes, count: int) -> None:
    publishers = [Publisher(nodes[n:] + nodes[:n], f"/killed/{new_prefix()}") for n in range(3)]
    for one in publishers:
        one.start()
    _wait_for_more(publishers)
    for node in nodes[:count]:
        node.kill()
    _wait_for_more(publishers)
    for node in nodes[:count]:
        node.restart()
    _wait_for_more(publishers)
    for one in publishers:
        one.ending.set()
        one.join(30)

    for one in publishers:
        assert one.failed == []
        for node in nodes:
            wait_until(lambda node=node, one=one: bodies(node, one.stream) == one.acknowledged)


def _wait_for_more(publishers: list[Publisher]) -> None:
    before = [len(one.acknowledged) for one in publishers]
    wait_until(lambda: all(len(p.acknowledged) > b + 5 for p, b in zip(publishers, before, strict=True)))
