"""Typed tables: JSON bodies become rows, once, whatever is cut off; what does not fit is named. No JVM is needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.api.auth import open_keys
from penstock.api.v1 import typed_tables
from penstock.client.http import ApiError
from penstock.core.registry import Change, Registry
from penstock.core.typed_tables import decode_tables
from penstock.iceberg.files import PlannedFile, WrittenFile, read_batches
from penstock.iceberg.sql import ask as ask_sql
from penstock.limits import TYPED_TABLES
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.commit import Faults, TableChange, Turn
from penstock.pipeline.jobs import Workplace, compact, erase, typed
from penstock.pipeline.lake import LakeHole, open_lake, record_of
from penstock.pipeline.lake_identity import bind
from penstock.pipeline.typed_rows import may_be_in
from penstock.testing import RunningServer
from penstock.wire.lake_files import LakeFile
from penstock.wire.typed_tables import TypedTable
from tests.api.client import ask, declare_at_once, publish
from tests.api.lake_rig import server_with_lake
from tests.bystander.sabotaged import start_sabotaged
from tests.lake_grep import files_with
from tests.lake_readers import DuckDb, by_polars, by_pyiceberg, open_catalog, sorted_rows, start_duckdb
from tests.pipeline.by_hand import Crash, CrashAtPoint, archive_turn, make_here

_numbers = count(1)
COLUMNS = {"item": "string", "price": "decimal(10,2)", "pieces": "int"}


class World:
    """A server beside its lake, and the streams of a shop, which no other test has."""

    def __init__(self, server: RunningServer, lake: Path) -> None:
        self.server, self.folder = server, lake
        self.client, self.lake = PipelineClient(server.url, server.admin_token), open_lake(lake)
        bind(self.client, self.lake)
        self.name = f"orders_{next(_numbers)}"
        self.catalog = open_catalog(server.url, server.admin_token)

    def declare(self, **columns: Any) -> dict[str, Any]:
        declared = {"streams": f"/{self.name}/*", "columns": columns or COLUMNS}
        return self.client.call("PUT", f"/v1/lake/tables/{self.name}", body=json.dumps(declared).encode())

    def order(self, *bodies: Any, place: str = "eu") -> list[int]:
        """Publish orders; their ids."""
        made = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in bodies]
        return [publish(self.server, f"/{self.name}/{place}", one).json["id"] for one in made]

    def place(self, faults: Faults | None = None) -> Workplace:
        """Of a driver that has just been started."""
        return make_here(self.client, open_lake(self.folder), faults)

    def archive(self) -> int:
        return archive_turn(self.client, self.lake)

    def work(self, faults: Faults | None = None) -> None:
        """Archive, and make the rows of all of it."""
        self.archive()
        while typed.run(self.place(faults), {}).more:
            pass

    @property
    def table(self) -> TypedTable:
        return next(one for one in self.client.typed_tables() if one.name == self.name)

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        """The rows of the table as pyiceberg reads them."""
        return sorted(sorted_rows(by_pyiceberg(self.catalog, self.name), list(names or ("id", "item"))))

    def unreadable(self) -> list[tuple[Any, ...]]:
        """What the table has said that it cannot read."""
        found = pa.Table.from_batches(
            [batch for one in self.files("unreadable") for batch in read_batches(self.lake.store, one.location)]
            or [pa.RecordBatch.from_pydict({name: [] for name in ("typed_table", "entry", "path", "reason")})]
        ).to_pylist()
        return sorted((one["entry"], one["path"], one["reason"]) for one in found if one["typed_table"] == self.name)

    def files(self, table: str) -> list[PlannedFile]:
        return open_lake(self.folder).files(table, self.client.get(f"lake/{record_of(table)}").value)


@pytest.fixture(scope="module")
def beside_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Path]]:
    folder = tmp_path_factory.mktemp("typed")
    with server_with_lake(folder) as server:
        yield server, folder / "lake"


@pytest.fixture
def world(beside_lake: tuple[RunningServer, Path]) -> Iterator[World]:
    made = World(*beside_lake)
    yield made
    ask(made.server, "DELETE", f"/v1/lake/tables/{made.name}")


@pytest.fixture(scope="module")
def duckdb(beside_lake: tuple[RunningServer, Path]) -> Iterator[DuckDb]:
    with start_duckdb() as database:
        database.attach(beside_lake[0].url, beside_lake[0].admin_token)
        yield database


# ── rows ───────────────────────────────────────────────────────────────────────────────────────────


def test_every_reader_sees_the_same_rows_and_columns_that_were_added_later(
    world: World, duckdb: DuckDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    world.declare()
    ids = world.order({"item": "tea", "price": 4.5, "pieces": 2, "more": "is not looked at"}, {"item": "jam"})
    world.order({"item": "tea"}, place="eu/below")  # no pattern of the table's matches it
    publish(world.server, "/elsewhere", b"{}")
    world.work()
    # When the columns become wider, and one is added that is elsewhere in the body
    world.declare(item="string", price="decimal(20,2)", pieces="long", city={"type": "string", "path": "to.city"})
    world.work()
    assert by_pyiceberg(world.catalog, world.name).column_names[-1] == "city", "it is there before any row has it"
    ids += world.order({"item": "pot", "price": "123456789012.25", "pieces": 2**40, "to": {"city": "Bern"}})
    world.work()
    compacted = compact.run(world.place(), {"all": ""})

    names = ["id", "item", "price", "pieces", "city"]
    expected = [
        (ids[0], "tea", Decimal("4.50"), 2, None),
        (ids[1], "jam", None, None, None),
        (ids[2], "pot", Decimal("123456789012.25"), 2**40, "Bern"),
    ]
    table = f"lake.penstock.{world.name}"
    location = world.client.get(f"lake/{world.table.key}").value["tables"][world.table.key]
    for read in (
        by_pyiceberg(world.catalog, world.name),
        by_polars(world.catalog, world.name),
        duckdb.table(f"SELECT * FROM {table}", tmp_path),
        ask_sql(str(world.folder), {world.name: location}, f"FROM {world.name}").table,
    ):
        assert sorted(sorted_rows(read, names)) == expected
    assert (compacted.data["after"] < compacted.data["before"], len(world.files(world.table.key))) == (True, 1)
    assert world.unreadable() == []


def test_what_does_not_fit_is_named_with_its_path_and_stops_nothing(world: World) -> None:
    world.declare(item="string", city={"type": "string", "path": "to.city"})
    ids = world.order({"item": "tea"}, b"no JSON", {"item": 7}, {"to": "Bern"}, {"to": {"city": ["Bern"]}})

    world.work()

    assert world.rows() == [(ids[0], "tea")]
    assert world.unreadable() == [
        (ids[1], "", "is no JSON"),
        (ids[2], "item", "is a number, not a string"),
        (ids[3], "to", "is a string, not an object"),
        (ids[4], "to.city", "is an array, not a string"),
    ]


def test_an_empty_table_is_there_for_readers_all_the_same(world: World) -> None:
    world.declare()
    world.work()

    assert by_pyiceberg(world.catalog, world.name).column_names == ["id", "stream", "time", *COLUMNS]
    assert world.rows() == []


def test_a_table_that_is_declared_late_gets_the_history_bit_by_bit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [id for number in range(6) for id in world.order({"item": str(number)}, b"-")]
    world.archive()
    behind = world.declare()["lag"]
    monkeypatch.setattr(typed, "TURN_IDS", max(1, world.archive() // 5))

    outcomes = [typed.run(world.place(), {})]
    seen = [ask(world.server, "GET", f"/v1/lake/tables/{world.name}").json]
    while outcomes[-1].more:
        outcomes.append(typed.run(world.place(), {}))
        seen.append(ask(world.server, "GET", f"/v1/lake/tables/{world.name}").json)

    assert len(outcomes) >= 5
    assert [one["lag"] for one in seen] == sorted((one["lag"] for one in seen), reverse=True)
    assert behind > seen[0]["lag"] > seen[-1]["lag"] == 0
    assert f"{world.name} 0 rows up to id" in outcomes[0].words
    assert [id for id, _ in world.rows()] == ids[::2]
    assert [id for id, *_ in world.unreadable()] == ids[1::2]


def test_files_without_the_streams_of_a_table_are_not_opened() -> None:
    def file(least: str | None, most: str | None) -> PlannedFile:
        return PlannedFile(LakeFile(0, 9, "2026-11-15", "events"), "", 1, 1, {"stream": (least, most)})

    for streams, least, most, expected in (
        (("/orders/*",), "/orders/eu", "/orders/us", True),
        (("/orders/*",), "/a", "/orders/eu", True),
        (("/orders/*",), "/a", "/orders", False),
        (("/orders/*",), "/p", "/z", False),
        (("/orders",), "/orders/eu", "/z", True),  # it has what begins so: looked at, and nothing found
        (("/a", "/x/>"), "/orders", "/x/1", True),
        ((">",), "/p", "/z", True),
        (("/orders",), None, None, True),
    ):
        assert may_be_in(streams, file(least, most)) is expected, (streams, least, most)


# ── cut off, overtaken ─────────────────────────────────────────────────────────────────────────────


def crash_everywhere(world: World) -> tuple[list[int], list[int]]:
    """Work that is cut off at every point it has, each time at what is new then; the ids that fit, and the others."""
    fitting, others, crashes = [], [], 0
    world.declare(item="string")
    world.work()  # tables of earlier tests are removed, which has points of its own
    for number in count(1):
        fitting += world.order({"item": str(number)})
        others += world.order(b"-")
        world.archive()
        faults = CrashAtPoint(number)
        try:
            typed.run(world.place(faults), {})
        except Crash:
            crashes += 1
        # Declared while a turn may be half done: that turn is redone with the columns it began with.
        world.declare(**{f"c{one}": "int" for one in range(number)}, item="string")
        world.work()
        if faults.left > 0:
            break
    assert crashes == number - 1 == 13, "an intent, four points of either commit, and of the end of a turn in between"
    return fitting, others


def tells_without_a_mark(
    place: Workplace, turn: Turn, table: TypedTable, upto: int, misfits: Sequence[WrittenFile]
) -> None:
    """The sabotage: nothing says that this was told already."""
    beside = place.turn("ledger")
    beside.replace([TableChange("unreadable", misfits)])
    beside.end()


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotage: nothing marks what was told"])
def test_a_turn_that_is_cut_off_anywhere_neither_loses_nor_doubles_a_row(
    world: World, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    if sabotaged:
        monkeypatch.setattr(typed, "_tell_misfits", tells_without_a_mark)

    fitting, others = crash_everywhere(world)

    assert [id for id, _ in world.rows()] == fitting
    assert ([id for id, *_ in world.unreadable()] == others) is not sabotaged
    assert {id for id, *_ in world.unreadable()} == set(others)
    bind(world.client, open_lake(world.folder))  # nothing that was left behind makes the lake a stranger's


class Meanwhile(Faults):
    """Something happens when a driver comes to its first data files."""

    def __init__(self, happens: Any) -> None:
        self._happens: Any = happens

    def at(self, point: str) -> None:
        if point == "after the data files" and self._happens:
            happens, self._happens = self._happens, None
            happens()


def test_a_driver_that_was_overtaken_adds_nothing(world: World) -> None:
    world.declare()
    ids = world.order({"item": "tea"}, b"-")
    world.archive()

    with pytest.raises(RecordChanged):
        typed.run(world.place(Meanwhile(lambda: typed.run(world.place(), {}))), {})

    assert world.rows() == [(ids[0], "tea")]
    assert [id for id, *_ in world.unreadable()] == ids[1:]


# ── deleted ────────────────────────────────────────────────────────────────────────────────────────


def test_a_deleted_table_is_gone_for_readers_at_once_and_from_the_store_soon(world: World) -> None:
    world.declare()
    ids = world.order({"item": "tea"}, {"item": 7})
    world.work()
    key = world.table.key

    assert ask(world.server, "DELETE", f"/v1/lake/tables/{world.name}").status == 204

    assert world.name not in [name for _, name in world.catalog.list_tables("penstock")]
    assert ask(world.server, "GET", f"/v1/lake/tables/{world.name}").status == 404
    # When it is declared anew, with other columns, before the pipeline has removed anything
    world.declare(item="long")
    world.work()
    # Then nothing is left of the first, and the second has the history
    assert [one.path for one in world.lake.store.list(key)] == []
    assert world.client.get(f"lake/{key}").version == 0
    assert world.rows() == [(ids[1], 7)]
    assert world.unreadable() == [(ids[0], "item", "is a string, not a whole number")]


def test_a_driver_that_works_on_a_table_while_it_is_removed_leaves_nothing(world: World) -> None:
    world.declare()
    world.order({"item": "tea"}, {"item": 7})
    world.archive()
    key = world.table.key

    def delete() -> None:
        assert ask(world.server, "DELETE", f"/v1/lake/tables/{world.name}").status == 204
        typed.run(world.place(), {})

    with pytest.raises(RecordChanged):
        typed.run(world.place(Meanwhile(delete)), {})
    task = typed._task(
        world.place(), TypedTable.read({**vars_of(world), "id": key[-8:]}), world.files("events")[-1], WHOLE
    )
    task.run()  # what a task of that driver writes still later
    compact.run(world.place(), {})

    assert world.unreadable() == []
    assert [one.path for one in world.lake.store.list("typed") if key in one.path] == []


def cut_off_a_removal(world: World, number: int) -> str:
    """Delete a table that has rows, and end its removal at its *number*-th point; the table's key."""
    world.declare()
    world.order({"item": "tea"}, {"item": 7})
    world.work()
    key = world.table.key
    assert ask(world.server, "DELETE", f"/v1/lake/tables/{world.name}").status == 204
    with pytest.raises(Crash):
        typed.run(world.place(CrashAtPoint(number)), {})
    return key


