"""The message stream as values and bytes: what polls and frames ask for, and how packs look to clients.

A delivery is one JSON object; a pack is one member of it, an array of messages of one or two elements:

    {"1":[["some.event.name"],["another.event",{"some":"data"}]],"2":[["eventname",{"any":"data"}]]}

A pack's text is made and checked once, when it is emitted; a delivery is put together from such texts and
never read again. Pack `0` is no stored pack: it says that there is no such session, and why.

The client's half is here as well: `read` takes a delivery apart, and `Inbox` puts packs into their order.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from penstock.errors import InputInvalid, PeerError, TooLarge
from penstock.limits import MESSAGE_TYPE_BYTES, PACK_BYTES, PACK_MESSAGES
from penstock.values import Entry

SHORT, LONG, WEBSOCKET = "shortpolling", "longpolling", "websocket"
UNSET: Final = 0
"""The id of the pack that is none: it tells of the session's end."""
PACK_TYPE: Final = "msgstream.pack"
"""The type of a log entry whose body is a pack's text rather than one message's data."""

_text = msgspec.json.Encoder().encode
_QUERY_FIELDS: Final = 64
_LONGEST_ID: Final = 18  # digits

# ── what is asked ──────────────────────────────────────────────────────────────────────────────


class StreamQuery(msgspec.Struct, frozen=True):
    """What a request for the stream says about itself."""

    transport: str = ""
    session_key: str | None = None  # None when it is given twice, which no key is
    confirm: tuple[int, ...] = ()
    refused: str = ""  # why it gets no answer but 400


def parse(query: str) -> StreamQuery:
    """Read a query. Parameters that mean nothing here are passed over: clients add some against caches."""
    found: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_QUERY_FIELDS)
    except ValueError:
        return StreamQuery(refused=f"More than {_QUERY_FIELDS} parameters")
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    transport, keys, confirm = (found.get(name, []) for name in ("transport", "sessionKey", "confirmIds"))
    twice = "transport" if len(transport) > 1 else "confirmIds" if len(confirm) > 1 else ""
    key = None if len(keys) > 1 else "".join(keys)
    ids = confirmed("".join(confirm[:1]))
    return StreamQuery("".join(transport[:1]), key, ids, f"{twice} is given twice" if twice else "")


def why_no_poll(asked: StreamQuery) -> str:
    """Why a request cannot be answered as a poll; empty if it can."""
    if asked.refused:
        return asked.refused
    if asked.transport == WEBSOCKET:
        return "transport websocket needs a WebSocket handshake"
    if asked.transport not in (SHORT, LONG):
        return f"Invalid transport type: {asked.transport[:40]!r}" if asked.transport else "No transport type given"
    return ""


def confirmed(text: str) -> tuple[int, ...]:
    """The pack ids of a list with commas. What can be the id of no pack is passed over: `0`, `03`, ` 2`, `abc`."""
    ids = [part for part in text.split(",") if part.isascii() and part.isdigit() and part[0] != "0"]
    return tuple(dict.fromkeys(int(part) for part in ids if len(part) <= _LONGEST_ID))


def split_key(session_key: str | None) -> tuple[str, str] | None:
    """The actor and the secret of a session key; None if it is none."""
    actor, colon, secret = (session_key or "").rpartition(":")
    return (actor, secret) if colon else None


# ── packs, as servers make them ────────────────────────────────────────────────────────────────


def delivery(packs: Iterable[tuple[int, bytes]]) -> bytes:
    """One JSON object of packs, which come in ascending order."""
    return b"{" + b",".join([b'"%d":%b' % pack for pack in packs]) + b"}"


def unset(reason: str) -> bytes:
    """What a client gets if its session does not exist, or has ended."""
    return delivery([(UNSET, pack([message("session.unset", _text(reason))]))])


def message(type: str, data: bytes | None) -> bytes:
    """One message; *data* is JSON, or None for a message without any."""
    return b"[%b]" % _text(type) if data is None else b"[%b,%b]" % (_text(type), data)


def pack(messages: Sequence[bytes]) -> bytes:
    """The text of a pack."""
    return b"[" + b",".join(messages) + b"]"


class EmittedMessage(msgspec.Struct, frozen=True):
    """A message that was checked: its type, and its data as JSON text."""

    type: str
    data: bytes | None

    def encoded(self) -> bytes:
        return message(self.type, self.data)


