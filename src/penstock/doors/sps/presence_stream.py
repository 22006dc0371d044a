"""Who comes and goes, written to the stream `/_presence`.

    {"state":"online","uid":"42","hid":"phone","time":1763200000.123,"after":17}

One line for each change; `after` is the id after which a wire goes on, where the server is alone. A change is appended
at once, those that come soon after it together, and when they are many they are the lines of one entry: a storm of
reconnects must not push the very events it asks for out of the hub's memory.
The first line after a start is `{"state":"reset",…}`: whoever was online before is not. In a cluster there is
no such line: the other nodes say `offline` for the devices of one that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final, Self

import msgspec

from penstock.core.clock import Clock
from penstock.core.log import Log
from penstock.core.promise import Pending
from penstock.errors import PenstockError
from penstock.limits import ENTRY_BYTES
from penstock.values import Appended, Batch, Draft

log = logging.getLogger("penstock.sps")

PRESENCE_LINES: Final = 100_000
"""Changes of presence that wait while the log takes nothing. Over it: the oldest are dropped, and logged."""

STREAM: Final = "/_presence"
GATHER_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 1.0
STOP_SECONDS: Final = 5.0
MANY: Final = 16
"""Changes at once above which they share an entry."""
_text = msgspec.json.Encoder().encode


class Presence:
    """Gathers changes and appends them, in order, one append at a time. Lives in `async with`."""

    def __init__(self, target: Log, clock: Clock, *, enabled: bool = True, alone: bool = True) -> None:
        self._log, self._clock, self._enabled = target, clock, enabled
        self._lines: list[bytes] = []
        self._booked: asyncio.TimerHandle | None = None
        self._appending: Pending[Appended] | None = None
        self._taken = 0  # lines that are being appended
        self._quiet_from = 0.0  # of the loop's time: nothing was appended just before
        self._begun = not alone  # a node that comes to a cluster says nothing about the others' wires

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Append what is left; a log that takes nothing any more does not hold up the stop."""
        left = len(self._lines) + 1
        while 0 < len(self._lines) < left:
            left = len(self._lines)
            if self._appending is None:
                self._append()
            if self._appending is not None:
                with suppress(PenstockError, TimeoutError):
                    await asyncio.wait_for(self._appending, STOP_SECONDS)
        if self._booked is not None:
            self._booked.cancel()

    def note(self, state: str, uid: str, hid: str, after: int | None = None) -> None:
        """A device is *state* from now on; its wire gets what comes after an id."""
        if not self._enabled:
            return
        if not self._begun:
            self._begun = True
            self._lines.append(self._line("reset", "", ""))
        self._lines.append(self._line(state, uid, hid, after))
        if len(self._lines) - self._taken > PRESENCE_LINES:
            log.warning("presence.dropped", extra={"lines": PRESENCE_LINES // 2})
            del self._lines[self._taken : self._taken + PRESENCE_LINES // 2]
        self._book(0 if asyncio.get_running_loop().time() > self._quiet_from else GATHER_SECONDS)

    def _line(self, state: str, uid: str, hid: str, after: int | None = None) -> bytes:
        seconds, ms = divmod(self._clock.now_ms(), 1000)
        who = b',"uid":%b,"hid":%b' % (_text(uid), _text(hid)) if uid else b""
        began = b"" if after is None else b',"after":%d' % after
        return b'{"state":"%b"%b,"time":%d.%03d%b}' % (state.encode(), who, seconds, ms, began)

    def _book(self, seconds: float) -> None:
        if self._booked is None and self._appending is None:
            self._booked = asyncio.get_running_loop().call_later(seconds, self._append)

    def _append(self) -> None:
        if self._booked is not None:
            self._booked.cancel()  # when the end came before it
            self._booked = None
        self._quiet_from = asyncio.get_running_loop().time() + GATHER_SECONDS
        lines = self._take()
        bodies = lines if len(lines) <= MANY else [b"\n".join(lines)]
        try:
            self._appending = self._log.append(Batch(tuple(Draft(STREAM, body, "presence") for body in bodies)))
        except PenstockError as error:
            self._failed(error)
        else:
            self._appending.add_done_callback(self._appended)

    def _take(self) -> list[bytes]:
        """As many lines as fit into one entry."""
        size = count = 0
        for line in self._lines:
            size += len(line) + 1
            if size > ENTRY_BYTES:
                break
            count += 1
        self._taken = count
        return self._lines[:count]

    def _appended(self, appending: Pending[Appended]) -> None:
        self._appending = None
        try:
            appending.result()
        except PenstockError as error:
            self._failed(error)
            return
        del self._lines[: self._taken]
        self._taken = 0
        if self._lines:
            self._book(GATHER_SECONDS)

    def _failed(self, error: BaseException) -> None:
        """Nothing was stored: try the same lines again in a moment."""
        self._taken = 0
        log.warning("presence.waiting", extra={"error": str(error), "lines": len(self._lines)})
        self._book(RETRY_SECONDS)
