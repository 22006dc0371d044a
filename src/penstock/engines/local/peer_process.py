"""The process at the other end of a Unix socket."""

from __future__ import annotations

import os
import signal
import socket
import struct
from contextlib import suppress
from typing import Final

_PEER: Final = struct.Struct("3i")  # process, user, group


class PeerProcess:
    """Who has connected. Once it has ended, its number may go to another process; its pidfd never does."""

    def __init__(self, connected: socket.socket) -> None:
        told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        self.pid, self.user, _ = _PEER.unpack(told)
        self._pidfd: int | None = None
        with suppress(OSError):  # a kernel, or a container, without them
            self._pidfd = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """End it, unless that is us (a test), or it has ended."""
        if self.pid in (0, os.getpid()):
            return
        with suppress(ProcessLookupError, PermissionError):
            if self._pidfd is None:
                os.kill(self.pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of its pidfd. It is not killed any more."""
        if self._pidfd is not None:
            os.close(self._pidfd)
        self.pid, self._pidfd = 0, None
