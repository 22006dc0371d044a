"""`./penstock lake` and `lake sql`: what they show is right, what they print works, and nothing else can be read."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.api.auth import open_keys
from penstock.cli.lake_readers import NOT_RUN, READERS
from penstock.iceberg import sql_process
from penstock.iceberg.sql import SqlLimits, SqlRefused, SqlTooLarge, ask
from penstock.testing import RunningServer, S3Server, start_server
from penstock.wire.table_columns import DELIVERY_OUTCOMES, TABLES, outcomes_sql
from tests.api.lake_rig import server_with_lake
from tests.lake_readers import DuckDb, start_duckdb
from tests.lake_shop import ORDERS, PAGE, QUESTIONS, make_lake, shown, write_log
from tests.test_layers import venv_without


class Shop:
    """A server with the shop's lake, and somebody who may read it."""

    def __init__(self, server: RunningServer, place: str) -> None:
        self.server, self.place, self.tables = server, place, make_lake(server, place)
        self.token = open_keys(server.data).issue("analyst", grants=("export",))
        self.environment = {**os.environ, "PENSTOCK_URL": server.url, "PENSTOCK_TOKEN": self.token}

    def run(self, *arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock", "lake", *arguments]
        return subprocess.run(
            command, env=self.environment, input=input, capture_output=True, text=True, check=False, timeout=120
        )

    def answer(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    write_log(folder / "data")
    with server_with_lake(folder) as server:
        yield Shop(server, str(folder / "lake"))


@pytest.fixture(scope="module")
def duckdb(shop: Shop) -> Iterator[DuckDb]:
    with start_duckdb() as database:
        database.attach(shop.server.url, shop.token)
        database.sql(f"CREATE TEMP VIEW {DELIVERY_OUTCOMES} AS {outcomes_sql('lake.penstock.')}")
        database.sql("USE lake.penstock")
        yield database


# ── where it is, and how others read it ───────────────────────────────────────────────────────────


def test_the_tables_are_shown_with_their_sizes(shop: Shop) -> None:
    told = json.loads(shop.answer("--json"))

    assert (told["lake"], told["catalog"]) == (shop.place, f"{shop.server.url}/iceberg")
    tables = {table["name"]: table for table in told["tables"]}
    assert sorted(tables) == sorted(TABLES)
    counts = ask(shop.place, shop.tables, "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM deliveries)")
    assert [tables["events"]["rows"], tables["deliveries"]["rows"]] == list(counts.rows()[0].values())
    files = list(Path(shop.place).glob("events/data/*/*.parquet"))
    assert (tables["events"]["files"], tables["events"]["bytes"]) == (len(files), sum(map(os.path.getsize, files)))
    assert tables["unreadable"]["rows"] == 1


def test_the_overview_has_lines_for_every_reader_and_no_token(shop: Shop) -> None:
    told = shop.answer()

    assert shop.place in told
    assert all(f"── {reader} " in told for reader in READERS)
    assert told.count(f"{shop.server.url}/iceberg") >= len(READERS)
    assert shop.token not in told
    for reader in READERS:
        lines = shop.answer("--for", reader)
        assert "PENSTOCK_TOKEN" in lines
        assert ("not run by Penstock's tests" in lines) is (reader in NOT_RUN)
        assert "{" not in lines.replace("${ENV:PENSTOCK_TOKEN}", "").replace("{name: value", "")
    assert shop.run("--for", "excel").returncode == 2


def test_the_lines_for_polars_and_duckdb_work_as_they_are(shop: Shop) -> None:
    told = subprocess.run(
        [sys.executable, "-c", shop.answer("--for", "polars")],
        env={**shop.environment, "POLARS_ICEBERG_PLANNER": "pyiceberg"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "/orders" in told.stdout

    shell = shop.answer("--for", "duckdb").replace("$PENSTOCK_TOKEN", shop.token)
    found = re.fullmatch(r'duckdb -cmd "(.*)"\n', shell, re.DOTALL)
    assert found
    with start_duckdb() as fresh:
        *preparing, question = [one.strip() for one in found[1].split(";") if one.strip()]
        for statement in preparing[2:]:  # its extensions are there already
            fresh.sql(statement)
        assert ["/orders", ORDERS + 1] in fresh.sql(question)  # and the one that says that the stream was made
        assert fresh.sql(f"SELECT state FROM {DELIVERY_OUTCOMES} WHERE recipient = 'alice'") == [["acked"]]


# ── questions ─────────────────────────────────────────────────────────────────────────────────────


def test_there_are_ten_questions_and_the_view_is_shown() -> None:
    assert len(QUESTIONS) == 10
    assert f"CREATE VIEW {DELIVERY_OUTCOMES} AS\n{outcomes_sql()};" in PAGE.read_text()


def test_a_position_confirms_in_the_view(shop: Shop) -> None:
    question = "SELECT d.state, c.state AS told FROM deliveries d JOIN Delivery_Outcomes c USING (recipient)"
    rows = ask(shop.place, shop.tables, f"{question} WHERE recipient = 'alice'").rows()
    assert rows == [{"state": "sent", "told": "acked"}]


@pytest.mark.parametrize(("title", "sql", "expected"), QUESTIONS, ids=[title for title, *_ in QUESTIONS])
def test_the_documented_questions_have_the_documented_answers(
    shop: Shop, duckdb: DuckDb, tmp_path: Path, title: str, sql: str, expected: str
) -> None:
    assert shop.answer("sql", sql) == expected, title
    assert shown(duckdb.table(sql, tmp_path)) == expected, f"{title}, by the catalog"


def test_answers_for_programs(shop: Shop) -> None:
    question = "SELECT id, stream, time, body, expires_at FROM events WHERE index = 0 AND id IN (6, 12) ORDER BY id"
    expected = [
        [6, "/news", "2026-10-16T12:00:00Z", "{}", None],
        [12, "/invoices", "2026-11-15T12:00:01Z", "{}", None],
    ]

    lines = [json.loads(line) for line in shop.answer("sql", question, "--json").splitlines()]
    table = list(csv.reader(io.StringIO(shop.answer("sql", question, "--csv"))))

    assert [list(line.values()) for line in lines] == expected
    assert table[0] == ["id", "stream", "time", "body", "expires_at"]
    assert table[1:] == [["" if value is None else str(value) for value in row] for row in expected]
    sums = "SELECT sum(id) AS whole, 1.5 AS part FROM events WHERE id < 10"
    assert shop.run("sql", "-", "--json", input=sums).stdout == '{"whole":45,"part":"1.5"}\n'


def test_more_rows_than_are_wanted_are_cut_and_that_is_said(shop: Shop) -> None:
    done = shop.run("sql", "SELECT id FROM events ORDER BY id", "--rows", "2", "--csv")

    assert done.stdout == "id\n1\n2\n"
    assert "more than 2 rows" in done.stderr
    assert shop.run("sql", "SELECT id FROM events WHERE id < 3", "--rows", "2").stderr == ""


# ── nothing beyond the lake ───────────────────────────────────────────────────────────────────────

ATTEMPTS = [
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_blob('/proc/self/environ')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM glob('/**')",
    "SELECT * FROM read_parquet('{beside}')",
    "SELECT * FROM read_json('http://127.0.0.1:{port}/health')",
    "SELECT * FROM read_parquet('s3://lake/x')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT getenv('PENSTOCK_TOKEN')",
    "SELECT * FROM question",
    "SELECT * FROM query('COPY (SELECT 1) TO ''{out}''')",
    "INSTALL httpfs",
    "LOAD '{beside}'",
    "ATTACH '{out}' AS mine",
    "COPY (SELECT 1) TO '{out}'",
    "EXPORT DATABASE '{out}'",
    "CREATE TABLE mine AS SELECT 1",
    "CREATE OR REPLACE VIEW events AS SELECT 1",
    "INSERT INTO events VALUES (1)",
    "DELETE FROM events",
    "SET memory_limit = '64GB'",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "SELECT 1; SELECT 2",
    "",
    "no SQL at all",
    "SELECT 'open",
]


@pytest.mark.parametrize("sql", ATTEMPTS)
def test_nothing_else_can_be_read_or_written(shop: Shop, sql: str, tmp_path: Path) -> None:
    beside = Path(shop.place) / "events/beside.parquet"  # within the lake's folder, and named by no table
    beside.write_bytes(next(Path(shop.place).glob("events/data/*/*.parquet")).read_bytes())
    before = sorted(Path(shop.place).rglob("*"))
    try:
        with pytest.raises(SqlRefused) as error:
            ask(shop.place, shop.tables, sql.format(beside=beside, out=tmp_path / "out", port=shop.server.port))
        assert "root:" not in str(error.value)
        assert list(tmp_path.iterdir()) == []
        assert sorted(Path(shop.place).rglob("*")) == before
    finally:
        beside.unlink()


def test_the_same_attempts_succeed_where_nothing_is_locked(tmp_path: Path) -> None:
    """So they are attempts: a plain DuckDB does all of this."""
    with start_duckdb() as free:
        assert "root:" in free.sql("SELECT content FROM read_text('/etc/passwd')")[0][0]
        free.sql(f"COPY (SELECT 1) TO '{tmp_path / 'out'}'")
        assert (tmp_path / "out").exists()


def test_the_process_can_write_no_file_whatever_duckdb_does(tmp_path: Path) -> None:
    code = (
        "from penstock.iceberg import sql_process as p; from penstock.iceberg.sql import SqlQuestion\n"
        "p._bound(SqlQuestion('', {}, '', 1, 64, 1, 5.0, 1))\n"
        f"import pathlib; pathlib.Path({str(tmp_path / 'out')!r}).write_text('x' * 100)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert (tmp_path / "out").stat().st_size == 0
    assert sql_process.BATCH_ROWS


def test_questions_that_want_too_much_end(shop: Shop) -> None:
    for question, limits, why in (
        ("SELECT count(*) FROM range(100000000000) a, range(1000) b", SqlLimits(seconds=2), "2 s"),
        ("SELECT list(a) FROM range(1000000000) t(a)", SqlLimits(memory_mib=200), "memory"),
        ("SELECT repeat('x', 1000000) FROM range(1000)", SqlLimits(answer_mib=1), "answer has more than 1 MiB"),
    ):
        with pytest.raises(SqlTooLarge, match=why):
            ask(shop.place, shop.tables, question, limits)
    assert ask(shop.place, shop.tables, "SELECT count(*) AS n FROM unreadable").rows() == [{"n": 1}]


def test_without_duckdb_one_line_says_how_to_get_it(shop: Shop, tmp_path: Path) -> None:
    python = venv_without(tmp_path / "venv", "duckdb", "_duckdb", "adbc_driver_duckdb")
    command = [python, "-m", "penstock", "lake", "sql", "SELECT 1"]
    done = subprocess.run(command, env=shop.environment, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("penstock: duckdb_missing: ")
    assert "./penstock install sql" in done.stderr
    assert done.stderr.count("\n") == 1


def test_mistakes_are_one_line(shop: Shop) -> None:
    done = shop.run("sql", "SELECT nothing FROM events")

    assert done.returncode == 2
    assert done.stderr.startswith("penstock: sql_refused: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("questions", [QUESTIONS[:3], pytest.param(QUESTIONS, marks=pytest.mark.long)], ids=len)
def test_a_lake_on_s3_is_asked_in_the_same_words(
    tmp_path: Path, s3: S3Server, questions: Sequence[tuple[str, str, str]]
) -> None:
    place = "s3://lake/shop"
    write_log(tmp_path / "data")
    with start_server(tmp_path / "data", environment=s3.environment, lake_url=place) as server:
        shop = Shop(server, place)
        assert shop.answer("sql", questions[0][1]) == questions[0][2]
        for title, sql, expected in questions[1:]:
            assert shown(ask(place, shop.tables, sql).table) == expected, title
        with pytest.raises(SqlRefused):
            ask(place, shop.tables, "SELECT * FROM read_text('/etc/passwd'), events")
