"""The export of a log whose older part has gone to the lake: one answer, with the seam somewhere in it.

    after ……………………… trimmed_upto │ ……………………………… upto
    the lake, by row groups        │ the engine's own export, which goes on with the same Arrow stream

The server reads the lake for those who export, instead of telling them its files: a task on another machine has a
token and no keys to the store, and sees the streams that its token allows. Each row group is looked for in the table as
it is at that moment, so what was erased from the lake in the middle of an export does not come any more.

The trim point is looked at anew after each piece. What was trimmed meanwhile is in the lake, so nothing is missed. Only
where the engine has begun with its rows is it too late to go back; then the answer breaks off, complete up to its last
row (`core.export.Export.stream`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.core.clock import Clock
from penstock.core.export import Block, Export, ExportRange, load_arrow
from penstock.core.log import Log
from penstock.engines.lake.reader import LakeReader
from penstock.errors import Trimmed

if TYPE_CHECKING:
    from penstock.engines.lake.export_rows import FoundRows


class HistoryExport:
    """`core.export.History` over an engine's log and a lake."""

    def __init__(self, log: Log, export: Export, lake: LakeReader, clock: Clock) -> None:
        self._log, self._export, self._lake, self._clock = log, export, lake, clock

    async def begins_after(self) -> int:
        trimmed_upto = self._log.trimmed_upto
        return await self._lake.begins_after(trimmed_upto) if trimmed_upto else 0

    async def blocks(self, after: int, upto: int, step: int) -> list[Block]:
        while True:
            seam = max(after, min(self._log.trimmed_upto, upto))
            found = await self._lake.blocks(after, seam, step) if after < seam else []
            try:
                found += await self._export.blocks(seam, upto, step) if seam < upto else []
            except Trimmed:
                if self._log.trimmed_upto <= seam:
                    raise
                continue  # the lake has by now what has gone meanwhile
            if max(after, min(self._log.trimmed_upto, upto)) == seam:
                return found

    async def stream(self, wanted: ExportRange) -> AsyncGenerator[bytes, None]:
        rest = wanted
        while rest.after < wanted.upto:
            if rest.after < self._log.trimmed_upto:
                found = await self._read_cold(rest, min(self._log.trimmed_upto, wanted.upto))
                rest = replace(rest, after=found.upto, rows_before=found.rows)
                for piece in found.pieces:
                    yield piece
                continue
            begun = False
            try:
                async with aclosing(self._export.stream(rest)) as pieces:
                    async for piece in pieces:
                        begun = True
                        yield piece
                return
            except Trimmed:
                if begun:
                    raise
        arrow = await asyncio.to_thread(load_arrow)
        if rest.rows_before is None:
            yield arrow.opening(wanted.columns)
        yield arrow.closing(wanted.columns, rest.rows_before or 0, wanted.upto)

    async def _read_cold(self, rest: ExportRange, seam: int) -> FoundRows:
        """The first rows of the rest that are in the lake, none beyond the seam."""
        return await self._lake.export(replace(rest, upto=seam), self._clock.now_ms())

    async def close(self) -> None:
        return None
