"""The app's side: the seed's requests word for word, the original's rules, and one transaction for all of it."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import threading
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.receiver import Line, Receiver, parse_event
from penstock.errors import InputInvalid
from penstock.wire import webhooks
from tests.client.databases import Connect, postgres

SUB = "/_sub/example-sub"

# The requests of the protocol's description, as they stand there.
QUERY_ID = b"""
{
	"SubscriptionId": "_query_",
	"Push": {
		"FromOffset": "/:-1:-1",
		"Lines": []
	}
}
"""
QUERY_OFFSET = b"""
{
	"SubscriptionId": "/_sub/example-sub",
	"Push": {
		"FromOffset": "/_sub/example-sub:-1:-1",
		"Lines": []
	}
}
"""
PUSH_SUBSCRIPTION = rb"""
{
	"SubscriptionId": "/_sub/example-sub",
	"Push": {
		"FromOffset": "/_sub/example-sub:0:0:127.0.0.1",
		"Lines": [{
			"PtrAfter": "/_sub/example-sub:0:65:127.0.0.1",
			"Content": "{\"subscription_ids\":[],\"ts\":\"2017-03-27T16:53:51.655Z\"}",
			"MetaType": "Created",
			"MetaPayload": {
				"subscription_ids": [],
				"ts": "2017-03-27T16:53:51.655Z"
			}
		}, {
			"PtrAfter": "/_sub/example-sub:0:157:127.0.0.1",
			"Content": "{\"activity\":[\"/sampledata:0:141:127.0.0.1\"],\"ts\":\"2017-03-27T16:54:09.376Z\"}",
			"MetaType": "SubscriptionActivity",
			"MetaPayload": {
				"activity": ["/sampledata:0:141:127.0.0.1"],
				"ts": "2017-03-27T16:54:09.376Z"
			}
		}, {
			"PtrAfter": "/_sub/example-sub:0:249:127.0.0.1",
			"Content": "{\"activity\":[\"/sampledata:0:171:127.0.0.1\"],\"ts\":\"2017-03-27T16:55:04.493Z\"}",
			"MetaType": "SubscriptionActivity",
			"MetaPayload": {
				"activity": ["/sampledata:0:171:127.0.0.1"],
				"ts": "2017-03-27T16:55:04.493Z"
			}
		}, {
			"PtrAfter": "/_sub/example-sub:0:341:127.0.0.1",
			"Content": "{\"activity\":[\"/sampledata:0:201:127.0.0.1\"],\"ts\":\"2017-03-27T18:10:28.352Z\"}",
			"MetaType": "SubscriptionActivity",
			"MetaPayload": {
				"activity": ["/sampledata:0:201:127.0.0.1"],
				"ts": "2017-03-27T18:10:28.352Z"
			}
		}, {
			"PtrAfter": "/_sub/example-sub:0:433:127.0.0.1",
			"Content": "{\"activity\":[\"/sampledata:0:231:127.0.0.1\"],\"ts\":\"2017-03-27T18:23:10.007Z\"}",
			"MetaType": "SubscriptionActivity",
			"MetaPayload": {
				"activity": ["/sampledata:0:231:127.0.0.1"],
				"ts": "2017-03-27T18:23:10.007Z"
			}
		}]
	}
}
"""
PUSH_DATA = rb"""
{
	"SubscriptionId": "/_sub/example-sub",
	"Push": {
		"FromOffset": "/sampledata:0:0:127.0.0.1",
		"Lines": [{
			"PtrAfter": "/sampledata:0:65:127.0.0.1",
			"Content": "{\"subscription_ids\":[],\"ts\":\"2017-03-27T16:54:00.539Z\"}",
			"MetaType": "Created",
			"MetaPayload": {
				"subscription_ids": [],
				"ts": "2017-03-27T16:54:00.539Z"
			}
		}, {
			"PtrAfter": "/sampledata:0:141:127.0.0.1",
			"Content": "{\"subscription_id\":\"/_sub/example-sub\",\"ts\":\"2017-03-27T16:54:08.682Z\"}",
			"MetaType": "Subscribed",
			"MetaPayload": {
				"subscription_id": "/_sub/example-sub",
				"ts": "2017-03-27T16:54:08.682Z"
			}
		}, {
			"PtrAfter": "/sampledata:0:171:127.0.0.1",
			"Content": "Mon Mar 27 16:55:02 UTC 2017",
			"MetaType": "",
			"MetaPayload": null
		}, {
			"PtrAfter": "/sampledata:0:201:127.0.0.1",
			"Content": "Mon Mar 27 18:10:24 UTC 2017",
			"MetaType": "",
			"MetaPayload": null
		}, {
			"PtrAfter": "/sampledata:0:231:127.0.0.1",
			"Content": "Mon Mar 27 18:23:08 UTC 2017",
			"MetaType": "",
			"MetaPayload": null
		}]
	}
}
"""


class App:
    """A receiver, its database, and what its handler saw."""

    def __init__(self, connect: Connect, **options: Any) -> None:
        self.connect = connect
        self.seen: list[tuple[str, str]] = []
        self.fail_on = ""
        self.receiver = Receiver(SUB, connect, self.handle, **options)
        connection = connect()
        connection.cursor().execute("CREATE TABLE applied (stream VARCHAR(100), content VARCHAR(1000))")
        connection.commit()
        connection.close()
        self.mark = "%s" if "psycopg" in type(connection).__module__ else "?"

    def handle(self, stream: str, line: Line, connection: Any) -> None:
        self.seen.append((stream, line.content))
        connection.cursor().execute(f"INSERT INTO applied VALUES ({self.mark}, {self.mark})", (stream, line.content))
        if self.fail_on and self.fail_on in line.content:
            raise RuntimeError("this one hurts")

    def post(self, body: bytes | dict[str, Any], query: str = "", headers: dict[str, str] | None = None) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = self.receiver._thread.submit(self.receiver.answer, query, headers or {}, raw).result()
        return json.loads(reply.body) if reply.status == 200 else reply.status

    def rows(self, query: str = "SELECT stream, content FROM applied") -> list[Any]:
        connection = self.connect()
        cursor = connection.cursor()
        cursor.execute(query)
        rows = cursor.fetchall()
        connection.close()
        return [tuple(row) for row in rows]

    def offsets(self) -> dict[str, str]:
        return dict(self.rows("SELECT stream, position FROM eventhorizon_offsets"))


@pytest.fixture(scope="module")
def server() -> Iterator[Connect]:
    with postgres() as server:
        yield server.connect


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    if request.param == "sqlite":
        made = App(lambda: sqlite3.connect(tmp_path / "app.db"))
    else:
        connect: Connect = request.getfixturevalue("server")
        connection = connect()
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        connection.commit()
        connection.close()
        made = App(connect)
    yield made
    made.receiver.close()


def push(stream: str, begin: int, *lines: dict[str, Any], sub: str = SUB) -> dict[str, Any]:
    return {"SubscriptionId": sub, "Push": {"FromOffset": f"{stream}:0:{begin}:x", "Lines": list(lines)}}


def line(stream: str, after: int, content: str = "c") -> dict[str, Any]:
    return {"PtrAfter": f"{stream}:0:{after}:x", "Content": content, "MetaType": "", "MetaPayload": None}


def activity(after: int, *cursors: str) -> dict[str, Any]:
    payload = {"activity": list(cursors), "ts": "2017-03-27T16:54:09.376Z"}
    return {
        "PtrAfter": f"{SUB}:0:{after}:x", "Content": json.dumps(payload), "MetaType": "SubscriptionActivity",
        "MetaPayload": payload,
    }  # fmt: skip


def repush(begin: int) -> dict[str, Any]:
    """The subscription's lines again, from where the app is."""
    whole = json.loads(PUSH_SUBSCRIPTION)
    whole["Push"]["FromOffset"] = f"{SUB}:0:{begin}:127.0.0.1"
    whole["Push"]["Lines"] = [one for one in whole["Push"]["Lines"] if int(one["PtrAfter"].split(":")[2]) > begin]
    return dict(whole)


