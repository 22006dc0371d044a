"""A lake and a log belong together by the same mark and the same history of ids. No JVM is needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.client.http import ApiError
from penstock.engines.sqlite import backup as backups
from penstock.errors import ConfigInvalid
from penstock.iceberg.store import FileStore
from penstock.pipeline import lake_identity
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import watermark
from penstock.pipeline.jobs import compact
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import LakeMismatch, bind
from penstock.testing import RunningServer, start_server
from tests.api.client import publish
from tests.api.lake_rig import trim
from tests.pipeline.by_hand import archive_turn, equals_the_log, make_here


@contextmanager
def serving(folder: Path, name: str) -> Iterator[tuple[RunningServer, PipelineClient]]:
    with start_server(folder / name, lake_url=folder / "lake") as server:
        yield server, PipelineClient(server.url, server.admin_token)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of a server's data, its lake and a backup: in `newer` the lake has what came after that.

    Tables name their files by whole addresses, so each copy is used where it was made: in `home`.
    """
    folder = tmp_path_factory.mktemp("identity")
    home = folder / "home"
    (home / "lake").mkdir(parents=True)
    lake = open_lake(home / "lake")
    with serving(home, "first") as (server, client):
        bind(client, lake)
        for number in range(4):
            publish(server, "/orders", b"before %d" % number)
        archive_turn(client, lake)
        backups.backup(home / "first" / "penstock.db", home / "backup")
        server.stop()
        shutil.copytree(home, folder / "same")
    with serving(home, "first") as (server, client):
        lake = open_lake(home / "lake")
        bind(client, lake)
        for number in range(4):
            publish(server, "/orders", b"lost %d" % number)
        archive_turn(client, lake)
        server.stop()
        shutil.copytree(home, folder / "newer")
    return folder


def put_back(made: Path, name: str) -> Path:
    shutil.rmtree(made / "home")
    return Path(shutil.copytree(made / name, made / "home"))


@pytest.fixture
def newer(made: Path) -> Path:
    """A lake that is newer than the backup."""
    return put_back(made, "newer")


@pytest.fixture
def same(made: Path) -> Path:
    """A lake that has what the backup has."""
    return put_back(made, "same")


def goes_on(folder: Path, server: RunningServer, client: PipelineClient) -> bool:
    """Whether the lake is still the log, after the restored server took events and archived them."""
    for number in range(6):
        publish(server, "/orders", b"after %d" % number)
    lake = open_lake(folder / "lake")
    bind(client, lake)
    archive_turn(client, lake)
    return equals_the_log(client, lake)


def test_a_restored_server_does_not_take_the_files_of_a_lost_future_for_its_own(newer: Path) -> None:
    backups.restore(newer / "backup", newer / "second")
    with serving(newer, "second") as (server, client):
        before = watermark(client, "events")

        with pytest.raises(LakeMismatch, match="restored from a backup"):
            goes_on(newer, server, client)

        assert watermark(client, "events") == before
        reply = trim(server, upto=before, apply=True)
        assert (reply.status, reply.code) == (409, "trim_refused")
        assert "another history" in reply.json["error"]["message"]
        # Then an empty folder becomes its lake, and has everything that the log has
        shutil.move(newer / "lake", newer / "old lake")
        (newer / "lake").mkdir()
        assert goes_on(newer, server, client)
        assert trim(server, upto=before, apply=True).status == 200


