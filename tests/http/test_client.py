"""Requests that the server sends to whom others named."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.doors.webpush_sender.push_client import PushClient
from penstock.errors import InputInvalid, PeerError
from penstock.http import client as client_module
from penstock.http.client import (
    AnswerBroken,
    Target,
    TimedOut,
    Unreachable,
    is_public,
    parse_url,
)
from penstock.http.resolving import Resolver
from penstock.wire.http_client import AnswerReader
from penstock.wire.urls import Url
from tests.http.certificates import make_certificate

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.1", "100.64.0.1",
        "224.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1", "240.0.0.1", "::", "::1", "fe80::1", "fe80::1%eth0",
        "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:db8::1", "2001:0:0:0:0:0:80ff:fffe",
    ],
)  # fmt: skip
def test_private_addresses_are_not_public_however_they_are_written(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://example.com", Url(False, "example.com", 80, "/")),
        ("https://example.com/a?b=c#d", Url(True, "example.com", 443, "/a?b=c")),
        ("http://[::1]:9000/x", Url(False, "::1", 9000, "/x")),
        ("HTTP://a_b:65535?c", Url(False, "a_b", 65535, "/?c")),
    ],
)
def test_a_url_is_taken_apart(text: str, url: Url) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(
    "text", ["", "example.com", "ftp://x/", "http:///x", "http://a b/", "http://u:p@x/", "http://x:99999/", "http://x/\r\n",
             "http://é/", "http://[::1/", "http://0*", "http://x\n"],
)  # fmt: skip
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(InputInvalid):
        parse_url(text)


Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def talk(peer: Peer, use: Callable[[Target], Awaitable[Any]], **options: Any) -> Any:
    server = await asyncio.start_server(peer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    target = Target(parse_url(f"http://127.0.0.1:{port}/p?auth=t"), allow_private=True, **options)
    try:
        return await use(target)
    finally:
        target.close()
        server.close()


def says(*pieces: bytes, close: bool = False) -> tuple[Peer, list[bytes]]:
    """A peer that answers every request with the same bytes; and the requests it got."""
    seen: list[bytes] = []

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                seen.append(head + await reader.readexactly(size))
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                if close:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return peer, seen


async def test_a_request_and_its_answer() -> None:
    peer, seen = says(OK)

    answer = await talk(peer, lambda target: target.post(b"body", (("X-One", "1"),)))

    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"ok", "2")
    assert seen[0].startswith(b"POST /p?auth=t HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-One: 1\r\n" in seen[0]
    assert seen[0].endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(
    ("pieces", "close", "status", "body"),
    [
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", b"0\r\n\r\n"], False, 200, b"ok"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", OK], False, 200, b"ok"),
        ([b"HTTP/1.1 200 OK\r\n\r\nok"], True, 200, b"ok"),
        ([b"HTTP/1.0 500 No\r\nContent-Length: 0\r\n\r\n"], True, 500, b""),
        ([b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"], False, 302, b""),
    ],
)
async def test_answers_of_every_form_are_read(pieces: list[bytes], close: bool, status: int, body: bytes) -> None:
    peer, seen = says(*pieces, close=close)

    answer = await talk(peer, lambda target: target.post(b""))

    assert (answer.status, answer.body, len(seen)) == (status, body, 1)


@pytest.mark.parametrize(
    ("pieces", "close", "error"),
    [
        ([b"garbage\r\n\r\n"], False, AnswerBroken),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"], True, Unreachable),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nok"], True, Unreachable),
        ([], True, Unreachable),
        ([], False, TimedOut),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"], False, TimedOut),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000], False, AnswerBroken),
    ],
)
async def test_what_is_no_answer_is_an_error(pieces: list[bytes], close: bool, error: type[Exception]) -> None:
    peer, _ = says(*pieces, close=close)

    with pytest.raises(error):
        await talk(peer, lambda target: target.post(b""), timeout=0.2 if error is TimedOut else 20, limit_bytes=1000)


@pytest.mark.parametrize("guarded", [True, False])
async def test_an_answer_that_comes_byte_by_byte_has_one_deadline(guarded: bool) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A byte whenever the loop has a turn: there is always progress, and no end."""
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with suppress(ConnectionError):
            while not writer.transport.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    with pytest.raises(TimedOut if guarded else TimeoutError):
        async with asyncio.timeout(20 if guarded else 0.5):
            await talk(drip, lambda target: target.post(b""), timeout=0.2 if guarded else None, limit_bytes=1 << 30)


