"""Items of a mailbox as packs: emitted ones as they were, followed ones from the log; and what the ledger hears."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.ledger import Ledger, Recipient
from penstock.core.log import Log
from penstock.core.names import is_system
from penstock.values import Entry, Item, Kind, NewItem
from penstock.wire.msgstream import entry_pack
from penstock.wire.msgstream_actions import Numbered

BROADCAST: Final = "/_broadcast"
"""The stream that all sessions follow."""
_EMPTY: Final = b"[]"
"""The pack of an entry that is no longer in the log. It is still delivered: a missing id would hold up clients."""


def reference(entry: Entry) -> NewItem:
    """The item that stands for a followed entry."""
    return NewItem(str(entry.id), entry.id, channel=entry.stream)


class PackTexts:
    """Makes the texts of packs. The one made last is kept: a broadcast goes to all sessions at once."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._id, self._text = 0, b""

    def of_entry(self, entry: Entry) -> bytes:
        if entry.id != self._id:
            self._id, self._text = entry.id, entry_pack(entry)
        return self._text

    async def of_items(self, items: Sequence[Item]) -> list[tuple[int, bytes]]:
        """The packs of *items* by their numbers, in their order."""
        return [(item.number, item.body or await self._referenced(item.entry_id)) for item in items]

    async def _referenced(self, entry_id: int | None) -> bytes:
        entry = await self._log.entry(entry_id or 0)
        return _EMPTY if entry is None or entry.kind is not Kind.DATA else self.of_entry(entry)


def record_packs(
    ledger: Ledger, who: Recipient, state: str, month: str, packs: Sequence[Numbered], reason: str = ""
) -> None:
    """Tell the ledger what happened to packs of *who*: of followed entries as entries, of all others as items.

    Entries share a record where they are neighbours, as packs and in their stream: no other lies between.
    Broadcasts are items, for deliveries of system streams are not recorded.
    """
    stream, first, last, before = "", 0, 0, 0
    for number, pack in packs if ledger.enabled else ():
        if not pack.stream or is_system(pack.stream):
            ledger.record_item(who, state, pack.message_id, month, number, reason=reason)
            continue
        if pack.stream != stream or number != before + 1:
            _record_interval(ledger, who, state, stream, first, last, reason)
            stream, first = pack.stream, pack.entry_id
        last, before = pack.entry_id, number
    _record_interval(ledger, who, state, stream, first, last, reason)


def _record_interval(
    ledger: Ledger, who: Recipient, state: str, stream: str, first: int, last: int, reason: str
) -> None:
    if stream and state == "sent":
        ledger.sent(who, stream, first, last)
    elif stream:
        ledger.record(who, state, stream, first, last, reason=reason)
