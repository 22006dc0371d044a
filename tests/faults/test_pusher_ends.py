"""A pusher that ends unexpectedly begins again, and operators can see that it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.doors.eventhorizon.cluster import ManagedPusher, Pushers
from penstock.doors.eventhorizon.local_source import LocalSource
from penstock.doors.eventhorizon.pusher import Pusher
from penstock.doors.eventhorizon.subscriptions import Wake
from penstock.engines.sqlite.registry import SqliteRegistry
from penstock.errors import VersionMismatch
from penstock.testing import RunningServer, TooLate, wait_until
from penstock.values import Record
from penstock.wire.eventhorizon import Cursor, ReadLines
from penstock.wire.eventhorizon_pusher import AppGone
from tests.api.client import ask
from tests.bystander.sabotaged import start_sabotaged
from tests.doors.eventhorizon_client import Answer, Model, add_pusher, append, create, pusher, scripted, subscribe

SUB, STREAM = "/_sub/ends", "/ends"
QUICK = {
    "eventhorizon_activity_interval": 0.05,
    "eventhorizon_push_retry": 0.05,
    "eventhorizon_push_retry_longest": 0.2,
}


def fail_once() -> None:
    """The first conversation ends with an error that nobody expects."""
    watch, watched = LocalSource.watch, []

    def refuse(self: LocalSource, id: str, wake: Wake) -> None:
        watched.append(id)
        if len(watched) == 1:
            raise RuntimeError("a defect")
        watch(self, id, wake)

    LocalSource.watch = refuse  # type: ignore[method-assign]


def refuse_what_follows_once() -> None:
    """The first page that is read while another is on its way is refused, with an error that nobody expects."""
    read_ahead, asked = Pusher._read_ahead, []

    async def refuse(self: Pusher, begin: Cursor) -> Any:
        source = self._source
        read = source.read

        async def refused(cursor: Cursor) -> ReadLines:
            raise OSError(5, "Input/output error")

        asked.append(begin)
        if len(asked) == 1:
            source.read = refused  # type: ignore[method-assign]
        try:
            return await read_ahead(self, begin)
        finally:
            source.read = read  # type: ignore[method-assign]

    Pusher._read_ahead = refuse  # type: ignore[method-assign]


def refuse_to_keep_once() -> None:
    """The registry refuses to keep that an app is gone, the first time."""
    put, refused = SqliteRegistry.put, []

    async def refuse(
        self: SqliteRegistry, key: str, value: bytes, *, expect: int | None = None, expires_ms: int | None = None
    ) -> Record:
        if b'"gone"' in value and not refused:
            refused.append(key)
            raise VersionMismatch(key, expect or 0, None)
        return await put(self, key, value, expect=expect, expires_ms=expires_ms)

    SqliteRegistry.put = refuse  # type: ignore[method-assign]


def let_pushers_end() -> None:
    """As pushers were before: what ends one, ends it until the server starts again."""

    async def live(self: Pushers, managed: ManagedPusher, pusher: Pusher) -> None:
        try:
            await pusher.run()
        except AppGone:
            await self._keep(managed, "gone")
        except Exception as error:  # noqa: BLE001 - as it was
            pusher.status.error = f"{error}"

    Pushers._live = live  # type: ignore[method-assign]


def fail_once_and_let_pushers_end() -> None:
    fail_once()
    let_pushers_end()


def refuse_to_keep_once_and_let_pushers_end() -> None:
    refuse_to_keep_once()
    let_pushers_end()


def metric(server: RunningServer, name: str) -> float:
    lines = ask(server, "GET", "/metrics").body.decode().splitlines()
    [value] = [line.rpartition(" ")[2] for line in lines if line.startswith(f"penstock_{name} ")]
    return float(value)


FAILURES = 'background_failures_total{loop="pushers.run"}'
FAILING = 'background_failing{loop="pushers.run"}'


def check_it_goes_on(server: RunningServer, within: float = 20) -> None:
    create(server, SUB, STREAM)
    subscribe(server, STREAM, SUB)
    append(server, STREAM, "x")
    model = Model(SUB)
    with scripted(model) as app:
        id = add_pusher(server, app.url)
        wait_until(lambda: model.applied.get(STREAM) == ["x"], within)
        append(server, STREAM, "y")
        wait_until(lambda: model.applied.get(STREAM) == ["x", "y"])
        wait_until(lambda: pusher(server, id)["state"] == "pushing")
        assert pusher(server, id)["error"] == "RuntimeError: a defect"
        assert (metric(server, FAILURES), metric(server, FAILING), metric(server, "pushers")) == (1, 0, 1)
        assert "failing" not in ask(server, "GET", "/ready").json


def test_a_pusher_that_ends_unexpectedly_goes_on(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", fail_once, **QUICK) as server:
        check_it_goes_on(server)


def test_the_same_check_finds_pushers_that_end_for_good(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", fail_once_and_let_pushers_end, **QUICK) as server, pytest.raises(TooLate):
        check_it_goes_on(server, within=2)


def fail_ever() -> None:
    """No conversation begins."""

    def refuse(self: LocalSource, id: str, wake: Wake) -> None:
        raise RuntimeError("a defect")

    LocalSource.watch = refuse  # type: ignore[method-assign]


def test_ready_and_the_pusher_say_that_it_fails_until_nobody_wants_it(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", fail_ever, **QUICK) as server, scripted(Model(SUB)) as app:
        id = add_pusher(server, app.url)
        wait_until(lambda: metric(server, FAILURES) >= 3)

        [failing] = ask(server, "GET", "/ready").json["failing"]
        assert failing["loop"] == "pushers.run"
        assert (metric(server, FAILING), pusher(server, id)["state"]) == (1, "failing")
        ask(server, "POST", f"/v1/pushers/{id}/pause", b"")
        assert "failing" not in ask(server, "GET", "/ready").json
        assert (metric(server, FAILING), metric(server, "pushers")) == (0, 0)


def test_a_page_that_cannot_be_read_ahead_is_read_in_its_turn(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", refuse_what_follows_once, **QUICK) as server:
        create(server, SUB, STREAM)
        subscribe(server, STREAM, SUB)
        for _ in range(3):
            append(server, STREAM, *(["x" * 1000] * 1000))
        model = Model(SUB)
        with scripted(model) as app:
            add_pusher(server, app.url)
            wait_until(lambda: len(model.applied.get(STREAM, [])) == 3000)
            assert metric(server, FAILURES) == 0


def gone(request: dict[str, Any]) -> Answer:
    return 410, {}


def check_it_is_kept(server: RunningServer, within: float = 20) -> None:
    with scripted(gone) as app:
        id = add_pusher(server, app.url)
        wait_until(lambda: pusher(server, id)["state"] == "gone", within)
        wait_until(lambda: metric(server, "pushers") == 0)
    server.kill()
    server.restart()
    assert pusher(server, id)["state"] == "gone"


def test_an_app_that_is_gone_stays_so_though_it_could_not_be_kept_at_once(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", refuse_to_keep_once, **QUICK) as server:
        check_it_is_kept(server)


def test_the_same_check_finds_an_app_whose_end_was_not_kept(tmp_path: Path) -> None:
    with (
        start_sabotaged(tmp_path / "data", refuse_to_keep_once_and_let_pushers_end, **QUICK) as server,
        pytest.raises(TooLate),
    ):
        check_it_is_kept(server, within=2)
