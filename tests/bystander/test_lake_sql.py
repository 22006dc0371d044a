"""Questions in SQL over HTTP: what a question gets, and what a hostile one costs: its own process, and nobody else."""

from __future__ import annotations

import http.client
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from penstock.api.auth import open_keys
from penstock.api.console import FILES
from penstock.engines.lake.bounded_sql import LakeQuestions
from penstock.limits import SQL_AT_ONCE, SQL_ROWS, SQL_SECONDS
from penstock.testing import RunningServer, start_server, wait_until
from penstock.wire.table_columns import DELIVERY_OUTCOMES, TABLES
from tests.api.client import Reply, ask
from tests.bystander.hostile import Hostile
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside
from tests.lake_shop import ORDERS, make_lake, write_log

PATH = "/v1/lake/sql"
ENDLESS = "WITH RECURSIVE t(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM t) SELECT count(*) FROM t WHERE a < 0"
WORK = "SELECT sum(hash(range)) AS n FROM range(300000000)"
Sabotage = Callable[[], None]


@contextmanager
def sql_server(folder: Path, sabotage: Sabotage | None = None) -> Iterator[RunningServer]:
    """A server with the shop's lake."""
    lake = folder / "lake"
    lake.mkdir()
    write_log(folder / "data")
    with start_sabotaged(folder / "data", sabotage, lake_url=lake) as server:
        make_lake(server, str(lake))
        yield server


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with sql_server(tmp_path_factory.mktemp("sql")) as server:
        yield server


def query(server: RunningServer, text: str) -> Reply:
    """Ask, and wait for longer than a question may take."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=2 * SQL_SECONDS)
    with closing(connection):
        headers = {"Authorization": f"Bearer {server.admin_token}"}
        connection.request("POST", PATH, json.dumps({"query": text}), headers)
        answer = connection.getresponse()
        return Reply(answer.status, {}, answer.read())


def processes(server: RunningServer) -> int:
    """Questions that a process of the server is answering now."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    found = 0
    for child in children:
        try:
            found += b"sql_process" in Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
    return found


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


def test_a_question_is_answered_with_names_types_and_rows(shop: RunningServer) -> None:
    offer = ask(shop, "GET", PATH).json
    assert (offer["lake"], offer["installed"], offer["rows"]) == (True, True, SQL_ROWS)
    assert offer["tables"] == sorted((*TABLES, DELIVERY_OUTCOMES))

    counted = query(
        shop,
        "SELECT stream, count(*) AS n, max(time) FROM events WHERE kind = 'data' AND NOT starts_with(stream, '/_')"
        " GROUP BY 1 ORDER BY n DESC LIMIT 1",
    )
    assert counted.status == 200, counted.body
    assert counted.json["columns"][:2] == [{"name": "stream", "type": "string"}, {"name": "n", "type": "int64"}]
    assert counted.json["rows"] == [["/orders", ORDERS, "2026-11-15T12:00:25.415000Z"]]
    assert counted.json["cut"] is False

    kinds = query(
        shop,
        "SELECT 1 AS a, 2 AS a, NULL, 'nan'::DOUBLE, 1.5::DECIMAL(3,1), sum(id), 9007199254740993, [1, 2], {'k': 'v'},"
        " '\\xFF\\x41'::BLOB, DATE '2026-11-15', '<b>' FROM events WHERE id < 10",
    )
    row = [1, 2, None, None, "1.5", 45, "9007199254740993", [1, 2], {"k": "v"}, "�A", "2026-11-15", "<b>"]
    assert kinds.json["rows"] == [row]

    many = query(shop, f"SELECT a.range FROM range({SQL_ROWS + 1}) a").json
    assert (len(many["rows"]), many["cut"]) == (SQL_ROWS, True)


