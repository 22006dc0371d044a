"""Whatever is sent to `/v1`, the answer is a clear one: never a 500, never a hang, nothing changed by nonsense.

What is sent is made from the table of routes: a body looks like one of the values that the route's module decodes, or
nearly so, and the parameters are those that `/openapi.json` names. A new route is fuzzed without being listed here.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from penstock.configure import load
from penstock.server import app
from penstock.server.describing import declared
from penstock.server.routing import BodyKind, Route
from penstock.server.v1.openapi import describe
from penstock.testing import RunningServer, start_server
from tests.faults.failing_routes import Failing
from tests.server.api import ask

EXAMPLES = 32  # for each route
PATIENCE = 10.0
NAMED = (501, 503, 505)  # unknown method, busy, unknown version: answers with a reason
HEADERS = (
    "Idempotency-Key", "Producer", "Expected-Position", "Event-Type", "Event-Attributes", "Expires-In", "Content-Type",
    "Accept", "Origin", "Accept-Encoding", "X-Anything",
)  # fmt: skip
OUTSIDE = ("directory", "url", "endpoint")  # fields that make the server write or connect somewhere
LIKELY = {
    "stream": "/f/a", "streams": ">", "pattern": ">", "from": "0", "after": "0", "upto": "5", "limit": "10",
    "parts": "2", "cursor": "/f/a:0:0:127.0.0.1", "meta": "true", "entry": "1", "recipient": "alice", "columns": "id",
    "expect": "0", "prefix": "lake/", "time": "2026-11-15T12:00:00Z", "month": "2026_11",
    "max_rows": "3", "max_bytes": "99",
}  # fmt: skip
"""Parameters that lead further into a route. Whatever is missing here only gets nonsense."""


@dataclass(frozen=True, slots=True)
class Target:
    """A route, with what there is to know for somebody who wants to break it."""

    method: str
    path: str
    parameters: tuple[str, ...]
    needed: tuple[str, ...]
    shapes: tuple[type[msgspec.Struct], ...]


def targets(data: Path) -> list[Target]:
    """Every route of the own API, whoever answers it."""
    table = _table(data)
    described = describe(table)["paths"]
    return [
        Target(route.method, route.path, *_parameters(described, route), _shapes(route))
        for route in table
        if route.path.startswith("/v1/") or not route.door
    ]


def _table(data: Path) -> tuple[Route, ...]:
    async def start() -> tuple[Route, ...]:
        chosen = load(None, {}, ["log.engine=memory", "server.listen=127.0.0.1:0"])
        async with app.Node(chosen, data) as node:
            return node.routes

    return asyncio.run(start())


def _parameters(described: dict[str, Any], route: Route) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All that the route knows, and those without which it does nothing."""
    operation = next((found for path, found in described.items() if _shape(path) == _shape(route.path)), {})
    given = [one for one in operation.get(route.method.lower(), {}).get("parameters", ()) if one["in"] == "query"]
    return tuple(one["name"] for one in given), tuple(one["name"] for one in given if one["required"])


def _shape(path: str) -> list[str]:
    return ["*" if level in ("*", "**") or level.startswith("{") else level for level in path.split("/")]


def _shapes(route: Route) -> tuple[type[msgspec.Struct], ...]:
    """What a body may look like: one of the values that are defined where the handler is."""
    handler = route.handler if inspect.isroutine(route.handler) else type(route.handler)
    known = [kind for kind in vars(sys.modules[handler.__module__]).values() if isinstance(kind, type)]
    own = [kind for kind in known if issubclass(kind, msgspec.Struct) and kind.__module__ == handler.__module__]
    return tuple(own) if route.body.kind is not BodyKind.NONE else ()


# ── what is sent ──────────────────────────────────────────────────────────────────────────────────


def mostly(right: st.SearchStrategy[Any], wrong: st.SearchStrategy[Any], share: int = 5) -> st.SearchStrategy[Any]:
    """One in *share* is wrong: nonsense everywhere would not get past the first check."""
    return st.integers(1, share).flatmap(lambda number: wrong if number == share else right)


numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str), st.sampled_from(["0", "1", "-1", "", "1e5", "٣", "0x1", "9" * 25, "nan"])
)
words = st.sampled_from(
    ["/f/a", "/f/a:0:0", "/f/a:0:65:127.0.0.1", "/", ">", "/f/>", "/f/*", "/_ledger", "{}", "p/1", "true", "latest",
     "7d", "1s", "2026_11", "2026-11-15T12:00:00Z", "9999-12-31T23:59:59+14:00", "lake/", "pipeline/jobs/x", "alice",
     "publish"]
)  # fmt: skip
texts = st.one_of(words, numbers, st.text(max_size=30), st.sampled_from(["\0", "\ud800", "a" * 3000, "\u202e"]))
escapes = st.sampled_from(["%", "%z", "%zz", "%ff", "%00", "%C3%28", "%2F", "%2e%2e", "+", "&", "=", ";", "%ED%A0%80"])
levels = mostly(texts.map(lambda text: quote(text, safe="", errors="surrogatepass")), escapes)

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), texts, st.sampled_from([10**400, 2**63, -1])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2), max_leaves=5
)
raw_bodies = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [b"", b"{}", b"[]", b"null", b"NaN", b"1e999", b"9" * 5000, b"\xef\xbb\xbf{}", b'{"a":"\\ud800"}',
         b'{"a":"\\u0000"}', b"[" * 60_000, b'{"a":' * 10_000, b"[" * 900 + b"]" * 900,
         b"{" + b'"a":{' * 900 + b"}" * 901, b'{"a":1,"a":2}', b'{"\\u0000":1}', b'{"a":"\xff"}', b'"' + b"a" * 5000,
         b"1\n2\n", b"\n\n"]
    ),
)  # fmt: skip


def places(scratch: Path) -> st.SearchStrategy[object]:
    """Directories that may be made, and such as cannot be: a fuzzer must not write anywhere else."""
    below = st.one_of(st.integers(0, 9).map(str), st.sampled_from(["a\0b", "\ud800", "x" * 300, "x/" * 3000, "é", " "]))
    return st.one_of(
        below.map(lambda name: f"{scratch}/{name}"), st.sampled_from(["", ".", "relative", "http://[::1", "https://"]),
        st.none(), st.integers(), st.lists(st.text(max_size=3), max_size=1),
    )  # fmt: skip


def bodies(target: Target, scratch: Path) -> st.SearchStrategy[bytes]:
    """What the route wants, with nonsense in some places; anything; and what is no JSON at all."""
    shaped = [_like(msgspec.inspect.type_info(kind), scratch).map(_encoded) for kind in target.shapes]
    strange = st.dictionaries(texts.filter(lambda name: name not in OUTSIDE), values, max_size=2).map(_encoded)
    wrong = st.one_of(strange, values.map(_encoded), raw_bodies)
    return mostly(st.one_of(*shaped), wrong, 3) if shaped else wrong


def _like(kind: msgspec.inspect.Type, scratch: Path) -> st.SearchStrategy[Any]:
    """Values of a type, and now and then others."""
    match kind:
        case msgspec.inspect.StructType(fields=fields):
            made = {f.encode_name: _field(f, scratch) for f in fields}
            needed = {f.encode_name: made.pop(f.encode_name) for f in fields if f.required}
            return st.fixed_dictionaries(needed, optional=made)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of(*(_like(one, scratch) for one in types))
        case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
            return st.lists(_like(item, scratch), max_size=3)
        case msgspec.inspect.DictType(value_type=value):
            return st.dictionaries(texts, _like(value, scratch), max_size=2)
        case msgspec.inspect.IntType():
            return mostly(st.integers(0, 9), st.integers(-(2**70), 2**70))
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.StrType():
            return texts
    return values


def _field(field: msgspec.inspect.Field, scratch: Path) -> st.SearchStrategy[Any]:
    if field.encode_name in OUTSIDE:
        return places(scratch)
    return mostly(_like(field.type, scratch), values)


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode()


def queries(target: Target) -> st.SearchStrategy[str]:
    """Known names with bad values, unknown ones, one twice, percent signs that mean nothing."""
    waits = st.sampled_from(["0", "1", "-1", "x", "61", "nan"])  # what may be asked for is not a hang
    made: dict[str, st.SearchStrategy[str]] = {
        name: mostly(st.just(quote(LIKELY[name], safe="/>:")), levels) if name in LIKELY else levels
        for name in target.parameters
    }
    made |= {"wait": waits} if "wait" in made else {}
    needed = {name: made[name] for name in target.needed}
    others = {name: made[name] for name in target.parameters if name not in needed}
    right = st.fixed_dictionaries(needed, optional=others).map(lambda found: "&".join(map("=".join, found.items())))
    return mostly(right, st.lists(st.one_of(escapes, right, st.just("nonsense=1")), max_size=3).map("&".join))


