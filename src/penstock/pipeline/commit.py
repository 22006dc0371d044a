"""The one way in which rows get into the lake's tables.

The record `lake/<name>` at the server = {fence, done, intent, tables} is the only truth: `tables` says which
metadata.json is each table's present state, `done` up to which id of the log they hold everything. A turn is

    take       when it is free (`table_lease.py`): fence + 1, by compare-and-set; whoever had it before can finish
               nothing any more
    intend     write down (after = done, upto, slices), unless an intent is there: then exactly that is redone,
               whatever today's options say
    write      tasks write data files under names that were never used; nobody sees them
    commit     manifests and metadata; then one compare-and-set moves `done`, the intent and all pointers together
    unlink     what no snapshot or former state that is kept names any more

The compare-and-set expects the version that this very turn has written. There is no second attempt on top of what
somebody else has committed meanwhile: that would add the rows of an overtaken driver again. A driver that is refused
deletes its own files. One that gets no answer looks at the record.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.client.http import ApiError, ServerUnreachable
from penstock.iceberg.files import WrittenFile
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.lake import Lake, LakeHole
from penstock.pipeline.table_lease import WaitClock, keep_alive, own_name, wait_for
from penstock.wire.lake_files import RECORDS, TYPED, tables_of

if TYPE_CHECKING:  # Spark's workers import this module, and have no pyiceberg
    from penstock.iceberg.tables import Prepared, Table

AFTER_INTENT: Final = "after the intent"
AFTER_FILES: Final = "after the data files"
BEFORE_COMMIT: Final = "before the commit"
AFTER_COMMIT: Final = "after the commit"
AFTER_UNLINK: Final = "after the unlinking"
POINTS: Final = (AFTER_INTENT, AFTER_FILES, BEFORE_COMMIT, AFTER_COMMIT, AFTER_UNLINK)
"""Where a driver may be made to fail, in the order in which it passes."""


class Faults:
    """Named points at which a test can make the driver fail. This one never fails."""

    def at(self, point: str) -> None:
        """The driver is at *point*."""


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
class TableChange:
    """What a commit does to one table."""

    table: str
    added: Sequence[WrittenFile]
    removed: Sequence[str] = ()  # locations
    found: Sequence[WrittenFile] = ()  # added as well, and not deleted if the turn is refused: they were there before
    forget: bool = False  # keep no snapshot from before it; commit it also without files
    reshaped: bool = False  # commit it also without files: readers are to see the table, or its new columns

    def __bool__(self) -> bool:
        return bool(self.added or self.found or self.removed or self.forget or self.reshaped)


@dataclass(frozen=True, slots=True)
class _Record:
    """The record as this turn has it."""

    fence: int = 0
    done: int = 0
    done_ms: int = 0
    intent: Intent | None = None
    memory: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    epoch: str = ""
    holder: str = ""

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> _Record:
        known = {one.name: value[one.name] for one in dataclasses.fields(cls) if one.name in value}
        if intent := value.get("intent"):
            slices = tuple(Slice(**one) for one in intent["slices"])
            known["intent"] = Intent(intent["after"], intent["upto"], slices)
        return cls(**known)


class Turn:
    """One driver's turn on one record."""

    def __init__(
        self,
        client: PipelineClient,
        lake: Lake,
        name: str,
        faults: Faults | None = None,
        patience: WaitClock | None = None,
    ) -> None:
        self._client, self._lake, self._key, self._faults = client, lake, f"lake/{name}", faults or Faults()
        self.name = name
        kept = wait_for(client, self._key, patience)
        self._record, self._version, self._lock = _Record.read(kept.value), kept.version, threading.Lock()
        self._store(fence=self._record.fence + 1, holder=own_name(), epoch=lake.epoch)
        self._end_beating = keep_alive(self)
        self._anew = False

    @property
    def fence(self) -> int:
        return self._record.fence

    @property
    def done(self) -> int:
        """The id up to which the tables hold everything."""
        return self._record.done

    @property
    def intent(self) -> Intent | None:
        return self._record.intent

    @property
    def memory(self) -> Mapping[str, Any]:
        """What a job keeps beside its watermark."""
        return {} if self._anew else self._record.memory

    @property
    def tables(self) -> Mapping[str, str]:
        """Where the metadata.json of each table is."""
        return self._record.tables

    def table(self, name: str) -> Table:
        """A table as this turn has found it; an empty one if it is to be made anew."""
        return self._lake.table(name, {"tables": {} if self._anew else self.tables, "memory": self._record.memory})

    def start_anew(self) -> None:
        """Let the next commit make the tables from nothing: what they had, and the memory, does not count.

        Nobody sees anything of it before the commit. Files that nothing names then are swept by a later turn.
        """
        self._anew = True

    def intend(self, intent: Intent, memory: Mapping[str, Any] | None = None) -> None:
        """Write down what is going to be done. Must begin where the last one ended."""
        if self.intent is not None or intent.after != self.done or intent.upto <= intent.after:
            raise ValueError(f"{intent.after}–{intent.upto} does not follow {self.done}, intent {self.intent}")
        self._store(intent=intent, memory=self.memory if memory is None else memory)
        self._faults.at(AFTER_INTENT)

    def publish(self, changes: Iterable[TableChange] = (), memory: Mapping[str, Any] | None = None) -> None:
        """Make the changes visible, move `done` to the end of what was intended, and end the turn."""
        intent = self.intent
        if intent is None:
            raise ValueError("there is no intent to publish")
        moved = {"done": intent.upto, "done_ms": int(time.time() * 1000), "intent": None}
        self._commit(list(changes), moved, memory, release=True)

    def replace(self, changes: Iterable[TableChange], memory: Mapping[str, Any] | None = None) -> None:
        """Make the changes visible. `done` and what is intended stay as they are, and the turn goes on."""
        self._commit(list(changes), {}, memory, release=False)

    def point_at(self, prepared: Mapping[str, Prepared]) -> None:
        """Let tables go on from states that were not made by a change: those of a lake that was moved."""
        self._show(prepared, {}, ())

    def point_at_none(self) -> None:
        """Let the record point at no table: then the files of its tables may be deleted, and nobody misses them."""
        self._store(tables={})

    def end(self, memory: Mapping[str, Any] | None = None) -> None:
        """Let others have the record."""
        self._commit([], {}, memory, release=True)

    def sweep(self) -> int:
        """Remove every file of these tables that nothing names; returns how many.

        What an overtaken driver has written is among them: it cannot become visible any more. That this turn was not
        overtaken itself is looked up between the listing and the deleting, so no newer file is ever deleted.
        """
        named = {location for name in tables_of(self.name) for location in self.table(name).named()}
        store = self._lake.store
        folders = [f"{name}/{kind}" for name in tables_of(self.name) for kind in ("data", "metadata")]
        listed = [one.path for folder in folders for one in store.list(folder)]
        self._store()
        return store.delete(path for path in listed if store.location(path) not in named)

    def beat(self) -> None:
        """Say that this turn goes on."""
        if self._record.holder:
            self._store()

    # ── the commit ────────────────────────────────────────────────────────────────────────────

    def _commit(
        self, changes: list[TableChange], moved: dict[str, Any], memory: Mapping[str, Any] | None, *, release: bool
    ) -> None:
        self._faults.at(AFTER_FILES)
        store = self._lake.store
        try:
            store.sync([store.relative(one.location) for change in changes for one in (*change.found, *change.added)])
            wanted = [change for change in changes if change or self._anew]
            prepared = {change.table: self._prepared(change) for change in wanted}
        except (FileNotFoundError, LakeHole):
            self._refused_if_overtaken(changes)  # whoever has overtaken this turn may have swept its files
            raise
        if release:
            moved["holder"] = ""
        if memory is not None:
            moved["memory"] = memory
        self._show(prepared, moved, changes)

    def _show(self, prepared: Mapping[str, Prepared], moved: Mapping[str, Any], changes: Iterable[TableChange]) -> None:
        """The compare-and-set, and what comes after it."""
        self._faults.at(BEFORE_COMMIT)
        if moved.get("holder") == "":
            self._end_beating()
        try:
            self._move({name: one.location for name, one in prepared.items()}, moved)
        except RecordChanged:
            self._discard(changes, prepared.values())
            raise self._overtaken() from None
        self._anew = False
        for name, one in prepared.items():
            self._lake.committed(name, one.table)
        self._faults.at(AFTER_COMMIT)
        store = self._lake.store
        store.delete(store.relative(location) for one in prepared.values() for location in one.gone)
        self._faults.at(AFTER_UNLINK)

    def _refused_if_overtaken(self, changes: Iterable[TableChange]) -> None:
        try:
            self._store()
        except RecordChanged:
            self._discard(changes, ())
            raise self._overtaken() from None

    def _overtaken(self) -> RecordChanged:
        return RecordChanged(f"another driver has taken over {self._key} since fence {self.fence}")

    def _move(self, pointers: Mapping[str, str], moved: Mapping[str, Any]) -> None:
        """Pointers and watermark in one step. `done` before the pointers would lose rows for ever: a test shows it."""
        self._store(tables={**self._record.tables, **pointers}, **moved)

    def _prepared(self, change: TableChange) -> Prepared:
        table, added, now_ms = self.table(change.table), [*change.found, *change.added], int(time.time() * 1000)
        if change.removed or change.forget:
            return table.replace(added, change.removed, now_ms=now_ms, forget=change.forget)
        return table.append(added, now_ms=now_ms)

    def _discard(self, changes: Iterable[TableChange], prepared: Iterable[Prepared]) -> None:
        """Delete what this turn has written: it is certain that nobody will ever see it."""
        data = (one.location for change in changes for one in change.added)
        made = (location for one in prepared for location in one.made)
        store = self._lake.store
        store.delete(store.relative(location) for location in (*data, *made))

    def _store(self, **changed: Any) -> None:
        """Change the record by compare-and-set."""
        with self._lock:
            wanted = dataclasses.replace(self._record, **changed)
            try:
                version = self._client.put(self._key, asdict(wanted), expect=self._version).version
            except (ServerUnreachable, ApiError) as error:
                if isinstance(error, ApiError) and error.status < 500:
                    raise
                # Nobody knows whether it was stored. If it is there, it was. If not, it may still arrive: this turn
                # is over, and its files stay until somebody has taken the record and sweeps.
                kept = self._client.get(self._key)
                if _Record.read(kept.value) != wanted:
                    raise
                version = kept.version
            self._record, self._version = wanted, version


def record_names(client: PipelineClient) -> list[str]:
    """The names of all records that point at tables, those of typed tables last."""
    return [*RECORDS, *(key.removeprefix("lake/") for key in client.list(f"lake/{TYPED}"))]


def watermark(client: PipelineClient, name: str) -> int:
    """The id up to which everything is in the lake, durably."""
    return int(client.get(f"lake/{name}").value.get("done", 0))
