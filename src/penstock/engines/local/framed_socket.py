"""One end of the socket between the log process and a worker: frames in, one frame out for each turn of the loop.

Both ends are made of it: `served_worker.py` in the log process, which cuts a worker that is too slow, and
`worker_calls.py` in a worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Final, cast

from penstock.engines.local.frames import FrameCutter, framed

log = logging.getLogger("penstock.link")

BEAT_SECONDS: Final = 1.0
"""How often a worker shows that it lives, and how often the log process looks."""


class FramedSocket(asyncio.Protocol):
    """What both ends have in common. Nothing here ever waits for the peer: what it does not take gathers here."""

    def __init__(self) -> None:
        self._cutter = FrameCutter()
        self._transport: asyncio.WriteTransport | None = None
        self._booked = False
        self._loop = asyncio.get_running_loop()

    @property
    def is_open(self) -> bool:
        """Whether the peer can be told anything."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        for frame in self._cutter.cut(data):
            try:
                self.take(frame)
            except Exception:  # a defect of ours: go on with the others rather than with half of this frame
                log.exception("link.failed")
                self.abort()
                return

    def take(self, frame: memoryview) -> None:
        """Take one frame of the peer."""
        raise NotImplementedError

    def make(self) -> object:
        """All that waits to be told, as the parts of one frame."""
        raise NotImplementedError

    def book(self) -> None:
        """Tell the peer at the end of this turn of the loop what waits then."""
        if not self._booked:
            self._booked = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Tell it now."""
        self._booked = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(self.make()))

    def close(self) -> None:
        """Tell what waits, then end."""
        if self._transport is not None:
            if self._booked:
                self.flush()
            self._transport.close()

    def abort(self) -> None:
        """End at once; what waits is not told."""
        if self._transport is not None:
            self._transport.abort()


class SocketPath:
    """A path of any length for a Unix socket. The kernel takes 107 bytes: `short` goes through `/proc/self/fd`."""

    def __init__(self, path: Path) -> None:
        self._directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        self.short = f"/proc/self/fd/{self._directory}/{path.name}"

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self._directory)
