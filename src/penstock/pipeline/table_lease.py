"""Who works on a table now. Without it two drivers would take the record from each other for ever, and neither end.

The record of a table names its holder, a process, while a turn is under way; a long turn changes the record every few
seconds. Another driver waits until the record is free. It takes it nevertheless when the holder's process is gone, or
when the record has not changed for `LEASE_SECONDS` by its own clock: no two machines' clocks are ever compared. That
is about getting on, not about safety: who was overtaken can finish nothing (`commit.py`).
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
from penstock.pipeline.client import Client, Kept

LEASE_SECONDS: Final = 60.0
BEAT_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.5


class Beating(Protocol):
    """A turn that says that it goes on."""

    def beat(self) -> None: ...


class Patience:
    """How one waits. Tests give another clock."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    sleep: Callable[[float], None] = staticmethod(time.sleep)


def own_name() -> str:
    """This process: its machine, number, and when it was started, as numbers are used again."""
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}"


def is_gone(holder: str) -> bool:
    """Whether that process has ended for certain: it was one of this machine, and is not there any more."""
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


def wait_for(client: Client, key: str, patience: Patience | None = None) -> Kept:
    """The record, as soon as it may be taken."""
    clock, own = patience or Patience(), own_name()
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
    """Let *turn* beat until the function that is returned is called, or nobody has the turn any more."""
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
