"""Nobody is waited for for ever. Time is moved by hand."""

from __future__ import annotations

import asyncio

import pytest

from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import STREAM, WHOLE, Route
from penstock.testing import wait_until_async
from penstock.wire.http_chunks import chunk
from tests.http.wires import IncomingBody, Site, Wire, live_route, on_uvloop, request, site, slow_route

pytestmark = pytest.mark.usefixtures("plain_and_tls")


def timed_out(place: Site) -> int:
    return place.listener.counters.timed_out


@on_uvloop
async def test_a_head_must_be_complete_in_time_however_busily_it_trickles() -> None:
    async with site(manual=True, head_timeout=10) as place:
        assert place.timer is not None
        peer = await place.connect()
        counters = place.listener.counters
        for count in range(1, 12):
            peer.send(b"GET /hello HTTP/1.1\r\n"[count - 1 : count])
            await wait_until_async(lambda count=count: counters.bytes_in == count)
            place.timer.advance(1)

        answer = await peer.answer()
        assert (answer.status, timed_out(place)) == (408, 1)
        assert b"Send the whole head within 10 s (server.head_timeout)." in answer.body
        assert await peer.rest() == b""


@on_uvloop
async def test_who_says_nothing_is_let_go() -> None:
    async with site(manual=True, head_timeout=10, idle_timeout=75) as place:
        assert place.timer is not None
        silent, idle = await place.connect(), await place.connect()
        await idle.get("/hello")
        await place.connections_are(2)
        place.timer.advance(71)
        assert (await idle.get("/hello")).status == 200
        place.timer.advance(5)
        assert await silent.rest() == b""
        await place.connections_are(1)
        place.timer.advance(65)
        assert place.connections == 1
        place.timer.advance(6)
        assert await idle.rest() == b""


@on_uvloop
async def test_the_time_of_a_head_counts_from_its_first_byte() -> None:
    """A client that connects ahead may be silent for longer than a head may take."""
    async with site(manual=True, head_timeout=10, idle_timeout=75) as place:
        assert place.timer is not None
        ahead, slow = await place.connect(), await place.connect()
        await place.connections_are(2)
        place.timer.advance(60)
        assert (await ahead.get("/hello")).status == 200
        counters = place.listener.counters
        before = counters.bytes_in
        slow.send(b"GET")
        await wait_until_async(lambda: counters.bytes_in == before + 3)
        place.timer.advance(9)
        assert place.connections == 2
        place.timer.advance(2)
        assert (await slow.answer()).status == 408


@on_uvloop
async def test_a_body_must_make_progress() -> None:
    async with site(
        [Route("POST", "/in", lambda r: Response(200), WHOLE(10**6))], manual=True, body_timeout=30
    ) as place:
        assert place.timer is not None
        counters = place.listener.counters
        steady, slow = await place.connect(), await place.connect()
        for peer in (steady, slow):
            peer.send(request("POST", "/in", "Content-Length: 10000"))
        await wait_until_async(lambda: counters.requests == 2)
        for turn in range(1, 5):
            before = counters.bytes_in
            steady.send(b"x" * 2000)
            slow.send(b"x" * 10 if turn == 1 else b"")
            wanted = before + 2000 + (10 if turn == 1 else 0)
            await wait_until_async(lambda wanted=wanted: counters.bytes_in == wanted)
            place.timer.advance(25)
        late = await slow.answer()
        assert (late.status, b"at least 1,024 bytes of the body in every 30 s" in late.body) == (408, True)
        steady.send(b"x" * 2000)
        assert (await steady.answer()).status == 200


@on_uvloop
async def test_a_streamed_body_may_have_a_time_of_its_own_or_none() -> None:
    async def upload(request: Request) -> Response:
        return Response(200, b"".join([piece async for piece in IncomingBody(request)]))

    routes = [
        Route("POST", "/patient", upload, STREAM(1000), timeout=None, body_timeout=None),
        Route("POST", "/hasty", upload, STREAM(1000), timeout=None, body_timeout=2),
    ]
    async with site(routes, manual=True) as place:
        assert place.timer is not None
        patient, hasty = await place.connect(), await place.connect()
        patient.send(request("POST", "/patient", "Content-Length: 3"))
        hasty.send(request("POST", "/hasty", "Content-Length: 3"))
        await wait_until_async(lambda: place.listener.counters.requests == 2)
        place.timer.advance(1000)
        patient.send(b"abc")

        assert (await patient.answer()).body == b"abc"
        assert (await hasty.answer()).status == 408


