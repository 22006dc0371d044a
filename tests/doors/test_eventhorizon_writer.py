"""The writer and the reader over HTTP, with the offsets that follow from the original's source."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.auth import open_keys
from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import ask, publish
from tests.doors.eventhorizon_client import append, call, create, lines, offsets, subscribe

SERVER = "10.0.0.5"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("writer")
    with start_server(folder / "data", eventhorizon_server=SERVER, eventhorizon_activity_interval=0.05) as running:
        yield running


def ends(server: RunningServer, stream: str) -> list[int]:
    return offsets(lines(server, f"{stream}:0:0:?"))


def activity(server: RunningServer, id: str) -> list[list[str]]:
    found = lines(server, f"{id}:0:0:?")
    return [line["MetaPayload"]["activity"] for line in found if line["MetaType"] == "SubscriptionActivity"]


def newest(server: RunningServer, stream: str) -> str:
    return str(lines(server, f"{stream}:0:0:?")[-1]["PtrAfter"])


def test_the_writer_scenario_byte_for_byte(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("scenario")
    with start_server(folder / "data", eventhorizon_server=SERVER, eventhorizon_activity_interval=0.05) as server:
        create(server, "/_sub/billing", "/orders")
        assert ends(server, "/")[:2] == [65, 164]
        assert ends(server, "/_sub") == [65, 180]
        assert ends(server, "/_sub/billing") == [65]
        assert ends(server, "/orders") == [65]
        children = [line["MetaPayload"]["name"] for line in lines(server, "/:0:0") if "Child" in line["MetaType"]]
        assert ("/orders" in children, ends(server, "/")[1 + children.index("/orders")]) == (True, 267)

        subscribe(server, "/orders", "/_sub/billing")
        subscribe(server, "/orders", "/_sub/billing")  # once more is no mistake
        assert ends(server, "/orders") == [65, 145]
        wait_until(lambda: len(activity(server, "/_sub/billing")) == 1)
        assert ends(server, "/_sub/billing") == [65, 159]
        assert activity(server, "/_sub/billing") == [[newest(server, "/orders")]]

        append(server, "/orders", "hello")
        append(server, "/orders", "", "é", "日本")
        last = append(server, "/orders", "😀")
        assert ends(server, "/orders") == [65, 145, 152, 154, 158, 166, 172]
        assert last == newest(server, "/orders")
        wait_until(lambda: activity(server, "/_sub/billing")[-1] == [last])

        for _ in range(2):
            reply = call(server, "/writer/unsubscribe", Stream="/orders", SubscriptionId="/_sub/billing")
            assert (reply.status, reply.body) == (200, b"OK\n")
        assert ends(server, "/orders")[-1] == 254
        told = activity(server, "/_sub/billing")
        append(server, "/orders", "nobody hears this")
        create(server, "/_sub/other", "/else")
        subscribe(server, "/else", "/_sub/other")
        wait_until(lambda: activity(server, "/_sub/other"))  # a tick has passed
        assert activity(server, "/_sub/billing") == told


def test_answers_are_the_originals(server: RunningServer) -> None:
    reply = call(server, "/writer/create_stream", Name="/answers")
    assert (reply.status, reply.body) == (201, b'{"Name":"/answers"}\n')
    at = newest(server, "/answers").split(":")[2]
    reply = call(server, "/writer/append", Stream="/answers", Lines=["x"])
    assert (reply.status, reply.json) == (201, {"Offset": f"/answers:0:{int(at) + 3}:{SERVER}"})
    for empty in ({"Lines": []}, {"Lines": None}, {}):
        reply = call(server, "/writer/append", Stream="/answers", **empty)
        assert (reply.status, reply.body) == (201, b'{"Offset":""}\n')
    lower = ask(server, "POST", "/writer/append", b'{"stream":"/answers","lines":["y"],"Other":1}')
    assert lower.status == 201


@pytest.mark.parametrize(
    ("path", "fields", "status", "code"),
    [
        ("/writer/create_stream", {"Name": "/orders"}, 409, "stream_exists"),
        ("/writer/create_stream", {"Name": "/x/y"}, 404, "parent_missing"),
        ("/writer/create_stream", {"Name": "/foo/"}, 400, "stream_name_invalid"),
        ("/writer/create_stream", {"Name": "/a:b"}, 400, "stream_name_invalid"),
        ("/writer/create_stream", {"Name": "foo"}, 400, "stream_name_invalid"),
        ("/writer/create_stream", {}, 400, "stream_name_invalid"),
        ("/writer/append", {"Stream": "/nope", "Lines": []}, 404, "stream_missing"),
        ("/writer/append", {"Stream": "/nope", "Lines": ["a"]}, 404, "stream_missing"),
        ("/writer/append", {"Stream": "/orders", "Lines": ["ok", "a\nb"]}, 400, "line_invalid"),
        ("/writer/append", {"Stream": "/orders", "Lines": ["x" * 65_535]}, 413, "too_large"),
        ("/writer/append", {"Stream": "/orders", "Lines": ["x"] * 1001}, 413, "too_large"),
        ("/writer/append", {"Stream": "/orders", "Lines": "x"}, 400, "json_invalid"),
        ("/writer/append", {"Stream": "/orders", "Lines": ["x"], "ExpectedOffset": "bad"}, 400, "cursor_invalid"),
        ("/writer/append", {"Stream": "/orders", "Lines": ["x"], "ExpectedOffset": "/a:0:0"}, 400, "cursor_invalid"),
        ("/writer/subscribe", {"Stream": "/orders", "SubscriptionId": "/foo"}, 400, "subscription_id_invalid"),
        ("/writer/subscribe", {"Stream": "/_sub/a", "SubscriptionId": "/_sub/a"}, 400, "subscription_loops"),
        ("/writer/subscribe", {"Stream": "/orders", "SubscriptionId": "/_sub/none"}, 404, "subscription_missing"),
        ("/writer/subscribe", {"Stream": "/nope", "SubscriptionId": "/_sub/a"}, 404, "stream_missing"),
        ("/writer/liveread", {"Cursor": "bad", "MaxLinesToRead": 1}, 400, "cursor_invalid"),
        ("/writer/liveread", {"Cursor": "/orders:9:0", "MaxLinesToRead": 1}, 404, "chunk_missing"),
        ("/writer/liveread", {"Cursor": "/orders:0:9999", "MaxLinesToRead": 1}, 400, "cursor_invalid"),
        ("/reader/read", {"Cursor": "bad"}, 400, "cursor_invalid"),
        ("/reader/read", {"Cursor": "/orders:0:3"}, 400, "cursor_invalid"),
        ("/reader/read", {"Cursor": "/orders:0:0", "MaxLinesToRead": 1001}, 400, "input_invalid"),
    ],
)
def test_a_callers_mistake_is_named_and_changes_nothing(
    server: RunningServer, path: str, fields: dict[str, object], status: int, code: str
) -> None:
    for name in ("/_sub/a", "/orders"):
        call(server, "/writer/create_stream", Name=name)
    before = [lines(server, f"{name}:0:0") for name in ("/", "/orders")]

    reply = call(server, path, **fields)

    assert (reply.status, reply.code) == (status, code)
    assert [lines(server, f"{name}:0:0") for name in ("/", "/orders")] == before


def test_strangers_and_those_without_a_grant_are_turned_away(server: RunningServer) -> None:
    keys = open_keys(server.data)
    call(server, "/writer/create_stream", Name="/granted")
    call(server, "/writer/create_stream", Name="/_sub/granted")
    writer = keys.issue("writer", publish=("/granted",))
    reader = keys.issue("reader", subscribe=("/granted",))
    both = keys.issue("both", publish=("/_sub/granted",), subscribe=("/granted",))
    body = b'{"Stream":"/granted","Lines":["x"]}'
    assert ask(server, "POST", "/writer/append", body, token=None).status == 401
    assert ask(server, "POST", "/writer/append", body, {"Authorization": "Basic eDp5"}, token=None).status == 401
    assert ask(server, "POST", "/writer/append", body, token="wrong").status == 401
    assert ask(server, "POST", "/writer/append", body, token=reader).status == 403
    assert ask(server, "POST", "/writer/append", body, token=writer).status == 201
    assert call(server, "/reader/read", writer, Cursor="/granted:0:0").status == 403
    assert call(server, "/reader/read", reader, Cursor="/granted:0:0").status == 200
    wanted = {"Stream": "/granted", "SubscriptionId": "/_sub/granted"}
    assert call(server, "/writer/subscribe", reader, **wanted).status == 403
    assert call(server, "/writer/subscribe", both, **wanted).status == 200
    assert call(server, "/writer/create_stream", writer, Name="/_sub/mine").status == 403
    assert ask(server, "GET", "/reader/notify", token=reader, subscription="/_sub/granted").status == 403


def test_an_append_at_an_expected_place_happens_once(server: RunningServer) -> None:
    create(server, "/expected")
    at = newest(server, "/expected")
    given = {"Stream": "/expected", "Lines": ["one"], "ExpectedOffset": at}

    assert call(server, "/writer/append", **given).status == 201
    second = call(server, "/writer/append", **given)

    assert (second.status, second.code) == (409, "position_mismatch")
    assert [line["Content"] for line in lines(server, "/expected:0:0")][1:] == ["one"]


def test_a_full_chunk_is_sealed_and_reading_goes_on_in_the_next(server: RunningServer) -> None:
    create(server, "/_sub/rotation", "/s")
    start = int(newest(server, "/s").split(":")[2])
    for count in [1000] * 8 + [191]:
        append(server, "/s", *(["x" * 1022] * count))
    left = 8 * 1024 * 1024 - start - 8191 * 1024
    assert append(server, "/s", "y" * (left - 2)) == f"/s:0:8388608:{SERVER}"
    # Exactly full is not over: the next line is, and still goes into this chunk
    sealed = append(server, "/s", "")
    found = lines(server, "/s:0:8388608")
    assert [line["MetaType"] for line in found] == ["", "Rotated", "Created"]
    rotated = len("/Rotated ") + len(found[1]["Content"]) + 1
    assert sealed == f"/s:0:{8388608 + 2 + rotated}:{SERVER}"
    assert rotated == 68 - 24 + len(found[1]["MetaPayload"]["ts"])  # 69 for the name 127.0.0.1, one longer
    assert found[1]["PtrAfter"] == found[1]["MetaPayload"]["next"] == f"/s:1:0:{SERVER}"
    after = int(found[2]["PtrAfter"].split(":")[2])
    assert append(server, "/s", "x") == f"/s:1:{after + 3}:{SERVER}"

    # A read never crosses a chunk; the live chunk is the new one
    across = call(server, "/reader/read", Cursor="/s:0:8388608").json
    assert ([line["MetaType"] for line in across["Lines"]], across["More"]) == (["", "Rotated"], True)
    assert call(server, "/writer/liveread", Cursor="/s:0:0", MaxLinesToRead=1).status == 404
    assert call(server, "/writer/liveread", Cursor="/s:1:0", MaxLinesToRead=1).status == 200


def test_a_new_chunk_lists_the_subscribers(server: RunningServer) -> None:
    create(server, "/_sub/listed", "/listed")
    subscribe(server, "/listed", "/_sub/listed")
    for _ in range(9):
        append(server, "/listed", *(["x" * 1022] * 1000))

    [made] = call(server, "/reader/read", Cursor="/listed:1:0", MaxLinesToRead=1).json["Lines"]

    assert made["MetaPayload"]["subscription_ids"] == ["/_sub/listed"]


def test_the_live_chunk_is_read_raw(server: RunningServer) -> None:
    create(server, "/raw")
    append(server, "/raw", "hello", " /{}")
    at = newest(server, "/raw")
    begin = lines(server, "/raw:0:0")[0]["PtrAfter"]

    def read(cursor: str, **fields: object) -> bytes:
        reply = call(server, "/writer/liveread", Cursor=cursor, **fields)
        assert reply.status == 200
        return reply.body

    assert read(begin, MaxLinesToRead=10) == b" hello\n  /{}\n"
    assert read(begin, MaxLinesToRead=1) == b" hello\n"
    assert read("/raw:0:0", MaxLinesToRead=1).startswith(b'/Created {"subscription_ids":[],"ts":"')
    assert read(begin) == b""
    assert read(at, MaxLinesToRead=10) == b""


def test_the_reader_pages_from_any_line_on(server: RunningServer) -> None:
    create(server, "/paged")
    append(server, "/paged", *map(str, range(999)))
    append(server, "/paged", *map(str, range(999, 1500)))

    first = call(server, "/reader/read", Cursor="/paged:0:0:?").json
    assert (first["FromOffset"], len(first["Lines"]), first["More"]) == (f"/paged:0:0:{SERVER}", 1000, True)
    second = call(server, "/reader/read", Cursor=first["Lines"][-1]["PtrAfter"]).json
    assert ([line["Content"] for line in second["Lines"]], second["More"]) == ([*map(str, range(999, 1500))], False)
    few = call(server, "/reader/read", Cursor="/paged:0:0", MaxLinesToRead=2).json
    assert [line["Content"] for line in few["Lines"]][1:] == ["0"]
    at_end = call(server, "/reader/read", Cursor=second["Lines"][-1]["PtrAfter"]).json
    assert at_end["Lines"] == []


def test_bodies_that_are_no_lines_are_shown_as_bytes(server: RunningServer) -> None:
    publish(server, "/binary", b"a\nb")
    publish(server, "/binary", b"\xff" * 60_000)

    [_, short, long] = lines(server, "/binary:0:0")

    assert (short["MetaType"], short["MetaPayload"]) == ("Bytes", {"index": 0, "base64": "YQpi"})
    assert (long["MetaType"], long["MetaPayload"]) == ("Bytes", {"index": 1, "size": 60_000})


def test_a_subscription_covers_what_other_doors_write(server: RunningServer) -> None:
    publish(server, "/shop/eu", b"first")
    create(server, "/_sub/shop")
    subscribe(server, "/shop/eu", "/_sub/shop")

    publish(server, "/shop/eu", b"second")

    at = newest(server, "/shop/eu")
    wait_until(lambda: activity(server, "/_sub/shop")[-1:] == [[at]])


def test_one_event_per_subscriber_and_tick_names_each_stream_once(server: RunningServer) -> None:
    names = [f"/tick/{number:02}" for number in range(20)]
    create(server, "/_sub/tick", "/tick", *names)
    for name in reversed(names):
        subscribe(server, name, "/_sub/tick")
    wait_until(lambda: len({c.split(":")[0] for told in activity(server, "/_sub/tick") for c in told}) == 20)

    for told in activity(server, "/_sub/tick"):
        streams = [cursor.split(":")[0] for cursor in told]
        assert streams == sorted(set(streams))


def test_an_announcement_too_long_for_a_line_becomes_several(server: RunningServer) -> None:
    level = "n" * 120
    names = [f"/{level}/{level}/{level}/{number:03}" for number in range(250)]
    for name in names:
        publish(server, name, b"x")
    create(server, "/_sub/long")
    for name in names:
        subscribe(server, name, "/_sub/long")
    wait_until(lambda: len({c.split(":")[0] for told in activity(server, "/_sub/long") for c in told}) == 250)

    for line in lines(server, "/_sub/long:0:0"):
        assert len(line["Content"].encode()) <= 65_535


def test_two_subscribers_at_once_leave_one_line(server: RunningServer) -> None:
    create(server, "/_sub/once", "/once")
    threads = [threading.Thread(target=subscribe, args=(server, "/once", "/_sub/once")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [line["MetaType"] for line in lines(server, "/once:0:0")] == ["Created", "Subscribed"]


def test_notices_tell_of_every_stream_of_a_subscription_at_once(server: RunningServer) -> None:
    create(server, "/_sub/notices", "/n1", "/n2")
    for name in ("/n1", "/n2"):
        subscribe(server, name, "/_sub/notices")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    token = {"Authorization": f"Bearer {server.admin_token}"}
    connection.request("GET", "/reader/notify?subscription=/_sub/notices", headers=token)
    response = connection.getresponse()
    assert response.readline() == b"{}\n"

    wanted = {append(server, "/n1", "x"), append(server, "/n2", "y")}
    told = set()
    while not wanted <= told:
        told.add(json.loads(response.readline())["Cursor"])
    response.close()
    connection.close()


def test_notices_end_with_their_token(server: RunningServer) -> None:
    create(server, "/_sub/brief")
    held = open_keys(server.data).issue("app", subscribe=("/_sub/brief",), ttl=2)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/reader/notify?subscription=/_sub/brief", headers={"Authorization": f"Bearer {held}"})

    assert connection.getresponse().read() == b"{}\n"  # a proper end
    connection.close()


PATHS = ("create_stream", "append", "subscribe", "unsubscribe", "liveread")
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text(max_size=20),
        st.sampled_from(["/fuzz", "/_sub/fuzz", "/fuzz:0:0", "/fuzz:-1:-1", "/fuzz:0:99999999999999999999", "/"]),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
fields = st.dictionaries(
    st.sampled_from(
        ["Name", "Stream", "Lines", "SubscriptionId", "Cursor", "MaxLinesToRead", "ExpectedOffset", "url", "secret"]
    ),
    values,
)


@settings(max_examples=60)
@given(
    fields, st.sampled_from([*(f"/writer/{path}" for path in PATHS), "/reader/read", "/reader/report", "/v1/pushers"])
)
def test_no_request_breaks_the_server(shared_server: RunningServer, given_fields: dict[str, object], path: str) -> None:
    for name in ("/fuzz", "/_sub/fuzz"):
        call(shared_server, "/writer/create_stream", Name=name)

    status = call(shared_server, path, **given_fields).status

    assert status < 500
