"""Which pushers there are, and which node runs which.

The registry keeps a record for each pusher, so that it outlives the server. Of a cluster's nodes each pusher is run by
one (`core/duties.py`), and any node answers about it: it changes the record and hints to the others, and asks the one
that runs it how it goes. A node that is alone runs them all.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.core.background import Loop
from penstock.core.duties import LOOK_SECONDS, PREFIX, Duties
from penstock.core.liveness import node_of
from penstock.core.node_calls import Calls
from penstock.core.registry import each
from penstock.doors.eventhorizon.local_source import LocalSource
from penstock.doors.eventhorizon.pusher import Pusher, PusherStatus
from penstock.doors.eventhorizon.requests import PusherView
from penstock.doors.eventhorizon.subscriptions import Subscriptions
from penstock.http.client import Answer, Target, Unreachable, parse_url
from penstock.limits import CHUNK_BYTES
from penstock.settings import EventHorizonSettings
from penstock.values import Record
from penstock.wire.eventhorizon import Cursor, timestamp
from penstock.wire.eventhorizon_pusher import AppGone
from penstock.wire.retrying import RetryPolicy
from penstock.wire.webhooks import parse_secret

log = logging.getLogger("penstock.eventhorizon")

HINT = "pushers"
SETTLE_SECONDS = 3.0
"""For another node to let go of a pusher that was paused or deleted. Over it: the call is answered all the same."""
RECORDS = "pushers/"
ROUNDS = "pushers.run"
"""What `/ready` and the metrics call all pushers that end unexpectedly, whichever they are."""
_encode = msgspec.json.Encoder().encode


class PusherRecord(msgspec.Struct):
    """A pusher as the registry keeps it, with what its owner could read when it was made."""

    url: str
    secret: str
    allow_private: bool
    owner: str
    admin: bool
    subscribe: tuple[str, ...]
    created_ms: int
    state: str = "running"  # running, paused, gone

    def caller(self) -> Caller:
        """Its owner, as far as the owner could read."""
        return Caller(self.owner, self.admin, (), self.subscribe)


class StreamBehind(NamedTuple):
    """A stream of which an app does not have everything."""

    stream: str
    bytes: int
    words: str


_views = msgspec.json.Decoder(list[PusherView]).decode


class ManagedPusher:
    """A pusher of this server, running or not."""

    def __init__(self, id: str, record: PusherRecord, version: int) -> None:
        self.id, self.record, self.version = id, record, version
        self.pusher: Pusher | None = None
        self.target: Target | None = None
        self.task: asyncio.Task[None] | None = None
        self.crashes = 0  # in a row, before its app answered

    @property
    def runs(self) -> bool:
        """Whether this node pushes, or tries to."""
        return self.task is not None and not self.task.done()

    def belongs_to(self, caller: Caller) -> bool:
        """Whether the caller may see and change it."""
        return caller.admin or self.record.owner == caller.subject


class FencedTarget(Target):
    """An app that is only spoken to while this node has the duty to."""

    may: Callable[[], bool] = staticmethod(lambda: True)

    async def post(self, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> Answer:  # type: ignore[override]
        if not self.may():
            raise Unreachable("this node may no longer push to it")
        return await super().post(body, headers)


class Pushers:
    """All pushers of the server, and those of them that this node runs."""

    def __init__(
        self, context: Context, subscriptions: Subscriptions, settings: EventHorizonSettings, duties: Duties
    ) -> None:
        self._context, self._subscriptions, self._settings = context, subscriptions, settings
        self._registry, self._clock, self._members = context.registry, context.clock, context.members
        self._duties, self._background = duties, context.background
        self._crashed: set[str] = set()
        self.all: dict[str, ManagedPusher] = {}
        self._retry = RetryPolicy(settings.push_retry, settings.push_retry_longest)
        self._look = asyncio.Event()
        self._looking: Loop | None = None
        self._turn = asyncio.Lock()  # one look at a time
        self._calls = Calls(context.bus, HINT, self._asked)
        context.bus.listen(HINT, lambda topic, message: self._look.set())
        for prefix in (RECORDS, PREFIX + RECORDS):
            context.change_poller.on_record(prefix, lambda change: self._look.set())

    async def start(self) -> None:
        """Run what the registry holds, and this node has the duty to run."""
        self._background.began(ROUNDS)
        await self.look()
        if not self._members.alone:
            self._members.on_change.append(self._members_changed)
            self._looking = self._background.every(LOOK_SECONDS, "pushers", self.look, wake=self._look)

    @property
    def running(self) -> int:
        """How many of them push, or try to."""
        return sum(managed.runs for managed in self.all.values())

    async def stop(self) -> None:
        """End those that run here. Each app knows how far it has come, so there is nothing to write down."""
        if self._looking is not None:
            await self._looking.stop()
        await asyncio.gather(*(self._halt(managed) for managed in self.all.values()))
        await self._calls.__aexit__(None, None, None)

    # ── who runs which ─────────────────────────────────────────────────────────────────────────

    def _members_changed(self) -> None:
        """Stop at once what is no longer this node's to do: a push that is under way, too."""
        for managed in self.all.values():
            if managed.task is not None and not self._duties.mine(duty_of(managed.id)):
                managed.task.cancel()
        self._look.set()

    async def look(self) -> None:
        """Take in what the registry says now, and run or halt accordingly."""
        async with self._turn:
            for managed in self.all.values():  # at once, whatever the registry says or does not say
                if managed.task is not None and not self._duties.mine(duty_of(managed.id)):
                    await self._halt(managed)
            records = {record.key.removeprefix(RECORDS): record async for record in each(self._registry, RECORDS)}
            for id in self.all.keys() - records.keys():
                await self._drop(self.all.pop(id))
            for id, record in records.items():
                await self._see_to(id, record)

    async def _see_to(self, id: str, record: Record) -> None:
        managed = self.all.get(id)
        if managed is None or managed.version < record.version:
            kept = msgspec.json.decode(record.value, type=PusherRecord)
            if managed is None:
                managed = self.all[id] = ManagedPusher(id, kept, record.version)
            managed.record, managed.version = kept, record.version
        if managed.record.state != "running" or not self._duties.should(duty_of(id)):
            await self._drop(managed)
        elif not managed.runs and await self._duties.take(duty_of(id)):
            await self._halt(managed)  # what is left of one that was cut off
            self._run(managed)

    async def _drop(self, managed: ManagedPusher) -> None:
        """Run it no more, and let others run it."""
        await self._halt(managed)
        await self._duties.release(duty_of(managed.id))

    async def _changed(self, managed: ManagedPusher) -> None:
        """Let all nodes see a changed record; returns when no node runs it that should not."""
        if self._members.alone:
            return
        await self._context.bus.hint(HINT, b"")
        await self.look()
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                # Another node lets go of it, so there is nothing here to wait for.
                while managed.record.state != "running" and await self._duties.holder(duty_of(managed.id)):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    async def _asked(self, body: bytes) -> bytes:
        """What another node wants to know: how some go that run here. It may want one of them to try again first.

        It says the id of that one, or nothing, and after a space each those of the others.
        """
        retry, *ids = body.decode().split(" ")
        self._retry_here(retry)
        wanted = [self.all[id] for id in (retry, *ids) if id in self.all]
        return _encode([self.view(managed) for managed in wanted if managed.runs])

    def _retry_here(self, id: str) -> bool:
        managed = self.all.get(id)
        if managed is None or managed.pusher is None or not managed.runs:
            return False
        managed.pusher.retry_now()
        return True

    async def retry(self, managed: ManagedPusher) -> bool:
        """Try at once what failed, on whichever node it runs; False if it runs on none."""
        return self._retry_here(managed.id) or managed.id in await self.views_elsewhere(retry=managed.id)

    async def views_elsewhere(self, ids: Iterable[str] = (), *, retry: str = "") -> dict[str, PusherView]:
        """How some of these go that run on other nodes; one may be told to try again."""
        question = " ".join((retry, *ids)).encode()
        found: dict[str, PusherView] = {}
        for member in self._members.living():
            if member != self._members.me:
                shown = await self._calls.ask(node_of(member), question, _views)
                found |= {one.id: one for one in shown or ()}
        return found

    # ── their lives ────────────────────────────────────────────────────────────────────────────

    def _run(self, managed: ManagedPusher) -> None:
        record, settings = managed.record, self._settings
        target = FencedTarget(parse_url(record.url), allow_private=record.allow_private, timeout=settings.push_timeout)
        target.may = partial(self._duties.mine, duty_of(managed.id))
        managed.target = target
        source = LocalSource(self._context, self._subscriptions, record.caller())
        secret = parse_secret(record.secret) if record.secret else None
        managed.pusher = Pusher(
            managed.target,
            source,
            self._retry,
            repeat=settings.push_repeat,
            slots=settings.push_slots,
            secret=secret,
            on_answer=partial(self._is_well, managed),
        )
        managed.task = asyncio.create_task(self._live(managed, managed.pusher))

    async def _live(self, managed: ManagedPusher, pusher: Pusher) -> None:
        """Push until it is halted, or its app is gone. Whatever else ends it, it begins again after a pause."""
        while True:
            try:
                await self._push(managed, pusher)
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, the app is owed the rest
                managed.crashes += 1
                self._crashed.add(managed.id)
                self._background.failed(ROUNDS, error)
                chance = random.random()  # noqa: S311 - spreads retries, guards nothing
                await pusher.rest(error, self._retry.delay(managed.crashes, chance))

    async def _push(self, managed: ManagedPusher, pusher: Pusher) -> None:
        """Push until the app is gone, and that is kept. If it cannot be, whoever pushes next asks the app again."""
        try:
            await pusher.run()
        except AppGone:
            await self._keep(managed, "gone")
            log.warning("pusher.gone", extra={"pusher": managed.id, "subscription": pusher.status.subscription})
            self._is_well(managed)
            await self._duties.release(duty_of(managed.id))

    def _is_well(self, managed: ManagedPusher) -> None:
        """It goes again, or need not any more."""
        managed.crashes = 0
        if managed.id in self._crashed:
            self._crashed.discard(managed.id)
            if not self._crashed:
                self._background.succeeded(ROUNDS)

    async def _halt(self, managed: ManagedPusher) -> None:
        if managed.task is not None:
            managed.task.cancel()
            await asyncio.gather(managed.task, return_exceptions=True)
            managed.task = None
        self._is_well(managed)
        if managed.target is not None:
            managed.target.close()

    async def _keep(self, managed: ManagedPusher, state: str) -> None:
        kept = msgspec.structs.replace(managed.record, state=state)
        record = await self._registry.put(RECORDS + managed.id, _encode(kept), expect=managed.version)
        managed.record, managed.version = kept, record.version

    # ── what is asked of them ──────────────────────────────────────────────────────────────────

    async def refresh(self) -> None:
        """Know what other nodes have changed."""
        if not self._members.alone:
            await self.look()

    async def add(self, record: PusherRecord) -> ManagedPusher:
        """Begin to push to an app."""
        managed = ManagedPusher(secrets.token_hex(8), record, 0)
        await self._keep(managed, record.state)
        self.all[managed.id] = managed
        await self._begin(managed)
        return managed

    async def pause(self, managed: ManagedPusher) -> None:
        """Push no more until it is resumed. No node does when this returns."""
        await self._set_state(managed, "paused")
        await self._duties.release(duty_of(managed.id))
        await self._changed(managed)

    async def resume(self, managed: ManagedPusher) -> PusherView:
        """Push again from where the app is; as it is shown before it begins."""
        await self._set_state(managed, "running")
        view = self.view(managed)
        await self._begin(managed)
        return view

    async def remove(self, managed: ManagedPusher) -> None:
        """Forget it. No node runs it when this returns."""
        await self._halt(managed)
        self.all.pop(managed.id, None)
        await self._registry.delete(RECORDS + managed.id)
        managed.record.state = "deleted"
        await self._duties.release(duty_of(managed.id))
        await self._changed(managed)

    async def _begin(self, managed: ManagedPusher) -> None:
        if self._members.alone:
            self._run(managed)
        else:
            await self._changed(managed)

    async def _set_state(self, managed: ManagedPusher, state: str) -> None:
        await self._halt(managed)
        managed.record.state = state
        await self._keep(managed, state)

    # ── how they go ────────────────────────────────────────────────────────────────────────────

    def view(self, managed: ManagedPusher) -> PusherView:
        """A pusher as this node knows it."""
        record, pusher = managed.record, managed.pusher
        status = pusher.status if pusher else PusherStatus(state="running")
        lag, behind = self._lag(pusher) if pusher else (0, 0)
        return PusherView(
            managed.id,
            record.url.partition("?")[0],
            record.state if record.state != "running" else status.state,
            status.subscription,
            lag,
            behind,
            status.pushes,
            status.lines,
            status.failures,
            status.error,
            timestamp(status.error_ms) if status.error_ms else "",
            bool(record.secret),
            record.owner,
            timestamp(record.created_ms),
            "" if self._members.alone or not managed.runs else self._context.bus.node,
        )

    def _lag(self, pusher: Pusher) -> tuple[int, int]:
        """Bytes and streams that the app is known not to have."""
        behind = self.behind(pusher)
        return sum(one.bytes for one in behind), len(behind)

    def behind(self, pusher: Pusher) -> list[StreamBehind]:
        """The streams of which the app is known not to have everything."""
        found = []
        for flow in pusher.conversation.flows.values() if pusher.conversation else ():
            newest = self._subscriptions.newest(flow.stream) or flow.goal
            if newest is not None and flow.acked is not None and newest.ahead_of(flow.acked):
                failed = f", failed {flow.failures} times in a row" if flow.failures else ""
                words = f"the app has it up to {flow.acked}{failed}"
                found.append(StreamBehind(flow.stream, _distance(flow.acked, newest), words))
        return found


def duty_of(id: str) -> str:
    """The duty to run a pusher."""
    return RECORDS + id


def _distance(begin: Cursor, end: Cursor) -> int:
    """Bytes between two positions; full chunks count as what they hold at least."""
    return max(1, (end.chunk - begin.chunk) * CHUNK_BYTES + end.offset - begin.offset)
