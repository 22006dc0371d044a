"""A lake of the version before Iceberg is taken over byte by byte, or not at all. No JVM is needed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InputInvalid
from penstock.iceberg.files import WrittenWrong, arrow_schema, write_file
from penstock.iceberg.sql import ask as ask_sql
from penstock.pipeline import old_lake
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import AFTER_COMMIT, watermark
from penstock.pipeline.lake import Lake, open_lake
from penstock.pipeline.lake_identity import LakeMismatch, bind
from penstock.pipeline.ledger_rows import BATCH, Batch, find_repeats, heads_to_rows
from penstock.pipeline.old_lake import AdoptFile, FindHeads, migrate, plan
from penstock.testing import start_server
from penstock.wire.lake_files import LakeFile
from tests.pipeline.by_hand import Crash, CrashAt, Here, archived, make_here, run_pipeline
from tests.pipeline.earlier import hashes, old_rows, unpack


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return unpack(tmp_path)


@pytest.fixture
def client(old: Path, tmp_path: Path) -> Iterator[PipelineClient]:
    with start_server(tmp_path / "data") as server:
        yield PipelineClient(server.url, server.admin_token)


def take_events(client: PipelineClient, old: Path, new: Path) -> None:
    """Take over `events`, and end there."""
    with pytest.raises(Crash):
        migrate(make_here(client, open_lake(new), CrashAt(AFTER_COMMIT)), old)


def equals_the_old(client: PipelineClient, old: Path, new: Path) -> bool:
    return archived(client, open_lake(new)) == sorted((row["id"], row["body"]) for row in old_rows(old, "events"))


def from_another_file(task: AdoptFile, path: str) -> None:
    """A copy with other bytes, which is a whole file all the same."""
    others = sorted(one for one in task.old.path.parent.iterdir() if one != task.old.path)
    task.store.make_folder(path.rpartition("/")[0])
    shutil.copyfile(others[0], task.store.place(path))


def test_events_are_taken_over_as_they_are_and_the_old_lake_stays(
    client: PipelineClient, old: Path, tmp_path: Path
) -> None:
    before, new, done = hashes(old), tmp_path / "new", watermark(client, "events")
    with pytest.raises(LakeMismatch, match="a lake of an earlier version") as refused:
        bind(client, open_lake(old))
    assert f"pipeline migrate {old} NEW" in refused.value.remedy
    told = run_pipeline(client, "migrate", str(old), str(new), "--dry-run")
    assert (told.returncode, new.exists()) == (0, False)
    assert f"events: {len(list(old.glob('events/day=*/*.parquet')))} files" in told.stdout

    take_events(client, old, new)

    assert equals_the_old(client, old, new)
    pointers = client.get("lake/events").value["tables"]
    assert ask_sql(str(new), pointers, "SELECT id, body FROM events ORDER BY id").rows() == [
        {"id": id, "body": body} for id, body in archived(client, open_lake(new))
    ]
    assert watermark(client, "events") == done
    assert hashes(old) == before
    with pytest.raises(LakeMismatch):  # nobody works on it before all of it is there
        bind(client, open_lake(new))


@pytest.mark.parametrize("way", ["spark-defaults.conf", "--conf"])
def test_it_takes_the_master_that_spark_is_given(
    client: PipelineClient, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    master, new = "spark://nobody.invalid:7077", tmp_path / "new"
    (tmp_path / "spark-defaults.conf").write_text(f"spark.master {master if way != '--conf' else 'local[1]'}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)  # who sets it says where the driver is: no way is looked for
    more = ["--conf", f"spark.master={master}"] if way == "--conf" else []

    told = run_pipeline(client, "migrate", str(old), str(new), *more)

    assert (told.returncode, new.exists()) == (2, False)
    assert "no way to nobody.invalid" in told.stderr


def test_a_copy_with_other_bytes_is_not_committed(
    client: PipelineClient, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdoptFile, "_take", from_another_file)

    with pytest.raises(WrittenWrong, match="is not what"):
        migrate(make_here(client, open_lake(tmp_path / "new")), old)

    assert not client.get("lake/events").value.get("tables")


def test_sabotage_without_comparing_hashes_wrong_rows_are_committed(
    client: PipelineClient, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdoptFile, "_take", from_another_file)
    monkeypatch.setattr(AdoptFile, "_stored_digest", lambda task, path: stored(task, path) and old_digest(task))
    take_events(client, old, tmp_path / "new")

    assert not equals_the_old(client, old, tmp_path / "new")


def stored(task: AdoptFile, path: str) -> bool:
    return not task.store.missing([path])


def old_digest(task: AdoptFile) -> str:
    with task.old.path.open("rb") as stream:
        return old_lake._digest(stream)


def test_what_cannot_be_taken_over_is_refused_and_nothing_changes(
    client: PipelineClient, old: Path, tmp_path: Path
) -> None:
    records, full = client.list("lake/"), tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("of somebody else")
    for place, refusal, said in (
        (full, LakeMismatch, "is not empty"),
        (old / "new", InputInvalid, "are not apart"),
        (tmp_path, InputInvalid, "are not apart"),
    ):
        with pytest.raises(refusal, match=said):
            plan(client, old, open_lake(place))
    with pytest.raises(InputInvalid, match="is no folder"):
        plan(client, tmp_path / "nowhere", open_lake(tmp_path / "new"))
    first = min(old.glob("events/day=*/*.parquet"))
    shutil.copy(first, first.with_name("-".join(first.stem.split("-")[:3]) + "-7.parquet"))
    with pytest.raises(LakeMismatch, match="have the same ids"):
        plan(client, old, open_lake(tmp_path / "new"))
    for file in old.glob("events/day=*/e-000000000000-*"):
        file.unlink()
    with pytest.raises(LakeMismatch, match="no file of the old lake's events has the ids 1 to"):
        plan(client, old, open_lake(tmp_path / "new"))

    assert client.list("lake/") == records


def test_the_heads_of_a_ledger_whose_record_has_none_are_found_in_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, tasks = open_lake(tmp_path), list[tuple[Any, int]]()
    batches: list[list[Batch]] = [
        [(1, "a", 1, 0), (2, "b", 1, 0), (3, "a", 1, 1)],
        [(4, "a", 1, 1), (5, "b", 1, 1)],  # a repeat of one in the file before
        [(6, "b", 1, 0), (7, "a", 2, 0)],  # and one of an older sequence
        [(8, "a", 2, 1), (9, "c", 1, 5), (10, "a", 2, 1)],
        [(11, "b", 1, 2)],
    ]
    written = [write_ledger(lake, some) for some in batches]
    monkeypatch.setattr(old_lake, "AT_ONCE", 2)

    def noted(place: Here, function: Any, items: Any) -> list[Any]:
        tasks.append((function, len(items)))
        return [function(one) for one in items]

    monkeypatch.setattr(Here, "in_tasks", noted)
    found = old_lake._heads(make_here(PipelineClient("http://127.0.0.1:1", ""), lake), written)

    one_pass = find_repeats([one for some in batches for one in some], {})[1]
    assert heads_to_rows(found) == heads_to_rows(one_pass)
    assert heads_to_rows(found) == [["a", 1, 1, 3], ["a", 2, 1, 8], ["c", 1, 5, 9], ["b", 1, 2, 11]]
    assert tasks == [(FindHeads.run, 2), (FindHeads.run, 2), (FindHeads.run, 1)]


def write_ledger(lake: Lake, batches: list[Batch]) -> str:
    """A file of `ledger` with these batches, each with a record; where it is."""
    names = ("entry", "node", "epoch", "sequence", "state")
    rows = [dict(zip(names, (*one, state), strict=True)) for one in batches for state in (BATCH, "sent")]
    table = pa.Table.from_pylist(rows, arrow_schema("ledger"))
    written = write_file(lake.store, LakeFile(batches[0][0] - 1, batches[-1][0], "2026-11-15", "ledger"), [table])
    assert written
    return written.location
