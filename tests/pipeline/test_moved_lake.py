"""A lake that was moved is adopted: its tables name their files where they are now. No JVM is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from penstock.iceberg import relocating
from penstock.pipeline import moved_lake
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import AFTER_COMMIT, AFTER_UNLINK, BEFORE_COMMIT
from penstock.pipeline.jobs import compact, erase, typed
from penstock.pipeline.lake import Lake, LakeHole, open_lake
from penstock.pipeline.lake_identity import LakeMismatch, bind
from penstock.pipeline.moved_lake import adopt
from penstock.testing import RunningServer
from penstock.wire.lake_files import RECORDS
from tests.lake_grep import files_with
from tests.pipeline.by_hand import (
    Crash,
    CrashAt,
    archive_turn,
    equals_the_log,
    logged,
    make_here,
    orders_in,
    orders_logged,
    path_of,
    run_pipeline,
    unnamed,
    with_orders,
    with_three_files,
)

CUT_OFF_AT = ((BEFORE_COMMIT, 0), (AFTER_COMMIT, 2), (AFTER_UNLINK, 0), (BEFORE_COMMIT, 4))
"""Points, and how often they were passed: with `events`, with `ledger`, and with the typed table."""


@pytest.fixture
def client(server: RunningServer, lake: Lake) -> PipelineClient:
    """Of a server whose lake has three files of events."""
    return with_three_files(server, lake)


def move(lake: Lake, name: str) -> Lake:
    """All files to another place: nothing is left where they were."""
    moved = open_lake(f"{lake.place.rpartition('/')[0]}/{name}")
    for one in list(lake.store.list("")):
        moved.store.write(one.path, lake.store.read(one.path))
        lake.store.delete([one.path])
    return moved


def quiet(line: str) -> None:
    assert line


def snapshots(client: PipelineClient, lake: Lake) -> list[int]:
    metadata = open_lake(lake.place).table("events", client.get("lake/events").value).metadata
    return [one.snapshot_id for one in metadata.snapshots]


def test_a_lake_that_was_moved_is_adopted_wherever_it_was_cut_off(client: PipelineClient, lake: Lake) -> None:
    key, was = with_orders(client, lake), lake
    known, orders = snapshots(client, lake), orders_logged(client)
    for number, (point, passed) in enumerate(CUT_OFF_AT if lake.store.is_local else CUT_OFF_AT[1:2]):
        now = move(was, f"place-{number}-of-{lake.place.rpartition('/')[2]}")
        with pytest.raises(LakeMismatch, match="was moved") as refused:
            bind(client, open_lake(now.place))
        assert f"--moved-from {was.place}" in refused.value.remedy
        records = client.list("lake/")
        assert "would be named" in adopt(client, now, was.place, quiet, dry_run=True).words
        assert client.list("lake/") == records

        with pytest.raises(Crash):
            adopt(client, now, was.place, quiet, faults=CrashAt(point, passed))
        assert adopt(client, now, was.place, quiet).exit_code == 0

        assert equals_the_log(client, now)
        assert snapshots(client, now) == known
        assert orders_in(client, now, key) == orders
        was = now
    with pytest.raises(LakeMismatch):
        bind(client, open_lake(lake.place))
    client.call("POST", "/v1/publish", {"stream": "/orders"}, b"after the move")
    bind(client, was)
    archive_turn(client, was)
    compact.run(make_here(client, was), {})
    assert equals_the_log(client, was)
    assert unnamed(client, was) == set()
    # and what is erased afterwards goes from the typed table, too
    secret, erased = b"tea", orders[0][0][0]
    assert {path.split("/")[2] for path in files_with(was.store, [secret], key)} == {"data", "metadata"}
    client.call("POST", "/v1/log/erase", body=json.dumps({"ids": [erased]}).encode())
    archive_turn(client, was)
    assert erase.run(make_here(client, was), {}).data["typed"] == 1
    typed.run(make_here(client, was), {})
    assert (files_with(was.store, [secret], key), orders_in(client, was, key)) == ([], (orders[0][1:], orders[1]))
    if was.store.is_local:
        rows = StaticTable.from_metadata(client.get("lake/events").value["tables"]["events"]).scan().to_arrow()
        assert rows.num_rows == len(logged(client))


@pytest.mark.parametrize("lake", ["folder"], indirect=True)
def test_a_typed_table_comes_along_unless_it_was_deleted(
    client: PipelineClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, moved = with_orders(client, lake), move(lake, "moved")
    with monkeypatch.context() as sabotage:
        sabotage.setattr(moved_lake, "record_names", lambda _: list(RECORDS))
        with pytest.raises(LakeMismatch, match="was moved"):
            adopt(client, moved, lake.place, quiet)
    assert "files of orders are named" in adopt(client, moved, lake.place, quiet).words
    # Given that its removal was cut off, when its files were gone and its record was not
    client.call("DELETE", "/v1/lake/tables/orders")
    moved.store.delete([one.path for one in moved.store.list(key)])
    now = move(moved, "now")

    adopt(client, now, moved.place, quiet)

    bind(client, now)
    archive_turn(client, now)
    assert "orders removed" in typed.run(make_here(client, now), {}).words
    assert client.get(f"lake/{key}").version == 0
    assert equals_the_log(client, now)


@pytest.mark.parametrize("lake", ["folder"], indirect=True)
def test_sabotage_manifests_that_are_left_as_they_were_name_files_that_are_gone(
    client: PipelineClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relocating._Relocation, "_manifest", lambda _, former: former)
    now = move(lake, f"sabotaged-{lake.place.rpartition('/')[2]}")
    adopt(client, now, lake.place, quiet)

    with pytest.raises((FileNotFoundError, ValueError)):
        equals_the_log(client, now)


def test_a_lake_that_came_without_a_file_or_from_elsewhere_is_not_adopted(
    server: RunningServer, tmp_path: Path
) -> None:
    lake = open_lake(tmp_path / "lake")
    client = with_three_files(server, lake)
    path_of(client, lake, 1).unlink()
    now = move(lake, "now")
    records = client.list("lake/")

    with pytest.raises(LakeHole, match="1 of 3 files of events did not come along"):
        adopt(client, now, lake.place, quiet)
    with pytest.raises(LakeMismatch, match="is named at") as refused:
        adopt(client, now, "/elsewhere", quiet)
    assert str(tmp_path / "lake") in refused.value.remedy
    Path(now.place, "lake.json").write_text(json.dumps({"id": "another"}))
    with pytest.raises(LakeMismatch, match="is not the lake"):
        adopt(client, now, lake.place, quiet)

    assert client.list("lake/") == records


def test_the_command_adopts_a_moved_lake_and_says_what_it_would_do(server: RunningServer, tmp_path: Path) -> None:
    lake = open_lake(tmp_path / "lake")
    client = with_three_files(server, lake)
    now = move(lake, "now")
    asked = ["--moved-from", lake.place, "--lake", now.place]

    assert "3 files of events would be named" in run_pipeline(client, "repair", *asked, "--dry-run").stdout
    done = run_pipeline(client, "repair", *asked)
    assert (done.returncode, "3 files of events are named" in done.stdout) == (0, True)
    assert "events: 3 files are all there" in done.stderr
    assert equals_the_log(client, now)