def test_the_whole_dialogue_of_the_protocols_description(app: App) -> None:
    assert app.post(QUERY_ID) == {
        "Code": "incorrect_subscription_id", "CorrectSubscriptionId": SUB, "AcceptedOffset": "", "BehindCursors": None,
    }  # fmt: skip
    assert app.post(QUERY_OFFSET) == {
        "Code": "incorrect_base_offset", "AcceptedOffset": f"{SUB}:0:0:?", "BehindCursors": None,
    }  # fmt: skip
    assert app.post(PUSH_SUBSCRIPTION) == {
        "Code": "success", "AcceptedOffset": f"{SUB}:0:65:127.0.0.1", "BehindCursors": ["/sampledata:0:0:?"],
    }  # fmt: skip
    assert app.post(PUSH_DATA) == {
        "Code": "success", "AcceptedOffset": "/sampledata:0:231:127.0.0.1", "BehindCursors": [],
    }  # fmt: skip
    seen = len(app.seen)
    assert app.post(PUSH_DATA) == {
        "Code": "incorrect_base_offset", "AcceptedOffset": "/sampledata:0:231:127.0.0.1", "BehindCursors": None,
    }  # fmt: skip
    assert len(app.seen) == seen
    assert app.post(repush(65)) == {
        "Code": "success", "AcceptedOffset": f"{SUB}:0:433:127.0.0.1", "BehindCursors": [],
    }  # fmt: skip
    assert app.offsets() == {SUB: f"{SUB}:0:433:127.0.0.1", "/sampledata": "/sampledata:0:231:127.0.0.1"}
    assert [row[1] for row in app.rows() if row[0] == "/sampledata"][2:] == [
        "Mon Mar 27 16:55:02 UTC 2017", "Mon Mar 27 18:10:24 UTC 2017", "Mon Mar 27 18:23:08 UTC 2017",
    ]  # fmt: skip
    assert app.rows() == app.seen


