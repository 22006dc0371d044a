"""The client's side of HTTP/1.1 without the socket: heads of requests, and answers that are bounded in size.

An answer is read in time that grows with its size. A head is looked at only when it is complete, and then by llhttp;
interim answers (1xx) are counted and passed over. What follows is taken by its length, by chunks, or up to the end of
the connection.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Final

import httptools

from penstock.errors import PeerError
from penstock.limits import ANSWER_HEAD_BYTES
from penstock.wire.http_chunks import ChunkDecoder

_DIGITS = re.compile(r"[0-9]{1,18}")
_BODILESS: Final = (204, 304)
_SWITCHED: Final = 101


def request_head(method: str, target: str, host: str, fields: Iterable[tuple[str, str]]) -> bytes:
    """A request up to its body. None of its parts may hold a line's end: whoever takes them from others has checked."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in fields)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode(errors="surrogateescape")


class AnswerReader:
    """Reads one answer. What is wrong with it is a `PeerError` of status 502.

    With *limit_bytes* the body may be so long, and is in `body` when the answer is `complete`. Without, it has no
    limit, and whoever reads it takes what there is each time (`take`). *bodiless*: the request was a HEAD.
    """

    def __init__(self, limit_bytes: int | None, *, bodiless: bool = False) -> None:
        self._limit_bytes = sys.maxsize if limit_bytes is None else limit_bytes
        self._framing_bytes = sys.maxsize if limit_bytes is None else ANSWER_HEAD_BYTES
        self.bodiless = bodiless
        self._head = bytearray()
        self._looked = 0
        self._room = ANSWER_HEAD_BYTES  # for what is not body
        self._chunks: ChunkDecoder | None = None
        self._left: int | None = None  # bytes of the body to come; None up to the end of the connection
        self.status = self.interims = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = False
        self.keep_alive = False

    @property
    def begun(self) -> bool:
        """The head is there, and what follows is its body."""
        return self.status >= 200

    def feed(self, data: bytes) -> None:
        """Take bytes. Once the answer is `complete` no more may come: then the connection is not kept."""
        while data and not self.complete:
            data = self._take_body(data) if self.begun else self._take_head(data)
        if data:
            self.keep_alive = False

    def end(self) -> None:
        """The connection has ended; so has the answer, if nothing else says where it ends."""
        if self.begun and self._left is None and self._chunks is None:
            self.complete = True

    def take(self) -> bytes:
        """What has come of the body and was not taken before."""
        taken = bytes(self.body)
        self.body.clear()
        return taken

    # ── heads ─────────────────────────────────────────────────────────────────────────────────

    def _take_head(self, data: bytes) -> bytes:
        head = self._head
        before = len(head)
        head += data[: self._room + 1 - before]
        end = head.find(b"\r\n\r\n", self._looked) + 4
        if end == 3:
            if len(head) > self._room:
                raise PeerError(502, f"the head of the answer has more than {ANSWER_HEAD_BYTES:,} bytes")
            self._looked = max(0, len(head) - 3)
            return b""
        if end > self._room:
            raise PeerError(502, f"the head of the answer has more than {ANSWER_HEAD_BYTES:,} bytes")
        self._room -= end
        self._read_head(bytes(head[:end]))
        self._head, self._looked = bytearray(), 0
        return data[end - before :]

    def _read_head(self, raw: bytes) -> None:
        found = _AnswerFields()
        parser = httptools.HttpResponseParser(found)
        try:
            parser.feed_data(raw)
        except httptools.HttpParserUpgrade:
            pass  # its status tells
        except httptools.HttpParserError as error:
            raise PeerError(502, f"the answer is not HTTP: {error}") from None
        status = parser.get_status_code()
        if status == _SWITCHED or status < 100:
            raise PeerError(502, f"the answer has the status {status}, which nobody asked for")
        if status < 200:
            self.interims += 1
            return  # the real one follows
        self.status, self.headers = status, found.headers
        options = [option.strip() for option in self.headers.get("connection", "").lower().split(",")]
        self.keep_alive = "close" not in options and (parser.get_http_version() != "1.0" or "keep-alive" in options)
        self._begin_body()

    def _begin_body(self) -> None:
        coding, length = self.headers.get("transfer-encoding", ""), self.headers.get("content-length")
        if self.bodiless or self.status in _BODILESS:
            self._left, self.complete = 0, True
        elif coding.lower().rpartition(",")[2].strip() == "chunked":
            self._chunks = ChunkDecoder(self._framing_bytes)
        elif coding or length is None:
            self.keep_alive = False
        elif not _DIGITS.fullmatch(length):
            raise PeerError(502, "the answer has a malformed Content-Length")
        else:
            self._left = int(length)
            self._check_size(self._left)
            self.complete = not self._left

    # ── bodies ────────────────────────────────────────────────────────────────────────────────

    def _take_body(self, data: bytes) -> bytes:
        if self._chunks is not None:
            return self._take_chunks(self._chunks, data)
        taken = data if self._left is None else data[: self._left]
        self._check_size(len(self.body) + len(taken))
        self.body += taken
        if self._left is not None:
            self._left -= len(taken)
            self.complete = not self._left
        return data[len(taken) :]

    def _take_chunks(self, chunks: ChunkDecoder, data: bytes) -> bytes:
        pieces: list[bytes] = []
        try:
            rest = chunks.feed(data, pieces)
        except PeerError as error:
            raise PeerError(502, f"the answer is not HTTP: {error.detail}") from None
        self._check_size(len(self.body) + sum(map(len, pieces)))
        self.body += b"".join(pieces)
        self.complete = rest is not None
        return rest or b""

    def _check_size(self, size: int) -> None:
        if size > self._limit_bytes:
            raise PeerError(502, f"the answer has more than {self._limit_bytes:,} bytes")


class _AnswerFields:
    """The fields of one head; the last of a name counts. Names are lower case."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip(" \t")
