"""Whoever hands a job to the driver is told when it will never be done. No JVM is needed."""

from __future__ import annotations

import time

import pytest

from penstock.pipeline import handed_jobs
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.handed_jobs import PREFIX, TaskFailed, hand_over, is_forsaken
from penstock.testing import RunningServer


def beat(client: PipelineClient, process: str) -> None:
    """A driver says that it lives."""
    version = client.get("pipeline/driver").version
    state = {"process": process, "seen_ms": int(time.time() * 1000), "lake": "/lake"}
    client.put("pipeline/driver", state, expect=version)


class DiesUnderIt(PipelineClient):
    """A driver begins with what is asked for, dies, and the next one is there at once."""

    def put(self, key: str, value, *, expect: int):  # type: ignore[no-untyped-def]
        kept = super().put(key, value, expect=expect)
        if key.startswith(PREFIX):
            super().put(key, {**value, "state": "running", "by": "host/1/1"}, expect=kept.version)
            beat(PipelineClient(self.url, self.token), "host/2/2")
        return kept


def test_a_command_whose_driver_died_under_its_task_ends(shared_server: RunningServer) -> None:
    client = DiesUnderIt(shared_server.url, shared_server.admin_token)

    with pytest.raises(TaskFailed) as failed:
        hand_over(client, "archive", {})

    assert failed.value.code == "driver_gone"
    assert client.list(PREFIX) == {}


class StillWaiting(Exception):
    """It would wait for ever."""


def test_the_same_check_finds_who_looks_for_any_driver(
    shared_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotage: a driver that is there is taken for the one that has the task."""

    def no_sleep(seconds: float) -> None:
        raise StillWaiting

    monkeypatch.setattr(handed_jobs, "is_forsaken", lambda task, driver: not driver or not driver["alive"])
    monkeypatch.setattr(handed_jobs.time, "sleep", no_sleep)
    with pytest.raises(StillWaiting):
        hand_over(DiesUnderIt(shared_server.url, shared_server.admin_token), "archive", {})


@pytest.mark.parametrize(
    ("state", "by", "driver", "forsaken"),
    [
        ("asked", "", None, True),
        ("asked", "", {"alive": False}, True),
        ("asked", "", {"alive": True, "process": "b"}, False),
        ("running", "a", {"alive": True, "process": "a"}, False),
        ("running", "a", {"alive": True, "process": "b"}, True),
    ],
)
def test_who_is_forsaken(state: str, by: str, driver: dict[str, object] | None, forsaken: bool) -> None:
    assert is_forsaken({"state": state, "by": by}, driver) is forsaken
