"""Replay, campaign and retention: what is fed back goes in once, whatever happens on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

from penstock.errors import InputInvalid
from penstock.pipeline import jobs, resumable_publishing
from penstock.pipeline.commit import Faults
from penstock.pipeline.jobs import JobOutcome, Workplace, archive, campaign, ledger, replay, retention
from penstock.pipeline.lake import ACTIVITY
from penstock.pipeline.publishing import NewEvent
from penstock.pipeline.resumable_publishing import JobRecord, OtherOptions, Throttle
from penstock.testing import RunningServer, start_server
from tests.api.client import Tail, ask
from tests.spark.conftest import make_place
from tests.spark.filling import publish


class Stopped(Exception):
    """The job was ended from outside."""


class StopsAfter(Faults):
    """Ends a job after so many requests."""

    def __init__(self, requests: int) -> None:
        self.left = requests

    def at(self, point: str) -> None:
        self.left -= point == resumable_publishing.AFTER_REQUEST
        if self.left < 0:
            raise Stopped


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Workplace]]:
    """A server that reads its lake, with some orders in it."""
    folder = tmp_path_factory.mktemp("publishing")
    with start_server(folder / "data", lake_url=folder / "lake") as server:
        place = make_place(spark, server, folder / "lake")
        for number in range(3):
            publish(place.client, f"/orders/{number}", (b"%d-%d" % (number, event) for event in range(1500)))
        place.client.call("POST", "/v1/publish", {"stream": "/orders/0"}, b"two\nlines")
        archive.run(place, {})
        ledger.run(place, {})
        yield server, place


World = tuple[RunningServer, Workplace]


def bodies(server: RunningServer, stream: str) -> list[str]:
    found: list[str] = []
    more = True
    while more:
        page = ask(server, "GET", "/v1/read", **{"stream": stream, "from": len(found), "limit": 1000}).json
        found += [entry["data"] for entry in page["entries"]]
        more = page["more"]
    return found


def with_faults(place: Workplace, faults: Faults) -> Workplace:
    return Workplace(place.spark, place.client, place.lake, faults)


def finish(job: ModuleType, place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Run a job turn by turn, to its end."""
    while (outcome := job.run(place, options)).more:
        assert outcome.data["more"]
    return outcome


# ── replay ─────────────────────────────────────────────────────────────────────────────────────


def test_a_replay_that_is_stopped_again_and_again_adds_everything_once(world: World) -> None:
    server, place = world
    options = {"name": "monday", "streams": "/orders/*", "to": "/again", "rate": "1000000"}
    expected = [
        *bodies(server, "/orders/0")[:-1],
        *bodies(server, "/orders/1"),
        *bodies(server, "/orders/2"),
        "two\nlines",
    ]

    with pytest.raises(Stopped):
        replay.run(with_faults(place, StopsAfter(1)), options)
    with pytest.raises(Stopped):
        replay.run(with_faults(place, StopsAfter(2)), options)
    publish(place.client, "/orders/0", [b"later"])
    archive.run(place, {})
    finish(replay, place, options)
    again = finish(replay, place, options)

    assert bodies(server, "/again") == expected
    assert again.data["sent"] >= len(expected)
    first = ask(server, "GET", "/v1/read", stream="/again", limit=1).json["entries"][0]
    assert first["attributes"] == {"replay": "monday"}


def test_a_replay_goes_on_as_it_was_begun(world: World) -> None:
    _, place = world
    options = {"name": "fixed", "streams": "/orders/1", "to": "/fixed", "upto": "10", "rate": "1000000"}
    finish(replay, place, options)

    with pytest.raises(OtherOptions):
        replay.run(place, {**options, "upto": "20"})


def test_a_range_of_time_goes_to_one_user(world: World) -> None:
    server, place = world
    times = ask(server, "GET", "/v1/read", stream="/orders/2", limit=1).json["entries"][0]["time"]
    options = {"name": "timed", "streams": "/orders/2", "user": "alice", "since": times, "rate": "1000000"}

    finish(replay, place, options)

    assert bodies(server, "/users/alice") == bodies(server, "/orders/2")


