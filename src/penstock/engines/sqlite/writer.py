"""The one thread that writes: takes all that waits, stores it in one transaction, then answers.

    event loop                         writer thread
    submit(job) ──── queue ──────────▶ group of jobs: run each, write, COMMIT (fsync)
    followers, then futures ◀───────── one call_soon_threadsafe for the whole group

While one group is being stored the next gathers, so the slower the disk, the larger the groups.
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar, cast

import msgspec

from penstock.core.clock import Clock
from penstock.core.followers import Followers
from penstock.core.promise import Promise
from penstock.core.stamp import appended_one
from penstock.engines.sqlite import fold, schema
from penstock.engines.sqlite.checkpoint import Checkpointer
from penstock.engines.sqlite.disk_failures import Damage
from penstock.engines.sqlite.faults import SqliteFaults
from penstock.engines.sqlite.group_commit import GROUP_BYTES, GROUP_JOBS, WriteGroup
from penstock.engines.sqlite.known_streams import KnownStreams
from penstock.engines.sqlite.unfolded_entries import UnfoldedSpots
from penstock.errors import Busy, DiskFull, EngineGone, PenstockError
from penstock.settings import DEFAULTS
from penstock.values import Appended, Batch, Draft, Entry, PlainEvent

HAND_OVER_JOBS: Final = 128
"""Jobs of one turn of the loop, each of many counted, after which the writer begins, beside the rest of the turn."""

T = TypeVar("T")


Together = Callable[[sqlite3.Connection, Sequence[Any]], list[Any]]
"""Does something for many at once: a result for each argument, or the exception that it gets instead."""


class WriterJob(Promise[Any]):
    """Something to store: a batch or many, a function of the connection, or an argument of one that takes many."""

    __slots__ = ("argument", "batch", "count", "function", "many", "together", "weight")

    def __init__(
        self, weight: int, batch: Batch | PlainEvent | None, many: Sequence[PlainEvent | Batch] | None = None,
        function: Callable[[sqlite3.Connection], Any] | None = None, together: Together | None = None,
        argument: Any = None,
    ) -> None:  # fmt: skip
        self.value = self.error = self._then = None  # as a promise begins: to call its constructor takes as long again
        self._settled = False
        self.weight, self.batch, self.many = weight, batch, many
        self.function, self.together, self.argument = function, together, argument
        self.count = 1 if many is None else len(many)


class Limits(msgspec.Struct, frozen=True):
    """The writer's measures; tests make them small."""

    queue_jobs: int = DEFAULTS.log.queue  # that wait or are being written; over it: `Busy`
    queue_bytes: int = DEFAULTS.log.queue_bytes
    group_jobs: int = GROUP_JOBS
    group_bytes: int = GROUP_BYTES
    fold_entries: int = DEFAULTS.log.fold
    fold_rows: int = fold.FOLD_ROWS
    fold_few: int = fold.FEW_STREAMS
    gather_ms: int = DEFAULTS.log.gather_ms  # how long batches wait for others to be stored with