def test_a_removal_that_is_cut_off_holds_up_no_other_job(world: World) -> None:
    # Where it begins to change `unreadable`, and has; and where the files are deleted, and the record is given back
    for number in (1, 8, 9, 12):
        key = cut_off_a_removal(world, number)
        # Then compaction, and a driver that starts, find nothing wrong before anybody removes the rest
        compact.run(world.place(), {})
        bind(world.client, open_lake(world.folder))
        # and the next run leaves nothing of it
        typed.run(world.place(), {})
        assert (list(world.lake.store.list(key)), world.client.get(f"lake/{key}").version) == ([], 0)


def test_sabotage_a_removal_whose_record_names_files_that_are_gone_holds_up_compaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turn, "point_at_none", lambda turn: None)
    cut_off_a_removal(world, 9)

    with pytest.raises(LakeHole):
        compact.run(world.place(), {})


WHOLE = typed.Intent(0, 2**40, ())


def vars_of(world: World) -> dict[str, Any]:
    columns = [{"name": name, "type": type, "path": name} for name, type in COLUMNS.items()]
    return {"name": world.name, "streams": [f"/{world.name}/*"], "columns": columns}


# ── erased ─────────────────────────────────────────────────────────────────────────────────────────


def grep(world: World, secrets: list[bytes]) -> list[str]:
    return files_with(world.lake.store, secrets, f"typed/{world.table.key.removeprefix('typed/')}")


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotage: typed tables are left out"])
def test_the_bytes_of_what_was_erased_are_in_no_typed_table(
    world: World, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    """Neither in data files, nor in the bounds of manifests, wherever the erasing was cut off before."""
    world.declare()
    ids = world.order({"item": "hidden-1"}, {"item": "open"}, {"item": "hidden-2"})
    world.work()
    ids += world.order({"item": "hidden-3"})
    world.work()
    secrets = [b"hidden-1", b"hidden-2", b"hidden-3"]
    assert {path.split("/")[2] for path in grep(world, secrets)} == {"data", "metadata"}
    asked = json.dumps({"ids": [ids[0], ids[2], ids[3]]}).encode()
    assert ask(world.server, "POST", "/v1/log/erase", asked).status == 200
    world.archive()
    if sabotaged:
        monkeypatch.setattr(erase, "_erase_typed", lambda place, table, upto: 0)
    for number in count(1):
        faults = CrashAtPoint(number)
        try:
            erase.run(world.place(faults), {})
            break
        except Crash:
            continue
    world.work()

    assert (grep(world, secrets) == []) is not sabotaged
    assert (world.rows() == [(ids[1], "open")]) is not sabotaged


def test_a_row_that_is_made_after_its_event_was_erased_is_none(world: World) -> None:
    ids = world.order({"item": "hidden"}, {"item": "open"})
    world.archive()
    assert ask(world.server, "POST", "/v1/log/erase", json.dumps({"ids": ids[:1]}).encode()).status == 200
    world.archive()
    world.declare()
    world.work()  # the lake still has the event
    assert len(world.rows()) == 2

    erase.run(world.place(), {})

    assert world.rows() == [(ids[1], "open")]


# ── what can be declared ───────────────────────────────────────────────────────────────────────────

GOOD = {"streams": "/orders/*", "columns": {"item": "string"}}
REFUSED: list[tuple[str, Any, int, str]] = [
    ("Orders", GOOD, 400, "table_invalid"),
    ("events", GOOD, 400, "table_invalid"),
    ("delivery_outcomes", GOOD, 400, "table_invalid"),
    ("o" * 64, GOOD, 400, "table_invalid"),
    ("orders", b"no JSON", 400, "input_invalid"),
    ("orders", {**GOOD, "also": 1}, 400, "input_invalid"),
    ("orders", {**GOOD, "streams": []}, 400, "table_invalid"),
    ("orders", {**GOOD, "streams": "orders"}, 400, "stream_name_invalid"),
    ("orders", {**GOOD, "streams": ["/a"] * 65}, 413, "too_large"),
    ("orders", {**GOOD, "columns": {}}, 400, "table_invalid"),
    ("orders", {**GOOD, "columns": {f"c{number}": "int" for number in range(257)}}, 413, "too_large"),
    ("orders", {**GOOD, "columns": {"Time": "timestamp"}}, 400, "table_invalid"),
    ("orders", {**GOOD, "columns": {"a": "int", "A": "int"}}, 400, "table_invalid"),
    ("orders", {**GOOD, "columns": {"a b": "int"}}, 400, "table_invalid"),
    ("orders", {**GOOD, "columns": {"a": "list<int>"}}, 400, "table_invalid"),
    ("orders", {**GOOD, "columns": {"a": "decimal(39,2)"}}, 400, "table_invalid"),
    ("orders", {**GOOD, "columns": {"a": {"type": "int", "path": "a..b"}}}, 400, "table_invalid"),
    ("orders", {**GOOD, "columns": {"a": {"type": "int", "path": "a" * 257}}}, 400, "table_invalid"),
    ("orders", {**GOOD, "columns": {"a": 7}}, 400, "input_invalid"),
]


@pytest.mark.parametrize(
    ("name", "declared", "status", "code"), REFUSED, ids=[f"{one[0][:9]}-{n}" for n, one in enumerate(REFUSED)]
)
def test_what_cannot_be_declared_is_refused_and_changes_nothing(
    world: World, name: str, declared: Any, status: int, code: str
) -> None:
    before, newest = ask(world.server, "GET", "/v1/lake/tables").json["tables"], world.client.newest()
    body = declared if isinstance(declared, bytes) else json.dumps(declared).encode()

    answer = ask(world.server, "PUT", f"/v1/lake/tables/{name}", body)

    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert answer.json["error"]["remedy"]
    after = ask(world.server, "GET", "/v1/lake/tables").json["tables"]
    assert [one["name"] for one in after] == [one["name"] for one in before]
    assert world.client.newest() == newest, "nothing is noted, either"


def test_columns_stay_where_they_are(world: World) -> None:
    first = world.declare()
    newest = world.client.newest()
    assert world.declare()["columns"] == first["columns"]
    assert world.client.newest() == newest, "the same again changes nothing"
    for columns in (
        {"item": "string"},
        {**COLUMNS, "item": "binary"},
        {**COLUMNS, "pieces": "double"},
        {**COLUMNS, "price": "decimal(10,3)"},
        {**COLUMNS, "item": {"type": "string", "path": "name"}},
    ):
        with pytest.raises(ApiError) as refused:
            world.declare(**columns)
        assert (refused.value.status, refused.value.code) == (409, "table_incompatible")
    body = json.dumps({"streams": "/elsewhere", "columns": COLUMNS}).encode()
    with pytest.raises(ApiError, match="is a table of"):
        world.client.call("PUT", f"/v1/lake/tables/{world.name}", body=body)

    grown = world.declare(late="date", **dict(reversed(COLUMNS.items())))

    assert list(grown["columns"]) == [*COLUMNS, "late"], "in whichever order they are said"
    assert grown["id"] == first["id"]


COUNTED_AT_ONCE = 4


def counts_beforehand() -> None:
    """The sabotage: how many tables there are is looked up before the compare-and-set, by all before any has stored."""
    counted, all_have, change = [], asyncio.Event(), typed_tables.change

    async def change_what_was_counted_before(registry: Registry, key: str, decide: Any) -> Change:
        found = await registry.get(key)
        decide(found)
        if len(decode_tables(found)) == TYPED_TABLES - 1:
            counted.append(key)
            if len(counted) == COUNTED_AT_ONCE:
                typed_tables.TYPED_TABLES = 10**9  # type: ignore[misc]
                all_have.set()
            await all_have.wait()
        return await change(registry, key, decide)

    typed_tables.change = change_what_was_counted_before  # type: ignore[attr-defined]


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotage: counted before the compare-and-set"])
def test_a_limit_of_tables_is_kept_whoever_declares_at_once(tmp_path: Path, sabotaged: bool) -> None:
    with start_sabotaged(tmp_path, counts_beforehand if sabotaged else None) as server:
        for number in range(TYPED_TABLES - 1):
            assert declare_at_once([server], [f"one_{number}"]) == {201: 1}

        found = declare_at_once([server], [f"more_{number}" for number in range(COUNTED_AT_ONCE)])

        assert (found == {201: 1, 413: COUNTED_AT_ONCE - 1}) is not sabotaged
        names = [one["name"] for one in ask(server, "GET", "/v1/lake/tables").json["tables"]]
        assert (len(names) == TYPED_TABLES) is not sabotaged
        assert sabotaged or declare_at_once([server] * 8, [names[0]] * 8) == {200: 8}
        refused = ask(server, "PUT", "/v1/lake/tables/one_too_many", json.dumps(GOOD).encode())
        assert sabotaged or (refused.status, refused.json["error"]["code"]) == (413, "too_large")


def test_the_admin_declares_and_others_look(world: World) -> None:
    analyst = open_keys(world.server.data).issue("analyst", grants=("export",))
    stranger = open_keys(world.server.data).issue("stranger", subscribe=(">",))
    path, body = f"/v1/lake/tables/{world.name}", json.dumps(GOOD).encode()

    for token, method, expected in (
        (analyst, "PUT", 403), (analyst, "DELETE", 403), (stranger, "GET", 403), (analyst, "GET", 404),
    ):  # fmt: skip
        found = ask(world.server, method, path, body if method == "PUT" else b"", token=token)
        assert found.status == expected, (method, found.json)
    assert ask(world.server, "PUT", path, body).status == 201
    assert ask(world.server, "GET", path, token=analyst).json["columns"] == {"item": {"type": "string", "path": "item"}}
    actions = ask(world.server, "GET", "/v1/read", stream="/_actions", limit=1000).json["entries"]
    assert f'"table":"{world.name}"' in json.dumps(actions[-1]).replace("\\", "").replace(" ", "")
