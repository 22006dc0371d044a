"""Files that cannot be trusted and directories that are taken: refused with a clear word, and left as they are."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from penstock.engines.sqlite import open_sqlite, schema
from penstock.engines.sqlite.engine import SqliteOptions
from penstock.engines.sqlite.lock import FILE_NAME as LOCK_NAME
from penstock.engines.sqlite.lock import DirectoryLock
from penstock.errors import DataCorrupt, DataLocked
from penstock.values import Batch, Draft
from tests.faults.children import ENVIRONMENT, command
from tests.faults.pages import PAGE, first_leaf, overwrite, root_of


def open_and_close(directory: Path) -> str:
    """Open the engine; return what its check of the file found."""

    async def run() -> str:
        async with open_sqlite(directory, node="n") as engine:
            return await engine.check.wait()

    return asyncio.run(run())


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A directory with some hundred entries, closed cleanly."""

    async def fill() -> None:
        async with open_sqlite(tmp_path / "data", node="n") as engine:
            for number in range(300):
                await engine.log.append(Batch((Draft(f"/s/{number % 7}", b"x" * 200),)))

    (tmp_path / "data").mkdir()
    asyncio.run(fill())
    return tmp_path / "data"


# ── two processes ──────────────────────────────────────────────────────────────────────────────


def start_holder(directory: Path) -> subprocess.Popen[str]:
    """A process that has the directory, and has said so."""
    child = subprocess.Popen(
        command("tests.faults.storage_child", directory, "--rounds", 10**6, "--publishers", 1),
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    )
    assert child.stdout.readline()
    return child


def test_a_second_process_is_refused_and_told_who_has_the_directory(tmp_path):
    child = start_holder(tmp_path)
    with child:
        try:
            with pytest.raises(DataLocked, match=f"process {child.pid}"):
                open_and_close(tmp_path)
        finally:
            child.kill()
    # When it is gone, however it went, the directory is free
    assert open_and_close(tmp_path) == "sound"


def test_without_the_lock_the_second_process_would_get_in(tmp_path):
    """The sabotage: take the lock's file away, and the same attempt succeeds."""
    child = start_holder(tmp_path)
    with child:
        try:
            (tmp_path / LOCK_NAME).unlink()
            DirectoryLock(tmp_path).release()
        finally:
            child.kill()


def test_two_engines_in_one_process_do_not_share_a_directory(tmp_path):
    async def run() -> None:
        async with open_sqlite(tmp_path, node="one"):
            with pytest.raises(DataLocked):
                async with open_sqlite(tmp_path, node="two"):
                    pass

    asyncio.run(run())


# ── damaged files ──────────────────────────────────────────────────────────────────────────────


def garbage(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(20_000))


def cut_in_the_header(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:60])


def cut_after_the_first_page(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:PAGE])


def schema_overwritten(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"\xff" * (PAGE - 100) + content[PAGE:])


def another_program(file: Path) -> None:
    file.unlink()
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE customers (name)")
    connection.commit()
    connection.close()


