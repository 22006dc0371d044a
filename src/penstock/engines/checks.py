"""What every engine refuses: names and sizes that would not fit all of them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.registry import NEW
from penstock.errors import InputInvalid, MailboxFull, TooLarge, VersionMismatch
from penstock.limits import RECIPIENT_BYTES, RECORD_BYTES, RECORD_KEY_BYTES
from penstock.values import Item, NewItem, Record, Room


def check_recipient(recipient: str) -> str:
    """Return *recipient* if a mailbox may belong to it."""
    return _check_text("recipient", recipient, RECIPIENT_BYTES)


def check_position(recipient: str, actual: int, expect: int | None) -> None:
    """Refuse to store for somebody who believes a mailbox's read position to be another."""
    if expect is not None and expect != actual:
        raise VersionMismatch(f"mailbox {recipient}", expect, actual)


def check_version(key: str, found: Record | None, expect: int | None) -> None:
    """Refuse to change a record for somebody who believes it to be at another version."""
    if expect is not None and expect != (found.version if found else NEW):
        raise VersionMismatch(key, expect, found.version if found else None)


def check_record(key: str, value: bytes = b"") -> None:
    """Refuse a registry record that no engine takes."""
    _check_text("record key", key, RECORD_KEY_BYTES)
    if len(value) > RECORD_BYTES:
        raise TooLarge("record bytes", len(value), RECORD_BYTES)


def _check_text(what: str, text: str, limit: int) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InputInvalid(what, "has half of a surrogate pair") from None
    if not 0 < size <= limit:
        raise InputInvalid(what, f"has {size} bytes, not 1 to {limit}")
    return text


def check_room(recipient: str, room: Room, items: int, size: int) -> None:
    """Raise `MailboxFull` unless so many items with so many bytes may wait for *recipient*."""
    if items > room.items:
        raise MailboxFull(recipient, "messages", room.items)
    if size > room.bytes:
        raise MailboxFull(recipient, "bytes", room.bytes)


def weight(items: Iterable[Item | NewItem]) -> int:
    """Bytes that count as those of *items*."""
    return sum([len(item.body) + len(item.attributes.encode()) for item in items])
