"""What somebody may do to sps, Trickle and the message stream, beside a client of that door who does as he should.

Each door has a list of hostile behaviours; between any two of them the innocent one has something published to him
and gets it. Nothing is answered with 500, and the bystander, who publishes and listens through `/v1`, notices nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from urllib.parse import quote, urlencode

import pytest
from websockets.frames import Frame, Opcode

from penstock.doors.trickle import door as trickle_door
from penstock.doors.trickle import requests as trickle_requests
from penstock.testing import RunningServer, start_server
from penstock.wire import msgstream
from penstock.wire import sps as sps_wire
from tests.api.client import ask
from tests.bystander.catalogue import Attack, answered, plain, run, sent
from tests.bystander.sabotaged import start_sabotaged
from tests.doors import sps_client as sps
from tests.doors.msgstream_client import emit, login, open_socket, packs, receive
from tests.doors.trickle_client import Get, Post, create, delete, get, made, new_channel, path, post, request

NAMES = [
    "%00", "%FF%FE", "..%2F..", "%2e%2e", "a" * 5_000, "~ps.0." + "A" * 22, "_changes", "%0d%0aX:1", "*", "%3E",
    quote("é" * 60),
]  # fmt: skip
TIMES = ["0", "-1", "1e400", "9" * 400, "nan", "inf", "-inf", "0x1", "1,5", "", "%D9%A3", "1e-400", "1s"]
NUMBERS = ["-2", "-9223372036854775808", "9223372036854775807", "9" * 400, "1e9", "0x1", "--1", "%30"]

UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)

SETTINGS = {"trickle_autocreate": True, "trickle_segment_bytes": 1_000_000, "trickle_abandon": 0.3}


@pytest.fixture(scope="module", params=[1, 2], ids=["process", "workers"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {**SETTINGS, "server_workers": request.param}
    with start_server(tmp_path_factory.mktemp("catalogue") / "data", **settings) as running:
        yield running


def begun(server: RunningServer, channel: str, seq: int) -> bytes:
    """The head of a segment."""
    return request(server, "POST", path(channel, seq), {"Transfer-Encoding": "chunked"})


# ── Trickle ────────────────────────────────────────────────────────────────────────────────────


def trickle_names(server: RunningServer) -> None:
    for name in NAMES:
        answered(server, *(plain(server, method, f"/trickle/{name}/0") for method in ("GET", "POST", "DELETE")))


def trickle_numbers(server: RunningServer) -> None:
    channel = made(server)
    for method in ("POST", "DELETE"):
        answered(server, *(plain(server, method, path(channel, number)) for number in NUMBERS))
    for number in range(100):
        sent(server, begun(server, new_channel(), number * 10**15), reset=True)


def trickle_tiny_chunks(server: RunningServer) -> None:
    with Post(server, made(server), 0) as posting:
        posting.socket.sendall(b"1\r\nx\r\n" * 20_000)
        assert posting.end().status == 200


def trickle_tiny_segments(server: RunningServer) -> None:
    channel = made(server, segments=10_000)
    one = request(server, "POST", path(channel, -1), {"Content-Length": "1"}) + b"x"
    for _ in range(5):
        sent(server, one * 300)


def trickle_too_large(server: RunningServer) -> None:
    channel = made(server)
    with Post(server, channel, 0, b"x" * 600_000, b"y" * 600_000) as posting:
        assert posting.head() == 413
    answered(server, request(server, "POST", path(channel, 1), {"Content-Length": str(2**62)}))


def trickle_clocks(server: RunningServer) -> None:
    for seconds in TIMES:
        answered(server, plain(server, "POST", f"/trickle/{new_channel('clocks')}?seconds={seconds}"))
        sent(server, plain(server, "GET", path(new_channel(), 0), **{"Lp-Trickle-Wait": seconds}))


def trickle_order(server: RunningServer) -> None:
    channel = made(server)
    post(server, channel, 0, b"x")
    with contextlib.ExitStack() as stack:
        ahead = [stack.enter_context(Post(server, channel, seq)) for seq in (6, 5, 4, 3, 2)]
        ahead[0].send(b"too far")
        delete(server, channel, 4)
        delete(server, channel)
        create(server, channel)
    assert get(server, channel, 99).status == 470


def trickle_leavers(server: RunningServer) -> None:
    channel = made(server)
    for number in range(100):
        sent(server, plain(server, "GET", path(channel, 0)), reset=number % 2 == 0)
        sent(server, begun(server, channel, number) + b"4\r\nha")


def trickle_slow_readers(server: RunningServer) -> None:
    channel = made(server, bytes=1_500_000)
    with contextlib.ExitStack() as stack:
        for seq in range(4):
            assert post(server, channel, seq, bytes(900_000)).status == 200
            for _ in range(10):
                stack.enter_context(Get(server, channel, seq, receive_buffer=4096))


def trickle_askers(server: RunningServer) -> None:
    """Asks, and asks, and never reads."""
    sent(server, plain(server, "GET", path(made(server), "next")) * 2_000)


# ── the message stream ─────────────────────────────────────────────────────────────────────────


def stream_of(server: RunningServer, key: str, **more: str) -> bytes:
    return plain(server, "GET", "/msgstream?" + urlencode({"sessionKey": key, **({"transport": "longpolling"} | more)}))


def messages_keys(server: RunningServer) -> None:
    for key in ("", ":", ":::", "a" * 5_000, "é:é", "x\0:y", "actor1:" + "0" * 16):
        query = urlencode({"sessionKey": key, "transport": "shortpolling"})
        answered(server, plain(server, "GET", f"/msgstream?{query}"))
    for query in ("", "transport=websocket&sessionKey=a:b", "confirmIds=1&confirmIds=2", "transport=x", "%ff=%ff"):
        answered(server, plain(server, "GET", f"/msgstream?{query}"))


def messages_confirms(server: RunningServer) -> None:
    key = login(server)
    for confirm in (",".join(map(str, range(3_000))), "9" * 6_000, "-1,0,,x,1e5, 2", "," * 6_000):
        query = {"sessionKey": key, "transport": "shortpolling", "confirmIds": confirm}
        answered(server, plain(server, "GET", "/msgstream?" + urlencode(query)))


def messages_displacing(server: RunningServer) -> None:
    key = login(server, ttl=1)
    for number in range(200):
        sent(server, stream_of(server, key), reset=number % 2 == 0)


def messages_frames(server: RunningServer) -> None:
    key = login(server)
    for frame in (b"binary", "1," * 40_000, "x" * 500_000, ""):
        with contextlib.suppress(Exception), open_socket(server, key) as peer:
            peer.send(frame)
            peer.recv(0.1)


def messages_floods(server: RunningServer) -> None:
    """Confirms the same again and again, in one go."""
    key = login(server)
    emit(server, key)
    handshake = stream_of(server, key, transport="websocket").replace(b"\r\n\r\n", b"\r\n" + UPGRADE)
    sent(server, handshake, bytes(Frame(Opcode.TEXT, b"1").serialize(mask=True)) * 4_000)


def messages_logins(server: RunningServer) -> None:
    """One actor, again and again; what waits for it goes with each."""
    for _ in range(50):
        key = login(server, "same")
        emit(server, key, ["test", "x" * 1000])


def messages_bodies(server: RunningServer) -> None:
    deep = b'{"actors":["a"],"messages":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    for body in (b"", b"null", b"[]", deep, b'{"actors":["a"],"messages":[[1e999]]}', b'{"actors":' + b"[1," * 99):
        for target in ("/v1/emit", "/v1/sessions"):
            assert ask(server, "POST", target, body).status != 500


def messages_clocks(server: RunningServer) -> None:
    for ttl in ("0", "-1", "1e400", "9" * 400, "NaN", "1.5", "null", "true", '"60"', "[]", "1e-400"):
        body = b'{"actor":"clocks","ttl":%b}' % ttl.encode()
        assert ask(server, "POST", "/v1/sessions", body).status in (200, 201, 400), ttl
    for number in range(100):
        login(server, f"short-{number}", ttl=1)


# ── sps ────────────────────────────────────────────────────────────────────────────────────────


def sps_parameters(server: RunningServer) -> None:
    for query in (
        "", "uid=x", "uid=" + "9" * 400, "uid=1&uid=2", "uid=7&u=8", "uid=7&i=x", "uid=7&o=-1",
        "uid=7&tid=" + "a," * 2_000,
        "uid=7&tid=" + quote("/*/x/>/y"), "uid=7&hid=" + "h" * 4_000, "uid=7&hid=%00", "uid=7&o=" + "9" * 400,
    ):  # fmt: skip
        answered(server, *(plain(server, "POST", f"/{verb}?{query}") for verb in ("join", "leave", "subsist")))
        sent(server, plain(server, "GET", f"/subscribe?{query}"))


def sps_clocks(server: RunningServer) -> None:
    for seconds in TIMES:
        for name in "is":
            sent(server, plain(server, "GET", f"/subscribe?uid=76&tid=x&{name}={seconds}"))
        answered(server, plain(server, "POST", f"/subsist?uid=76&s={seconds}"))


def sps_leavers(server: RunningServer) -> None:
    for number in range(200):
        sent(server, plain(server, "GET", f"/subscribe?uid=77&hid={number % 3}&tid=x&o=0"), reset=number % 2 == 0)


def sps_changers(server: RunningServer) -> None:
    with sps.Wire(server, uid="78").opened():
        for number in range(100):
            sent(server, *(plain(server, "PUT", f"/rooms?uid=78&tid=r{number},{word}") for word in "abcde"))


def sps_slow(server: RunningServer) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(10):
            stack.enter_context(sps.Wire(server, uid="79", hid=str(number), tid="flood"))
        for _ in range(30):
            sps.notify(server, "room", b"x" * 200_000, tid="flood")


def sps_targets(server: RunningServer) -> None:
    for target, params in (
        ("room", {"tid": ",".join(f"t{n}" for n in range(64))}), ("room", {"tid": "," * 500}), ("room", {}),
        ("user", {"uid": "-1"}), ("user", {"uid": "x"}), ("all", {"x": "y"}),
    ):  # fmt: skip
        for body in (b"", b"\xff\xfe\0", b"[" * 50_000, b"\r\n" * 5_000):
            assert sps.notify(server, target, body, **params).status != 500


# ── beside them ────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def innocent_of_trickle(server: RunningServer) -> Iterator[Callable[[int], None]]:
    channel = made(server, "innocent")

    def check(turn: int) -> None:
        with Get(server, channel, turn) as reader:
            assert post(server, channel, turn, b"segment %d" % turn).status == 200
            assert (reader.head(), reader.rest()) == (200, b"segment %d" % turn)

    yield check


@contextlib.contextmanager
def innocent_of_messages(server: RunningServer) -> Iterator[Callable[[int], None]]:
    by_poll, by_socket = login(server, "innocent"), login(server, "innocent too")
    with open_socket(server, by_socket) as peer:

        def check(turn: int) -> None:
            id = emit(server, by_poll, ["turn", turn])
            assert packs(server, by_poll) == {str(id): [["turn", turn]]}
            assert packs(server, by_poll, confirm=str(id)) == {}
            id = emit(server, by_socket, ["turn", turn])
            assert receive(peer) == {str(id): [["turn", turn]]}
            peer.send(str(id))

        yield check


@contextlib.contextmanager
def innocent_of_sps(server: RunningServer) -> Iterator[Callable[[int], None]]:
    with sps.Wire(server, tid="innocent").opened() as wire:

        def check(turn: int) -> None:
            ids = [sps.notify_id(server, "user", uid=wire.uid), sps.notify_id(server, "room", tid="innocent")]
            while ids:
                if (line := wire.line())["id"] == ids[0]:
                    del ids[0]
                else:
                    assert line["id"] < ids[0], line  # what was sent to all

        yield check


CATALOGUE = {
    "trickle": (innocent_of_trickle, [
        trickle_names, trickle_numbers, trickle_tiny_chunks, trickle_tiny_segments, trickle_too_large, trickle_order,
        trickle_clocks, trickle_leavers, trickle_slow_readers, trickle_askers,
    ]),
    "msgstream": (innocent_of_messages, [
        messages_keys, messages_confirms, messages_displacing, messages_frames, messages_floods, messages_logins,
        messages_bodies, messages_clocks,
    ]),
    "sps": (innocent_of_sps, [sps_parameters, sps_clocks, sps_leavers, sps_changers, sps_slow, sps_targets]),
}  # fmt: skip


@pytest.mark.parametrize("door", CATALOGUE)
def test_nothing_that_one_peer_does_hurts_another(server: RunningServer, door: str) -> None:
    run(server, *CATALOGUE[door])


def believing() -> None:
    """Whatever is written in the place of a number is taken for one, at each of the doors."""
    trickle_door.parse_seq = trickle_requests.parse_seq = int
    msgstream.confirmed = lambda text: tuple(map(int, filter(None, text.split(","))))
    sps_wire.user = lambda params: str(int(params["uid"]))


@pytest.fixture(scope="module")
def believer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_sabotaged(tmp_path_factory.mktemp("believer") / "data", believing) as running:
        yield running


@pytest.mark.parametrize("attack", [trickle_numbers, messages_confirms, sps_parameters])
def test_the_catalogue_notices_a_door_that_believes_what_it_is_told(believer: RunningServer, attack: Attack) -> None:
    with pytest.raises(AssertionError, match="500"):
        attack(believer)
