"""A storage that refuses: background loops go on, and `/ready` and `/metrics` say which of them fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.core.background import Background, Loop
from penstock.core.clock import ManualClock
from penstock.engines.jetstream.connection import JetStreamRefused
from penstock.engines.memory import MemoryEngine
from penstock.engines.sqlite.registry import SqliteRegistry
from penstock.errors import PenstockError
from penstock.node.housekeeping import Housekeeping
from penstock.testing import RunningServer, TooLate, wait_until, wait_until_async
from penstock.values import Batch, Draft
from tests.api.client import ask, publish
from tests.bystander.sabotaged import start_sabotaged

FULL = JetStreamRefused(10047, "insufficient storage resources available")  # no PenstockError: as JetStream says it


class Full:
    """Storage that refuses one of its calls."""

    def __init__(self, storage: object, call: str) -> None:
        self._storage, self._call = storage, call
        self.full = True

    def __getattr__(self, name: str) -> Any:
        if self.full and name == self._call:
            return self._refuse
        return getattr(self._storage, name)

    async def _refuse(self, *_: object, **__: object) -> None:
        raise FULL


@pytest.mark.parametrize(
    ("part", "call"),
    [("mailbox", "make_month"), ("log", "expire"), ("registry", "expire"), ("log", "trim"), ("log", "stored_bytes")],
)
async def test_a_round_of_housekeeping_does_the_rest_when_one_call_is_refused(
    tmp_path: Path, part: str, call: str
) -> None:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        parts = {name: getattr(engine, name) for name in ("log", "mailbox", "registry")}
        full = parts[part] = Full(parts[part], call)
        house = Housekeeping(*cast("Any", parts.values()), clock, tmp_path, keep_seconds=60)
        days: list[int] = []

        async def daily() -> None:
            days.append(1)

        house.daily = daily
        background = Background()
        await engine.log.append(Batch((Draft("/a", b"old"),)))
        await engine.registry.put("a", b"", expires_ms=clock.now_ms() + 1)
        clock.advance(100)
        loop = background.every(0.001, "housekeeping", house.round, at_once=True)
        try:
            await wait_until_async(lambda: background.failures["housekeeping"] >= 2)
            assert days, "what came after the refusal was not done"
            assert call == "trim" or engine.log.trimmed_upto
            full.full = False
            await wait_until_async(lambda: not background.failing)
            assert engine.log.trimmed_upto
            assert len(await engine.mailbox.months()) == 2
        finally:
            await loop.stop()


# ── on a server ───────────────────────────────────────────────────────────────────────────────


def refuse_to_expire() -> None:
    """The registry refuses one of the calls of housekeeping, with an error that nobody expects."""

    async def refuse(self: SqliteRegistry, limit: int = 0) -> int:
        raise FULL

    SqliteRegistry.expire = refuse  # type: ignore[method-assign]


def refuse_and_let_loops_end() -> None:
    """As loops were before: an unexpected error ends them for good."""
    refuse_to_expire()

    async def unguarded(self: Loop) -> bool:
        try:
            await self._work()
        except PenstockError as error:
            self._home.failed(self._name, error)
        return True

    Loop._round = unguarded  # type: ignore[method-assign]


def check_it_is_said(server: RunningServer, within: float = 20) -> None:
    ready: Callable[[], Any] = lambda: ask(server, "GET", "/ready", token=None)  # noqa: E731
    wait_until(lambda: "failing" in ready().json, within)
    answer = ready()
    assert answer.status == 200, "it serves, and should get requests"
    assert answer.json["status"] == "ready"
    [failing] = answer.json["failing"]
    assert failing["loop"] == "housekeeping"
    assert failing["rounds"] >= 1
    assert failing["since"].endswith("Z")
    metrics = ask(server, "GET", "/metrics").body.decode()
    assert 'penstock_background_failing{loop="housekeeping"} 1' in metrics
    assert 'penstock_background_failures_total{loop="housekeeping"}' in metrics
    assert publish(server, "/a").status == 201


def test_ready_names_a_loop_that_fails_and_stays_200(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", refuse_to_expire) as server:
        check_it_is_said(server)


def test_the_same_check_finds_a_server_whose_loops_end(tmp_path: Path) -> None:
    with (
        start_sabotaged(tmp_path / "data", refuse_and_let_loops_end) as server,
        pytest.raises(TooLate),
    ):
        check_it_is_said(server, within=2)


def test_a_server_that_is_well_names_none(shared_server: RunningServer) -> None:
    assert "failing" not in ask(shared_server, "GET", "/ready", token=None).json
