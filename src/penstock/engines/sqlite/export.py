"""The export of the SQLite engine: sums by a thread of this process, rows by a process of their own.

Rows are read with ADBC (`export_pages.py`), which costs less than half of what Python's own rows do. It brings
its own copy of SQLite, and two copies must never open one file in one process: SQLite's locks belong to
the process, so each copy would walk over the other's (seen: a bus error within seconds beside a busy
writer). In another process the locks work, the event loop is left alone, and pyarrow is not loaded here.

    event loop                                    export process, ends when idle
    control socket ── request + a socket ───────▶ a thread per export:
    Inlet ◀── D piece of the stream ───────────── read a page, convert, write (blocks while nobody reads)
          ◀── T trailer ─────────────────────────
          ◀── F failure ─────────────────────────
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final, cast

import msgspec

from penstock.core.clock import Clock
from penstock.core.export import Block, ExportRange, check_not_trimmed
from penstock.core.log import Log
from penstock.engines.sqlite.connection import open_reader
from penstock.errors import EngineGone

IDLE_SECONDS: Final = 60.0
"""How long the export process waits for the next export: it takes 0.3 s to start, and 90 MB."""
END_SECONDS: Final = 5.0
"""How long one that is told to end may take for it; then it is killed."""
INLET_BYTES: Final = 1024 * 1024
"""Bytes of one export that wait in this process. At it: no more is read from the export process, which then stops."""

_PROGRAM: Final = """
import sys

class NoFrames:
    @staticmethod
    def find_spec(name, path, target=None):
        if name in ("pandas", "polars"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoFrames)
