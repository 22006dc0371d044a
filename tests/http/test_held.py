"""Requests that somebody answers later, and bodies that are put into a sink: no task, no future."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import PenstockError
from penstock.http.listener import Listener
from penstock.http.requests import Request
from penstock.http.responses import Held, Response
from penstock.http.routing import STREAM, Route, Router
from penstock.settings import ServerSettings
from penstock.testing import wait_until_async
from tests.http.wires import Site, Wire, live_route, on_uvloop, request, site

pytestmark = pytest.mark.usefixtures("plain_and_tls")


class Waiting(Held):
    """Holds a request and notes what it hears."""

    def __init__(self, asked: Request) -> None:
        self.request = asked
        self.heard: list[str] = []

    def lost(self) -> None:
        self.heard.append("lost")

    def draining(self) -> None:
        self.heard.append("draining")
        self.request.answer(Response(503))


class Sink(Waiting):
    """Takes a body, as much as it may."""

    def __init__(self, asked: Request) -> None:
        super().__init__(asked)
        self.pieces: list[bytes] = []
        self.full = False
        self.error: PenstockError | None = None
        self.ended = False

    def put(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def end(self, error: PenstockError | None) -> None:
        self.ended, self.error = True, error
        self.request.answer(Response(400 if error else 200, b"".join(self.pieces)))


def holding(held: list[Waiting]) -> Route:
    def poll(asked: Request) -> Held:
        held.append(Waiting(asked))
        return held[-1]

    return Route("GET", "/poll", poll, timeout=None)


def sinking(sinks: list[Sink], limit: int = 10_000_000) -> Route:
    def upload(asked: Request) -> Held:
        sinks.append(Sink(asked))
        asked.divert(sinks[-1])
        return sinks[-1]

    return Route("POST", "/upload", upload, body=STREAM(limit), timeout=None, body_timeout=None)


@on_uvloop
async def test_a_held_request_is_answered_by_whoever_holds_it() -> None:
    held: list[Waiting] = []
    async with site([holding(held)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/poll") + request("GET", "/hello"))
        await wait_until_async(lambda: held)
        held[0].request.answer(Response(200, b"at last"))
        held[0].request.answer(Response(500, b"too late"))
        assert (await peer.answer()).body == b"at last"
        assert (await peer.answer()).body == b'{"hello":"world"}'  # what waited behind it goes on
        assert held[0].heard == []


@on_uvloop
async def test_whoever_holds_a_request_hears_that_its_peer_is_gone_once() -> None:
    held: list[Waiting] = []
    async with site([holding(held)]) as place:
        for leave in ("leave", "reset"):
            peer = await place.connect()
            peer.send(request("GET", "/poll"))
            await wait_until_async(lambda: held)
            getattr(peer, leave)()
            waiting = held.pop()
            await wait_until_async(lambda waiting=waiting: waiting.heard)  # type: ignore[misc]
            assert waiting.heard == ["lost"]
            waiting.request.answer(Response(200))  # to nobody


@on_uvloop
async def test_a_held_request_can_become_live() -> None:
    held: list[Waiting] = []
    async with site([holding(held)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/poll"))
        await wait_until_async(lambda: held)
        wire = Wire()
        outlet = held[0].request.open(200, owner=wire)
        outlet.send(b"3\r\none\r\n")
        outlet.close()
        assert (await peer.answer()).body == b"one"
        peer.leave()
        await place.connections_are(0)
        assert (held[0].heard, wire.heard) == ([], [])


@on_uvloop
async def test_a_coroutine_may_answer_for_itself_and_the_connection_goes_on() -> None:
    wires: list[Wire] = []

    async def early(asked: Request) -> None:
        await asyncio.sleep(0)
        asked.answer(Response(200, b"early"))

    async with site([Route("GET", "/early", early), live_route(wires)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/early"))
        assert (await peer.answer()).body == b"early"
        peer.send(request("GET", "/live"))
        assert (await peer.head())[0] == 200
        wires[0].outlet.close()
        assert await peer.chunk() == b""
        assert (await peer.get("/hello")).status == 200


@on_uvloop
async def test_a_held_request_can_be_the_last_of_its_connection() -> None:
    held: list[Waiting] = []
    async with site([holding(held)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/poll"))
        await wait_until_async(lambda: held)
        held[0].request.answer(Response(200, b"bye"), close=True)
        answer = await peer.answer()
        assert (answer.body, answer.headers["connection"]) == (b"bye", "close")
        assert await peer.reader.read() == b""


@on_uvloop
async def test_who_holds_a_request_can_let_it_go_before_a_stop() -> None:
    held: list[Waiting] = []
    async with Listener(Router([holding(held)]), ServerSettings(listen="127.0.0.1:0", drain_seconds=60)) as listener:
        peer = await Site(listener, None).connect()
        peer.send(request("GET", "/poll"))
        await wait_until_async(lambda: held)
        answering = asyncio.create_task(peer.answer())
    assert held[0].heard == ["draining"]
    assert (await answering).status == 503
    peer.leave()


@on_uvloop
async def test_a_body_goes_into_its_sink_as_it_comes() -> None:
    sinks: list[Sink] = []
    async with site([sinking(sinks)]) as place:
        peer = await place.connect()
        peer.send(request("POST", "/upload", "Transfer-Encoding: chunked", "Expect: 100-continue"))
        assert (await peer.head())[0] == 100
        peer.send(b"3\r\none\r\n")
        await wait_until_async(lambda: sinks[0].pieces == [b"one"])
        sinks[0].request.interim()
        assert (await peer.head())[0] == 100
        peer.send(b"3\r\ntwo\r\n0\r\n\r\n")
        assert (await peer.answer()).body == b"onetwo"
        peer.send(request("POST", "/upload", "Content-Length: 0"))
        assert (await peer.answer()).body == b""


@pytest.mark.only_plain("the client's TLS layer takes everything at once")
@on_uvloop
async def test_a_full_sink_stops_the_peer_until_it_wants_more() -> None:
    sinks: list[Sink] = []
    async with site([sinking(sinks, 50_000_000)]) as place:
        peer = await place.connect()
        peer.send(request("POST", "/upload", "Content-Length: 20000000"))
        await wait_until_async(lambda: sinks)
        sinks[0].full = True
        peer.send(bytes(20_000_000))
        await wait_until_async(lambda: sinks[0].pieces)
        held_back = asyncio.create_task(peer.writer.drain())
        await (await place.connect()).get("/hello")  # the server had time to read on, if it would
        assert sum(map(len, sinks[0].pieces)) < 2_000_000
        assert not held_back.done()
        sinks[0].full = False
        sinks[0].request.want_body()
        assert (await peer.answer()).status == 200
        await held_back


@on_uvloop
async def test_a_sink_hears_why_a_body_broke_off() -> None:
    sinks: list[Sink] = []
    async with site([sinking(sinks, 100)]) as place:
        gone, garbled, large = [await place.connect() for _ in range(3)]
        for number, peer in enumerate((gone, garbled, large)):
            peer.send(request("POST", "/upload", "Transfer-Encoding: chunked") + b"3\r\none\r\n")
            await wait_until_async(lambda number=number: len(sinks) == number + 1 and sinks[number].pieces)  # type: ignore[misc]
        gone.leave()
        garbled.send(b"zz\r\n")
        large.send(b"%x\r\n" % 200 + bytes(200))
        assert (await garbled.answer()).status == 400
        assert (await large.answer()).status == 400
        await wait_until_async(lambda: all(sink.ended and sink.error for sink in sinks))
        assert sinks[0].heard == ["lost"]