def test_the_handler_is_not_called_for_lines_that_will_not_be_acknowledged(app: App) -> None:
    app.post(PUSH_SUBSCRIPTION)

    assert [stream for stream, _ in app.seen] == [SUB]
    assert "subscription_ids" in app.seen[0][1]


def test_it_acknowledges_up_to_the_first_line_that_shows_it_behind(app: App) -> None:
    app.post(push("/sampledata", 0, line("/sampledata", 171)))
    app.post(push(SUB, 0, line(SUB, 65)))

    assert app.post(repush(65)) == {
        "Code": "success", "AcceptedOffset": f"{SUB}:0:249:127.0.0.1", "BehindCursors": ["/sampledata:0:171:x"],
    }  # fmt: skip


def test_all_lines_are_looked_through_for_streams_that_it_is_behind_in(app: App) -> None:
    app.post(push("/a", 0, line("/a", 10)))

    answer = app.post(push(SUB, 0, activity(100, "/a:0:10:x"), activity(200, "/b:0:9:x"), activity(300, "/a:0:30:x")))

    assert answer["AcceptedOffset"] == f"{SUB}:0:100:x"
    assert sorted(answer["BehindCursors"]) == ["/a:0:10:x", "/b:0:0:?"]


def test_a_later_chunk_is_not_behind_the_end_of_an_earlier_one(app: App) -> None:
    begin = push("/s", 0, {**line("/s", 0), "PtrAfter": "/s:1:0:x"})
    assert app.post(begin)["AcceptedOffset"] == "/s:1:0:x"

    answer = app.post(push(SUB, 0, activity(100, "/s:0:8388679:x")))

    assert (answer["AcceptedOffset"], answer["BehindCursors"]) == (f"{SUB}:0:100:x", [])


def test_the_server_part_of_a_cursor_does_not_matter(app: App) -> None:
    app.post(push("/s", 0, line("/s", 10)))
    again = push("/s", 10, line("/s", 20))
    again["Push"]["FromOffset"] = "/s:0:10:another.server"

    assert app.post(again)["AcceptedOffset"] == "/s:0:20:x"


def test_no_lines_at_the_right_place_are_a_success_that_moves_nothing(app: App) -> None:
    assert app.post(push("/s", 0)) == {"Code": "success", "AcceptedOffset": "/s:0:0:?", "BehindCursors": []}
    without = {"SubscriptionId": SUB, "Push": {"FromOffset": "/s:0:0:?", "Lines": None}}
    assert app.post(without)["Code"] == "success"


