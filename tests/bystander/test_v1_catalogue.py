"""What a client with a token can do to others through `/v1`: a table, and a bystander beside each of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from penstock.api.auth import Caller
from penstock.testing import RunningServer, start_server
from tests.bystander.hostile import Hostile
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside, processes_of

STREAM = "/mallory/a"
PUBLISH = f"/v1/publish?stream={STREAM}"


def of_bytes(one: Hostile) -> None:
    """Bytes that are no HTTP, no UTF-8, no JSON, or two requests in one."""
    for garbage in (b"\0" * 5_000, b"\r\n" * 3_000, b"\x16\x03\x01" + b"\xff" * 900, b"GET / HTTP/1.1\nHost: x\n\n",
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"A" * 70_000):  # fmt: skip
        one.say(garbage)
    both = one.head("POST", PUBLISH, "Content-Length: 3", "Transfer-Encoding: chunked") + b"0\r\n\r\nGET /x"
    assert one.say(both) == [400]
    for chunks in (b"zz\r\n", b"-1\r\n", b"5\r\nab", b"ffffffffffffffffff\r\n", b"1;" + b"x" * 9_000):
        one.say(one.head("POST", PUBLISH, "Transfer-Encoding: chunked") + chunks)
    for path in ("/v1/emit", "/v1/sessions", "/v1/tokens", "/v1/webpush", "/v1/pushers", "/v1/capabilities"):
        for body in (b"\xff\xfe", b'{"\xc9":1}', b"[" * 20_000, b'{"a":' * 5_000, b"9" * 9_000, b"\0"):
            assert one.ask("POST", path, body).status in (400, 403, 413)
    for query in ("stream=%ff", "stream=%00", "stream=/a&stream=/b", "%=1", "&" * 3_000, "stream=/%ED%A0%80"):
        assert one.say(one.request("POST", f"/v1/publish?{query}", b"x")) == [400]


def of_sizes(one: Hostile) -> None:
    """Everything as large as it may be, and a little larger."""
    assert one.say(one.head("GET", "/v1/read?stream=/" + "a" * 9_000)) == [414]
    assert one.say(one.head("GET", "/v1/streams", *(f"X-{number}: y" for number in range(200)))) == [431]
    assert one.say(one.head("GET", "/v1/streams", "X-Large: " + "y" * 40_000)) == [431]
    assert one.say(one.head("POST", PUBLISH, "Content-Length: 999999999999")) == [413]
    whole = b"x" * (1024 * 1024 - 4096)
    for _ in range(8):
        assert one.ask("POST", "/v1/publish", whole, stream=STREAM).status == 201
    assert one.ask("POST", "/v1/publish", whole + b"x" * 9_000, stream=STREAM).status == 413
    lines = one.request("POST", PUBLISH, b"line\n" * 20_000, "Content-Type: application/x-ndjson")
    assert one.say(lines) == [201]
    for _ in range(4):
        assert one.ask("GET", "/v1/read", stream=STREAM, limit=1000).status == 200
    assert one.ask("GET", "/v1/read", streams=",".join(["/mallory/*"] * 65)).status in (200, 413)


def of_slowness(one: Hostile) -> None:
    """Peers that say half of something, or read nothing of what they asked for."""
    for _ in range(100):
        one.hold(b"GET /v1/re")
        one.hold(one.head("POST", PUBLISH, "Content-Length: 1000000") + b"x")
    for _ in range(20):
        one.hold(one.head("GET", f"/v1/tail?streams={STREAM}&after=0"))
        one.hold(one.head("GET", f"/v1/read?stream={STREAM}&limit=1000") * 20)
        one.hold(one.head("GET", "/v1/log/arrow?after=0&upto=5&streams=/mallory/>"))
        one.hold(one.head("GET", "/v1/pipeline/news?after=999999&wait=60"))
    for number in range(200):
        assert one.ask("POST", "/v1/publish", b"%d" % number + b"x" * 50_000, stream=STREAM).status == 201


def of_order(one: Hostile) -> None:
    """Right things at the wrong time: many at once, twice, backwards, of things that are not there."""
    read = one.head("GET", f"/v1/read?stream={STREAM}&from=9223372036854775807")
    assert set(one.say(read * 150, answers=150)) <= {200, 404}
    publish = one.request("POST", PUBLISH, b"same", "Idempotency-Key: once", "Producer: p/5")
    assert set(one.say(publish * 100, answers=100)) <= {201, 400, 409}
    for sequence in (9, 3, 7, 1):
        one.say(one.request("POST", PUBLISH, b"x", f"Producer: q/{sequence}"))
    one.say(one.request("POST", PUBLISH, b"x", "Expected-Position: 999999999"))
    assert one.ask("GET", "/v1/log/plan", after=10**15).status == 404
    assert one.ask("GET", "/v1/log/arrow", after=5, upto=1, streams="/mallory/a").status == 400
    assert one.ask("GET", "/v1/log/arrow", after=0, upto=2**62, streams="/mallory/a").status == 404
    for path in ("/v1/pushers/nobody", "/v1/sessions/nobody", "/v1/webpush/nobody"):
        assert one.ask("DELETE", path).status in (403, 404)
    assert one.post("/v1/pipeline/consumers/mine", id=2**62).status == 404


def of_closes(one: Hostile) -> None:
    """Connections that end in the middle of anything."""
    body = one.head("POST", PUBLISH, "Content-Length: 500000") + b"x" * 60_000
    for data in (b"", b"GET", one.head("GET", "/v1/streams"), body, one.request("POST", PUBLISH, b"gone"),
                 one.head("GET", f"/v1/tail?streams={STREAM}&after=0"),
                 one.head("GET", f"/v1/read?stream={STREAM}") * 30,
                 one.head("GET", "/v1/pipeline/news?after=999999&wait=60")):  # fmt: skip
        for _ in range(30):
            one.cut(data)
    for _ in range(50):
        one.say(one.head("GET", "/v1/tail?streams=/mallory/b", "Connection: close"))


def of_names(one: Hostile) -> None:
    """Others' streams, the system's, and names that are none."""
    for stream in ("/bystander", "/_ledger", "/_erased", "/users/7", "/rooms/a", "/mallory"):
        assert one.ask("POST", "/v1/publish", b"from mallory", stream=stream).status == 403, stream
        assert one.ask("GET", "/v1/read", stream=stream).status == 403, stream
    for pattern in (">", "/*", "/bystander", "/>", "/_ledger", "/*/a"):
        assert one.ask("GET", "/v1/tail", streams=pattern).status == 403, pattern
        assert one.ask("GET", "/v1/streams", pattern=pattern).status == 403, pattern
    for name in (
        "",
        "a",
        "//",
        "/a/",
        "/../a",
        "/a:b",
        "/a,b",
        "/" + "a" * 129,
        "/a" * 17,
        "/\u2028",
        "/a b",
        "/*",
        "/\0",
    ):
        assert one.say(one.request("POST", f"/v1/publish?stream={quote(name)}", b"x")) == [400], name
    for number in range(300):
        assert one.ask("POST", "/v1/publish", b"x", stream=f"/mallory/many/{number}/{number}").status == 201
    for path in ("/v1/%2e%2e/read", "//v1/read", "/v1/read%00", "/%76%31/read", "/v1/pipeline/records/lake/../x"):
        assert one.ask("GET", path).status in (400, 404)
    for key in ("lake/events", "pipeline/driver"):
        assert one.ask("PUT", f"/v1/pipeline/records/{key}", b"{}", expect=0).status == 403
    for path in ("/v1/log/trim", "/v1/log/erase", "/v1/backup", "/v1/audit/cut", "/v1/tables"):
        assert one.ask("POST", path, b"{}").status == 403, path


def of_clocks(one: Hostile) -> None:
    """Times that never were, and tokens out of them."""
    for time in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-02-30T00:00:00Z", "1e400", "", "now"):
        assert one.ask("GET", "/v1/pipeline/position", time=time).status in (200, 400), time
    for _ in range(200):
        one.say(one.request("POST", PUBLISH, b"short-lived", "Expires-In: 1"))
    for seconds in ("0", "-1", "1e3", "999999999999", "٣"):
        assert one.say(one.request("POST", PUBLISH, b"x", "Expires-In: " + seconds)) == [400], seconds
    for keep in ("-1d", "0s", "1e400d", "999999999999d", "nan"):
        assert one.post("/v1/log/trim", keep=keep).status == 403
    good = one.token
    for claims in ("eyJleHAiOjFlNDAwfQ", "eyJleHAiOi0xfQ", "eyJleHAiOiJuYW4ifQ", ""):
        one.token = ".".join((good.split(".")[0], claims, good.split(".")[2]))
        assert one.ask("GET", "/v1/streams", pattern="/mallory/>").status == 401
    one.token = good


CATALOGUE: tuple[Callable[[Hostile], None], ...] = (
    of_bytes, of_sizes, of_slowness, of_order, of_closes, of_names, of_clocks,
)  # fmt: skip


@pytest.fixture(scope="module", params=[1, 2], ids=["process", "workers"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("v1") / "data", server_workers=request.param) as running:
        assert len(processes_of(running)) == {1: 1, 2: 3}[request.param]
        yield running


def check(server: RunningServer, behaviour: Callable[[Hostile], None]) -> None:
    with Hostile(server, "/mallory", "export") as hostile:
        with beside(server) as bystander:
            behaviour(hostile)
        bystander.noticed_nothing()
    assert "Traceback" not in server.log_text()


@pytest.mark.parametrize("behaviour", CATALOGUE, ids=lambda behaviour: behaviour.__name__)
def test_nobody_notices_a_hostile_client(shared: RunningServer, behaviour: Callable[[Hostile], None]) -> None:
    check(shared, behaviour)


def everybody_may_publish() -> None:
    """The sabotage: rights are not looked at."""
    Caller.check_publish = lambda self, stream: None  # type: ignore[method-assign]


def publish_as_somebody_else(one: Hostile) -> None:
    """A row of the table without its look at the answer: the bystander must see it by himself."""
    one.ask("POST", "/v1/publish", b"from mallory", stream="/bystander")


@pytest.mark.parametrize("sabotage", [None, everybody_may_publish])
def test_the_bystander_notices_what_a_guard_no_longer_stops(
    tmp_path: Path, sabotage: Callable[[], None] | None
) -> None:
    with start_sabotaged(tmp_path / "data", sabotage) as server:
        if sabotage is None:
            check(server, publish_as_somebody_else)
        else:
            with pytest.raises(AssertionError, match="heard_all=False"):
                check(server, publish_as_somebody_else)
