"""Makes the seconds of `/v1/stats` out of what the parts of a node count anyway.

A second costs some fifty microseconds. Looking for the slowest reader takes longer with many of them, so they are not
looked through when nothing was appended and none was behind, and less often when they are very many.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final

from penstock.api.door import ServingDoor
from penstock.api.v1.stats import SecondJson, StatsApi
from penstock.core.busy_streams import StreamTraffic
from penstock.core.clock import Clock
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.core.metering import quantile
from penstock.core.throughput import Throughput
from penstock.core.trim_limit import TrimLimit
from penstock.http.listener import Listener
from penstock.node.engine import Engine
from penstock.wire.ledger import STATES

STEP_SECONDS: Final = 1.0
LOOKED_THROUGH: Final = 10_000
"""Readers that are looked through every second: a millisecond or two. Twice as many, every other second."""
PIPELINE_STEPS: Final = 5
"""Steps between two looks at how far the lake is: each reads the registry."""
NOT_DELIVERED: Final = tuple(state.name for state in STATES if state.final and state.failed)


class Sampler:
    """Looks at the parts of a node once a second."""

    def __init__(
        self, api: StatsApi, clock: Clock, engine: Engine, hub: Hub, ledger: Ledger, rates: Throughput,
        traffic: StreamTraffic, listener: Listener, trimming: TrimLimit, doors: Sequence[ServingDoor] = (),
    ) -> None:  # fmt: skip
        self._serving = doors
        self._api, self._clock, self._engine, self._hub, self._ledger = api, clock, engine, hub, ledger
        self._rates, self._traffic, self._listener, self._trimming = rates, traffic, listener, trimming
        self._steps = 0
        self._at = time.monotonic()
        self._counted = self._count()
        self._doors: dict[str, float] = dict(rates.by_door)
        self._buckets = list(rates.seconds.counts)
        self._slowest = (0, "")  # lag, and whose
        self._looked_at = 0  # the log's end when readers were last looked through
        self._archived: tuple[int, int] | None = None  # highest id in the lake, and when it was written to

    async def round(self) -> None:
        """Make one second of what happened since the last one."""
        if self._steps % PIPELINE_STEPS == 0:
            await self._ask_pipeline()
        now = time.monotonic()
        span, self._at = now - self._at, now
        self._traffic.fold(max(span, 0.001))
        self._look_at_readers()
        self._api.add(self._second(span))
        self._steps += 1

    def _second(self, span: float) -> SecondJson:
        before, self._counted = self._counted, self._count()
        rose = {name: count - before[name] for name, count in self._counted.items()}
        p50, p99 = self._latencies()
        lag, slowest = self._slowest
        counters, now_ms = self._listener.counters, self._clock.now_ms()
        archived, archived_ms = self._archived or (None, now_ms)
        is_behind = archived is not None and archived < self._hub.position and archived_ms
        return SecondJson(
            now_ms, round(span * 1000), rose["published"], self._delivered(), p50, p99,
            counters.opened - counters.closed, self._connected(),
            rose["requests"], self._hub.open_feeds, lag, slowest, rose["failed"], rose["undelivered"], rose["retried"],
            self._hub.position, archived, max(0, now_ms - archived_ms) if is_behind else 0, rose["cpu_ms"],
        )  # fmt: skip

    def _count(self) -> Mapping[str, int]:
        """What only rises."""
        counters, ledger, states = self._listener.counters, self._ledger, self._rates.states
        troubled = counters.failed + counters.timed_out + counters.cut + counters.refused
        return {
            "published": self._traffic.published,
            "requests": counters.requests,
            "failed": troubled + self._hub.failed + self._engine.log.followers.failed + ledger.lost + ledger.refused,
            "undelivered": sum(states[state] for state in NOT_DELIVERED),
            "retried": states["retried"],
            "cpu_ms": round(time.process_time() * 1000),
        }

    def _delivered(self) -> dict[str, int]:
        before, self._doors = self._doors, dict(self._rates.by_door)
        rose = {door: round(count) - round(before.get(door, 0)) for door, count in self._doors.items()}
        return {door: count for door, count in rose.items() if count}

    def _connected(self) -> dict[str, int]:
        """Live answers and WebSockets that are open, and whom doors serve besides."""
        found = dict(self._listener.counters.live)
        for door in self._serving:
            name, more = door.served()
            found[name] = found.get(name, 0) + more
        return {name: count for name, count in found.items() if count}

    def _latencies(self) -> tuple[float | None, float | None]:
        before, self._buckets = self._buckets, list(self._rates.seconds.counts)
        rose = [now - then for now, then in zip(self._buckets, before, strict=True)]
        return _ms(rose, 0.5), _ms(rose, 0.99)

    def _look_at_readers(self) -> None:
        nothing_new = not self._slowest[0] and self._looked_at == self._hub.position
        if nothing_new or self._steps % (1 + self._hub.open_feeds // LOOKED_THROUGH):
            return
        self._looked_at = self._hub.position
        lag, slowest = max(((feed.lag, feed) for feed in self._hub.feeds), key=itemgetter(0), default=(0, None))
        self._slowest = (lag, f"{slowest.who.door} {slowest.who.name}" if slowest is not None and lag else "")

    async def _ask_pipeline(self) -> None:
        marks = await self._trimming.watermarks()
        self._archived = min(((mark.done, mark.done_ms) for mark in marks.values()), default=None)


def _ms(counts: Sequence[int], share: float) -> float | None:
    seconds = quantile(counts, share)
    return None if seconds is None else round(seconds * 1000, 2)
