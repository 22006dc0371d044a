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
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from penstock.api.context import Context
from penstock.core.background import Loop, Tasks
from penstock.core.duties import LOOK_SECONDS, PREFIX, Duties
from penstock.core.liveness import node_of
from penstock.core.node_calls import Calls
from penstock.core.registry import each
from penstock.doors.webpush_sender.binding import POSITIONS, Binding, BindingRecord, SendingMeans, decode_position
from penstock.doors.webpush_sender.push_client import PushClient, check_endpoint
from penstock.doors.webpush_sender.receipts import AwaitedReceipts
from penstock.doors.webpush_sender.service_queue import ServiceQueue
from penstock.settings import WebPushSettings
from penstock.values import Entry, Kind, Record
from penstock.wire.retrying import RetryPolicy
from penstock.wire.webcrypto import RECORD_BYTES
from penstock.wire.webpush_tokens import EndpointTokens

log = logging.getLogger("penstock.webpush")

BINDINGS: Final = "webpush/bindings/"
SHARDS: Final = "0123456789abcdef"
HINT: Final = "webpush.bindings"
_STOP_SECONDS = 5.0
_encode = msgspec.json.Encoder().encode


class RetryCall(msgspec.Struct, array_like=True):
    """What the node that sends for a binding is asked to do."""

    id: str
    entries: tuple[int, ...]  # to be sent once more


_retry_call = msgspec.msgpack.Decoder(RetryCall).decode
_retried = msgspec.msgpack.Decoder(int | None).decode


