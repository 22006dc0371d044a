"""Reading over Penstock's API: pages, tails, lists, why."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from urllib.parse import quote

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from penstock.api.auth import open_keys
from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import Tail, ask, publish
from tests.api.lake_rig import archive, server_with_lake, trim


@pytest.fixture
def stream() -> str:
    return f"/r/{uuid.uuid4().hex}"


def token(server: RunningServer, *arguments: str) -> str:
    """A token made as an operator makes it."""
    command = [sys.executable, "-m", "penstock", "token", "--data", str(server.data), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_pages_by_index_go_through_a_stream(shared_server: RunningServer, stream: str) -> None:
    for number in range(7):
        publish(shared_server, stream, b"%d" % number)

    seen, index, more = [], 0, True
    while more:
        page = ask(shared_server, "GET", "/v1/read", **{"stream": stream, "from": index, "limit": 3}).json
        seen += [entry["data"] for entry in page["entries"]]
        index, more = page["entries"][-1]["index"] + 1, page["more"]

    assert seen == [str(number) for number in range(7)]


def test_a_cursor_of_an_answer_is_where_reading_goes_on(shared_server: RunningServer, stream: str) -> None:
    cursor = publish(shared_server, stream, b"first").json["cursor"]
    publish(shared_server, stream, b"second")

    page = ask(shared_server, "GET", "/v1/read", cursor=cursor).json

    assert [entry["data"] for entry in page["entries"]] == ["second"]


def test_ids_order_what_several_streams_hold(shared_server: RunningServer, stream: str) -> None:
    first = publish(shared_server, f"{stream}/a").json["id"]
    second = publish(shared_server, f"{stream}/b").json["id"]

    page = ask(shared_server, "GET", "/v1/read", streams=f"{stream}/*", after=first).json

    assert [entry["id"] for entry in page["entries"]] == [second]
    assert page["upto"] >= second


@pytest.mark.parametrize(
    "params",
    [
        {}, {"stream": "/a", "cursor": "/a:0:0"}, {"stream": "/a", "from": "-1"}, {"stream": "/a", "from": "1e3"},
        {"streams": "/a", "from": "x"}, {"stream": "/a", "after": "x"},
        {"stream": "/a", "limit": "0"}, {"stream": "/a", "limit": "1001"}, {"stream": "/a", "meta": "yes"},
        {"cursor": "/a:x:0"}, {"cursor": "nonsense"}, {"streams": ""}, {"streams": "/a,,/b"},
        {"streams": "/a", "after": "x"},
        {"stream": "/a", "after": "9" * 30}, {"stream": "/a", "unknown": "1"}, {"streams": "/a*"},
    ],
)  # fmt: skip
def test_questions_that_mean_nothing_are_refused(shared_server: RunningServer, params: dict[str, str]) -> None:
    reply = ask(shared_server, "GET", "/v1/read", **params)

    assert reply.status in (400, 404)
    assert reply.json["error"]["message"]


def test_a_stream_that_is_not_there_is_not_found(shared_server: RunningServer, stream: str) -> None:
    assert ask(shared_server, "GET", "/v1/read", stream=stream).status == 404
    assert ask(shared_server, "GET", "/v1/read", cursor=f"{stream}:0:0").status == 404


def test_a_page_begins_at_a_time(shared_server: RunningServer, stream: str) -> None:
    lines = [publish(shared_server, stream, b"%d" % number).json["id"] for number in range(3)]
    shown = ask(shared_server, "GET", "/v1/read", streams=stream).json["entries"]

    def since(time: str) -> list[int]:
        return [one["id"] for one in ask(shared_server, "GET", "/v1/read", streams=stream, since=time).json["entries"]]

    assert since("1970-01-01T00:00:00Z") == lines
    assert since(shown[1]["time"])[-2:] == lines[1:]
    assert since("2100-01-01") == []
    for time in ("yesterday", "", "2026-13-01"):
        assert ask(shared_server, "GET", "/v1/read", streams=stream, since=time).status == 400


def test_a_page_by_time_reaches_into_the_lake_and_over_what_is_gone(tmp_path: Path) -> None:
    def first(server: RunningServer) -> str:
        read = ask(server, "GET", "/v1/read", streams="/old", since="1970-01-01T00:00:00Z").json
        return str(read["entries"][0]["data"])

    with server_with_lake(tmp_path) as server:
        publish(server, "/old", b"archived")
        trim(server, upto=archive(server, tmp_path / "lake"), apply=True)
        publish(server, "/old", b"new")
        assert ask(server, "GET", "/v1/pipeline").status == 200
        assert first(server) == "archived"
    with start_server(tmp_path / "data") as server:  # without its lake
        assert ask(server, "GET", "/v1/read", streams="/old", after=0).status == 410
        assert first(server) == "new"


def test_a_tail_brings_what_was_missed_and_then_what_comes(shared_server: RunningServer, stream: str) -> None:
    first = publish(shared_server, stream, b"0").json["id"]
    publish(shared_server, stream, b"1")
    with Tail(shared_server, stream, after=first) as tail:
        assert tail.line()["data"] == "1"
        publish(shared_server, stream, b"2")
        assert tail.line()["data"] == "2"


def test_a_tail_over_a_pattern_sees_every_stream_of_it(shared_server: RunningServer, stream: str) -> None:
    with Tail(shared_server, f"{stream}/*,{stream}/>,{stream}/a") as tail:
        publish(shared_server, f"{stream}/a", b"a")
        publish(shared_server, f"{stream}/b/c", b"c")
        assert [line["data"] for line in tail.lines(2)] == ["a", "c"]


def test_a_long_replay_is_complete_and_in_order(shared_server: RunningServer, stream: str) -> None:
    lines = b"\n".join(b"%d" % number for number in range(30_000))
    publish(shared_server, stream, lines, Content_Type="application/x-ndjson")

    with Tail(shared_server, stream, after=0) as tail:
        assert [int(line["data"]) for line in tail.lines(30_000)] == list(range(30_000))


def test_a_tail_over_a_websocket_brings_the_same_lines(shared_server: RunningServer, stream: str) -> None:
    first = publish(shared_server, stream, b"0").json["id"]
    publish(shared_server, stream, b"1")
    url = f"ws://127.0.0.1:{shared_server.port}/v1/tail?streams={stream}&after={first}&consumer=socket{stream}"
    headers = {"Authorization": f"Bearer {shared_server.admin_token}"}
    with connect(url, additional_headers=headers) as socket:
        assert json.loads(socket.recv(timeout=10))["data"] == "1"
        entry = publish(shared_server, stream, b"2").json["id"]
        assert json.loads(socket.recv(timeout=10))["id"] == entry
        answer = ask(shared_server, "GET", "/v1/why", entry=entry, recipient=f"socket{stream}").json

    assert answer["verdict"] == "sent"


def test_a_slow_tail_costs_a_position_and_catches_up(tmp_path: Path) -> None:
    body = b"x" * 20_000
    with start_server(tmp_path / "data", hub_recent_bytes="1MiB") as server, Tail(server, "/slow") as slow:
        for _ in range(500):
            publish(server, "/slow", body)  # 10 MB: more than sockets and tails hold
        (row,) = ask(server, "GET", "/v1/consumers").json["consumers"]
        assert row["lag"] > 0
        assert [line["index"] for line in slow.lines(500)] == list(range(500))
        assert "penstock_behind_total 0.0" not in ask(server, "GET", "/metrics").body.decode()


def test_streams_are_listed_by_name(shared_server: RunningServer, stream: str) -> None:
    for name in ("c", "a", "b"):
        publish(shared_server, f"{stream}/{name}")

    page = ask(shared_server, "GET", "/v1/streams", pattern=f"{stream}/*", limit=2).json
    rest = ask(shared_server, "GET", "/v1/streams", pattern=f"{stream}/*", after=page["after"]).json

    assert [row["stream"] for row in page["streams"] + rest["streams"]] == [f"{stream}/{n}" for n in "abc"]
    assert page["streams"][0]["next_index"] == 1


def test_consumers_are_listed_with_their_lag(shared_server: RunningServer, stream: str) -> None:
    with Tail(shared_server, stream, consumer="dashboard"):
        listed = ask(shared_server, "GET", "/v1/consumers").json["consumers"]
        mine = [row for row in listed if row["streams"] == [stream]]

        assert [(row["door"], row["recipient"], row["lag"]) for row in mine] == [("v1", "dashboard", 0)]
    wait_until(lambda: stream not in str(ask(shared_server, "GET", "/v1/consumers").json))


def test_why_tells_that_an_entry_was_sent(shared_server: RunningServer, stream: str) -> None:
    with Tail(shared_server, stream, consumer=f"desk{stream}") as tail:
        entry = publish(shared_server, stream, b"a").json["id"]
        assert tail.line()["id"] == entry
        answer = ask(shared_server, "GET", "/v1/why", entry=entry, recipient=f"desk{stream}").json

    assert answer["verdict"] == "sent"
    assert stream in answer["words"]
    assert "over v1" in answer["words"]


def test_a_consumer_confirms_by_coming_back(shared_server: RunningServer, stream: str) -> None:
    name = f"desk{stream}"
    with Tail(shared_server, f"{stream},{stream}/b", consumer=name) as tail:
        ids = [publish(shared_server, one, b"a").json["id"] for one in (stream, f"{stream}/b", stream)]
        assert [tail.line()["id"] for _ in ids] == ids

    def verdicts() -> list[str]:
        return [ask(shared_server, "GET", "/v1/why", entry=id, recipient=name).json["verdict"] for id in ids]

    with Tail(shared_server, stream, consumer=name, after=ids[1]):
        assert verdicts() == ["acked", "sent", "sent"]  # it does not speak of the other stream
    with Tail(shared_server, f"{stream}/>", consumer=name, after=ids[2]):
        assert verdicts() == ["acked", "acked", "acked"]


def test_why_tells_why_not(shared_server: RunningServer, stream: str) -> None:
    entry = publish(shared_server, stream, b"a").json["id"]
    with Tail(shared_server, stream, consumer=f"late{stream}"), Tail(shared_server, "/other", consumer=f"else{stream}"):
        verdicts = {
            name: ask(shared_server, "GET", "/v1/why", entry=entry, recipient=f"{name}{stream}").json["verdict"]
            for name in ("late", "else", "nobody")
        }

    assert verdicts == {"late": "no_record", "else": "not_subscribed", "nobody": "no_record"}
    assert ask(shared_server, "GET", "/v1/why", entry=2**60, recipient="a").status == 404
    assert ask(shared_server, "GET", "/v1/why", entry="no-such-message", recipient="a").status == 404
    assert ask(shared_server, "GET", "/v1/why", entry="", recipient="a").status == 400


def test_why_outlives_a_restart(server: RunningServer) -> None:
    with Tail(server, "/a", consumer="desk") as tail:
        entry = publish(server, "/a").json["id"]
        tail.line()
    server.restart()

    assert ask(server, "GET", "/v1/why", entry=entry, recipient="desk").json["verdict"] == "sent"


def test_grants_decide_what_is_read(shared_server: RunningServer, stream: str) -> None:
    reader = token(shared_server, "--sub", "alice", "--subscribe", f"{stream}/*")
    publish(shared_server, f"{stream}/a", b"mine")

    assert ask(shared_server, "GET", "/v1/read", token=reader, stream=f"{stream}/a").status == 200
    for path, params in [
        ("/v1/read", {"stream": "/_ledger"}),
        ("/v1/read", {"streams": ">"}),
        ("/v1/tail", {"streams": f"{stream}/>"}),
        ("/v1/streams", {}),
        ("/v1/consumers", {}),
        ("/v1/why", {"entry": 1, "recipient": "a"}),
    ]:
        reply = ask(shared_server, "GET", path, token=reader, **params)
        assert reply.status == 403, path
        assert "insufficient_scope" in reply.headers["www-authenticate"]
    assert ask(shared_server, "POST", "/v1/publish", b"x", token=reader, stream=f"{stream}/a").status == 403


def test_a_bare_wildcard_shows_nobody_elses_mail(shared_server: RunningServer) -> None:
    reader = token(shared_server, "--sub", "carol", "--subscribe", ">")
    with Tail(shared_server, ">", token=reader) as tail:
        publish(shared_server, "/users/dave", b"private")
        publish(shared_server, "/users/carol", b"own")
        publish(shared_server, "/orders", b"public")
        seen = [line["stream"] for line in tail.lines(2)]

    assert seen == ["/users/carol", "/orders"]
    page = ask(shared_server, "GET", "/v1/read", token=reader, streams=">", limit=1000).json
    assert not [e for e in page["entries"] if e["stream"] == "/users/dave"]


@pytest.mark.parametrize("subject", [">", "*"])
def test_a_subject_that_is_a_wildcard_opens_nobodys_mail(shared_server: RunningServer, subject: str) -> None:
    publish(shared_server, "/users/7", b"private")
    reader = token(shared_server, "--sub", subject, "--subscribe", ">")

    assert ask(shared_server, "GET", "/v1/read", token=reader, streams=f"/users/{subject}", after=0).status == 403
    page = ask(shared_server, "GET", "/v1/read", token=reader, streams=">", limit=1000).json
    assert not [entry for entry in page["entries"] if entry["stream"].startswith("/users/")]


def short_lived(server: RunningServer, stream: str) -> str:
    return open_keys(server.data).issue("alice", subscribe=(stream,), ttl=4)


def test_a_tail_ends_with_its_token_and_goes_on_with_a_new_one(shared_server: RunningServer, stream: str) -> None:
    first = publish(shared_server, stream, b"0").json["id"]
    with Tail(shared_server, stream, token=short_lived(shared_server, stream), after=first - 1) as tail:
        assert tail.line()["data"] == "0"
        assert tail.response.read() == b""  # a proper end: http.client raises for half a chunk
    publish(shared_server, stream, b"1")

    with Tail(shared_server, stream, token=short_lived(shared_server, stream), after=first) as tail:
        assert tail.line()["data"] == "1"


def test_a_tail_over_a_websocket_says_that_its_token_has_expired(shared_server: RunningServer, stream: str) -> None:
    publish(shared_server, stream, b"0")
    headers = {"Authorization": f"Bearer {short_lived(shared_server, stream)}"}
    url = f"ws://127.0.0.1:{shared_server.port}/v1/tail?streams={stream}&after=0"
    with connect(url, additional_headers=headers) as socket:
        assert json.loads(socket.recv(timeout=10))["data"] == "0"
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)

    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "the token has expired")


def test_a_token_has_so_many_live_answers_and_no_more(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", server_connections_per_token=2) as server:
        publish(server, "/a", b"x")
        alice, bob = (open_keys(server.data).issue(name, subscribe=("/a",)) for name in ("alice", "bob"))
        socket_url = f"ws://127.0.0.1:{server.port}/v1/tail?streams=/a"
        # Given one chunked answer and one WebSocket of the same subject
        with (
            Tail(server, "/a", token=alice),
            connect(socket_url, additional_headers={"Authorization": f"Bearer {alice}"}),
        ):
            # When there is to be a third, of either kind, then nothing is opened
            refused = ask(server, "GET", "/v1/tail", token=alice, streams="/a")
            assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "too_many_open", "5")
            with (
                pytest.raises(InvalidStatus, match="429"),
                connect(socket_url, additional_headers={"Authorization": f"Bearer {alice}"}),
            ):
                pass
            assert len(ask(server, "GET", "/v1/consumers").json["consumers"]) == 2
            # and others are not kept out, nor is what ends at once
            with Tail(server, "/a", token=bob, after=0) as other:
                assert other.line()["data"] == "x"
            assert ask(server, "GET", "/v1/read", token=alice, stream="/a").status == 200
            assert ask(server, "HEAD", "/v1/tail", token=alice, streams="/a").status == 200

        # Then both places are free again, however often
        for _ in range(3):
            wait_until(lambda: not ask(server, "GET", "/v1/consumers").json["consumers"])
            with Tail(server, "/a", token=alice, after=0) as one, Tail(server, "/a", token=alice, after=0) as two:
                assert [one.line()["data"], two.line()["data"]] == ["x", "x"]


def test_operations_answer(shared_server: RunningServer) -> None:
    assert ask(shared_server, "GET", "/health", token=None).json["status"] == "ok"
    assert ask(shared_server, "GET", "/ready", token=None).json["status"] == "ready"
    assert ask(shared_server, "GET", "/__version__", token=None).status == 200
    assert ask(shared_server, "GET", "/metrics", token=None).status == 401
    metrics = ask(shared_server, "GET", "/metrics").body.decode()
    for name in ("penstock_connections", "penstock_requests_total", "penstock_publish_seconds_bucket", "penstock_lag"):
        assert name in metrics


def test_every_path_of_the_api_is_described(shared_server: RunningServer) -> None:
    described = ask(shared_server, "GET", "/openapi.json", token=None).json

    for path, operations in described["paths"].items():
        for method in operations:
            assert ask(shared_server, method.upper(), path, token=None).status != 404, path
    for wrong in ("/v1/nothing", "/v1/publish/" + quote("/a", safe="")):
        assert ask(shared_server, "GET", wrong).status == 404


def test_a_stop_is_clean_and_loses_nothing(server: RunningServer) -> None:
    with Tail(server, "/a") as tail:
        place = publish(server, "/a", b"kept").json
        tail.line()
        assert server.stop() == 0
        assert tail.response.readline() == b""
    server.restart()

    assert ask(server, "GET", "/v1/read", stream="/a").json["entries"][0]["id"] == place["id"]
    ledger = ask(server, "GET", "/v1/read", streams="/_ledger", limit=1000).json["entries"]
    marks = [
        json.loads(entry.get("data", "{}").split("\n")[0] or "{}").get("mark") for entry in ledger if "data" in entry
    ]
    assert marks.count("open") == 2
    assert marks.count("close") == 1


def test_a_token_that_asks_too_often_is_told_to_wait(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", server_requests_per_token=2) as server:
        replies = [ask(server, "GET", "/v1/streams") for _ in range(12)]

    refused = [reply for reply in replies if reply.status != 200]
    assert refused
    assert {(reply.status, reply.code) for reply in refused} == {(429, "rate_exceeded")}
    assert int(refused[0].headers["retry-after"]) >= 1
