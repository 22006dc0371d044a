"""sps beside somebody who does not read: his wire costs a bounded amount, and another's device notices nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.doors.sps import wire as wires
from penstock.limits import FORMER_TOPICS, TOPIC_CHANGES
from penstock.testing import RunningServer, wait_until
from tests.api.client import Reply, ask
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside
from tests.doors.sps_client import Wire, notify_id

LARGE = b"x" * 200_000
MANY, NDJSON = b'{"data":"x"}\n' * 1_000, {"Content-Type": "application/x-ndjson"}


@contextmanager
def falling_behind(server: RunningServer) -> Iterator[Wire]:
    """A device that does not read, with more on its way than its connection and its queue take."""
    with Wire(server, tid="evil").opened() as wire:

        def is_behind() -> bool:
            for _ in range(5):
                notify_id(server, "room", LARGE, tid="evil")
            assert ask(server, "POST", "/v1/publish", MANY, NDJSON, stream="/rooms/evil").status == 201
            devices = ask(server, "GET", "/online", uid=wire.uid).json["devices"]
            return bool(devices and devices[0]["behind"] > 2_000)

        wait_until(is_behind)
        yield wire


def choose(server: RunningServer, wire: Wire, topics: str) -> Reply:
    """Other topics, under which something comes."""
    answer = ask(server, "PUT", "/rooms", uid=wire.uid, tid=topics)
    notify_id(server, "room", b"x", tid="others")
    return answer


def everlasting() -> None:
    """Former topics are kept without bound."""
    wires.TOPIC_CHANGES = wires.FORMER_TOPICS = 10**9


def are_bounded(flips: list[Reply], wide: list[Reply], same: list[int]) -> None:
    """Choices are taken up to the limits, and then refused with the reason."""
    refused = [answer for answer in (*flips, *wide) if answer.status != 200]
    assert {(answer.status, answer.code) for answer in refused} == {(503, "wire_behind")}
    assert [answer.status for answer in flips[: TOPIC_CHANGES - 1]] == [200] * (TOPIC_CHANGES - 1)
    assert 503 in {answer.status for answer in flips[-2:]}  # the other names the topics that it has
    assert wide[-1].status == 503
    assert json.loads(flips[0].body) == {"tids": ["flip0"]}
    assert set(same) <= {200, 503}


@pytest.mark.parametrize("sabotage", [None, everlasting])
def test_topics_of_a_wire_that_is_behind_are_bounded(tmp_path: Path, sabotage: Callable[[], None] | None) -> None:
    with (
        start_sabotaged(tmp_path / "data", sabotage) as server,
        beside(server) as bystander,
        Wire(server, tid="good").opened() as good,
        falling_behind(server) as few,
        falling_behind(server) as many,
    ):
        flips = [choose(server, few, f"flip{number % 2}") for number in range(TOPIC_CHANGES + 20)]
        choices = [",".join(f"t{number}x{n}" for n in range(60)) for number in range(FORMER_TOPICS // 60 + 3)]
        wide = [choose(server, many, topics) for topics in choices]
        same = [ask(server, "PUT", "/rooms", uid=few.uid, tid=f"flip{number % 2}").status for number in range(40)]
        id = notify_id(server, "room", b"still here", tid="good")
        assert good.line()["id"] == id
    if sabotage is None:
        bystander.noticed_nothing()
        are_bounded(flips, wide, same)
    else:
        with pytest.raises(AssertionError):
            are_bounded(flips, wide, same)
