"""Chunked bodies (RFC 9112), strict against smuggling."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import PeerError
from penstock.limits import CHUNK_EXTENSION_BYTES, CHUNK_FRAMING_BYTES, TRAILER_BYTES
from penstock.wire.http_requests import FIELD_LINE

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*)?")
_TRAILER_LINE = re.compile(FIELD_LINE)
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
    return b"".join((b"%x\r\n" % len(data), data, b"\r\n"))


LAST_CHUNK: Final = b"0\r\n\r\n"