async def test_a_connection_is_kept_and_replaced_when_the_peer_has_closed_it() -> None:
    peer, seen = says(OK)
    connections = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:  # two answers, then it goes away without a word
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
            return
        await peer(reader, writer)

    async def use(target: Target) -> None:
        for _ in range(4):
            assert (await target.post(b"")).body == b"ok"

    await talk(counted, use)
    assert (connections, len(seen)) == (2, 2)


async def test_nobody_there_is_unreachable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        with pytest.raises(Unreachable, match="no connection"):
            await Target(parse_url(f"http://127.0.0.1:{port}/"), allow_private=True).post(b"")


async def test_a_private_address_is_refused_before_anything_is_sent() -> None:
    peer, seen = says(OK)

    async def use(target: Target) -> None:
        with pytest.raises(Unreachable, match="private"):
            await Target(target.url).post(b"")

    await talk(peer, use)
    assert seen == []


@pytest.mark.parametrize("addresses", [("1.1.1.1", "127.0.0.1"), ("127.0.0.1", "1.1.1.1"), ("::ffff:10.0.0.1",)])
async def test_one_private_address_among_a_names_is_enough_to_refuse(addresses: tuple[str, ...]) -> None:
    target = Target(parse_url("http://rebinding.example/"))

    with pytest.raises(Unreachable, match="private"):
        await target._resolve(Resolver(lambda host: list(addresses)))


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    target = Target(parse_url("http://rebinding.example/"))

    assert await target._resolve(Resolver(lambda host: ["1.1.1.1"])) == "1.1.1.1"


async def test_an_answer_without_a_limit_is_taken_as_it_comes() -> None:
    pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (b"one", b"two" * 1000)]
    peer, _ = says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *pieces, b"0\r\n\r\n")
    taken: list[bytes] = []

    answer = await talk(
        peer,
        lambda target: target.post(b"", on_piece=lambda reader: taken.append(reader.take())),
        timeout=None,
        limit_bytes=None,
    )

    assert (b"".join(taken), answer.status, answer.body) == (b"one" + b"two" * 1000, 200, b"")


async def test_whoever_takes_an_answer_may_break_it_off() -> None:
    peer, _ = says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")

    def refuse(reader: AnswerReader) -> None:
        raise PeerError(502, f"{reader.take()!r} is not what was asked for")

    with pytest.raises(AnswerBroken, match="b'ok' is not"):
        await talk(peer, lambda target: target.post(b"", on_piece=refuse))


# ── https ─────────────────────────────────────────────────────────────────────────────────────


async def start_secure(stack: AsyncExitStack, folder: Path) -> int:
    """An https origin that says OK, with a certificate that it puts into *folder*; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(folder, folder.name))
    server = await asyncio.start_server(says(OK)[0], "127.0.0.1", 0, ssl=context)
    stack.callback(server.close)
    port: int = server.sockets[0].getsockname()[1]
    return port


def count_contexts(monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """Those that are made from now on."""
    made: list[ssl.SSLContext] = []
    create = ssl.create_default_context

    def counted() -> ssl.SSLContext:
        made.append(create())
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    return made


async def post_to_many_origins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Post to https origins that are trusted and to one that is not; how many contexts that took."""
    folders = [folder / name for name in ("one", "two", "three", "strange")]
    made = count_contexts(monkeypatch)
    async with AsyncExitStack() as stack:
        for one in folders:
            one.mkdir()
        ports = [await start_secure(stack, one) for one in folders]
        trusted = folder / "trusted.pem"
        trusted.write_bytes(b"".join((one / "chain.pem").read_bytes() for one in folders[:3]))
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        for host in ("127.0.0.1", "localhost"):
            for port, one in zip(ports, folders, strict=True):
                target = Target(parse_url(f"https://{host}:{port}/p"), allow_private=True)
                stack.callback(target.close)
                if one.name == "strange":
                    with pytest.raises(Unreachable, match="certificate"):
                        await target.post(b"body")
                else:
                    assert (await target.post(b"body")).body == b"ok"
        client = PushClient(ec.generate_private_key(ec.SECP256R1()), "mailto:a@example.com", 1)
        for number in range(100):
            client.target(f"https://{number}.example.com/push", allow_private=False)
    return len(made)


async def test_all_https_origins_are_verified_by_one_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await post_to_many_origins(tmp_path, monkeypatch) == 1


async def test_the_same_count_finds_a_context_for_each_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "client_context", lambda: ssl.create_default_context())
    assert await post_to_many_origins(tmp_path, monkeypatch) == 108


async def test_other_certificates_of_the_environment_are_another_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[ssl.SSLContext] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        chain, _ = make_certificate(tmp_path / name, name)
        monkeypatch.setenv("SSL_CERT_FILE", chain)
        contexts.append(client_module.client_context())
    assert contexts[0] is not contexts[1]
    assert client_module.client_context() is contexts[1]
