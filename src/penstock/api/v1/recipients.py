"""`/v1/recipients`: everybody who receives, in one list; what waits for one of them; and what can be done about it.

    GET   /v1/recipients            by kind, state and a part of the name; sorted by name, lag or time
    GET   /v1/recipients/waiting    what waits for one of them
    POST  /v1/recipients/act        pause, resume, retry, disconnect

Wires, tails and channels are those of the node that is asked; all others are known to every node.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec

from penstock.api.context import Context, decoded, integer, only
from penstock.api.describing import BOOLEAN, INTEGER, Parameter, a_list, an_object, number, operation, text
from penstock.api.describing import limit as limit_parameter
from penstock.api.recipients import (
    ACTIONS,
    Action,
    ActionImpossible,
    RecipientKind,
    RecipientView,
    WaitingPage,
)
from penstock.api.v1.operator_actions import ActionLog
from penstock.api.v1.why_recipients import checked
from penstock.errors import InputInvalid, NotFound
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import CALL_BYTES, RECIPIENT_BYTES, RECIPIENTS_SEEN, WAY_PAGE

KINDS: Final = ("wire", "tail", "session", "agent", "pusher", "binding", "channel", "consumer")
SORTS: Final = ("name", "lag", "since")
AT_ONCE: Final = 1_000
"""Recipients that are looked at before the loop may do something else: some milliseconds."""

Kinds = Callable[[], Sequence[RecipientKind]]
_COUNTS: Final = {"type": "object", "additionalProperties": INTEGER}
_LIST: Final = an_object(
    recipients=a_list(RecipientView), kinds=_COUNTS, states=_COUNTS, total=INTEGER, found=INTEGER, complete=BOOLEAN,
    upto=INTEGER, ms=INTEGER,
)  # fmt: skip
_KIND: Final = {"type": "string", "enum": list(KINDS)}
_encode = msgspec.json.Encoder().encode


class ActRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/recipients/act`."""

    kind: Literal["wire", "tail", "session", "agent", "pusher", "binding", "channel", "consumer"]
    name: str
    action: Literal["pause", "resume", "retry", "disconnect"]