@on_uvloop
async def test_a_future_has_a_deadline_and_is_left_alone_after_it() -> None:
    futures: list[asyncio.Future[Response]] = []
    async with site([slow_route(futures)], manual=True, request_timeout=30) as place:
        assert place.timer is not None
        peer = await place.connect()
        peer.send(request("GET", "/slow") + request("GET", "/hello"))
        await wait_until_async(lambda: futures)
        place.timer.advance(29)
        assert timed_out(place) == 0
        place.timer.advance(2)
        answer = await peer.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert (await peer.answer()).status == 200
        assert not futures[0].done()
        futures[0].set_result(Response(200, b"too late"))
        assert (await peer.get("/hello")).status == 200


@on_uvloop
async def test_a_future_that_comes_before_its_requests_body_has_a_deadline_too() -> None:
    futures: list[asyncio.Future[Response]] = []
    async with site([slow_route(futures, "POST", STREAM(100))], manual=True, request_timeout=30) as place:
        assert place.timer is not None
        peer = await place.connect()
        peer.send(request("POST", "/slow", "Content-Length: 3"))
        await wait_until_async(lambda: futures)
        received = place.listener.counters.bytes_in
        peer.send(b"abc")
        await wait_until_async(lambda: place.listener.counters.bytes_in == received + 3)
        place.timer.advance(31)
        assert (await peer.answer()).status == 503


@on_uvloop
async def test_a_coroutine_has_a_deadline_that_ends_with_a_live_answer() -> None:
    wires: list[Wire] = []
    resumed = asyncio.Event()

    async def stuck(request: Request) -> Response:
        await asyncio.Event().wait()
        return Response(200)

    async def live(request: Request) -> None:
        wires.append(Wire())
        outlet = request.open(200, owner=wires[0])
        await resumed.wait()
        outlet.send(chunk(b"still here"))
        outlet.close()

    routes = [Route("GET", "/stuck", stuck, timeout=0.05), Route("GET", "/live", live, timeout=0.05)]
    async with site(routes) as place:
        peer, other = await place.connect(), await place.connect()
        other.send(request("GET", "/live"))
        await other.head()
        assert (await peer.get("/stuck")).status == 503
        resumed.set()
        assert await other.chunk() == b"still here"


@pytest.mark.only_plain("one write is out of sight")
@on_uvloop
async def test_a_peer_that_takes_no_byte_is_cut_and_one_that_takes_some_is_not() -> None:
    wires: list[Wire] = []
    async with site([live_route(wires)], manual=True, stall_timeout=30) as place:
        assert place.timer is not None
        peers = [await place.connect(limit=1024) for _ in range(2)]
        for peer in peers:
            peer.send(request("GET", "/live"))
            await peer.head()
        # Given two whose sockets are full, with a lot still to come
        for wire in wires:
            wire.outlet.send(b"x" * 40_000_000)
        await wait_until_async(lambda: all(wire.outlet._pipe.stuck for wire in wires))
        # When one takes a little now and then
        for _ in range(4):
            place.timer.advance(20)
            pending = wires[1].outlet.pending
            while wires[1].outlet.pending == pending:
                await asyncio.wait_for(peers[1].reader.read(100_000), 20)
        # Then only the other is cut
        await wait_until_async(lambda: wires[0].heard[-1:] == ["lost"])
        assert place.listener.counters.cut == 1
        assert wires[1].outlet.open


@on_uvloop
async def test_an_idle_live_answer_costs_no_timer() -> None:
    wires: list[Wire] = []
    async with site([live_route(wires)], manual=True) as place:
        assert place.timer is not None
        peer = await place.connect()
        peer.send(request("GET", "/live"))
        await peer.head()
        place.timer.advance(100_000, step=1)
        wheel = place.listener._shared.wheel
        assert (place.timer.booked, wheel.armed) == (0, 0)
        wires[0].outlet.send(chunk(b"still there"))
        assert await peer.chunk() == b"still there"


@on_uvloop
async def test_a_closed_connection_is_let_go_at_once() -> None:
    async with site(manual=True) as place:
        peer = await place.connect()
        await peer.get("/hello")
        peer.leave()
        await place.connections_are(0)
        assert place.listener._shared.wheel.armed == 0
