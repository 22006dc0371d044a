"""`/v1/pushers`: pushers that the server runs itself, kept in the registry so that they outlive it.

Of a cluster's nodes each pusher is run by one (`core/duties.py`), and any node answers about it: it changes the
record and hints to the others, and asks the one that runs it how it goes.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, TypeVar

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context, only
from penstock.api.describing import PATH_LEVEL, WEBHOOK_KEY, a_list, an_object, operation, shown_as, text
from penstock.core.background import Loop
from penstock.core.calls import Calls
from penstock.core.duties import LOOK_SECONDS, PREFIX, Duties
from penstock.core.members import node_of
from penstock.core.names import check_name
from penstock.doors.eventhorizon.pusher import Gone, Pusher
from penstock.doors.eventhorizon.reader import check_subscription
from penstock.doors.eventhorizon.sources import LocalSource
from penstock.doors.eventhorizon.subscriptions import Subscriptions
from penstock.errors import InputInvalid, NotFound, TooLarge
from penstock.http.exchange import Request, Response
from penstock.http.outgoing import URL, Answer, Target, Unreachable, parse_url
from penstock.limits import (
    CHUNK_BYTES,
    LEDGER_REASON_CHARACTERS,
    LEDGER_REPORT_STATES,
    PAGE_ENTRIES,
    PUSHERS,
    URL_BYTES,
)
from penstock.settings import EventHorizonSettings
from penstock.values import Record
from penstock.wire.eventhorizon import Cursor, timestamp
from penstock.wire.retrying import RetryPolicy
from penstock.wire.webhooks import parse_secret

log = logging.getLogger("penstock.eventhorizon")

T = TypeVar("T")
HINT = "pushers"
SETTLE_SECONDS = 3.0
_PREFIX = "pushers/"
_ID = (text("id", "As it was given when it was made.", pattern=PATH_LEVEL),)
_STATES = ("sent", "acked", "retried", "dead")
_encode = msgspec.json.Encoder().encode


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """What somebody asks for."""

    url: Annotated[str, shown_as(pattern=URL, maxLength=URL_BYTES)]
    secret: Annotated[str, shown_as(pattern=WEBHOOK_KEY)] = ""
    allow_private: bool = False


class Kept(msgspec.Struct):
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
        return Caller(self.owner, self.admin, (), self.subscribe)


class Shown(msgspec.Struct):
    """A pusher as it is shown. The URL without its query: that may hold the app's token."""

    id: str
    url: str
    state: str  # running, paused, gone; of a running one: starting, pushing or failing
    subscription: str
    lag_bytes: int  # known to be there and not acknowledged yet
    behind: int  # streams that this is about
    pushes: int
    lines: int
    failures: int
    error: str
    error_time: str
    signed: bool
    owner: str
    created: str
    node: str = ""  # that runs it; of a cluster


_all_shown = msgspec.json.Decoder(list[Shown]).decode


class Report(msgspec.Struct, rename="pascal"):
    """What a pusher that runs elsewhere says about lines it pushed."""

    subscription_id: str
    stream: str
    ids: tuple[int, int]
    states: list[tuple[str, str]]


class Managed:
    """A pusher of this server, running or not."""

    def __init__(self, id: str, kept: Kept, version: int) -> None:
        self.id, self.kept, self.version = id, kept, version
        self.pusher: Pusher | None = None
        self.target: Target | None = None
        self.task: asyncio.Task[None] | None = None