from penstock.engines.sqlite.export_pages import main
main()
"""
"""pyarrow and ADBC import pandas and polars where those are installed: more than half of what the start would take."""

DATA, TRAILER, FAILURE = b"D", b"T", b"F"
HEADER_BYTES: Final = 5  # kind, length

# One row for all sums: each row fetched is a chance to lose the interpreter lock.
_BLOCKS = """
WITH RECURSIVE steps(lo) AS (VALUES (:after) UNION ALL SELECT lo + :step FROM steps WHERE lo + :step < :upto)
SELECT json_group_array(json(block)) FROM (
    SELECT (
        SELECT json_array(
            max(id), count(*), sum(length(body)), min(published_ms) / 86400000, max(published_ms) / 86400000
        ) FROM entries WHERE id > lo AND id <= min(lo + :step, :upto) HAVING count(*) > 0
    ) AS block FROM steps
)
"""
_blocks = msgspec.json.Decoder(list[tuple[int, int, int, int, int] | None])


class ExportRequest(msgspec.Struct, frozen=True):
    """What the export process is asked for."""

    range: ExportRange
    now_ms: int


class SqliteExport:
    """`core.export.Export` over one file."""

    def __init__(self, path: Path, log: Log, clock: Clock, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._path, self._log, self._clock, self._idle_seconds = path, log, clock, idle_seconds
        self._process: ExportProcess | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._endings: set[asyncio.Future[None]] = set()  # of processes that were told to end
        self._streams = 0

    async def blocks(self, after: int, upto: int, step: int) -> list[Block]:
        return await asyncio.to_thread(self._blocks, after, upto, step)

    def _blocks(self, after: int, upto: int, step: int) -> list[Block]:
        connection = open_reader(self._path)
        try:
            text = connection.execute(_BLOCKS, {"after": after, "upto": upto, "step": step}).fetchone()[0]
        finally:
            connection.close()
        return [Block(*row) for row in _blocks.decode(text) if row is not None]

    async def stream(self, wanted: ExportRange) -> AsyncGenerator[bytes, None]:
        inlet = await self._begin(wanted)
        process = self._process
        try:
            while (message := await inlet.next()) is not None:
                kind, piece = message
                if kind == FAILURE:
                    raise EngineGone(f"the export failed: {piece.decode()}")
                check_not_trimmed(self._log, wanted.after)  # each time: what was read before the trim has no hole
                yield piece
                if kind == TRAILER:
                    return
            if process is self._process:  # else another export has noticed before, and there is a new one
                self._end_process()
            raise EngineGone("the export failed: its process ended")
        finally:
            inlet.close()
            self._ended()

    async def _begin(self, wanted: ExportRange) -> Inlet:
        if self._timer is not None:
            self._timer.cancel()
        if self._process is None or not self._process.alive:
            self._process = ExportProcess(self._path)
        ours, theirs = socket.socketpair()
        self._streams += 1
        try:
            with theirs:
                self._process.send(ExportRequest(wanted, self._clock.now_ms()), theirs)
            _, inlet = await asyncio.get_running_loop().create_unix_connection(Inlet, sock=ours)
        except BaseException:
            ours.close()
            self._ended()
            raise
        return inlet

    def _ended(self) -> None:
        self._streams -= 1
        if not self._streams and self._process is not None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._end_process)

    def _end_process(self) -> None:
        if self._process is not None:
            ending = asyncio.ensure_future(asyncio.to_thread(self._process.end))  # one that stands still takes seconds
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)
            self._process = None

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._end_process()
        await asyncio.gather(*self._endings)


class ExportProcess:
    """The process that reads. It ends when the control socket is closed, so it never outlives us."""

    def __init__(self, path: Path) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-c", _PROGRAM, str(path.absolute())]
        with theirs:
            self.process = subprocess.Popen(command, stdin=theirs.fileno(), env=_environment())  # noqa: S603 - our own module
        self._control.setblocking(False)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, request: ExportRequest, data: socket.socket) -> None:
        """Have *request* answered through the socket *data*."""
        try:
            socket.send_fds(self._control, [msgspec.json.encode(request)], [data.fileno()])
        except OSError as error:
            raise EngineGone(f"the export process does not answer: {error}") from error

    def end(self) -> None:
        """Close its input: it ends at once, also in the middle of an export."""
        self._control.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _environment() -> dict[str, str]:
    """Ours, so that the child finds this very package."""
    root = str(Path(__file__).parents[3])
    paths = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{paths}" if paths else root}


class Inlet(asyncio.Protocol):
    """What comes from the export process, for one export. Holds `INLET_BYTES` and a little."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._pieces: deque[tuple[bytes, bytes]] = deque()
        self._waiting_bytes = 0
        self._rest = b""  # the beginning of a header, or of a message that is needed whole
        self._missing = 0  # bytes of the data message that has begun
        self._ended = self._paused = False
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> tuple[bytes, bytes] | None:
        """The kind and bytes of what came next; None at the end."""
        while not self._pieces:
            if self._ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        kind, piece = self._pieces.popleft()
        self._waiting_bytes -= len(piece)
        if self._paused and self._waiting_bytes < INLET_BYTES and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return kind, piece

    def close(self) -> None:
        """Take no more; the export process gives up this export."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._wake()

    def data_received(self, data: bytes) -> None:
        while data:
            data = self._pass_on(data) if self._missing else self._begin(data)
        if self._waiting_bytes >= INLET_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def _pass_on(self, data: bytes) -> bytes:
        """Hand on what belongs to the message; return what follows it."""
        piece, rest = (data, b"") if len(data) <= self._missing else (data[: self._missing], data[self._missing :])
        self._missing -= len(piece)
        self._add(DATA, piece)
        return rest

    def _begin(self, data: bytes) -> bytes:
        """Read a header; return what follows it. The short messages are handed on whole."""
        data = self._rest + data
        self._rest = b""
        length = int.from_bytes(data[1:HEADER_BYTES], "big")
        if len(data) >= HEADER_BYTES and data[:1] == DATA:
            self._missing = length
            return data[HEADER_BYTES:]
        end = HEADER_BYTES + length
        if len(data) < HEADER_BYTES or len(data) < end:
            self._rest = data
            return b""
        self._add(data[:1], data[HEADER_BYTES:end])
        return data[end:]

    def _add(self, kind: bytes, piece: bytes) -> None:
        self._pieces.append((kind, piece))
        self._waiting_bytes += len(piece)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
