"""Publishing over Penstock's API: shapes, repeats, refusals."""

from __future__ import annotations

import json
import uuid
from http.client import HTTPConnection

import pytest

from penstock.api.auth import open_keys
from penstock.testing import RunningServer
from tests.api.client import ask, publish


@pytest.fixture
def stream() -> str:
    return f"/t/{uuid.uuid4().hex}"


def test_an_event_gets_its_coordinates(shared_server: RunningServer, stream: str) -> None:
    first, second = publish(shared_server, stream, b"hello"), publish(shared_server, stream, b"x" * 23)

    assert first.status == second.status == 201
    assert first.json["index"] == 0
    assert second.json["stream"] == stream
    assert second.json["index"] == 1
    assert second.json["id"] > first.json["id"]
    before, after = (int(reply.json["cursor"].split(":")[2]) for reply in (first, second))
    assert after - before == 25  # a space, the line, a newline


@pytest.mark.parametrize("name", ['say"hi"', "100%", "%d", "%%s", "back\\slash", "größe"])
def test_whatever_a_stream_is_called_the_answer_names_it(shared_server: RunningServer, stream: str, name: str) -> None:
    reply = publish(shared_server, f"{stream}/{name}", b"x")

    assert reply.json["stream"] == f"{stream}/{name}"
    assert reply.json["cursor"].startswith(f"{stream}/{name}:0:")


def test_many_events_are_one_request(shared_server: RunningServer, stream: str) -> None:
    body = b'{"n":1}\n{"n":2}\r\n\n{"n":3}'
    reply = publish(shared_server, stream, body, Content_Type="application/x-ndjson; charset=utf-8")

    assert reply.status == 201
    assert reply.json["count"] == 3
    assert (reply.json["first"]["index"], reply.json["last"]["index"]) == (0, 2)
    read = ask(shared_server, "GET", "/v1/read", stream=stream).json
    assert [entry["data"] for entry in read["entries"]] == ['{"n":1}', '{"n":2}', '{"n":3}']


def test_more_lines_than_a_batch_holds_become_several_in_order(shared_server: RunningServer, stream: str) -> None:
    body = b"\n".join(b"%d" % n for n in range(2_500))
    reply = publish(shared_server, stream, body, Content_Type="application/x-ndjson", Idempotency_Key="k")
    again = publish(shared_server, stream, body, Content_Type="application/x-ndjson", Idempotency_Key="k")

    assert reply.json["count"] == 2_500
    assert reply.json["last"]["index"] == 2_499
    assert again.json["repeated"] is True
    assert (again.json["count"], again.json["last"]) == (2_500, reply.json["last"])


def test_a_key_makes_a_repeat_harmless(shared_server: RunningServer, stream: str) -> None:
    first = publish(shared_server, stream, b"a", Idempotency_Key="order-1")
    again = publish(shared_server, stream, b"a", Idempotency_Key="order-1")
    other = publish(shared_server, stream, b"b", Idempotency_Key="order-1")

    assert again.json == first.json
    assert (other.status, other.code) == (409, "idempotency_key_reused")
    assert len(ask(shared_server, "GET", "/v1/read", stream=stream).json["entries"]) == 1


def test_a_producer_is_never_heard_twice(shared_server: RunningServer, stream: str) -> None:
    name = uuid.uuid4().hex
    first = publish(shared_server, stream, b"a", Producer=f"{name}/7")
    again = publish(shared_server, stream, b"a", Producer=f"{name}/7")
    older = publish(shared_server, stream, b"a", Producer=f"{name}/3")
    newer = publish(shared_server, stream, b"b", Producer=f"{name}/9")

    assert again.json == first.json
    assert older.status == 201
    assert newer.json["index"] == 1


def test_nobody_can_use_up_the_sequences_of_anothers_producer(shared_server: RunningServer, stream: str) -> None:
    keys, name = open_keys(shared_server.data), uuid.uuid4().hex
    mallory, shop = keys.issue("mallory", publish=("/mallory",)), keys.issue("shop", publish=(stream,))
    used = {"Producer": f"{name}/999999999999999999"}
    ask(shared_server, "POST", "/v1/publish", b"evil", used, mallory, stream="/mallory")

    order = ask(shared_server, "POST", "/v1/publish", b"order 3", {"Producer": f"{name}/3"}, shop, stream=stream)

    assert (order.status, order.json["stream"], order.json["index"]) == (201, stream, 0)
    read = ask(shared_server, "GET", "/v1/read", stream=stream).json
    assert [entry["data"] for entry in read["entries"]] == ["order 3"]


def test_a_repeat_for_another_stream_is_refused(shared_server: RunningServer, stream: str) -> None:
    name = uuid.uuid4().hex
    publish(shared_server, stream, b"a", Producer=f"{name}/7")
    used = publish(shared_server, f"{stream}/other", b"a", Producer=f"{name}/7")
    passed = publish(shared_server, f"{stream}/other", b"a", Producer=f"{name}/3")

    assert (used.status, used.code) == (409, "producer_sequence_reused")
    assert (passed.status, passed.code) == (409, "producer_sequence_passed")


def test_an_expected_position_guards_an_append(shared_server: RunningServer, stream: str) -> None:
    first = publish(shared_server, stream, b"a", Expected_Position="0")
    late = publish(shared_server, stream, b"b", Expected_Position="0")
    by_cursor = publish(shared_server, stream, b"b", Expected_Position=first.json["cursor"])

    assert (late.status, late.code) == (409, "position_mismatch")
    assert by_cursor.json["index"] == 1