def test_a_handler_that_fails_changes_nothing_and_the_same_lines_may_come_again(app: App) -> None:
    lines = push("/s", 0, line("/s", 10, "one"), line("/s", 20, "bad"), line("/s", 30, "three"))
    app.fail_on = "bad"
    assert app.post(lines) == 400
    assert (app.rows(), app.offsets()) == ([], {})

    app.fail_on = ""
    assert app.post(lines)["AcceptedOffset"] == "/s:0:30:x"
    assert [content for _, content in app.rows()] == ["one", "bad", "three"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"SubscriptionId":7}',
        json.dumps({"SubscriptionId": SUB}).encode(),
        json.dumps({"SubscriptionId": SUB, "Push": {}}).encode(),
        json.dumps(push("nonsense", 0)).replace("nonsense:0:0:x", "nonsense").encode(),
        json.dumps({"SubscriptionId": SUB, "Push": {"FromOffset": ":0:0", "Lines": []}}).encode(),
        json.dumps(push("/s\x00", 0)).encode(),
        json.dumps(push("/s", 0, {"PtrAfter": "nowhere"})).encode(),
        json.dumps(push("/s", 0, line("/other", 5))).encode(),
        json.dumps(push(SUB, 0, activity(9, "bad"))).encode(),
        b'{"SubscriptionId":"x","Push":{"FromOffset":"/:0:0","Lines":[{"PtrAfter":"/:0:1","MetaPayload":'
        + b"[" * 50_000 + b"]" * 50_000 + b"}]}}",
    ],
)  # fmt: skip
def test_bad_input_is_answered_with_400_and_changes_nothing(app: App, body: bytes) -> None:
    app.post(push("/s", 0, line("/s", 0, "before")))
    before = (app.rows(), app.offsets())

    assert app.post(body) == 400

    assert (app.rows(), app.offsets()) == before


def test_another_id_is_told_the_right_one_before_anything_else_is_looked_at(app: App) -> None:
    assert app.post({"SubscriptionId": "/_sub/other"})["CorrectSubscriptionId"] == SUB
    assert app.post({})["Code"] == "incorrect_subscription_id"