class FencedTarget(Target):
    """An app that is only spoken to while this node has the duty to."""

    may: Callable[[], bool] = staticmethod(lambda: True)

    async def post(self, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> Answer:  # type: ignore[override]
        if not self.may():
            raise Unreachable("this node may no longer push to it")
        return await super().post(body, headers)


class Pushers:
    """Starts, stops and shows them."""

    def __init__(
        self, context: Context, subscriptions: Subscriptions, settings: EventHorizonSettings, duties: Duties
    ) -> None:
        self._context, self._subscriptions, self._settings = context, subscriptions, settings
        self._registry, self._clock, self._members = context.registry, context.clock, context.members
        self._duties = duties
        self._all: dict[str, Managed] = {}
        self._retry = RetryPolicy(settings.push_retry, settings.push_retry_longest)
        self._look = asyncio.Event()
        self._looking: Loop | None = None
        self._turn = asyncio.Lock()  # one look at a time
        self._calls = Calls(context.bus, HINT, self._asked)
        context.bus.listen(HINT, lambda topic, message: self._look.set())
        for prefix in (_PREFIX, PREFIX + _PREFIX):
            context.lookout.on_record(prefix, lambda change: self._look.set())

    async def start(self) -> None:
        """Run what the registry holds, and this node has the duty to run."""
        await self.look()
        if not self._members.alone:
            self._members.on_change.append(self._members_changed)
            self._looking = self._context.background.every(LOOK_SECONDS, "pushers", self.look, wake=self._look)

    @property
    def running(self) -> int:
        """How many of them push, or try to."""
        return sum(managed.task is not None for managed in self._all.values())

    async def stop(self) -> None:
        """End them all; each app is somewhere, and will say where."""
        if self._looking is not None:
            await self._looking.stop()
        await asyncio.gather(*(self._halt(managed) for managed in self._all.values()))
        await self._calls.__aexit__(None, None, None)

    # ── who runs which ─────────────────────────────────────────────────────────────────────────

    def _members_changed(self) -> None:
        """Stop at once what is no longer this node's to do: a push that is under way, too."""
        for managed in self._all.values():
            if managed.task is not None and not self._duties.mine(_duty(managed.id)):
                managed.task.cancel()
        self._look.set()

    async def look(self) -> None:
        """Take in what the registry says now, and run or halt accordingly."""
        async with self._turn:
            for managed in self._all.values():  # at once, whatever the registry says or does not say
                if managed.task is not None and not self._duties.mine(_duty(managed.id)):
                    await self._halt(managed)
            records = {record.key.removeprefix(_PREFIX): record async for record in self._records()}
            for id in self._all.keys() - records.keys():
                await self._drop(self._all.pop(id))
            for id, record in records.items():
                await self._see_to(id, record)

    async def _records(self) -> AsyncIterator[Record]:
        after = ""
        while records := await self._registry.list(_PREFIX, after=after, limit=PAGE_ENTRIES):
            after = records[-1].key
            for record in records:
                yield record

    async def _see_to(self, id: str, record: Record) -> None:
        managed = self._all.get(id)
        if managed is None or managed.version < record.version:
            kept = msgspec.json.decode(record.value, type=Kept)
            if managed is None:
                managed = self._all[id] = Managed(id, kept, record.version)
            managed.kept, managed.version = kept, record.version
        if managed.kept.state != "running" or not self._duties.should(_duty(id)):
            await self._drop(managed)
        elif managed.task is None and await self._duties.take(_duty(id)):
            self._run(managed)

    async def _drop(self, managed: Managed) -> None:
        """Run it no more, and let others run it."""
        await self._halt(managed)
        await self._duties.release(_duty(managed.id))

    async def _changed(self, managed: Managed) -> None:
        """Let all nodes see a changed record; done when nobody runs it who should not."""
        if self._members.alone:
            return
        await self._context.bus.hint(HINT, b"")
        await self.look()
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                # Another node lets go of it, so there is nothing here to wait for.
                while managed.kept.state != "running" and await self._duties.holder(_duty(managed.id)):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    async def _asked(self, body: bytes) -> bytes:
        """What another node wants to know: how those go that run here."""
        return _encode([self._shown(managed) for managed in self._all.values() if managed.task is not None])

    async def _elsewhere(self) -> dict[str, Shown]:
        """How those go that run on other nodes."""
        found: dict[str, Shown] = {}
        for member in self._members.living():
            if member != self._members.me:
                shown = await self._calls.ask(node_of(member), b"", _all_shown)
                found |= {one.id: one for one in shown or ()}
        return found

    # ── the calls ──────────────────────────────────────────────────────────────────────────────

    @operation(
        "Have a subscription pushed into an app (Event Horizon).", body=Wanted, answers={201: Shown}, errors=(507,)
    )
    async def create(self, request: Request) -> Response:
        """Begin to push to an app."""
        caller = self._caller(request)
        wanted = _decode(request.body, Wanted)
        if wanted.allow_private:
            caller.check_admin("pushers with allow_private")
        if len(wanted.url) > URL_BYTES:
            raise TooLarge("bytes of url", len(wanted.url), URL_BYTES)
        parse_url(wanted.url)
        if wanted.secret:
            parse_secret(wanted.secret)
        await self._refresh()
        if len(self._all) >= PUSHERS:
            raise TooLarge("pushers", len(self._all) + 1, PUSHERS)
        kept = Kept(
            wanted.url, wanted.secret, wanted.allow_private, caller.subject, caller.admin, caller.subscribe,
            self._clock.now_ms(),
        )  # fmt: skip
        managed = Managed(secrets.token_hex(8), kept, 0)
        await self._keep(managed)
        self._all[managed.id] = managed
        await self._begin(managed)
        return Response(201, _encode(self._shown(managed)))

    @operation("List the pushers, with their lag and last error.", answers={200: an_object(pushers=a_list(Shown))})
    async def list(self, request: Request) -> Response:
        """All that the caller may see: the own ones, or everybody's for the admin."""
        caller = self._caller(request)
        only(request)
        await self._refresh()
        elsewhere = await self._elsewhere()
        mine = [m for m in self._all.values() if caller.admin or m.kept.owner == caller.subject]
        return Response(200, _encode({"pushers": [elsewhere.get(m.id) or self._shown(m) for m in mine]}))

    @operation("One pusher.", path=_ID, answers={200: Shown}, errors=(404,))
    async def show(self, request: Request) -> Response:
        """One of them."""
        managed = await self._find(request)
        elsewhere = {} if managed.task is not None else await self._elsewhere()
        return Response(200, _encode(elsewhere.get(managed.id) or self._shown(managed)))

    @operation("Push no more for now.", path=_ID, answers={200: Shown}, errors=(404, 507))
    async def pause(self, request: Request) -> Response:
        """Push no more until it is resumed."""
        managed = await self._find(request)
        await self._halt(managed)
        return await self._change(managed, "paused")

    @operation("Push again, from where it was.", path=_ID, answers={200: Shown}, errors=(404, 507))
    async def resume(self, request: Request) -> Response:
        """Push again; also after the app said that it was gone."""
        managed = await self._find(request)
        await self._halt(managed)
        answer = await self._change(managed, "running")
        await self._begin(managed)
        return answer

    async def _begin(self, managed: Managed) -> None:
        if self._members.alone:
            self._run(managed)
        else:
            await self._changed(managed)

    @operation("Remove a pusher.", path=_ID, answers={204: None}, errors=(404, 507))
    async def delete(self, request: Request) -> Response:
        """Forget it."""
        managed = await self._find(request)
        await self._halt(managed)
        self._all.pop(managed.id, None)
        await self._registry.delete(_PREFIX + managed.id)
        managed.kept.state = "deleted"
        await self._duties.release(_duty(managed.id))
        await self._changed(managed)
        return Response(204)

    async def report(self, request: Request) -> Response:
        """Take down what a pusher that runs elsewhere says. It is durable when this is answered, if it matters.

        Who may hear what a subscription has (`/reader/notify`) may say what became of it, and nobody else.
        """
        caller = self._caller(request)
        said = _decode(request.body, Report)
        caller.check_subscribe(check_subscription(said.subscription_id))
        caller.check_subscribe(check_name(said.stream))
        if not 0 < said.ids[0] <= said.ids[1] <= self._context.log.followed:
            raise InputInvalid("Ids", "are not two ids of entries, in order")
        if len(said.states) > LEDGER_REPORT_STATES:
            raise TooLarge("States", len(said.states), LEDGER_REPORT_STATES)
        if not said.states or any(not _may_be_reported(*pair) for pair in said.states):
            why = f"are not pairs of {', '.join(_STATES)} and a reason of {LEDGER_REASON_CHARACTERS} characters at most"
            raise InputInvalid("States", why)
        source = LocalSource(self._context, self._subscriptions, caller)
        await source.record(said.subscription_id, said.stream, [*said.ids], *said.states)
        return Response(200, b"{}")

    # ── their lives ────────────────────────────────────────────────────────────────────────────

    def _run(self, managed: Managed) -> None:
        kept, settings = managed.kept, self._settings
        target = FencedTarget(parse_url(kept.url), allow_private=kept.allow_private, timeout=settings.push_timeout)
        target.may = partial(self._duties.mine, _duty(managed.id))
        managed.target = target
        source = LocalSource(self._context, self._subscriptions, kept.caller())
        secret = parse_secret(kept.secret) if kept.secret else None
        managed.pusher = Pusher(
            managed.target,
            source,
            self._retry,
            repeat=self._settings.push_repeat,
            slots=self._settings.push_slots,
            secret=secret,
        )
        managed.task = asyncio.create_task(self._live(managed, managed.pusher))

    async def _live(self, managed: Managed, pusher: Pusher) -> None:
        try:
            await pusher.run()
        except Gone:
            log.warning("pusher.gone", extra={"pusher": managed.id, "subscription": pusher.status.subscription})
            managed.kept.state = "gone"
            await self._keep(managed)
            await self._duties.release(_duty(managed.id))
        except Exception as error:
            pusher.status.error = f"{type(error).__name__}: {error}"
            log.exception("pusher.crashed", extra={"pusher": managed.id})

    async def _halt(self, managed: Managed) -> None:
        if managed.task is not None:
            managed.task.cancel()
            await asyncio.gather(managed.task, return_exceptions=True)
            managed.task = None
        if managed.target is not None:
            managed.target.close()

    async def _change(self, managed: Managed, state: str) -> Response:
        managed.kept.state = state
        await self._keep(managed)
        if state != "running":
            await self._duties.release(_duty(managed.id))
            await self._changed(managed)
        return Response(200, _encode(self._shown(managed)))

    async def _keep(self, managed: Managed) -> None:
        record = await self._registry.put(_PREFIX + managed.id, _encode(managed.kept), expect=managed.version)
        managed.version = record.version

    # ── seeing them ────────────────────────────────────────────────────────────────────────────

    def _caller(self, request: Request) -> Caller:
        caller = self._context.caller(request)
        caller.check_grant("pushers")
        return caller

    async def _refresh(self) -> None:
        """Know what other nodes have changed."""
        if not self._members.alone:
            await self.look()

    async def _find(self, request: Request) -> Managed:
        caller = self._caller(request)
        await self._refresh()
        managed = self._all.get(request.captures[0])
        if managed is None or not (caller.admin or managed.kept.owner == caller.subject):
            raise NotFound("pusher", request.captures[0])
        return managed

    def _shown(self, managed: Managed) -> Shown:
        kept, pusher = managed.kept, managed.pusher
        status = pusher.status if pusher else None
        lag, behind = self._lag(pusher) if pusher else (0, 0)
        return Shown(
            managed.id,
            kept.url.partition("?")[0],
            kept.state if kept.state != "running" or status is None else status.state,
            status.subscription if status else "",
            lag,
            behind,
            status.pushes if status else 0,
            status.lines if status else 0,
            status.failures if status else 0,
            status.error if status else "",
            timestamp(status.error_ms) if status and status.error_ms else "",
            bool(kept.secret),
            kept.owner,
            timestamp(kept.created_ms),
            "" if self._members.alone or managed.task is None else self._context.bus.node,
        )

    def _lag(self, pusher: Pusher) -> tuple[int, int]:
        """Bytes and streams that the app is known not to have."""
        if pusher.conversation is None:
            return 0, 0
        total = behind = 0
        for flow in pusher.conversation.flows.values():
            newest = self._subscriptions.newest(flow.stream) or flow.goal
            if newest is not None and flow.acked is not None and newest.ahead_of(flow.acked):
                behind += 1
                total += _distance(flow.acked, newest)
        return total, behind


def _may_be_reported(state: str, reason: str) -> bool:
    return state in _STATES and len(reason) <= LEDGER_REASON_CHARACTERS


def _duty(id: str) -> str:
    return f"{_PREFIX}{id}"


def _distance(begin: Cursor, end: Cursor) -> int:
    """Bytes between two positions; full chunks count as what they hold at least."""
    return max(1, (end.chunk - begin.chunk) * CHUNK_BYTES + end.offset - begin.offset)


def _decode(body: bytes, type: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputInvalid("body", str(error), code="json_invalid") from None
