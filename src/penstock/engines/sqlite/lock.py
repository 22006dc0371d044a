"""One server per data directory. Its export process reads the file as well, without this lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from penstock.errors import DataLocked

FILE_NAME = "penstock.lock"


class DirectoryLock:
    """Holds a data directory until released or until the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        """Take the directory; `DataLocked` names the process that has it."""
        self._file = os.open(directory / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._file, 32).decode("ascii", "replace").strip()
            os.close(self._file)
            raise DataLocked(str(directory), f"process {owner}" if owner else "another process") from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let the next one in. The file stays: removing it would race with whoever opens it now."""
        os.ftruncate(self._file, 0)
        os.close(self._file)
