"""HTTP/1.1 as bytes: request heads, bodies' framing and answers' heads, strict against smuggling.

A head is parsed only when it is complete, so how the bytes are cut cannot matter. It is then looked at
twice: by the rules below on the raw bytes, and by llhttp (httptools). What either refuses is refused; the
connection is closed after it, because nobody knows where the next request would begin.

    refused with 400    a byte that no head may hold (NUL, other controls, a bare CR or LF), obs-fold,
                        white space before a colon, no Host (1.1) or two, Content-Length twice or with
                        Transfer-Encoding, a length that is not plain digits, any coding but one `chunked`,
                        non-ASCII in the target, a fragment, an authority that is not the Host, a field twice
                        of which handlers expect one (Authorization, Idempotency-Key …)
    414 431             target, head or number of fields over the limits
    501 505             a method nobody knows, a version that is neither 1.0 nor 1.1
"""

from __future__ import annotations

import re
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import httptools

from penstock.errors import InputInvalid, PeerError
from penstock.limits import (
    CHUNK_EXTENSION_BYTES,
    CHUNK_FRAMING_BYTES,
    HEAD_BYTES,
    HEAD_FIELDS,
    TRAILER_BYTES,
    URL_BYTES,
)

KNOWN_HEAD_BYTES: Final = 1024
"""A longer head is parsed each time: 16,384 of these are 16 MiB."""

KNOWN_HEADS: Final = 16_384
"""Request heads that are remembered as parsed, of at most KNOWN_HEAD_BYTES each. Over it: all are forgotten."""

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_TEXT = rb"[\t -~\x80-\xff]*+"
_REQUEST_LINE = rb"(" + _TOKEN + rb") ([!-~]+) HTTP/([0-9])\.([0-9])\r\n"
_HEAD = re.compile(_REQUEST_LINE + rb"(?:" + _TOKEN + rb":" + _TEXT + rb"\r\n)*+\r\n")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_HOST = re.compile(rb"[0-9A-Za-z.\-_~%!$&'()*+,;=:\[\]]*")
_DIGITS = re.compile(rb"[0-9]{1,18}")
_ABSOLUTE = re.compile(r"(?i:https?)://([^/?#]+)(/[^?#]*)?(\?[^#]*)?")
_LONGEST_LINE = URL_BYTES + 64  # target, method, version and the blanks between them
_BARE_LF = re.compile(rb"(?<!\r)\n")
_BARE = "a bare CR or LF in the head"
_REPEATED_LENGTH = "Content-Length twice, or beside Transfer-Encoding"
# A proxy in front may act on one of two values, and we on the other.
_SINGLE = frozenset(
    (b"authorization", b"content-type", b"event-attributes", b"event-type", b"expected-position", b"expires-in",
     b"idempotency-key", b"last-event-id", b"producer")
)  # fmt: skip


class RequestHead:
    """A request head that passed every rule."""

    __slots__ = (
        "captures", "chunked", "expects_continue", "headers", "http10", "keep_alive", "length", "memo", "method",
        "path", "plain", "query", "route", "upgrade",
    )  # fmt: skip

    def __init__(self, method: str, path: str, query: str, http10: bool, headers: list[tuple[bytes, bytes]]) -> None:
        self.method, self.path, self.query, self.http10, self.headers = method, path, query, http10, headers
        self.keep_alive = not http10
        self.length = 0  # of the body; unknown (0) when it is chunked
        self.chunked = False
        self.expects_continue = False
        self.upgrade = False  # to a WebSocket
        self.memo: dict[str, Any] = {}  # what was worked out from these very bytes, for the next such head
        self.route: Any = None  # who answers it, where that was found out for the next such head
        self.captures: tuple[str, ...] = ()
        # Its answer needs no field that depends on the request.
        self.plain = not http10 and method != "HEAD" and all(name != b"origin" for name, _ in headers)

    @property
    def has_body(self) -> bool:
        return self.chunked or self.length > 0


def find_head_end(data: bytes | bytearray, looked: int = 0) -> int:
    """The index after the head's empty line, or -1 if it is not there yet.

    The first *looked* bytes were searched before. Raises `PeerError` as soon as the limits are passed.
    """
    found = data.find(b"\r\n\r\n", max(0, looked - 3))
    size = found + 4 if found >= 0 else len(data)
    if size > _LONGEST_LINE and data.find(b"\n", 0, _LONGEST_LINE) < 0:
        raise _target_too_long()
    if size > HEAD_BYTES:
        raise PeerError(
            431,
            f"the request head is over {HEAD_BYTES} bytes",
            remedy=f"Send at most {HEAD_BYTES:,} bytes of header fields; long values belong in the body.",
        )
    if found < 0 and _BARE_LF.search(data, looked):
        raise PeerError(400, _BARE)  # now: a head whose lines all end so would never be complete
    return size if found >= 0 else -1


