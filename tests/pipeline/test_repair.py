"""What `events` has lost is made again, from the log and from data files that are left. No JVM is needed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InputInvalid
from penstock.iceberg.files import read_batches, write_file
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.commit import AFTER_COMMIT, BEFORE_COMMIT, POINTS, Faults, TableChange, Turn
from penstock.pipeline.jobs import BEGIN, compact, repair
from penstock.pipeline.lake import Lake, open_lake
from penstock.testing import RunningServer, start_server
from tests.api.client import ask
from tests.api.lake_rig import trim
from tests.pipeline.by_hand import (
    Crash,
    CrashAt,
    archived,
    equals_the_log,
    logged,
    make_here,
    path_of,
    unnamed,
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


def test_a_range_is_archived_again_in_one_step_wherever_it_was_cut_off(client: PipelineClient, lake: Lake) -> None:
    first, last = middle(client, lake)
    wanted = {"table": "events", "from": str(first), "to": str(last)}
    for point in CUT_OFF_AT:
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
