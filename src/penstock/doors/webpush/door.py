"""The door of the push service: its rows of the table, and what lives with it. The sender is a door of its own."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Self

import msgspec
from cryptography.fernet import Fernet

from penstock.api.context import Context
from penstock.api.recipients import RecipientKind
from penstock.core.metering import Sample
from penstock.core.months import months_in_use
from penstock.core.registry import made_once
from penstock.doors.webpush import inactive_agents
from penstock.doors.webpush.agents import Agents
from penstock.doors.webpush.endpoint import Endpoint
from penstock.doors.webpush.error_form import autopush_form
from penstock.doors.webpush.recipients import AgentRecipients
from penstock.doors.webpush.session import AgentSession
from penstock.errors import ConfigInvalid, PeerError
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import PUSH_BODY_READ
from penstock.settings import Settings
from penstock.wire.vapid import parse_origin
from penstock.wire.webpush import SUBPROTOCOL
from penstock.wire.webpush_actions import PushSessionRules
from penstock.wire.webpush_tokens import KEYS_RECORD, EndpointTokens
from penstock.wire.websocket_frames import offered_subprotocols

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

    agents_kind: type[Agents] = Agents
    session_kind: type[AgentSession] = AgentSession
    endpoint_kind: type[Endpoint] = Endpoint

    def __init__(self, context: Context, settings: Settings, time: Callable[[], float] | None = None) -> None:
        self._context, self._settings, self._time = context, settings, time
        self._stack = AsyncExitStack()
        roles, chosen = settings.server.roles, settings.webpush
        self._takes_messages = "all" in roles or "endpoint" in roles
        self._takes_agents = "all" in roles or "connection" in roles
        self._rules = PushSessionRules(
            chosen.window, chosen.msg_limit, chosen.hello_timeout, chosen.ping_interval, chosen.ping_timeout,
            chosen.ping_least,
        )  # fmt: skip
        self.agents: Agents

    async def __aenter__(self) -> Self:
        context, settings = self._context, self._settings.webpush
        origin = _check_origin(settings.origin)
        for month in months_in_use(context.clock.now_ms()):
            await context.mailbox.make_month(month)
        keys = settings.token_keys or await self._made_keys()
        tokens = EndpointTokens(keys, secrets.token_bytes(4))
        token = self._settings.server.internal_token or hashlib.sha256(b"internal " + keys[0].encode()).hexdigest()
        agents = self.agents_kind(context, settings, tokens, self._time, token=token)
        self.agents = await self._stack.enter_async_context(agents)
        self.endpoint = self.endpoint_kind(agents, context.clock, origin)
        sweeping = context.background.every(_SWEEP_SECONDS, "webpush.sweep", agents.messages.sweep)
        self._stack.push_async_callback(sweeping.stop)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _made_keys(self) -> list[str]:
        """The token keys of this installation, made at its first start and kept for ever."""
        made = await made_once(
            self._context.registry, KEYS_RECORD, lambda: msgspec.json.encode([Fernet.generate_key().decode()])
        )
        return msgspec.json.decode(made, type=list[str])

    def routes(self) -> list[Route]:
        """What user agents and senders use, as far as this node serves them."""
        rows = self.agents.broadcasts.routes()
        if self._takes_agents:
            rows.append(Route("GET", "/", self._open, timeout=None, door=DOOR))
        if self._takes_messages:
            send, unknown, body = self.endpoint.send, self.endpoint.unknown, WHOLE(PUSH_BODY_READ)
            places = (("/wpush/*/*", send), ("/wpush/*", send), ("/wpush/**", unknown), ("/wpush", unknown))
            for path, handler in places:
                for method in ("POST", "PUT"):
                    rows.append(Route(method, path, handler, body=body, door=DOOR, form=autopush_form))
            rows.append(Route("DELETE", "/m/*", self.endpoint.cancel, door=DOOR, form=autopush_form))
            rows.append(Route("GET", "/r/*", self.agents.receipts.listen, timeout=None, door=DOOR, form=autopush_form))
        return rows

    def internal_routes(self) -> list[Route]:
        """What other nodes use."""
        return self.agents.cluster.routes()

    def reachable(self, address: str) -> None:
        """Other nodes reach our internal listener there."""
        self.agents.router.address = address

    def recipient_kinds(self) -> list[RecipientKind]:
        return [AgentRecipients(self.agents)]

    async def leave_month(self, month: str) -> None:
        """Drop user agents that were not seen since that month."""
        await inactive_agents.leave_month(self.agents, month)

    def samples(self) -> Iterable[Sample]:
        """What became of messages and user agents."""
        connected = len(self.agents.table)
        yield "gauge", "webpush_user_agents", "User agents with a subscription, connected here.", connected, {}
        for name, description in _COUNTED.items():
            yield "counter", f"webpush_{name}", description, self.agents.counts[name], {}

    def new_session(self, origin: str) -> AgentSession:
        """A session whose WebSocket is still to come."""
        return self.session_kind(self.agents, self._rules, origin)

    def _open(self, request: Request) -> Response:
        """Let a user agent in."""
        if request.header(b"upgrade") is None:
            raise PeerError(426, "user agents connect here, with a WebSocket")
        session = self.new_session(self.endpoint.origin(request))
        offers = [value for name, value in request.headers if name == b"sec-websocket-protocol"]
        subprotocol = SUBPROTOCOL if SUBPROTOCOL in offered_subprotocols(offers) else None
        session.opened(request.accept_websocket(session, subprotocol, watch=self._context.ledger.enabled))
        return LIVE


def _check_origin(given: str) -> str:
    """The public origin as endpoints and `aud` have it; what is none would make every endpoint useless."""
    try:
        return parse_origin(given) if given else ""
    except ValueError:
        remedy = "Set it to scheme, host and port alone, like https://push.example.net."
        raise ConfigInvalid("webpush.origin", f"{given!r} is no origin", remedy=remedy) from None
