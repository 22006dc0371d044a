"""sps, the simple push server, as values and bytes: parameters in, lines and events out.

A wire is one endless answer. What goes over it has one of three forms:

    lines   one JSON object and a newline per event, each in a chunk of its own; readers split on
            newlines, never on chunks, because proxies cut anew. Silence is broken by CR LF, a blank line.
    sse     the event stream of EventSource: id, event, data; silence is broken by a comment
    raw     the publisher's bytes as one chunk and nothing else, as the first sps sent them

Lines about the wire itself (open, gap, reset, replaced …) have no id: they are not stored events.

Two generations of parameter names are known, `uid hid tid` and `u t r`. Both at once are refused when
they differ.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from penstock.errors import InputInvalid
from penstock.limits import DEVICE_CHARACTERS, RECIPIENT_BYTES, TOPIC_BYTES
from penstock.values import Entry, Kind

# ── parameters ─────────────────────────────────────────────────────────────────────────────────

REPLACED: Final = "replaced"
"""Why a wire ends when its device has a newer one. A client that hears it waits for a minute."""

_OLDER: Final = {"u": "uid", "t": "hid", "r": "tid"}
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_USER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def named(params: Mapping[str, str], *known: str) -> dict[str, str]:
    """The parameters under their first names; one that is not *known*, or said in two ways, is refused."""
    found: dict[str, str] = {}
    for given, value in params.items():
        name = _OLDER.get(given, given)
        if name not in known:
            raise InputInvalid(f"parameter {given[:40]}", f"is unknown here; known are {', '.join(known) or 'none'}")
        if found.setdefault(name, value) != value:
            raise InputInvalid(f"parameter {name}", f"is given twice, as {name} and by its other name, and differs")
    return found


def user(params: Mapping[str, str]) -> str:
    """The user, as canonical decimal text: a signed number of 64 bits."""
    text = params.get("uid")
    if text is None:
        raise InputInvalid("parameter uid", "is missing")
    return user_number("parameter uid", text)


def user_number(what: str, text: str) -> str:
    """*text* as canonical decimal text of a signed 64-bit number."""
    if not _USER.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise InputInvalid(what, f"{text[:40]!r} is not a whole number of 64 bits")
    return str(int(text))


def device(params: Mapping[str, str]) -> str:
    """The user's device; empty is the one that all clients share which name none."""
    text = params.get("hid", "")
    if len(text) > DEVICE_CHARACTERS or len(text.encode()) > RECIPIENT_BYTES - 21 or not text.isprintable():
        raise InputInvalid("parameter hid", f"is not up to {DEVICE_CHARACTERS} printable characters")
    return text


def topics(params: Mapping[str, str]) -> tuple[str, ...]:
    """The topics, each once, in the order given. Those that begin with '/' name streams of the log."""
    names = dict.fromkeys(name for part in params.get("tid", "").split(",") if (name := part.strip()))
    for name in names:
        if not name.startswith("/") and len(name.encode()) > TOPIC_BYTES:
            raise InputInvalid("parameter tid", f"{name[:40]!r}… has more than {TOPIC_BYTES} bytes")
    return tuple(names)


def opaque(text: str | None, what: str = "parameter o") -> int | None:
    """The id after which to go on; None, live only, when there is none."""
    if not text:
        return None
    if not _NUMBER.fullmatch(text) or int(text) >= 2**63:
        raise InputInvalid(what, f"{text[:40]!r} is not the id of an event")
    return int(text)


def seconds(params: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    """A time in whole seconds, kept within its bounds; 0 switches off."""
    text = params.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text):
        raise InputInvalid(f"parameter {name}", f"{text[:40]!r} is not a number of seconds")
    return min(max(float(text), least), most) if int(text) else 0.0


# ── events ─────────────────────────────────────────────────────────────────────────────────────

_text = msgspec.json.Encoder().encode
_LINE_ENDS = re.compile(rb"\r\n|\r|\n")
_BLANKS = b" \t\r\n"
_USERS, _ROOMS = "/users/", "/rooms/"


def topic_of(stream: str) -> str | None:
    """What a stream is to a subscriber: a topic, or None for what comes to the user or to all."""
    if stream.startswith(_ROOMS):
        return stream[len(_ROOMS) :]
    return None if stream.startswith(_USERS) or stream == "/all" else stream


