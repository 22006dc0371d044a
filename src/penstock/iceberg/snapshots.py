"""Which snapshots of a table stay when a new one comes, and with them for how long data files that were replaced do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyiceberg.table.snapshots import Operation, Snapshot

SNAPSHOTS: Final = 10
"""Kept for time travel, and for readers in the middle of a scan. Older ones go with the next commit."""

GRACE_MS: Final = 10 * 60 * 1000
"""For so long data files that were replaced stay: the snapshot that names them is kept. A scan may take that long."""


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
