"""WebSockets, against the client of the websockets library and against raw garbage."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from penstock.http.connection import Connection
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Response
from penstock.http.routing import Route
from penstock.http.websocket import WebSocket
from penstock.testing import wait_until_async
from penstock.wire.websocket_frames import text_frame
from tests.http.wires import Peer, Site, on_uvloop, request, site

HANDSHAKE = (
    "Upgrade: websocket", "Connection: keep-alive, Upgrade", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)  # fmt: skip


class Echo:
    """Sends back what it receives, and notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str | bytes | int] = []
        self.socket: WebSocket

    def received(self, message: str | bytes) -> None:
        self.heard.append(message)
        if message == "fail":
            raise RuntimeError("broken owner")
        if message == "close":
            self.socket.close(1008, "enough")
        if isinstance(message, str):
            self.socket.send_frame(text_frame(message.encode()))
        else:
            self.socket.send_frame(Frame(Opcode.BINARY, message).serialize(mask=False))

    def drained(self) -> None:
        self.heard.append("drained")

    def lost(self, code: int) -> None:
        self.heard.append(code)

    def ponged(self) -> None:
        self.heard.append("ponged")


def echo_route(owners: list[Echo], subprotocol: str | None = None) -> Route:
    def accept(request: Request) -> Response:
        owner = Echo()
        owner.socket = request.accept_websocket(owner, subprotocol)
        owners.append(owner)
        return LIVE

    return Route("GET", "/ws", accept, door="echo")


def client(place: Site, **options: object) -> connect:
    host, port = place.listener.address
    return connect(f"ws://{host}:{port}/ws", proxy=None, **options)  # type: ignore[arg-type]


async def raw(place: Site) -> Peer:
    peer = await place.connect()
    peer.send(request("GET", "/ws", *HANDSHAKE))
    assert (await peer.head())[0] == 101
    return peer


async def stuck(place: Site, owners: list[Echo]) -> tuple[Peer, Connection]:
    """A peer that has not read what was sent to it, and its connection."""
    peer = await raw(place)
    connection = next(iter(place.listener._shared.connections))
    while not connection.stuck:
        owners[0].socket.send_frame(text_frame(b"x" * 500_000))
        await asyncio.sleep(0)
    return peer, connection


def masked(opcode: Opcode, payload: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, payload, fin).serialize(mask=True)


@on_uvloop
async def test_messages_go_both_ways() -> None:
    owners: list[Echo] = []
    async with site([echo_route(owners)]) as place, client(place, compression="deflate") as socket:
        for message in ("hällo", b"\x00\xff", "x" * 70_000, ""):
            await socket.send(message)
            assert await socket.recv() == message
        await socket.send(["in ", "three ", "parts"])
        assert await socket.recv() == "in three parts"
        owners[0].socket.send_frame(text_frame(b"shared"))
        assert await socket.recv() == "shared"
        await (await socket.ping())
        owners[0].socket.ping()
        await wait_until_async(lambda: owners[0].heard[-1] == "ponged")
        assert place.listener.counters.live == {"echo": 1}


@on_uvloop
async def test_either_side_may_close() -> None:
    owners: list[Echo] = []
    async with site([echo_route(owners)]) as place:
        async with client(place) as leaving:
            await leaving.close(4001, "bye")
        await wait_until_async(lambda: owners[0].heard == [4001])
        async with client(place) as staying:
            owners[1].socket.close(4002, "ö" * 100)
            with pytest.raises(ConnectionClosed) as caught:
                await staying.recv()
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4002, "ö" * 61)
        await wait_until_async(lambda: owners[1].heard == [4002])
        for owner in owners:
            owner.socket.send_frame(text_frame(b"nobody"))
            owner.socket.close()
        assert place.listener.counters.live == {"echo": 0}


@on_uvloop
async def test_a_peer_that_vanishes_has_code_1006() -> None:
    owners: list[Echo] = []
    async with site([echo_route(owners)]) as place:
        peer = await raw(place)
        peer.leave()
        await wait_until_async(lambda: owners[0].heard == [1006])


