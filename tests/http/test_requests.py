"""Plain requests over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import NotFound
from penstock.http import connection
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import NONE, STREAM, WHOLE, Route
from penstock.limits import PIPELINED_BYTES, UNREAD_BODY_BYTES
from penstock.testing import wait_until_async
from tests.http.wires import IncomingBody, Peer, on_uvloop, request, site, slow_route

pytestmark = pytest.mark.usefixtures("plain_and_tls")


def seen(request: Request) -> Response:
    told = {
        "method": request.method, "path": request.path, "params": request.params, "peer": request.peer,
        "scheme": request.scheme, "captures": request.captures, "body": request.body.decode("latin-1"),
    }  # fmt: skip
    return Response(200, json.dumps(told).encode())


SEEN = [Route(method, "/seen/*", seen, WHOLE(10_000)) for method in ("GET", "POST")]


@pytest.mark.only_plain("it says http")
@on_uvloop
async def test_a_request_arrives_whole() -> None:
    async with site(SEEN) as place:
        peer = await place.connect()
        peer.send(request("POST", "/seen/%C3%A4?x=1&y=a+b", body=b"abc"))
        told = json.loads((await peer.answer()).body)

    assert told == {
        "method": "POST", "path": "/seen/ä", "params": {"x": "1", "y": "a b"}, "peer": "127.0.0.1",
        "scheme": "http", "captures": ["ä"], "body": "abc",
    }  # fmt: skip


@on_uvloop
async def test_a_head_that_comes_again_is_never_taken_for_another() -> None:
    first, other = (request("POST", f"/seen/{name}", body=b"abc") for name in ("a", "b"))
    changed = first[:-3] + b"xyz"
    whole = [first, first, changed, other, first, first + changed]
    cut = [first[:-2], b"bc" + other, changed[:-80], changed[-80:]]
    async with site(SEEN) as place:
        peer = await place.connect()
        answers = []
        for piece, count in zip([*whole, *cut], (1, 1, 1, 1, 1, 2, 0, 2, 0, 1), strict=True):
            peer.send(piece)
            answers += [json.loads((await peer.answer()).body) for _ in range(count)]

    told = [answer["captures"][0] + " " + answer["body"] for answer in answers]
    assert told == ["a abc", "a abc", "a xyz", "b abc", "a abc", "a abc", "a xyz", "a abc", "b abc", "a xyz"]


@on_uvloop
async def test_the_table_answers_for_what_it_does_not_have() -> None:
    async with site(SEEN) as place:
        peer = await place.connect()
        missing = await peer.get("/nowhere")
        wrong = await _answer(peer, "PUT", "/hello")
        options = await _answer(peer, "OPTIONS", "/hello")
        star = await _answer(peer, "OPTIONS", "*")
        trick = await peer.get("/seen/%2e%2e")

    assert (missing.status, wrong.status, options.status, star.status, trick.status) == (404, 405, 204, 204, 400)
    assert wrong.headers["allow"] == options.headers["allow"] == "GET, HEAD, OPTIONS"
    assert json.loads(missing.body)["error"]["code"] == "path_unknown"


async def _answer(peer, method, path, *headers, body=b""):  # type: ignore[no-untyped-def]
    peer.send(request(method, path, *headers, body=body))
    return await peer.answer(method=method)


@on_uvloop
async def test_head_has_the_length_and_no_body() -> None:
    async with site() as place:
        peer = await place.connect()
        head = await _answer(peer, "HEAD", "/hello")
        full = await peer.get("/hello")

    assert head.headers["content-length"] == str(len(full.body))


@on_uvloop
async def test_http_1_0_closes_unless_asked_to_stay() -> None:
    async with site() as place:
        leaving = await place.connect()
        leaving.send(b"GET /hello HTTP/1.0\r\n\r\n")
        answer = await leaving.answer()
        staying = await place.connect()
        for _ in range(2):
            staying.send(b"GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            kept = await staying.answer()

        assert (answer.headers["connection"], await leaving.rest()) == ("close", b"")
        assert kept.headers["connection"] == "keep-alive"


@on_uvloop
async def test_connection_close_is_respected() -> None:
    async with site() as place:
        peer = await place.connect()
        answer = await peer.get("/hello", "Connection: close")

        assert (answer.headers["connection"], await peer.rest()) == ("close", b"")


@on_uvloop
async def test_answers_come_in_the_order_of_the_requests() -> None:
    # Given handlers that are done in any order: at once, by a future, by a task
    turns: dict[str, asyncio.Future[Response]] = {}
    started: list[str] = []

    def now(request: Request) -> Response:
        started.append(request.raw_path)
        return Response(200, request.raw_path.encode())

    def future(request: Request) -> asyncio.Future[Response]:
        started.append(request.raw_path)
        turns[request.raw_path] = asyncio.get_running_loop().create_future()
        return turns[request.raw_path]

    async def task(request: Request) -> Response:
        return await future(request)

    routes = [Route("GET", "/now/*", now), Route("GET", "/future/*", future), Route("GET", "/task/*", task)]
    async with site(routes) as place:
        peer = await place.connect()
        # When they are all sent at once
        paths = ["/future/1", "/now/2", "/task/3", "/now/4", "/future/5"]
        peer.send(b"".join(request("GET", path) for path in paths))
        for path in ("/future/1", "/task/3", "/future/5"):
            await wait_until_async(lambda path=path: path in turns)
            assert started[-1] == path  # nothing behind it has begun
            turns[path].set_result(Response(200, path.encode()))
        # Then each gets its own answer, in order
        assert [(await peer.answer()).body.decode() for _ in paths] == paths


@pytest.mark.only_plain("TLS has no half-close")
@on_uvloop
async def test_a_peer_that_has_said_all_still_gets_its_answers() -> None:
    done: list[asyncio.Future[Response]] = []
    async with site([slow_route(done)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/slow") + request("GET", "/hello"))
        peer.writer.write_eof()
        await wait_until_async(lambda: done)
        done[0].set_result(Response(204))

        assert [(await peer.answer()).status for _ in range(2)] == [204, 200]
        assert await peer.rest() == b""
        await place.connections_are(0)


@pytest.mark.only_plain("TLS has no half-close")
@pytest.mark.parametrize("rest", [b"", b"GET /large HTTP"])
@on_uvloop
async def test_a_peer_that_has_said_all_gets_answers_that_have_to_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    monkeypatch.setattr(connection, "INPUT_QUEUE_BYTES", 1000)  # so each request waits until the last is answered
    large = bytes(1001)
    async with site([Route("GET", "/large", lambda request: Response(200, large))]) as place:
        sock = socket.create_connection(place.listener.address)
        sock.sendall(request("GET", "/large") * 50 + rest)
        sock.shutdown(socket.SHUT_WR)  # before the listener has read a byte: this is its own loop
        peer = Peer(*await asyncio.open_connection(sock=sock))
        try:
            assert [len((await peer.answer()).body) for _ in range(50)] == [len(large)] * 50
            assert await peer.rest() == b""
        finally:
            peer.leave()
        await place.connections_are(0)


@on_uvloop
async def test_what_a_handler_raises_becomes_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    def missing(request: Request) -> Response:
        raise NotFound("thing", "x")

    async def broken(request: Request) -> Response:
        raise KeyError("secret")

    def failing(request: Request) -> asyncio.Future[Response]:
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        future.set_exception(NotFound("thing", "y"))
        return future

    def splitting(request: Request) -> Response:
        return Response(200, headers=(("X", "a\r\nSet-Cookie: b"),))

    async def nothing(request: Request) -> None:
        return None

    handlers = {"missing": missing, "broken": broken, "failing": failing, "splitting": splitting, "nothing": nothing}
    async with site([Route("GET", f"/{name}", handler) for name, handler in handlers.items()]) as place:
        peer = await place.connect()
        answers = {name: await peer.get(f"/{name}") for name in handlers}
        assert place.listener.counters.failed == 2  # "broken" and "nothing": a caller's mistake is no failure

    statuses = {name: answer.status for name, answer in answers.items()}
    assert statuses == {"missing": 404, "broken": 500, "failing": 404, "splitting": 500, "nothing": 500}
    assert all(b"secret" not in answer.body and b"Cookie" not in answer.body for answer in answers.values())


@on_uvloop
async def test_pages_of_other_origins() -> None:
    async with site(SEEN, expose=("X-Cursor",)) as place:
        peer = await place.connect()
        simple = await peer.get("/hello", "Origin: https://a.example")
        preflight = await _answer(
            peer, "OPTIONS", "/seen/x", "Origin: https://a.example", "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: authorization, x-a",
        )  # fmt: skip
        none = await peer.get("/hello")
    assert simple.headers["access-control-allow-origin"] == "*"
    assert simple.headers["access-control-expose-headers"] == "Retry-After, X-Cursor"
    assert "access-control-allow-credentials" not in simple.headers
    assert preflight.status == 204
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert preflight.headers["access-control-allow-headers"] == "authorization, x-a"
    assert "access-control-allow-origin" not in none.headers


@on_uvloop
async def test_only_the_named_origins_are_let_in_when_there_is_a_list() -> None:
    async with site(cors_origins=("https://a.example",)) as place:
        peer = await place.connect()
        friend = await peer.get("/hello", "Origin: https://a.example")
        other = await peer.get("/hello", "Origin: https://b.example")

    assert friend.headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-origin" not in other.headers
    assert friend.headers["vary"] == other.headers["vary"] == "Origin"


# ── heads that are refused, on a real socket ───────────────────────────────────────────────────

REFUSED = [
    (b"GET /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"GET /hello HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
    (b"GET /hello HTTP/1.1\r\n\r\n", 400),
    (b"GET /hello HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
    (b"GET /hello HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    (b"GET /hello HTTP/1.1\nHost: a\n\n\r\n\r\n", 400),
    (b"GET /hello HTTP/1.1\nHost: a\n\n", 400),
    (b"GET /hello HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n", 400),
    (b"GET /h\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    (b"GET /hello HTTP/3.0\r\nHost: a\r\n\r\n", 505),
    (b"BREW /hello HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    (b"GET /hello HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 33_000 + b"\r\n\r\n", 431),
    (b"GET /hello HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431),
]


@pytest.mark.parametrize(("raw", "status"), REFUSED)
@on_uvloop
async def test_a_refused_head_gets_one_answer_and_ends_the_connection(raw: bytes, status: int) -> None:
    async with site() as place:
        peer = await place.connect()
        # When a good request follows a bad one
        peer.send(raw + request("GET", "/hello"))
        answer = await peer.answer()
        # Then only the bad one is answered
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert status not in (414, 431) or b"Send at most" in answer.body  # the remedy names the limit
        assert await peer.rest() == b""
        assert place.listener.counters.requests == 0


@pytest.mark.only_plain("TLS gives the same bytes, and a handshake an example is most of the work")
@given(
    st.lists(st.sampled_from(["/hello", "/seen/a", "/nowhere"]), min_size=1, max_size=4),
    st.lists(st.binary(max_size=50), min_size=4, max_size=4),
    st.lists(st.integers(0, 1000), max_size=20),
)
@settings(max_examples=15)
def test_how_the_bytes_are_cut_does_not_matter(paths: list[str], bodies: list[bytes], places: list[int]) -> None:
    wire = b"".join(request("POST", path, body=body) for path, body in zip(paths, bodies, strict=False))

    async def answers(cuts: list[bytes]) -> list[tuple[int, bytes]]:
        async with site(SEEN) as place:
            peer = await place.connect()
            for cut in cuts:
                peer.send(cut)
                await asyncio.sleep(0)
            return [(answer.status, answer.body) for answer in [await peer.answer() for _ in paths]]

    found: list[list[tuple[int, bytes]]] = []

    @on_uvloop
    async def run() -> None:
        at = sorted({place % (len(wire) + 1) for place in places})
        found.append(await answers([wire]))
        found.append(await answers([wire[a:b] for a, b in zip([0, *at], [*at, len(wire)], strict=True)]))
        found.append(await answers([bytes([byte]) for byte in wire]))

    run()
    assert found[0] == found[1] == found[2]


@pytest.mark.only_plain("TLS gives the same bytes, and a handshake an example is most of the work")
@given(st.binary(min_size=1, max_size=400))
@settings(max_examples=25)
def test_garbage_gets_an_answer_or_the_door(garbage: bytes) -> None:
    @on_uvloop
    async def run() -> None:
        async with site(SEEN) as place:
            for raw in (garbage, b"POST /seen/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + garbage):
                peer = await place.connect()
                peer.send(raw)
                peer.finish()
                told = await peer.rest()
                assert not told or told.startswith(b"HTTP/1.1 ")
                assert b"HTTP/1.1 500" not in told
            await place.connections_are(0)
            still = await place.connect()
            assert (await still.get("/hello")).status == 200

    run()


# ── bodies ─────────────────────────────────────────────────────────────────────────────────────


@on_uvloop
async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    called: list[Request] = []
    routes = [Route("POST", "/small", lambda r: called.append(r) or Response(200), WHOLE(10))]
    async with site(routes) as place:
        peer = await place.connect()
        peer.send(b"POST /small HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n")
        told = await peer.answer()
        assert (told.status, await peer.rest()) == (413, b"")

        chunked = await place.connect()
        chunked.send(b"POST /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"6\r\nabcdef\r\n" * 3)
        assert (await chunked.answer()).status == 413
        assert await chunked.rest() == b""
    assert called == []


@on_uvloop
async def test_a_body_that_nobody_wants_is_read_past() -> None:
    async with site() as place:
        peer = await place.connect()
        peer.send(request("GET", "/hello", body=b"x" * 1000) + request("POST", "/nowhere", body=b"y" * 70_000))
        peer.send(request("GET", "/hello"))

        assert [(await peer.answer()).status for _ in range(3)] == [200, 404, 200]


@on_uvloop
async def test_before_a_large_unwanted_body_we_hang_up_but_the_answer_arrives() -> None:
    async with site() as place:
        peer = await place.connect()
        peer.send(request("POST", "/nowhere", f"Content-Length: {UNREAD_BODY_BYTES * 8}") + b"x" * UNREAD_BODY_BYTES)
        told = await peer.answer()

        assert (told.status, told.headers["connection"]) == (404, "close")
        assert await peer.rest() == b""


@on_uvloop
async def test_continue_is_said_only_when_the_body_is_wanted() -> None:
    def no(request: Request) -> None:
        raise NotFound("permission", "here")

    routes = [Route("POST", "/whole", seen, WHOLE(100)), Route("POST", "/not", seen, WHOLE(100), admit=no)]
    async with site(routes) as place:
        peer = await place.connect()
        peer.send(request("POST", "/whole", "Expect: 100-continue", "Content-Length: 3"))
        assert (await peer.head())[0] == 100
        peer.send(b"abc")
        assert json.loads((await peer.answer()).body)["body"] == "abc"

        peer.send(request("POST", "/not", "Expect: 100-continue", "Content-Length: 3"))
        refused = await peer.answer()
        assert (refused.status, await peer.rest()) == (404, b"")


@on_uvloop
async def test_a_streamed_body_comes_as_it_is_sent() -> None:
    heard: list[bytes] = []

    async def upload(request: Request) -> Response:
        request.interim(102)
        async for chunk in IncomingBody(request):
            heard.append(chunk)  # noqa: PERF401 - one by one, as they come
        return Response(200, b"".join(heard))

    async with site([Route("POST", "/upload", upload, STREAM(1000))]) as place:
        peer = await place.connect()
        peer.send(request("POST", "/upload", "Transfer-Encoding: chunked", "Expect: 100-continue"))
        assert [(await peer.head())[0] for _ in range(2)] == [102, 100]
        for piece in (b"one", b"two", b"three"):
            peer.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await wait_until_async(lambda piece=piece: piece in heard)
        peer.send(b"0\r\n\r\n" + request("GET", "/hello"))

        assert [(await peer.answer()).body for _ in range(2)] == [b"onetwothree", b'{"hello":"world"}']


@on_uvloop
async def test_a_slow_reader_of_a_body_stops_its_sender() -> None:
    # Given a handler that reads nothing until it is told to
    go = asyncio.Event()
    total = 0
    size = 20_000_000

    async def upload(request: Request) -> Response:
        nonlocal total
        await go.wait()
        async for chunk in IncomingBody(request):
            total += len(chunk)
        return Response(200)

    async with site([Route("POST", "/upload", upload, STREAM(size))]) as place:
        peer = await place.connect()
        counters = place.listener.counters
        # When a large body is sent
        peer.send(request("POST", "/upload", f"Content-Length: {size}") + b"x" * size)
        await place.connections_are(1)
        connection = next(iter(place.listener._shared.connections))
        await wait_until_async(lambda: connection._paused)
        # Then the server stops taking it in
        taken = counters.bytes_in
        for _ in range(50):
            await asyncio.sleep(0)
        assert counters.bytes_in == taken < 1_000_000
        # and takes all of it once the handler reads
        go.set()
        assert (await peer.answer()).status == 200
        assert total == size


@on_uvloop
async def test_a_body_that_breaks_off_is_told_to_its_handler() -> None:
    told: list[str] = []

    async def upload(request: Request) -> Response:
        try:
            async for _ in IncomingBody(request):
                told.append("chunk")  # noqa: PERF401
        except BaseException as error:
            told.append(type(error).__name__)
            raise
        return Response(200)

    async with site([Route("POST", "/upload", upload, STREAM(100))]) as place:
        broken = await place.connect()
        broken.send(request("POST", "/upload", "Transfer-Encoding: chunked") + b"3\r\nabc\r\nnonsense\r\n")
        assert (await broken.answer()).status == 400
        assert await broken.rest() == b""
        assert told == ["chunk", "PeerError"]

        gone = await place.connect()
        gone.send(request("POST", "/upload", "Content-Length: 50") + b"abc")
        await wait_until_async(lambda: len(told) == 3)
        gone.leave()
        await wait_until_async(lambda: len(told) == 4)
        assert told[3] in ("PeerError", "CancelledError")


@on_uvloop
async def test_a_handler_may_answer_without_reading_the_body() -> None:
    async def rude(request: Request) -> Response:
        return Response(200, b"enough")

    async with site([Route("POST", "/rude", rude, STREAM(10**9))]) as place:
        peer = await place.connect()
        peer.send(request("POST", "/rude", body=b"x" * 100_000) + request("GET", "/hello"))

        assert [(await peer.answer()).body for _ in range(2)] == [b"enough", b'{"hello":"world"}']


@on_uvloop
async def test_what_is_sent_ahead_is_bounded() -> None:
    wait: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    async with site([Route("GET", "/wait", lambda request: wait, NONE)]) as place:
        peer = await place.connect()
        peer.send(request("GET", "/wait"))
        one = request("GET", "/hello")
        count = 16 * PIPELINED_BYTES // len(one)
        peer.send(one * count)
        connection = await wait_until_async(lambda: next(iter(place.listener._shared.connections), None))
        await wait_until_async(lambda: connection._paused)
        assert place.listener.counters.bytes_in < 8 * PIPELINED_BYTES
        wait.set_result(Response(204))

        assert (await peer.answer()).status == 204
        for _ in range(count):
            assert (await peer.answer()).status == 200


@on_uvloop
async def test_who_asks_without_reading_is_answered_only_so_far() -> None:
    # Given answers far larger than their requests
    asked = 0

    def large(request: Request) -> Response:
        nonlocal asked
        asked += 1
        return Response(200, b"x" * 1_000_000)

    async with site([Route("GET", "/large", large)]) as place:
        peer = await place.connect(limit=1024)
        # When a thousand of them are asked for in one go
        peer.send(request("GET", "/large") * 1000)
        connection = await wait_until_async(lambda: next(iter(place.listener._shared.connections), None))
        await wait_until_async(lambda: connection.stuck)
        # Then only as many are made as the sockets hold, and a few more
        assert asked < 50
        assert connection.pending < 5_000_000
        for _ in range(100):
            assert len((await peer.answer()).body) == 1_000_000
