"""What `events` has lost is made again, from the log and from data files that are left. No JVM is needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InputInvalid
from penstock.iceberg.files import read_batches, write_file
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.commit import AFTER_COMMIT, BEFORE_COMMIT, POINTS, Faults, TableChange, Turn
from penstock.pipeline.jobs import BEGIN, compact, erase, repair, typed
from penstock.pipeline.lake import Lake, open_lake
from penstock.testing import RunningServer, start_server
from tests.api.client import ask
from tests.api.lake_rig import trim
from tests.pipeline.by_hand import (
    Crash,
    CrashAt,
    CrashAtPoint,
    archive_turn,
    archived,
    declare_orders,
    equals_the_log,
    logged,
    make_here,
    order,
    orders_in,
    orders_logged,
    path_of,
    unnamed,
    with_orders,
    with_three_files,
)

CUT_OFF_AT = POINTS[1:]  # a repair writes no intent
SPOILED = b"spoiled"


@pytest.fixture
def client(server: RunningServer, lake: Lake) -> PipelineClient:
    """Of a server whose lake has three files of events."""
    return with_three_files(server, lake)


def fix(client: PipelineClient, lake: Lake, faults: Faults | None = None, **options: str) -> Any:
    """Run the job as a process would that knows nothing of what was before."""
    given = {name.replace("_", "-"): value for name, value in options.items()}
    fresh = open_lake(lake.place)
    fresh.epoch = lake.epoch
    return repair.run(make_here(client, fresh, faults), given)


# ── a range from the log ───────────────────────────────────────────────────────────────────────


def spoil(client: PipelineClient, lake: Lake) -> None:
    """Give every row of the lake another body."""
    turn = Turn(client, lake, "events")
    files = turn.table("events").files()
    added = [write_file(lake.store, one.file, map(spoiled, read_batches(lake.store, one.location))) for one in files]
    turn.replace([TableChange("events", [one for one in added if one], [one.location for one in files])])
    turn.end()


def spoiled(rows: pa.RecordBatch) -> pa.RecordBatch:
    place = rows.schema.get_field_index("body")
    return rows.set_column(place, rows.schema.field(place), pa.array([SPOILED] * rows.num_rows, pa.binary()))


def seen(client: PipelineClient, lake: Lake) -> dict[int, bytes]:
    return dict(archived(client, open_lake(lake.place)))


def middle(client: PipelineClient, lake: Lake) -> tuple[int, int]:
    """A range that begins within the first file and ends within the last."""
    files = make_here(client, lake).files("events")
    return files[0].file.lo + 3, files[-1].file.hi - 2


@pytest.mark.parametrize(
    ("lake", "points"),
    [
        ("folder", CUT_OFF_AT),
        ("s3", CUT_OFF_AT[:1]),
        pytest.param("s3", CUT_OFF_AT[1:], marks=pytest.mark.long),
    ],
    indirect=["lake"],
)
def test_a_range_is_archived_again_in_one_step_wherever_it_was_cut_off(
    points: tuple[str, ...], client: PipelineClient, lake: Lake
) -> None:
    first, last = middle(client, lake)
    wanted = {"table": "events", "from": str(first), "to": str(last)}
    for point in points:
        # Given a lake whose rows are all wrong
        spoil(client, lake)
        before = seen(client, lake)
        assert set(before.values()) == {SPOILED}
        after = {id: body if first <= id <= last else SPOILED for id, body in logged(client) if id in before}
        assert "would take the place" in fix(client, lake, dry_run="", **wanted).words
        # When a repair is cut off
        with pytest.raises(Crash):
            fix(client, lake, CrashAt(point), **wanted)
        # Then a reader sees all of it or nothing of it, and the next run brings it to its end
        assert seen(client, lake) in (before, after), point
        fix(client, lake, **wanted)
        assert seen(client, lake) == after, point
        names = [one.file for one in make_here(client, lake).files("events")]
        assert all(one.hi == following.lo for one, following in pairwise(names))
    compact.run(make_here(client, lake), {})
    assert unnamed(client, lake) == set()


@pytest.mark.parametrize("lake", ["folder"], indirect=True)
def test_sabotage_a_repair_in_two_commits_shows_a_lake_without_the_rows(
    client: PipelineClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Turn.replace

    def in_two_commits(turn: Turn, changes: list[TableChange], memory: Mapping[str, Any] | None = None) -> None:
        replace(turn, [TableChange(one.table, [], one.removed) for one in changes], memory)
        replace(turn, [TableChange(one.table, one.added) for one in changes], memory)

    first, last = middle(client, lake)
    monkeypatch.setattr(Turn, "replace", in_two_commits)
    with pytest.raises(Crash):
        fix(client, lake, CrashAt(AFTER_COMMIT), table="events", **{"from": str(first), "to": str(last)})

    assert not equals_the_log(client, lake)


def test_ids_and_times_that_cannot_be_meant_are_refused(shared_server: RunningServer, tmp_path: Path) -> None:
    lake = open_lake(tmp_path / "lake")
    place = make_here(PipelineClient(shared_server.url, shared_server.admin_token), lake)
    for options in (
        {"table": "orders"},
        {"table": "orders", "from": "1"},
        {"table": "ledger", "from": "1"},
        {"table": "events", "from": "-1"},
        {"table": "events", "from": "9" * 400},
        {"table": "events", "from": "5", "to": "2"},
        {"table": "events", "since": "yesterday"},
    ):
        with pytest.raises(InputInvalid):
            repair.run(place, options)


# ── what is gone ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def trimmed(tmp_path: Path) -> Iterator[tuple[RunningServer, PipelineClient, Lake]]:
    """A lake of three files, of which the first has what its server has trimmed from the log."""
    lake = open_lake(tmp_path / "lake")
    with start_server(tmp_path / "data", lake_url=tmp_path / "lake") as server:
        client = with_three_files(server, lake)
        assert trim(server, upto=make_here(client, lake).files("events")[0].file.hi, apply=True).status == 200
        yield server, client, lake


def test_what_is_gone_is_made_again_and_what_cannot_be_is_named(
    trimmed: tuple[RunningServer, PipelineClient, Lake],
) -> None:
    server, client, lake = trimmed
    whole = seen(client, lake)
    assert fix(client, lake).words == "repair: nothing is lost: every table has its metadata and its data files"
    # Given a file that is gone, whose rows the log has
    path_of(client, lake, 1).unlink()
    told = fix(client, lake, dry_run="")
    assert "its data file is gone" in told.words
    assert not path_of(client, lake, 1).exists()
    assert fix(client, lake).exit_code == 0
    assert seen(client, lake) == whole
    # and one whose rows it has trimmed: that is refused, and says what can be done
    first = path_of(client, lake, 0)
    kept = first.read_bytes()
    first.unlink()
    with pytest.raises(repair.CannotRepair, match="the log was trimmed up to id") as refused:
        fix(client, lake)
    assert (refused.value.code, "backup of the lake" in refused.value.remedy) == ("cannot_repair", True)
    first.write_bytes(kept)
    # When the table's metadata is gone
    shutil.rmtree(Path(lake.place, "events", "metadata"))
    assert "metadata of events cannot be read" in fix(client, lake, dry_run="").words
    assert fix(client, lake).exit_code == 0
    # Then nothing is missing: what the log has not any more comes from the data files
    assert seen(client, lake) == whole
    entries = ask(server, "GET", "/v1/read", stream="/orders", **{"from": 0}).json["entries"]
    assert [one["index"] for one in entries] == list(range(12))


def test_a_table_that_cannot_be_made_again_whole_says_which_ids_are_lost(
    trimmed: tuple[RunningServer, PipelineClient, Lake],
) -> None:
    _, client, lake = trimmed
    whole, first = seen(client, lake), path_of(client, lake, 0)
    lost = make_here(client, lake).files("events")[0].file.hi
    shutil.rmtree(Path(lake.place, "events", "metadata"))
    first.unlink()

    outcome = fix(client, lake)

    assert outcome.exit_code == 1
    assert f"the ids 1 to {lost:,} are neither in the log nor in the lake [cannot_repair]" in outcome.words
    assert seen(client, lake) == {id: body for id, body in whole.items() if id > lost}
    assert client.get(BEGIN).value == {"after": lost}
    assert fix(client, lake).exit_code == 0


class OvertakenAt(Faults):
    """Another driver takes the record at a point, the first time that it is come to."""

    def __init__(self, client: PipelineClient, lake: Lake, point: str) -> None:
        self._taken = [lambda: Turn(client, open_lake(lake.place), "events").end()]
        self._point = point

    def at(self, point: str) -> None:
        if point == self._point and self._taken:
            self._taken.pop()()


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotage: files that were there are its own"])
def test_a_repair_that_was_overtaken_deletes_none_of_the_files_that_were_there(
    trimmed: tuple[RunningServer, PipelineClient, Lake], monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    _, client, lake = trimmed
    whole, first = seen(client, lake), path_of(client, lake, 0)
    if sabotaged:
        monkeypatch.setattr(repair, "TableChange", lambda table, added, found: TableChange(table, [*found, *added]))

    with pytest.raises(RecordChanged):
        fix(client, lake, OvertakenAt(client, lake, BEFORE_COMMIT), table="events")

    assert first.exists() is not sabotaged
    assert sabotaged or seen(client, lake) == whole


# ── typed tables ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lake", ["folder"], indirect=True)
def test_a_typed_table_is_made_again_wherever_it_was_cut_off(client: PipelineClient, lake: Lake) -> None:
    key = with_orders(client, lake)
    rows, misfits = orders_logged(client)
    assert (len(rows), orders_in(client, lake, key)) == (2, (rows, misfits))
    for number in count(1):
        # Given a typed table that has lost its metadata, or a data file
        if number % 2:
            shutil.rmtree(Path(lake.place, key, "metadata"))
        else:
            path_of(client, lake, 0, key).unlink()
        told = fix(client, lake, dry_run="").words
        assert f"orders from events: {'the metadata' if number % 2 else '1 data files are gone'}" in told
        # When its repair is cut off, and run again
        faults = CrashAtPoint(number)
        try:
            fix(client, lake, faults)
        except Crash:
            fix(client, lake)
        # Then it has its rows, and what does not fit is told once
        assert orders_in(client, lake, key) == (rows, misfits), number
        if faults.left > 0:
            break
    assert number > len(CUT_OFF_AT) * 4, "two commits, each with the end of its turn"
    assert "nothing is lost" in fix(client, lake).words
    order(client, "pot")
    archive_turn(client, lake)
    typed.run(make_here(client, lake), {})
    assert orders_in(client, lake, key) == orders_logged(client)


@pytest.mark.parametrize("lake", ["folder"], indirect=True)
def test_a_dry_run_names_the_typed_tables_that_would_follow(client: PipelineClient, lake: Lake, tmp_path: Path) -> None:
    with_orders(client, lake)
    follows = "orders from events: unreadable has lost what does not fit it: all ids up to"
    assert follows not in fix(client, lake, dry_run="", table="deliveries").words, "what was told is kept"
    # Given an `unreadable` that has lost a file, and then its metadata
    for lost in (path_of(client, lake, 0, "unreadable"), Path(lake.place, "unreadable", "metadata")):
        lost.rename(tmp_path / lost.name)
        # Then a dry run says what tests/spark/test_repair.py shows of a real one
        for options in ({}, {"table": "deliveries"}):
            assert follows in fix(client, lake, dry_run="", **options).words
        assert follows not in fix(client, lake, dry_run="", table="orders").words, "that one makes no other again"


@pytest.mark.parametrize(
    ("lake", "sabotaged"),
    [("s3", False), ("folder", True)],
    indirect=["lake"],
    ids=["honest", "sabotage: what was told before stays"],
)
def test_a_typed_table_whose_turn_was_cut_off_is_made_again_and_goes_on(
    client: PipelineClient, lake: Lake, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    # Given a turn that has told what does not fit, and has not come to its rows
    key = with_orders(client, lake)
    order(client, "pot")
    archive_turn(client, lake)
    with pytest.raises(Crash):
        typed.run(make_here(client, lake, CrashAt(AFTER_COMMIT)), {})
    if sabotaged:
        monkeypatch.setattr(typed, "_without", lambda *_: TableChange("unreadable", ()))
    # When the table is made again before that turn is redone
    assert "2 rows up to id" in fix(client, lake, table="orders").words
    typed.run(make_here(client, open_lake(lake.place)), {})
    # Then nothing is told twice
    assert orders_in(client, lake, key)[0] == orders_logged(client)[0]
    assert (orders_in(client, lake, key) == orders_logged(client)) is not sabotaged


@pytest.mark.parametrize("lake", ["folder"], indirect=True)
def test_a_range_that_is_archived_again_leaves_typed_rows_and_says_how_they_are_made_again(
    client: PipelineClient, lake: Lake
) -> None:
    order(client, "tea")
    archive_turn(client, lake)
    spoil(client, lake)
    key = declare_orders(client)
    assert "nothing was ever written to orders" in refused(client, lake, table="orders")
    typed.run(make_here(client, lake), {})
    assert orders_in(client, lake, key)[0] == []

    told = fix(client, lake, table="events", **{"from": "1"}).words

    assert told.endswith("typed tables stay as they are: if bodies were wrong, run 'repair --table orders'")
    assert orders_in(client, lake, key)[0] == []
    assert fix(client, lake, table="orders").exit_code == 0
    assert orders_in(client, lake, key) == orders_logged(client)


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotage: the table alone says what is erased"])
def test_what_came_back_from_a_backup_is_erased_from_a_typed_table_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    if sabotaged:
        monkeypatch.setattr(typed, "_erased_in_both", lambda _, memory: memory.get("erased", 0))
    lake = open_lake(tmp_path / "lake")
    with start_server(tmp_path / "data", lake_url=tmp_path / "lake") as server:
        client = with_three_files(server, lake)
        key, whole = with_orders(client, lake), orders_logged(client)
        backup = path_of(client, lake, 3)  # has the first order
        kept = backup.read_bytes()
        # Given an order that was erased, and whose file comes back when the log has it no more
        client.call("POST", "/v1/log/erase", body=json.dumps({"ids": [whole[0][0][0]]}).encode())
        archive_turn(client, lake)
        erase.run(make_here(client, lake), {})
        assert orders_in(client, lake, key) == (whole[0][1:], whole[1])
        assert trim(server, upto=make_here(client, lake).files("events")[3].file.hi, apply=True).status == 200
        path_of(client, lake, 3).unlink()
        shutil.rmtree(Path(lake.place, "events", "metadata"))
        backup.write_bytes(kept)
        assert fix(client, lake).exit_code == 0
        # and a typed table that is made again from it
        fix(client, lake, table="orders")
        assert orders_in(client, lake, key) == whole

        erase.run(make_here(client, open_lake(lake.place)), {})

        assert (orders_in(client, lake, key) == (whole[0][1:], whole[1])) is not sabotaged


def refused(client: PipelineClient, lake: Lake, **options: str) -> str:
    with pytest.raises(repair.CannotRepair) as said:
        fix(client, lake, **options)
    return str(said.value)
