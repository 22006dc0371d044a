"""The contract of mailboxes: what each recipient still has to confirm, kept by month.

A mailbox is named by a recipient (a device, a session) and a month (`2026_11`). Its items are
numbered 1, 2, 3 … without a gap, also over a crash. Months are made in advance and dropped whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from penstock.errors import VersionMismatch
from penstock.limits import MAILBOX_PAGE
from penstock.values import Item, MailboxHead, NewItem, Room


class Mailbox(Protocol):
    """Numbered items per recipient and month, confirmed one by one.

    A change is durable, as far as the engine is, before the call returns. Calls see all that was acknowledged before.
    A month that was not made is `NotFound`.
    """

    def put(
        self, recipient: str, month: str, items: Sequence[NewItem], *, position: int | None = None,
        expect: int | None = None, room: Room | None = None,
    ) -> Awaitable[list[Item]]:  # fmt: skip
        """Store *items* as one batch and return them with their numbers.

        An item with a collapse key takes the place of the pending one with the same channel and
        key: it gets a new number, the older one is gone. *position*, if given, becomes the head's
        read position in the same batch; it never goes back. With *expect* that is where it must be now; else
        `VersionMismatch`, and nothing is stored: of two who forward the same entries, one does. With *room*
        no more than that may be pending afterwards, expired items included until they are removed; else
        `MailboxFull`, and nothing is stored. What that costs does not grow with what is pending beyond *room*.
        """
        ...

    async def take(self, recipient: str, month: str, *, after: int = 0, limit: int = MAILBOX_PAGE) -> list[Item]:
        """Pending items with numbers greater than *after*, ascending; expired ones are left out."""
        ...

    async def confirm(self, recipient: str, month: str, numbers: Sequence[int]) -> list[Item]:
        """Remove these items; return those that were there. A replaced edition is not there any more."""
        ...

    async def find(self, recipient: str, month: str, message_id: str) -> Item | None:
        """The pending item with this message id, expired or not."""
        ...

    async def edition(self, recipient: str, month: str, channel: str, collapse: str) -> Item | None:
        """The pending item with this channel and collapse key, expired or not: the one that a put would replace."""
        ...

    async def channels(self, recipient: str, month: str) -> tuple[str, ...]:
        """The channels of the head, whatever is pending."""
        ...

    async def head(self, recipient: str, month: str) -> MailboxHead:
        """What is known of this recipient; an unknown one has an empty head.

        It counts exactly the pending items whose numbers are below `next_number`. To read those, and then to go on with
        `take(after=next_number - 1)`, misses no item.
        """
        ...

    async def set_channels(self, recipient: str, month: str, channels: Sequence[str]) -> None:
        """Replace the channels of the head."""
        ...

    async def add_channel(self, recipient: str, month: str, channel: str) -> bool:
        """Add one channel; False if it was there."""
        ...

    async def remove_channel(self, recipient: str, month: str, channel: str) -> bool:
        """Remove one channel and its pending items; False if it was not there."""
        ...

    async def forget(self, recipient: str, month: str) -> int:
        """Remove the recipient with all its items; return how many items went. Numbering begins anew."""
        ...

    async def expire(self, month: str, limit: int = 10_000) -> list[tuple[str, Item]]:
        """Remove items whose time has run out; return them with their recipients."""
        ...

    async def recipients(self, month: str, *, after: str = "", limit: int = MAILBOX_PAGE) -> list[MailboxHead]:
        """Heads of a month in order of the recipients' names, those after *after* only."""
        ...

    async def months(self) -> list[str]:
        """The months there are, oldest first."""
        ...

    async def make_month(self, month: str) -> bool:
        """Make room for a month; False if it was there."""
        ...

    async def drop_month(self, month: str) -> bool:
        """Drop a month with all that is in it; False if it was not there."""
        ...


async def forward(
    mailbox: Mailbox, recipient: str, month: str, items: Sequence[NewItem], *, position: int, expect: int
) -> list[Item] | int:
    """Store items together with a new read position; if that is not where it was expected, return where it is."""
    try:
        return await mailbox.put(recipient, month, items, position=position, expect=expect)
    except VersionMismatch:
        return (await mailbox.head(recipient, month)).position
