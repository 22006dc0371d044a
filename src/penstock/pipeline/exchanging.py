"""Puts other files in the place of some of a day's, in one step: what compaction and erasing share.

A new folder of the day is built beside the old one: hard links of what stays, new files for what is replaced. Then the
two folders are exchanged and the old one goes. A reader that has listed the old folder may find a file gone; it never
gets a wrong row or one twice, for a name never comes to have other bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.pipeline.commit import Faults, Staged, StagedWrong
from penstock.pipeline.tables import Lake
from penstock.wire.lake import LakeFile, day_folder

BEFORE_EXCHANGE: Final = "before the exchange"


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
