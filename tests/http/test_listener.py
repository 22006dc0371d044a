"""The listener: TLS, proxies, caps, draining."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from websockets.asyncio.client import connect

from penstock.core.clock import ManualClock
from penstock.errors import ConfigInvalid
from penstock.http.listener import Listener
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import STREAM, Route, Router
from penstock.settings import ServerSettings
from penstock.testing import wait_until_async
from penstock.wire.http_chunks import chunk
from tests.http.certificates import make_certificate, trusting
from tests.http.test_websocket import Echo, echo_route
from tests.http.wires import IncomingBody, Peer, Wire, hello, live_route, on_uvloop, request, site, slow_route

EVERYWHERE = "0.0.0.0:0"


def common_name(writer: asyncio.StreamWriter) -> str:
    raw = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    name = x509.load_der_x509_certificate(raw).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(name[0].value)


@on_uvloop
async def test_the_date_of_an_answer_is_that_of_its_second() -> None:
    clock = ManualClock(1_763_200_000_999)  # a millisecond before the next second
    settings = ServerSettings(listen="127.0.0.1:0")
    async with Listener(Router([Route("GET", "/hello", hello)]), settings, clock=clock) as listener:
        reader, writer = await asyncio.open_connection(*listener.address)
        peer = Peer(reader, writer)
        dates = [(await peer.get("/hello")).headers["date"]]
        clock.advance(0.001)
        while len(dates) < 2:
            date = (await peer.get("/hello")).headers["date"]
            dates += [date] if date != dates[0] else []
        peer.leave()

    assert dates == ["Sat, 15 Nov 2025 09:46:40 GMT", "Sat, 15 Nov 2025 09:46:41 GMT"]


@on_uvloop
async def test_everything_works_over_tls(tmp_path: Path) -> None:
    chain, key = make_certificate(tmp_path, "one")
    wires: list[Wire] = []
    owners: list[Echo] = []

    async def upload(request: Request) -> Response:
        return Response(200, str(sum([len(piece) async for piece in IncomingBody(request)])).encode())

    routes = [live_route(wires), echo_route(owners), Route("POST", "/up", upload, STREAM(10**8))]
    async with site(routes, tls_certificate=chain, tls_key=key) as place:
        peer = await place.connect(ssl=trusting())
        assert (await peer.get("/hello")).status == 200
        peer.send(request("POST", "/up", body=b"x" * 3_000_000))
        assert (await peer.answer()).body == b"3000000"
        peer.send(request("GET", "/live"))
        await peer.head()
        # A slow reader over TLS: full, then drained, nothing lost.
        outlet, sent = wires[0].outlet, 0
        while not (outlet.full and outlet._pipe.stuck):
            outlet.send(chunk(b"x" * 100_000))
            sent += 100_000
            await asyncio.sleep(0)
        received = 0
        while received < sent:
            received += len(await peer.chunk())
        await wait_until_async(lambda: wires[0].heard[-1:] == ["drained"])
        outlet.close()
        assert await peer.chunk() == b""

        host, port = place.listener.address
        async with connect(f"wss://{host}:{port}/ws", ssl=trusting(), proxy=None) as socket:
            await socket.send("hi")
            assert await socket.recv() == "hi"


@on_uvloop
async def test_bodies_that_come_at_once_over_tls_do_not_mix(tmp_path: Path) -> None:
    chain, key = make_certificate(tmp_path, "one")

    async def upload(request: Request) -> Response:
        pieces = []
        async for piece in IncomingBody(request):
            pieces.append(piece)
            await asyncio.sleep(0)  # the others are read meanwhile
        return Response(200, b"".join(pieces))

    routes = [Route("POST", "/up", upload, STREAM(10**8))]
    async with site(routes, tls_certificate=chain, tls_key=key) as place:
        peers = [await place.connect(ssl=trusting()) for _ in range(4)]
        bodies = [bytes([number]) * 500_000 for number in range(4)]
        for peer, body in zip(peers, bodies, strict=True):
            peer.send(request("POST", "/up", body=body))
        assert [(await peer.answer()).body for peer in peers] == bodies


@pytest.mark.parametrize("told", [True, False])
def test_the_buffer_of_a_tls_connection_is_mapped_by_itself(told: bool) -> None:
    """Also after the library has seen large memory come and go, as the second run does without being told."""
    script = (
        "from ctypes import CDLL, c_size_t, c_void_p\n"
        "from penstock.http.tls import map_large_buffers\n"
        f"if {told}: map_large_buffers()\n"
        "libc = CDLL(None)\n"
        "libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = c_void_p, [c_size_t], [c_void_p]\n"
        "libc.free(libc.malloc(1 << 20))\n"
        "for _ in range(40): place = libc.malloc(256 << 10)  # the first may find room in the heap\n"
        "[heap] = [line.split()[0] for line in open('/proc/self/maps') if line.endswith('[heap]\\n')]\n"
        "begin, end = (int(edge, 16) for edge in heap.split('-'))\n"
        "print(begin <= place < end)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(not told)


@on_uvloop
async def test_a_renewed_certificate_serves_new_connections_and_leaves_the_old_alone(tmp_path: Path) -> None:
    chain, key = make_certificate(tmp_path, "one")
    async with site(tls_certificate=chain, tls_key=key) as place:
        old = await place.connect(ssl=trusting())
        assert common_name(old.writer) == "one"
        make_certificate(tmp_path, "two")
        place.listener.reload_tls()
        new = await place.connect(ssl=trusting())
        assert common_name(new.writer) == "two"
        assert (await old.get("/hello")).status == 200
        # A renewal that went wrong changes nothing.
        Path(key).write_text("nonsense")  # noqa: ASYNC240 - a few bytes
        with pytest.raises(ConfigInvalid):
            place.listener.reload_tls()
        assert common_name((await place.connect(ssl=trusting())).writer) == "two"


@on_uvloop
async def test_plain_bytes_on_a_tls_port_harm_nobody(tmp_path: Path) -> None:
    chain, key = make_certificate(tmp_path, "one")
    async with site(tls_certificate=chain, tls_key=key) as place:
        peer = await place.connect(ssl=None)
        peer.send(request("GET", "/hello"))
        assert b"HTTP/1.1" not in await peer.rest()
        assert (await (await place.connect(ssl=trusting())).get("/hello")).status == 200


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"listen": EVERYWHERE}, "server.listen"),
        ({"tls_certificate": "nowhere.pem"}, "server.tls_certificate"),
        ({"trusted_proxies": ("10.0.0.0/33",)}, "server.trusted_proxies"),
    ],
)
def test_what_cannot_work_or_is_unsafe_is_refused(settings: dict[str, object], setting: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        Listener(Router([]), ServerSettings(**settings))  # type: ignore[arg-type]
    assert caught.value.setting == setting


def test_plain_http_off_loopback_needs_a_word() -> None:
    Listener(Router([]), ServerSettings(listen=EVERYWHERE, insecure=True))
    Listener(Router([]), ServerSettings(listen=EVERYWHERE, trusted_proxies=("10.0.0.1",)))


@on_uvloop
async def test_a_port_that_is_taken_is_said_so() -> None:
    async with site() as place:
        with pytest.raises(ConfigInvalid, match="cannot listen"):
            async with site(listen=f"127.0.0.1:{place.listener.address[1]}"):
                raise AssertionError("two listeners on one port")


# ── proxies ────────────────────────────────────────────────────────────────────────────────────


def who(request: Request) -> Response:
    return Response(200, json.dumps([request.peer, request.scheme]).encode())


WHO = Route("GET", "/who", who)
FORWARDED = ("X-Forwarded-For: 6.6.6.6, 192.0.2.7", "X-Forwarded-Proto: https")


@on_uvloop
async def test_the_word_of_a_trusted_proxy_counts_and_nobody_elses() -> None:
    async with site([WHO], trusted_proxies=("127.0.0.2",)) as place:
        proxied = await (await place.connect(source="127.0.0.2")).get("/who", *FORWARDED)
        direct = await (await place.connect(source="127.0.0.3")).get("/who", *FORWARDED)

    assert json.loads(proxied.body) == ["192.0.2.7", "https"]
    assert json.loads(direct.body) == ["127.0.0.3", "http"]


@on_uvloop
async def test_a_proxy_header_is_required_of_trusted_peers_only() -> None:
    header = b"PROXY TCP4 192.0.2.7 192.0.2.1 1234 80\r\n"
    async with site([WHO], trusted_proxies=("127.0.0.2",), proxy_protocol=True) as place:
        proxied = await place.connect(source="127.0.0.2")
        for byte in header + request("GET", "/who", *FORWARDED):
            proxied.send(bytes([byte]))
        assert json.loads((await proxied.answer()).body) == ["192.0.2.7", "http"]
        assert json.loads((await proxied.get("/who")).body) == ["192.0.2.7", "http"]

        bare = await place.connect(source="127.0.0.2")
        bare.send(request("GET", "/who"))
        assert await bare.rest() == b""

        pretender = await place.connect(source="127.0.0.3")
        pretender.send(header + request("GET", "/who"))
        assert (await pretender.answer()).status == 400


# ── caps ───────────────────────────────────────────────────────────────────────────────────────


@on_uvloop
async def test_connections_over_a_cap_are_closed_at_once() -> None:
    async with site(connections=3, connections_per_address=2) as place:
        first, second = [await place.connect(source="127.0.0.2") for _ in range(2)]
        assert (await first.get("/hello")).status == (await second.get("/hello")).status == 200
        third = await place.connect(source="127.0.0.2")
        assert await third.rest() == b""
        other = await place.connect(source="127.0.0.3")
        assert (await other.get("/hello")).status == 200
        assert await (await place.connect(source="127.0.0.4")).rest() == b""
        assert place.listener.counters.refused == 2
        first.leave()
        await place.connections_are(2)
        assert (await (await place.connect(source="127.0.0.2")).get("/hello")).status == 200


@on_uvloop
async def test_the_cap_is_on_the_clients_that_a_proxy_names() -> None:
    async with site([WHO], connections_per_address=1, trusted_proxies=("127.0.0.2",), proxy_protocol=True) as place:
        peers = []
        for address in ("192.0.2.7", "192.0.2.8", "192.0.2.7"):
            peer = await place.connect(source="127.0.0.2")
            peer.send(f"PROXY TCP4 {address} 192.0.2.1 1 2\r\n".encode() + request("GET", "/who"))
            peers.append(peer)
        assert [json.loads((await peer.answer()).body)[0] for peer in peers[:2]] == ["192.0.2.7", "192.0.2.8"]
        assert await peers[2].rest() == b""
        for peer in peers:
            peer.leave()
        await place.connections_are(0)
        assert place.listener.caps.open == 0


@on_uvloop
async def test_a_proxy_that_forwards_many_clients_is_capped_in_all_only() -> None:
    async with site([WHO], connections=5, connections_per_address=1, trusted_proxies=("127.0.0.2",)) as place:
        peers = [await place.connect(source="127.0.0.2") for _ in range(5)]
        found = [await peer.get("/who", f"X-Forwarded-For: 192.0.2.{n}") for n, peer in enumerate(peers)]
        assert [json.loads(answer.body)[0] for answer in found] == [f"192.0.2.{n}" for n in range(5)]
        assert await (await place.connect(source="127.0.0.2")).rest() == b""


@on_uvloop
async def test_those_who_have_not_sent_their_proxy_header_do_not_share_a_place() -> None:
    settings = {"connections_per_address": 1, "trusted_proxies": ("127.0.0.2",), "proxy_protocol": True}
    async with site([WHO], **settings) as place:
        peers = [await place.connect(source="127.0.0.2") for _ in range(3)]
        await place.connections_are(3)
        for number, peer in enumerate(peers):
            peer.send(f"PROXY TCP4 192.0.2.{number} 192.0.2.1 1 2\r\n".encode() + request("GET", "/who"))
        assert [(await peer.answer()).status for peer in peers] == [200, 200, 200]
        for peer in peers:
            peer.leave()
        await place.connections_are(0)
        assert place.listener.caps.open == 0


@on_uvloop
async def test_an_address_that_asks_too_fast_is_told_when_to_come_back() -> None:
    async with site(requests_per_address=1.0) as place:
        peer = await place.connect(source="127.0.0.2")
        answers = [await peer.get("/hello") for _ in range(3)]
        other = await (await place.connect(source="127.0.0.3")).get("/hello")

    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[2].headers["retry-after"] == "1"
    assert other.status == 200


# ── draining ───────────────────────────────────────────────────────────────────────────────────


@on_uvloop
async def test_a_drain_finishes_what_was_begun() -> None:
    wait: list[asyncio.Future[Response]] = []
    wires: list[Wire] = []
    owners: list[Echo] = []
    routes = [slow_route(wait), live_route(wires), echo_route(owners)]
    async with site(routes) as place:
        idle, busy, live = [await place.connect() for _ in range(3)]
        assert (await idle.get("/hello")).status == 200
        busy.send(request("GET", "/slow"))
        live.send(request("GET", "/live"))
        await live.head()
        host, port = place.listener.address
        async with asyncio.TaskGroup() as group, connect(f"ws://{host}:{port}/ws", proxy=None) as socket:
            await wait_until_async(lambda: wait)
            # When it drains
            draining = group.create_task(place.listener.drain())
            # Then idle ones go at once, live ones end properly, and the socket is told
            assert await idle.rest() == b""
            assert await live.chunk() == b""
            assert await live.rest() == b""
            await socket.wait_closed()
            assert (socket.close_code, owners[0].heard) == (1001, [1001])
            # and nobody new comes in, while the request in progress is waited for
            with pytest.raises(ConnectionRefusedError):
                await place.connect()
            assert not draining.done()
            wait[0].set_result(Response(200, b"done"))
            answer = await busy.answer()
            assert (answer.body, answer.headers["connection"]) == (b"done", "close")
            await draining


@on_uvloop
async def test_a_drain_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def forever(request: Request) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return Response(200)

    async with site([Route("GET", "/forever", forever)], drain_seconds=0.05) as place:
        peer = await place.connect()
        peer.send(request("GET", "/forever"))
        await wait_until_async(lambda: place.listener.counters.requests == 1)
        await place.listener.drain()
        assert await peer.rest() == b""
        await wait_until_async(lambda: ended == ["cancelled"])
    assert [record.message for record in caplog.records] == ["drain.cut"]


@on_uvloop
async def test_an_owner_that_knows_how_is_asked_to_drain() -> None:
    wires: list[Wire] = []
    async with site([live_route(wires)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/live"))
        await peer.head()

        def farewell() -> None:
            wires[0].outlet.send(chunk(b"see you elsewhere"))
            wires[0].outlet.close()

        wires[0].draining = farewell  # type: ignore[attr-defined]
        await place.listener.drain()
        assert (await peer.chunk(), await peer.chunk()) == (b"see you elsewhere", b"")


# ── many at once ───────────────────────────────────────────────────────────────────────────────


async def turns_until_all_are_in(count: int) -> int:
    """How often the loop turns until *count* connections that wait were accepted."""
    async with Listener(Router([]), ServerSettings(listen="127.0.0.1:0")) as listener:
        waiting = [socket.create_connection(listener.address) for _ in range(count)]
        turns = 0
        while listener.counters.opened < count:
            turns += 1
            await asyncio.sleep(0)
        for one in waiting:
            one.close()
        return turns


@on_uvloop
async def test_those_who_wait_are_let_in_many_at_once() -> None:
    """Or in a storm, where each turn of the loop is long, a newcomer would wait for all turns before it."""
    assert await turns_until_all_are_in(64) <= 16


@on_uvloop
async def test_the_same_check_finds_a_listener_that_lets_in_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.http.listener.ACCEPTS", 1)

    assert await turns_until_all_are_in(64) >= 60
