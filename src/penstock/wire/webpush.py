"""The dialogue between a user agent and the push service: JSON objects in the text frames of a WebSocket.

    user agent                                         service
    {"messageType":"hello","uaid":…}            ─▶
                                                ◀─     {"messageType":"hello","uaid":…,"status":200,…}
    {"messageType":"register","channelID":…}    ─▶
                                                ◀─     {"messageType":"register",…,"pushEndpoint":…}
                                                ◀─     {"messageType":"notification",…,"version":…}
    {"messageType":"ack","updates":[…]}         ─▶
    {}                                          ─▶     (a sign of life)
                                                ◀─     {}

`parse` turns a frame into one of the values below. A frame that is none of them is a `Mistake`: the close
code that it is answered with. Fields that mean nothing here are passed over, as clients send some.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any

import msgspec

from penstock.values import Item, NewItem

SUBPROTOCOL = "push-notification"
"""What Firefox offers; who offers nothing is served as well."""

PONG = b"{}"

_SHOWN_CHARACTERS = 64
_UAID = re.compile(r"[0-9a-f]{32}")
_CHANNEL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Close(IntEnum):
    """Close codes of a WebSocket, as clients of this protocol know them."""

    NORMAL = 1000
    GOING_AWAY = 1001
    NOT_TEXT = 1003
    TOO_MUCH = 1008
    FAILED = 1011
    PINGS_TOO_OFTEN = 4774  # Firefox stops reconnecting until the network changes


class Mistake(msgspec.Struct, frozen=True):
    """A frame that cannot be understood, and how the connection ends."""

    code: Close
    reason: str


class _Heard(msgspec.Struct, frozen=True, tag_field="messageType"):
    """What a user agent may say."""


class Hello(_Heard, frozen=True, tag="hello"):
    """I am here; this is who I was the last time."""

    uaid: Any = ""
    broadcasts: dict[str, str] | None = None


class Register(_Heard, frozen=True, tag="register"):
    """I want an endpoint for this channel. Both fields are checked where a reply can say what is wrong."""

    channelID: Any = None  # noqa: N815 - the wire's own name
    key: Any = None  # only who has the private half may send to it


class Unregister(_Heard, frozen=True, tag="unregister"):
    """I do not want this channel's endpoint any more."""

    channelID: Any = None  # noqa: N815
    code: Any = 200


class Update(msgspec.Struct, frozen=True):
    """One notification that arrived."""

    version: str
    channelID: str = ""  # noqa: N815
    code: int | None = 100


class AckUpdates(_Heard, frozen=True, tag="ack"):
    """These notifications arrived."""

    updates: list[Update] = []


class Nack(_Heard, frozen=True, tag="nack"):
    """This notification arrived and came to nothing."""

    version: Any = ""
    code: Any = 0


class Ping(_Heard, frozen=True, tag="ping"):
    """A sign of life is wanted."""


class BroadcastSubscribe(_Heard, frozen=True, tag="broadcast_subscribe"):
    """Tell me of new versions of these."""

    broadcasts: dict[str, str] = {}


Heard = Hello | Register | Unregister | AckUpdates | Nack | Ping | BroadcastSubscribe
_decode = msgspec.json.Decoder(Heard).decode
_encode = msgspec.json.encode
_PING = Ping()


def parse(frame: str | bytes) -> Heard | Mistake:
    """What a user agent said."""
    if isinstance(frame, bytes):
        return Mistake(Close.NOT_TEXT, "UnsupportedMessage")
    if frame.strip() == "{}":
        return _PING
    try:
        heard: Heard = _decode(frame)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):  # the last: brackets a thousand deep
        return Mistake(Close.FAILED, "Json")
    return heard


def is_uaid(text: object) -> bool:
    """Whether this is how we write the id of a user agent."""
    return isinstance(text, str) and _UAID.fullmatch(text) is not None


def is_channel(text: object) -> bool:
    """Whether this is the id of a channel: a UUID in lower case, with dashes."""
    return isinstance(text, str) and _CHANNEL.fullmatch(text) is not None


# ── what the service says ─────────────────────────────────────────────────────────────────────────


def hello(uaid: str, broadcasts: dict[str, Any]) -> bytes:
    """Welcome, as this user agent."""
    status = {"messageType": "hello", "uaid": uaid, "status": 200, "use_webpush": True}
    return _encode({**status, "broadcasts": broadcasts})


def registered(channel: str, endpoint: str) -> bytes:
    """The channel has this endpoint."""
    return _encode({"messageType": "register", "channelID": channel, "status": 200, "pushEndpoint": endpoint})


def unregistered(channel: str) -> bytes:
    """The channel is gone."""
    return _encode({"messageType": "unregister", "channelID": channel, "status": 200})


def refused(kind: str, channel: object, status: int, reason: str) -> bytes:
    """A command was not carried out; the connection goes on. What is no channel is not repeated, whatever it was."""
    named = channel if isinstance(channel, str) and len(channel) <= _SHOWN_CHARACTERS else None
    said: dict[str, object] = {"messageType": kind, "channelID": named, "status": status, "reason": reason}
    return _encode(said | ({"pushEndpoint": ""} if kind == "register" else {}))


