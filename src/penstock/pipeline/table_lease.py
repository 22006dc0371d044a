"""Which driver works on a table now. Without this, two drivers could take the table from each other for ever.

While a turn is under way, the record of the table names its holder, a process. A long turn changes the record every
few seconds. Another driver waits until the record is free. It takes the record all the same when the holder's process
has ended, or when the record has not changed for `LEASE_SECONDS`, measured by the waiting driver's clock alone.

Nothing goes wrong when a holder that still works is overtaken: it can finish nothing any more (`commit.py`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from penstock.errors import PenstockError
from penstock.pipeline.client import PipelineClient, StoredRecord

LEASE_SECONDS: Final = 60.0
BEAT_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.5


class Beating(Protocol):
    """A turn that can say that it goes on."""

    def beat(self) -> None: ...


class WaitClock:
    """The clock and the sleep of a waiting driver. Tests pass their own."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    sleep: Callable[[float], None] = staticmethod(time.sleep)


def own_name() -> str:
    """This process: its machine, its number, and when it was started, because numbers are used again."""
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}"


def is_gone(holder: str) -> bool:
    """Whether that process has certainly ended: it ran on this machine, and is not there any more."""
    host, _, rest = holder.rpartition("/")[0].rpartition("/")
    if host != socket.gethostname() or not rest.isdigit():
        return False
    return _started(int(rest)) != holder.rpartition("/")[2]


def _started(process: int) -> str:
    """When a process was started, as the system counts; empty for none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def wait_for(client: PipelineClient, key: str, patience: WaitClock | None = None) -> StoredRecord:
    """Wait until the record may be taken, and return it."""
    clock, own = patience or WaitClock(), own_name()
    seen, since = -1, clock.now()
    while True:
        kept = client.get(key)
        holder = kept.value.get("holder", "")
        if holder in ("", own) or is_gone(holder):
            return kept
        if kept.version != seen:
            seen, since = kept.version, clock.now()
        elif clock.now() - since >= LEASE_SECONDS:
            return kept
        clock.sleep(LOOK_SECONDS)


def keep_alive(turn: Beating) -> Callable[[], None]:
    """Call `beat` of *turn* every few seconds, until the returned function is called or the turn is forgotten."""
    ended, known = threading.Event(), weakref.ref(turn)

    def go_on() -> None:
        while not ended.wait(BEAT_SECONDS):
            if (alive := known()) is None:
                return
            with suppress(PenstockError):  # overtaken, or the server is away: the turn itself finds out
                alive.beat()
            del alive

    threading.Thread(target=go_on, name="lease", daemon=True).start()
    return ended.set