def newer_schema(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("damage", "remedy"),
    [
        (garbage, "penstock restore"),
        (cut_in_the_header, "penstock restore"),
        (cut_after_the_first_page, "penstock restore"),
        (schema_overwritten, "penstock restore"),
        (another_program, "another --data"),
        (newer_schema, "a newer one"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused_and_left_as_it_is(filled, damage, remedy):
    file = filled / schema.FILE_NAME
    damage(file)
    before = file.read_bytes()

    with pytest.raises(DataCorrupt) as refused:
        open_and_close(filled)

    assert str(file) in str(refused.value)
    assert remedy in refused.value.remedy
    assert "left as it is" in refused.value.remedy
    assert file.read_bytes() == before
    assert {path.name for path in filled.iterdir()} <= {schema.FILE_NAME, LOCK_NAME}


def test_a_newer_file_with_a_write_ahead_log_is_left_as_it_is(filled, tmp_path):
    file = filled / schema.FILE_NAME
    connection = sqlite3.connect(file)
    connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    crashed = tmp_path / "crashed"
    shutil.copytree(filled, crashed)  # while it is open: the version is in the write-ahead log only
    connection.close()
    before = {name: (crashed / name).read_bytes() for name in (schema.FILE_NAME, f"{schema.FILE_NAME}-wal")}

    with pytest.raises(DataCorrupt, match="schema is version"):
        open_and_close(crashed)

    assert {name: (crashed / name).read_bytes() for name in before} == before


def test_damage_that_is_met_at_the_start_changes_nothing_in_the_file(filled):
    file = filled / schema.FILE_NAME
    for table in ("entries", "streams"):
        overwrite(file, root_of(file, table), b"\xff" * PAGE)
    content = file.read_bytes()

    with pytest.raises(DataCorrupt) as refused:
        open_and_close(filled)

    assert "left as it is" not in refused.value.remedy  # SQLite might have moved a write-ahead log
    assert file.read_bytes() == content


@pytest.mark.parametrize("sign", ["keys.json", "admin.token", f"{schema.FILE_NAME}-wal"])
def test_an_emptied_file_is_not_taken_for_a_new_one(filled, sign):
    (filled / sign).write_bytes(b"x")
    (filled / schema.FILE_NAME).write_bytes(b"")

    with pytest.raises(DataCorrupt, match=f"it is empty, but .*{sign}"):
        open_and_close(filled)

    (filled / schema.FILE_NAME).unlink()
    (filled / f"{schema.FILE_NAME}-wal").unlink(missing_ok=True)
    assert open_and_close(filled) == "not needed"


def test_a_first_start_that_was_cut_off_is_gone_on_with(tmp_path):
    for name in (schema.FILE_NAME, LOCK_NAME):
        (tmp_path / name).touch()

    assert open_and_close(tmp_path) == "not needed"


def test_a_clean_stop_leaves_nothing_of_sqlites_own_beside_the_file(filled):
    async def read() -> None:
        async with open_sqlite(filled, node="n") as engine:
            await engine.log.read_index("/s/1", 0)

    asyncio.run(read())

    assert {path.name for path in filled.iterdir()} == {schema.FILE_NAME, LOCK_NAME}


def test_what_the_check_finds_is_logged_and_ends_the_writing(filled, caplog):
    file = filled / schema.FILE_NAME
    unclean(file)
    overwrite(file, first_leaf(file, "entries"), bytes(PAGE))

    async def run() -> None:
        async with open_sqlite(filled, node="n") as engine:
            assert await engine.check.wait() == "damaged"
            with pytest.raises(DataCorrupt):
                await engine.log.append(Batch((Draft("/s/1", b"after"),)))

    asyncio.run(run())

    [record] = [record for record in caplog.records if record.message == "data.damaged"]
    assert (record.levelname, record.file) == ("ERROR", str(file))
    assert "malformed" in record.found


def test_after_damage_was_met_nothing_more_is_stored(filled):
    file = filled / schema.FILE_NAME
    overwrite(file, first_leaf(file, "entries"), bytes(PAGE))

    async def run() -> str:
        async with open_sqlite(filled, node="n") as engine:
            assert engine.trouble == ""
            await engine.log.append(Batch((Draft("/s/1", b"before"),)))
            with pytest.raises(DataCorrupt):
                await engine.log.read_after([">"], 0)
            for store in (
                lambda: engine.log.append(Batch((Draft("/s/1", b"after"),))),
                lambda: engine.registry.put("key", b"value"),
                lambda: engine.mailbox.make_month("2026_11"),
            ):
                with pytest.raises(DataCorrupt, match="nothing more is stored"):
                    await store()
            return engine.trouble

    assert "damaged" in asyncio.run(run())
    assert open_and_close(filled) == "damaged"  # the stop was no clean one, so the start looks


def test_a_sound_file_is_not_refused(filled):
    """The counterpart: the same opening succeeds when nothing was damaged."""
    assert open_and_close(filled) == "not needed"


# ── the check after an unclean stop ────────────────────────────────────────────────────────────


def unclean(file: Path) -> None:
    """As after a crash."""
    connection = sqlite3.connect(file)
    connection.execute("UPDATE facts SET value = 0 WHERE name = 'clean'")
    connection.commit()
    connection.close()


def test_after_an_unclean_stop_the_file_is_read_through(filled):
    unclean(filled / schema.FILE_NAME)

    assert open_and_close(filled) == "sound"
    assert open_and_close(filled) == "not needed"


def test_damage_deep_in_the_file_is_found_beside_the_running_engine(filled):
    file = filled / schema.FILE_NAME
    unclean(file)
    overwrite(file, first_leaf(file, "entries") + 10, b"\xff" * 590)

    assert open_and_close(filled) == "damaged"


# ── older files ────────────────────────────────────────────────────────────────────────────────


def test_an_older_file_is_brought_up_to_date_step_by_step(tmp_path):
    # Given a file of version 1, and a program that knows two more
    calls: list[int] = []

    def second(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE records ADD COLUMN note TEXT")
        calls.append(2)

    def third(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO facts VALUES ('third', 1)")
        calls.append(3)

    open_and_close(tmp_path)
    connection = sqlite3.connect(tmp_path / schema.FILE_NAME, isolation_level=None)
    # When it is migrated, twice
    for _ in range(2):
        schema.migrate(connection, [*schema.MIGRATIONS, second, third])
    # Then each step ran once, and the file says its version
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    assert (calls, version, schema.fact(connection, "third")) == ([2, 3], len(schema.MIGRATIONS) + 2, 1)
    connection.close()


def test_a_migration_that_fails_leaves_the_version_before_it(tmp_path):
    def failing(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE records")
        raise RuntimeError("half way")

    open_and_close(tmp_path)
    connection = sqlite3.connect(tmp_path / schema.FILE_NAME, isolation_level=None)
    with pytest.raises(RuntimeError):
        schema.migrate(connection, [*schema.MIGRATIONS, failing])

    assert connection.execute("PRAGMA user_version").fetchone()[0] == len(schema.MIGRATIONS)
    assert connection.execute("SELECT count(*) FROM records").fetchone()[0] == 0
    connection.close()


def test_an_empty_file_is_version_0_and_becomes_one_of_today(tmp_path):
    (tmp_path / schema.FILE_NAME).touch()

    assert open_and_close(tmp_path) == "not needed"


def test_a_copy_of_a_crashed_file_goes_on_where_it_was(filled, tmp_path):
    """What is not folded yet is found again at the start."""

    async def run() -> int:
        async with open_sqlite(filled, node="n", options=SqliteOptions()) as engine:
            await engine.log.append(Batch((Draft("/s/0", b"late"),)))
            shutil.copytree(filled, tmp_path / "copy", ignore=shutil.ignore_patterns("*-shm"))
        async with open_sqlite(tmp_path / "copy", node="n") as engine:
            head = await engine.log.head("/s/0")
            return head.next_index

    assert asyncio.run(run()) == 44


def test_nobody_else_reads_the_file_even_where_they_may_enter(filled: Path) -> None:
    filled.chmod(0o755)
    open_and_close(filled)

    assert (filled / schema.FILE_NAME).stat().st_mode & 0o077 == 0
