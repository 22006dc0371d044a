"""The door: its rows of the table, and what lives with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from penstock.api.context import Context
from penstock.core.metering import Sample
from penstock.core.months import months_in_use
from penstock.doors.webpush.agents import Agents
from penstock.doors.webpush.endpoint import Endpoint
from penstock.doors.webpush.peers import Peers
from penstock.doors.webpush.refusals import problem
from penstock.doors.webpush.sender import Sender
from penstock.doors.webpush.tokens import Tokens, open_keys
from penstock.doors.webpush.unseen import Unseen
from penstock.errors import ConfigInvalid, PeerError
from penstock.http.exchange import Request, Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import PUSH_BODY_READ
from penstock.settings import Settings
from penstock.wire.vapid import parse_origin

DOOR = "webpush"
_SWEEP_SECONDS = 60.0
_COUNTED = {
    "hellos": "Sessions of user agents that began.",
    "direct": "Messages that bypassed storage.",
    "stored": "Messages that were stored.",
    "not_connected": "Messages with TTL 0 whose user agent was not there.",
    "sent": "Notifications that were sent.",
    "acked": "Notifications that were acknowledged.",
    "nacked": "Notifications that user agents could do nothing with.",
    "expired": "Stored messages whose time ran out.",
    "dropped": "User agents that were dropped.",
}


class WebPush:
    """autopush's architecture: endpoint nodes, connection nodes, a router table and messages by month."""

    kind: type[Agents] = Agents
    endpoint_kind: type[Endpoint] = Endpoint

    def __init__(self, context: Context, settings: Settings, time: Callable[[], float] | None = None) -> None:
        self._context, self._settings, self._time = context, settings, time
        self._stack = AsyncExitStack()
        roles = settings.server.roles
        self._takes_messages = "all" in roles or "endpoint" in roles
        self._takes_agents = "all" in roles or "connection" in roles
        self._sender = Sender(context, settings.webpush)
        self.agents: Agents

    async def __aenter__(self) -> Self:
        context, settings = self._context, self._settings.webpush
        origin = _check_origin(settings.origin)
        for month in months_in_use(context.clock.now_ms()):
            await context.mailbox.make_month(month)
        keys = await open_keys(context.registry, settings.token_keys)
        tokens = Tokens(keys, context.clock)
        agents = self.agents = self.kind(context, settings, tokens, self._time)
        token = self._settings.server.internal_token or hashlib.sha256(b"internal " + keys[0].encode()).hexdigest()
        agents.peers = Peers(agents, context.bus, context.clock, token=token, timeout=settings.node_timeout)
        await self._stack.enter_async_context(agents)
        self.endpoint = self.endpoint_kind(agents, context.clock, origin)
        sweeping = context.background.every(_SWEEP_SECONDS, "webpush.sweep", self.sweep)
        self._stack.push_async_callback(sweeping.stop)
        await self._sender.start(tokens.receipt_shard)
        self._stack.push_async_callback(self._sender.stop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def routes(self) -> list[Route]:
        """What user agents and senders use, as far as this node serves them."""
        rows = self._sender.routes() + self.agents.broadcasts.routes()
        if self._takes_agents:
            rows.append(Route("GET", "/", self._open, timeout=None, door=DOOR))
        if self._takes_messages:
            send, unknown, body = self.endpoint.send, self.endpoint.unknown, WHOLE(PUSH_BODY_READ)
            places = (("/wpush/*/*", send), ("/wpush/*", send), ("/wpush/**", unknown), ("/wpush", unknown))
            for path, handler in places:
                for method in ("POST", "PUT"):
                    rows.append(Route(method, path, handler, body=body, door=DOOR, problem=problem))
            rows.append(Route("DELETE", "/m/*", self.endpoint.cancel, door=DOOR, problem=problem))
            rows.append(Route("GET", "/r/*", self.agents.receipts.listen, timeout=None, door=DOOR, problem=problem))
        return rows

    def internal_routes(self) -> list[Route]:
        """What other nodes use."""
        return self.agents.peers.routes()

    def reachable(self, address: str) -> None:
        """Other nodes reach our internal listener there."""
        self.agents.router.address = address

    async def leave_month(self, month: str) -> None:
        """Drop user agents that were not seen since that month."""
        await Unseen(self.agents).leave_month(month)

    def samples(self) -> Iterable[Sample]:
        """What became of messages and user agents."""
        yield (
            "gauge",
            "webpush_user_agents",
            "User agents with a subscription, connected here.",
            len(self.agents.table),
            {},
        )
        yield from self._sender.samples()
        for name, description in _COUNTED.items():
            yield "counter", f"webpush_{name}", description, self.agents.counts[name], {}

    def _open(self, request: Request) -> Response:
        if request.header(b"upgrade") is None:
            raise PeerError(426, "user agents connect here, with a WebSocket")
        return self.agents.open(request, self.endpoint.origin(request))

    # ── expiry ────────────────────────────────────────────────────────────────────────────────

    async def sweep(self) -> None:
        """Delete messages whose time has run out, and say so."""
        for month in await self._context.mailbox.months():
            while gone := await self._context.mailbox.expire(month):
                for uaid, item in gone:
                    await self.agents.gone(uaid, month, item, "expired")
                    self.agents.counts["expired"] += 1


def _check_origin(given: str) -> str:
    """The public origin as endpoints and `aud` have it; what is none would make every endpoint useless."""
    try:
        return parse_origin(given) if given else ""
    except ValueError:
        remedy = "Set it to scheme, host and port alone, like https://push.example.net."
        raise ConfigInvalid("webpush.origin", f"{given!r} is no origin", remedy=remedy) from None
