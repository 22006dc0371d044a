"""Event Horizon's cursors, lines and meta events, byte for byte.

A stream is a row of chunks; a chunk is a text file of lines, each ended by one newline:

    ' ' content '\n'                  a regular line
    '/' Type ' ' {"json":…} '\n'      a meta line

A cursor `stream:chunk:offset[:server]` is an exact byte position in one chunk. The log gives every
entry such a position whatever door it came through, so these sizes are part of the log's contract.

What a pusher and an app say to each other is at the end; `wire/eventhorizon_pusher.py` says when they say it.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from penstock.limits import LINE_BYTES
from penstock.values import Entry, Kind

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NEWLINE = 0x0A  # as a number: to look for `b"\n"` in a body takes five times as long
_INT64 = range(-(2**63), 2**63)
# What Go's encoder escapes beyond JSON's own rules. The lengths of lines depend on it.
_GO_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


class CursorInvalid(ValueError):
    """The text is not a cursor."""


class Cursor(NamedTuple):
    """A byte position in a stream. The server part takes no part in comparisons."""

    stream: str
    chunk: int
    offset: int
    server: str = ""

    def __str__(self) -> str:
        text = f"{self.stream}:{self.chunk}:{self.offset}"
        return f"{text}:{self.server}" if self.server else text

    def same_place(self, other: Cursor) -> bool:
        """Both name one byte of one stream."""
        return self._place(other) == other._place(self)

    def ahead_of(self, other: Cursor) -> bool:
        """This one is further in the same stream."""
        return self._place(other) > other._place(self)

    def _place(self, other: Cursor) -> tuple[int, int]:
        if self.stream != other.stream:
            raise CursorInvalid(f"{self} and {other} are of different streams")
        return (self.chunk, self.offset)


def parse_cursor(text: str) -> Cursor:
    """Read a cursor as the original does; *CursorInvalid* says which part is wrong."""
    parts = text.split(":")
    if len(parts) < 3:
        raise CursorInvalid(f"cursor {text!r} has too few components")
    if len(parts) > 4:
        raise CursorInvalid(f"cursor {text!r} has too many components")
    chunk = _integer(parts[1], "chunk index", text)
    offset = _integer(parts[2], "chunk offset", text)
    return Cursor(parts[0], chunk, offset, parts[3] if len(parts) == 4 else "")


def _integer(part: str, what: str, text: str) -> int:
    """Go's Atoi: a sign and ASCII digits, 64 bits. Python's int() is laxer."""
    if not _INTEGER.fullmatch(part) or (value := int(part)) not in _INT64:
        raise CursorInvalid(f"cursor {text!r} has an invalid {what}")
    return value


def go_json(value: object) -> str:
    """Compact JSON as Go writes it, HTML escapes included."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_GO_ESCAPES)


