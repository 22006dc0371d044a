"""Patterns in which a name and `*` stand for the same levels in many ways: a stream is looked for in each of them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from penstock.core import hub, matching, recent_entries
from penstock.limits import PATTERNS
from tests.api.client import Tail, ask
from tests.bystander.hostile import Hostile, standing_still
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

STREAM = "/m" + "/a" * 15
WANTED = "/m" + "/a" * 14 + "/z"
NDJSON = {"Content-Type": "application/x-ndjson"}
COMING = 3


def all_are_looked_up_for_each_entry() -> None:
    """No pattern counts as one that takes long, and a stream is looked up again for each of its entries."""
    matching.WILD_LEVELS = 16
    hub.FoundReaders.__missing__ = lambda self, stream: self._find(stream)  # type: ignore[method-assign]


def all_are_looked_at_at_once() -> None:
    """What is in memory is looked through for one reader in one go."""
    hub.LOOKED_AT = recent_entries.LOOKED_AT = 1 << 40  # type: ignore[misc]


def patterns_with(free: int) -> list[str]:
    """For several readers, as many as each may ask for: in *free* levels a name or `*`, in all combinations."""
    found = ["/m/" + "/".join((*levels, *"a" * (14 - free), "z")) for levels in product("a*", repeat=free)]
    return [",".join(found[begin : begin + PATTERNS]) for begin in range(0, len(found), PATTERNS)]


def publish_lines(hostile: Hostile, count: int) -> None:
    """Publish so many events at once that no pattern covers."""
    reply = ask(hostile.server, "POST", "/v1/publish", b"x\n" * count, NDJSON, token=hostile.token, stream=STREAM)
    assert reply.status == 201


def follow_in_many_ways(hostile: Hostile) -> None:
    """Readers with all these patterns, none of which covers what is published then."""
    with ExitStack() as stack:
        tails = [Tail(hostile.server, streams, hostile.token) for streams in patterns_with(11)]
        for tail in tails:
            stack.enter_context(tail)
        publish_lines(hostile, 750)
        assert hostile.ask("POST", "/v1/publish", b"wanted", stream=WANTED).status == 201
        assert {tail.line()["data"] for tail in tails} == {"wanted"}


def come_to_many_entries(hostile: Hostile) -> None:
    """Readers that come at once to entries in memory, none of which their patterns cover."""
    after = hostile.ask("POST", "/v1/publish", b"x", stream="/m/x").json["id"]
    publish_lines(hostile, 8_000)
    (streams,) = patterns_with(6)
    tail = hostile.head("GET", f"/v1/tail?streams={streams}&after={after}")
    with standing_still(hostile.server):
        held = [hostile.hold(tail) for _ in range(COMING)]
    assert hostile.ask("POST", "/v1/publish", b"wanted", stream=WANTED).status == 201
    for one in held:
        take_until(one, b'"wanted"')


def take_until(one: socket.socket, words: bytes) -> None:
    one.settimeout(60)
    taken = b""
    while words not in taken:
        taken += (more := one.recv(65_536))
        assert more, taken


@pytest.mark.parametrize(
    ("attack", "sabotage"),
    [
        (follow_in_many_ways, None),
        (follow_in_many_ways, all_are_looked_up_for_each_entry),
        (come_to_many_entries, None),
        (come_to_many_entries, all_are_looked_at_at_once),
    ],
)
def test_patterns_that_take_long_to_look_up_hold_up_nobody(
    tmp_path: Path, attack: Callable[[Hostile], None], sabotage: Callable[[], None] | None
) -> None:
    with start_sabotaged(tmp_path / "data", sabotage) as server, Hostile(server, "/m") as hostile:
        with beside(server) as bystander:
            attack(hostile)
        if sabotage is None:
            bystander.noticed_nothing()
        else:
            with pytest.raises(AssertionError):
                bystander.noticed_nothing()