def heads(target: Target) -> st.SearchStrategy[bytes]:
    path = st.just("")
    for level in target.path.split("/")[1:]:
        more = st.one_of(st.sampled_from(["lake/x", "pipeline/tasks/x"]), st.lists(levels, min_size=1).map("/".join))
        more = more if level == "**" else levels
        path = st.builds(lambda begun, then: f"{begun}/{then}", path, more if "*" in level else st.just(level))
    method = st.sampled_from([target.method] * 25 + ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"])
    return st.builds(lambda *parts: "{} {}?{} HTTP/1.1".format(*parts).encode(), method, path, queries(target))


fields = st.lists(
    st.tuples(st.sampled_from(HEADERS), texts.map(lambda text: text.encode("utf-8", "surrogatepass"))), max_size=3
).map(lambda found: [name.encode() + b": " + value.translate(None, b"\r\n\0") for name, value in found])
strangers = st.one_of(
    st.sampled_from([b"", b"Bearer", b"Bearer ", b"Basic eDp5", b"bearer ADMIN", b"Bearer ADMIN ADMIN", b"Bearer \xff",
         b"Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.", b"Bearer e30.e30.e30", b"Bearer " + b"." * 200,
         b"Bearer a.b.c", b"Bearer eyJhbGciOiJIUzI1NiIsImtpZCI6W119.W10.AA", b"Bearer " + b"x" * 9000]),
    st.binary(max_size=40).map(lambda data: b"Bearer " + data.translate(None, b"\r\n\0")),
)  # fmt: skip


def exchange(server: RunningServer, request: bytes, *, leave: bool = False, patience: float = PATIENCE) -> int:
    """Send raw bytes on a connection of their own; return the answer's status, or 0 if it was closed without one."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=patience) as connection:
        received = b""
        try:
            connection.sendall(request)
            if leave:
                connection.shutdown(socket.SHUT_WR)
            while b"\r\n" not in received:
                piece = connection.recv(65_536)
                if not piece:
                    return 0
                received += piece
        except TimeoutError:
            raise AssertionError(f"no answer within {patience} s: {request[:300]!r}") from None
    return int(received.split(b" ", 2)[1])


def fuzz(server: RunningServer, target: Target, scratch: Path, *, patience: float, phases: tuple[Phase, ...]) -> None:
    """Send nonsense to one route. `AssertionError` if an answer is a failure, or does not come."""

    @settings(
        max_examples=EXAMPLES, deadline=None, phases=phases, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(heads(target), mostly(st.just(b"Bearer ADMIN"), strangers, 8), fields, bodies(target, scratch))
    def run(head: bytes, credential: bytes, more: list[bytes], body: bytes) -> None:
        token = b"Authorization: " + credential.replace(b"ADMIN", server.admin_token.encode())
        lines = [head, b"Host: x", b"Connection: close", b"Content-Length: %d" % len(body), token, *more]
        note(f"{lines!r} {body[:300]!r}")

        status = exchange(server, b"\r\n".join(lines) + b"\r\n\r\n" + body, patience=patience)

        assert 200 <= status < 500 or status in NAMED, (status, lines, body[:300])
        assert ask(server, "GET", "/health", token=None).status == 200

    run()


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for this file alone: what is sent here trims its log and makes backups of it."""
    with start_server(tmp_path_factory.mktemp("fuzz") / "data") as running:
        for number in range(5):
            ask(running, "POST", "/v1/publish", b"%d" % number, stream="/f/a")
        yield running


ALL = tuple(Phase)
FIND = (Phase.generate,)  # without making it small: it is there on purpose


def test_no_request_makes_the_server_fail(victim: RunningServer, tmp_path: Path) -> None:
    for target in targets(tmp_path):
        fuzz(victim, target, tmp_path, patience=PATIENCE, phases=ALL)

    assert "request.failed" not in victim.log_text()


class FailingServer(RunningServer):
    module = "tests.faults.failing_routes"


@pytest.mark.parametrize("path", ["/v1/fails", "/v1/hangs"])
def test_a_route_that_fails_or_hangs_is_found(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(app.DOORS, "failing", Failing)
    [target] = [target for target in targets(tmp_path) if target.path == path]
    server = FailingServer(tmp_path / "data", (), {})
    try:
        with pytest.raises(AssertionError, match="500" if path == "/v1/fails" else "no answer within"):
            fuzz(server, target, tmp_path, patience=2, phases=FIND)
    finally:
        server.kill()


def test_every_route_is_described_and_so_fuzzed_with_its_parameters(tmp_path: Path) -> None:
    assert [
        route.path for route in _table(tmp_path) if route.path.startswith("/v1/") and not declared(route.handler)
    ] == []


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=300),
    st.sampled_from(
        [b"", b"GET /v1/read?stream=/a HTTP/1.1\r\n", b"POST /v1/publish?stream=/f HTTP/1.1\r\nHost: x\r\n"]
    ),
)
def test_no_bytes_make_the_server_fail(victim: RunningServer, garbage: bytes, opening: bytes) -> None:
    status = exchange(victim, opening + garbage, leave=True)

    assert status < 500 or status in NAMED
    assert ask(victim, "GET", "/health", token=None).status == 200


def test_every_path_with_an_encoded_name_is_answered(victim: RunningServer) -> None:
    for tricky in ("/v1/%2e%2e/read", "/v1/" + quote("../read", safe=""), "//v1/read", "/v1/read%00", "/%76%31/read"):
        assert ask(victim, "GET", tricky).status in (400, 404)
