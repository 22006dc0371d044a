"""`/v1/pushers`, for pushers that the server runs itself: made, shown, paused, removed; and `/reader/report`."""

from __future__ import annotations

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context, integer, only
from penstock.api.describing import BOOLEAN, PATH_LEVEL, a_list, an_object, operation, text
from penstock.api.describing import limit as limit_parameter
from penstock.api.shares import share
from penstock.core.names import check_name
from penstock.doors.eventhorizon.cluster import ManagedPusher, PusherRecord, Pushers
from penstock.doors.eventhorizon.local_source import LocalSource
from penstock.doors.eventhorizon.requests import PusherRequest, PusherView, PushReport, check_subscription, decode_json
from penstock.doors.eventhorizon.subscriptions import Subscriptions
from penstock.errors import NotFound, TooLarge
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.limits import PAGE_ENTRIES, PUSHERS

_ID = (text("id", "As it was given when it was made.", pattern=PATH_LEVEL),)
_encode = msgspec.json.Encoder().encode


class PusherCalls:
    """The calls about pushers."""

    def __init__(self, context: Context, subscriptions: Subscriptions, pushers: Pushers) -> None:
        self._context, self._subscriptions, self._pushers = context, subscriptions, pushers

    @operation(
        "Have a subscription pushed into an app (Event Horizon).", body=PusherRequest, answers={201: PusherView},
        errors=(507,),
    )  # fmt: skip
    async def create(self, request: Request) -> Response:
        """Begin to push to an app."""
        caller = self._caller(request)
        asked = decode_json(request.body, PusherRequest)
        if asked.allow_private:
            caller.check_admin("pushers with allow_private")
        asked.check()
        await self._pushers.refresh()
        if len(self._pushers.all) >= PUSHERS:
            raise TooLarge("pushers", len(self._pushers.all) + 1, PUSHERS)
        own = sum(one.record.owner == caller.subject for one in self._pushers.all.values())
        if own >= share(PUSHERS, caller.sharer):
            raise TooLarge("pushers of one subject", own + 1, share(PUSHERS, caller.sharer))
        record = PusherRecord(
            asked.url, asked.secret, asked.allow_private, caller.subject, caller.admin, caller.subscribe,
            self._context.clock.now_ms(),
        )  # fmt: skip
        managed = await self._pushers.add(record)
        return Response(201, _encode(self._pushers.view(managed)))

    @operation(
        "List the pushers, in order of their ids, with their lag and last error.",
        query=(text("after", "Ids after this one."), limit_parameter("Pushers at most.")),
        answers={200: an_object(pushers=a_list(PusherView), more=BOOLEAN)},
    )
    async def list(self, request: Request) -> Response:
        """Those of the caller; everybody's for the admin."""
        caller = self._caller(request)
        only(request, "after", "limit")
        after = request.params.get("after", "")
        limit = integer(request, "limit", PAGE_ENTRIES, least=1, most=PAGE_ENTRIES)
        await self._pushers.refresh()
        mine = [one for id, one in sorted(self._pushers.all.items()) if id > after and one.belongs_to(caller)]
        page = mine[:limit]
        elsewhere = await self._pushers.views_elsewhere(one.id for one in page)
        views = [elsewhere.get(one.id) or self._pushers.view(one) for one in page]
        return Response(200, _encode({"pushers": views, "more": len(mine) > limit}))

    @operation("One pusher.", path=_ID, answers={200: PusherView}, errors=(404,))
    async def show(self, request: Request) -> Response:
        """How one goes, on whichever node it runs."""
        managed = await self._find(request)
        elsewhere = {} if managed.runs else await self._pushers.views_elsewhere([managed.id])
        return Response(200, _encode(elsewhere.get(managed.id) or self._pushers.view(managed)))

    @operation("Push no more for now.", path=_ID, answers={200: PusherView}, errors=(404, 507))
    async def pause(self, request: Request) -> Response:
        """Push no more until it is resumed."""
        managed = await self._find(request)
        await self._pushers.pause(managed)
        return Response(200, _encode(self._pushers.view(managed)))

    @operation("Push again, from where it was.", path=_ID, answers={200: PusherView}, errors=(404, 507))
    async def resume(self, request: Request) -> Response:
        """Push again; also after the app said that it was gone."""
        managed = await self._find(request)
        return Response(200, _encode(await self._pushers.resume(managed)))

    @operation("Remove a pusher.", path=_ID, answers={204: None}, errors=(404, 507))
    async def delete(self, request: Request) -> Response:
        await self._pushers.remove(await self._find(request))
        return Response(204)

    async def report(self, request: Request) -> Response:
        """`/reader/report`: record what a pusher that runs elsewhere says; `acked` and `dead` durably.

        Whoever may hear what a subscription has (`/reader/notify`) may say what became of it, and nobody else.
        """
        caller = self._caller(request)
        said = decode_json(request.body, PushReport)
        caller.check_subscribe(check_subscription(said.subscription_id))
        caller.check_subscribe(check_name(said.stream))
        said.check(self._context.log.followed)
        source = LocalSource(self._context, self._subscriptions, caller)
        await source.record(said.subscription_id, said.stream, [*said.ids], *said.states)
        return Response(200, b"{}")

    def _caller(self, request: Request) -> Caller:
        caller = self._context.caller(request)
        caller.check_grant("pushers")
        return caller

    async def _find(self, request: Request) -> ManagedPusher:
        caller = self._caller(request)
        await self._pushers.refresh()
        managed = self._pushers.all.get(request.captures[0])
        if managed is None or not managed.belongs_to(caller):
            raise NotFound("pusher", request.captures[0])
        return managed