class HeadParser:
    """Parses complete heads of any number of connections, each as if it were the first.

    Clients that keep a connection send the same head again and again, to the byte. Those are parsed once
    and remembered, and so is what handlers work out from them (`Head.memo`): it halves the cost of a publish.
    A head is remembered when it comes for the second time: most that open a live answer never do.
    """

    def __init__(self) -> None:
        self.known: dict[bytes, RequestHead] = {}
        self._seen: set[int] = set()  # hashes of heads that came once

    def parse(self, raw: bytes) -> RequestHead:
        """Parse a head, its empty line included. `PeerError` carries the status to answer with."""
        known = self.known.get(raw)
        if known is not None:
            return known
        method, target, http10 = _request_line(raw)
        headers = _fields(raw)
        if len(headers) > HEAD_FIELDS:
            raise PeerError(431, f"more than {HEAD_FIELDS} header fields", remedy=f"Send at most {HEAD_FIELDS}.")
        path, query, authority = _target(method, target)
        head = RequestHead(method, path, query, http10, headers)
        _apply_fields(head, authority)
        if len(raw) <= KNOWN_HEAD_BYTES and not head.expects_continue and not head.upgrade:
            self._remember(raw, head)
        return head

    def _remember(self, raw: bytes, head: RequestHead) -> None:
        mark = hash(raw)
        if mark not in self._seen:
            if len(self._seen) >= KNOWN_HEADS:
                self._seen.clear()
            self._seen.add(mark)
            return
        if len(self.known) >= KNOWN_HEADS:
            self.known.clear()  # the busy ones are back at once
        self.known[raw] = head


class _HeadFields:
    """What llhttp tells of one head."""

    __slots__ = ("headers",)

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.strip(b" \t")))


