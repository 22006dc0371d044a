"""Request smuggling through a real nginx.

Each payload is sent to nginx, which forwards over kept connections to a backend that notes every request it
believes it got. A payload smuggles when the backend sees a request that nginx did not forward: then the next
client on that connection would get somebody else's answer. The same check run on a lenient toy backend must
find smuggling, or it could not find any.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from penstock.http.listener import Listener
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import WHOLE, Route, Router
from penstock.settings import ServerSettings
from penstock.testing import require_program, wait_until_async
from tests.http.wires import on_uvloop

CONFIG = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log {folder}/access.log combined;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    upstream backend {{ server 127.0.0.1:{backend}; keepalive 4; }}
    log_format seen '$request_method $uri $upstream_status';
    server {{
        listen 127.0.0.1:{port};
        access_log {folder}/seen.log seen;
        ignore_invalid_headers off; underscores_in_headers on;
        location / {{
            proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header X-Note $http_x_note;
            proxy_request_buffering {buffering}; proxy_ignore_client_abort on;
        }}
    }}
}}
"""

HIDDEN = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


def post(*lines: bytes, body: bytes) -> bytes:
    return b"\r\n".join([b"POST /outer HTTP/1.1", b"Host: a", *lines, b"", b""]) + body


def length(body: bytes) -> bytes:
    return b"Content-Length: %d" % len(body)