class Bindings:
    """Runs bindings. `start` and `stop` bracket its life."""

    kind: type[Binding] = Binding

    def __init__(self, context: Context, settings: WebPushSettings, client: PushClient, tokens: EndpointTokens) -> None:
        self._context, self._client, self._slots = context, client, settings.send_slots
        self._registry, self._members = context.registry, context.members
        self._duties = Duties(context.registry, context.members)
        self.running: dict[str, Binding] = {}
        self.of_owner = Counter[str]()  # how many of them
        self._queues: dict[tuple[str, bool], ServiceQueue] = {}
        self._tasks = Tasks("webpush.sender")
        self._look = asyncio.Event()
        self._looking: Loop | None = None
        self._changing = asyncio.Lock()  # to bind and to unbind take two steps each, which must not mix
        self.unbound = 0
        self._receipts = AwaitedReceipts(context, tokens, self._runs, self._proved)
        retry = RetryPolicy(settings.send_retry, settings.send_retry_longest)
        self._means = SendingMeans(context, client, self._receipts, retry, self._gone, self._may)
        self._calls = Calls(context.bus, f"{HINT}.retry", self._asked)
        context.bus.listen(HINT, lambda topic, message: self._look.set())
        for prefix in (BINDINGS, f"{PREFIX}webpush/"):
            context.change_poller.on_record(prefix, lambda change: self._look.set())

    async def start(self) -> None:
        """Go on with what the registry holds."""
        await self._receipts.start()
        await self.look()
        if not self._members.alone:
            self._members.on_change.append(self._look.set)
            self._looking = self._context.background.every(LOOK_SECONDS, "webpush.bindings", self.look, wake=self._look)

    async def stop(self) -> None:
        """End all bindings; what is on its way has a moment to be settled, else it will be sent again."""
        if self._looking is not None:
            await self._looking.stop()
        await self._calls.__aexit__(None, None, None)
        await self._receipts.stop()
        for binding in self.running.values():
            binding.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._tasks.finish()
        await self._tasks.close()
        for queue in self._queues.values():
            queue.close()
        await self._duties.release_all()

    @property
    def failing(self) -> int:
        """Push services that take nothing now."""
        return sum(queue.failures > 0 for queue in self._queues.values())

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
                await self._receipts.start()  # of those that others have sent for until now, too

    async def _run_shard(self, shard: str) -> None:
        found = {one.key.removeprefix(BINDINGS): one async for one in self.records(shard)}
        for id in [id for id in self.running if id[0] == shard and id not in found]:
            self._end(self.running[id], removed=True)
        for id, one in found.items():
            record = msgspec.json.decode(one.value, type=BindingRecord)
            if id not in self.running:
                position = await self.position(id, record)
                self._begin(id, record, position)
            elif self.running[id].record != record:
                self._change(self.running[id], record)

    async def _leave_shard(self, shard: str) -> None:
        for binding in [one for id, one in self.running.items() if id[0] == shard]:
            self._end(binding)
        await self._duties.release(_duty(shard))

    def records(self, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        """All bindings whose ids begin with *prefix*, by id, those after *after*."""
        return each(self._registry, BINDINGS + prefix, after=BINDINGS + after if after else "")

    async def find(self, id: str) -> BindingRecord | None:
        """The binding with this id, wherever it runs."""
        if self._members.alone:
            return self.running[id].record if id in self.running else None
        record = await self._registry.get(BINDINGS + id)
        return msgspec.json.decode(record.value, type=BindingRecord) if record else None

    async def position(self, id: str, record: BindingRecord) -> int:
        """The last entry that was settled."""
        found = await self._registry.get(POSITIONS + id)
        return decode_position(record, found.value) if found else record.after

    # ── trying again ──────────────────────────────────────────────────────────────────────────

    async def try_again(self, id: str, entries: Sequence[int] = ()) -> int | None:
        """Try at once what failed, and send *entries* once more, on whichever node sends for the binding.

        How many of the entries can be sent; None if no node sends for it now.
        """
        call = RetryCall(id, tuple(entries))
        if id in self.running:
            return await self._try_here(call)
        holder = None if self._members.alone else await self._duties.holder(_duty(id[0]))
        if holder is None or holder == self._members.me:
            return None
        return await self._calls.ask(node_of(holder), msgspec.msgpack.encode(call), _retried)

    async def _asked(self, body: bytes) -> bytes:
        return msgspec.msgpack.encode(await self._try_here(_retry_call(body)))

    async def _try_here(self, call: RetryCall) -> int | None:
        found = [entry for id in call.entries if (entry := await self._sendable(id)) is not None]
        binding = self.running.get(call.id)
        if binding is None:
            return None
        binding.redrive(found)
        binding.retry_now()
        return len(found)

    async def _sendable(self, id: int) -> Entry | None:
        entry = await self._context.log.entry(id)
        fits = entry is not None and entry.kind is Kind.DATA and len(entry.body) <= RECORD_BYTES
        return entry if fits else None

    # ── changes ───────────────────────────────────────────────────────────────────────────────

    async def keep(self, id: str, record: BindingRecord) -> None:
        """Write a binding down, and have it run."""
        async with self._changing:
            await self._registry.put(BINDINGS + id, _encode(record))
            running = self.running.get(id)
            if running is not None and running.record.allow_private == record.allow_private:
                self._change(running, record)
            elif running is not None:  # another line before the same service
                self._end(running)
                self._begin(id, record, running.position)
            elif self._duties.mine(_duty(id[0])):
                self._begin(id, record, record.after)
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
        log.info("webpush.unbound", extra={"binding": binding.id, "stream": binding.record.stream})
        self.unbound += 1
        await self.unbind(binding.id)

    # ── their lives ───────────────────────────────────────────────────────────────────────────

    def _begin(self, id: str, record: BindingRecord, position: int) -> None:
        queue = self._queue(record.subscription.endpoint, record.allow_private)
        queue.members += 1
        binding = self.running[id] = self.kind(id, record, position, queue, self._means)
        self.of_owner[record.owner] += 1
        binding.start()

    def _change(self, binding: Binding, record: BindingRecord) -> None:
        owner = binding.record.owner
        binding.change(record)
        self.of_owner[record.owner] += 1
        self._one_less(owner)

    def _one_less(self, owner: str) -> None:
        self.of_owner[owner] -= 1
        if not self.of_owner[owner]:
            del self.of_owner[owner]

    def _may(self, id: str) -> bool:
        return self._duties.mine(_duty(id[0]))

    def _runs(self, id: str) -> bool:
        return id in self.running

    def _proved(self, id: str) -> None:
        if id in self.running:
            self.running[id].status.acked += 1

    def _end(self, binding: Binding, *, removed: bool = False) -> None:
        del self.running[binding.id]
        self._one_less(binding.record.owner)
        binding.removed = removed
        binding.stop()
        queue = binding.queue
        queue.members -= 1
        if not queue.members:
            for key in [key for key, one in self._queues.items() if one is queue]:
                del self._queues[key]
            queue.close()

    def _queue(self, endpoint: str, allow_private: bool) -> ServiceQueue:
        key = check_endpoint(endpoint), allow_private
        found = self._queues.get(key)
        if found is None:
            target = self._client.target(endpoint, allow_private=allow_private)
            found = self._queues[key] = ServiceQueue(target, self._context.wheel, self._tasks.start, self._slots)
        return found


def _duty(shard: str) -> str:
    return f"webpush/{shard}"
