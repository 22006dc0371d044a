"""The one way in which anything gets into the lake.

The record `lake/<table>` at the server = {fence, done, intent} is the only truth. A turn on a table is

    take       when it is free (`table_lease.py`): fence + 1, by compare-and-set; whoever had it before can finish
               nothing any more
    intend     write down (after = done, upto, slices) — unless an intent is there: then exactly that is redone,
               whatever today's options say
    stage      write the files of the slices to <lake>/_staging/<table>/<fence>/
    publish    under the lake's lock, fence checked: give each file its name, unless the name is there
    finish     done = upto, no intent; then drop the staging

Only one intent can ever begin at `done`, so every driver, an overtaken one too, makes the same names with the same
rows. A crash between the names and `done` repeats something that does nothing. So a reader of the files may see
rows a moment before `done` says so, but never a row twice, and never half a file.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from penstock.errors import OperatorError
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.table_lease import Patience, keep_alive, own_name, wait_for
from penstock.pipeline.tables import Lake
from penstock.wire.lake import LakeFile

AFTER_INTENT: Final = "after the intent"
AFTER_STAGING: Final = "after staging"
AFTER_FIRST_NAME: Final = "after the first name"
BEFORE_WATERMARK: Final = "before the watermark"
AFTER_WATERMARK: Final = "after the watermark"
POINTS: Final = (AFTER_INTENT, AFTER_STAGING, AFTER_FIRST_NAME, BEFORE_WATERMARK, AFTER_WATERMARK)
"""Where a driver may be made to fail, in the order in which it passes."""


class Faults:
    """Nothing goes wrong. Tests give one that does."""

    def at(self, point: str) -> None:
        """The driver is at *point*."""


class StagedWrong(OperatorError):
    """What was staged is not what the plan says. Nothing was published."""

    code = "staged_wrong"
    remedy = "This is a defect: keep the lake's _staging folder and report it."


@dataclass(frozen=True, slots=True)
class Slice:
    """The ids in (lo, hi], of one UTC day. *rows* is -1 where nobody can know it beforehand."""

    lo: int
    hi: int
    day: str
    rows: int = -1


@dataclass(frozen=True, slots=True)
class Intent:
    """What a turn is going to do, as it was written down before anything was done."""

    after: int
    upto: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Staged:
    """A complete file that has no name in the lake yet."""

    path: Path
    file: LakeFile


class Turn:
    """One driver's turn on one table's record."""

    def __init__(
        self,
        client: PipelineClient,
        lake: Lake,
        name: str,
        faults: Faults | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._client, self._lake, self._key, self._faults = client, lake, f"lake/{name}", faults or Faults()
        self.name = name
        kept = wait_for(client, self._key, patience)
        self.fence = int(kept.value.get("fence", 0)) + 1
        self.done = int(kept.value.get("done", 0))
        self.intent = _intent(kept.value.get("intent"))
        self.memory: Mapping[str, Any] = kept.value.get("memory", {})
        self._done_ms = int(kept.value.get("done_ms", 0))
        self._version, self._holder, self._lock = kept.version, own_name(), threading.Lock()
        self._store()
        self._end_beating = keep_alive(self)

    @property
    def staging(self) -> Path:
        """The folder for this turn's files. Empty at the beginning of a turn."""
        return self._lake.staging(self.name, self.fence)

    def intend(self, intent: Intent) -> None:
        """Write down what is going to be done. Must begin where the last one ended."""
        if self.intent is not None or intent.after != self.done or intent.upto <= intent.after:
            raise ValueError(f"{intent.after}–{intent.upto} does not follow {self.done}, intent {self.intent}")
        self.intent = intent
        self._store()
        self._faults.at(AFTER_INTENT)

    def publish(self, staged: Sequence[Staged], memory: Mapping[str, Any] | None = None) -> None:
        """Give the files their names, then move `done`, and *memory* with it. All of it, or it will be redone."""
        intent = self.intent
        if intent is None:
            raise ValueError("there is no intent to publish")
        self._faults.at(AFTER_STAGING)
        with self._lake.locked():
            self._check_fence()
            self._in_order(lambda: self._name(staged), lambda: self._finish(intent, memory))
        self._faults.at(AFTER_WATERMARK)
        self.drop_staging()

    def drop_staging(self) -> None:
        """Remove what this turn and earlier ones have left."""
        mine = self.staging
        for folder in mine.parent.glob("*"):
            if folder.name.isdigit() and int(folder.name) <= self.fence:
                shutil.rmtree(folder, ignore_errors=True)

    def _in_order(self, name: Callable[[], None], finish: Callable[[], None]) -> None:
        """Names first. The other way round a crash in between loses rows for ever: a test shows it."""
        name()
        finish()

    def _name(self, staged: Iterable[Staged]) -> None:
        for number, one in enumerate(staged):
            self._lake.publish(one.path, one.file)
            if not number:
                self._faults.at(AFTER_FIRST_NAME)

    def _finish(self, intent: Intent, memory: Mapping[str, Any] | None) -> None:
        self._faults.at(BEFORE_WATERMARK)
        self._end_beating()
        self.done, self.intent, self._done_ms = intent.upto, None, int(time.time() * 1000)
        self.memory = self.memory if memory is None else memory
        self._holder = ""
        self._store()

    def _check_fence(self) -> None:
        """By a change, not by a look: a log that was restored meanwhile refuses it, whatever its versions are."""
        try:
            self._store()
        except RecordChanged:
            raise RecordChanged(f"another driver has taken over {self._key} since fence {self.fence}") from None

    def beat(self) -> None:
        """Say that this turn goes on."""
        if self._holder:
            self._store()

    def _store(self) -> None:
        with self._lock:
            value: dict[str, Any] = {"fence": self.fence, "done": self.done, "done_ms": self._done_ms}
            value |= {"intent": asdict(self.intent) if self.intent else None, "memory": self.memory}
            value |= {"epoch": self._lake.epoch, "holder": self._holder}
            self._version = self._client.put(self._key, value, expect=self._version).version


def _intent(kept: Any) -> Intent | None:
    if not kept:
        return None
    return Intent(kept["after"], kept["upto"], tuple(Slice(**one) for one in kept["slices"]))


def watermark(client: PipelineClient, name: str) -> int:
    """The id up to which everything is in the lake, durably."""
    return int(client.get(f"lake/{name}").value.get("done", 0))