CHUNKED = b"0\r\n\r\n" + HIDDEN
PAYLOADS = [
    post(length(CHUNKED), b"Transfer-Encoding: chunked", body=CHUNKED),
    post(b"Transfer-Encoding: chunked", length(CHUNKED), body=CHUNKED),
    post(length(CHUNKED), b"Transfer-Encoding : chunked", body=CHUNKED),
    post(length(CHUNKED), b" Transfer-Encoding: chunked", body=CHUNKED),
    post(length(CHUNKED), b"Transfer_Encoding: chunked", body=CHUNKED),
    post(length(CHUNKED), b"Transfer-Encoding: xchunked", body=CHUNKED),
    post(length(CHUNKED), b"Transfer-Encoding: \x0bchunked", body=CHUNKED),
    post(length(CHUNKED), b"Transfer-Encoding:\tchunked", body=CHUNKED),
    post(length(CHUNKED), b"Transfer-Encoding: identity, chunked", body=CHUNKED),
    post(length(CHUNKED), b"X: y\nTransfer-Encoding: chunked", body=CHUNKED),
    post(length(CHUNKED), b"X: y\rTransfer-Encoding: chunked", body=CHUNKED),
    post(length(CHUNKED), b"X: y\r\n\tTransfer-Encoding: chunked", body=CHUNKED),
    post(length(CHUNKED), b"\x00Transfer-Encoding: chunked", body=CHUNKED),
    post(length(CHUNKED), b"X-Note: a\x0d\x0aTransfer-Encoding: chunked", body=CHUNKED),
    post(b"Content-Length: 0", length(HIDDEN), body=HIDDEN),
    post(length(HIDDEN), b"Content-Length: 0", body=HIDDEN),
    post(b"Content-Length: 0, %d" % len(HIDDEN), body=HIDDEN),
    post(b"Content-Length: +%d" % len(HIDDEN), body=HIDDEN),
    post(b"Content-Length : %d" % len(HIDDEN), body=HIDDEN),
    post(b"Content_Length: 0", length(HIDDEN), body=HIDDEN),
    post(b"Content-Length: %d " % len(HIDDEN), body=HIDDEN),
    post(b"Content-Length: 0%d" % len(HIDDEN), body=HIDDEN),
    post(b"Transfer-Encoding: chunked", body=b"%x;a=\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    post(b"Transfer-Encoding: chunked", body=b"0%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
    post(b"Transfer-Encoding: chunked", body=b"1\nZ\n0\n\n" + HIDDEN),
    post(b"Transfer-Encoding: chunked", body=b"3;\nxx\r\n" + b"%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0\r\n\r\n"),
    post(b"Transfer-Encoding: chunked", body=b"0\r\nX: y\r\n\r\n"),
    post(length(HIDDEN), b"Expect: 100-continue", body=HIDDEN),
    b"GET /outer HTTP/1.1\r\nHost: a\r\n" + length(HIDDEN) + b"\r\n\r\n" + HIDDEN,
    b"GET http://a/outer HTTP/1.1\r\nHost: b\r\n\r\n",
    b"GET /outer HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
]


class Backend:
    """A backend's address and what it believes it was asked."""

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[str] = []


@asynccontextmanager
async def penstock() -> AsyncIterator[Backend]:
    backend = Backend()

    def note(request: Request) -> Response:
        backend.seen.append(f"{request.method} {request.path}")
        return Response(200, b"{}")

    routes = [Route(method, "/**", note, WHOLE(100_000)) for method in ("GET", "POST")]
    async with Listener(Router(routes), ServerSettings(listen="127.0.0.1:0")) as listener:
        backend.port = listener.address[1]
        yield backend


@asynccontextmanager
async def lenient() -> AsyncIterator[Backend]:
    """A backend with the classic mistake: a name it should not know is good enough, and chunked wins."""
    backend = Backend()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                line, *fields = head.split("\r\n")
                backend.seen.append(" ".join(line.split(" ")[:2]))
                pairs = [field.partition(":") for field in fields]
                found = {name.strip(" \0").lower().replace("_", "-"): value.strip() for name, _, value in pairs}
                if "chunked" in found.get("transfer-encoding", ""):
                    while size := int(await reader.readuntil(b"\r\n"), 16):
                        await reader.readexactly(size + 2)
                    await reader.readuntil(b"\r\n")
                else:
                    await reader.readexactly(int(found.get("content-length", "0")))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    backend.port = server.sockets[0].getsockname()[1]
    try:
        yield backend
    finally:
        server.close()


@asynccontextmanager
async def nginx(folder: Path, backend: int, buffering: str) -> AsyncIterator[int]:
    program = require_program("nginx")
    port = _free_port()
    folder.mkdir()  # noqa: ASYNC240
    (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, port=port, backend=backend, buffering=buffering))
    process = subprocess.Popen(  # noqa: ASYNC220
        [program, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"], stderr=subprocess.DEVNULL
    )
    try:
        await wait_until_async(lambda: _answers(port))
        yield port
    finally:
        process.terminate()
        process.wait(60)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def smuggled(start: Callable[[], object], folder: Path, buffering: str) -> list[bytes]:
    """The payloads after which the backend has seen another number of requests than nginx has forwarded."""
    guilty = []
    async with start() as backend, nginx(folder, backend.port, buffering) as port:  # type: ignore[attr-defined]
        for number, payload in enumerate(PAYLOADS):
            backend.seen.clear()
            before = _forwarded(folder)
            await _send(port, payload)
            # The fence shows that everything before it was handled: it is the last to be logged and seen.
            fence = f"/fence{number}"
            for _ in range(3):
                await _send(port, f"GET {fence} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            await wait_until_async(lambda fence=fence: sum(fence in line for line in _forwarded(folder)) == 3)
            forwarded = _forwarded(folder)[len(before) :]
            reached = [line for line in forwarded if not line.endswith(" -")]
            # nginx takes a bare LF for the end of a chunk's line: then the hidden request is one it forwards itself.
            unseen = not any("/smuggled" in line for line in forwarded)
            if len(backend.seen) > len(reached) or (unseen and any("/smuggled" in seen for seen in backend.seen)):
                guilty.append(payload)
    return guilty


def _forwarded(folder: Path) -> list[str]:
    """What nginx has forwarded or refused, a line each: method, path, the backend's status or '-'."""
    log = folder / "seen.log"
    return log.read_text().splitlines() if log.exists() else []


async def _send(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(-1), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("buffering", ["on", "off"])
@on_uvloop
async def test_nginx_and_penstock_never_disagree_on_where_a_request_ends(tmp_path: Path, buffering: str) -> None:
    assert await smuggled(penstock, tmp_path / "nginx", buffering) == []


@on_uvloop
async def test_the_same_check_finds_smuggling_into_a_lenient_backend(tmp_path: Path) -> None:
    found = await smuggled(lenient, tmp_path / "nginx", "on")

    # It takes an underscore for a hyphen; nginx forwards those fields as they are.
    assert {b"Transfer_Encoding" in payload for payload in found} == {True, False}
    assert all(b"_" in payload for payload in found)
