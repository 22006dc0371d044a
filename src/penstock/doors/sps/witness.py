"""What a device was sent in the last moments before a crash, of which the ledger has no record.

The device is the witness, and it is believed on these terms: it was online when the server died, by `/_presence`; it
names the id of an event that was for it and came after its wire began. So it was sent that one, and what came for
it within the time that a crash can take from the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.core.log import Log
from penstock.core.names import is_exact, matches
from penstock.doors.sps.former import Window
from penstock.doors.sps.presence import Line
from penstock.doors.sps.topics import name_of, patterns_for
from penstock.doors.sps.wire import Wire
from penstock.limits import PAGE_ENTRIES
from penstock.values import Entry

UNRECORDED: Final = 5
"""What a crash takes from the ledger, in times that this waits before it writes: what waits, and what is on its way."""


class Witnesses:
    """Devices that were online when the life before this one ended."""

    def __init__(self, source: Log, flush_ms: int) -> None:
        self._log = source
        self._taken_ms = UNRECORDED * flush_ms
        self._began: dict[str, int] = {}  # the ids after which their wires began
        self._moments: Sequence[Entry] = ()  # entries around a crash, from `_since_ms` on: most ask for the same
        self._since_ms = 0

    def take(self, line: Line) -> None:
        """Take a line of presence, in order."""
        if line.state == "reset":
            self._began.clear()
        elif line.state == "online" and line.after is not None:
            self._began[name_of(line.uid, line.hid)] = line.after
        else:
            self._began.pop(name_of(line.uid, line.hid), None)

    async def sent(self, wire: Wire, id: int, window: Window) -> list[Entry]:
        """What the device of this wire was sent without a record, if it can tell by naming *id*."""
        began = self._began.get(wire.who.name, id)
        if began >= id:
            return []
        moments = await self._moments_before(id, max(began, window.after))
        wanted = list(filter(_chooser(wire), moments))
        return wanted if wanted and wanted[-1].id == id else []

    async def _moments_before(self, id: int, after: int) -> list[Entry]:
        """Entries up to *id* that were published within the time that a crash can take."""
        last = next((entry for entry in self._moments if entry.id == id), None) or await self._log.entry(id)
        if last is None:
            return []
        since_ms = last.published_ms - self._taken_ms
        if not self._moments or self._since_ms > since_ms or id > self._moments[-1].id:
            self._since_ms = since_ms - self._taken_ms
            begin = max(self._log.trimmed_upto, await self._log.id_before(self._since_ms))
            self._moments = (await self._log.read_after((">",), begin, limit=4 * PAGE_ENTRIES)).entries
        return [entry for entry in self._moments if after < entry.id <= id and entry.published_ms >= since_ms]


def _chooser(wire: Wire) -> Callable[[Entry], bool]:
    """What is for a device. An event whose time was limited may have run out since: nobody can tell."""
    patterns = patterns_for(wire.own, wire.topics)
    wide = [pattern for pattern in patterns if not is_exact(pattern)]

    def is_for(entry: Entry) -> bool:
        covered = entry.stream in patterns or any(matches(pattern, entry.stream) for pattern in wide)
        return covered and entry.expires_ms is None and wire.wants(entry)

    return is_for
