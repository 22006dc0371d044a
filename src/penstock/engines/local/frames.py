"""What the log process and its workers say to each other: one frame for each turn of a loop, in both directions.

    length, 4 bytes ║ msgpack: `WorkerFrame` to the log process, `LogFrame` to a worker

The parts of a frame are handled in the order of its fields. A worker's new patterns come before its reads, so a read
sees all entries from before the pattern was known. Entries come before answers: when a caller gets its answer, the
followers of its node have all entries up to that point.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from penstock.errors import EngineGone, PenstockError
from penstock.values import Appended, Batch, Entry

HEADER_BYTES: Final = 4
_SIMPLE = (str, int, float, bool, type(None))


class Failure(NamedTuple):
    """An error, on its way to the worker that made the call."""

    number: int
    kind: str
    message: str
    details: dict[str, Any]


AppendAnswer = tuple[int, int, int | None, int, int, Appended | None]
"""The number of an append, and where the one entry of its batch is: id, index, chunk, end. Of other batches, all."""


PlainEvents = tuple[list[int], list[str], list[bytes]]
"""Appends of one plain event each, as columns: their numbers, streams and bodies. It takes a fifth of the time that as
many batches take to be read."""


class WorkerFrame(msgspec.Struct, array_like=True, frozen=True):
    """From a worker."""

    wanted: list[tuple[int, str]]  # the number of a new pattern, or 0 to take one back; the pattern
    types: list[str]  # meta entries that are wanted wherever they come
    events: PlainEvents
    appends: list[tuple[int, Batch]]  # all other batches; together with the events in the order of their numbers
    calls: list[tuple[int, str, msgspec.Raw]]
    hints: list[tuple[str, bytes]]
    taken: list[tuple[int, bool]]  # letters that somebody here has listened to, or not
    given_up: list[int] = []  # calls that nobody waits for any more
    leaving: bool = False  # this is the last frame: who goes without a word is killed


class LogFrame(msgspec.Struct, array_like=True, frozen=True):
    """From the log process."""

    followed: int
    trimmed_upto: int
    trouble: str
    members: list[str] | None  # all who are connected, if that has changed
    covered: list[tuple[int, int]]  # the number of a pattern, and the id after which all that it covers is sent
    entries: list[Entry]
    appended: list[AppendAnswer]
    answers: list[tuple[int, msgspec.Raw]]
    failures: list[Failure]
    letters: list[tuple[int, str, bytes]]  # number (0: nobody waits), topic, message


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a worker that says who it is."""

    durability: str
    server: str
    followed: int
    trimmed_upto: int
    members: list[str]


encode: Final = msgspec.msgpack.Encoder(enc_hook=list).encode  # a hook for `PlainEntries`: they travel as entries
_encoder: Final = msgspec.msgpack.Encoder()


def framed(parts: object) -> bytearray:
    """A frame as bytes, its length in front."""
    frame = bytearray(HEADER_BYTES)
    _encoder.encode_into(parts, frame, HEADER_BYTES)
    frame[:HEADER_BYTES] = (len(frame) - HEADER_BYTES).to_bytes(HEADER_BYTES, "big")
    return frame


class FrameCutter:
    """Cuts what comes over a socket into frames, however it is cut there."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size, self._wanted = 0, HEADER_BYTES

    def cut(self, data: bytes) -> list[memoryview]:
        """The frames that are complete with *data*."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return []
        whole = memoryview(data if len(self._pieces) == 1 else b"".join(self._pieces))
        frames, begin = [], 0
        while True:
            end = begin + HEADER_BYTES
            if end <= len(whole):
                end += int.from_bytes(whole[begin:end], "big")
            if end > len(whole):
                break
            frames.append(whole[begin + HEADER_BYTES : end])
            begin = end
        self._pieces, self._size = [bytes(whole[begin:])], len(whole) - begin
        self._wanted = end - begin
        return frames


# ── errors ─────────────────────────────────────────────────────────────────────────────────────


def failure(number: int, error: Exception) -> Failure:
    """*error* as it travels. One that nobody raised on purpose is told as `EngineGone`, or stays a `ValueError`."""
    if not isinstance(error, PenstockError | ValueError):
        error = EngineGone(f"the log process failed: {error!r}")
    details = {name: value for name, value in vars(error).items() if isinstance(value, _SIMPLE)}
    kind = type(error).__name__ if isinstance(error, PenstockError) else "ValueError"
    return Failure(number, kind, str(error), details)


def error_of(failed: Failure) -> Exception:
    """The error as it was raised."""
    if failed.kind == "ValueError":
        return ValueError(failed.message)
    kind = _kinds(PenstockError).get(failed.kind, EngineGone)
    error = kind.__new__(kind)
    error.args = (failed.message,)
    vars(error).update(failed.details)
    return error


def _kinds(kind: type[PenstockError]) -> dict[str, type[PenstockError]]:
    found = {kind.__name__: kind}
    for below in kind.__subclasses__():
        found |= _kinds(below)
    return found
