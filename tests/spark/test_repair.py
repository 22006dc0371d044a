"""Tables that were lost are made again from `events`, with the same rows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.commit import AFTER_FILES, BEFORE_COMMIT, Turn
from penstock.pipeline.jobs import Workplace, archive, compact, ledger, repair, rollup
from penstock.pipeline.lake import LakeHole, open_lake
from penstock.testing import start_server, wait_until
from penstock.wire.lake import RECORDS
from tests.pipeline.by_hand import Crash, CrashAt
from tests.spark.conftest import make_place
from tests.spark.filling import archived, publish
from tests.spark.test_jobs import recorded, tail

DERIVED = (*RECORDS["ledger"], *RECORDS["rollup"])


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """A lake with deliveries of several turns."""
    folder = tmp_path_factory.mktemp("repair")
    with start_server(folder / "data") as server:
        made = make_place(spark, server, folder / "lake")
        for turn in range(2):
            publish(made.client, "/orders", [b"%d" % turn])
            last = made.client.call("POST", "/v1/publish", {"stream": "/orders"}, b"last")["id"]
            tail(made, "/orders", "alice", 2 * turn + 2)
            wait_until(lambda entry=last: recorded(made, entry, "alice"))
            for job in (archive, ledger, rollup):
                job.run(made, {})
        yield made


def rows_of(place: Workplace) -> dict[str, list[str]]:
    """All rows of all tables that are made from others, in no order."""
    return {
        table: sorted(map(str, archived(place.client, place.lake.place, table).to_pylist()))
        for table in DERIVED
        if table in place.client.get(f"lake/{'ledger' if table in RECORDS['ledger'] else 'rollup'}").value["tables"]
    }


def fresh(place: Workplace, faults: CrashAt | None = None) -> Workplace:
    """The same place as another process finds it."""
    lake = open_lake(place.lake.place)
    lake.epoch = place.lake.epoch
    return Workplace(place.spark, place.client, lake, faults or place.faults)


def lose(place: Workplace, table: str, part: str) -> None:
    shutil.rmtree(Path(place.lake.place, table, part))


def test_tables_that_were_lost_are_made_again_wherever_it_was_cut_off(place: Workplace) -> None:
    whole = rows_of(place)
    assert {"ledger", "deliveries", "rollup_hourly", "activity"} <= {table for table, rows in whole.items() if rows}
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
