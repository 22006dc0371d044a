"""`/v1/pipeline`: records under compare-and-set, beginnings that stay, and news that are waited for."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.api.auth import open_keys
from penstock.client.http import ApiError
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.testing import RunningServer, wait_until
from tests.api.client import Reply, ask, publish


def put(server: RunningServer, key: str, value: Any, expect: int, token: str | None = "") -> Reply:
    return ask(server, "PUT", f"/v1/pipeline/records/{key}", json.dumps(value).encode(), token=token, expect=expect)


def get(server: RunningServer, key: str) -> Any:
    return ask(server, "GET", f"/v1/pipeline/records/{key}").json


def begin(server: RunningServer, consumer: str, **wanted: Any) -> Reply:
    return ask(server, "POST", f"/v1/pipeline/consumers/{consumer}", json.dumps(wanted).encode())


def exporter(server: RunningServer) -> str:
    return open_keys(server.data).issue("spark", grants=("export",), ttl=60)


# ── records ────────────────────────────────────────────────────────────────────────────────────


def test_a_record_is_changed_only_from_the_version_that_was_seen(shared_server: RunningServer) -> None:
    assert get(shared_server, "lake/made") == {"version": 0, "value": {}}
    first = put(shared_server, "lake/made", {"done": 1}, 0).json["version"]

    assert put(shared_server, "lake/made", {"done": 9}, 0).status == 409
    assert put(shared_server, "lake/made", {"done": 2}, first).status == 200
    assert put(shared_server, "lake/made", {"done": 3}, first).code == "version_mismatch"
    assert get(shared_server, "lake/made")["value"] == {"done": 2}


def test_records_are_listed_and_removed(shared_server: RunningServer) -> None:
    put(shared_server, "pipeline/listed/a", {"n": 1}, 0)
    put(shared_server, "pipeline/listed/b", {"n": 2}, 0)

    listed = ask(shared_server, "GET", "/v1/pipeline/records", prefix="pipeline/listed/").json["records"]
    assert [(one["key"], one["value"]["n"]) for one in listed] == [("pipeline/listed/a", 1), ("pipeline/listed/b", 2)]
    assert ask(shared_server, "DELETE", "/v1/pipeline/records/pipeline/listed/a").status == 204
    assert get(shared_server, "pipeline/listed/a")["version"] == 0


@pytest.mark.parametrize("key", ["nodes/local/epoch", "pushers/1", "lakes", "pipeline", "eventhorizon/server"])
def test_other_records_of_the_registry_are_out_of_reach(shared_server: RunningServer, key: str) -> None:
    assert ask(shared_server, "GET", f"/v1/pipeline/records/{key}").status == 400
    assert put(shared_server, key, {}, 0).status == 400
    assert ask(shared_server, "DELETE", f"/v1/pipeline/records/{key}").status == 400


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{", b"\xff"])
def test_a_record_is_an_object(shared_server: RunningServer, body: bytes) -> None:
    assert ask(shared_server, "PUT", "/v1/pipeline/records/lake/bad", body, expect=0).status == 400
    assert get(shared_server, "lake/bad")["version"] == 0


def test_only_the_admin_moves_watermarks(shared_server: RunningServer) -> None:
    token = exporter(shared_server)

    assert put(shared_server, "lake/events2", {"done": 10**9}, 0, token).status == 403
    assert put(shared_server, "pipeline/tasks/x", {"state": "asked"}, 0, token).status == 403
    assert put(shared_server, "pipeline/sinks/mine", {"last": 1}, 0, token).status == 200
    assert ask(shared_server, "GET", "/v1/pipeline", token=token).status == 200


@pytest.mark.parametrize("path", ["", "/news", "/records?prefix=lake/", "/records/lake/events", "/position?time=2026"])
def test_strangers_learn_nothing(shared_server: RunningServer, path: str) -> None:
    reader = open_keys(shared_server.data).issue("reader", subscribe=(">",), ttl=60)

    assert ask(shared_server, "GET", f"/v1/pipeline{path}", token=None).status == 401
    assert ask(shared_server, "GET", f"/v1/pipeline{path}", token=reader).status == 403


# ── where consumers begin ──────────────────────────────────────────────────────────────────────


def test_whoever_asks_first_decides_where_a_consumer_begins(shared_server: RunningServer) -> None:
    publish(shared_server, "/pipeline/begin")
    first = begin(shared_server, "one", position="latest").json["after"]
    publish(shared_server, "/pipeline/begin")

    assert begin(shared_server, "one", position="latest").json["after"] == first
    assert begin(shared_server, "one", id=3).json["after"] == first
    assert begin(shared_server, "two", position="earliest").json["after"] == 0
    assert begin(shared_server, "three", id=2).json["after"] == 2


def test_of_many_who_ask_at_once_one_decides(shared_server: RunningServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: begin(shared_server, "race", id=number).json["after"], range(8)))

    assert len(set(answers)) == 1


def test_a_time_is_the_last_id_before_it(shared_server: RunningServer) -> None:
    last = publish(shared_server, "/pipeline/time").json["id"]

    assert begin(shared_server, "past", time="2020-01-01T00:00:00Z").json["after"] == 0
    assert begin(shared_server, "future", time="2099-01-01T00:00:00Z").json["after"] >= last
    assert ask(shared_server, "GET", "/v1/pipeline/position", time="2020-01-01").json == {"after": 0}


@pytest.mark.parametrize(
    "wanted", [{}, {"position": "newest"}, {"id": -1}, {"id": 1, "position": "latest"}, {"time": "noon"}, {"at": 1}]
)
def test_a_beginning_that_means_nothing_is_refused_and_not_kept(shared_server: RunningServer, wanted: Any) -> None:
    assert begin(shared_server, "refused", **wanted).status == 400
    assert get(shared_server, "pipeline/consumers/refused")["version"] == 0
    assert begin(shared_server, "known", position="earliest").status == 200
    assert begin(shared_server, "known", **wanted).status == 400  # also where the answer would be known


# ── news ───────────────────────────────────────────────────────────────────────────────────────


def test_news_are_waited_for_at_the_server(server: RunningServer) -> None:
    client = PipelineClient(server.url, server.admin_token)
    newest = client.newest()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.newest, newest, wait=30)
        # Given that it waits, and has not simply not been sent yet
        assert wait_until(waiting.running)
        assert client.newest() == newest

        published = publish(server, "/news").json["id"]

        assert waiting.result(10) >= newest + 1
        assert client.newest() >= published


def test_a_job_that_is_handed_in_wakes_the_driver(server: RunningServer) -> None:
    client = PipelineClient(server.url, server.admin_token)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.newest, 2**62, wait=50)
        for number in range(1000):  # whichever of these comes while it waits
            if waiting.done():
                break
            client.put(f"pipeline/tasks/{number}", {"state": "asked"}, expect=0)
        assert waiting.result(10) == client.newest()


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "inf", "soon"])
def test_a_wait_is_between_nothing_and_a_minute(shared_server: RunningServer, wait: str) -> None:
    assert ask(shared_server, "GET", "/v1/pipeline/news", wait=wait).status == 400


def test_without_a_wait_the_answer_comes_at_once(shared_server: RunningServer) -> None:
    newest = ask(shared_server, "GET", "/v1/pipeline/news", after=2**60).json["id"]

    assert newest == ask(shared_server, "GET", "/ready").json["upto"]


# ── the state, and the pipeline's own client ───────────────────────────────────────────────────


def test_the_state_shows_how_far_the_lake_is(server: RunningServer) -> None:
    put(server, "lake/events", {"fence": 3, "done": 2, "done_ms": 5, "intent": None}, 0)
    put(server, "lake/id", {"id": "x", "path": "/somewhere"}, 0)

    state = ask(server, "GET", "/v1/pipeline").json

    assert state["tables"]["events"] == {
        "done": 2, "lag": state["newest"] - 2, "done_ms": 5, "fence": 3, "working": False,
    }  # fmt: skip
    assert (state["lake"], state["driver"], state["supervisor"]) == ("/somewhere", None, None)


def test_a_driver_that_is_silent_counts_as_gone(server: RunningServer) -> None:
    put(server, "pipeline/driver", {"pid": 1, "seen_ms": 1}, 0)

    assert ask(server, "GET", "/v1/pipeline").json["driver"] == {"pid": 1, "seen_ms": 1, "alive": False}


def test_the_client_tells_refusals_from_lost_races(shared_server: RunningServer) -> None:
    client = PipelineClient(shared_server.url, shared_server.admin_token, patience=0)
    kept = client.put("pipeline/mine/one", {"a": 1}, expect=0)

    assert client.get("pipeline/mine/one") == kept
    assert list(client.list("pipeline/mine/")) == ["pipeline/mine/one"]
    with pytest.raises(RecordChanged):
        client.put("pipeline/mine/one", {"a": 2}, expect=0)
    with pytest.raises(ApiError, match="400"):
        client.get("elsewhere/one")
    client.delete("pipeline/mine/one")
    assert client.get("pipeline/mine/one").version == 0


def test_a_server_that_is_away_is_asked_again(server: RunningServer, tmp_path: Path) -> None:
    client = PipelineClient(server.url, server.admin_token)
    server.stop()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.newest)
        server.restart()

        assert asking.result(30) >= 0
