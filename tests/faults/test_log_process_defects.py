"""What fails in the process that keeps the log of a machine: whichever worker is asked says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.core.metering import Sample
from penstock.engines.local import LogServer
from penstock.engines.local.served_worker import OTHER_CALLS, ServedWorker
from penstock.engines.local.worker_engine import WorkerEngine
from penstock.testing import RunningServer, TooLate, wait_until
from penstock.values import Entry
from tests.api.client import ask, publish
from tests.faults.defective_machine import start_defective
from tests.node.test_metrics import value

DEFECT = "/defect"
ASKED = 8  # times: one worker has taken some of as many connections, as a rule the other, too


def fail_to_look_after_workers() -> None:
    """The loop that ends silent workers fails."""

    async def failing(self: LogServer) -> None:
        raise RuntimeError("a defect")

    LogServer._look_after = failing  # type: ignore[method-assign]


def fail_to_follow() -> None:
    """What gives entries to workers fails at those of one stream."""
    follow = LogServer._follow

    def failing(self: LogServer, entries: Sequence[Entry]) -> None:
        if entries[0].stream == DEFECT:
            raise RuntimeError("a defect")
        follow(self, entries)

    LogServer._follow = failing  # type: ignore[method-assign]


def ask_nothing() -> None:
    """Sabotage: a worker says that it lives, and no more."""

    async def show_life(self: WorkerEngine) -> None:
        self._link.book()

    WorkerEngine._show_life = show_life  # type: ignore[method-assign]


def count_nothing() -> None:
    """Sabotage: the log process tells its own counts without those of what fails."""

    async def counts(self: ServedWorker) -> list[Sample]:
        return [one for one in await ServedWorker.counts(self) if not one[1].startswith(("background", "followers"))]

    OTHER_CALLS["counts"] = (OTHER_CALLS["counts"][0], counts)


def check_ready(server: RunningServer, within: float = 20) -> None:
    """Whichever worker is asked names the loop, and is ready all the same."""

    def failing() -> list[dict[str, object]]:
        answers = [ask(server, "GET", "/ready", token=None) for _ in range(ASKED)]
        assert {(answer.status, answer.json["status"]) for answer in answers} == {(200, "ready")}
        found = [answer.json.get("failing") for answer in answers]
        return found if all(found) else []

    assert {one["loop"] for [one] in wait_until(failing, within)} == {"workers"}


def check_metrics(server: RunningServer) -> None:
    publish(server, DEFECT)
    page = ask(server, "GET", "/metrics").body.decode()
    assert page.count('penstock_background_failing{loop="workers"} 1') == 1
    assert 'penstock_background_failures_total{loop="workers",process="log"}' in page
    assert page.count('penstock_background_failing{loop="link"} 0') == 1
    assert value(server, "followers_failed_total") >= 1


def test_whichever_worker_is_asked_says_what_fails_in_the_log_process(tmp_path: Path) -> None:
    with start_defective(tmp_path / "data", fail_to_look_after_workers, fail_to_follow) as server:
        check_ready(server)
        check_metrics(server)


def test_without_either_guard_the_same_checks_find_it(tmp_path: Path) -> None:
    defects = (fail_to_look_after_workers, fail_to_follow, ask_nothing, count_nothing)
    with start_defective(tmp_path / "data", *defects) as server:
        with pytest.raises(TooLate):
            check_ready(server, within=4)
        with pytest.raises(AssertionError):
            check_metrics(server)
