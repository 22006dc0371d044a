"""What an endpoint looks up for every message: the router record and its month's channels.

A node that is alone is the only writer of both, so it may remember them: what it has read stays true until
one of its own writes has come through, and each of those ends in `forget`. A remembered record is thus never
older than one that was read the moment before such a write, and the orders of `records.py` hold. With other
nodes about, everything is read anew.
"""

from __future__ import annotations

import msgspec

from penstock.core.mailbox import Mailbox
from penstock.doors.webpush.records import RouterRecord, RouterTable
from penstock.limits import PUSH_AGENTS_KNOWN


class Known(msgspec.Struct, frozen=True, gc=False):
    """One user agent, as it was looked up."""

    record: RouterRecord
    channels: tuple[str, ...]


class Lookup:
    """Finds user agents."""

    def __init__(self, router: RouterTable, mailbox: Mailbox, *, alone: bool) -> None:
        self._router, self._mailbox, self._alone = router, mailbox, alone
        self._known: dict[str, Known] = {}
        self._changes = 0
        router.changed = self.forget

    def forget(self, uaid: str) -> None:
        """Something about this user agent was written."""
        self._changes += 1
        self._known.pop(uaid, None)

    def known(self, uaid: str) -> Known | None:
        """The user agent, if it is remembered; never on a node that is not alone."""
        return self._known.get(uaid)

    async def find(self, uaid: str) -> Known | None:
        """The user agent, or None. `NotFound` if its month is gone."""
        if (known := self._known.get(uaid)) is not None:
            return known
        changes = self._changes
        found = await self._router.find(uaid)
        if found is None:
            return None
        known = Known(found.record, await self._mailbox.channels(uaid, found.record.month))
        if changes == self._changes:  # else a write may have overtaken what was read
            self.remember(uaid, known)
        return known

    def remember(self, uaid: str, known: Known) -> None:
        """Keep what is known of a user agent, if nobody else could change it."""
        if self._alone:
            if len(self._known) >= PUSH_AGENTS_KNOWN:
                self._known.clear()
            self._known[uaid] = known

    async def record(self, uaid: str) -> RouterRecord | None:
        """The router record alone, as it is now."""
        if (known := self._known.get(uaid)) is not None:
            return known.record
        found = await self._router.find(uaid)
        return None if found is None else found.record
