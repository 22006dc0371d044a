"""The trim, what holds it back, and what an audit asks of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from penstock.api.auth import open_keys
from penstock.core.clock import ManualClock
from penstock.core.trim_limit import Bound
from penstock.doors.eventhorizon.cluster import PusherRecord
from penstock.engines.memory import MemoryEngine
from penstock.engines.sqlite import open_sqlite
from penstock.limits import PAGE_ENTRIES
from penstock.node.housekeeping import Housekeeping
from penstock.testing import RunningServer, start_server
from penstock.values import Batch, Draft
from tests.api.client import Tail, ask, publish
from tests.api.lake_rig import archive, export, record, server_with_lake, trim, value_of


@pytest.fixture
def beside_lake(tmp_path: Path) -> Iterator[RunningServer]:
    with server_with_lake(tmp_path) as server:
        for number in range(20):
            assert publish(server, f"/orders/{number % 2}", b"%d" % number).status == 201
        yield server


def bodies(server: RunningServer, **params: object) -> list[str]:
    entries = ask(server, "GET", "/v1/read", limit=1000, **params).json["entries"]
    return [entry["data"] for entry in entries]


def test_a_dry_run_changes_nothing_and_says_what_it_would_do(beside_lake: RunningServer, tmp_path: Path) -> None:
    upto = archive(beside_lake, tmp_path / "lake")

    answer = trim(beside_lake, upto=upto).json

    assert (answer["wanted"], answer["allowed"], answer["applied"]) == (upto, upto, False)
    assert (answer["trimmed"], answer["entries"]) == (0, 0)
    assert answer["watermarks"]["events"]["done"] == upto


def test_what_is_trimmed_is_read_from_the_lake(beside_lake: RunningServer, tmp_path: Path) -> None:
    upto = archive(beside_lake, tmp_path / "lake")

    answer = trim(beside_lake, upto=upto - 3, apply=True).json

    assert answer["trimmed"] == upto - 3
    assert answer["entries"] == upto - 3
    with Tail(beside_lake, ">", after=0) as tail:
        assert [line["data"] for line in tail.lines(20)] == [str(number) for number in range(20)]
    assert bodies(beside_lake, stream="/orders/1", **{"from": 4}) == [str(number) for number in range(9, 20, 2)]
    assert ask(beside_lake, "GET", "/v1/log/plan", after=0).code == "range_trimmed"


def test_an_export_with_history_has_what_was_trimmed(beside_lake: RunningServer, tmp_path: Path) -> None:
    # Given an export of all that there is, and the same rows half in the lake
    upto = archive(beside_lake, tmp_path / "lake")
    publish(beside_lake, "/orders/0", b"last")
    newest, whole = upto + 1, export(beside_lake, 0, upto + 1)
    assert trim(beside_lake, upto=upto - 3, apply=True).status == 200

    # Then an export with history is that export, and so are the slices of a plan one after the other
    assert export(beside_lake, 0, newest, history="true") == whole
    plan = ask(beside_lake, "GET", "/v1/log/plan", after=0, upto=newest, parts=4, history="true").json
    parts = [export(beside_lake, one["lo"], one["hi"], history="true") for one in plan["slices"]]
    assert pa.concat_tables(parts) == whole
    assert [one["rows"] for one in plan["slices"]] == [part.num_rows for part in parts]
    # And a token sees the streams that it may subscribe to, of both parts
    token = open_keys(beside_lake.data).issue("spark", subscribe=("/orders/1",), grants=("export",), ttl=60)
    arrow = {"after": 0, "upto": newest, "history": "true"}
    assert ask(beside_lake, "GET", "/v1/log/arrow", token=token, **arrow).status == 403
    shown = ask(beside_lake, "GET", "/v1/log/arrow", token=token, streams=">,/orders/*", **arrow)
    assert shown.status == 403
    shown = ask(beside_lake, "GET", "/v1/log/arrow", token=token, streams="/orders/1", **arrow)
    assert set(pa.ipc.open_stream(shown.body).read_all()["stream"].to_pylist()) == {"/orders/1"}
    # And beginnings lie before the trim point, unless they are asked for without history
    begin = "/v1/pipeline/consumers/"
    assert ask(beside_lake, "POST", begin + "a", b'{"position":"earliest","history":true}').json == {"after": 0}
    assert ask(beside_lake, "POST", begin + "b", b'{"position":"earliest"}').json == {"after": upto - 3}
    assert ask(beside_lake, "GET", "/v1/pipeline/position", time="2020-01-01").json == {"after": 0}


def test_without_a_lake_there_is_no_history(shared_server: RunningServer) -> None:
    for path in ("/v1/log/plan", "/v1/log/arrow"):
        asked = ask(shared_server, "GET", path, after=0, upto=0, history="true")
        assert (asked.status, asked.code) == (404, "lake_missing")
        assert ask(shared_server, "GET", path, after=0, upto=0, history="false").status == 200
        assert ask(shared_server, "GET", path, after=0, upto=0, history="maybe").status == 400


def test_nothing_goes_that_could_not_be_read_back(beside_lake: RunningServer, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    upto = archive(beside_lake, lake)
    file = next(lake.glob("events/data/*/*.parquet"))
    mark = lake / "lake.json"
    ledger, events = value_of(beside_lake, "lake/ledger"), value_of(beside_lake, "lake/events")
    broken: list[tuple[Callable[[], object], Callable[[], object], str]] = [
        (lambda: record(beside_lake, "lake/ledger", {**ledger, "done": 2}),
         lambda: record(beside_lake, "lake/ledger", ledger),
         "ledger is in the lake up to id 2"),
        (lambda: record(beside_lake, "lake/events", {**events, "done": 3}),
         lambda: record(beside_lake, "lake/events", events),
         "events is in the lake up to id 3"),
        (lambda: file.rename(tmp_path / "away"), lambda: (tmp_path / "away").rename(file), "reach up to id 0 only"),
        (lambda: record(beside_lake, "lake/events", {**events, "tables": {}}),
         lambda: record(beside_lake, "lake/events", events), "reach up to id 0 only"),
        (lambda: mark.write_text('{"id":"other"}'), lambda: mark.write_text('{"id":"made-by-hand"}'), "not the lake"),
        (lambda: mark.unlink(), lambda: mark.write_text('{"id":"made-by-hand"}'), "not the lake"),
    ]  # fmt: skip
    for break_it, mend_it, reason in broken:
        break_it()
        answer = trim(beside_lake, upto=upto, apply=True)
        mend_it()
        assert (answer.status, answer.code) == (409, "trim_refused")
        assert reason in answer.json["error"]["message"]
        assert trim(beside_lake, upto=upto).json["trimmed"] == 0
    assert trim(beside_lake, upto=upto, apply=True).json["trimmed"] == upto


def test_a_server_that_has_no_lake_open_trims_nothing_of_an_archived_log(server: RunningServer, tmp_path: Path) -> None:
    publish(server, "/a")
    upto = archive(server, tmp_path / "lake")

    assert "lake.url" in trim(server, upto=upto, apply=True).json["error"]["message"]


def test_without_a_pipeline_the_trim_is_free(server: RunningServer) -> None:
    last = publish(server, "/a").json["id"]

    assert trim(server, upto=last, apply=True).json["trimmed"] == last
    asked = ask(server, "GET", "/v1/why", entry=last, recipient="alice")
    assert (asked.status, asked.code) == (410, "range_trimmed")
    assert "lake.url" in asked.json["error"]["remedy"]


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"upto":-1}', b'{"upto":1,"keep":"1d"}', b'{"keep":"soon"}'])
def test_a_trim_that_cannot_be_understood_is_refused(shared_server: RunningServer, body: bytes) -> None:
    assert ask(shared_server, "POST", "/v1/log/trim", body).status == 400


@pytest.mark.parametrize(("keep", "apply", "status"), [("-1d", True, 400), ("-1d", False, 400), ("0s", False, 200)])
def test_a_negative_age_drops_nothing(shared_server: RunningServer, keep: str, apply: bool, status: int) -> None:
    publish(shared_server, "/kept/whole")

    assert trim(shared_server, keep=keep, apply=apply).status == status
    assert len(ask(shared_server, "GET", "/v1/read", stream="/kept/whole").json["entries"]) >= 1


async def test_housekeeping_trims_no_further_than_the_lake_allows(tmp_path: Path) -> None:
    clock = ManualClock()
    allowed = Bound(4, "events is in the lake up to id 4")

    async def bound() -> Bound:
        return allowed

    async with MemoryEngine(clock=clock) as engine:
        for number in range(10):
            await engine.log.append(Batch((Draft("/a", b"%d" % number),)))
        clock.advance(7200)
        for keep in ({"keep_seconds": 3600.0}, {"keep_bytes": 1}):
            house = Housekeeping(engine.log, engine.mailbox, engine.registry, clock, tmp_path, bound=bound, **keep)  # type: ignore[arg-type]
            await house.round()
            assert engine.log.trimmed_upto == 4


def test_heads_are_those_of_every_stream_the_systems_too(shared_server: RunningServer) -> None:
    publish(shared_server, "/audited/b")
    publish(shared_server, "/audited/_hidden")

    found: dict[str, list[object]] = {}
    after: str | None = ""
    while after is not None:
        page = ask(shared_server, "GET", "/v1/audit/heads", after=after, limit=3).json
        found |= {head[0]: head[1:] for head in page["heads"]}
        after = page["after"]
    named = ask(shared_server, "POST", "/v1/audit/heads", b'{"streams":["/audited/_hidden","/nobody"]}').json["heads"]

    assert {"/", "/audited", "/audited/b", "/_sub", "/_ledger"} <= set(found)
    assert found["/audited/b"][0] == 1
    assert [(name, next_index) for name, next_index, *_ in named] == [("/audited/_hidden", 1)]


def test_a_cut_lies_above_everything_that_was_recorded(shared_server: RunningServer) -> None:
    entry = publish(shared_server, "/cut").json["id"]
    with Tail(shared_server, "/cut", after=0, consumer="reader-of-cut") as tail:
        tail.line()
        cut = ask(shared_server, "POST", "/v1/audit/cut").json
    batches = ask(shared_server, "GET", "/v1/read", streams="/_ledger", after=entry, limit=1000).json["entries"]

    assert [batch for batch in batches if "reader-of-cut" in str(batch) and batch["id"] <= cut["upto"]]


def test_months_and_mailboxes_are_shown(shared_server: RunningServer) -> None:
    months = ask(shared_server, "GET", "/v1/retention/months").json["months"]
    boxes = ask(shared_server, "GET", "/v1/audit/mailboxes", month=months[-1]["month"]).json

    assert len(months) >= 2
    assert set(months[0]) == {"month", "recipients", "pending", "bytes"}
    assert boxes == {"mailboxes": [], "after": None}, "nobody is on next month yet"
    assert ask(shared_server, "GET", "/v1/audit/mailboxes", month="1999_01").status == 404
    assert "pushers" in ask(shared_server, "GET", "/v1/audit/pushers").json


def test_an_audit_is_told_of_every_pusher(tmp_path: Path) -> None:
    """Also of those after the first page of the registry."""

    async def keep_paused_pushers() -> None:
        async with open_sqlite(tmp_path / "data", node="n") as engine:
            await asyncio.gather(*(engine.registry.put(f"pushers/{id}", record) for id in ids))

    ids = [f"{number:05}" for number in range(PAGE_ENTRIES + 1)]
    paused = PusherRecord("http://127.0.0.1:9/", "", True, "admin", True, (), 1, "paused")
    record = msgspec.json.encode(paused)
    (tmp_path / "data").mkdir()
    asyncio.run(keep_paused_pushers())
    with start_server(tmp_path / "data") as server:
        told = ask(server, "GET", "/v1/audit/pushers").json["pushers"]

    assert [one["id"] for one in told] == ids
    assert {one["state"] for one in told} == {"paused"}


def test_only_the_admin_may_ask(shared_server: RunningServer) -> None:
    for method, path in (("POST", "/v1/log/trim"), ("POST", "/v1/audit/cut"), ("GET", "/v1/audit/heads")):
        assert ask(shared_server, method, path, token=None).status == 401