def broadcast(versions: dict[str, Any]) -> bytes:
    """Versions that differ from those that the user agent has."""
    return _encode({"messageType": "broadcast", "broadcasts": versions})


def broadcast_news(known: Mapping[str, str], asked: dict[str, str]) -> dict[str, Any]:
    """What to tell a user agent that has the versions *asked*: newer versions, and ids that do not exist."""
    news: dict[str, Any] = {id: known[id] for id, version in asked.items() if known.get(id, version) != version}
    if missing := {id: "Broadcast not found" for id in asked if id not in known}:
        news["errors"] = missing
    return news


class PushMessage(msgspec.Struct, frozen=True, gc=False):
    """One push message on its way to a user agent."""

    uaid: str
    channel: str
    version: str  # the message id, opaque to everybody else
    ttl: int
    expires_ms: int
    body: bytes = b""
    topic: str = ""
    urgency: str = ""
    encoding: str = ""
    encryption: str = ""
    crypto_key: str = ""
    receipt: str = ""  # the receipt subscription that hears what becomes of it


def notification(message: PushMessage) -> bytes:
    """The frame's text that brings *message* to its user agent."""
    head = f'{{"messageType":"notification","channelID":"{message.channel}","version":"{message.version}"'
    if not message.body:
        return head.encode() + b"}"
    data = urlsafe_b64encode(message.body).rstrip(b"=")
    return b'%b,"data":"%b","headers":%b}' % (head.encode(), data, _coding(message))


_CODINGS = {name: b'{"encoding":"%b"}' % name.encode() for name in ("aes128gcm",)}


def _coding(message: PushMessage) -> bytes:
    """How the body was encrypted; nearly always the one that says it all in the body."""
    if not message.encryption and not message.crypto_key and message.encoding in _CODINGS:
        return _CODINGS[message.encoding]
    named = {"encoding": message.encoding, "encryption": message.encryption, "crypto_key": message.crypto_key}
    return _encode({name: text for name, text in named.items() if text})


# ── in the storage ────────────────────────────────────────────────────────────────────────────────


class _Attributes(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of a message has no column of its own."""

    ttl: str = "0"
    urgency: str = ""
    encoding: str = ""
    encryption: str = ""
    crypto_key: str = ""
    receipt: str = ""


_attributes_of = msgspec.json.Decoder(_Attributes).decode


def to_item(message: PushMessage) -> NewItem:
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


def from_item(uaid: str, item: Item) -> PushMessage:
    """Read `to_item` back."""
    more = _attributes_of(item.attributes or "{}")
    return PushMessage(
        uaid, item.channel, item.message_id, int(more.ttl), item.expires_ms or 0, item.body, item.collapse,
        more.urgency, more.encoding, more.encryption, more.crypto_key, more.receipt,
    )  # fmt: skip


def receipt_of(item: Item) -> str:
    """The receipt subscription that wants to hear of *item*; empty for none."""
    return _attributes_of(item.attributes or "{}").receipt


# ── between nodes ─────────────────────────────────────────────────────────────────────────────────


class NodeAnswer(Enum):
    """What a node says when it is given a notification, or told to look into the storage."""

    TAKEN = 200
    LATER = 202
    ABSENT = 404
    BUSY = 503
    UNREACHABLE = 0


class _Passed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message as one node gives it to another: autopush's fields, and four of ours at the end."""

    channelID: str  # noqa: N815
    version: str
    ttl: int
    timestamp: int  # seconds
    topic: str = ""
    data: str = ""
    headers: dict[str, str] = {}
    expires_ms: int = 0
    urgency: str = ""
    receipt: str = ""


def pass_on(message: PushMessage, now_ms: int) -> bytes:
    """The body of `PUT /push/<uaid>`."""
    named = {"encoding": message.encoding, "encryption": message.encryption, "crypto_key": message.crypto_key}
    passed = _Passed(
        message.channel, message.version, message.ttl, now_ms // 1000, message.topic,
        urlsafe_b64encode(message.body).decode().rstrip("="), {name: text for name, text in named.items() if text},
        message.expires_ms, message.urgency, message.receipt,
    )  # fmt: skip
    return _encode(passed)


def passed_on(uaid: str, body: bytes) -> PushMessage:
    """Read `pass_on` back. Raises `ValueError` for anything else."""
    passed = msgspec.json.decode(body, type=_Passed)
    if not is_channel(passed.channelID) or not passed.version.isascii() or not passed.version.isprintable():
        raise ValueError("channelID or version is malformed")
    named = passed.headers.get
    return PushMessage(
        uaid, passed.channelID, passed.version, passed.ttl,
        passed.expires_ms or (passed.timestamp + passed.ttl) * 1000,
        urlsafe_b64decode(passed.data + "=" * (-len(passed.data) % 4)), passed.topic, passed.urgency,
        named("encoding", ""), named("encryption", ""), named("crypto_key", ""), passed.receipt,
    )  # fmt: skip