@on_uvloop
async def test_a_peer_that_does_not_answer_the_close_is_cut() -> None:
    owners: list[Echo] = []
    async with site([echo_route(owners)], manual=True) as place:
        assert place.timer is not None
        peer = await raw(place)
        owners[0].socket.close(1000)
        owners[0].socket.send_frame(text_frame(b"nothing follows a close frame"))
        peer.send(masked(Opcode.TEXT, b"and nobody listens any more"))
        assert await peer.read(4) == b"\x88\x02\x03\xe8"
        place.timer.advance(6)
        assert await peer.rest() == b""
        await wait_until_async(lambda: owners[0].heard == [1000])


@on_uvloop
async def test_a_slow_peer_that_does_not_answer_the_close_is_cut() -> None:
    """The close waits behind megabytes; when they are out its time begins."""
    owners: list[Echo] = []
    async with site([echo_route(owners)], manual=True) as place:
        assert place.timer is not None
        peer, connection = await stuck(place, owners)
        owners[0].socket.close(1000)
        await _read_until(peer, b"\x88\x02\x03\xe8")
        await wait_until_async(lambda: not connection.stuck)
        place.timer.advance(6)
        assert await peer.rest() == b""


@on_uvloop
async def test_a_peer_that_was_slow_once_is_not_cut_for_it_later() -> None:
    owners: list[Echo] = []
    async with site([echo_route(owners)], manual=True) as place:
        assert place.timer is not None
        peer, connection = await stuck(place, owners)
        owners[0].socket.send_frame(text_frame(b"the end"))
        await _read_until(peer, b"the end")
        await wait_until_async(lambda: not connection.stuck)
        place.timer.advance(100)
        owners[0].socket.send_frame(text_frame(b"still there"))
        await _read_until(peer, b"still there")


async def _read_until(peer: Peer, end: bytes) -> None:
    received = b""
    while not received.endswith(end):
        piece = await peer.reader.read(1_000_000)
        assert piece, "cut"
        received = received[-20:] + piece


@on_uvloop
async def test_a_message_that_has_begun_must_make_progress() -> None:
    owners: list[Echo] = []
    async with site([echo_route(owners)], manual=True, body_timeout=30) as place:
        assert place.timer is not None
        # Given one that trickles, one that is halfway but steady, one in the middle of fragments, and one that is idle
        trickling, steady, fragments, idle = [await raw(place) for _ in range(4)]
        message = masked(Opcode.BINARY, b"x" * 8000)

        async def send(peer: Peer, data: bytes) -> None:
            wanted = place.listener.counters.bytes_in + len(data)
            peer.send(data)
            await wait_until_async(lambda: place.listener.counters.bytes_in == wanted)

        await send(idle, masked(Opcode.TEXT, b"said"))
        await send(fragments, masked(Opcode.TEXT, b"a", fin=False))
        for turn in range(4):
            await send(trickling, message[turn : turn + 1] if turn < 2 else b"")
            await send(steady, message[2000 * turn : 2000 * turn + 2000])
            for _ in range(25):
                place.timer.advance(1)
                await asyncio.sleep(0)  # a close frame goes out before its own deadline is over
        # Then only those who came on remain
        for peer in (trickling, fragments):
            assert (await peer.read(4))[2:] == (1008).to_bytes(2)
        assert place.listener.counters.timed_out == 2
        await send(steady, message[8000:])
        await wait_until_async(lambda: owners[1].heard == [b"x" * 8000])
        place.timer.advance(1000)
        await send(idle, masked(Opcode.TEXT, b"again"))
        await wait_until_async(lambda: owners[3].heard == ["said", "again"])


@on_uvloop
async def test_a_subprotocol_is_agreed_on_only_if_it_was_offered() -> None:
    async with site([echo_route([], "push")]) as place:
        async with client(place, subprotocols=["chat", "push"]) as socket:
            assert socket.subprotocol == "push"
        with pytest.raises(InvalidStatus) as caught:
            await client(place, subprotocols=["chat"])
        assert caught.value.response.status_code == 400