def test_without_epoch_and_check_the_lost_future_is_swept_away(newer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotage. The lake equals the log all the same, but nobody has any more what was lost."""
    monkeypatch.setattr(backups, "_begin_epoch", lambda path: None)
    monkeypatch.setattr(lake_identity, "_check_history", lambda *given: None)
    backups.restore(newer / "backup", newer / "second")
    lost = max((newer / "lake" / "events" / "data").rglob("*.parquet"))

    with serving(newer, "second") as (server, client):
        assert goes_on(newer, server, client)
        lake = open_lake(newer / "lake")
        bind(client, lake)
        compact.run(make_here(client, lake), {})

    assert not lost.exists()


def test_a_lake_that_is_not_newer_is_taken_over(same: Path) -> None:
    lake = open_lake(same / "lake")
    backups.restore(same / "backup", same / "second")
    with serving(same, "second") as (server, client):
        assert goes_on(same, server, client)
        assert trim(server, upto=3, apply=True).status == 200
    # Then the server that was backed up has no lake any more: two would write the same names
    with serving(same, "first") as (_, client), pytest.raises(LakeMismatch):
        bind(client, open_lake(lake.place))


def test_a_driver_that_outlives_its_server_is_refused_by_the_restored_one(same: Path) -> None:
    lake = open_lake(same / "lake")
    backups.restore(same / "backup", same / "second")
    with serving(same, "second") as (server, client):
        publish(server, "/orders", b"after")
        lake.epoch = json.loads(Path(lake.place, "lake.json").read_text())["epoch"]  # as the driver has found it

        with pytest.raises(ApiError) as refused:
            archive_turn(client, lake)

        assert (refused.value.status, refused.value.code) == (409, "epoch_passed")


def test_a_log_that_was_copied_by_hand_is_found_by_what_the_lake_has(newer: Path) -> None:
    (newer / "second").mkdir()
    shutil.copy(newer / "backup" / "penstock.db", newer / "second" / "penstock.db")
    with serving(newer, "second") as (server, client), pytest.raises(LakeMismatch, match="is older than it"):
        goes_on(newer, server, client)


def test_a_lake_and_records_from_before_there_were_epochs_go_on(same: Path) -> None:
    lake = open_lake(same / "lake")
    with serving(same, "first") as (server, client):
        for key in ("lake/id", "lake/events", "lake/ledger"):
            kept = client.get(key)
            client.put(key, {name: one for name, one in kept.value.items() if name != "epoch"}, expect=kept.version)
        mark = Path(lake.place, "lake.json")
        mark.write_text(json.dumps({"id": json.loads(mark.read_text())["id"]}))

        assert goes_on(same, server, client)
        assert json.loads(mark.read_text())["epoch"] == client.call("GET", "/v1/pipeline")["epoch"]["epoch"]


def test_a_mark_that_cannot_be_read_is_said_and_nothing_is_left_beside_a_whole_one(same: Path) -> None:
    lake = open_lake(same / "lake")
    assert sorted(path.name for path in Path(lake.place).iterdir() if path.is_file()) == ["lake.json"]
    Path(lake.place, "lake.json").write_text('{"id"')
    with serving(same, "first") as (_, client), pytest.raises(LakeMismatch, match="cannot be read"):
        bind(client, lake)


def half_in_place(store: FileStore, path: str, data: bytes) -> None:
    """The sabotage: the file itself is written, and whoever writes it does not come to its end."""
    Path(store.place(path)).write_bytes(data[: len(data) // 2])
    raise OSError("cut off")


def never_renamed(path: Path, target: Path) -> Path:
    raise OSError("cut off")


@pytest.mark.parametrize("sabotage", [None, half_in_place])
def test_whoever_is_cut_off_while_it_writes_a_mark_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sabotage: Callable[..., None] | None
) -> None:
    lake = open_lake(tmp_path)
    lake_identity._write_mark(lake, "mine", "first")
    before = lake_identity._read_mark(lake)
    with monkeypatch.context() as cut_off:
        cut_off.setattr(Path, "rename", never_renamed)
        if sabotage:
            cut_off.setattr(FileStore, "put", sabotage)
        with pytest.raises(ConfigInvalid, match="cut off"):
            lake_identity._write_mark(lake, "mine", "second")

    if sabotage:
        with pytest.raises(LakeMismatch, match="cannot be read"):
            lake_identity._read_mark(lake)
    else:
        assert lake_identity._read_mark(lake) == before == {"id": "mine", "epoch": "first"}
        lake_identity._write_mark(lake, "mine", "second")
        assert lake_identity._read_mark(lake)["epoch"] == "second"


def test_a_lake_that_was_moved_is_said_and_not_taken_for_an_empty_one(same: Path) -> None:
    shutil.copytree(same / "lake", same / "moved")
    with serving(same, "first") as (_, client), pytest.raises(LakeMismatch, match="was moved"):
        bind(client, open_lake(same / "moved"))


def test_a_restored_log_whose_files_were_compacted_since_is_refused(same: Path) -> None:
    backups.restore(same / "backup", same / "second")
    [file, *_] = (same / "lake" / "events" / "data").rglob("*.parquet")
    file.unlink()
    with serving(same, "second") as (_, client), pytest.raises(LakeMismatch, match="has gone on since the backup"):
        bind(client, open_lake(same / "lake"))


def test_a_lake_of_an_earlier_version_is_refused_and_nothing_in_it_is_touched(same: Path) -> None:
    old = same / "lake" / "events" / "day=2026-11-15" / "e-000000000000-000000000003.parquet"
    old.parent.mkdir()
    old.write_bytes(b"rows that nobody else has")
    with serving(same, "first") as (_, client):
        with pytest.raises(LakeMismatch, match="of an earlier version"):
            bind(client, open_lake(same / "lake"))
        compact.run(make_here(client, open_lake(same / "lake")), {"all": ""})

    assert old.exists()