def timestamp(ms: int) -> str:
    """UTC with the milliseconds' trailing zeros cut off, dot included when nothing is left."""
    seconds, rest = divmod(ms, 1000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return text + f".{rest:03d}".rstrip("0").rstrip(".") + "Z"


def is_line(body: bytes) -> bool:
    """The body can stand as a regular line: UTF-8 text without a newline, short enough."""
    if len(body) > LINE_BYTES or _NEWLINE in body:
        return False
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def line_size(body: bytes, index: int) -> int:
    """Bytes that a data entry takes in its chunk."""
    if is_line(body):
        return len(body) + 2
    return meta_size("Bytes", len(bytes_payload(body, index)))


def bytes_payload(body: bytes, index: int) -> bytes:
    """What stands in a `/Bytes` line for a body that is no line itself."""
    head = b'{"index":%d,' % index
    encoded = (len(body) + 2) // 3 * 4
    if meta_size("Bytes", len(head) + len('"base64":""}') + encoded) > LINE_BYTES + 2:
        return head + b'"size":%d}' % len(body)
    return head + b'"base64":"' + b64encode(body) + b'"}'


def meta_size(type: str, payload_bytes: int) -> int:
    """Bytes of a meta line: slash, type, space, payload, newline."""
    return 1 + len(type) + 1 + payload_bytes + 1


def created(subscribers: tuple[str, ...], ts: str) -> bytes:
    """Payload of the first line of every chunk."""
    return go_json({"subscription_ids": list(subscribers), "ts": ts}).encode()


def child_stream_created(name: str, server: str, ts: str) -> bytes:
    """Payload that tells the parent's readers of a new child."""
    return go_json({"name": name, "cursor": str(Cursor(name, 0, 0, server)), "ts": ts}).encode()


def subscribed(subscription_id: str, ts: str) -> bytes:
    """Payload of both `Subscribed` and `Unsubscribed`."""
    return go_json({"subscription_id": subscription_id, "ts": ts}).encode()


def subscription_activity(cursors: list[str], ts: str) -> bytes:
    """Payload that tells a subscription which streams moved, each at most once."""
    return go_json({"activity": cursors, "ts": ts}).encode()


def rotated(stream: str, next_chunk: int, server: str, ts: str) -> bytes:
    """Payload of the last line of a sealed chunk."""
    return go_json({"next": str(Cursor(stream, next_chunk, 0, server)), "ts": ts}).encode()


# ── lines of a chunk ───────────────────────────────────────────────────────────────────────────


class Line(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """A line as readers get it: content for a regular one, type and payload for a meta one."""

    ptr_after: str
    content: str = ""
    meta_type: str = ""
    meta_payload: Any = None


class ReadLines(msgspec.Struct, frozen=True, rename="pascal"):
    """What a reader found in one chunk. Without lines it has reached the end for now.

    `Ids` are the log's own numbers of the lines, for whoever keeps a ledger.
    """

    from_offset: str
    lines: list[Line]
    more: bool = False  # there is something after the last line already
    ids: list[int] = []


def lines_of(entries: Sequence[Entry], server: str) -> list[Line]:
    """Entries of one chunk as readers get them.

    What expired or was erased is jumped over. At the end there is nothing to jump to: there one `Gone`
    line stands for it, so that a reader's cursor gets past.
    """
    if not entries:
        return []
    prefix, suffix = f"{entries[0].stream}:{entries[0].chunk}:", f":{server}" if server else ""
    lines, gone = [], 0
    for entry in entries:
        kind = entry.kind
        if kind is Kind.DATA:
            lines.append(_data_line(entry, f"{prefix}{entry.offset + entry.size}{suffix}"))
        elif kind is Kind.META:
            lines.append(_meta_line(entry.type, entry.body, f"{prefix}{entry.end}{suffix}"))
        else:
            gone += entry.size > 0  # a part has no line of its own
            continue
        gone = 0
    if gone:
        payload = b'{"entries":%d}' % gone
        lines.append(_meta_line("Gone", payload, f"{prefix}{entries[-1].end}{suffix}"))
    return lines


def _data_line(entry: Entry, after: str) -> Line:
    body = entry.body
    if is_line(body):
        return Line(after, body.decode())
    return _meta_line("Bytes", bytes_payload(body, entry.index or 0), after)


def _meta_line(type: str, payload: bytes, after: str) -> Line:
    decoded = msgspec.json.decode(payload)
    # After the last line of a chunk a reader goes on at the first of the next.
    return Line(decoded["next"] if type == "Rotated" else after, payload.decode(), type, decoded)


def raw_line(entry: Entry) -> bytes:
    """The bytes of an entry in its chunk; none for what expired, was erased, or is a part."""
    if entry.kind is Kind.META:
        return b"/%b %b\n" % (entry.type.encode(), entry.body)
    if entry.kind is not Kind.DATA:
        return b""
    if is_line(entry.body):
        return b" %b\n" % entry.body
    return b"/Bytes %b\n" % bytes_payload(entry.body, entry.index or 0)


# ── what a pusher and an app say to each other ─────────────────────────────────────────────────

SUBSCRIPTIONS: Final = "/_sub/"
QUERY: Final = "_query_"
"""The subscription id of a pusher that does not know it yet."""

SUCCESS: Final = "success"
INCORRECT_BASE_OFFSET: Final = "incorrect_base_offset"
INCORRECT_SUBSCRIPTION_ID: Final = "incorrect_subscription_id"


class PushLines(msgspec.Struct, frozen=True, rename="pascal"):
    """Lines of one stream, and the position from which they go on."""

    from_offset: str
    lines: list[Line] | None = None


class PushRequest(msgspec.Struct, frozen=True, rename="pascal"):
    """What a pusher sends, whatever it wants."""

    subscription_id: str = ""
    push: PushLines | None = None


class PushAnswer(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True):
    """What an app answers. Fields that a code has no use for may be missing."""

    code: str
    accepted_offset: str = ""
    correct_subscription_id: str = ""
    behind_cursors: list[str] | None = None

    def encode(self) -> bytes:
        """The JSON as the original sends it: all fields, but no empty `CorrectSubscriptionId`."""
        fields: dict[str, object] = {"Code": self.code, "AcceptedOffset": self.accepted_offset}
        if self.correct_subscription_id:
            fields["CorrectSubscriptionId"] = self.correct_subscription_id
        fields["BehindCursors"] = self.behind_cursors
        return msgspec.json.encode(fields) + b"\n"


def push_request(subscription_id: str, from_offset: str, lines: list[Line]) -> bytes:
    """The body of one push."""
    return msgspec.json.encode(PushRequest(subscription_id, PushLines(from_offset, lines)))


def offset_query(stream: str) -> str:
    """The position that no app is at: its answer tells where it is."""
    return f"{stream}:-1:-1"


def mentioned(line: Line) -> list[Cursor]:
    """The positions that a `SubscriptionActivity` line tells of; *CursorInvalid* if one is none."""
    if line.meta_type != "SubscriptionActivity" or not isinstance(line.meta_payload, dict):
        return []
    activity = line.meta_payload.get("activity") or []
    if not isinstance(activity, list) or not all(isinstance(cursor, str) for cursor in activity):
        raise CursorInvalid("the activity is not a list of cursors")
    return [parse_cursor(cursor) for cursor in activity]
