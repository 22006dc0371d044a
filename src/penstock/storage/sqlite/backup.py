"""Copies the file while it is in use, and puts a copy back.

A backup is a directory with the file and `manifest.json`. The manifest is written last, after the copy was read
through and is on the disk: a directory without one is no backup.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import DataCorrupt, InputInvalid
from penstock.storage.sqlite.connection import open_reader, translated
from penstock.storage.sqlite.schema import FILE_NAME, check_file, last_id

MANIFEST: Final = "manifest.json"
STEP_PAGES: Final = 2_048
"""Pages (8 MiB) copied in one go. The server runs on meanwhile; what it writes is not in the copy."""
_BLOCK: Final = 1024 * 1024

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

    The copy is the state of one moment. `InputInvalid` if the directory is not empty.
    """
    _make_empty(directory)
    copy = directory / FILE_NAME
    try:
        _copy_database(path, copy, progress)
        manifest = _examine(copy)
    except sqlite3.Error as error:
        raise translated(error, copy) from error
    _write_durably(directory / MANIFEST, [msgspec.json.encode(manifest)])
    return manifest


def restore(source: Path, target: Path, progress: Progress | None = None) -> Manifest:
    """Put the backup in *source* into the empty directory *target*, for a server to start on.

    `DataCorrupt` if the backup is not what its manifest says; then *target* holds no file.
    """
    manifest = _read_manifest(source)
    if _sha256(source / FILE_NAME) != manifest.sha256:
        raise DataCorrupt(str(source / FILE_NAME), "it is not the file that its manifest describes")
    _make_empty(target)
    with (source / FILE_NAME).open("rb") as file:
        blocks = iter(lambda: file.read(_BLOCK), b"")
        _write_durably(target / FILE_NAME, _counted(blocks, manifest.bytes, progress))
    return manifest


def _make_empty(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise InputInvalid("directory", f"{directory} is not empty")


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


def _examine(copy: Path) -> Manifest:
    """Read the copy through; `DataCorrupt` if it is damaged."""
    with closing(sqlite3.connect(copy)) as connection:
        check_file(connection, str(copy))
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise DataCorrupt(str(copy), found)
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
        raise DataCorrupt(str(directory), f"it has no {MANIFEST}, so it is no finished backup") from None
    except msgspec.MsgspecError as error:
        raise DataCorrupt(str(path), str(error)) from None


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise DataCorrupt(str(path), "it is missing") from None


def _counted(blocks: Iterable[bytes], total: int, progress: Progress | None) -> Iterator[bytes]:
    done = 0
    for block in blocks:
        yield block
        done += len(block)
        if progress:
            progress(done, total)


def _write_durably(path: Path, blocks: Iterable[bytes]) -> None:
    """Make a file that is there whole or not at all, whenever the machine stops."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        for block in blocks:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
