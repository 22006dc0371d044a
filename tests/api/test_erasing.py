"""`POST /v1/log/erase`: bodies go for good, from the log, from memory, and with word for the lake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.core.hub import Hub
from penstock.testing import RunningServer
from penstock.values import Batch, Draft, Kind
from tests.api.client import Reply, Tail, ask, publish
from tests.api.lake_rig import archive, server_with_lake, trim
from tests.doors.trickle_client import made, post
from tests.doors.webpush_place import Place, place


def erase(server: RunningServer, token: str | None = "", **wanted: object) -> Reply:
    return ask(server, "POST", "/v1/log/erase", json.dumps(wanted).encode(), token=token)


def shown(server: RunningServer, stream: str) -> list[object]:
    """The bodies of a stream, None for tombstones."""
    entries = ask(server, "GET", "/v1/read", stream=stream, meta="true", **{"from": 0}).json["entries"]
    return [entry.get("data") for entry in entries if entry.get("index") is not None]


def requests(server: RunningServer) -> list[object]:
    entries = ask(server, "GET", "/v1/read", stream="/_erased", **{"from": 0}).json["entries"]
    return [json.loads(entry["data"]) for entry in entries]


@pytest.fixture
def filled(server: RunningServer) -> tuple[RunningServer, list[int]]:
    return server, [publish(server, "/secrets", b"s%d" % number).json["id"] for number in range(4)]


def test_an_event_is_erased_by_its_id(filled: tuple[RunningServer, list[int]]) -> None:
    server, ids = filled

    answer = erase(server, ids=[ids[1]])

    assert (answer.status, answer.json["entries"]) == (200, 1)
    assert [body for body in shown(server, "/secrets") if body] == ["s0", "s2", "s3"]
    assert requests(server) == [{"ids": [ids[1]]}]
    assert erase(server, ids=[ids[1]]).json["entries"] == 0, "once more does no harm"


def test_a_whole_stream_is_erased_up_to_now(filled: tuple[RunningServer, list[int]]) -> None:
    server, ids = filled

    assert erase(server, stream="/secrets").json["entries"] == 4
    publish(server, "/secrets", b"later")

    assert [body for body in shown(server, "/secrets") if body] == ["later"]
    assert requests(server) == [{"stream": "/secrets", "upto": ids[3]}]


def test_nobody_who_comes_back_gets_it_from_memory(filled: tuple[RunningServer, list[int]]) -> None:
    server, ids = filled
    erase(server, ids=ids[:3])

    with Tail(server, "/secrets", after=0) as tail:
        assert tail.line()["data"] == "s3"


@pytest.mark.parametrize("forget", [True, False])
async def test_a_hub_that_keeps_what_was_erased_is_found_out(tmp_path: Path, forget: bool) -> None:
    async with place(tmp_path) as node:
        node.hub.forget_recent = node.hub.forget_recent if forget else (lambda: None)  # type: ignore[method-assign]
        assert await after_an_erase(node) == ([] if forget else [b"secret"])


async def after_an_erase(node: Place) -> list[bytes]:
    """What a hub serves to somebody who comes when the only event was erased."""
    appended = await node.engine.log.append(Batch((Draft("/secrets", b"secret"),)))
    await node.engine.log.erase([appended.last.id])
    hub: Hub = node.hub
    hub.forget_recent()
    return [entry.body for entry in hub._recent.select(("/secrets",), 0, 10).entries if entry.kind is Kind.DATA]


def test_what_moved_to_the_lake_is_asked_for_as_well(tmp_path: Path) -> None:
    with server_with_lake(tmp_path) as server:
        ids = [publish(server, "/secrets", b"s%d" % number).json["id"] for number in range(3)]
        trim(server, upto=archive(server, tmp_path / "lake"), apply=True)

        answer = erase(server, ids=ids[:1])

        assert (answer.status, answer.json["entries"]) == (200, 0), "the log has it no more; the lake is the job's"
        assert requests(server) == [{"ids": ids[:1]}]


def test_the_parts_of_a_large_segment_go_with_it(server: RunningServer) -> None:
    channel = made(server, record="true")
    for number, size in enumerate((5, 3 << 20, 5)):
        assert post(server, channel, number, bytes(size)).status == 200
    ids: dict[int, int] = {}
    page = {"upto": 0, "more": True}
    while page["more"]:  # a segment of 3 MiB is more than one answer shows
        page = ask(server, "GET", "/v1/read", streams="/channels/>", after=page["upto"], limit=1000).json
        ids |= {entry["index"]: entry["id"] for entry in page["entries"] if "index" in entry}

    assert erase(server, ids=[ids[1]]).json["entries"] == 1

    assert requests(server) == [{"ids": list(range(ids[1], ids[2]))}]
    assert ids[2] - ids[1] >= 3


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ({}, 400),
        ({"ids": [1], "stream": "/secrets"}, 400),
        ({"ids": ["x"]}, 400),
        ({"everything": True}, 400),
        ({"ids": [10**9]}, 404),
        ({"ids": [-1]}, 404),
        ({"ids": [1]}, 400),  # the log's own first line
        ({"ids": list(range(1001))}, 413),
        ({"stream": "/nobody"}, 404),
        ({"stream": "/_ledger"}, 400),
        ({"stream": "no/slash"}, 400),
    ],
)
def test_what_cannot_be_erased_is_refused_and_nothing_changes(
    shared_server: RunningServer, wanted: dict[str, object], status: int
) -> None:
    before = ask(shared_server, "GET", "/v1/audit/heads", after="/_e", limit=1).json["heads"]

    answer = erase(shared_server, **wanted)

    assert answer.status == status
    assert set(answer.json["error"]) == {"code", "message", "remedy"}
    assert ask(shared_server, "GET", "/v1/audit/heads", after="/_e", limit=1).json["heads"] == before


def test_only_the_admin_erases(shared_server: RunningServer) -> None:
    assert erase(shared_server, token=None, ids=[1]).status == 401