@on_uvloop
async def test_what_is_no_handshake_is_refused() -> None:
    async with site([echo_route([])], cors_origins=("https://a.example",)) as place:
        peer = await place.connect()
        plain = await peer.get("/ws")
        old = await peer.get("/ws", *HANDSHAKE[:2], "Sec-WebSocket-Version: 8", HANDSHAKE[3])
        keyless = await peer.get("/ws", *HANDSHAKE[:3])
        foreign = await peer.get("/ws", *HANDSHAKE, "Origin: https://b.example")
        other = await peer.get("/hello", "Upgrade: h2c", "Connection: Upgrade")

    assert (plain.status, plain.headers["upgrade"]) == (426, "websocket")
    assert (old.status, keyless.status, foreign.status, other.status) == (400, 400, 403, 200)


@on_uvloop
@pytest.mark.parametrize(("origin", "status"), [("https://test", 101), ("http://test:81", 403), ("https://xtest", 403)])
async def test_a_page_of_the_server_itself_needs_no_place_in_the_list(origin: str, status: int) -> None:
    async with site([echo_route([])], cors_origins=("https://a.example",)) as place:
        peer = await place.connect()
        peer.send(request("GET", "/ws", *HANDSHAKE, f"Origin: {origin}"))
        assert (await peer.head())[0] == status


GARBAGE = [
    (b"\x81\x03abc", 1002),  # not masked
    (b"\x83\x80\x00\x00\x00\x00", 1002),  # unknown opcode
    (b"\xc1\x80\x00\x00\x00\x00", 1002),  # reserved bit
    (masked(Opcode.CONT, b"x"), 1002),  # continues nothing
    (masked(Opcode.TEXT, b"a", fin=False) + masked(Opcode.TEXT, b"b"), 1002),
    (masked(Opcode.TEXT, b"\xff\xfe"), 1007),
    (masked(Opcode.CLOSE, b"\x03"), 1002),
    (masked(Opcode.CLOSE, b"\x03\xe8\xff"), 1007),
    (masked(Opcode.CLOSE, b"\x00\x01"), 1002),
    (b"\x89\xfe\x00\x7e" + bytes(130), 1002),  # a ping that is too long
    (b"\x82\xff\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x00", 1009),
    (masked(Opcode.TEXT, b"fail"), 1011),
]


@pytest.mark.parametrize(("wire", "code"), GARBAGE, ids=range(len(GARBAGE)))  # the masks are random
@on_uvloop
async def test_garbage_is_closed_with_the_right_code(wire: bytes, code: int, caplog: pytest.LogCaptureFixture) -> None:
    owners: list[Echo] = []
    async with site([echo_route(owners)]) as place:
        for cuts in ([wire], [bytes([byte]) for byte in wire]):
            peer = await raw(place)
            # A message before the garbage is heard in any case.
            peer.send(masked(Opcode.TEXT, b"before"))
            for cut in cuts:
                peer.send(cut)
                await asyncio.sleep(0)
            told = await peer.rest()
            assert told.startswith(text_frame(b"before"))
            close = told[len(text_frame(b"before")) :]
            assert (close[0], int.from_bytes(close[2:4])) == (0x88, code)
            peer.leave()
            await wait_until_async(lambda: isinstance(owners[-1].heard[-1], int))
            assert owners[-1].heard[0] == "before"
            assert owners[-1].heard[-1] == code


@on_uvloop
async def test_both_sides_may_close_in_the_same_breath(caplog: pytest.LogCaptureFixture) -> None:
    owners: list[Echo] = []
    async with site([echo_route(owners)]) as place:
        peer = await raw(place)
        peer.send(masked(Opcode.TEXT, b"close") + masked(Opcode.TEXT, b"after") + masked(Opcode.CLOSE, b"\x03\xe8"))
        told = await peer.rest()
        peer.leave()
        await wait_until_async(lambda: owners[0].heard[-1] == 1000)

    assert told.endswith(b"\x88\x02\x03\xe8")
    assert owners[0].heard == ["close", 1000]
    assert "websocket.owner_failed" not in caplog.text


