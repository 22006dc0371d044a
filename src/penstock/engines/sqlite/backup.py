"""Copies the file while it is in use, and puts a copy back.

A backup is a directory with the file and `manifest.json`. The manifest is written last, after the copy was read
through and is on the disk: a directory without one is no backup. Everything that is made here is for its owner alone:
a copy of the data holds what the data holds.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from penstock.core.epoch import KEY, LogEpoch
from penstock.engines.sqlite.connection import open_reader
from penstock.engines.sqlite.disk_failures import translated
from penstock.engines.sqlite.file_check import check_file
from penstock.engines.sqlite.schema import FILE_NAME, fact, last_id, set_fact
from penstock.errors import DataCorrupt, DiskFull, InputInvalid

MANIFEST: Final = "manifest.json"
STEP_PAGES: Final = 2_048
"""Pages (8 MiB) copied in one go. The server runs on meanwhile; what it writes is not in the copy."""
_BLOCK: Final = 1024 * 1024
_ELSEWHERE: Final = "Name a new folder that the server may make, outside its data directory."

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes there are."""


class Manifest(msgspec.Struct, frozen=True):
    """What a backup holds."""

    schema_version: int
    last_id: int
    bytes: int
    sha256: str


def backup(path: Path, directory: Path, progress: Progress | None = None) -> Manifest:
    """Copy the file at *path* into an empty *directory*; it may be in use.

    The copy is the state of one moment. `InputInvalid` if the directory is not empty, cannot be made, or is within
    the data directory; `DataCorrupt` if the copy is damaged. A backup that fails leaves no file.
    """
    copy = directory / FILE_NAME
    with _answerable(directory):
        _check_apart(directory, path.parent)
        _make_empty(directory)
        copy.touch(mode=0o600, exist_ok=False)
        try:
            manifest = _copied(path, copy, progress)
            _write_durably(directory / MANIFEST, [msgspec.json.encode(manifest)])
        except BaseException:
            copy.unlink(missing_ok=True)
            raise
    return manifest


def restore(source: Path, target: Path, progress: Progress | None = None) -> Manifest:
    """Put the backup in *source* into the empty directory *target*, for a server to start on.

    `DataCorrupt` if the backup is not what its manifest says; then *target* holds no file.
    """
    manifest = _read_manifest(source)
    if _sha256(source / FILE_NAME) != manifest.sha256:
        raise _bad_backup(source / FILE_NAME, "it is not the file that its manifest describes")
    with _answerable(target):
        _make_empty(target)
        with (source / FILE_NAME).open("rb") as file:
            blocks = iter(lambda: file.read(_BLOCK), b"")
            _write_durably(target / FILE_NAME, _counted(blocks, manifest.bytes, progress), _begin_epoch)
    return manifest


@contextmanager
def _answerable(directory: Path) -> Iterator[None]:
    """Say of whatever the system refuses in *directory* whether another one would do."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a character that no path has
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            full = DiskFull(f"no space left for {directory}")
            full.remedy = "Free space there, or name a directory on another disk."
            raise full from error
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InputInvalid("directory", f"{str(directory)!r} cannot be used: {why}", remedy=_ELSEWHERE) from error


def _check_apart(directory: Path, data: Path) -> None:
    if Path(os.path.realpath(directory)).is_relative_to(os.path.realpath(data)):
        raise InputInvalid("directory", f"{directory} is in the data directory itself", remedy=_ELSEWHERE)


def _make_empty(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise InputInvalid("directory", f"{directory} is not empty", remedy=_ELSEWHERE)


def _copied(path: Path, copy: Path, progress: Progress | None) -> Manifest:
    try:
        _copy_database(path, copy, progress)
    except sqlite3.Error as error:
        meant = translated(error, copy)
        raise (
            translated(error, path) if isinstance(meant, DataCorrupt) else meant
        ) from error  # *path* is what is read
    try:
        return _examine(path, copy)
    except sqlite3.Error as error:
        raise translated(error, copy) from error


def _copy_database(path: Path, copy: Path, progress: Progress | None) -> None:
    def report(_: int, remaining: int, total: int) -> None:
        if progress:
            progress(total - remaining, total)

    with closing(open_reader(path)) as source, closing(sqlite3.connect(copy)) as target:
        # An open read holds on to one moment: without it every commit would begin the copy anew.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        source.backup(target, pages=STEP_PAGES, progress=report)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, nothing beside it


def _examine(path: Path, copy: Path) -> Manifest:
    """Read the copy through; `DataCorrupt` if it is damaged."""
    with closing(sqlite3.connect(copy)) as connection:
        check_file(connection, str(copy))
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise DataCorrupt(str(path), f"a copy of it is damaged: {found}")
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        newest = last_id(connection)
    with copy.open("rb") as file:
        os.fsync(file.fileno())
    return Manifest(version, newest, copy.stat().st_size, _sha256(copy))


def _read_manifest(directory: Path) -> Manifest:
    path = directory / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise _bad_backup(directory, f"it has no {MANIFEST}, so it is no finished backup") from None
    except msgspec.MsgspecError as error:
        raise _bad_backup(path, str(error)) from None


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise _bad_backup(path, "it is missing") from None


def _bad_backup(path: Path, detail: str) -> DataCorrupt:
    return DataCorrupt(str(path), detail, remedy="Take another backup; nothing was restored from this one.")


def _counted(blocks: Iterable[bytes], total: int, progress: Progress | None) -> Iterator[bytes]:
    done = 0
    for block in blocks:
        yield block
        done += len(block)
        if progress:
            progress(done, total)


def _begin_epoch(path: Path) -> None:
    """Give a restored log an epoch of its own: from here on its ids stand for other entries than before."""
    with closing(sqlite3.connect(path)) as connection, connection:
        version = fact(connection, "version") + 1
        set_fact(connection, "version", version)
        epoch = LogEpoch(secrets.token_hex(8), restored=True).encoded()
        connection.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, NULL)", (KEY, epoch, version))


def _write_durably(path: Path, blocks: Iterable[bytes], finish: Callable[[Path], None] | None = None) -> None:
    """Make a file that is there whole or not at all, whenever the machine stops; *finish* may still change it."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb", opener=_private) as file:
        for block in blocks:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    if finish:
        finish(part)
    part.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