class RecipientsApi:
    """Answers operators."""

    def __init__(self, context: Context, kinds: Kinds, actions: ActionLog) -> None:
        self._context, self._kinds, self._actions = context, kinds, actions

    def routes(self) -> list[Route]:
        """Its part of the table."""
        admit = self._context.admitting(lambda caller: caller.check_admin("recipients"))
        return [
            Route("GET", "/v1/recipients", self.show, door="v1"),
            Route("GET", "/v1/recipients/waiting", self.waiting, door="v1"),
            Route("POST", "/v1/recipients/act", self.act, body=WHOLE(CALL_BYTES), admit=admit, door="v1"),
        ]

    @operation(
        "Everybody who receives: wires, sessions, user agents, pushers, bindings, channels, tails, consumers.",
        query=(
            Parameter("kind", "Only those of this kind.", _KIND),
            text("state", "Only those in this state.", most=20),
            text("search", "Part of the name, of a stream or of the last error.", most=RECIPIENT_BYTES),
            Parameter("sort", "By name, by lag or by the time since when.", {"type": "string", "enum": list(SORTS)}),
            number("from", "Skip so many of those that are found.", most=RECIPIENTS_SEEN * len(KINDS)),
            limit_parameter("Recipients at most.", WAY_PAGE),
        ),
        answers={200: _LIST},
    )
    async def show(self, request: Request) -> Response:
        """A page of those that are wanted, and how many there are by kind and state."""
        self._context.caller(request).check_admin("recipients")
        only(request, "kind", "state", "search", "sort", "from", "limit")
        state, words = checked(request, "state", 20), checked(request, "search", RECIPIENT_BYTES).casefold()
        sort = _chosen(request, "sort", SORTS) or "name"
        begin = integer(request, "from", 0, most=RECIPIENTS_SEEN * len(KINDS))
        limit = integer(request, "limit", 100, least=1, most=WAY_PAGE)
        views, complete = await self._views(_chosen(request, "kind", KINDS))
        found = [view for view in views if state in ("", view.state) and (not words or _has(view, words))]
        found.sort(key=_ORDERS[sort])
        shown: dict[str, Any] = {
            "recipients": [await self._complete(view) for view in found[begin : begin + limit]],
            "kinds": Counter(view.kind for view in views),
            "states": Counter(view.state for view in views),
            "total": len(views),
            "found": len(found),
            "complete": complete,
            "upto": self._context.hub.position,
            "ms": self._context.clock.now_ms(),
        }
        return Response(200, _encode(shown))

    async def _views(self, kind: str) -> tuple[list[RecipientView], bool]:
        views: list[RecipientView] = []
        complete = True
        for one in self._kinds():
            if kind in ("", one.kind):
                seen = 0
                async for view in one.each():
                    views.append(view)
                    seen += 1
                    if seen == RECIPIENTS_SEEN:
                        complete = False
                        break
                    if seen % AT_ONCE == 0:
                        await asyncio.sleep(0)
        return views, complete

    async def _complete(self, view: RecipientView) -> RecipientView:
        return await self._kind(view.kind).complete(view)

    @operation(
        "What waits for one recipient, the oldest first.",
        query=(
            Parameter("kind", "Its kind.", _KIND, required=True),
            text("name", "Its name.", least=1, most=RECIPIENT_BYTES, required=True),
            limit_parameter("Items at most.", 500),
        ),
        answers={200: an_object(recipient=RecipientView, waiting=WaitingPage)},
        errors=(404,),
    )
    async def waiting(self, request: Request) -> Response:
        """All that waits for one recipient, up to a limit."""
        self._context.caller(request).check_admin("recipients")
        only(request, "kind", "name", "limit")
        kind = self._kind(_chosen(request, "kind", KINDS))
        view = await self._find(kind, checked(request, "name", RECIPIENT_BYTES))
        page = await kind.waiting(view, integer(request, "limit", 100, least=1, most=500))
        return Response(200, _encode({"recipient": view, "waiting": page}))

    @operation(
        "Pause, resume, retry or disconnect one recipient. What was done is an entry of /_actions.",
        body=ActRequest,
        answers={200: an_object(action=INTEGER, recipient={"anyOf": [RecipientView, {"type": "null"}]})},
        errors=(404, 409, 507),
    )
    async def act(self, request: Request) -> Response:
        """Do one thing about one recipient; 409 where that makes no sense for its kind, or as it is now."""
        caller = self._context.caller(request)
        caller.check_admin("recipients")
        only(request)
        asked = decoded(request.body, ActRequest)
        kind = self._kind(asked.kind)
        view = await self._find(kind, asked.name)
        _check(kind, view, asked.action)
        async with self._actions.noted(request, caller, asked.action, kind=view.kind, recipient=view.name) as id:
            await kind.act(view, asked.action)
        return Response(200, _encode({"action": id, "recipient": await kind.find(view.name)}))

    def _kind(self, name: str) -> RecipientKind:
        for kind in self._kinds():
            if kind.kind == name:
                return kind
        raise NotFound("kind of recipient", name, remedy=f"Known are {', '.join(KINDS)}, where their doors are open.")

    async def _find(self, kind: RecipientKind, name: str) -> RecipientView:
        view = await kind.find(name)
        if view is None:
            raise NotFound(kind.kind, name[:RECIPIENT_BYTES], remedy="GET /v1/recipients lists them.")
        return view


def _check(kind: RecipientKind, view: RecipientView, action: Action) -> None:
    """Refuse what makes no sense."""
    if action not in kind.actions:
        known = ", ".join(one for one in ACTIONS if one in kind.actions) or "none"
        raise ActionImpossible(f"a {view.kind} cannot be told to {action}", f"What can be done about it: {known}.")
    if action not in view.actions:
        known = ", ".join(view.actions) or "nothing, from this node"
        where = f" on node {view.node}" if view.node else ""
        raise ActionImpossible(
            f"{view.kind} {view.name} is {view.state}{where}: {action} does nothing", f"What can be done now: {known}."
        )


def _has(view: RecipientView, words: str) -> bool:
    return any(words in text.casefold() for text in (view.name, view.error, *view.streams))


def _by_lag(view: RecipientView) -> tuple[int, str, str]:
    return -(view.lag if view.lag is not None else -1), view.kind, view.name


def _by_name(view: RecipientView) -> tuple[str, str]:
    return view.kind, view.name


def _by_time(view: RecipientView) -> tuple[int, str]:
    return -(view.since_ms or 0), view.name


_ORDERS: Final[dict[str, Callable[[RecipientView], Any]]] = {"name": _by_name, "lag": _by_lag, "since": _by_time}


def _chosen(request: Request, name: str, known: Sequence[str]) -> str:
    found = request.params.get(name)
    if found is not None and found not in known:
        raise InputInvalid(f"parameter {name}", f"{found[:40]!r} is none of {', '.join(known)}")
    return found or ""
