"""Live answers: outlets, flushes, slow readers, ends."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from penstock.api.auth import Caller
from penstock.errors import PeerError
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Response
from penstock.http.routing import STREAM, Route
from penstock.testing import wait_until_async
from penstock.wire.http_chunks import chunk
from tests.http.wires import IncomingBody, Peer, Wire, live_route, on_uvloop, request, site

pytestmark = pytest.mark.usefixtures("plain_and_tls")

HIGH = 64 * 1024


@on_uvloop
async def test_chunks_arrive_and_the_connection_goes_on_after_the_last() -> None:
    wires: list[Wire] = []
    async with site([live_route(wires)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/live") + request("GET", "/hello"))
        status, headers = await peer.head()
        wires[0].outlet.send(chunk(b"one"))
        assert (status, headers["transfer-encoding"], await peer.chunk()) == (200, "chunked", b"one")
        wires[0].outlet.send(chunk(b"two"))
        wires[0].outlet.close()
        wires[0].outlet.send(chunk(b"too late"))

        assert [piece async for piece in peer.chunks()] == [b"two"]
        assert (await peer.answer()).body == b'{"hello":"world"}'
        assert place.listener.counters.live == {"": 0}
    assert wires[0].heard == []


@on_uvloop
async def test_http_1_0_gets_bytes_up_to_the_end_of_the_connection() -> None:
    wires: list[Wire] = []
    async with site([live_route(wires)]) as place:
        peer = await place.connect()
        peer.send(b"GET /live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        _, headers = await peer.head()
        assert (wires[0].outlet.chunked, headers["connection"]) == (False, "close")
        wires[0].outlet.send(b"plain")
        wires[0].outlet.close()

        assert await peer.rest() == b"plain"


@on_uvloop
async def test_head_of_a_live_route_has_no_body() -> None:
    wires: list[Wire] = []
    async with site([live_route(wires)]) as place:
        peer = await place.connect()
        peer.send(request("HEAD", "/live") + request("GET", "/hello"))
        assert (await peer.answer(method="HEAD")).headers["transfer-encoding"] == "chunked"
        assert (await peer.answer()).status == 200
        assert not wires[0].outlet.open
    assert wires[0].heard == ["lost"]


@pytest.mark.only_plain("TLS has no half-close")
@on_uvloop
async def test_the_owner_hears_once_that_its_peer_is_gone() -> None:
    wires: list[Wire] = []
    async with site([live_route(wires)]) as place:
        leaving, aborted, finishing = [await place.connect() for _ in range(3)]
        for peer in (leaving, aborted, finishing):
            peer.send(request("GET", "/live"))
            await peer.head()
        leaving.leave()
        wires[1].outlet.abort()
        finishing.writer.write_eof()
        await place.connections_are(0)
        for wire in wires:
            wire.outlet.send(b"nobody")
            wire.outlet.abort()
            wire.outlet.close()
            assert (wire.heard, wire.outlet.open, wire.outlet.pending, wire.outlet.full) == (["lost"], False, 0, False)


@pytest.mark.only_plain("TLS has no socket of its own")
@on_uvloop
async def test_what_is_sent_in_one_turn_is_written_at_once() -> None:
    # Given a connection whose system calls are noted
    wires: list[Wire] = []
    written: list[bytes] = []

    class Noted:
        def __init__(self, sock: socket.SocketType) -> None:
            self.send_on, self.detach = sock.send, sock.detach

        def send(self, data: bytes) -> int:
            written.append(data)
            return self.send_on(data)

    async with site([live_route(wires)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/live"))
        await peer.head()
        pipe = wires[0].outlet._pipe
        pipe.sock = Noted(pipe.sock)
        # When three pieces are sent in one turn, and one in the next
        for piece in (b"a", b"b", b"c"):
            wires[0].outlet.send(chunk(piece))
        assert [await peer.chunk() for _ in range(3)] == [b"a", b"b", b"c"]
        wires[0].outlet.send(chunk(b"d"))
        assert await peer.chunk() == b"d"
    # Then each turn is one write
    assert written[:2] == [chunk(b"a") + chunk(b"b") + chunk(b"c"), chunk(b"d")]


@pytest.mark.only_plain("TLS has no socket of its own")
@pytest.mark.parametrize("watch", [True, False])
@on_uvloop
async def test_an_outlet_with_nothing_queued_can_be_written_to_at_once_until_it_is_closed(watch: bool) -> None:
    wires: list[Wire] = []
    async with site([live_route(wires, watch=watch)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/live"))
        await peer.head()
        outlet = wires[0].outlet
        await wait_until_async(lambda: outlet.clear is not None)
        outlet.send(chunk(b"queued"))
        assert (outlet.clear, outlet.put_last(chunk(b"behind it"))) == (None, False)
        assert [await peer.chunk(), await peer.chunk()] == [b"queued", b"behind it"]
        await wait_until_async(lambda: outlet.clear is not None)
        assert outlet.put_last(chunk(b"at once"))
        outlet.close()
        assert outlet.clear is None
        assert [piece async for piece in peer.chunks()] == [b"at once"]
        # The connection's next answers do not open it again
        peer.send(request("GET", "/hello"))
        assert (await peer.answer()).status == 200
        assert outlet.clear is None


@on_uvloop
async def test_the_linger_collects_what_comes_within_it() -> None:
    wires: list[Wire] = []
    async with site([live_route(wires, watch=True)], linger_ms=20) as place:
        peer = await place.connect()
        peer.send(request("GET", "/live"))
        await peer.head()
        await wait_until_async(lambda: wires[0].heard == ["flushed"])
        for piece in (b"a", b"b"):
            wires[0].outlet.send(chunk(piece))
            for _ in range(3):
                await asyncio.sleep(0)
        assert [await peer.chunk(), await peer.chunk()] == [b"a", b"b"]
        await wait_until_async(lambda: len(wires[0].heard) >= 2)
        # Turns of the loop passed between the two, and still they went out together.
        assert wires[0].heard == ["flushed", "flushed"]
        assert (await place.connect()) is not None


@on_uvloop
async def test_a_slow_reader_fills_its_outlet_and_drains_it() -> None:
    wires: list[Wire] = []
    async with site([live_route(wires)], write_high=HIGH) as place:
        peer = await place.connect(limit=1024)
        peer.send(request("GET", "/live"))
        await peer.head()
        outlet = wires[0].outlet
        # When more is sent than the kernel takes
        piece = chunk(b"x" * 50_000)
        sent = 0
        while sent < 40_000_000 and not (outlet.full and outlet._pipe.stuck):
            outlet.send(piece)
            sent += len(piece)
            await asyncio.sleep(0)
        assert outlet.full
        assert outlet.pending > HIGH
        assert "drained" not in wires[0].heard[-1:]
        told = len(wires[0].heard)
        # and then the peer reads
        received = 0
        while received < sent:
            received += len(await peer.reader.read(1_000_000))
        # Then nothing is missing, the owner hears it, and there is room again
        await wait_until_async(lambda: len(wires[0].heard) > told)
        assert wires[0].heard[told] == "drained"
        assert (received, outlet.full, outlet.pending) == (sent, False, 0)


@on_uvloop
async def test_bytes_never_overtake_each_other_when_the_socket_is_full() -> None:
    wires: list[Wire] = []
    async with site([live_route(wires)]) as place:
        peer = await place.connect(limit=1024)
        peer.send(b"GET /live HTTP/1.0\r\n\r\n")
        await peer.head()
        outlet = wires[0].outlet
        expected = bytearray()
        number = 0
        while len(expected) < 12_000_000:
            line = b"%d:" % number + b"x" * (number * 7919 % 60_000) + b"\n"
            outlet.send(line)
            expected += line
            number += 1
            if number % 5 == 0:
                await asyncio.sleep(0)
            if number % 40 == 0:
                await asyncio.wait_for(peer.reader.read(100), 20)
        outlet.close()
        received = await peer.rest()

    assert len(received) > 10_000_000
    assert bytes(expected).endswith(received)


@on_uvloop
async def test_who_watches_hears_of_every_flush_the_last_one_too() -> None:
    wires: list[Wire] = []
    async with site([live_route(wires, watch=True)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/live"))
        await peer.head()
        await wait_until_async(lambda: wires[0].heard == ["flushed"])  # the head
        wires[0].outlet.send(chunk(b"one"))
        await wait_until_async(lambda: wires[0].heard == ["flushed"] * 2)
        wires[0].outlet.send(chunk(b"two"))
        wires[0].outlet.close()
        await wait_until_async(lambda: wires[0].heard == ["flushed"] * 3)
        for _ in range(2):
            assert await peer.chunk()
        assert await peer.chunk() == b""
        assert (await peer.get("/hello")).status == 200
        assert wires[0].heard == ["flushed"] * 3


@on_uvloop
async def test_an_owner_that_fails_takes_only_itself_down(caplog: pytest.LogCaptureFixture) -> None:
    wires: list[Wire] = []
    async with site([live_route(wires, watch=True)]) as place:
        peers = [await place.connect() for _ in range(3)]
        for peer in peers:
            peer.send(request("GET", "/live"))
            await peer.head()

        def fail() -> None:
            raise RuntimeError("broken owner")

        wires[0].flushed = fail  # type: ignore[method-assign]
        for wire in wires:
            wire.outlet.send(chunk(b"x"))
        assert [await peer.chunk() for peer in peers[1:]] == [b"x", b"x"]
        await wait_until_async(lambda: wires[0].heard == ["lost"] or "lost" in wires[0].heard)


@on_uvloop
async def test_a_live_answer_may_begin_while_the_body_comes_in() -> None:
    async def echo(request: Request) -> None:
        wire = Wire()
        outlet = request.open(200, owner=wire)
        async for piece in IncomingBody(request):
            outlet.send(chunk(piece))
        outlet.close()

    async with site([Route("POST", "/echo", echo, STREAM(1000), timeout=None)]) as place:
        peer = await place.connect()
        peer.send(request("POST", "/echo", "Transfer-Encoding: chunked"))
        await peer.head()
        for piece in (b"one", b"two"):
            peer.send(chunk(piece))
            assert await peer.chunk() == piece
        peer.send(b"0\r\n\r\n")
        assert await peer.chunk() == b""
        assert (await peer.get("/hello")).status == 200


@on_uvloop
async def test_a_handler_that_fails_after_it_began_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    wires: list[Wire] = []

    async def broken(request: Request) -> None:
        wires.append(Wire())
        request.open(200, owner=wires[0])
        raise RuntimeError("too late for an answer")

    async with site([Route("GET", "/broken", broken)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/broken"))
        assert b"0\r\n\r\n" not in await peer.rest()
        await place.connections_are(0)
    assert wires[0].heard == ["lost"]


@on_uvloop
async def test_an_answer_is_given_only_once() -> None:
    refused: list[str] = []

    def twice(request: Request) -> Response:
        request.open(200, owner=Wire()).close()
        with pytest.raises(PeerError) as caught:
            request.open(200, owner=Wire())
        refused.append(str(caught.value))
        return LIVE

    async with site([Route("GET", "/twice", twice)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/twice"))
        assert (await peer.answer()).body == b""
        assert (await peer.get("/hello")).status == 200
    assert len(refused) == 1


@on_uvloop
async def test_a_coroutine_is_cancelled_when_its_peer_leaves() -> None:
    ended: list[str] = []

    async def waiting(request: Request) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")
        return Response(200)

    routes = [Route("GET", "/poll", waiting, timeout=None), Route("GET", "/wait", waiting)]
    async with site(routes) as place:
        # A long poll ends when its peer says no more; a request with a deadline only when it is surely gone.
        for path, leave in (("/poll", Peer.leave), ("/wait", Peer.reset)):
            ended.clear()
            requests = place.listener.counters.requests
            peer = await place.connect()
            peer.send(request("GET", path))
            await wait_until_async(lambda requests=requests: place.listener.counters.requests == requests + 1)
            leave(peer)
            await wait_until_async(lambda: ended == ["ended"])


class Ending(Wire):
    """An owner that knows what to do at its token's end."""

    def token_ended(self) -> None:
        self.heard.append("token ended")


