"""Which bindings this node runs: all of them when it is alone, its share of them in a cluster.

Bindings are cut into sixteen shards by the first digit of their ids, and of each shard one node has the duty
(`core/duties.py`). A node that takes a shard over reads its bindings and positions from the registry and goes
on where the last one was; at worst the entry that was on its way is sent again.

    webpush/bindings/3f9a4c21d07e55b1     the subscription, its stream and its owner
    webpush/positions/3f9a4c21d07e55b1    the last entry that was settled
    duties/webpush/3                      the node that sends for shard 3
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Final

import msgspec

from penstock.api.context import Context
from penstock.core.background import Loop
from penstock.core.duties import LOOK_SECONDS, PREFIX, Duties
from penstock.doors.webpush.bindings import POSITIONS, Binding, Kept, Means, decode_position
from penstock.doors.webpush.courier import Courier, check_endpoint
from penstock.doors.webpush.proofs import Proofs
from penstock.doors.webpush.services import Service
from penstock.http.outgoing import Target, parse_url
from penstock.limits import PAGE_ENTRIES
from penstock.settings import WebPushSettings
from penstock.values import Record
from penstock.wire.retrying import RetryPolicy

log = logging.getLogger("penstock.webpush")

BINDINGS: Final = "webpush/bindings/"
SHARDS: Final = "0123456789abcdef"
HINT: Final = "webpush.bindings"
_STOP_SECONDS = 5.0
_encode = msgspec.json.Encoder().encode


class Roster:
    """Runs bindings. `start` and `stop` bracket its life."""

    kind: type[Binding] = Binding

    def __init__(self, context: Context, settings: WebPushSettings) -> None:
        self._context, self._settings = context, settings
        self._registry, self._members = context.registry, context.members
        self._duties = Duties(context.registry, context.members)
        self.running: dict[str, Binding] = {}
        self._services: dict[tuple[str, bool], Service] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry = RetryPolicy(settings.send_retry, settings.send_retry_longest)
        self._look = asyncio.Event()
        self._looking: Loop | None = None
        self._changing = asyncio.Lock()  # to bind and to unbind take two steps each, which must not mix
        self.unbound = 0
        self._proofs = Proofs(context, self._spawn, self._runs, self._proved)
        context.bus.listen(HINT, lambda topic, message: self._look.set())
        for prefix in (BINDINGS, f"{PREFIX}webpush/"):
            context.lookout.on_record(prefix, lambda change: self._look.set())

    async def start(self, courier: Courier, shard_of: Callable[[str], int | None]) -> None:
        """Go on with what the registry holds. *shard_of* knows the receipt subscriptions of this service."""
        self._proofs.shard_of = shard_of
        self._means = Means(self._context, courier, self._proofs, self._retry, self._gone, self._may)
        await self.look()
        if not self._members.alone:
            self._members.on_change.append(self._look.set)
            self._looking = self._context.background.every(LOOK_SECONDS, "webpush.bindings", self.look, wake=self._look)

    async def stop(self) -> None:
        """End all bindings; what is on its way has a moment to be settled, else it will be sent again."""
        if self._looking is not None:
            await self._looking.stop()
        self._proofs.stop()
        for binding in self.running.values():
            binding.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for service in self._services.values():
            service.close()
        await self._duties.release_all()

    @property
    def failing(self) -> int:
        """Push services that take nothing now."""
        return sum(service.failures > 0 for service in self._services.values())

    # ── who runs which ────────────────────────────────────────────────────────────────────────

    async def look(self) -> None:
        """Run what the registry says and this node has the duty to run, and nothing else."""
        async with self._changing:
            before = set(self.running)
            for shard in SHARDS:
                if self._duties.should(_duty(shard)) and await self._duties.take(_duty(shard)):
                    await self._run_shard(shard)
                else:
                    await self._leave_shard(shard)
            if not before.issuperset(self.running):
                await self._proofs.start()  # of those that others have sent for until now, too

    async def _run_shard(self, shard: str) -> None:
        records = {record.key.removeprefix(BINDINGS): record async for record in self.records(shard)}
        for id in [id for id in self.running if id[0] == shard and id not in records]:
            self._end(self.running[id], removed=True)
        for id, record in records.items():
            kept = msgspec.json.decode(record.value, type=Kept)
            if id not in self.running:
                position = await self.position(id, kept)
                self._begin(id, kept, position)
            elif self.running[id].kept != kept:
                self.running[id].change(kept)

    async def _leave_shard(self, shard: str) -> None:
        for binding in [one for id, one in self.running.items() if id[0] == shard]:
            self._end(binding)
        await self._duties.release(_duty(shard))

    async def records(self, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        """All bindings whose ids begin with *prefix*, by id, those after *after*."""
        last = BINDINGS + after if after else ""
        while records := await self._registry.list(BINDINGS + prefix, after=last, limit=PAGE_ENTRIES):
            last = records[-1].key
            for record in records:
                yield record

    async def find(self, id: str) -> Kept | None:
        """The binding with this id, wherever it runs."""
        if self._members.alone:
            return self.running[id].kept if id in self.running else None
        record = await self._registry.get(BINDINGS + id)
        return msgspec.json.decode(record.value, type=Kept) if record else None

    async def position(self, id: str, kept: Kept) -> int:
        """The last entry that was settled."""
        record = await self._registry.get(POSITIONS + id)
        return decode_position(kept, record.value) if record else kept.after

    # ── changes ───────────────────────────────────────────────────────────────────────────────

    async def keep(self, id: str, kept: Kept) -> None:
        """Write a binding down, and have it run."""
        async with self._changing:
            await self._registry.put(BINDINGS + id, _encode(kept))
            running = self.running.get(id)
            if running is not None and running.kept.allow_private == kept.allow_private:
                running.change(kept)
            elif running is not None:  # another line before the same service
                self._end(running)
                self._begin(id, kept, running.position)
            elif self._duties.mine(_duty(id[0])):
                self._begin(id, kept, kept.after)
        await self._tell_others()

    async def unbind(self, id: str) -> None:
        """Durable first: a crash in between leaves a position without a binding, which harms nobody."""
        async with self._changing:
            await self._registry.delete(BINDINGS + id)
            if id in self.running:
                self._end(self.running[id], removed=True)
            await self._registry.delete(POSITIONS + id)
        await self._tell_others()

    async def _tell_others(self) -> None:
        if not self._members.alone:
            await self._context.bus.hint(HINT, b"")

    async def _gone(self, binding: Binding) -> None:
        log.info("webpush.unbound", extra={"binding": binding.id, "stream": binding.kept.stream})
        self.unbound += 1
        await self.unbind(binding.id)

    # ── their lives ───────────────────────────────────────────────────────────────────────────

    def _begin(self, id: str, kept: Kept, position: int) -> Binding:
        service = self._service(kept.subscription.endpoint, kept.allow_private)
        service.members += 1
        binding = self.running[id] = self.kind(id, kept, position, service, self._means)
        binding.start()
        return binding

    def _may(self, id: str) -> bool:
        return self._duties.mine(_duty(id[0]))

    def _runs(self, id: str) -> bool:
        return id in self.running

    def _proved(self, id: str, delivered: bool) -> None:
        if delivered:
            self.running[id].status.acked += 1

    def _end(self, binding: Binding, *, removed: bool = False) -> None:
        del self.running[binding.id]
        binding.removed = removed
        binding.stop()
        service = binding.service
        service.members -= 1
        if not service.members:
            for key in [key for key, one in self._services.items() if one is service]:
                del self._services[key]
            service.close()

    def _service(self, endpoint: str, allow_private: bool) -> Service:
        key = check_endpoint(endpoint), allow_private
        found = self._services.get(key)
        if found is None:
            target = self.target(endpoint, allow_private)
            found = self._services[key] = Service(target, self._context.wheel, self._spawn, self._settings.send_slots)
        return found

    def target(self, endpoint: str, allow_private: bool) -> Target:
        """Where the messages for an endpoint go."""
        return Target(
            parse_url(endpoint),
            allow_private=allow_private,
            timeout=self._settings.send_timeout,
            connect_timeout=min(10.0, self._settings.send_timeout),
            limit_bytes=64 * 1024,
        )

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _duty(shard: str) -> str:
    return f"webpush/{shard}"
