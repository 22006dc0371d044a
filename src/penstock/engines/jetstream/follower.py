"""Follows the log: one ordered consumer per node, and the order in which everything becomes visible here.

JetStream's consumer is an ephemeral one without acknowledgements. Its deliveries are numbered; a number
that is missing, a silence longer than its heartbeats allow, or a new connection makes a new consumer that
begins after the last complete batch. So what is given on is the log in order of id, without a gap, and a
batch is given on whole.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Self

from penstock.core.background import Background, Loop
from penstock.engines.jetstream import frames
from penstock.engines.jetstream.connection import ELECTING_SECONDS, JetStreamRefused, NatsConnection, header, status
from penstock.engines.jetstream.entry_messages import LogRow, Side, row, side
from penstock.engines.jetstream.log_stream import Store
from penstock.errors import EngineGone

log = logging.getLogger("penstock.jetstream")

HEARTBEAT_SECONDS: Final = 0.5
SILENCE_SECONDS: Final = 1.6
"""Three heartbeats that did not come: the consumer, or the way to it, is gone."""

_E = ord("e")


Message = LogRow | Side
Sink = Callable[[list[Message]], None]


class Follower:
    """Calls *sink* with whole batches, several at a time. Lives in `async with`."""

    def __init__(self, store: Store, sink: Sink, after: int, background: Background) -> None:
        self._store, self._sink, self._background = store, sink, background
        self._connection: NatsConnection = store.connection
        self._deliver = 0  # the number of the subscription
        self._expected = 1  # the consumer's next delivery
        self._after = after  # the last message of the last complete batch
        self._batch: list[Message] = []
        self._ready: list[Message] = []
        self._heard = time.monotonic()
        self._broken = asyncio.Event()
        self._watching: Loop | None = None
        self.trouble = ""

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._connection.on_back.append(self._broken.set)
        await self._begin_at_last()
        self._watching = self._background.forever("jetstream.follower", self._watch)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._watching is not None:
            await self._watching.stop()
        await self._connection.unlisten(self._deliver)

    # ── the consumer ───────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        """Make a new consumer if the present one is broken or silent."""
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await self._broken.wait()
        except TimeoutError:
            if time.monotonic() - self._heard < SILENCE_SECONDS:
                return
        if self._connection.connected:
            await self._begin_again()
        else:
            self._broken.clear()

    async def _begin_at_last(self) -> None:
        """Begin, even if the servers are still electing who leads the stream."""
        deadline = time.monotonic() + ELECTING_SECONDS
        while True:
            try:
                return await self._begin()
            except EngineGone:
                if time.monotonic() > deadline or self._connection.hopeless:
                    raise

    async def _begin_again(self) -> None:
        try:
            await self._begin()
        except (EngineGone, JetStreamRefused) as error:
            log.warning("log.follower_waits", extra={"error": str(error)})
            self._broken.clear()
            await asyncio.sleep(HEARTBEAT_SECONDS / 2)

    async def _begin(self) -> None:
        connection, after = self._connection, self._after
        await connection.unlisten(self._deliver)
        self._batch.clear()
        self._expected = 1
        self._broken.clear()
        inbox = connection.client.new_inbox()
        self._deliver = await connection.listen(inbox, self._take)
        config = {
            "deliver_subject": inbox, "deliver_policy": "by_start_sequence", "opt_start_seq": after + 1,
            "ack_policy": "none", "max_deliver": 1, "replay_policy": "instant", "mem_storage": True,
            "num_replicas": 1, "flow_control": True, "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9),
            "inactive_threshold": 5_000_000_000,
        }  # fmt: skip
        stream = self._store.subjects.stream
        await connection.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config}, within=2)
        self._heard = time.monotonic()
        await self._check_nothing_is_lost(after)

    async def _check_nothing_is_lost(self, after: int) -> None:
        state = await self._store.state()
        if state.last_seq < after:
            # A server that came back with an older disk leads now. Nothing here can mend that.
            self.trouble = f"the log ends at id {state.last_seq}, but {after} was seen: NATS has lost entries"
            log.error("log.lost_entries", extra={"last": state.last_seq, "seen": after})

    def _take(self, subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
        """One delivery, or a sign of life."""
        self._heard = time.monotonic()
        if status(headers) == 100:
            self._live_sign(reply, headers)
            return
        parts = reply.split(b".")
        first = 7 if len(parts) >= 11 else 5  # newer servers put domain and account in front
        seq, delivery = int(parts[first]), int(parts[first + 1])
        if delivery != self._expected:
            self._broken.set()
            return
        self._expected += 1
        self._add(seq, subject, data)

    def _live_sign(self, reply: bytes, headers: bytes | None) -> None:
        stalled = header(headers, b"Nats-Consumer-Stalled")
        if reply or stalled:  # flow control wants to know how far we are
            self._connection.send(frames.NatsMessage((reply or stalled).decode(), b""))
        last = header(headers, b"Nats-Last-Consumer")
        if last and int(last) >= self._expected:
            self._broken.set()

    def _add(self, seq: int, subject: bytes, data: bytes) -> None:
        subjects = self._store.subjects
        if subjects.kind(subject) == _E:
            found = row(seq, subjects.name(subject.decode()), data)
            self._batch.append(found)
            more = found.facts.more
        else:
            other = side(seq, subject.decode(), data)
            self._batch.append(other)
            more = other.more
        if more:
            return
        if not self._ready:
            self._loop.call_soon(self._give)
        self._after = seq
        self._ready += self._batch
        self._batch.clear()

    def _give(self) -> None:
        ready, self._ready = self._ready, []
        self._sink(ready)
