"""The lake: a folder of plain Parquet on a POSIX file system. Its tables' columns, and how files get into it.

    events         what was published, every stream, `/_…` too
    ledger         what happened to it: the decoded batches of `/_ledger`
    deliveries     the ledger folded: what became of it, for whom
    positions      how far recipients say that they have come
    rollup_hourly  sums per hour, in columns that may be added up
    activity       when each recipient was last heard of
    unreadable     entries of the system that cannot be read, and why

`wire/lake.py` has the names of files.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigInvalid, OperatorError
from penstock.wire.columns import TABLES, ddl
from penstock.wire.lake import LETTERS, STAGING, LakeFile, first_hole, parse_folder, parse_name

SCHEMAS: Final = {name: ddl(columns) for name, columns in TABLES.items()}
"""As Spark wants them."""

EVENTS, LEDGER, DELIVERIES = SCHEMAS["events"], SCHEMAS["ledger"], SCHEMAS["deliveries"]
POSITIONS, ACTIVITY = SCHEMAS["positions"], SCHEMAS["activity"]

COMPRESSION: Final = "zstd"
"""Of the files, by whichever way they are written."""

GROUP_BYTES: Final = 8 * 1024 * 1024
"""Of a row group, in memory. It is what a cold read opens: with the usual 128 MiB it would read a whole day."""

_EXCHANGE: Final = 2  # RENAME_EXCHANGE
_HERE: Final = -100  # AT_FDCWD


class ExchangeMissing(OperatorError):
    """The file system cannot exchange two folders in one step."""

    code = "exchange_missing"
    remedy = "Keep the lake on ext4, xfs, btrfs or tmpfs; all else works without, compaction and erasing do not."


class LakeHole(OperatorError):
    """Files of the lake are gone. Nothing was done: no file is not the same as no rows."""

    code = "lake_hole"
    remedy = "Put the file back, from a backup of the lake; the job goes on by itself then."

    def __init__(self, table: str, lo: int, hi: int) -> None:
        super().__init__(f"no file of {table} has the ids {lo + 1:,} to {hi:,}")
        self.table, self.lo, self.hi = table, lo, hi


class Lake:
    """A lake's folder. Everything in it that is visible is complete."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.epoch = ""  # of the log whose entries it holds; set by `lake_identity.bind`

    def files(self, table: str) -> list[LakeFile]:
        """Every published file of *table*, in order of ids."""
        found = [file for day in self.days(table) for file in self.files_of_day(table, day)]
        return sorted(found)

    def files_of_day(self, table: str, day: str) -> list[LakeFile]:
        """The published files of one day, in order of ids."""
        names = _names(self.root / table / f"day={day}")
        return sorted(file for name in names if (file := parse_name(table, day, name)))

    def covering(self, table: str, after: int, upto: int) -> list[LakeFile]:
        """The files that have the ids in (after, upto], in order; `LakeHole` if some of those are in none.

        Days are listed from the newest on, and no more of them than it takes: years of files cost a turn nothing.
        """
        found: list[LakeFile] = []
        if after >= upto:
            return found
        for day in reversed(self.days(table)):
            found += (file for file in self.files_of_day(table, day) if file.overlaps(after, upto))
            if found and first_hole(found, after, upto) is None:
                return sorted(found)
        raise LakeHole(table, *(first_hole(found, after, upto) or (after, upto)))

    def days(self, table: str) -> list[str]:
        """The days that *table* has a folder for, in order."""
        return sorted(day for name in _names(self.root / table) if (day := parse_folder(name)))

    def path(self, file: LakeFile) -> Path:
        """Where *file* is."""
        return self.root / file.path

    def staging(self, table: str, fence: int) -> Path:
        """Where a driver with this fence prepares files of *table*."""
        return self.root / STAGING / table / str(fence)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone while files are published or exchanged.

        A driver that was overtaken checks its fence in here, and nobody can compact what it is about to
        publish between that check and its rename. A driver that hangs in here holds up the others rather
        than doing harm; one that ends lets go.
        """
        (self.root / STAGING).mkdir(parents=True, exist_ok=True)
        with (self.root / STAGING / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def publish(self, staged: Path, file: LakeFile) -> bool:
        """Give a complete file its name, durably; False if that is taken, which means that it was done before."""
        target = self.path(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        sync(staged)
        try:
            os.link(staged, target)  # unlike a rename, never over a file that is there
        except FileExistsError:
            return False
        finally:
            sync(target.parent)
            sync(target.parent.parent)
        return True

    def exchange_day(self, table: str, day: str, fresh: Path) -> None:
        """Put the folder *fresh* in the place of a day, in one step; what was there is removed."""
        target = self.root / table / f"day={day}"
        for file in fresh.iterdir():
            sync(file)
        sync(fresh)
        exchange(fresh, target)
        sync(target.parent)
        shutil.rmtree(fresh)


def open_lake(location: str | Path) -> Lake:
    """The lake at *location*, its folder made if need be. Anything but a local folder is refused."""
    text = str(location)
    place = urlsplit(text)
    if place.scheme not in ("", "file") or (place.scheme == "file" and place.netloc not in ("", "localhost")):
        raise ConfigInvalid(
            "lake",
            f"{text} is not a folder of this machine",
            remedy="Give a folder: publishing a file needs a rename in one step, which object stores do not have.",
        )
    root = Path(unquote(place.path) if place.scheme else text).absolute()
    try:
        for table in LETTERS:
            (root / table).mkdir(parents=True, exist_ok=True)
        (root / STAGING).mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigInvalid("lake", f"{root} cannot be written: {error.strerror}") from error
    return Lake(root)


def days_between(files: Iterable[LakeFile], after: int, upto: int) -> list[tuple[int, int, str]]:
    """The ids in (after, upto] cut by days, as the names of *files* tell them: (lo, hi, day), in order, no gaps."""
    cuts: list[tuple[int, int, str]] = []
    for file in sorted(file for file in files if file.overlaps(after, upto)):
        lo, hi = max(file.lo, after), min(file.hi, upto)
        if cuts and cuts[-1][2] == file.day and cuts[-1][1] == lo:
            cuts[-1] = (cuts[-1][0], hi, file.day)
        else:
            cuts.append((lo, hi, file.day))
    return cuts


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, text: str) -> None:
    """Write a small file in one step: whenever the machine stops, it is there whole, as before or as it is now."""
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    fresh.write_text(text)
    sync(fresh)
    fresh.rename(path)
    sync(path.parent)


def exchange(one: Path, other: Path) -> None:
    """Exchange two folders in one step: at every moment both names are there."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        raise ExchangeMissing("this system has no renameat2")
    if library.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise ExchangeMissing(f"{one} and {other} cannot be exchanged: {os.strerror(number)}")


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return []
