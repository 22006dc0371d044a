"""A backup of a running engine, and what can be made of it."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from penstock.engines.sqlite import open_sqlite
from penstock.engines.sqlite.backup import MANIFEST, backup, restore
from penstock.engines.sqlite.schema import FILE_NAME
from penstock.errors import DataCorrupt, InputInvalid
from penstock.values import Batch, Draft
from tests.faults.pages import PAGE, first_leaf, overwrite


async def publish(engine, count: int) -> None:
    for number in range(count):
        await engine.log.append(Batch((Draft("/s", b"%d" % number + b"x" * 500),)))


@pytest.fixture
def saved(tmp_path):
    """A backup of thirty entries."""

    async def make() -> None:
        (tmp_path / "data").mkdir()
        async with open_sqlite(tmp_path / "data", node="n") as engine:
            await publish(engine, 30)
            await engine.backup(tmp_path / "saved")

    asyncio.run(make())
    return tmp_path / "saved"


async def test_a_backup_of_a_busy_engine_is_the_state_of_one_moment(tmp_path):
    (tmp_path / "data").mkdir()
    async with open_sqlite(tmp_path / "data", node="n") as engine:
        await publish(engine, 200)
        before = engine.log.followed
        manifest, _ = await asyncio.gather(engine.backup(tmp_path / "saved"), publish(engine, 300))

    restore(tmp_path / "saved", tmp_path / "new")
    async with open_sqlite(tmp_path / "new", node="n") as engine:
        page = await engine.log.read_index("/s", 0)
        assert engine.log.followed == manifest.last_id >= before
        assert [entry.index for entry in page.entries] == list(range(len(page.entries)))
        assert page.entries[-1].id == manifest.last_id
        assert (await engine.log.append(Batch((Draft("/s", b"next"),)))).last.id == manifest.last_id + 1


async def test_a_restored_file_is_one_a_server_can_start_on(saved, tmp_path):
    steps: list[tuple[int, int]] = []

    manifest = restore(saved, tmp_path / "new", lambda done, total: steps.append((done, total)))

    assert steps[-1] == (manifest.bytes, manifest.bytes)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [FILE_NAME]
    async with open_sqlite(tmp_path / "new", node="n") as engine:
        assert len((await engine.log.read_index("/s", 0)).entries) == 30


def test_a_directory_with_something_in_it_is_not_overwritten(saved, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")

    with pytest.raises(InputInvalid):
        restore(saved, tmp_path / "full")
    with pytest.raises(InputInvalid):
        backup(saved / FILE_NAME, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["note"]


@pytest.mark.parametrize("damage", ["byte", "cut", "file missing", "manifest missing", "manifest garbled"])
def test_a_backup_that_is_not_what_its_manifest_says_is_refused(saved, tmp_path, damage):
    file, manifest = saved / FILE_NAME, saved / MANIFEST
    content = file.read_bytes()
    match damage:
        case "byte":
            file.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
        case "cut":
            file.write_bytes(content[:-4096])
        case "file missing":
            file.unlink()
        case "manifest missing":
            manifest.unlink()
        case "manifest garbled":
            manifest.write_text('{"last_id":')

    with pytest.raises(DataCorrupt) as refused:
        restore(saved, tmp_path / "new")
    assert "penstock restore" not in refused.value.remedy
    assert not (tmp_path / "new" / FILE_NAME).exists()


@pytest.fixture
def open_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


async def test_a_backup_and_what_is_restored_from_it_are_for_their_owner_alone(open_umask, tmp_path):
    (tmp_path / "data").mkdir()
    async with open_sqlite(tmp_path / "data", node="n") as engine:
        await publish(engine, 3)
        await engine.backup(tmp_path / "saved")
    restore(tmp_path / "saved", tmp_path / "new")
    async with open_sqlite(tmp_path / "new", node="n") as engine:
        await publish(engine, 3)

        found = {path: mode(path) for name in ("saved", "new") for path in (tmp_path / name).iterdir()}
        assert {mode(tmp_path / "saved"), mode(tmp_path / "new")} == {0o700}
        assert set(found.values()) == {0o600}
        assert len(found) == 6  # the backup's two, and of the engine the file, its two companions and the lock


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("place", ["data", "data/below", "data/a/b", "other/../data/x", "link/x"])
async def test_a_backup_does_not_go_into_the_data_directory(tmp_path, place):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    async with open_sqlite(tmp_path / "data", node="n") as engine:
        with pytest.raises(InputInvalid, match="in the data directory"):
            await engine.backup(tmp_path / place)

        assert {path.suffix for path in (tmp_path / "data").iterdir()} <= {".db", ".db-wal", ".db-shm", ".lock"}


@pytest.mark.parametrize("place", ["file", "file/below", "loop/x", "nul\0", "/proc/nope/x", "x" * 300])
def test_a_place_that_cannot_be_used_is_the_callers_mistake(saved, tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    with pytest.raises(InputInvalid, match="cannot be used"):
        backup(saved / FILE_NAME, tmp_path / place)


async def test_a_backup_of_a_damaged_file_fails_and_leaves_nothing_and_the_file_is_looked_at(saved, tmp_path):
    file = tmp_path / "data" / FILE_NAME
    overwrite(file, first_leaf(file, "entries"), bytes(PAGE))
    async with open_sqlite(tmp_path / "data", node="n") as engine:
        with pytest.raises(DataCorrupt, match=str(file)):
            await engine.backup(tmp_path / "second")

        assert list((tmp_path / "second").iterdir()) == []
        assert await engine.check.wait() == "damaged"
        assert "damaged" in engine.trouble
