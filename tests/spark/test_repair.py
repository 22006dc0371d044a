"""Tables that were lost are made again from `events`, with the same rows."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.commit import AFTER_COMMIT, AFTER_FILES, BEFORE_COMMIT, TableChange, Turn
from penstock.pipeline.jobs import Workplace, archive, compact, ledger, repair, rollup, typed
from penstock.pipeline.lake import LakeHole, open_lake
from penstock.testing import wait_until
from penstock.wire.lake_files import RECORDS
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.test_system_streams import grants_alone_decide
from tests.pipeline.by_hand import Crash, CrashAt, declare_orders, order, orders_in, orders_logged, stored
from tests.pipeline.test_killed_jobs import left_over
from tests.spark.conftest import make_place
from tests.spark.filling import archived, publish
from tests.spark.killed_child import run_killed
from tests.spark.test_jobs import recorded, tail

DERIVED = (*RECORDS["ledger"], *RECORDS["rollup"])
JOBS = (archive, ledger, typed, rollup)


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """A lake with deliveries of several turns, a typed table, and entries that cannot be read.

    The server is of the time when others could write into the streams of the system.
    """
    folder = tmp_path_factory.mktemp("repair")
    with start_sabotaged(folder / "data", grants_alone_decide) as server:
        made = make_place(spark, server, folder / "lake")
        declare_orders(made.client)
        for turn in range(2):
            publish(made.client, "/orders", [b"%d" % turn])
            last = made.client.call("POST", "/v1/publish", {"stream": "/orders"}, b"last")["id"]
            tail(made, "/orders", "alice", 2 * turn + 2)
            wait_until(lambda entry=last: recorded(made, entry, "alice"))
            made.client.call("POST", "/v1/publish", {"stream": "/_ledger"}, b"garbage")
            order(made.client, str(turn))
            for job in JOBS:
                job.run(made, {})
        yield made


def rows_of(place: Workplace) -> dict[str, list[str]]:
    """All rows of all tables that are made from others, in no order."""
    return {
        table: sorted(map(str, archived(place.client, place.lake.place, table).to_pylist()))
        for table in DERIVED
        if table in place.client.get(f"lake/{'ledger' if table in RECORDS['ledger'] else 'rollup'}").value["tables"]
    }


def key_of(place: Workplace) -> str:
    """The typed table's."""
    return place.client.typed_tables()[0].key


def fresh(place: Workplace, faults: CrashAt | None = None) -> Workplace:
    """The same place as another process finds it."""
    lake = open_lake(place.lake.place)
    lake.epoch = place.lake.epoch
    return Workplace(place.spark, place.client, lake, faults or place.faults)


def lose(place: Workplace, table: str, part: str) -> None:
    shutil.rmtree(Path(place.lake.place, table, part))


def test_tables_that_were_lost_are_made_again_wherever_it_was_cut_off(place: Workplace) -> None:
    whole = rows_of(place)
    assert {*DERIVED} - {"positions"} <= {table for table, rows in whole.items() if rows}
    assert orders_in(place.client, place.lake, key_of(place)) == orders_logged(place.client)
    for point, (table, part) in zip(
        (AFTER_FILES, BEFORE_COMMIT), (("deliveries", "metadata"), ("rollup_hourly", "data")), strict=True
    ):
        # Given a table that has lost its metadata, or its data files
        lose(place, table, part)
        with pytest.raises((LakeHole, FileNotFoundError)):
            rows_of(fresh(place))
        told = repair.run(fresh(place), {"dry-run": ""})
        assert table in told.words
        # When its repair is cut off, and run again
        with pytest.raises(Crash):
            repair.run(fresh(place, CrashAt(point)), {})
        assert repair.run(fresh(place), {}).exit_code == 0
        # Then every table has the rows that it had
        assert rows_of(place) == whole
        assert "nothing is lost" in repair.run(fresh(place), {}).words
    compact.run(fresh(place), {"all": ""})
    assert rows_of(place) == whole


def test_sabotage_a_repair_that_remembers_the_batches_of_before_takes_all_of_them_for_repeats(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rows_of(place)
    monkeypatch.setattr(Turn, "memory", property(lambda turn: turn._record.memory))
    repair.run(fresh(place), {"table": "ledger"})

    assert rows_of(place) != whole

    monkeypatch.undo()
    repair.run(fresh(place), {"table": "ledger"})
    assert rows_of(place) == whole


def test_what_typed_tables_have_told_is_told_again_where_unreadable_is_lost(place: Workplace) -> None:
    client, lake, key = place.client, place.lake, key_of(place)
    compact.run(fresh(place), {"all": ""})  # what was told, and what the system cannot read, are in one file
    whole, garbage = rows_of(place), [one for one in stored(client, lake, "unreadable") if not one["typed_table"]]
    assert repair.run(fresh(place), {"table": "unreadable"}).data["steps"] == 1
    assert rows_of(place) == whole
    # Given an `unreadable` that is lost, and a repair that is cut off when it has made the record's tables again
    lose(place, "unreadable", "metadata")
    with pytest.raises(Crash):
        repair.run(fresh(place, CrashAt(AFTER_COMMIT)), {})
    assert orders_in(client, lake, key) == (orders_logged(client)[0], [])
    # When the jobs go on, and then the repair
    order(client, "late")
    for job in JOBS:
        job.run(fresh(place), {})
    assert len(orders_in(client, lake, key)[1]) == 1
    told = repair.run(fresh(place), {})
    # Then everything is told, once
    assert "orders from events: unreadable has lost what does not fit it" in told.words
    assert orders_in(client, lake, key) == orders_logged(client)
    assert [one for one in stored(client, lake, "unreadable") if not one["typed_table"]] == garbage
    assert "nothing is lost" in repair.run(fresh(place), {}).words


def test_sabotage_a_repair_that_keeps_nothing_of_typed_tables_loses_what_they_have_told(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, lake, key = place.client, place.lake, key_of(place)
    nothing = typed.ToldMisfits(TableChange("unreadable", ()), {})
    monkeypatch.setattr(typed, "told_misfits", lambda *_: nothing)
    repair.run(fresh(place), {"table": "ledger"})

    assert orders_in(client, lake, key)[1] == []

    repair.run(fresh(place), {"table": "orders"})
    assert orders_in(client, lake, key) == orders_logged(client)


@pytest.mark.long
def test_a_repair_whose_process_is_killed_with_its_jvm_is_brought_to_its_end(place: Workplace) -> None:
    whole = rows_of(place)
    for number in (2, 3):  # before its commit, and after it
        lose(place, "deliveries", "metadata")
        assert run_killed(place.client, place.lake.place, number, "repair", "deliveries") == -signal.SIGKILL
        repair.run(fresh(place), {})
        assert rows_of(place) == whole
        assert orders_in(place.client, place.lake, key_of(place)) == orders_logged(place.client)
    assert left_over(place.client, place.lake.place)
    compact.run(fresh(place), {})
    assert left_over(place.client, place.lake.place) == set()
    assert rows_of(place) == whole
