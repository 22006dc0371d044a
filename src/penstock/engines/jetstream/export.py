"""The export of the log: the same rows as every engine's, read from JetStream in pages."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.core.export import LogExport
from penstock.engines.jetstream.log import JetStreamLog
from penstock.values import Entry


class JetStreamExport(LogExport):
    """`core.export.Export` of a cluster's log; any node can give it."""

    def __init__(self, log: JetStreamLog) -> None:
        super().__init__(log)
        self._source = log

    def _pages(self, after: int, upto: int) -> AsyncIterator[list[Entry]]:
        return self._source.pages(after, upto)
