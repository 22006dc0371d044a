"""Exports that are begun and not read, beside others who export."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.api.auth import Caller, open_keys
from penstock.api.v1.export import ExportApi
from penstock.errors import Busy
from penstock.limits import ENTRY_BYTES, EXPORTS
from penstock.testing import RunningServer
from tests.api.client import ask
from tests.bystander.hostile import Hostile
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

LARGE = 12  # entries of the largest size: more than the kernel takes for somebody who reads nothing


def first_come_first_served() -> None:
    """The sabotage: whoever comes first has every place."""

    @contextmanager
    def turn(self: ExportApi, caller: Caller) -> Iterator[None]:
        if self._running.total() >= self._limit:
            raise Busy("exports at once", self._limit)
        self._running[caller.subject] += 1
        try:
            yield
        finally:
            self._running[caller.subject] -= 1

    ExportApi._turn = turn  # type: ignore[method-assign]


def begin(one: Hostile, upto: int) -> bool:
    """Begin an export and read no more than the first bytes of its answer; whether it runs."""
    held = one.hold(b"")
    held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    held.sendall(one.head("GET", f"/v1/log/arrow?after=0&upto={upto}&streams=/m/x"))
    return held.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("sabotage", [None, first_come_first_served])
def test_exports_that_nobody_reads_keep_no_other_from_the_log(
    tmp_path: Path, sabotage: Callable[[], None] | None
) -> None:
    with start_sabotaged(tmp_path / "data", sabotage) as server:
        for _ in range(LARGE):
            last = ask(server, "POST", "/v1/publish", os.urandom(ENTRY_BYTES), stream="/m/x").json["id"]
        with beside(server) as bystander, Hostile(server, "/m", "export") as mallory, Hostile(server, "/m") as trudy:
            trudy.token = open_keys(server.data).issue("trudy", subscribe=("/m/x",), grants=("export",))
            begun = [begin(mallory, last) for _ in range(EXPORTS)]
            found = {"analyst": plan(server, "analyst")}
            begun += [begin(trudy, last) for _ in range(EXPORTS)]
            found["admin"] = ask(server, "GET", "/v1/log/plan", after=0).status
        bystander.noticed_nothing()

        assert sum(begun) == EXPORTS
        assert found == dict.fromkeys(("analyst", "admin"), 503 if sabotage else 200)


def plan(server: RunningServer, who: str) -> int:
    token = open_keys(server.data).issue(who, grants=("export",))
    return ask(server, "GET", "/v1/log/plan", token=token, after=0).status