class Form:
    """How a wire looks to its reader; this one, `raw`, is the publisher's bytes and nothing about the wire."""

    content_type = "application/octet-stream"
    anti_idle = b"\r\n"

    def event(self, entry: Entry, tid: str | None) -> bytes:
        """One published event; empty if it has no look in this form."""
        return entry.body

    def opened(self, uid: str, hid: str, tids: Iterable[str], after: int, newest: int) -> bytes:
        """The wire is open, and goes on after id *after*."""
        return b""

    def gap(self, first: int, last: int) -> bytes:
        """Events between these ids may have existed and cannot be had any more."""
        return b""

    def reset(self, asked: int, newest: int) -> bytes:
        """The reader knows an id that this log has not reached: it is another log, or a younger copy."""
        return b""

    def ended(self, reason: str) -> bytes:
        """The last words."""
        return b""


class JsonLines(Form):
    """One JSON object a line."""

    content_type = "application/x-ndjson"

    def event(self, entry: Entry, tid: str | None) -> bytes:
        return b'{"id":%d,"event":%b%b,"time":%d.%03d,%b}\n' % (
            entry.id,
            _text(_type(entry)),
            b"" if tid is None else b',"tid":' + _text(tid),
            *divmod(entry.published_ms, 1000),
            _data(entry.body),
        )

    def opened(self, uid: str, hid: str, tids: Iterable[str], after: int, newest: int) -> bytes:
        return _text({"event": "open", "newest": newest, "uid": uid, "hid": hid, "tids": list(tids)}) + b"\n"

    def gap(self, first: int, last: int) -> bytes:
        return b'{"event":"gap","from":%d,"to":%d,"oldest":%d}\n' % (first, last, last + 1)

    def reset(self, asked: int, newest: int) -> bytes:
        return b'{"event":"reset","asked":%d,"newest":%d}\n' % (asked, newest)

    def ended(self, reason: str) -> bytes:
        return b'{"event":%b}\n' % _text(reason)


class EventStream(Form):
    """What a browser's EventSource reads.

    The data of an event are the publisher's text; EventSource joins several lines by a newline, so a
    carriage return becomes one. Bytes that are no text come as `{"data_base64":…}`.
    """

    content_type = "text/event-stream"
    anti_idle = b":\n\n"

    def __init__(self, retry_ms: int) -> None:
        self._retry = b"retry: %d\n" % retry_ms

    def event(self, entry: Entry, tid: str | None) -> bytes:
        name = _LINE_ENDS.sub(b" ", _type(entry).encode())
        return b"id: %d\nevent: %b\n%b\n" % (entry.id, name, _data_lines(entry.body))

    def opened(self, uid: str, hid: str, tids: Iterable[str], after: int, newest: int) -> bytes:
        # An id without data is no event, but EventSource keeps it: a wire that breaks before its first
        # event still resumes where it began. (EventSource has an event `open` of its own.)
        return b"%bid: %d\n\n" % (self._retry, after)

    def gap(self, first: int, last: int) -> bytes:
        return b'id: %d\nevent: gap\ndata: {"from":%d,"to":%d,"oldest":%d}\n\n' % (last, first, last, last + 1)

    def reset(self, asked: int, newest: int) -> bytes:
        return b'id: %d\nevent: reset\ndata: {"asked":%d,"newest":%d}\n\n' % (newest, asked, newest)

    def ended(self, reason: str) -> bytes:
        # A page that does not know `replaced` comes back by itself: late, so that two do not fight.
        return b"%bevent: %b\ndata: {}\n\n" % (b"retry: 60000\n" if reason == REPLACED else b"", reason.encode())


FORMATS: Final[Mapping[str, Callable[[int], Form]]] = {
    "lines": lambda _: JsonLines(),
    "sse": EventStream,
    "raw": lambda _: Form(),
}
"""What `format` may name, and what makes it, given how many milliseconds an EventSource waits."""


def _type(entry: Entry) -> str:
    """The event's name. The further pieces of a body too large for one entry are named as such."""
    return "part" if entry.kind is Kind.PART else entry.type or "message"


def _data(body: bytes) -> bytes:
    """The body as a member of a JSON object: JSON as it is, text as a string, bytes in base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return b'"data_base64":"%b"' % b64encode(body)
    return b'"data":' + (_as_json(body) or _text(text))


def _as_json(body: bytes) -> bytes | None:
    """The body on one line, if it is JSON. Outside of its strings a line end is only white space."""
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return body.strip(_BLANKS).translate(_ONE_LINE)


_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


def _data_lines(body: bytes) -> bytes:
    try:
        body.decode()
    except UnicodeDecodeError:
        return b'data: {"data_base64":"%b"}\n' % b64encode(body)
    return b"".join(b"data: %b\n" % line for line in _LINE_ENDS.split(body))