@pytest.mark.parametrize(
    "options",
    [
        {"name": "x", "to": "/a"},
        {"name": "x", "streams": "/a"},
        {"name": "x", "streams": "/a", "to": "/b", "user": "c"},
        {"name": "", "streams": "/a", "to": "/b"},
        {"name": "a/b", "streams": "/a", "to": "/b"},
        {"name": "x", "streams": "/a", "to": "/b", "after": "-1"},
        {"name": "x", "streams": "/a", "to": "/b", "since": "monday"},
        {"name": "x", "streams": "/a", "to": "/b", "rate": "0"},
    ],
)
def test_a_replay_that_cannot_be_understood_is_refused(world: World, options: Mapping[str, str]) -> None:
    with pytest.raises(InputInvalid):
        replay.run(world[1], options)


# ── campaigns ──────────────────────────────────────────────────────────────────────────────────


def people(folder: Path, count: int = 40, **columns: list[Any]) -> Path:
    """A list of recipients, in no order."""
    numbers = [(number * 7) % count for number in range(count)]
    table = {"user": [f"p{number:03d}" for number in numbers], "text": [f"hello {number}" for number in numbers]}
    path = folder / "people.parquet"
    parquet.write_table(pa.table({**table, **columns}), path)
    return path


def accepted(server: RunningServer, name: str, count: int = 40) -> Counter[str]:
    """How often each recipient of a campaign got something."""
    return Counter(
        {f"p{n:03d}": len(bodies(server, f"/{name}/p{n:03d}")) for n in range(count) if exists(server, name, n)}
    )


def exists(server: RunningServer, name: str, number: int) -> bool:
    return ask(server, "GET", "/v1/read", stream=f"/{name}/p{number:03d}").status == 200


def run_in_pieces(place: Workplace, options: Mapping[str, str], source: Path) -> None:
    """A campaign that is stopped twice, and whose source changes meanwhile."""
    for requests in (5, 20):
        with pytest.raises(Stopped):
            campaign.run(with_faults(place, StopsAfter(requests)), options)
        people(source.parent, 60)
    finish(campaign, place, options)
    finish(campaign, place, options)