def _fields(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Have llhttp check the head and cut it into fields.

    With a parser of its own: llhttp decides from a head what may follow it on the same connection, and here the
    next head is another peer's. A new one costs a quarter of a microsecond.
    """
    found = _HeadFields()
    try:
        httptools.HttpRequestParser(found).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # whether the protocol changes is not its business
    except httptools.HttpParserInvalidMethodError:
        raise PeerError(501, "unknown method") from None
    except httptools.HttpParserError as error:
        raise PeerError(400, f"malformed head: {error}") from None
    return found.headers


def _request_line(raw: bytes) -> tuple[str, str, bool]:
    """Check every byte of the head; return method, target and whether it is HTTP/1.0."""
    found = _HEAD.fullmatch(raw)
    if found is None:
        raise PeerError(400, _what_is_wrong(raw))
    method, target, major, minor = found.groups()
    if major != b"1" or minor not in (b"0", b"1"):
        raise PeerError(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    if len(target) > URL_BYTES:
        raise _target_too_long()
    return method.decode(), target.decode(), minor == b"0"


def _target_too_long() -> PeerError:
    remedy = f"Send at most {URL_BYTES:,} bytes of path and parameters; ask for less at a time."
    return PeerError(414, f"the request target is over {URL_BYTES} bytes", remedy=remedy)


def _what_is_wrong(raw: bytes) -> str:
    """Say for people why a head was refused."""
    lines = raw.count(b"\r\n")
    if _CONTROL.search(raw):
        return "a control character in the head"
    if raw.count(b"\n") != lines or raw.count(b"\r") != lines:
        return _BARE
    if b"\r\n " in raw or b"\r\n\t" in raw:
        return "a folded header line"
    return "malformed header field" if re.match(_REQUEST_LINE, raw) else "malformed request line"


def _target(method: str, target: str) -> tuple[str, str, str]:
    """Cut the target into path, query and (in absolute form) authority."""
    if "#" in target:
        raise PeerError(400, "a fragment in the request target")
    if target.startswith("/"):
        path, _, query = target.partition("?")
        return path, query, ""
    if target == "*" and method == "OPTIONS":
        return "*", "", ""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None or method == "CONNECT":
        raise PeerError(400, "the request target must begin with '/'")
    return absolute[2] or "/", (absolute[3] or "?")[1:], absolute[1]


def _apply_fields(head: RequestHead, authority: str) -> None:
    """Read the fields that decide about framing; refuse what two readers could understand differently."""
    hosts: list[bytes] = []
    lengths: list[bytes] = []
    codings: list[bytes] = []
    single: set[bytes] = set()
    upgrade = connection_upgrade = False
    for name, value in head.headers:
        if name in _SINGLE:
            if name in single:
                raise PeerError(400, f"the field {name.decode().title()} is there twice", remedy="Send it once.")
            single.add(name)
        elif name == b"host":
            hosts.append(value)
        elif name == b"content-length":
            lengths.append(value)
        elif name == b"transfer-encoding":
            codings.append(value)
        elif name == b"connection":
            connection_upgrade |= _apply_connection(head, value)
        elif name == b"upgrade":
            upgrade = value.lower() == b"websocket"
        elif name == b"expect":
            _apply_expect(head, value)
    head.upgrade = upgrade and connection_upgrade and not head.http10
    _check_host(hosts, authority, head.http10)
    if lengths or codings:
        _apply_framing(head, lengths, codings)


def _apply_connection(head: RequestHead, value: bytes) -> bool:
    """Take the options of a Connection field; True if one of them is `upgrade`."""
    options = [option.strip() for option in value.lower().split(b",")]
    if b"close" in options:
        head.keep_alive = False
    elif b"keep-alive" in options:
        head.keep_alive = True
    return b"upgrade" in options


def _apply_expect(head: RequestHead, value: bytes) -> None:
    if value.lower() != b"100-continue":
        raise PeerError(417, "the only expectation known here is 100-continue")
    head.expects_continue = not head.http10


def _check_host(hosts: list[bytes], authority: str, http10: bool) -> None:
    if len(hosts) > 1 or (not hosts and not http10):
        raise PeerError(400, "there must be exactly one Host field")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise PeerError(400, "malformed Host field")
    if authority and hosts and authority.lower().encode() != hosts[0].lower():
        raise PeerError(400, "the target's authority is not the Host")


def _apply_framing(head: RequestHead, lengths: list[bytes], codings: list[bytes]) -> None:
    if len(lengths) + len(codings) > 1:
        raise PeerError(400, _REPEATED_LENGTH)
    if codings:
        if codings[0].lower() != b"chunked" or head.http10:
            raise PeerError(400, "the only transfer coding known here is chunked, in HTTP/1.1")
        head.chunked = True
    elif not _DIGITS.fullmatch(lengths[0]):
        raise PeerError(400, "malformed Content-Length")
    else:
        head.length = int(lengths[0])


# ── chunked bodies ─────────────────────────────────────────────────────────────────────────────

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*)?")
_TRAILER_LINE = re.compile(_TOKEN + rb":" + _TEXT)
_SMALL_SIZES: Final = {line % size: size for size in range(1, 256) for line in (b"%x", b"%X")}


class ChunkDecoder:
    """Takes the framing off a chunked body."""

    __slots__ = ("_held", "_left", "_spare", "_step", "_trailer")

    def __init__(self, framing_bytes: int = CHUNK_FRAMING_BYTES) -> None:
        self._held = b""  # the beginning of a line that is not complete
        self._spare = framing_bytes  # how much more framing may come than what it frames
        self._left = 0  # bytes of the chunk that are still to come
        self._step = self._size
        self._trailer = 0

    def feed(self, data: bytes, pieces: list[bytes]) -> bytes | None:
        """Add pieces of the body to *pieces*; return what follows it once it has ended (None before that).

        Broken framing raises `PeerError`; what came before it is in *pieces* all the same.
        """
        if self._held:
            data, self._held = self._held + data, b""
        at = 0
        while at < len(data):
            after = self._step(data, at, pieces)
            if after < 0:
                self._held = data[at:]
                break
            at = after
            if self._step == self._ended:
                return data[at:]
        return None

    # Each step takes one thing from *data* at *at*, returns where it ended, or -1 if it is not all there.

    def _size(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        passed = self._small_chunks(data, at, pieces)
        if passed > at:
            return passed
        line, after = _line(data, at, CHUNK_EXTENSION_BYTES, "chunk size")
        if line is None:
            return -1
        found = _SIZE_LINE.fullmatch(line)
        if found is None:
            raise PeerError(400, "malformed chunk size")
        self._left = int(found[1], 16)
        self._step = self._data if self._left else self._trailers
        self._pay(len(line) + 4 - self._left)
        return after

    def _small_chunks(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        """Take the small chunks that are there from end to end: many in a row must cost little each."""
        spare = self._spare
        while size := _SMALL_SIZES.get(data[at : (end := data.find(b"\r", at, at + 3))]):
            begin = end + 2
            after = begin + size
            if data[end:begin] != b"\r\n" or data[after : after + 2] != b"\r\n":
                break
            pieces.append(data[begin:after])
            spare += size - (begin - at) - 2
            at = after + 2
        self._pay(self._spare - spare)
        return at

    def _pay(self, framing: int) -> None:
        """Count bytes of framing, less those that they frame."""
        self._spare -= framing
        if self._spare < 0:
            raise PeerError(400, "the chunks are too small", remedy="Send chunks of a kilobyte or more.")

    def _data(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        piece = data[at : at + self._left]
        pieces.append(piece)
        self._left -= len(piece)
        if not self._left:
            self._step = self._data_end
        return at + len(piece)

    def _data_end(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        line, after = _line(data, at, 0, "chunk")
        if line is None:
            return -1
        self._step = self._size
        return after

    def _trailers(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        line, after = _line(data, at, TRAILER_BYTES - self._trailer, "trailer")
        if line is None:
            return -1
        if not line:
            self._step = self._ended
        elif not _TRAILER_LINE.fullmatch(line):
            raise PeerError(400, "malformed trailer")
        self._trailer += after - at
        return after

    def _ended(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        raise PeerError(400, "the body has ended")


def _line(data: bytes, at: int, longest: int, what: str) -> tuple[bytes | None, int]:
    """The line at *at* and where the next one begins; None while its end is not there."""
    end = data.find(b"\r\n", at)
    known = data[at:end] if end >= 0 else data[at:].removesuffix(b"\r")
    if len(known) > longest or b"\n" in known or b"\r" in known:
        raise PeerError(400, f"malformed {what}")
    return (known, end + 2) if end >= 0 else (None, -1)


def chunk(data: bytes) -> bytes:
    """Frame *data* as one chunk: once, for all receivers. *data* must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK: Final = b"0\r\n\r\n"

# ── answers ────────────────────────────────────────────────────────────────────────────────────

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {s.value: b"HTTP/1.1 %d %b\r\n" % (s, s.phrase.encode()) for s in HTTPStatus}
_VALUE = re.compile(r"(?![ \t])[\t -~\x80-\xff]*+(?<![ \t])")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_prefixes: dict[tuple[int, str], bytes] = {}  # at most one per status and content type that the program names
_names: set[str] = set()  # of fields, known to be in order


def status_line(status: int) -> bytes:
    """The status line; a status without a name of its own gets none."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def field_lines(headers: tuple[tuple[str, str], ...]) -> bytes:
    """Encode header fields. Raises `ValueError` for one that would break the head apart."""
    lines = []
    for name, value in headers:
        if not (name in _names or _is_name(name)) or not _VALUE.fullmatch(value):
            raise ValueError(f"header field {name!r} cannot be sent")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("latin-1")


def _is_name(name: str) -> bool:
    found = _NAME.fullmatch(name) is not None
    if found and len(_names) < 1000:
        _names.add(name)
    return found


def date_line(epoch_seconds: int) -> bytes:
    """The Date field for that second."""
    return f"Date: {formatdate(epoch_seconds, usegmt=True)}\r\n".encode()


def answer(status: int, body: bytes, content_type: str, fields: bytes) -> bytes:
    """Encode a complete answer; *fields* are header lines already encoded, Date among them."""
    key = (status, content_type)
    prefix = _prefixes.get(key) or _prefix(key)
    return b"%b%d\r\n%b\r\n%b" % (prefix, len(body), fields, body)


def answer_head(status: int, body_length: int, content_type: str, fields: bytes) -> bytes:
    """The head of that answer, for a HEAD request."""
    prefix = _prefix((status, content_type))
    return b"%b%d\r\n%b\r\n" % (prefix, body_length, fields)


def bodiless(status: int, fields: bytes) -> bytes:
    """An answer that has no body by definition (1xx, 204, 304), or a live one's head."""
    return b"%b%b\r\n" % (status_line(status), fields)


def _prefix(key: tuple[int, str]) -> bytes:
    status, content_type = key
    fields = field_lines((("Content-Type", content_type),)) if content_type else b""
    prefix = status_line(status) + fields + b"Content-Length: "
    if len(_prefixes) < 1000:
        _prefixes[key] = prefix
    return prefix


# ── percent signs ──────────────────────────────────────────────────────────────────────────────

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def decode_level(level: str) -> str:
    """Decode one level of a path. Raises `InputInvalid` for bad escapes, bad UTF-8 and control characters."""
    if "%" not in level:
        return level
    text = _unquote(level, "path")
    if _CONTROLS.search(text):
        raise InputInvalid("path", "has an encoded control character", code="path_invalid")
    return text


def decode_path(path: str) -> str:
    """Decode a whole path, for people and logs."""
    return decode_level(path)


def parse_query(query: str) -> dict[str, str]:
    """Decode a query's parameters. A name that comes twice raises `InputInvalid`."""
    found: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        name, _, value = pair.partition("=")
        name = _unquote(name.replace("+", " "), "query")
        if not name:
            continue
        if name in found:
            raise InputInvalid(f"parameter {name!r}", "is given twice", code="parameter_repeated")
        found[name] = _unquote(value.replace("+", " "), f"parameter {name!r}")
    return found


def _unquote(text: str, what: str) -> str:
    if "%" not in text:
        return text
    if _BAD_ESCAPE.search(text):
        raise InputInvalid(what, "has a malformed percent sign", code="encoding_invalid")
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise InputInvalid(what, "is not UTF-8", code="encoding_invalid") from None
    if "\0" in decoded:
        raise InputInvalid(what, "has a NUL", code="encoding_invalid")
    return decoded