def test_an_idle_websocket_holds_no_parser_and_a_half_message_does() -> None:
    @on_uvloop
    async def run() -> None:
        owners: list[Echo] = []
        async with site([echo_route(owners)]) as place:
            peer = await raw(place)
            wire = masked(Opcode.TEXT, b"abc")
            for part in (wire[:1], wire[1:2], wire[2:7]):
                before = place.listener.counters.bytes_in
                peer.send(part)
                await wait_until_async(lambda b=before, p=part: place.listener.counters.bytes_in == b + len(p))
                assert owners[0].socket._reader is not None
            peer.send(wire[7:])
            await wait_until_async(lambda: owners[0].heard == ["abc"])
            assert owners[0].socket._reader is None

    run()


@given(
    st.lists(st.one_of(st.text(max_size=20), st.binary(max_size=200), st.just("x" * 70_000)), min_size=1, max_size=5),
    st.lists(st.integers(0, 100_000), max_size=8),
    st.booleans(),
)
@settings(max_examples=25)
def test_how_the_frames_are_cut_does_not_matter(
    messages: list[str | bytes], places: list[int], fragmented: bool
) -> None:
    wire = b""
    for message in messages:
        payload = message.encode() if isinstance(message, str) else message
        opcode = Opcode.TEXT if isinstance(message, str) else Opcode.BINARY
        if fragmented:
            half = len(payload) // 2
            wire += masked(opcode, payload[:half], fin=False) + masked(Opcode.PING, b"!")
            wire += masked(Opcode.CONT, payload[half:])
        else:
            wire += masked(opcode, payload)
    at = sorted({place % (len(wire) + 1) for place in places})
    owners: list[Echo] = []

    @on_uvloop
    async def run() -> None:
        async with site([echo_route(owners)]) as place:
            # Two at once: they must not mix up the parser that they share.
            peers = [await raw(place) for _ in range(2)]
            for start, end in zip([0, *at], [*at, len(wire)], strict=True):
                for peer in peers:
                    peer.send(wire[start:end])
                await asyncio.sleep(0)
            await wait_until_async(lambda: all(len(owner.heard) >= len(messages) for owner in owners))

    run()
    assert [owner.heard[: len(messages)] for owner in owners] == [messages, messages]


@given(st.binary(min_size=1, max_size=300))
@settings(max_examples=40)
def test_any_bytes_end_well(garbage: bytes) -> None:
    owners: list[Echo] = []

    @on_uvloop
    async def run() -> None:
        async with site([echo_route(owners)]) as place:
            peer = await raw(place)
            peer.send(garbage)
            peer.writer.write_eof()
            await peer.rest()
            await place.connections_are(0)
            assert [code for code in owners[0].heard if isinstance(code, int)] != []
            async with client(place) as socket:
                await socket.send("still fine")
                assert await socket.recv() == "still fine"

    run()


@on_uvloop
async def test_a_peer_that_pings_without_reading_is_not_read_from() -> None:
    owners: list[Echo] = []
    async with site([echo_route(owners)]) as place:
        peer = await raw(place)
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        connection = next(iter(place.listener._shared.connections))
        flood = masked(Opcode.PING, b"x" * 125) * 2000
        for _ in range(200):
            peer.send(flood)
            await asyncio.sleep(0)
            if connection._paused:
                break
        await wait_until_async(lambda: connection._paused)
        assert owners[0].socket.pending < 20_000_000


@on_uvloop
async def test_a_slow_receiver_is_full_and_drains() -> None:
    owners: list[Echo] = []
    async with site([echo_route(owners)]) as place, client(place, max_size=None, max_queue=1) as socket:
        frame = text_frame(b"x" * 500_000)
        sent = 0
        while not owners[0].socket.full or sent < 30:
            owners[0].socket.send_frame(frame)
            sent += 1
            await asyncio.sleep(0)
        await _receive(socket, sent)
        await wait_until_async(lambda: "drained" in owners[0].heard)
        assert not owners[0].socket.full


async def _receive(socket: ClientConnection, count: int) -> None:
    for _ in range(count):
        assert len(await socket.recv()) == 500_000
