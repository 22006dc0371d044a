"""Messages as items of a mailbox, and back."""

from __future__ import annotations

import msgspec

from penstock.values import Item, NewItem
from penstock.wire.webpush import Message


class _Attributes(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of a message has no column of its own."""

    ttl: str = "0"
    urgency: str = ""
    encoding: str = ""
    encryption: str = ""
    crypto_key: str = ""
    receipt: str = ""


_decode = msgspec.json.Decoder(_Attributes).decode
_encode = msgspec.json.Encoder().encode


def to_item(message: Message) -> NewItem:
    """What is stored of *message*. A later one with the same topic takes its place."""
    attributes = _Attributes(
        str(message.ttl), message.urgency, message.encoding, message.encryption, message.crypto_key, message.receipt
    )
    return NewItem(
        message.version,
        body=message.body,
        channel=message.channel,
        collapse=message.topic,
        attributes=_encode(attributes).decode(),
        expires_ms=message.expires_ms,
    )


def from_item(uaid: str, item: Item) -> Message:
    """Read `to_item` back."""
    more = _decode(item.attributes or "{}")
    return Message(
        uaid, item.channel, item.message_id, int(more.ttl), item.expires_ms or 0, item.body, item.collapse,
        more.urgency, more.encoding, more.encryption, more.crypto_key, more.receipt,
    )  # fmt: skip


def receipt_of(item: Item) -> str:
    """The receipt subscription that wants to hear of *item*; empty for none."""
    return _decode(item.attributes or "{}").receipt