def opened_under(caller: Caller, owners: list[Wire], kind: type[Wire]) -> Route:
    def live(request: Request) -> Response:
        request.caller = caller
        owner = kind()
        owner.outlet = request.open(200, owner=owner)
        owners.append(owner)
        return LIVE

    return Route("GET", "/live", live)


@on_uvloop
async def test_the_end_of_a_token_is_told_once_to_who_knows_what_to_do_and_cuts_the_others() -> None:
    for kind, heard in ((Ending, ["token ended"]), (Wire, ["lost"])):
        owners: list[Wire] = []
        route = opened_under(Caller("alice", expires=time.time() + 3600), owners, kind)
        async with site([route], manual=True) as place:
            peer = await place.connect()
            peer.send(request("GET", "/live"))
            await peer.head()
            assert place.timer is not None
            place.timer.advance(3599, step=50)
            assert owners[0].heard == []
            place.timer.advance(2)
            await wait_until_async(lambda owners=owners, heard=heard: owners[0].heard == heard)
            place.timer.advance(3600, step=50)
            assert owners[0].heard == heard
            if kind is Ending:
                owners[0].outlet.close()
                assert await peer.chunk() == b""


@on_uvloop
async def test_a_live_answer_has_no_deadline_once_it_is_over() -> None:
    owners: list[Wire] = []
    async with site([opened_under(Caller("alice", expires=time.time() + 60), owners, Wire)], manual=True) as place:
        peer = await place.connect()
        peer.send(request("GET", "/live"))
        await peer.head()
        owners[0].outlet.close()
        assert await peer.chunk() == b""
        assert place.timer is not None
        place.timer.advance(61)
        assert (await peer.get("/hello")).status == 200
        peer.leave()
        await place.connections_are(0)
        assert place.listener._shared.wheel.armed == 0