class SqliteWriter:
    """Owns the writing connection, the numbering, and what the followers have been given."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, *, known: KnownStreams, recent: UnfoldedSpots, next_id: int,
        next_number: int, clock: Clock, server: str, faults: SqliteFaults | None = None, limits: Limits, damage: Damage,
        checkpointer: Checkpointer,
    ) -> None:  # fmt: skip
        self._path, self._connection, self._clock, self._server = path, connection, clock, server
        self._known, self._recent = known, recent
        self._next_id, self._next_number = next_id, next_number
        self._faults, self._limits, self._damage, self._checkpointer = faults, limits, damage, checkpointer
        self._loop = asyncio.get_running_loop()
        self._gathered: list[WriterJob] = []  # in this turn of the loop, for the writer at its end
        self._gathered_count = 0
        self._queue: SimpleQueue[list[WriterJob] | None] = SimpleQueue()
        self._waiting: deque[WriterJob] = deque()  # taken from the queue, and more than one group holds
        self._queued = self._queued_bytes = 0
        self._gather_seconds = limits.gather_ms / 1000
        self._enough = limits.group_jobs if limits.gather_ms else HAND_OVER_JOBS
        self._closed = self._ending = False
        self._fold: fold.Fold | None = None
        self._fold_wanted = False
        self.followed = next_id - 1
        self.followers = Followers()
        self._thread = threading.Thread(target=self._work, name="penstock-writer", daemon=True)

    # ── on the event loop ──────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        fold.Fold.prepare(self._connection)
        self._checkpointer.start()
        self._thread.start()

    async def close(self) -> None:
        """Store what waits, fold, and mark the file as cleanly closed."""
        if not self._closed:
            self._closed = True
            self._hand_over()
            self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def submit_batch(self, batch: Batch, weight: int) -> Promise[Appended]:
        """Store *batch* with the next group."""
        return self._submit(WriterJob(weight, batch))

    def submit_event(self, event: PlainEvent) -> Promise[Appended]:
        """As `submit_batch` of this one event."""
        return self._submit(WriterJob(len(event[1]), event))

    def submit_many(
        self, appends: Sequence[PlainEvent | Batch], weight: int
    ) -> Promise[list[Entry | Appended | Exception]]:
        """Store *appends* with the next group, each by itself: one that is refused has its error in its place."""
        return self._submit(WriterJob(weight, None, appends))

    def run(self, function: Callable[[sqlite3.Connection], T], weight: int = 0) -> Promise[T]:
        """Call *function* with the connection, inside the next group's transaction.

        It must raise a `CallerError` before it writes, or not at all.
        """
        return self._submit(WriterJob(weight, None, function=function))

    def submit_together(self, together: Together, argument: Any, weight: int = 0) -> Promise[Any]:
        """As `run`, of a function that takes the arguments of all neighbours in the group which call the same."""
        return self._submit(WriterJob(weight, None, together=together, argument=argument))

    async def fold_now(self) -> None:
        """Return when everything that is followed now has been folded."""
        target = self.followed
        while self._known.folded_upto < target:
            self._fold_wanted = True
            await self.run(lambda _: None)

    @property
    def queued(self) -> int:
        """Jobs that wait or are being written."""
        return self._queued

    def _submit(self, job: WriterJob) -> WriterJob:
        if self._closed:
            job.fail(EngineGone("the engine is closed"))
        elif self._queued and self._queued + job.count > self._limits.queue_jobs:
            job.fail(Busy("log.queue", self._limits.queue_jobs))
        elif self._queued_bytes + job.weight > self._limits.queue_bytes and self._queued:
            job.fail(Busy("log.queue_bytes", self._limits.queue_bytes))
        else:
            self._queued += job.count
            self._queued_bytes += job.weight
            if not self._gathered:
                self._loop.call_later(self._gather_seconds, self._hand_over)
            self._gathered.append(job)
            self._gathered_count += job.count
            # A call other than an append (a confirmation, a lease) is waited for, so the writer begins at once.
            waited_for = job.batch is None and job.many is None
            if self._gathered_count >= self._enough or (waited_for and self._gather_seconds):
                self._hand_over()
        return job

    def _hand_over(self) -> None:
        """Give the writer what this turn of the loop has brought.

        Not one by one: each would wake the writer, which then takes the interpreter lock from the
        loop in the middle of its work, for a group of one.
        """
        if self._gathered:
            jobs, self._gathered, self._gathered_count = self._gathered, [], 0
            self._queue.put(jobs)

    def _answer(self, jobs: Sequence[WriterJob], entries: Sequence[Entry]) -> None:
        """Give the group's entries to the followers, then its answers to the callers."""
        if entries:
            self.followers.tell(entries)
            self.followed = entries[-1].id
        for job in jobs:
            self._queued -= job.count
            self._queued_bytes -= job.weight
            try:
                job.settle()
            except Exception as error:  # noqa: BLE001 - a caller's defect must not leave others waiting
                self._loop.call_exception_handler({"message": "a caller raised at its result", "exception": error})

    # ── in the writer thread ───────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        while not self._ending or self._waiting:
            jobs = self._take()
            if jobs or self._fold:
                self._try(jobs)
        self._finish()

    def _take(self) -> list[WriterJob]:
        """All that waits, up to a group's size. Waits for the first, unless a fold is to be gone on with."""
        waiting, limits = self._waiting, self._limits
        block = not waiting and self._fold is None
        try:
            while (handed := self._queue.get(block=block)) is not None:
                waiting.extend(handed)
                block = False
            self._ending = True
        except Empty:
            pass
        jobs: list[WriterJob] = []
        count = weight = 0
        while waiting and count < limits.group_jobs and weight < limits.group_bytes:
            jobs.append(waiting.popleft())
            count += jobs[-1].count
            weight += jobs[-1].weight
        return jobs

    def _try(self, jobs: list[WriterJob]) -> None:
        try:
            self._store(jobs)
        except Exception as error:  # noqa: BLE001 - whatever it is, callers must hear of it and the thread must live
            self._fail(jobs, error)

    def _store(self, jobs: list[WriterJob]) -> None:
        """One transaction, then one call to the loop."""
        group = self._new_group()
        self._run_jobs(jobs, group)
        self._commit(group)
        self._settle(group)
        self._acknowledge(jobs, group.entries)
        self._checkpointer.committed(self._connection, sum([job.weight for job in jobs]))

    def _new_group(self) -> WriteGroup:
        return WriteGroup(
            self._connection, self._known, next_id=self._next_id, next_number=self._next_number,
            now_ms=self._clock.now_ms(), server=self._server,
        )  # fmt: skip

    def _run_jobs(self, jobs: list[WriterJob], group: WriteGroup) -> None:
        appends: list[PlainEvent | Batch] = [job.batch for job in jobs if job.batch is not None]
        many = [job.many for job in jobs if job.many is not None]
        group.prepare([*appends, *chain.from_iterable(many)])
        if len(appends) + len(many) < len(jobs):
            self._begin()
        neighbours: list[WriterJob] = []
        for job in jobs:
            if neighbours and job.together is not neighbours[0].together:
                self._run_together(neighbours)
                neighbours = []
            if job.together is not None:
                neighbours.append(job)
            elif job.batch is not None:
                answer = _append(job.batch, group)
                if isinstance(answer, Appended):
                    job.value = answer
                else:
                    job.error = answer
            elif job.many is not None:
                job.value = _append_many(job.many, group)
            else:
                self._run_function(job)
        if neighbours:
            self._run_together(neighbours)

    def _run_function(self, job: WriterJob) -> None:
        changes = self._connection.total_changes
        try:
            job.value = cast("Callable[[sqlite3.Connection], Any]", job.function)(self._connection)
        except sqlite3.Error:
            raise
        except Exception as error:  # one job's mistake or defect must not fail the others
            if self._connection.total_changes != changes:
                raise
            job.error = error

    def _run_together(self, jobs: list[WriterJob]) -> None:
        together = cast("Together", jobs[0].together)
        results = together(self._connection, [job.argument for job in jobs])
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, Exception):
                job.error = result
            else:
                job.value = result

    def _commit(self, group: WriteGroup) -> None:
        if self._fold is None and (self._fold_wanted or self._recent.count >= self._limits.fold_entries):
            self._fold_wanted = False
            self._fold = self._begin_fold(self._limits.fold_rows)
        # A statement by itself is a transaction by itself, and two calls cheaper.
        if self._fold or self._faults or not group.is_one_statement:
            self._begin()
        group.write()
        if self._fold:
            self._at("in fold")
            self._go_on_folding(self._fold, len(group.entries))
        self._at("before commit")
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        self._at("after commit")

    def _begin_fold(self, rows: int) -> fold.Fold:
        """A fold of everything that is not folded yet."""
        after, upto = self._known.folded_upto, self._next_id - 1
        last_ids = self._recent.last_ids(self._limits.fold_few)
        return fold.Fold(after, upto, rows) if last_ids is None else fold.FoldOfFew(after, upto, rows, last_ids)

    def _go_on_folding(self, whole: fold.Fold, appended: int) -> None:
        """Fold more than this group appends: else what is unfolded, and the memory for it, grows without end."""
        for _ in range(1 + 4 * appended // self._limits.fold_rows):
            if not whole.done:
                whole.step(self._connection)

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN")

    def _at(self, point: str) -> None:
        if self._faults:
            self._faults.at(point)

    def _settle(self, group: WriteGroup) -> None:
        """The group is durable: go on from it."""
        self._next_id, self._next_number = group.next_id, group.next_number
        group.settle(self._recent)
        if self._fold and self._fold.done:
            self._known.folded_upto = self._fold.upto
            self._recent.drop(self._fold.upto)
            self._fold = None

    def _acknowledge(self, jobs: Sequence[WriterJob], entries: Sequence[Entry]) -> None:
        if jobs:
            self._at("before acknowledge")
            self._loop.call_soon_threadsafe(self._answer, jobs, entries)

    def _fail(self, jobs: Sequence[WriterJob], error: Exception) -> None:
        """Nothing of this group was stored: say so, and be ready for the next one."""
        self._fold = None
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # SQLite has rolled back by itself already
        for job in jobs:
            job.error = job.error or self._meaning(error)
        self._loop.call_soon_threadsafe(self._answer, jobs, ())

    def _meaning(self, error: Exception) -> PenstockError:
        if isinstance(error, PenstockError):
            return error
        if isinstance(error, sqlite3.Error):
            return self._damage.translated(error)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return DiskFull(f"no space left for {self._path}")
        return EngineGone(f"{self._path}: {error!r}")

    def _finish(self) -> None:
        """Fold the rest and say in the file that it was closed well; if that fails, the next start looks."""
        self._checkpointer.stop()
        try:
            self.fold_all()
            schema.set_fact(self._connection, "clean", 1)
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error:
            pass
        self._connection.close()

    def fold_all(self) -> None:
        """Fold everything now. Only for the writer thread, outside a transaction."""
        self._fold = None
        whole = self._begin_fold(fold.FOLD_ROWS)
        while self._recent.count and not whole.done:
            self._connection.execute("BEGIN")
            whole.step(self._connection)
            self._connection.execute("COMMIT")
        if whole.done:
            self._known.folded_upto = whole.upto
            self._recent.drop(whole.upto)


def _append_many(appends: Sequence[PlainEvent | Batch], group: WriteGroup) -> list[Entry | Appended | Exception]:
    add = group.add_event
    return [
        (add(*append) or _append(append, group)) if isinstance(append, tuple) else _append(append, group)
        for append in appends
    ]


def _append(append: PlainEvent | Batch, group: WriteGroup) -> Appended | Exception:
    """The answer, or what is wrong with this append: its mistake must not fail the others. Nothing is written yet."""
    try:
        if isinstance(append, tuple):
            if (entry := group.add_event(*append)) is not None:
                return appended_one(entry)
            append = Batch((Draft(*append),))
        return group.append(append)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001
        return error
