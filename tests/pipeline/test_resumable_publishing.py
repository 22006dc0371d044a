"""What is fed back goes in once, also when something was erased between a kill and the next run. No JVM is needed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.errors import InputInvalid
from penstock.pipeline import resumable_publishing
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.commit import Faults
from penstock.pipeline.jobs import replay
from penstock.pipeline.lake import open_lake
from penstock.pipeline.publishing import NewEvent
from penstock.pipeline.resumable_publishing import JobRecord, Throttle, begin_or_resume, publish_numbered
from penstock.testing import RunningServer
from tests.api.client import ask
from tests.pipeline.by_hand import make_here

_names = count(1)
EVENTS = 2500


class Killed(BaseException):
    """As if the process had ended."""


class KilledAfter(Faults):
    def __init__(self, requests: int) -> None:
        self._left = requests

    def at(self, point: str) -> None:
        self._left -= point == resumable_publishing.AFTER_REQUEST
        if self._left < 0:
            raise Killed


def numbered(stream: str, erased: set[int], after: int) -> Iterator[tuple[int, NewEvent]]:
    return ((n, NewEvent(stream, b"%d" % n)) for n in range(1, EVENTS + 1) if n > after and n not in erased)


def killed_then_erased(server: RunningServer, erased: set[int]) -> list[int]:
    """Which events are in the stream after a job was killed, something was erased, and the job went on."""
    client, name = PipelineClient(server.url, server.admin_token), f"cuts-{next(_names)}"
    stream = f"/{name}"

    def run(gone: set[int], faults: Faults) -> None:
        job = begin_or_resume(client, "replays", name, dict, {})
        publish_numbered(job, name, numbered(stream, gone, job.done), Throttle(1e9), faults)

    with pytest.raises(Killed):
        run(set(), KilledAfter(1))  # two requests of 1,000 are in the log, and the record says nothing of it
    run(erased, Faults())
    found: list[int] = []
    while page := ask(server, "GET", "/v1/read", stream=stream, limit=1000, **{"from": len(found)}).json["entries"]:
        found += [int(entry["data"]) for entry in page]
    return found


@pytest.mark.parametrize("erased", [set(), {5}, {1000}, set(range(1, 1001)), {2001}, {1, 999, 1001, 2500}])
def test_a_job_that_was_killed_goes_on_without_doubles_whatever_was_erased(
    shared_server: RunningServer, erased: set[int]
) -> None:
    found = killed_then_erased(shared_server, erased)

    # What was sent before it was erased may be there; nothing is there twice, and nothing else is missing.
    assert len(found) == len(set(found))
    assert set(range(1, EVENTS + 1)) - set(found) <= erased


def test_the_same_check_finds_cuts_that_nobody_wrote_down(
    shared_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        resumable_publishing, "_plans", lambda numbered, cuts: iter([list(resumable_publishing._requests(numbered))])
    )

    found = killed_then_erased(shared_server, {5})

    assert len(found) - len(set(found)) >= 999


def test_who_is_overtaken_by_another_run_gives_way(shared_server: RunningServer) -> None:
    client, name = PipelineClient(shared_server.url, shared_server.admin_token), f"cuts-{next(_names)}"
    one = begin_or_resume(client, "replays", name, dict, {})
    other = JobRecord(client, one.key, one.version, dict(one.value))
    one.note(7, cuts=[9])

    with pytest.raises(RecordChanged, match="another run"):
        other.note(3, cuts=[5])
    assert client.get(one.key).value["cuts"] == [9]


@pytest.mark.parametrize(
    ("option", "text"),
    [("after", "²"), ("after", "-1"), ("upto", "9" * 5000), ("upto", "1e3"), ("since", "yesterday"), ("until", "²")],
)
def test_a_range_that_cannot_be_meant_is_refused(
    shared_server: RunningServer, tmp_path: Path, option: str, text: str
) -> None:
    client = PipelineClient(shared_server.url, shared_server.admin_token)
    place = make_here(client, open_lake(tmp_path / "lake"))
    options = {"name": f"range-{next(_names)}", "streams": "/a", "to": "/b", option: text}

    with pytest.raises(InputInvalid, match=f"--{option}"):
        replay.run(place, options)
    assert client.get(f"pipeline/replays/{options['name']}").version == 0
