"""The export of the log: the same rows as every engine's, read from JetStream in pages."""

from __future__ import annotations

from penstock.core.export import BLOCK_IDS, Block, LogExport, day_of
from penstock.engines.jetstream.log import JetStreamLog
from penstock.values import Entry


class JetStreamExport(LogExport):
    """`core.export.Export` of a cluster's log; any node can give it."""

    def __init__(self, log: JetStreamLog) -> None:
        super().__init__(log)
        self._source = log

    async def blocks(self, after: int, upto: int, step: int) -> list[Block]:
        found: list[Block] = []
        for begin in range(after, upto, window := max(step, BLOCK_IDS // step * step)):
            entries = await self._entries(begin, min(begin + window, upto))
            found += _blocks(entries, begin, step)
        return found

    async def _entries(self, after: int, upto: int) -> list[Entry]:
        return await self._source.range(after, upto)


def _blocks(entries: list[Entry], begin: int, step: int) -> list[Block]:
    """Sums over at most *step* ids each."""
    groups: dict[int, list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.id - begin - 1) // step, []).append(entry)
    return [_block(group) for group in groups.values()]


def _block(entries: list[Entry]) -> Block:
    days = [day_of(entry.published_ms) for entry in entries]
    return Block(entries[-1].id, len(entries), sum(len(entry.body) for entry in entries), min(days), max(days))