def check_messages(raw: list[list[msgspec.Raw]]) -> list[EmittedMessage]:
    """Messages as somebody wants them emitted; raises `InputInvalid` or `TooLarge`."""
    if not raw:
        raise InputInvalid("messages", "there are none")
    if len(raw) > PACK_MESSAGES:
        raise TooLarge("messages of a pack", len(raw), PACK_MESSAGES)
    messages = [_check(one) for one in raw]
    size = sum(len(one.data or b"") for one in messages)
    if size > PACK_BYTES:
        raise TooLarge("bytes of a pack", size, PACK_BYTES)
    return messages


def _check(parts: list[msgspec.Raw]) -> EmittedMessage:
    if not 1 <= len(parts) <= 2:
        raise InputInvalid("message", f"has {len(parts)} elements: a message is [type] or [type, data]")
    try:
        type = msgspec.json.decode(parts[0], type=str)
    except msgspec.MsgspecError:
        raise InputInvalid("message", "has a type that is no text") from None
    return EmittedMessage(check_type(type), bytes(parts[1]) if len(parts) == 2 else None)


def check_type(type: str) -> str:
    """Return *type* if a message may be called so."""
    try:
        size = len(type.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MESSAGE_TYPE_BYTES or not type.isprintable():
        raise InputInvalid("message type", f"is not 1 to {MESSAGE_TYPE_BYTES} printable bytes")
    return type


def entry_pack(entry: Entry) -> bytes:
    """An entry of the log as a pack: a broadcast as it is, any other as one message of its type.

    An entry without a type is called as its stream, with dots: what comes into `/shop/eu` is `shop.eu`.
    """
    if entry.type == PACK_TYPE:
        return entry.body
    # One that is too large for a pack is named instead: its reader can fetch it.
    large = len(entry.body) > PACK_BYTES
    data = _text({"stream": entry.stream, "index": entry.index}) if large else _data(entry.body)
    return pack([message(entry.type or entry.stream.strip("/").replace("/", ".") or "root", data)])


def _data(body: bytes) -> bytes | None:
    """A body as JSON: JSON as it is, text as a string, bytes as an object; nothing for nothing."""
    if not body:
        return None
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return b'{"data_base64":"%b"}' % b64encode(body)
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        return _text(text)
    return body.strip(b" \t\r\n")


# ── packs, as clients take them ────────────────────────────────────────────────────────────────


class Received(msgspec.Struct, frozen=True):
    """One message as it came."""

    type: str
    data: object = None
    has_data: bool = False

    def paths(self) -> Iterator[str]:
        """The names under which it is told, from the most to the least specific: `a.b.c`, `a.b`, `a`."""
        path = self.type
        while path:
            yield path
            path = path.rpartition(".")[0]


def read(text: bytes | str) -> dict[int, list[Received]]:
    """Take a delivery apart, in the order of its ids. `PeerError` if it is none."""
    try:
        packs = msgspec.json.decode(text, type=dict[str, list[list[object]]])
        found = {int(id): [_received(parts) for parts in messages] for id, messages in packs.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PeerError(502, f"no delivery of packs: {error}") from None
    return dict(sorted(found.items()))


def _received(parts: list[object]) -> Received:
    if not 1 <= len(parts) <= 2 or not isinstance(parts[0], str):
        raise ValueError("a message is [type] or [type, data]")
    return Received(parts[0], parts[1], True) if len(parts) == 2 else Received(parts[0])


class Taken(msgspec.Struct, frozen=True):
    """What a delivery means to a client."""

    packs: list[tuple[int, list[Received]]]  # to be handled now, in this order; the id is confirmed after it
    again: list[int]  # handled before: to be confirmed once more, and nothing else
    unset: str = ""  # the session is over, for this reason


class Inbox:
    """Puts packs into their order: each is handed out once, and a gap holds back what is behind it.

    The first pack of the first delivery is where a client begins, for its session may be older than itself.
    What waits behind a gap is bounded by what the server keeps for one session.
    """

    def __init__(self) -> None:
        self._next: int | None = None
        self._held: dict[int, list[Received]] = {}

    def take(self, packs: dict[int, list[Received]]) -> Taken:
        """Take a delivery, as `read` returns it."""
        ended = packs.get(UNSET)
        stored = {id: messages for id, messages in packs.items() if id != UNSET}
        if self._next is None and stored:
            self._next = min(stored)
        again = [id for id in stored if id < (self._next or 0)]
        self._held.update((id, messages) for id, messages in stored.items() if id not in again)
        ready = []
        while self._next in self._held:
            ready.append((self._next, self._held.pop(self._next)))
            self._next += 1
        return Taken(ready, again, str(ended[0].data) if ended else "")