def test_type_attributes_and_expiry_are_kept(shared_server: RunningServer, stream: str) -> None:
    publish(
        shared_server, stream, b"a", Event_Type="order.paid", Event_Attributes='{"lang": "\\u00e9"}', Expires_In="600"
    )

    (entry,) = ask(shared_server, "GET", "/v1/read", stream=stream).json["entries"]

    assert entry["type"] == "order.paid"
    assert entry["attributes"] == {"lang": "é"}
    assert entry["expires"] > entry["time"]


def test_bytes_that_are_no_text_come_back_as_they_went(shared_server: RunningServer, stream: str) -> None:
    publish(shared_server, stream, b"\xff\x00\n\xfe")

    (entry,) = ask(shared_server, "GET", "/v1/read", stream=stream).json["entries"]

    assert entry["data_base64"] == "/wAK/g=="


def test_parents_are_made_and_told(shared_server: RunningServer, stream: str) -> None:
    publish(shared_server, f"{stream}/child")

    page = ask(shared_server, "GET", "/v1/read", stream=stream, meta="true").json

    assert [entry["type"] for entry in page["entries"]] == ["Created", "ChildStreamCreated"]
    assert json.loads(page["entries"][1]["data"])["name"] == f"{stream}/child"


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Expires_In": "0"}, 400, "input_invalid"),
        ({"Expires_In": "soon"}, 400, "input_invalid"),
        ({"Expires_In": "99999999999"}, 400, "input_invalid"),
        ({"Event_Attributes": "[1]"}, 400, "input_invalid"),
        ({"Event_Attributes": '{"a": 1}'}, 400, "input_invalid"),
        ({"Event_Attributes": '{"a":"' + "x" * 3000 + '"}'}, 413, "too_large"),
        ({"Event_Type": "x" * 257}, 400, "input_invalid"),
        ({"Idempotency_Key": "x" * 257}, 400, "input_invalid"),
        ({"Producer": "name"}, 400, "input_invalid"),
        ({"Producer": "name/-1"}, 400, "input_invalid"),
        ({"Expected_Position": "/other:0:65"}, 400, "input_invalid"),
        ({"Expected_Position": "-1"}, 400, "input_invalid"),
    ],
)
def test_headers_that_mean_nothing_are_refused(
    shared_server: RunningServer, stream: str, headers: dict[str, str], status: int, code: str
) -> None:
    reply = publish(shared_server, stream, b"a", **headers)

    assert (reply.status, reply.code) == (status, code)
    assert reply.json["error"]["remedy"]
    assert ask(shared_server, "GET", "/v1/read", stream=stream).status == 404


@pytest.mark.parametrize("name", ["", "orders", "/a//b", "/a b", "/a:b", "/*", "/" + "a" * 200])
def test_names_that_are_none_are_refused(shared_server: RunningServer, name: str) -> None:
    reply = publish(shared_server, name)

    assert (reply.status, reply.code) == (400, "stream_name_invalid")


def test_an_event_or_body_that_is_too_large_is_refused(shared_server: RunningServer, stream: str) -> None:
    assert publish(shared_server, stream, b"x" * 1_100_000).code == "too_large"
    assert publish(shared_server, stream, b"x\n" * 9_000_000, Content_Type="application/x-ndjson").status == 413
    assert publish(shared_server, stream, b"\n\n", Content_Type="application/x-ndjson").status == 400
    assert ask(shared_server, "GET", "/v1/read", stream=stream).status == 404


@pytest.mark.parametrize("name", ["Idempotency-Key", "Expected-Position", "Producer", "Expires-In", "Event-Type"])
def test_a_header_that_comes_twice_is_refused(shared_server: RunningServer, stream: str, name: str) -> None:
    connection = HTTPConnection("127.0.0.1", shared_server.port, timeout=60)
    connection.putrequest("POST", f"/v1/publish?stream={stream}")
    for header, value in (("Authorization", f"Bearer {shared_server.admin_token}"), (name, "p/1"), (name, "p/2")):
        connection.putheader(header, value if header != "Expires-In" else "9")
    connection.putheader("Content-Length", "1")
    connection.endheaders(b"x")
    response = connection.getresponse()

    assert response.status == 400
    assert ask(shared_server, "GET", "/v1/read", stream=stream).status == 404
    connection.close()


def test_unknown_and_repeated_parameters_are_refused(shared_server: RunningServer, stream: str) -> None:
    assert ask(shared_server, "POST", "/v1/publish", b"x", stream=stream, steram="/a").status == 400
    assert ask(shared_server, "POST", f"/v1/publish?stream={stream}&stream={stream}", b"x").status == 400
    assert ask(shared_server, "POST", "/v1/publish", b"x").status == 400


def test_strangers_and_the_wrong_grant_are_turned_away(shared_server: RunningServer, stream: str) -> None:
    stranger = ask(shared_server, "POST", "/v1/publish", b"x", token=None, stream=stream)
    assert (stranger.status, stranger.headers["www-authenticate"]) == (401, 'Bearer realm="penstock"')

    wrong = ask(shared_server, "POST", "/v1/publish", b"x", token="nonsense", stream=stream)
    assert wrong.status == 401
