"""How far the log may be trimmed: never beyond what this server can read back from the lake.

The pipeline records how far `events` and `ledger` are in the registry. Below the lower of the two everything is
in the lake, but that alone is not enough: the server must have that very lake open, and find the files. Without a
pipeline there is nothing to wait for, and `log.keep` alone decides.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.core.epoch import KEY as EPOCH
from penstock.core.epoch import LogEpoch
from penstock.core.log import Log
from penstock.core.registry import Registry
from penstock.core.trim_limit import Bound, TrimLimit, Watermark
from penstock.engines.lake import LakeReader

TABLES: Final = ("events", "ledger")
"""The tables that must have an entry before it may go."""


class LakeMark(msgspec.Struct, frozen=True):
    """Which lake it is, and of which epoch of the log it speaks."""

    id: str = ""
    epoch: str = ""


class LakeTrimLimit(TrimLimit):
    """Answers how far, from the registry and from the lake's own files. Asked anew before each trim."""

    def __init__(self, log: Log, registry: Registry, lake: LakeReader | None) -> None:
        self._log, self._registry, self._lake = log, registry, lake

    async def watermarks(self) -> dict[str, Watermark]:
        """How far each table is, as the pipeline has recorded it."""
        found = {}
        for table in TABLES:
            if record := await self._registry.get(f"lake/{table}"):
                found[table] = msgspec.json.decode(record.value, type=Watermark)
        return found

    async def bound(self) -> Bound:
        """How far the log may be trimmed now."""
        marks = await self.watermarks()
        trimmed = self._log.trimmed_upto
        if not marks and await self._registry.get("lake/id") is None:
            return Bound(self._log.followed, "no pipeline archives this log: log.keep alone decides", archived=False)
        if self._lake is None:
            return Bound(trimmed, "lake.url is not set: this server could not read back what it trims")
        if why := await self._why_another_lake(self._lake):
            return Bound(trimmed, why)
        lowest = min(TABLES, key=lambda table: marks.get(table, Watermark()).done)
        upto = marks.get(lowest, Watermark()).done
        covered = await self._lake.covered_upto(trimmed)
        if covered < upto:
            return Bound(max(trimmed, covered), f"the files of {self._lake.url} reach up to id {covered} only")
        return Bound(max(trimmed, upto), f"{lowest} is in the lake up to id {upto}")

    async def _why_another_lake(self, lake: LakeReader) -> str:
        """Why the open lake is not the one that the watermarks speak of; empty if it is."""
        record, known = await self._registry.get("lake/id"), await self._registry.get(EPOCH)
        there = _mark(record.value) if record else LakeMark()
        here = _mark(await lake.mark())
        if here.id != there.id:
            return f"{lake.url} is not the lake that this log is archived in"
        epoch = msgspec.json.decode(known.value, type=LogEpoch) if known else LogEpoch("")
        if epoch.is_own(here.epoch) and epoch.is_own(there.epoch):
            return ""
        return f"{lake.url} speaks of another history of this log, which was restored from a backup"


def _mark(text: bytes) -> LakeMark:
    try:
        return msgspec.json.decode(text, type=LakeMark)
    except msgspec.MsgspecError:
        return LakeMark()
