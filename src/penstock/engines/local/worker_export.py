"""The export of the log as a worker hands it out: the log process makes the pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import count

from penstock.core.export import Block, ExportRange
from penstock.engines.local.worker_calls import LogCalls


class WorkerExport:
    """`core.export.Export` of a worker: the pieces come one by one, each when it is asked for."""

    def __init__(self, link: LogCalls) -> None:
        self._link, self._numbers = link, count(1)

    async def blocks(self, after: int, upto: int, step: int) -> list[Block]:
        found: list[Block] = await self._link.call("blocks", list[Block], after, upto, step)
        return found

    async def stream(self, wanted: ExportRange) -> AsyncGenerator[bytes, None]:
        number, call = next(self._numbers), self._link.call
        asked = call("export_open", None, number, wanted)
        try:
            await asked
            asked = call("export_next", bytes | None, number)
            while (piece := await asked) is not None:
                yield piece
                asked = call("export_next", bytes | None, number)
        finally:  # after the piece that is being made: what is at work cannot be closed
            asked.add_done_callback(lambda _: self._close_export(number))

    def _close_export(self, number: int) -> None:
        if self._link.is_open:
            self._link.call("export_close", None, number)

    async def close(self) -> None:
        return None
