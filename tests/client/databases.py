"""Real databases for apps under test."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.testing import require_program, wait_until

Connect = Callable[[], Any]


class Postgres:
    """A PostgreSQL of its own, on a Unix socket."""

    def __init__(self, folder: Path) -> None:
        require_program("pg_ctlcluster", package="postgresql")
        self._programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        self._folder, self._as_owner = folder, _owner(folder)
        self.target = f"host={folder} user=app dbname=postgres"
        _run(self._as_owner, self._programs / "initdb", "--auth=trust", "--username=app", "--no-sync", "-D", self._data)
        self.start()

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        postgres = [str(self._programs / "postgres"), "-D", str(self._data), "-k", str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            command = [*self._as_owner, *postgres, "-c", "listen_addresses="]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self.answers)

    def answers(self) -> bool:
        command = [str(self._programs / "pg_isready"), "-q", "-h", str(self._folder)]
        return subprocess.run(command, check=False).returncode == 0

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends connections and then itself; SIGQUIT ends everything at once, as a crash does."""
        self.process.send_signal(how)
        self.process.wait(60)

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(self.target)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL for the time of the block."""
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    try:
        server = Postgres(folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def _owner(folder: Path) -> list[str]:
    """PostgreSQL refuses to run as root: the package has made a user for it."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _run(as_owner: list[str], *command: object) -> None:
    subprocess.run([*as_owner, *map(str, command)], check=True, capture_output=True, cwd="/")
