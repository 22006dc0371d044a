"""The Event Horizon door: writer and reader APIs, announcements, and pushers that the server runs itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.api.recipients import RecipientKind
from penstock.core.background import Loop
from penstock.core.duties import Duties
from penstock.core.metering import Sample
from penstock.doors.eventhorizon.activity import Activity
from penstock.doors.eventhorizon.cluster import Pushers
from penstock.doors.eventhorizon.pushers import PusherCalls
from penstock.doors.eventhorizon.reader import ReaderCalls
from penstock.doors.eventhorizon.recipients import PusherRecipients
from penstock.doors.eventhorizon.subscriptions import Subscriptions
from penstock.doors.eventhorizon.writer import WriterCalls
from penstock.http.requests import Handler
from penstock.http.routing import WHOLE, Route
from penstock.limits import CALL_BYTES, REPORT_BYTES
from penstock.settings import Settings


class EventHorizon:
    """The door. Lives in `async with`."""

    def __init__(self, context: Context, settings: Settings) -> None:
        self._context = context
        self._subscriptions = Subscriptions(context.log, context.registry, alone=context.members.alone)
        self._duties = Duties(context.registry, context.members)
        self._writer = WriterCalls(context, self._subscriptions)
        self._reader = ReaderCalls(context, self._subscriptions)
        self._interval = settings.eventhorizon.activity_interval
        self._activity = Activity(context.log, self._subscriptions, context.clock, self._duties)
        self._pushers = Pushers(context, self._subscriptions, settings.eventhorizon, self._duties)
        self._pusher_calls = PusherCalls(context, self._subscriptions, self._pushers)
        self._announcing: Loop | None = None

    async def __aenter__(self) -> Self:
        await self._subscriptions.load()
        every = self._context.background.every
        self._announcing = every(self._interval, "eventhorizon.announcements", self._activity.round)
        await self._pushers.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._pushers.stop()
        if self._announcing is not None:
            await self._announcing.stop()
        await self._duties.release_all()

    def samples(self) -> Iterable[Sample]:
        """How many pushers this node runs."""
        yield "gauge", "pushers", "Pushers that this node runs.", self._pushers.running, {}

    def served(self) -> tuple[str, int]:
        """Apps that this node pushes to."""
        return "eventhorizon", self._pushers.running

    def recipient_kinds(self) -> list[RecipientKind]:
        return [PusherRecipients(self._pushers)]

    def routes(self) -> list[Route]:
        """The original's paths, and those of managed pushers."""
        writer, reader, pushers = self._writer, self._reader, self._pusher_calls
        return [
            self._call("/writer/create_stream", writer.create_stream, Caller.check_publishes),
            self._call("/writer/append", writer.append, Caller.check_publishes, self._context.body_limit),
            self._call("/writer/subscribe", writer.subscribe, Caller.check_subscribes),
            self._call("/writer/unsubscribe", writer.unsubscribe, Caller.check_subscribes),
            self._call("/writer/liveread", reader.liveread, Caller.check_subscribes),
            self._call("/reader/read", reader.read, Caller.check_subscribes),
            Route("GET", "/reader/notify", reader.notify, timeout=None, door="eventhorizon"),
            self._call("/reader/report", pushers.report, _check_pushers, REPORT_BYTES),
            self._call("/v1/pushers", pushers.create, _check_pushers),
            Route("GET", "/v1/pushers", pushers.list, door="eventhorizon"),
            Route("GET", "/v1/pushers/*", pushers.show, door="eventhorizon"),
            self._call("/v1/pushers/*/pause", pushers.pause, _check_pushers),
            self._call("/v1/pushers/*/resume", pushers.resume, _check_pushers),
            Route("DELETE", "/v1/pushers/*", pushers.delete, door="eventhorizon"),
        ]

    def _call(self, path: str, handler: Handler, check: Callable[[Caller], None], limit: int = CALL_BYTES) -> Route:
        return Route("POST", path, handler, WHOLE(limit), admit=self._context.admitting(check), door="eventhorizon")


def _check_pushers(caller: Caller) -> None:
    caller.check_grant("pushers")
