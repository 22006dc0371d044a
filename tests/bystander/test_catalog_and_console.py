"""What a peer can do to others through `/iceberg` and `/console`: a list, beside one who reads both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from penstock.api.auth import Caller, open_keys
from penstock.api.console import FILES
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import Route
from penstock.node import node
from penstock.testing import RunningServer
from tests.api.client import ask, publish
from tests.api.lake_rig import archive
from tests.bystander import catalogue
from tests.bystander.hostile import Hostile
from tests.bystander.sabotaged import start_sabotaged

TABLES = "/iceberg/v1/namespaces/penstock/tables"
EVENTS = f"{TABLES}/events"
PATHS = ("/iceberg/v1/config", TABLES, EVENTS, "/console/", "/console/app.js")


def of_bytes(one: Hostile) -> None:
    """Names, queries and bodies that are none."""
    for path in (f"{TABLES}/%ff", f"{TABLES}/%00", f"{TABLES}/%ED%A0%80", "/console/%ff", "/console/%00.js"):
        assert one.say(one.head("GET", path))[0] in (400, 404), path
    for query in ("parent=%ff", "%=1", "&" * 3_000, "parent=%1F", "snapshots=" + "9" * 4_000):
        assert one.say(one.head("GET", f"/iceberg/v1/namespaces?{query}"))[0] in (200, 400, 414), query
    for body in (b"", b"\xff", b"[" * 20_000, b'{"a":' * 5_000):
        for path in (TABLES, EVENTS, "/iceberg/v1/oauth/tokens", "/iceberg/v1/transactions/commit"):
            assert one.say(one.request("POST", path, body))[0] in (405, 413), (path, body[:20])
    both = one.head("POST", EVENTS, "Content-Length: 3", "Transfer-Encoding: chunked") + b"0\r\n\r\nGET /x"
    assert one.say(both) == [400]


def of_sizes(one: Hostile) -> None:
    """Long names, many levels, large bodies for what takes none."""
    for base in (TABLES, "/console"):
        assert one.say(one.head("GET", f"{base}/" + "a" * 9_000)) == [414]
        assert one.say(one.head("GET", base + "/a" * 2_000))[0] in (400, 404, 414)
        assert one.say(one.head("GET", f"{base}/x", "X-Large: " + "y" * 40_000)) == [431]
    for path in (EVENTS, "/console/"):
        assert one.say(one.head("POST", path, "Content-Length: 999999999999"))[0] in (405, 413)
    one.say(one.head("GET", "/console/app.js", "If-None-Match: " + '"x",' * 5_000))


def of_slowness(one: Hostile) -> None:
    """Half of a request, and answers that nobody reads."""
    for path in PATHS:
        for _ in range(20):
            one.hold(one.head("GET", path)[:-2])
            one.hold(one.head("GET", path) * 50)


def of_order(one: Hostile) -> None:
    """Many in one go, and what a client of another catalog would do first."""
    for path in PATHS:
        assert one.say(one.head("GET", path) * 100, answers=100) == [200] * 100
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for path in (EVENTS, TABLES, "/iceberg/v1/namespaces", f"{EVENTS}/metrics"):
            assert one.ask(method, path, b"{}").status == 405, (method, path)
        assert one.ask(method, "/console/app.js", b"{}").status == 405


def of_closes(one: Hostile) -> None:
    """Connections that end in the middle."""
    for path in PATHS:
        for data in (one.head("GET", path), one.head("GET", path)[:20], one.head("GET", path) * 30):
            for _ in range(10):
                one.cut(data)


def of_names(one: Hostile) -> None:
    """Tables and files of others, and ways out of the folder."""
    for name in ("ledger", "..", "%2e%2e", "..%2f..%2fkeys", "%2Fetc%2Fpasswd", "lake%2Fid", "events%2F..%2Fledger"):
        assert one.ask("GET", f"{TABLES}/{name}").status in (400, 404), name
        assert one.ask("GET", f"/iceberg/v1/namespaces/{name}/tables/events").status in (400, 404), name
    for name in ("../settings.py", "%2e%2e/settings.py", "..%2fsettings.py", "%2Fetc%2Fpasswd", "vendor/../app.js"):
        assert one.ask("GET", f"/console/{name}").status in (400, 404), name
    stranger = open_keys(one.server.data).issue("nobody", subscribe=(">",))
    for path in (TABLES, EVENTS, "/iceberg/v1/config", "/iceberg/v1/other"):
        assert ask(one.server, "GET", path, token=stranger).status == 403, path
        assert ask(one.server, "GET", path, token=None).status == 401, path


CATALOGUE = (of_bytes, of_sizes, of_slowness, of_order, of_closes, of_names)


@contextmanager
def innocent(server: RunningServer) -> Iterator[Callable[[int], None]]:
    """One who reads the table's metadata and the console's files: always the same."""
    token = open_keys(server.data).issue("analyst", grants=("export",))
    table = ask(server, "GET", EVENTS, token=token)
    assert table.json["metadata"]["current-snapshot-id"]

    def check(turn: int) -> None:
        assert ask(server, "GET", EVENTS, token=token).json == table.json, turn
        shown = ask(server, "GET", "/console/app.js", token=None)
        assert (shown.status, shown.body) == (200, (FILES / "app.js").read_bytes()), turn

    yield check


def attack(folder: Path, sabotage: Callable[[], None] | None, *rows: Callable[[Hostile], None]) -> None:
    (folder / "lake").mkdir()
    with start_sabotaged(folder / "data", sabotage, lake_url=folder / "lake") as server:
        publish(server, "/orders", b"one")
        archive(server, folder / "lake")
        with Hostile(server, "/mallory", "export") as hostile:
            catalogue.run(server, innocent, [partial(_do, hostile, row) for row in rows])


def _do(hostile: Hostile, row: Callable[[Hostile], None], server: RunningServer) -> None:
    row(hostile)


def test_nobody_notices_a_hostile_client_of_the_catalog_and_the_console(tmp_path: Path) -> None:
    attack(tmp_path, None, *CATALOGUE)


def everybody_may_export() -> None:
    """Grants are not looked at."""
    Caller.check_grant = lambda self, grant: None  # type: ignore[method-assign, assignment]


def any_file_is_served() -> None:
    """The console's files are looked for when they are asked for."""
    honest = node.console_routes

    def serve(request: Request) -> Response:
        return Response(200, (FILES / request.captures[0]).read_bytes())

    node.console_routes = lambda: [*honest(), Route("GET", "/console/*", serve)]  # type: ignore[assignment]


@pytest.mark.parametrize("sabotage", [everybody_may_export, any_file_is_served])
def test_the_list_notices_a_door_that_lacks_a_guard(tmp_path: Path, sabotage: Callable[[], None]) -> None:
    with pytest.raises(AssertionError, match="200"):
        attack(tmp_path, sabotage, of_names)
