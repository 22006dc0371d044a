"""Request bodies: large ones, many small parts of them, and many at once cost the others nothing.

The servers keep the log in memory: what the loop does for others while an answer waits for the disk is no harm, but
would be counted as such.
"""

from __future__ import annotations

import base64
import json
import select
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.api.v1 import publish as publishing
from penstock.http import bodies
from penstock.testing import RunningServer, start_server, wait_until
from penstock.wire import gojson, http_chunks
from tests.api.client import Reply, ask
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

MIB = 1024 * 1024
ATTACKERS = 3
SMALL_VALUES = b'{"Half":"\\ud800","Stream":"/a","Lines":[' + b'"",' * (2 * MIB) + b'""]}'
SMALL_NAMES = b"{" + b",".join(b'"%x":1' % number for number in range(MIB // 2)) + b"}"
DEEP = b'{"a":' * 50_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("bodies") / "data", log_engine="memory") as running:
        yield running


def send(server: RunningServer, path: str, body: bytes, token: str = "", **headers: str) -> Reply:
    return ask(server, "POST", path, body, headers, token)


def send_small_values(server: RunningServer) -> None:
    assert send(server, "/writer/append", SMALL_VALUES).status == 400
    assert send(server, "/writer/append", SMALL_NAMES).status in (400, 404)


def send_empty_lines(server: RunningServer) -> None:
    lines = {"Content-Type": "application/x-ndjson"}
    assert send(server, "/v1/publish?stream=/a", b"\n" * (8 * MIB), **lines).status == 400
    assert send(server, "/v1/publish?stream=/a", b"\r\n" * (4 * MIB), **lines).status == 400
    assert send(server, "/v1/publish?stream=/a", b"a\n\n" * 20_000, **lines).json["count"] == 20_000


def send_small_chunks(server: RunningServer) -> None:
    assert chunked(server, b"2\r\nxx\r\n" * (MIB // 2)).startswith(b"HTTP/1.1 400")


def chunked(server: RunningServer, body: bytes) -> bytes:
    """The beginning of the answer to a body in these chunks."""
    head = f"POST /v1/publish?stream=/a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {server.admin_token}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as peer:
        peer.settimeout(30)
        with suppress(OSError):  # it is refused in the middle, and the answer is there
            peer.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + body + http_chunks.LAST_CHUNK)
        return peer.recv(200)


def json_as_python_reads_it() -> None:
    """Bodies become objects, whatever is in them."""

    def decode(body: bytes, type: Any) -> Any:
        _walk(json.loads(body))
        return honest(b"{}", type)

    honest = gojson.decode
    gojson.decode = decode


def _walk(value: Any) -> Any:
    """Look at every string of it, as it was done to find halves of surrogate pairs."""
    if isinstance(value, dict):
        return {_walk(key): _walk(one) for key, one in value.items()}
    return [_walk(one) for one in value] if isinstance(value, list) else value


def lines_in_one_go() -> None:
    """A body of lines is cut in one turn of the loop."""
    publishing.SLICE_BYTES = 1 << 40


def chunks_of_any_size() -> None:
    """Framing may outweigh a body by any number of bytes."""
    http_chunks.ChunkDecoder._pay = lambda self, framing: None


def by_several(attack: Callable[[RunningServer], None], server: RunningServer) -> None:
    with ThreadPoolExecutor(ATTACKERS) as pool:
        list(pool.map(attack, [server] * ATTACKERS))


ATTACKS = {
    send_small_values: json_as_python_reads_it,
    send_empty_lines: lines_in_one_go,
    send_small_chunks: chunks_of_any_size,
}


def test_a_body_of_many_small_things_holds_up_nobody(server: RunningServer) -> None:
    with beside(server) as bystander:
        for attack in ATTACKS:
            by_several(attack, server)

    bystander.noticed_nothing()


@pytest.mark.parametrize("attack", ATTACKS)
def test_without_its_guard_each_is_noticed(tmp_path: Path, attack: Callable[[RunningServer], None]) -> None:
    def harm() -> None:
        with start_sabotaged(tmp_path / "data", ATTACKS[attack], log_engine="memory") as server:
            with beside(server) as bystander:
                by_several(attack, server)
            bystander.noticed_nothing()

    with pytest.raises(AssertionError):
        harm()


# ── nests ──────────────────────────────────────────────────────────────────────────────────────

CALLS = [
    "/writer/create_stream", "/writer/append", "/writer/subscribe", "/writer/unsubscribe", "/writer/liveread",
    "/reader/read", "/reader/report", "/v1/pushers", "/v1/emit", "/v1/sessions", "/v1/actors", "/v1/webpush",
    "/v1/tokens", "/v1/log/erase", "/v1/audit/heads", "/v1/log/trim", "/v1/backup", "/v1/pipeline/consumers/a",
    "/v1/capabilities",
]  # fmt: skip


NEST = b"[" * 5_000 + b"]" * 5_000
WITHIN = {  # where a nest stands in a field that takes any value
    "/v1/emit": b'{"actors":["a"],"messages":[["x",%b]]}' % NEST,
    "/v1/sessions": b'{"actorId":"a","meta":%b}' % NEST,
}


@pytest.mark.parametrize("path", CALLS)
def test_a_deep_nest_is_a_mistake_of_the_caller(server: RunningServer, path: str) -> None:
    for body in (DEEP[:3000], DEEP[:60_000], b"[" * 60_000, WITHIN.get(path, NEST)):
        assert send(server, path, body).status in (400, 413)


class _Uncaught(Exception):
    """What no decoder raises."""


def nests_are_not_expected() -> None:
    """The sabotage: decoders catch other errors than that of a nest that is too deep."""
    # Here, not above: other sabotages replace what these modules import.
    from penstock.doors.eventhorizon import requests as eventhorizon_requests
    from penstock.doors.msgstream import requests as msgstream_requests

    for module in (gojson, eventhorizon_requests, msgstream_requests):
        module.RecursionError = _Uncaught  # type: ignore[attr-defined]


def test_without_the_guard_a_deep_nest_is_a_failure_of_the_server(tmp_path: Path) -> None:
    bodies = WITHIN | {path: DEEP[:60_000] for path in CALLS if path.startswith(("/writer/", "/reader/"))}
    with start_sabotaged(tmp_path / "data", nests_are_not_expected, log_engine="memory") as server:
        assert {path: send(server, path, body).status for path, body in bodies.items()} == dict.fromkeys(bodies, 500)


def test_a_deep_nest_in_a_token_is_no_token(server: RunningServer) -> None:
    for part in (b"[" * 20_000, b'{"alg":' * 2000):
        text = base64.urlsafe_b64encode(part).decode().rstrip("=")
        assert send(server, "/v1/emit", b"{}", f"{text[:15_000]}.e30.AAAA").status == 401


# ── bytes in flight ────────────────────────────────────────────────────────────────────────────


@contextmanager
def half_sent(server: RunningServer, address: str, count: int) -> Iterator[list[socket.socket]]:
    """So many bodies of half a megabyte from one address, of which the second half never comes."""
    head = f"POST /v1/publish?stream=/a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {server.admin_token}\r\n"
    with ExitStack() as stack:
        peers = []
        for _ in range(count):
            peer = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), timeout=20, source_address=(address, 0))
            )
            peer.sendall(f"{head}Content-Length: {MIB // 2}\r\n\r\n".encode() + b"x" * (MIB // 4))
            peers.append(peer)
        yield peers


def held(server: RunningServer) -> int:
    text = ask(server, "GET", "/metrics").body.decode()
    return next(int(float(line.split()[1])) for line in text.splitlines() if line.startswith("penstock_bodies_bytes "))


def take_all_room(server: RunningServer) -> None:
    """One address holds bodies back; another one's come through, and what was held is free again."""
    with half_sent(server, "127.0.0.2", 12) as peers:
        answered: list[socket.socket] = []

        def each_is_held_or_answered() -> bool:
            answered[:] = select.select(peers, [], [], 0)[0]
            return held(server) == (len(peers) - len(answered)) * MIB // 2

        wait_until(each_is_held_or_answered)
        assert len(answered) == 10  # the others hold a quarter
        assert {peer.recv(12) for peer in answered} == {b"HTTP/1.1 503"}
        big = send(server, "/v1/publish?stream=/a", b"x" * (MIB - 5000))
        assert big.status == 201, big.body
    wait_until(lambda: held(server) == 0)


def no_shares() -> None:
    """One address may hold all."""
    bodies.BODIES_SHARE = 1


@pytest.mark.parametrize("sabotage", [None, no_shares])
def test_one_address_cannot_take_the_room_for_bodies(tmp_path: Path, sabotage: Callable[[], None] | None) -> None:
    def attack() -> None:
        with start_sabotaged(tmp_path / "data", sabotage, server_bodies_bytes=4 * MIB) as server:
            with beside(server) as bystander:
                take_all_room(server)
            bystander.noticed_nothing()

    if sabotage is None:
        attack()
    else:
        with pytest.raises(AssertionError):
            attack()
