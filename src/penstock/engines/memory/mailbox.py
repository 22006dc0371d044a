"""The mailbox in memory: dictionaries by month and recipient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.core.clock import Clock
from penstock.core.months import check_month
from penstock.engines.checks import check_position, check_recipient, check_room, weight
from penstock.errors import NotFound
from penstock.limits import MAILBOX_PAGE
from penstock.values import Item, MailboxHead, NewItem, Room


@dataclass(slots=True)
class _MonthBox:
    """One recipient in one month."""

    next_number: int = 1
    position: int = 0
    channels: tuple[str, ...] = ()
    items: dict[int, Item] = field(default_factory=dict)

    def head(self, recipient: str, month: str) -> MailboxHead:
        size = sum(len(item.body) for item in self.items.values())
        return MailboxHead(recipient, month, self.next_number, self.position, self.channels, len(self.items), size)

    def add(self, new: NewItem, now_ms: int) -> Item:
        if new.collapse:
            self.remove(lambda item: (item.channel, item.collapse) == (new.channel, new.collapse))
        item = Item(
            self.next_number, now_ms, new.message_id, new.entry_id, new.body, new.channel, new.collapse, new.attributes,
            new.expires_ms,
        )  # fmt: skip
        self.items[item.number] = item
        self.next_number += 1
        return item

    def without_editions_of(self, new: Sequence[NewItem]) -> list[Item]:
        """What would stay if *new* came: no item that one of them replaces."""
        replaced = {(item.channel, item.collapse) for item in new if item.collapse}
        return [item for item in self.items.values() if (item.channel, item.collapse) not in replaced]

    def remove(self, unwanted: Callable[[Item], bool]) -> list[Item]:
        gone = [item for item in self.items.values() if unwanted(item)]
        for item in gone:
            del self.items[item.number]
        return gone


class MemoryMailbox:
    """`core.mailbox.Mailbox` as dictionaries by month and recipient."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._months: dict[str, dict[str, _MonthBox]] = {}
        self.watchers: list[Callable[[tuple[str, str], int], None]] = []  # called with who, month, next number

    async def put(
        self, recipient: str, month: str, items: Sequence[NewItem], *, position: int | None = None,
        expect: int | None = None, room: Room | None = None,
    ) -> list[Item]:  # fmt: skip
        check_position(recipient, self._box(recipient, month).position, expect)
        if room is not None:
            left = self._box(recipient, month).without_editions_of(items)
            check_room(recipient, room, len(left) + len(items), weight(left) + weight(items))
        box = self._make(recipient, month)
        box.position = max(box.position, position or 0)
        added = [box.add(new, self._clock.now_ms()) for new in items]
        for watcher in self.watchers:
            watcher((recipient, month), box.next_number)
        return added

    async def take(self, recipient: str, month: str, *, after: int = 0, limit: int = MAILBOX_PAGE) -> list[Item]:
        now_ms = self._clock.now_ms()
        pending = self._box(recipient, month).items.values()
        return [item for item in pending if item.number > after and not _due(item, now_ms)][: min(limit, MAILBOX_PAGE)]

    async def confirm(self, recipient: str, month: str, numbers: Sequence[int]) -> list[Item]:
        return self._box(recipient, month).remove(lambda item: item.number in numbers)

    async def find(self, recipient: str, month: str, message_id: str) -> Item | None:
        pending = self._box(recipient, month).items.values()
        return next((item for item in pending if item.message_id == message_id), None)

    async def edition(self, recipient: str, month: str, channel: str, collapse: str) -> Item | None:
        pending = self._box(recipient, month).items.values()
        return next(
            (item for item in pending if collapse and (item.channel, item.collapse) == (channel, collapse)), None
        )

    async def channels(self, recipient: str, month: str) -> tuple[str, ...]:
        return self._box(recipient, month).channels

    async def head(self, recipient: str, month: str) -> MailboxHead:
        return self._box(recipient, month).head(recipient, month)

    async def set_channels(self, recipient: str, month: str, channels: Sequence[str]) -> None:
        self._make(recipient, month).channels = tuple(dict.fromkeys(channels))

    async def add_channel(self, recipient: str, month: str, channel: str) -> bool:
        box = self._make(recipient, month)
        if channel in box.channels:
            return False
        box.channels = (*box.channels, channel)
        return True

    async def remove_channel(self, recipient: str, month: str, channel: str) -> bool:
        box = self._box(recipient, month)
        if channel not in box.channels:
            return False
        box.channels = tuple(c for c in box.channels if c != channel)
        box.remove(lambda item: item.channel == channel)
        return True

    async def forget(self, recipient: str, month: str) -> int:
        return len(self._of(month).pop(check_recipient(recipient), _MonthBox()).items)

    async def expire(self, month: str, limit: int = 10_000) -> list[tuple[str, Item]]:
        now_ms = self._clock.now_ms()
        boxes = self._of(month).items()
        due = [(recipient, item) for recipient, box in boxes for item in box.items.values() if _due(item, now_ms)]
        for recipient, item in due[:limit]:
            del self._of(month)[recipient].items[item.number]
        return due[:limit]

    async def recipients(self, month: str, *, after: str = "", limit: int = MAILBOX_PAGE) -> list[MailboxHead]:
        boxes = sorted(self._of(month).items(), key=lambda pair: pair[0].encode())
        heads = [box.head(recipient, month) for recipient, box in boxes if recipient.encode() > after.encode()]
        return heads[: min(limit, MAILBOX_PAGE)]

    async def months(self) -> list[str]:
        return sorted(self._months)

    async def make_month(self, month: str) -> bool:
        new = check_month(month) not in self._months
        self._months.setdefault(month, {})
        return new

    async def drop_month(self, month: str) -> bool:
        return self._months.pop(check_month(month), None) is not None

    def _of(self, month: str) -> dict[str, _MonthBox]:
        if check_month(month) not in self._months:
            raise NotFound("month", month)
        return self._months[month]

    def _box(self, recipient: str, month: str) -> _MonthBox:
        """What is there of a recipient; an empty box, not kept, if nothing is."""
        return self._of(month).get(check_recipient(recipient)) or _MonthBox()

    def _make(self, recipient: str, month: str) -> _MonthBox:
        return self._of(month).setdefault(check_recipient(recipient), _MonthBox())


def _due(item: Item, now_ms: int) -> bool:
    return item.expires_ms is not None and item.expires_ms <= now_ms
