"""Two drivers take turns on a table; one that has died or fallen silent is not waited for. No JVM is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pipeline import table_lease
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.commit import Intent, Turn
from penstock.pipeline.lake import Lake, open_lake
from penstock.pipeline.table_lease import LEASE_SECONDS, WaitClock, is_gone, own_name
from penstock.testing import RunningServer

OTHER = "elsewhere/7/7"


class Watch(WaitClock):
    """A clock that goes on while somebody waits; *meanwhile* happens then."""

    def __init__(self, *meanwhile: object) -> None:
        self.at, self._meanwhile = 0.0, list(meanwhile)
        self.now, self.sleep = lambda: self.at, self._sleep  # type: ignore[method-assign,assignment]

    def _sleep(self, seconds: float) -> None:
        self.at += seconds
        if self._meanwhile:
            self._meanwhile.pop(0)()  # type: ignore[operator]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(tmp_path / "lake")


@pytest.fixture
def client(shared_server: RunningServer, request: pytest.FixtureRequest) -> PipelineClient:
    return PipelineClient(shared_server.url, shared_server.admin_token)


def held(client: PipelineClient, table: str, monkeypatch: pytest.MonkeyPatch, lake: Lake, holder: str = OTHER) -> Turn:
    """A turn that another process has begun."""
    with monkeypatch.context() as patched:
        patched.setattr("penstock.pipeline.commit.own_name", lambda: holder)
        return Turn(client, lake, table)


def test_a_driver_waits_until_the_other_has_finished(
    client: PipelineClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = held(client, "waits", monkeypatch, lake)
    other.intend(Intent(0, 10, ()))
    watch = Watch(lambda: None, lambda: other.publish())

    turn = Turn(client, lake, "waits", patience=watch)

    assert (turn.done, turn.intent, watch.at) == (10, None, 2 * table_lease.LOOK_SECONDS)


def test_without_a_lease_two_drivers_only_ever_take_from_each_other(
    client: PipelineClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotage: nobody waits. Whoever works longer than the other's pause never ends."""
    monkeypatch.setattr("penstock.pipeline.commit.wait_for", lambda client, key, patience: client.get(key))
    slow = held(client, "steals", monkeypatch, lake)
    slow.intend(Intent(0, 10, ()))
    for _ in range(3):
        quick = Turn(client, lake, "steals")
        with pytest.raises(RecordChanged):
            slow.publish()
        slow = held(client, "steals", monkeypatch, lake)
        with pytest.raises(RecordChanged):
            quick.publish()


def test_a_driver_that_beats_is_waited_for_and_one_that_is_silent_is_not(
    client: PipelineClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = held(client, "beats", monkeypatch, lake)
    watch = Watch(*[other.beat] * 200)

    turn = Turn(client, lake, "beats", patience=watch)

    assert watch.at == pytest.approx(200 * table_lease.LOOK_SECONDS + LEASE_SECONDS, abs=1)
    assert turn.fence == other.fence + 1
    with pytest.raises(RecordChanged):
        other.beat()


def test_the_process_of_this_machine_that_has_ended_is_not_waited_for(
    client: PipelineClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "from penstock.pipeline.table_lease import own_name; print(own_name(), flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", said], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    assert not is_gone(name)
    assert not is_gone(own_name())
    held(client, "dead", monkeypatch, lake, name)
    child.communicate("\n")
    assert is_gone(name)

    watch = Watch()
    Turn(client, lake, "dead", patience=watch)

    assert watch.at == 0
    assert not is_gone(OTHER), "of another machine nobody can say"
    assert not is_gone("nonsense")