def test_nobody_of_a_campaign_is_written_to_twice(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, place = world
    source = people(tmp_path)
    # Given a list that several tasks copy
    monkeypatch.setattr(jobs, "TASK_ROWS", 5)
    together = "spark.sql.adaptive.coalescePartitions.enabled"
    place.spark.conf.set(together, "false")
    options = {"name": "spring", "source": str(source), "key": "user", "body": "text", "to": "/spring/{key}"}

    try:
        run_in_pieces(place, {**options, "rate": "100000"}, source)
    finally:
        place.spark.conf.unset(together)

    assert len(place.client.get("pipeline/campaigns/spring").value["files"]) > 4
    assert accepted(server, "spring") == Counter({f"p{number:03d}": 1 for number in range(40)})
    assert not exists(server, "spring", 50), "the list was copied when it had 40 rows"
    assert bodies(server, "/spring/p007") == ["hello 7"]


def test_the_same_check_finds_a_campaign_that_forgets_its_numbers(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotage: every run publishes under a producer of its own, from the beginning."""
    server, place = world
    source = people(tmp_path)
    options = {"name": "forgetful", "source": str(source), "key": "user", "body": "text", "to": "/forgetful/{key}"}
    runs = iter(range(100))

    def forgetful(
        job: JobRecord, producer: str, numbered: Any, throttle: Throttle, faults: Faults, seconds: float
    ) -> bool:
        parts = [campaign.ListPart(f"_campaigns/forgetful/{name}", rows) for name, rows in job.value["files"]]
        rows = campaign._events(place.lake.store, parts, 0, options["to"], "")
        return resumable_publishing.publish_numbered(job, f"{producer}~{next(runs)}", rows, throttle, faults)

    monkeypatch.setattr(campaign, "publish_numbered", forgetful)
    run_in_pieces(place, {**options, "rate": "100000"}, source)

    assert max(accepted(server, "forgetful").values()) > 1


def test_a_list_may_be_csv_or_a_frame(world: World, tmp_path: Path) -> None:
    server, place = world
    (tmp_path / "list.csv").write_text("user,body\nc1,one\nc2,two\n")
    finish(campaign, place, {"name": "csv", "source": str(tmp_path / "list.csv"), "key": "user", "rate": "1000"})
    frame = place.spark.createDataFrame([("f1", b"\x00\xff")], "user STRING, body BINARY")
    campaign.send(place, frame, {"name": "frame", "key": "user", "type": "greeting", "rate": "1000"})

    assert (bodies(server, "/users/c1"), bodies(server, "/users/c2")) == (["one"], ["two"])
    entry = ask(server, "GET", "/v1/read", stream="/users/f1").json["entries"][0]
    assert (entry["data_base64"], entry["type"]) == ("AP8=", "greeting")


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([("a", "x"), ("a", "y")], "more than once: a"),
        ([(None, "x")], "have no 'user'"),
        ([("a", None)], "have no 'body'"),
        ([("a b", "x")], "stream name"),
    ],
)
def test_a_list_that_cannot_be_sent_is_refused_before_anything_goes(
    world: World, rows: list[tuple[str | None, str | None]], wrong: str
) -> None:
    _, place = world
    frame = place.spark.createDataFrame(rows, "user STRING, body STRING")

    with pytest.raises(InputInvalid, match=wrong):
        campaign.send(place, frame, {"name": "bad", "key": "user"})
    assert place.client.get("pipeline/campaigns/bad").version == 0


def test_the_pace_is_kept() -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    throttle = Throttle(10, lambda: now[0], sleep)
    for _ in range(5):
        throttle.take(2)

    assert sum(slept) == pytest.approx(0.8)


def test_requests_carry_the_number_of_their_last_event() -> None:
    numbered = [
        (3, NewEvent("/a", b"x")),
        (5, NewEvent("/a", b"y")),
        (8, NewEvent("/b", b"z")),
        (9, NewEvent("/b", b"1\n2")),
    ]

    found = [(len(request.events), last) for request, last in resumable_publishing._requests(iter(numbered))]

    assert found == [(2, 5), (1, 8), (1, 9)]


def test_a_job_gives_way_after_its_turn_and_goes_on_in_the_next(world: World) -> None:
    server, place = world
    frame = place.spark.createDataFrame([(f"t{n}", f"{n}") for n in range(5)], "user STRING, body STRING")
    options = {"name": "turns", "key": "user", "to": "/turns/{key}", "rate": "1000"}

    outcomes = [campaign.send(place, frame, options, seconds=0) for _ in range(6)]

    assert [outcome.data["done"] for outcome in outcomes] == [1, 2, 3, 4, 5, 5]
    assert [outcome.more for outcome in outcomes] == [True] * 5 + [False]
    assert bodies(server, "/turns/t3") == ["3"]


# ── retention ──────────────────────────────────────────────────────────────────────────────────


def test_retention_reports_and_trims_only_when_told_to(world: World) -> None:
    server, place = world
    archive.run(place, {})
    ledger.run(place, {})

    dry = retention.run(place, {"keep": "0s"})
    trimmed_before = ask(server, "GET", "/v1/pipeline").json["trimmed"]
    done = retention.run(place, {"keep": "0s", "apply": ""})

    assert (trimmed_before, dry.data["applied"], dry.exit_code) == (0, False, 0)
    assert "--apply" in dry.words
    assert done.data["trim"]["trimmed"] == dry.data["trim"]["upto"] > 4500
    assert [month["recipients"] for month in done.data["months"]] == [0, 0]
    assert all(f"  {month['month']}    0 recipients" in done.words for month in done.data["months"])
    with Tail(server, "/orders/1", after=0) as tail:
        assert [line["data"] for line in tail.lines(1500)] == [f"1-{number}" for number in range(1500)]


def test_retention_refuses_on_a_watermark_that_stands_still(world: World) -> None:
    server, place = world
    publish(place.client, "/orders/2", [b"not archived"])
    kept = place.client.get("lake/ledger")
    place.client.put("lake/ledger", {**kept.value, "done_ms": 1}, expect=kept.version)
    before = ask(server, "GET", "/v1/pipeline").json["trimmed"]

    outcome = retention.run(place, {"keep": "0s", "apply": ""})

    assert (outcome.exit_code, outcome.data["stale"], outcome.data["applied"]) == (1, ["ledger"], False)
    assert ask(server, "GET", "/v1/pipeline").json["trimmed"] == before


def test_user_agents_are_counted_by_how_long_they_were_silent(spark: SparkSession) -> None:
    now = datetime(2026, 11, 15, tzinfo=UTC)
    silent = {"a": 10, "b": 31, "c": 59, "d": 61, "e": 400}
    rows = [("webpush", name, now, now - timedelta(days=days), 1) for name, days in silent.items()]
    rows += [("sps", "f", now, now - timedelta(days=99), 1)]

    found = retention.transform(spark.createDataFrame(rows, ACTIVITY), now).collect()

    assert {row["days"]: row["count"] for row in found} == {30: 2, 60: 2}
