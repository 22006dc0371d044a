"""Puts other files in the place of some of a day's, in one step: what compaction and erasing share.

A new folder of the day is built beside the old one: hard links of what stays, new files for what is replaced. Then the
two folders are exchanged and the old one goes. A reader that has listed the old folder may find a file gone; it never
gets a wrong row or one twice, for a name never comes to have other bytes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.pipeline.commit import Faults, Staged, StagedWrong
from penstock.pipeline.tables import Lake
from penstock.wire.lake import STAGING, LakeFile, day_folder

BEFORE_EXCHANGE: Final = "before the exchange"
COMPACTING: Final = "compact-"
"""What the folder of a compaction begins with."""


@contextmanager
def workshop(lake: Lake) -> Iterator[Path]:
    """A folder for a compaction, locked while it is under way and gone afterwards."""
    work = lake.root / STAGING / f"{COMPACTING}{uuid.uuid4().hex}"
    work.mkdir(parents=True)
    try:
        with (work / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def sweep(lake: Lake, *, also_under_way: bool = False) -> int:
    """Remove what compactions have left behind that were cut off; returns how many.

    They have copies of rows that may have been erased since. *also_under_way*: those that still work, too. They would
    have to give way in any case when their files are replaced.
    """
    left = [work for work in (lake.root / STAGING).glob(f"{COMPACTING}*") if also_under_way or not _is_held(work)]
    for work in left:
        shutil.rmtree(work, ignore_errors=True)
    return len(left)


def _is_held(work: Path) -> bool:
    try:
        with (work / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def exchange_files(lake: Lake, gone: Sequence[LakeFile], made: Sequence[Staged], work: Path, faults: Faults) -> None:
    """Replace the files *gone* by those that were *made* of them; all of one table and day. Under the lake's lock."""
    table, day = made[0].file.table, made[0].file.day
    present = set(lake.files_of_day(table, day))
    if not set(gone) <= present:
        raise StagedWrong(f"{table} of {day} was changed by somebody else meanwhile")
    fresh = work / table / day_folder(day)
    fresh.mkdir(parents=True)
    for file in present - set(gone):
        os.link(lake.path(file), fresh / file.name)
    for one in made:
        os.link(one.path, fresh / one.file.name)
    faults.at(BEFORE_EXCHANGE)
    lake.exchange_day(table, day, fresh)
