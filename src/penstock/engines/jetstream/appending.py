"""Appends: from a batch to its answer.

    submit ──▶ lanes (one in flight per stream, the rest folded) ──▶ plan ──▶ publish ──▶ settled ──▶ followed ──▶ done

Appends that may go in the same turn of the loop are sent as one batch, even unrelated ones: that costs JetStream
less than single messages. When one of its streams was changed by another node, the batch is split again.

Every publish names the last sequence of each stream it writes to. That makes it safe to send it again when
its answer was lost: if the first one was stored after all, the second is refused (10071), and the message
that follows the expected one carries our nonce. If it carries another, somebody else was quicker: the heads
are asked for, and everything is planned anew.

The answer is given when this node's follower has passed the batch, in order of id. The follower's sight of
the nonce is also as good as an acknowledgement: what it sees is committed.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
import secrets
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, Self

from penstock.core.background import Background, Tasks
from penstock.core.clock import Clock
from penstock.engines.jetstream.append_order import GROUP_BYTES, GROUP_MESSAGES, AppendJob, Lanes, is_plain, lanes_of
from penstock.engines.jetstream.batch_planning import AppendGroup, HeadMissing, Planned, Planner, remember
from penstock.engines.jetstream.connection import JetStreamRefused, read_ack
from penstock.engines.jetstream.entry_messages import row
from penstock.engines.jetstream.idempotency_keys import KnownAnswers, NotKnown
from penstock.engines.jetstream.log_stream import Store
from penstock.engines.jetstream.stream_heads import KnownHeads, load
from penstock.engines.repeats import addresses
from penstock.errors import Busy, DiskFull, EngineGone, PenstockError, TooLarge
from penstock.values import Appended, Batch

log = logging.getLogger("penstock.jetstream")

ACK_SECONDS: Final = 1.0
"""For an acknowledgement. Over it: the same is sent again, which is safe."""

PATIENCE_SECONDS: Final = 15.0
"""For an append to be stored: longer than any change of leaders, shorter than `server.request_timeout`.
Over it: 503. It may still have been stored, so repeat it under a key."""

STUCK_SECONDS: Final = 5.0
"""After which an append that is not stored yet says that something is wrong: a change of leaders is over by then."""

TURN_MESSAGES: Final = 256
"""Messages, at most, of the appends that share a batch because they came in one turn of the loop. More gains nothing:
the servers then work on one batch while the next one waits."""

_STALE, _BATCH_TOO_LARGE = 10071, 10199
_TICK = 0.1


class Appender:
    """All appends of one node. Lives in `async with`."""

    def __init__(
        self, store: Store, known: KnownHeads, background: Background, *, clock: Clock, server: str, queue: int,
        queue_bytes: int, followed: int,
    ) -> None:  # fmt: skip
        self._background = background
        self._store, self._known, self._clock, self._server = store, known, clock, server
        self._connection = store.connection
        self._limit, self._limit_bytes = queue, queue_bytes
        self._lanes, self._keys = Lanes(), KnownAnswers(store)
        self._nonce = secrets.randbits(31) << 32
        self._flying: dict[int, AppendGroup] = {}
        self._jobs: deque[AppendJob] = deque()
        self._beginning: list[list[AppendJob]] = []
        self._settled: list[tuple[int, int, list[tuple[AppendJob, Appended]]]] = []  # a heap by sequence
        self._order = 0
        self._followed = followed
        self._tasks = Tasks("jetstream.appends")
        self.entries = self.bytes = 0  # that wait or are in flight
        self._gave_up = float("-inf")  # when somebody was last told that it was not stored in time
        self._closed = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._connection.on_back.append(self._send_all_again)
        self._ticking = self._background.every(_TICK, "jetstream.appends", self._tick)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._closed = True
        await self._ticking.stop()
        await self._tasks.close()
        for job in self._jobs:
            _fail(job, EngineGone("the engine was closed"))

    # ── in ─────────────────────────────────────────────────────────────────────────────────────

    def submit(self, batch: Batch, size: int) -> asyncio.Future[Appended]:
        """Take a batch; the future is done when it is stored and followed."""
        future: asyncio.Future[Appended] = self._loop.create_future()
        if self._closed:
            future.set_exception(EngineGone("the engine was closed"))
            return future
        weight = len(batch.drafts) or 1
        if self.entries + weight > self._limit or self.bytes + size > self._limit_bytes:
            over = "log.queue" if self.entries + weight > self._limit else "log.queue_bytes"
            future.set_exception(Busy(over, self._limit if over == "log.queue" else self._limit_bytes))
            return future
        plain = is_plain(batch)
        known = plain and self._known.get(batch.drafts[0].stream)
        lanes = (batch.drafts[0].stream,) if known else lanes_of(batch, self._known)
        job = AppendJob(batch, size, future, lanes, time.monotonic(), plain=plain)
        self.entries += weight
        self.bytes += size
        self._jobs.append(job)
        if group := self._lanes.add(job):
            self._begin(group)
        return future

    @property
    def stuck(self) -> bool:
        """Appends are not stored although there is a connection: NATS may have no leader for the log."""
        now = time.monotonic()
        waits = next((job for job in self._jobs if not job.future.done()), None)
        return (waits is not None and now - waits.born > STUCK_SECONDS) or now - self._gave_up < PATIENCE_SECONDS

    def _left(self, job: AppendJob) -> None:
        """Let a job no longer count towards the limits of the queue."""
        if job.open:
            job.open = False
            self.entries -= job.weight
            self.bytes -= job.bytes

    def _begin(self, jobs: list[AppendJob]) -> None:
        """Let a group go with the others of this turn of the loop."""
        if not self._beginning:
            self._loop.call_soon(self._begin_all)
        self._beginning.append(jobs)

    def _begin_all(self) -> None:
        """Send what has come together: one batch costs JetStream less than many messages."""
        beginning, self._beginning = self._beginning, []
        parts: list[list[AppendJob]] = []
        messages = size = 0
        for jobs in beginning:
            count = size_of = 0
            for job in jobs:
                count += job.messages
                size_of += job.bytes
            if parts and (messages + count > TURN_MESSAGES or size + size_of > GROUP_BYTES):
                self._begin_now(parts)
                parts, messages, size = [], 0, 0
            parts.append(jobs)
            messages, size = messages + count, size + size_of
        self._begin_now(parts)

    def _begin_now(self, parts: list[list[AppendJob]]) -> None:
        self._nonce += 1
        jobs = parts[0] if len(parts) == 1 else [job for part in parts for job in part]
        lanes = jobs[0].lanes if len(jobs) == 1 else {name for job in jobs for name in job.lanes}
        group = AppendGroup(jobs, lanes, parts, self._nonce, time.monotonic())
        self._flying[group.nonce] = group
        self._send(group)

    def _part(self, group: AppendGroup) -> None:
        """Send the parts of a group one by one: only one of its streams was changed by somebody else."""
        group.settled = True
        self._flying.pop(group.nonce, None)
        self._connection.forget(group.number)
        for jobs in group.parts:
            self._begin_now([jobs])

    def _release(self, group: AppendGroup) -> None:
        """The group is done with: let the next ones go."""
        self._flying.pop(group.nonce, None)
        self._connection.forget(group.number)
        for jobs in self._lanes.free(group.lanes):
            self._begin(jobs)

    # ── out ────────────────────────────────────────────────────────────────────────────────────

    def _send(self, group: AppendGroup) -> None:
        """Plan the group, if it is not planned, and publish it."""
        if group.planned is None:
            self._drop_done(group)
            planner = self._planner(group)
            try:
                planned = planner.plan(group.jobs)
            except NotKnown as needed:
                self._mend(group, self._ask(group, needed))
                return
            for job in planned.refused:
                self._left(job)
            if len(planned.messages) > GROUP_MESSAGES and len(group.parts) > 1:
                self._part(group)
                return
            if len(planned.messages) > GROUP_MESSAGES:
                self._mend(group, self._store_beforehand(group, planner))
                return
            group.planned = planned
            self._answer_repeats(group.planned)
            if not group.planned.messages:
                self._release(group)
                return
        self._publish(group, group.planned)

    def _drop_done(self, group: AppendGroup) -> None:
        for job in group.jobs:
            if job.future.done():
                self._left(job)
        group.jobs = [job for job in group.jobs if not job.future.done()]

    def _planner(self, group: AppendGroup) -> Planner:
        return Planner(
            self._store.subjects, self._known, group.found, self._keys, now_ms=self._clock.now_ms(),
            server=self._server, nonce=group.nonce,
        )  # fmt: skip

    def _answer_repeats(self, planned: Planned) -> None:
        for job, appended in planned.repeats:
            self._answer_at(appended.last.id, [(job, appended)])
        if planned.repeats:
            self._answer_followed()

    def _answer_at(self, id: int, answers: list[tuple[AppendJob, Appended]]) -> None:
        """Give these when the follower has passed *id*."""
        self._order += 1
        heapq.heappush(self._settled, (id, self._order, answers))

    def _publish(self, group: AppendGroup, planned: Planned) -> None:
        group.sent = time.monotonic()
        group.attempts += 1
        attempt = group.attempts
        batch = f"{group.nonce:x}-{attempt}" if len(planned.messages) > 1 else ""

        def answered(headers: bytes | None, data: bytes) -> bool:
            if not group.settled and group.attempts == attempt and group.sent:
                self._answered(group, planned, headers, data)
            return True

        try:
            group.number = self._connection.ask_batch(planned.messages, batch, answered)
        except TooLarge as error:  # than a NATS server takes that was set otherwise since the start
            self._fail(group, error)

    def _answered(self, group: AppendGroup, planned: Planned, headers: bytes | None, data: bytes) -> None:
        try:
            ack = read_ack(headers, data)
        except EngineGone:
            group.unsure = True
            self._later(group)
        except JetStreamRefused as refused:
            self._refused(group, refused)
        else:
            self._settle(group, planned, ack.seq - len(planned.messages) + 1)

    def _refused(self, group: AppendGroup, refused: JetStreamRefused) -> None:
        if refused.code == _STALE:
            self._mend(group, self._resolve(group))
        elif isinstance(error := refused.told("store entries"), DiskFull):
            self._fail(group, error)
        elif refused.code == _BATCH_TOO_LARGE:
            self._fail(group, TooLarge("messages of the batch", len(group.jobs), GROUP_MESSAGES))
        else:  # no leader, too many batches at once, a batch that was cut off … : all of them pass
            log.info("log.append_again", extra={"error": str(refused)})
            self._later(group)

    def _settle(self, group: AppendGroup, planned: Planned, first_seq: int) -> None:
        """It is stored, beginning at *first_seq*."""
        if group.settled:
            return
        group.settled = True
        self._gave_up = float("-inf")
        self._known.put_all(planned.known(first_seq))
        remember(self._keys, planned, first_seq, self._clock.now_ms())
        self._answer_at(first_seq + len(planned.messages) - 1, planned.real(first_seq))
        self._release(group)

    # ── what the follower sees ─────────────────────────────────────────────────────────────────

    def sighted(self, nonce: int, first_seq: int) -> None:
        """The follower has met the first message of a batch."""
        group = self._flying.get(nonce)
        if group is not None and group.planned is not None:
            self._settle(group, group.planned, first_seq)

    def followed(self, upto: int) -> None:
        """The follower has passed on everything up to *upto*."""
        self._followed = upto
        self._answer_followed()

    def _answer_followed(self) -> None:
        settled, upto = self._settled, self._followed
        while settled and settled[0][0] <= upto:
            for job, appended in heapq.heappop(settled)[2]:
                self._left(job)
                if not job.future.done():
                    job.future.set_result(appended)

    # ── when it does not go smoothly ───────────────────────────────────────────────────────────

    def _fail(self, group: AppendGroup, error: PenstockError) -> None:
        for job in group.jobs:
            self._left(job)
            _fail(job, error)
        for name in group.lanes:
            self._known.forget(name)
        group.settled = True
        self._release(group)

    def _mend(self, group: AppendGroup, work: Coroutine[Any, Any, None]) -> None:
        group.sent = 0.0
        self._tasks.start(self._mending(group, work))

    async def _mending(self, group: AppendGroup, work: Coroutine[Any, Any, None]) -> None:
        """Do *work* for the group, then send it on its way again."""
        try:
            await work
        except (PenstockError, JetStreamRefused) as error:
            log.info("log.append_waits", extra={"error": str(error)})
            await asyncio.sleep(_TICK)
            group.planned = group.planned if group.unsure else None
        if not group.settled:
            self._send(group)

    async def _ask(self, group: AppendGroup, needed: NotKnown) -> None:
        """Learn what planning needs."""
        if not isinstance(needed, HeadMissing):
            await asyncio.gather(*(self._look_up(job) for job in group.jobs))
            return
        # All that are missing, not only the first: each further question would cost another plan of the whole group.
        unknown = [name for name in _streams(group) if name not in group.found and self._known.get(name) is None]
        await asyncio.gather(*(self._load(group, name) for name in {needed.stream, *unknown}))

    async def _store_beforehand(self, group: AppendGroup, planner: Planner) -> None:
        """Store what need not be in the batch of a job that is too long for one."""
        (job,) = group.jobs
        messages = planner.beforehand(job)
        if not messages:
            self._fail(group, TooLarge("entries with a producer's sequence", job.weight, GROUP_MESSAGES - 4))
            return
        group.attempts += 1
        try:
            await self._connection.publish_batch(messages, f"{group.nonce:x}-{group.attempts}")
        except JetStreamRefused as refused:
            if refused.code != _STALE:
                raise
            await self._look_up(job)
        else:
            job.begun = messages[0].subject == self._key_subject(job)
        await self._load_all(group)

    def _key_subject(self, job: AppendJob) -> str:
        found = addresses(job.batch)
        return self._store.subjects.key(found[0][0]) if found else ""

    async def _load_all(self, group: AppendGroup) -> None:
        await asyncio.gather(*(self._load(group, stream) for stream in _streams(group)))

    async def _load(self, group: AppendGroup, stream: str) -> None:
        group.found[stream] = found = await load(self._store, stream)
        self._known.forget(stream)  # the leader was asked because it knows better
        if found is not None:
            self._known.put(found)

    async def _look_up(self, job: AppendJob) -> None:
        if job.batch.key or job.batch.producer:
            job.old_keys = await self._keys.look_up(job.batch, self._clock.now_ms())
            job.looked_up = True

    async def _resolve(self, group: AppendGroup) -> None:
        """Refused as stale: our own earlier attempt was stored, or somebody else's append was; then plan anew."""
        planned = group.planned
        if planned is not None and group.unsure:
            subject, expected, place = planned.mark
            found = await self._store.next(subject, expected + 1)
            if found is not None and row(found.seq, "", found.data).facts.nonce == group.nonce:
                self._settle(group, planned, found.seq - place)
                return
        if len(group.parts) > 1:
            self._part(group)
            return
        if group.attempts > 3:
            await asyncio.sleep(random.uniform(0, 0.002) * min(group.attempts, 50))  # noqa: S311 (to part rivals)
        group.planned, group.unsure = None, False  # a stale plan can never be stored any more
        for job in group.jobs:
            job.begun = False  # its key names a place where it will not be
        await asyncio.gather(self._load_all(group), *(self._look_up(job) for job in group.jobs))

    def _later(self, group: AppendGroup) -> None:
        """Send the same again, after a moment."""
        group.sent = time.monotonic() - ACK_SECONDS + _TICK

    def _send_all_again(self) -> None:
        for group in list(self._flying.values()):
            if group.sent and group.planned is not None:
                group.unsure = True
                self._publish(group, group.planned)

    async def _tick(self) -> None:
        now = time.monotonic()
        self._give_up(now)
        for group in list(self._flying.values()):
            if group.sent and now - group.sent > ACK_SECONDS and self._connection.connected:
                group.unsure = True
                self._send(group)

    def _give_up(self, now: float) -> None:
        """Tell those who have waited too long; drop groups that nobody waits for."""
        jobs, patience = self._jobs, 0.0 if self._connection.hopeless else PATIENCE_SECONDS
        while jobs:
            job = jobs[0]
            if not job.future.done():
                if now - job.born < patience:
                    break
                self._left(job)
                self._gave_up = now
                _fail(job, EngineGone(f"NATS did not store it within {patience:g} s; it may still have done so"))
            jobs.popleft()
        for group in list(self._flying.values()):
            if group.sent and now - group.born > PATIENCE_SECONDS and all(job.future.done() for job in group.jobs):
                self._fail(group, EngineGone("nobody waits"))


def _streams(group: AppendGroup) -> list[str]:
    return [name for name in group.lanes if name[1:2] != "\0"]


def _fail(job: AppendJob, error: BaseException) -> None:
    if not job.future.done():
        job.future.set_exception(error)
