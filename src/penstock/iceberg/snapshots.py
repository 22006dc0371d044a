"""Which snapshots and former states of a table stay when a new one comes.

A snapshot that is kept can be asked for: time travel. A former state cannot, and its files stay all the same, for
whoever has loaded it and reads on. The log of metadata.json files tells which those are. It is part of the table, so
every process that commits or sweeps knows of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyiceberg.table.snapshots import MetadataLogEntry, Operation, Snapshot

SNAPSHOTS: Final = 10
"""Kept for time travel, whatever their age."""

GRACE_MS: Final = 10 * 60 * 1000
"""For so long all files of a state stay after another has followed it. A scan may take that long."""

STATES: Final = 1_000
"""Former states that are kept at most, whatever their age: a clock that was set back would keep them all."""


def kept_snapshots(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """The newest, and those around a replacement of files that was made a short while ago."""
    newest, older = snapshots[-1].timestamp_ms, snapshots[: 1 - SNAPSHOTS]
    young = [newest - one.timestamp_ms < GRACE_MS and _replaces(one) for one in older]
    return [
        *(one for one, replaces, replaced in zip(older, young, young[1:], strict=False) if replaces or replaced),
        *snapshots[-SNAPSHOTS:],
    ]


def _replaces(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.OVERWRITE


def kept_log(log: Sequence[MetadataLogEntry], now_ms: int) -> list[MetadataLogEntry]:
    """Of the former states, the oldest first, the newest and those that were the present one a short while ago."""
    followed = [*(one.timestamp_ms for one in log[1:]), now_ms]
    young = sum(now_ms - moment < GRACE_MS for moment in followed)
    return list(log[-min(max(young, SNAPSHOTS), STATES) :])