def test_pushes_of_one_stream_by_two_pushers_at_once_are_applied_once(app: App) -> None:
    # Given two processes of the same app, here two receivers on one database
    receivers = [Receiver(SUB, app.connect, app.handle) for _ in range(2)]
    lines = push("/s", 0, *(line("/s", 10 * n, str(n)) for n in range(1, 50)))
    answers: list[str] = []
    start = threading.Barrier(2)

    def send(receiver: Receiver) -> None:
        start.wait()
        reply = receiver._thread.submit(receiver.answer, "", {}, json.dumps(lines).encode()).result()
        answers.append(json.loads(reply.body)["Code"] if reply.status == 200 else reply.body.decode())

    threads = [threading.Thread(target=send, args=(receiver,)) for receiver in receivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for receiver in receivers:
        receiver.close()

    assert sorted(answers) == ["incorrect_base_offset", "success"]
    assert [content for _, content in app.rows()] == [str(n) for n in range(1, 50)]


# ── who may push ───────────────────────────────────────────────────────────────────────────────


def test_the_token_of_the_url_is_checked(tmp_path: Path) -> None:
    app = App(lambda: sqlite3.connect(tmp_path / "app.db"), auth="8c382056")

    assert app.post(QUERY_ID) == 401
    assert app.post(QUERY_ID, "auth=wrong") == 401
    assert app.post(QUERY_ID, "x=1&auth=8c382056")["Code"] == "incorrect_subscription_id"
    app.receiver.close()


def test_a_signature_is_checked(tmp_path: Path) -> None:
    key = b"k" * 32
    app = App(lambda: sqlite3.connect(tmp_path / "app.db"), secret="whsec_" + b64encode(key).decode())
    import time

    good = dict(webhooks.sign(key, "msg_1", int(time.time()), QUERY_ID))

    assert app.post(QUERY_ID) == 401
    assert app.post(QUERY_ID + b" ", "", good) == 401
    assert app.post(QUERY_ID, "", good)["Code"] == "incorrect_subscription_id"
    app.receiver.close()


# ── what an app may give ───────────────────────────────────────────────────────────────────────


def test_a_connection_that_commits_by_itself_is_refused(tmp_path: Path) -> None:
    app = App(lambda: sqlite3.connect(tmp_path / "app.db"))
    app.receiver.close()
    careless = Receiver(SUB, lambda: sqlite3.connect(tmp_path / "app.db", isolation_level=None), app.handle)

    reply = careless.answer("", {}, PUSH_DATA)

    assert (reply.status, b"autocommit" in reply.body) == (503, True)
    assert app.rows() == []


def test_a_database_that_is_gone_is_a_503_and_comes_back_by_itself(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    app = App(lambda: sqlite3.connect(there / "app.db"))
    app.receiver.close()
    broken = [True]

    def connect() -> sqlite3.Connection:
        if broken[0]:
            raise sqlite3.OperationalError("unable to open database file")
        return sqlite3.connect(there / "app.db")

    receiver = Receiver(SUB, connect, app.handle)
    assert receiver.answer("", {}, PUSH_DATA).status == 503
    broken[0] = False
    assert receiver.answer("", {}, PUSH_DATA).status == 200


def test_a_receiver_needs_a_subscription_and_one_handler(tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(":memory:")

    for arguments in [("/sub/x", connect, print), ("/_sub/x", connect, None), ("/_sub/x", connect, print, print)]:
        id, given, handler, *lines = arguments
        with pytest.raises(InputInvalid):
            Receiver(id, given, handler, lines_handler=lines[0] if lines else None)  # type: ignore[arg-type]


def test_lines_may_be_handled_all_at_once(tmp_path: Path) -> None:
    got: list[tuple[str, list[str]]] = []
    receiver = Receiver(
        SUB,
        lambda: sqlite3.connect(tmp_path / "app.db"),
        lines_handler=lambda stream, lines, connection: got.append((stream, [one.content for one in lines])),
    )
    receiver.answer("", {}, json.dumps(push("/s", 0, line("/s", 1, "a"), line("/s", 2, "b"))).encode())

    assert got == [("/s", ["a", "b"])]


def test_the_conventional_form_of_an_event() -> None:
    assert parse_event('FooEvent {"pi": 3.14}') == ("FooEvent", '{"pi": 3.14}')
    with pytest.raises(ValueError, match="form"):
        parse_event('FooEvent invalid {"pi": 3.14}')


# ── the two ways in ────────────────────────────────────────────────────────────────────────────


def test_it_is_an_asgi_application(tmp_path: Path) -> None:
    app = App(lambda: sqlite3.connect(tmp_path / "app.db"), limit_bytes=5000, auth="t")
    sent: list[dict[str, Any]] = []

    async def call(*parts: bytes) -> tuple[int, bytes]:
        incoming = [
            {"type": "http.request", "body": part, "more_body": number + 1 < len(parts)}
            for number, part in enumerate(parts)
        ]
        sent.clear()

        async def receive() -> dict[str, Any]:
            return incoming.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        await app.receiver({"type": "http", "query_string": b"auth=t", "headers": []}, receive, send)
        return sent[0]["status"], sent[1]["body"]

    status, body = asyncio.run(call(QUERY_OFFSET[:20], QUERY_OFFSET[20:]))
    assert (status, json.loads(body)["AcceptedOffset"]) == (200, f"{SUB}:0:0:?")
    assert asyncio.run(call(b" " * 3000, b" " * 3000))[0] == 413
    app.receiver.close()


def test_it_is_a_wsgi_application(tmp_path: Path) -> None:
    app = App(lambda: sqlite3.connect(tmp_path / "app.db"))
    status: list[str] = []

    def start(line: str, headers: list[tuple[str, str]]) -> None:
        status.append(line)

    environ = {"wsgi.input": io.BytesIO(QUERY_ID), "CONTENT_LENGTH": str(len(QUERY_ID)), "QUERY_STRING": ""}
    [body] = app.receiver.wsgi(environ, start)
    assert (status, json.loads(body)["CorrectSubscriptionId"]) == (["200 OK"], SUB)
    app.receiver.close()


def test_what_comes_after_its_end_is_refused(tmp_path: Path) -> None:
    app = App(lambda: sqlite3.connect(tmp_path / "app.db"))
    app.receiver.close()
    app.receiver.close()
    environ = {"wsgi.input": io.BytesIO(QUERY_ID), "CONTENT_LENGTH": str(len(QUERY_ID)), "QUERY_STRING": ""}
    said: list[str] = []

    app.receiver.wsgi(environ, lambda status, _: said.append(status))
    reply = asyncio.run(app.receiver._reply("", {}, QUERY_ID))

    assert said == ["503 Error"]
    assert reply.status == 503