def test_the_consoles_three_examples_have_answers(shop: RunningServer) -> None:
    examples = re.findall(r"`(SELECT .*?)`", (FILES / "sql.js").read_text(), re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        reply = query(shop, example)
        assert reply.status == 200, reply.body
        assert reply.json["rows"], example


def test_only_an_administrator_may_ask(shop: RunningServer) -> None:
    analyst = open_keys(shop.data).issue("analyst", grants=("export",))
    body = b'{"query":"SELECT 1"}'

    assert ask(shop, "POST", PATH, body, token=None).status == 401
    assert ask(shop, "POST", PATH, body, token=analyst).status == 403
    assert ask(shop, "GET", PATH, token=analyst).status == 403
    for wrong in (b"", b"{}", b'{"query":7}', b'{"query":"SELECT 1","rows":9}', b"[]", b"\xff"):
        assert ask(shop, "POST", PATH, wrong).status == 400


def test_without_a_lake_it_is_said_what_to_set(tmp_path: Path) -> None:
    with start_server(tmp_path / "data") as server:
        assert ask(server, "GET", PATH).json["lake"] is False
        reply = query(server, "SELECT 1")
        assert (reply.status, reply.code) == (404, "lake_unknown")
        assert "lake.url" in reply.json["error"]["remedy"]


def duckdb_is_not_installed() -> None:
    sys.modules["duckdb"] = None  # type: ignore[assignment]


def test_without_duckdb_it_is_said_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    with start_sabotaged(tmp_path / "data", duckdb_is_not_installed, lake_url=tmp_path / "lake") as server:
        assert ask(server, "GET", PATH).json["installed"] is False
        reply = query(server, "SELECT 1")
        assert (reply.status, reply.code) == (501, "duckdb_missing")
        assert "./penstock install sql" in reply.json["error"]["remedy"]


# ── what a hostile question gets ──────────────────────────────────────────────────────────────────

REFUSED = (
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('{data}/admin.token')",
    "SELECT * FROM read_json('http://127.0.0.1:{port}/health')",
    "COPY (SELECT 1) TO '{data}/out'",
    "ATTACH '{data}/penstock.db' AS mine",
    "INSTALL httpfs",
    "SELECT getenv('HOME')",
    "SELECT TIMESTAMP 'infinity'",
    "SELECT DATE '10000-01-01'",
    "\0",
)
TOO_MUCH = (
    "SELECT list(a) FROM range(1000000000) t(a)",
    "SELECT repeat('x', 1000000) FROM range(1000)",
)


def hostile_questions(server: RunningServer) -> None:
    """Each is refused by name, and the next honest one is answered."""
    for text in REFUSED:
        reply = query(server, text.format(data=server.data, port=server.port))
        assert reply.status == 400, (text, reply.body)
        assert reply.code == "sql_refused"
        assert b"root:" not in reply.body
        assert server.admin_token.encode() not in reply.body
    assert not (server.data / "out").exists()
    for text in TOO_MUCH:
        reply = query(server, text)
        assert (reply.status, reply.code) == (413, "sql_too_large"), (text, reply.body)
    assert query(server, WORK).status in (200, 413)  # on a busy machine it takes longer than it may
    count = query(server, "SELECT count(*) FROM events WHERE stream = '/orders' AND kind = 'data'")
    assert count.json["rows"] == [[ORDERS]]


def check_beside_questions(server: RunningServer, attack: Callable[[RunningServer], None]) -> None:
    with beside(server) as bystander:
        attack(server)
    bystander.noticed_nothing()
    assert "Traceback" not in server.log_text()


def test_hostile_questions_get_an_error_and_nobody_notices(shop: RunningServer) -> None:
    check_beside_questions(shop, hostile_questions)


def answer_in_the_server_itself() -> None:
    """The sabotage: no process of its own."""

    async def ask_here(self, text):
        import duckdb

        rows = duckdb.connect(config={"threads": 1}).execute(text).fetchall()
        return json.dumps({"rows": [[str(value) for value in row] for row in rows]}).encode()

    LakeQuestions.ask = ask_here  # type: ignore[method-assign]


def test_the_bystander_notices_a_question_that_is_answered_in_the_server(tmp_path: Path) -> None:
    with sql_server(tmp_path, answer_in_the_server_itself) as server:
        with pytest.raises(AssertionError, match="loop_cpu_ms"):
            check_beside_questions(server, lambda server: query(server, WORK))
        with pytest.raises(AssertionError, match="passwd"):
            hostile_questions(server)


# ── a client that goes away ───────────────────────────────────────────────────────────────────────


def check_that_leaving_ends_questions(server: RunningServer, within: float = 60) -> None:
    """As many endless questions as there may be; one more is refused until those who asked have left."""
    body = json.dumps({"query": ENDLESS}).encode()
    with Hostile(server, "/mallory") as one:
        one.token = server.admin_token
        for _ in range(SQL_AT_ONCE):
            one.hold(one.request("POST", PATH, body))
        wait_until(lambda: processes(server) == SQL_AT_ONCE, within=60)
        refused = query(server, "SELECT 1")
        assert (refused.status, refused.code) == (503, "busy"), refused.body
    wait_until(lambda: processes(server) == 0, within=within)
    # The server takes a moment longer to hear of the end of a process, and refuses until then.
    answer = wait_until(lambda: (one := query(server, "SELECT 1 AS one")).status == 200 and one, within=within)
    assert answer.json["rows"] == [[1]]


def test_a_question_ends_when_its_client_leaves(shop: RunningServer) -> None:
    check_that_leaving_ends_questions(shop)


def let_questions_go_on() -> None:
    """The sabotage: nobody ends the process of who has left."""

    async def ask_and_forget(*arguments):
        import asyncio

        return await asyncio.shield(asyncio.ensure_future(honest(*arguments)))

    from penstock.engines.lake import bounded_sql as lake_sql

    honest, lake_sql.ask_json = lake_sql.ask_json, ask_and_forget


def test_a_process_that_goes_on_is_noticed(tmp_path: Path) -> None:
    with sql_server(tmp_path, let_questions_go_on) as server, pytest.raises(AssertionError):
        check_that_leaving_ends_questions(server, within=1)
