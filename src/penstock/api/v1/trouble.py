"""`/v1/trouble`: what is not delivered, grouped by reason; and trying it again.

    GET   /v1/trouble            groups, and a page of deliveries
    POST  /v1/trouble/redrive    try again what a query finds: one delivery, one reason, or all

Pushers and bindings can try again. Whoever reads by itself (a wire, a tail) comes back by itself, and what was taken
from a mailbox on purpose or ran out of time is over: the answer says so, and counts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from penstock.api.context import Context, decoded, integer, only
from penstock.api.describing import LARGEST, number, operation, shown_as, text
from penstock.api.describing import limit as limit_parameter
from penstock.api.recipients import Redriven
from penstock.api.v1.all_recipients import Kinds
from penstock.api.v1.operator_actions import ActionLog
from penstock.api.v1.why_recipients import checked
from penstock.core.trouble import Trouble, TroubleFilter, TroubleIndex, by_recipient
from penstock.errors import InputInvalid
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import CALL_BYTES, LEDGER_REASON_CHARACTERS, RECIPIENT_BYTES, REDRIVES, TROUBLES, WAY_PAGE
from penstock.wire.ledger import FAILED

GROUPS: Final = 200
"""Groups that one answer names. Over it: the largest."""
EXAMPLES: Final = 3

OVER: Final = {
    "expired": "its time has run out",
    "lost": "it was never stored: publish it again",
}
"""States after which there is nothing to try again, and why."""
NOBODY: Final = "nobody can be told to: whoever reads comes back by itself, and what was given up stays so"

_encode = msgspec.json.Encoder().encode


class TroubleGroup(msgspec.Struct):
    """Deliveries that failed alike."""

    state: str
    reason: str
    door: str
    count: int
    recipients: int
    since_ms: int
    ms: int
    examples: list[Trouble]


class TroubleAnswer(msgspec.Struct):
    """What is in trouble now."""

    groups: list[TroubleGroup]
    troubles: list[Trouble]
    found: int
    since_ms: int | None  # everything that was recorded from then on was looked at
    forgotten: int
    ms: int


class RedriveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/trouble/redrive`: what is not given leaves all."""

    state: Annotated[str, shown_as(enum=["", *FAILED])] = ""
    reason: str | None = None
    door: str = ""
    recipient: str = ""
    search: str = ""  # a part of a recipient, a stream or a reason
    entry: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)] = 0
    all: bool = False  # must be true where nothing else is given


class RedriveAnswer(msgspec.Struct):
    """What was begun."""

    action: int  # the id of its entry of /_actions
    redriven: int
    impossible: dict[str, int]  # how many, by why
    left: int  # over the limit of one call


class TroubleApi:
    """Answers operators."""

    def __init__(self, context: Context, kinds: Kinds, actions: ActionLog) -> None:
        self._context, self._kinds, self._actions = context, kinds, actions
        self._index = TroubleIndex(context.log, context.ledger, context.clock)

    def routes(self) -> list[Route]:
        """Its part of the table."""
        admit = self._context.admitting(lambda caller: caller.check_admin("trouble"))
        return [
            Route("GET", "/v1/trouble", self.show, door="v1"),
            Route("POST", "/v1/trouble/redrive", self.redrive, body=WHOLE(CALL_BYTES), admit=admit, door="v1"),
        ]

    @operation(
        "What is not delivered, retried, dead or expired: grouped by reason, and one by one.",
        query=(
            text("state", "Only this state.", most=20),
            text("reason", "Only this reason.", most=LEDGER_REASON_CHARACTERS),
            text("door", "Only this door.", most=20),
            text("search", "Part of a recipient, a stream or a reason.", most=RECIPIENT_BYTES),
            number("from", "Skip so many of those that are found.", most=TROUBLES),
            limit_parameter("Deliveries at most.", WAY_PAGE),
        ),
        answers={200: TroubleAnswer},
    )
    async def show(self, request: Request) -> Response:
        """Groups of all that is found, the largest first, and a page of deliveries, the newest first."""
        self._context.caller(request).check_admin("trouble")
        only(request, "state", "reason", "door", "search", "from", "limit")
        reason = checked(request, "reason", LEDGER_REASON_CHARACTERS) if "reason" in request.params else None
        wanted = TroubleFilter(
            checked(request, "state", 20), reason, checked(request, "door", 20),
            search=checked(request, "search", RECIPIENT_BYTES),
        )  # fmt: skip
        begin = integer(request, "from", 0, most=TROUBLES)
        limit = integer(request, "limit", 100, least=1, most=WAY_PAGE)
        found = await self._index.find(wanted)
        index, now_ms = self._index, self._context.clock.now_ms()
        page = found[begin : begin + limit]
        answer = TroubleAnswer(_grouped(found), page, len(found), index.since_ms, index.forgotten, now_ms)
        return Response(200, _encode(answer))

    @operation(
        "Try again what is in trouble: by state, reason, door, recipient, entry, or all. An entry of /_actions.",
        body=RedriveRequest,
        answers={200: RedriveAnswer},
        errors=(507,),
    )
    async def redrive(self, request: Request) -> Response:
        """Begin to try again; the ledger says what comes of it."""
        caller = self._context.caller(request)
        caller.check_admin("trouble")
        only(request)
        asked = decoded(request.body, RedriveRequest)
        if asked.state not in ("", *FAILED):
            raise InputInvalid("state", f"{asked.state[:20]!r} is none of {', '.join(FAILED)}")
        wanted = TroubleFilter(asked.state, asked.reason, asked.door, asked.recipient, asked.search, asked.entry)
        if wanted == TroubleFilter() and not asked.all:
            raise InputInvalid("body", "names nothing", remedy='Give a state, a reason, …, or {"all": true}.')
        found = await self._index.find(wanted)
        some, left = found[:REDRIVES], max(0, len(found) - REDRIVES)
        what = {name: value for name, value in msgspec.to_builtins(asked).items() if value not in ("", None, 0, False)}
        async with self._actions.noted(request, caller, "redrive", query=what, found=len(found)) as id:
            redriven, impossible = await self._try_again(some)
        return Response(200, _encode(RedriveAnswer(id, redriven, dict(impossible), left)))

    async def _try_again(self, troubles: Sequence[Trouble]) -> tuple[int, Counter[str]]:
        impossible = Counter(OVER[one.state] for one in troubles if one.state in OVER)
        redriven = 0
        for some in by_recipient(one for one in troubles if one.state not in OVER).values():
            count, why = await self._redrive_one(some)
            redriven += count
            if count < len(some):
                impossible[why] += len(some) - count
        return redriven, impossible

    async def _redrive_one(self, troubles: Sequence[Trouble]) -> Redriven:
        for kind in self._kinds():
            redriven = await kind.redrive(troubles)
            if redriven is not None:
                return redriven
        return Redriven(0, NOBODY)


def _grouped(found: Sequence[Trouble]) -> list[TroubleGroup]:
    groups: dict[tuple[str, str, str], list[Trouble]] = {}
    for one in found:
        groups.setdefault((one.state, one.reason, one.door), []).append(one)
    largest = sorted(groups.items(), key=lambda group: -len(group[1]))[:GROUPS]
    return [
        TroubleGroup(
            *key, len(some), len({one.recipient for one in some}), min(one.since_ms for one in some),
            max(one.ms for one in some), some[:EXAMPLES],
        )
        for key, some in largest
    ]  # fmt: skip
