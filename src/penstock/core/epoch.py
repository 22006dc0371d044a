"""The epoch of a log: a name for one history of ids.

An id means one entry, until a backup is restored: from there on the same ids are given to other entries. So a restored
log has another epoch, and whoever keeps something by id elsewhere (the lake) keeps the epoch beside it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.core.registry import Registry, made_once
from penstock.wire.lake_files import is_own_epoch

KEY: Final = "log/epoch"
"""Where the registry has it."""


class LogEpoch(msgspec.Struct, frozen=True):
    """The log's epoch, as the registry has it."""

    epoch: str
    restored: bool = False  # the log was put back from a backup, and others may know more of its ids than it does

    def is_own(self, other: str) -> bool:
        """Whether what carries the epoch *other* (empty: none) speaks of this log's ids."""
        return is_own_epoch(self.epoch, self.restored, other)

    def encoded(self) -> bytes:
        """As the registry has it."""
        return msgspec.json.encode(self)


async def open_epoch(registry: Registry, fresh: str) -> LogEpoch:
    """The log's epoch; *fresh* if it has none yet."""
    return msgspec.json.decode(await made_once(registry, KEY, LogEpoch(fresh).encoded), type=LogEpoch)