@on_uvloop
async def test_every_way_to_end_gives_the_place_of_a_token_back() -> None:
    def closed(peer: Peer, wire: Wire) -> None:
        wire.outlet.close()
        wire.outlet.close()

    def cut(peer: Peer, wire: Wire) -> None:
        wire.outlet.abort()

    def left(peer: Peer, wire: Wire) -> None:
        peer.leave()

    def reset(peer: Peer, wire: Wire) -> None:
        peer.reset()

    owners: list[Wire] = []
    async with site([opened_under(Caller("alice"), owners, Wire)], connections_per_token=1) as place:
        for end in (closed, cut, left, reset, closed):
            peer = await place.connect()
            peer.send(request("GET", "/live"))
            assert (await peer.head())[0] == 200
            other = await place.connect()
            refused = await other.get("/live")
            assert (refused.status, refused.headers["retry-after"]) == (429, "5")
            assert (await other.get("/hello")).status == 200  # the connection goes on
            other.leave()
            end(peer, owners[-1])
            await wait_until_async(lambda: not place.listener._shared.caps._by_subject)


@pytest.mark.only_plain("TLS has no socket of its own")
@pytest.mark.parametrize("version", ["1.1", "1.0"])
@on_uvloop
async def test_an_event_is_written_at_once_when_nothing_is_in_its_way(version: str) -> None:
    wires: list[Wire] = []
    framed = chunk if version == "1.1" else bytes
    async with site([live_route(wires, watch=True)]) as place:
        peer = await place.connect()
        peer.send(f"GET /live HTTP/{version}\r\nHost: test\r\n\r\n".encode())
        await peer.head()
        [wire] = wires
        await wait_until_async(lambda: wire.heard == ["flushed"])
        # Written at once; behind something that is queued; at once again
        assert wire.outlet.put_last(framed(b"one "))
        wire.outlet.put(framed(b"two "))
        assert not wire.outlet.put_last(framed(b"three "))
        await wait_until_async(lambda: wire.heard == ["flushed"] * 2)
        assert wire.outlet.put_last(framed(b"four "))
        # Behind what the peer has not taken yet
        held, sent = framed(b"x" * 5_000_000), 1
        assert not wire.outlet.put_last(held)
        while not wire.outlet._pipe.stuck:
            await asyncio.sleep(0)
            sent += not wire.outlet._pipe.stuck and not wire.outlet.put_last(held)
        assert not wire.outlet.put_last(framed(b" five"))
        count = len(wire.heard)
        words = b"".join([framed(word) for word in (b"one ", b"two ", b"three ", b"four ")])
        expected = words + held * sent + framed(b" five")
        assert await peer.read(len(expected)) == expected
        await wait_until_async(lambda: len(wire.heard) > count)
        # At once when that is gone, and not at all after the end
        wire.outlet.put(framed(b" six"))
        await wait_until_async(lambda: wire.outlet.clear is not None)
        assert wire.outlet.put_last(framed(b" seven"))
        wire.outlet.close()
        assert not wire.outlet.put_last(framed(b"too late"))
        end = framed(b" six") + framed(b" seven") + (b"0\r\n\r\n" if version == "1.1" else b"")
        assert await peer.read(len(end)) == end
