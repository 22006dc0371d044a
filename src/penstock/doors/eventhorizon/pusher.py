"""Carries the lines of a subscription to one app. `wire/eventhorizon_pusher.py` decides what its answers mean.

It keeps nothing that it could not learn again from the app, so it may be killed at any point.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from penstock.errors import Busy, InputInvalid, OperatorError, PenstockError
from penstock.http.client import OutgoingError, Target, Unreachable
from penstock.wire import webhooks
from penstock.wire.eventhorizon import (
    QUERY,
    Cursor,
    Line,
    PushAnswer,
    ReadLines,
    mentioned,
    offset_query,
    parse_cursor,
    push_request,
)
from penstock.wire.eventhorizon_pusher import (
    AnswerInvalid,
    AppGone,
    AppRefused,
    Conversation,
    Flow,
    PushedPage,
    SubscriptionChanged,
    judge,
    read_subscription_id,
)
from penstock.wire.retrying import RetryPolicy

log = logging.getLogger("penstock.eventhorizon")


class PusherSource(Protocol):
    """Where a pusher reads, who wakes it, and where it writes down what became of its lines."""

    async def read(self, cursor: Cursor) -> ReadLines: ...
    def watch(self, id: str, wake: Callable[[Cursor], None]) -> None: ...
    def unwatch(self, id: str, wake: Callable[[Cursor], None]) -> None: ...
    async def record(self, id: str, stream: str, ids: list[int], *states: tuple[str, str]) -> None: ...


@dataclass(slots=True)
class PusherStatus:
    """What can be seen of a pusher from outside."""

    subscription: str = ""
    state: str = "starting"  # starting, pushing, failing, gone
    error: str = ""  # the last one
    error_ms: int | None = None
    pushes: int = 0
    lines: int = 0  # that the app has acknowledged
    failures: int = 0


@dataclass(slots=True)
class _LinesPage:
    """What was read of a stream, and from where."""

    begin: Cursor
    found: ReadLines
    end: Cursor | None
    told: tuple[Cursor, ...] = field(default=())


class Pusher:
    """One app. `run` it as a task; `status` tells how it goes."""

    def __init__(
        self,
        target: Target,
        source: PusherSource,
        retry: RetryPolicy,
        *,
        repeat: float,
        slots: int,
        secret: bytes | None = None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._target, self._source, self._retry, self._secret = target, source, retry, secret
        self._repeat, self._slots, self._on_answer = repeat, slots, on_answer
        self._changed = asyncio.Event()
        self._talk: Conversation | None = None
        self._steps: asyncio.TaskGroup | None = None
        self._ahead: dict[str, asyncio.Task[_LinesPage | None]] = {}  # reads of what follows the page on its way
        self._over: Exception | None = None
        self.status = PusherStatus()

    @property
    def conversation(self) -> Conversation | None:
        """What is known of the app's positions."""
        return self._talk

    def retry_now(self) -> None:
        """Try at once what waits for its time after a failure."""
        if self._talk is not None:
            self._talk.retry_now()
        self._changed.set()

    async def run(self) -> None:
        """Push until it is cancelled, or the app is `AppGone`."""
        id = await self._resolve()
        while True:
            try:
                await self._converse(id)
            except SubscriptionChanged as changed:
                id = changed.id

    async def rest(self, error: Exception, seconds: float) -> None:
        """Say what ended `run`, and wait before it is called again: so long, or until `retry_now`."""
        self._note(error)
        self._changed.clear()
        await self._wait(_now() + seconds)

    async def _resolve(self) -> str:
        """Learn the app's subscription id, however long it takes."""
        failures = 0
        while True:
            self._changed.clear()
            try:
                return read_subscription_id(await self._post(QUERY, "/:-1:-1", []))
            except (OutgoingError, AppRefused, AnswerInvalid) as error:
                failures += 1
                self._note(error)
                await self._wait(_now() + self._delay(failures, error))

    async def _converse(self, id: str) -> None:
        talk = self._talk = Conversation(id, repeat=self._repeat, slots=self._slots)
        self.status.subscription, self.status.state = id, "pushing"
        self._ahead.clear()
        self._over = None
        self._source.watch(id, self._wake)
        try:
            async with asyncio.TaskGroup() as steps:
                self._steps = steps
                while self._over is None:
                    self._changed.clear()
                    while flow := talk.take(_now()):
                        steps.create_task(self._step(talk, flow))
                    await self._wait(talk.next_due())
        finally:
            self._source.unwatch(id, self._wake)
        raise self._over

    def _wake(self, cursor: Cursor) -> None:
        if self._talk is not None:
            self._talk.wake(cursor.stream, cursor)
            self._changed.set()

    async def _wait(self, due: float | None) -> None:
        if due is None:
            await self._changed.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await self._changed.wait()

    # ── one step of one stream ─────────────────────────────────────────────────────────────────

    async def _step(self, talk: Conversation, flow: Flow) -> None:
        try:
            await (self._ask(talk, flow) if flow.acked is None else self._advance(talk, flow, flow.acked))
        except (SubscriptionChanged, AppGone) as over:
            self._over = over
        except Exception as error:  # noqa: BLE001 - whatever it was, the other streams must go on
            self._put_off(talk, flow, error)
        self._changed.set()

    async def _ask(self, talk: Conversation, flow: Flow) -> None:
        """Ask the app where it is, by a push that it must refuse."""
        query = offset_query(flow.stream)
        sent = PushedPage(parse_cursor(query))
        answer = await self._post(talk.subscription, query, [])
        talk.check(flow, sent, answer)
        talk.answered(flow, sent, answer, _now())
        self._went_well()

    async def _advance(self, talk: Conversation, flow: Flow, begin: Cursor) -> None:
        """Read what comes next and push it."""
        ahead = self._ahead.pop(flow.stream, None)
        page = await ahead if ahead is not None else None
        if page is None or not page.begin.same_place(begin):
            page = await self._read(begin)
        if page.end is None:
            talk.reached_end(flow, _now())
            return
        sent = PushedPage(begin, page.end, page.told, page.found.more)
        answer = await self._push(talk, flow, page)
        accepted = talk.check(flow, sent, answer)
        # Durable before anything follows from it, the next push included. An app that refuses because it is further on
        # has these lines, too: it took them from a push whose answer was lost.
        await self._acknowledged(talk.subscription, flow.stream, page, accepted)
        talk.answered(flow, sent, answer, _now())
        self._went_well()

    async def _read(self, begin: Cursor) -> _LinesPage:
        found = await self._source.read(begin)
        if not found.lines:
            return _LinesPage(begin, found, None)
        told = tuple(cursor for line in found.lines for cursor in mentioned(line))
        return _LinesPage(begin, found, parse_cursor(found.lines[-1].ptr_after), told)

    async def _push(self, talk: Conversation, flow: Flow, page: _LinesPage) -> PushAnswer:
        """Push a page; read the next one meanwhile, if there is one."""
        found, stream = page.found, flow.stream
        self.status.pushes += 1
        if found.more and page.end is not None and not page.told and self._steps is not None:
            self._ahead[stream] = self._steps.create_task(self._read_ahead(page.end))
        try:
            answer = await self._post(talk.subscription, found.from_offset, found.lines)
        except Unreachable:
            await self._source.record(talk.subscription, stream, found.ids, ("retried", "unreachable"))
            raise
        except AppGone:
            await self._source.record(talk.subscription, stream, found.ids, ("sent", ""), ("dead", "410 gone"))
            raise
        except (OutgoingError, AppRefused, AnswerInvalid) as error:
            reason = type(error).__name__.lower()
            await self._source.record(talk.subscription, stream, found.ids, ("sent", ""), ("retried", reason))
            raise
        return answer

    async def _read_ahead(self, begin: Cursor) -> _LinesPage | None:
        try:
            return await self._read(begin)
        except Exception:  # noqa: BLE001 - whoever reads it in its turn hears of the reason; the others must go on
            return None

    async def _acknowledged(self, id: str, stream: str, page: _LinesPage, accepted: Cursor) -> None:
        """Write down what the app has now, and count it when that is durable."""
        found = page.found
        count = _covered(page, accepted)
        if count == len(found.lines):
            await self._record(id, stream, found.ids, ("sent", ""), ("acked", ""))
        elif count:
            await self._record(id, stream, found.ids, ("sent", ""))
            await self._record(id, stream, found.ids[:count], ("acked", ""))
        self.status.lines += count

    async def _record(self, id: str, stream: str, ids: list[int], *states: tuple[str, str]) -> None:
        """Nobody else knows what the app has acknowledged: try until it is written."""
        failures = 0
        while True:
            try:
                await self._source.record(id, stream, ids, *states)
                return
            except PenstockError as error:
                failures += 1
                self._note(error)
                await asyncio.sleep(self._delay(failures, error))

    # ── talking to the app ─────────────────────────────────────────────────────────────────────

    async def _post(self, id: str, from_offset: str, lines: list[Line]) -> PushAnswer:
        body = push_request(id, from_offset, lines)
        answer = await self._target.post(body, self._signature(id, from_offset, lines, body))
        return judge(answer.status, answer.body, answer.headers.get("retry-after", ""))

    def _signature(self, id: str, begin: str, lines: list[Line], body: bytes) -> tuple[tuple[str, str], ...]:
        if self._secret is None:
            return ()
        message = webhooks.message_id(id, begin, lines[-1].ptr_after if lines else "")
        return webhooks.sign(self._secret, message, int(time.time()), body)

    # ── when something goes wrong ──────────────────────────────────────────────────────────────

    def _put_off(self, talk: Conversation, flow: Flow, error: Exception) -> None:
        self._note(error)
        self._ahead.pop(flow.stream, None)
        if _concerns_all(error):
            talk.app_failed(flow, _now() + self._delay(talk.app_failures + 1, error))
            return
        if isinstance(error, InputInvalid):
            talk.ask_again(flow)
        talk.failed(flow, _now() + self._delay(flow.failures + 1, error))

    def _delay(self, failures: int, error: Exception) -> float:
        chance = random.random()  # noqa: S311 - spreads retries, guards nothing
        return self._retry.delay(failures, chance, getattr(error, "retry_after", None))

    def _note(self, error: Exception) -> None:
        expected = isinstance(error, (PenstockError, OutgoingError, AppRefused, AnswerInvalid))
        text = f"{error}" if expected else f"{type(error).__name__}: {error}"
        status = self.status
        status.error, status.error_ms, status.state = text, time.time_ns() // 1_000_000, "failing"
        status.failures += 1
        extra = {"subscription": status.subscription, "target": self._target.url.origin, "error": text}
        log.warning("push.failed", extra=extra, exc_info=None if expected else error)

    def _went_well(self) -> None:
        self._on_answer()
        if self._talk is not None and self.status.state == "failing":
            failing = any(flow.failures for flow in self._talk.flows.values())
            self.status.state = "failing" if failing else "pushing"


def _concerns_all(error: Exception) -> bool:
    """The app, or the log, is out of reach: no other stream would fare better."""
    if isinstance(error, AppRefused):
        return error.concerns_all
    return isinstance(error, (Unreachable, Busy, OperatorError))


def _covered(page: _LinesPage, accepted: Cursor) -> int:
    """How many lines of the page the app has acknowledged."""
    if page.end is not None and accepted.same_place(page.end):
        return len(page.found.lines)
    return sum(not parse_cursor(line.ptr_after).ahead_of(accepted) for line in page.found.lines)


def _now() -> float:
    return asyncio.get_running_loop().time()
