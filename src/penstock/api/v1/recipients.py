"""`/v1/recipients`: everybody who receives, in one list; what waits for one of them; and what can be done about it.

    GET   /v1/recipients            by kind, state and a part of the name; sorted by name, lag or time
    GET   /v1/recipients/waiting    what waits for one of them
    POST  /v1/recipients/act        pause, resume, retry, disconnect

Whichever worker or node is asked speaks of all (`all_recipients.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
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
from penstock.api.v1.all_recipients import ORDERS, AllRecipients, Kinds, RecipientQuery
from penstock.api.v1.operator_actions import ActionLog
from penstock.api.v1.why_recipients import checked
from penstock.core.node_calls import NodeSilent
from penstock.errors import InputInvalid, NotFound
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import CALL_BYTES, MAILBOX_PAGE, RECIPIENT_BYTES, RECIPIENTS_SEEN, WAY_PAGE

KINDS: Final = ("wire", "tail", "session", "agent", "pusher", "binding", "channel", "consumer")
SORTS: Final = tuple(ORDERS)

_COUNTS: Final = {"type": "object", "additionalProperties": INTEGER}
_LIST: Final = an_object(
    recipients=a_list(RecipientView), kinds=_COUNTS, states=_COUNTS, total=INTEGER, found=INTEGER, complete=BOOLEAN,
    silent=INTEGER, upto=INTEGER, ms=INTEGER,
)  # fmt: skip
_ACTED: Final = an_object(action=INTEGER, recipient={"anyOf": [RecipientView, {"type": "null"}]}, silent=INTEGER)
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
        self._all = AllRecipients(context, kinds)

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
        query = RecipientQuery(_chosen(request, "kind", KINDS), state, words, sort, begin + limit)
        found = await self._all.look(query)
        shown: dict[str, Any] = {
            "recipients": [await self._complete(view) for view in found.rows[begin:]],
            "kinds": found.kinds,
            "states": found.states,
            "total": found.total,
            "found": found.found,
            "complete": found.complete,
            "silent": found.silent,
            "upto": self._context.hub.position,
            "ms": self._context.clock.now_ms(),
        }
        return Response(200, _encode(shown))

    async def _complete(self, view: RecipientView) -> RecipientView:
        """A view of another node may be of a kind whose door is not open here."""
        kind = next((one for one in self._kinds() if one.kind == view.kind), None)
        return await kind.complete(view) if kind is not None else view

    @operation(
        "What waits for one recipient, the oldest first.",
        query=(
            Parameter("kind", "Its kind.", _KIND, required=True),
            text("name", "Its name.", least=1, most=RECIPIENT_BYTES, required=True),
            limit_parameter("Items at most.", MAILBOX_PAGE),
        ),
        answers={200: an_object(recipient=RecipientView, waiting=WaitingPage)},
        errors=(404,),
    )
    async def waiting(self, request: Request) -> Response:
        """All that waits for one recipient, up to a limit."""
        self._context.caller(request).check_admin("recipients")
        only(request, "kind", "name", "limit")
        kind = self._kind(_chosen(request, "kind", KINDS))
        name = checked(request, "name", RECIPIENT_BYTES)
        view = _found(kind, name, *await self._all.find(kind, name))
        page = await kind.waiting(view, integer(request, "limit", 100, least=1, most=MAILBOX_PAGE))
        return Response(200, _encode({"recipient": view, "waiting": page}))

    @operation(
        "Pause, resume, retry or disconnect one recipient. What was done is an entry of /_actions.",
        body=ActRequest,
        answers={
            200: an_object(action=INTEGER, recipient={"anyOf": [RecipientView, {"type": "null"}]}, silent=INTEGER)
        },
        errors=(404, 409, 507),
    )
    async def act(self, request: Request) -> Response:
        """Do one thing about one recipient; 409 where that makes no sense for its kind, or as it is now.

        *silent* workers or nodes did not answer: a tail may have connections there that still are as they were.
        """
        caller = self._context.caller(request)
        caller.check_admin("recipients")
        only(request)
        asked = decoded(request.body, ActRequest)
        kind = self._kind(asked.kind)
        view, silent = await self._all.find(kind, asked.name)
        view = _found(kind, asked.name, view, silent)
        if silent and asked.action in kind.actions and asked.action not in view.actions:
            raise NodeSilent(silent)  # which may be able to do it
        _check(kind, view, asked.action)
        async with self._actions.noted(request, caller, asked.action, kind=view.kind, recipient=view.name) as id:
            silent = await self._all.act(kind, asked.name, asked.action)
        view_now, still_silent = await self._all.find(kind, asked.name)
        return Response(200, _encode({"action": id, "recipient": view_now, "silent": max(silent, still_silent)}))

    def _kind(self, name: str) -> RecipientKind:
        for kind in self._kinds():
            if kind.kind == name:
                return kind
        raise NotFound("kind of recipient", name, remedy=f"Known are {', '.join(KINDS)}, where their doors are open.")


def _found(kind: RecipientKind, name: str, view: RecipientView | None, silent: int) -> RecipientView:
    """It, or why there is none."""
    if view is None and silent:
        raise NodeSilent(silent)
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


def _chosen(request: Request, name: str, known: Sequence[str]) -> str:
    found = request.params.get(name)
    if found is not None and found not in known:
        raise InputInvalid(f"parameter {name}", f"{found[:40]!r} is none of {', '.join(known)}")
    return found or ""
