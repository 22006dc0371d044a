"""Heads of HTTP/1.1 requests, strict against smuggling.

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
from typing import Any, Final

import httptools

from penstock.errors import PeerError
from penstock.limits import HEAD_BYTES, HEAD_FIELDS, URL_BYTES

KNOWN_HEAD_BYTES: Final = 1024
"""A longer head is parsed each time: 16,384 of these are 16 MiB."""

KNOWN_HEADS: Final = 16_384
"""Request heads that are remembered as parsed, of at most KNOWN_HEAD_BYTES each. Over it: all are forgotten."""
KNOWN_FIELDS: Final = 1_024
"""Heads that are remembered by all but their request line. Over it: all are forgotten."""
_MARKS: Final = 8 * KNOWN_HEADS

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
FIELD_LINE: Final = _TOKEN + rb":[\t -~\x80-\xff]*+"
"""A header or a trailer, without the end of its line."""
_REQUEST_LINE = rb"(" + _TOKEN + rb") ([!-~]+) HTTP/([0-9])\.([0-9])\r\n"
_HEAD = re.compile(_REQUEST_LINE + rb"(?:" + FIELD_LINE + rb"\r\n)*+\r\n")
# A request line that every parser reads alike. Used only after the fields and the method have passed the full check.
_SAFE_LINE = re.compile(rb"([A-Z]+) (/[0-9A-Za-z/._~\-]*)(?:\?([0-9A-Za-z/._~\-&=%+:,]*))? HTTP/1\.1")
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
        "captures", "chunked", "expects_continue", "fields_memo", "headers", "http10", "keep_alive", "length", "memo",
        "method", "path", "plain", "query", "raw", "route", "upgrade",
    )  # fmt: skip

    def __init__(
        self, raw: bytes, method: str, path: str, query: str, http10: bool, headers: list[tuple[bytes, bytes]]
    ) -> None:
        self.raw = raw  # as it came, its empty line included
        self.method, self.path, self.query, self.http10, self.headers = method, path, query, http10, headers
        self.keep_alive = not http10
        self.length = 0  # of the body; unknown (0) when it is chunked
        self.chunked = False
        self.expects_continue = False
        self.upgrade = False  # to a WebSocket
        self.memo: dict[str, Any] = {}  # what was worked out from these very bytes, for the next such head
        self.fields_memo: dict[str, Any] = {}  # … from its fields alone, for all heads that have just these
        self.route: Any = None  # who answers it, where that was found out for the next such head
        self.captures: tuple[str, ...] = ()
        # Its answer needs no field that depends on the request.
        self.plain = not http10 and method != "HEAD" and all(name != b"origin" for name, _ in headers)

    @property
    def has_body(self) -> bool:
        return self.chunked or self.length > 0

    def with_target(self, raw: bytes, path: str, query: str) -> RequestHead:
        """The same with another target."""
        head = RequestHead.__new__(RequestHead)
        head.raw = raw
        head.method, head.path, head.query, head.http10, head.headers = self.method, path, query, False, self.headers
        head.keep_alive, head.length, head.chunked, head.plain = self.keep_alive, self.length, self.chunked, self.plain
        head.expects_continue = head.upgrade = False
        head.memo, head.fields_memo = {}, self.fields_memo
        head.route, head.captures = (self.route, self.captures) if path == self.path else (None, ())
        return head


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
    and remembered, and so is what handlers work out from them (`RequestHead.memo`): it halves the cost of a publish.
    A head is remembered when it comes for the second time: most that open a live answer never do. So are its
    fields, for heads that differ from it in their target alone: of a client that publishes to many streams.
    """

    def __init__(self) -> None:
        self.known: dict[bytes, RequestHead] = {}
        self._by_fields: dict[bytes, RequestHead] = {}
        # A byte for each hash of a head that came once. Two heads that share one are harmless: the second is remembered
        # too early. A set of numbers would be 120 bytes for each of thousands of heads that never come again.
        self._seen, self._seen_count = bytearray(_MARKS), 0

    def parse(self, raw: bytes) -> RequestHead:
        """Parse a head, its empty line included. `PeerError` carries the status to answer with."""
        head = self.known.get(raw) or self.parse_like(raw)
        if head is not None:
            return head
        method, target, http10 = _request_line(raw)
        headers = _fields(raw)
        if len(headers) > HEAD_FIELDS:
            raise PeerError(431, f"more than {HEAD_FIELDS} header fields", remedy=f"Send at most {HEAD_FIELDS}.")
        path, query, authority = _target(method, target)
        head = RequestHead(raw, method, path, query, http10, headers)
        _apply_fields(head, authority)
        if len(raw) <= KNOWN_HEAD_BYTES and not head.expects_continue and not head.upgrade:
            self._remember(raw, head, self.known, KNOWN_HEADS)
            if not http10:
                self._remember(raw[raw.find(b"\r\n") :], head, self._by_fields, KNOWN_FIELDS)
        return head

    def parse_like(self, raw: bytes) -> RequestHead | None:
        """A head whose fields were here before, to the byte, and whose target is simple; None if it is not so."""
        line_end = raw.find(b"\r\n")
        like = self._by_fields.get(raw[line_end:])
        if like is None or len(raw) > KNOWN_HEAD_BYTES:
            return None
        line = _SAFE_LINE.fullmatch(raw, 0, line_end)
        if line is None or line[1].decode() != like.method:
            return None
        head = like.with_target(raw, line[2].decode(), (line[3] or b"").decode())
        self._remember(raw, head, self.known, KNOWN_HEADS)
        return head

    def _remember(self, raw: bytes, head: RequestHead, known: dict[bytes, RequestHead], limit: int) -> None:
        """Keep what has come before; note what comes for the first time."""
        mark = hash(raw) % _MARKS
        if not self._seen[mark]:
            if self._seen_count >= KNOWN_HEADS:
                self._seen, self._seen_count = bytearray(_MARKS), 0
            self._seen[mark] = 1
            self._seen_count += 1
            return
        if len(known) >= limit:
            known.clear()  # the busy ones are back at once
        known[raw] = head


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
