"""Any stream, any door: what was published through one can be read through each other one.

A door joins by adding its way to write and its way to read to the two tables.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from penstock.testing import RunningServer, wait_until
from tests.api.client import Tail, ask, publish
from tests.doors.eventhorizon_client import Model, add_pusher, append, call, create, lines, scripted, subscribe
from tests.doors.msgstream_client import login, open_socket, packs, receive
from tests.doors.push_service import bind, binding
from tests.doors.sps_client import Wire, notify
from tests.doors.trickle_client import delete, get, made, post
from tests.doors.user_agent import UserAgent, connected

Write = Callable[[RunningServer, str, list[bytes]], str | None]  # a door that names its streams itself returns the name
Read = Callable[[RunningServer, str, int], list[bytes]]


def write_v1(server: RunningServer, stream: str, bodies: list[bytes]) -> None:
    for body in bodies:
        assert publish(server, stream, body).status == 201


def read_v1_pages(server: RunningServer, stream: str, count: int) -> list[bytes]:
    entries: list[dict[str, str]] = []
    while len(entries) < count:
        page = ask(server, "GET", "/v1/read", **{"stream": stream, "from": len(entries), "limit": count}).json
        entries += page["entries"]
    return [entry["data"].encode() for entry in entries]


def read_v1_tail(server: RunningServer, stream: str, count: int) -> list[bytes]:
    with Tail(server, stream, after=0) as tail:
        return [line["data"].encode() for line in tail.lines(count)]


def write_sps(server: RunningServer, stream: str, bodies: list[bytes]) -> None:
    for body in bodies:
        assert notify(server, "room", body, tid=stream).status == 200


def read_sps_lines(server: RunningServer, stream: str, count: int) -> list[bytes]:
    with Wire(server, tid=stream, o=0).opened() as wire:
        ours = (line for line in iter(wire.line, None) if line.get("tid") == stream)
        return [
            json.dumps(next(ours)["data"], separators=(",", ":"), ensure_ascii=False).encode() for _ in range(count)
        ]


def read_sps_raw(server: RunningServer, stream: str, count: int) -> list[bytes]:
    with Wire(server, tid=stream, o=first_id(server, stream) - 1, format="raw") as wire:
        return [wire.chunk() for _ in range(count)]


def first_id(server: RunningServer, stream: str) -> int:
    id: int = ask(server, "GET", "/v1/read", stream=stream, limit=1).json["entries"][0]["id"]
    return id


def write_eventhorizon(server: RunningServer, stream: str, bodies: list[bytes]) -> None:
    for name in (stream.rpartition("/")[0], stream):
        assert call(server, "/writer/create_stream", Name=name).status in (201, 409)
    append(server, stream, *(body.decode() for body in bodies))


def read_eventhorizon(server: RunningServer, stream: str, count: int) -> list[bytes]:
    found = lines(server, f"{stream}:0:0:?")
    return [line["Content"].encode() for line in found if not line["MetaType"]][:count]


def read_eventhorizon_push(server: RunningServer, stream: str, count: int) -> list[bytes]:
    """As an app gets it from a pusher."""
    app = Model(f"/_sub/{uuid.uuid4().hex}")
    create(server, app.id)
    subscribe(server, stream, app.id)
    with scripted(app) as endpoint:
        id = add_pusher(server, endpoint.url)
        wait_until(lambda: len(app.applied.get(stream, [])) >= count)
        ask(server, "DELETE", f"/v1/pushers/{id}")
    return [content.encode() for content in app.applied[stream]]


def read_webpush(server: RunningServer, stream: str, count: int) -> list[bytes]:
    """As a browser gets it that was away: our sender encrypts, our service keeps, the user agent decrypts."""
    with UserAgent(server) as agent:
        subscription = agent.subscribe(ask(server, "GET", "/v1/webpush/key", token=None).json["public_key"])
    wait_until(lambda: not connected(server))
    id = bind(server, subscription, stream, after=first_id(server, stream) - 1)
    wait_until(lambda: binding(server, id)["sent"] == count)
    with UserAgent(server, agent.uaid, agent.browser) as agent:
        found = [agent.read() for _ in range(count)]
    ask(server, "DELETE", f"/v1/webpush/{id}")
    return found


def write_trickle(server: RunningServer, stream: str, bodies: list[bytes]) -> str:
    """As the segments of a recorded channel, which is closed afterwards."""
    channel = made(server, "matrix", record="true")
    for body in bodies:
        assert post(server, channel, -1, body).status == 200
    assert delete(server, channel).status == 200
    return f"/channels/{channel}/1"


def read_trickle(server: RunningServer, stream: str, count: int) -> list[bytes]:
    """Any stream is a channel: its index is the seq."""
    return [get(server, stream, seq).body for seq in range(count)]


def write_msgstream(server: RunningServer, stream: str, bodies: list[bytes]) -> None:
    for body in bodies:
        wanted = b'{"streams":"%b","messages":[["matrix",%b]]}' % (stream.encode(), body)
        assert ask(server, "POST", "/v1/emit", wanted).status == 200


def read_msgstream_poll(server: RunningServer, stream: str, count: int) -> list[bytes]:
    key = login(server, follow=[stream], after=0)
    return [_data_of(pack) for pack in packs(server, key).values()][:count]


def read_msgstream_socket(server: RunningServer, stream: str, count: int) -> list[bytes]:
    got: list[bytes] = []
    with open_socket(server, login(server, follow=[stream], after=0)) as opened:
        while len(got) < count:
            got += [_data_of(pack) for pack in receive(opened).values()]
    return got


def _data_of(pack: Any) -> bytes:
    [[_, data]] = pack
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


WRITERS: dict[str, Write] = {
    "eventhorizon": write_eventhorizon,
    "v1": write_v1,
    "sps": write_sps,
    "trickle": write_trickle,
    "msgstream": write_msgstream,
}
READERS: dict[str, Read] = {
    "eventhorizon read": read_eventhorizon,
    "eventhorizon push": read_eventhorizon_push,
    "v1 pages": read_v1_pages,
    "v1 tail": read_v1_tail,
    "sps lines": read_sps_lines,
    "sps raw": read_sps_raw,
    "webpush": read_webpush,
    "trickle": read_trickle,
    "msgstream poll": read_msgstream_poll,
    "msgstream socket": read_msgstream_socket,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_one_door_writes_every_door_reads(shared_server: RunningServer, writer: str, reader: str) -> None:
    stream = f"/matrix/{uuid.uuid4().hex}"
    bodies = [b'{"n":%d,"text":"\xc3\xa9 <&>"}' % number for number in range(5)]

    stream = WRITERS[writer](shared_server, stream, bodies) or stream

    assert READERS[reader](shared_server, stream, len(bodies)) == bodies
