"""What audit and retention ask of the server: a cut through everything it holds, and the trim. docs/pipeline.md.

    POST /v1/audit/cut          flush the ledger; the id up to which the log is complete now
    GET  /v1/audit/heads        where every stream goes on, those of the system too
    POST /v1/audit/heads        … and those of the streams in the body
    GET  /v1/audit/mailboxes    what each recipient of a month still has to confirm
    GET  /v1/audit/pushers      which pushers there are, in which state
    GET  /v1/retention/plan     what `log.keep` wants to go, what may go, and what holds it back
    GET  /v1/retention/months   the months of the mailboxes, and what is in them
    POST /v1/log/trim           drop the oldest entries; says only what it would do unless told to `apply`

All of it is for the admin. An audit asks for mailboxes first, for the cut then, and for heads last: what happens
meanwhile can only make the lake hold more than is demanded of it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from penstock.api.context import Context, decoded, integer, only
from penstock.api.describing import (
    INTEGER,
    NAME_FIELD,
    STRING,
    STRING_OR_NULL,
    a_list,
    an_object,
    operation,
    shown_as,
    text,
)
from penstock.api.describing import limit as limit_parameter
from penstock.core.aging import aged_upto
from penstock.core.log import Log
from penstock.core.names import SYSTEM_STREAMS, check_name
from penstock.core.registry import each
from penstock.core.trim_limit import TrimLimit
from penstock.errors import Conflict, InputInvalid, NotFound, TooLarge
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import MAILBOX_PAGE, PAGE_ENTRIES
from penstock.units import measure
from penstock.values import Head, MailboxHead

EVERYTHING: Final = (">", *SYSTEM_STREAMS)
"""Patterns that together cover what there is by itself. A level that begins with `_` must be spelt, so streams that
somebody has named like that are missing here; the lake knows them, and they are asked for by name."""

_CUT = an_object(upto=INTEGER, trimmed=INTEGER, ms=INTEGER, ledger={"type": "object"})
_PLAN = an_object(
    keep=STRING, newest=INTEGER, trimmed=INTEGER, allowed=INTEGER, reason=STRING, bytes=INTEGER, months=a_list(STRING),
    ms=INTEGER,
)  # fmt: skip
_encode = msgspec.json.Encoder().encode


class TrimRefused(Conflict):
    """The entries are not all in the lake, or not in one that this server can read."""

    code = "trim_refused"

    def __init__(self, upto: int, allowed: int, reason: str) -> None:
        super().__init__(f"the log may be trimmed up to id {allowed}, not {upto}: {reason}")
        self.remedy = "Run the archive and ledger jobs, set lake.url, or trim less."


class StreamHeadsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/audit/heads`."""

    streams: Annotated[list[Annotated[str, NAME_FIELD]], shown_as(maxItems=PAGE_ENTRIES)]


class TrimRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/log/trim`."""

    upto: Annotated[int, shown_as(minimum=0)] | None = None  # an id
    keep: str = ""  # or an age: all that is older
    apply: bool = False


_RIGHT = "audit and retention"


class RetentionApi:
    """Answers the jobs audit and retention."""

    def __init__(self, context: Context, log: Log, trimming: TrimLimit, keep: str = "") -> None:
        self._context, self._log, self._trimming, self._keep = context, log, trimming, keep

    def routes(self) -> list[Route]:
        """Its part of the table."""
        small, admit = WHOLE(4096), self._context.admitting(lambda caller: caller.check_admin(_RIGHT))
        return [
            Route("POST", "/v1/audit/cut", self.cut, admit=admit, door="v1"),
            Route("GET", "/v1/audit/heads", self.heads, door="v1"),
            Route("POST", "/v1/audit/heads", self.heads_of, body=WHOLE(1024 * 1024), admit=admit, door="v1"),
            Route("GET", "/v1/audit/mailboxes", self.mailboxes, door="v1"),
            Route("GET", "/v1/audit/pushers", self.pushers, door="v1"),
            Route("GET", "/v1/retention/plan", self.plan, door="v1"),
            Route("GET", "/v1/retention/months", self.months, timeout=None, door="v1"),
            Route("POST", "/v1/log/trim", self.trim, body=small, timeout=None, admit=admit, door="v1"),
        ]

    # ── the cut ───────────────────────────────────────────────────────────────────────────────

    @operation("Flush the ledger and say up to which id the log is complete.", answers={200: _CUT})
    async def cut(self, request: Request) -> Response:
        """Make everything durable that was recorded so far, and say up to which id it lies in the log."""
        self._admin(request)
        only(request)
        ledger = self._context.ledger
        await ledger.flush()
        shown = {
            "upto": self._log.followed,
            "trimmed": self._log.trimmed_upto,
            "ms": self._context.clock.now_ms(),
            "ledger": {"enabled": ledger.enabled, "lost": ledger.lost},
        }
        return Response(200, _encode(shown))

    @operation(
        "Where every stream goes on, those of the system too.",
        query=(text("after", "Names after this one."), limit_parameter("Streams at most.")),
        answers={200: an_object(heads={"type": "array"}, after=STRING_OR_NULL)},
    )
    async def heads(self, request: Request) -> Response:
        """Heads in order of their streams' names, a page at a time."""
        self._admin(request)
        only(request, "after", "limit")
        limit = integer(request, "limit", PAGE_ENTRIES, least=1, most=PAGE_ENTRIES)
        after = request.params.get("after", "")
        found: dict[str, Head] = {}
        for pattern in EVERYTHING:
            found |= {head.stream: head for head in await self._log.heads(pattern, after=after, limit=limit)}
        heads = [found[name] for name in sorted(found, key=str.encode)][:limit]
        more = heads[-1].stream if len(heads) == limit else None
        return Response(200, _encode({"heads": [_shown(head) for head in heads], "after": more}))

    @operation(
        "Where the streams of the body go on.",
        body=StreamHeadsRequest,
        answers={200: an_object(heads={"type": "array"})},
    )
    async def heads_of(self, request: Request) -> Response:
        """Heads of the streams that are named; those that do not exist are left out."""
        self._admin(request)
        only(request)
        streams = decoded(request.body, StreamHeadsRequest).streams
        if len(streams) > PAGE_ENTRIES:
            raise TooLarge("streams", len(streams), PAGE_ENTRIES)
        heads = [head for name in streams if (head := await self._log.head(check_name(name)))]
        return Response(200, _encode({"heads": [_shown(head) for head in heads]}))

    @operation(
        "What each recipient of a month still has to confirm.",
        query=(
            text("month", "A month, like 2026_11.", pattern="^[0-9]{4}_[0-9]{2}$", required=True),
            text("after", "Recipients after this one."),
            limit_parameter("Recipients at most.", MAILBOX_PAGE),
        ),
        answers={200: an_object(mailboxes=a_list({"type": "object"}), after=STRING_OR_NULL)},
        errors=(404,),
    )
    async def mailboxes(self, request: Request) -> Response:
        """Recipients of a month with the numbers that they still have to confirm, a page at a time."""
        self._admin(request)
        only(request, "month", "after", "limit")
        month = request.params.get("month", "")
        if month not in await self._context.mailbox.months():
            raise NotFound("month", month[:20], remedy="GET /v1/retention/months lists them.")
        limit = integer(request, "limit", MAILBOX_PAGE, least=1, most=MAILBOX_PAGE)
        heads = await self._context.mailbox.recipients(month, after=request.params.get("after", ""), limit=limit)
        shown = [await self._pending(head) for head in heads]
        after = heads[-1].recipient if len(heads) == limit else None
        return Response(200, _encode({"mailboxes": shown, "after": after}))

    async def _pending(self, head: MailboxHead) -> dict[str, Any]:
        numbers: list[int] = []
        while head.pending:
            items = await self._context.mailbox.take(head.recipient, head.month, after=numbers[-1] if numbers else 0)
            numbers += [item.number for item in items]
            if len(items) < MAILBOX_PAGE:
                break
        # Items whose time has run out are not shown any more, and wait for the sweep that closes them.
        expired = max(0, head.pending - len(numbers))
        return {"recipient": head.recipient, "next": head.next_number, "pending": numbers, "expired": expired}

    @operation(
        "The pushers there are, and their states.",
        answers={200: an_object(pushers=a_list({"type": "object"}))},
    )
    async def pushers(self, request: Request) -> Response:
        """The pushers that the registry keeps."""
        self._admin(request)
        only(request)
        records = each(self._context.registry, "pushers/")
        kept = [(one.key.removeprefix("pushers/"), msgspec.json.decode(one.value)) async for one in records]
        shown = [
            {"id": id, "state": value.get("state", ""), "created_ms": value.get("created_ms")} for id, value in kept
        ]
        return Response(200, _encode({"pushers": shown}))

    # ── retention ─────────────────────────────────────────────────────────────────────────────

    @operation("What may go from the log, and what holds it back.", answers={200: _PLAN})
    async def plan(self, request: Request) -> Response:
        """How far the log may be trimmed now. Nothing is dropped."""
        self._admin(request)
        only(request)
        bound = await self._trimming.bound()
        shown = {
            "keep": self._keep,
            "newest": self._log.followed,
            "trimmed": self._log.trimmed_upto,
            "allowed": bound.upto,
            "reason": bound.reason,
            "bytes": await self._log.stored_bytes(),
            "months": await self._context.mailbox.months(),
            "ms": self._context.clock.now_ms(),
        }
        return Response(200, _encode(shown))

    @operation(
        "The months of the mailboxes, and what is in them.",
        answers={200: an_object(months=a_list({"type": "object"}))},
    )
    async def months(self, request: Request) -> Response:
        """The months of the mailboxes, oldest first, with what is in them."""
        self._admin(request)
        only(request)
        shown = [await self._month(month) for month in await self._context.mailbox.months()]
        return Response(200, _encode({"months": shown}))

    async def _month(self, month: str) -> dict[str, Any]:
        recipients = pending = size = 0
        after = ""
        while heads := await self._context.mailbox.recipients(month, after=after):
            after = heads[-1].recipient
            recipients += len(heads)
            pending += sum(head.pending for head in heads)
            size += sum(head.pending_bytes for head in heads)
        return {"month": month, "recipients": recipients, "pending": pending, "bytes": size}

    @operation(
        "Drop the oldest entries; a dry run unless the body says apply.",
        body=TrimRequest,
        answers={200: an_object(wanted=INTEGER, allowed=INTEGER, trimmed=INTEGER, entries=INTEGER)},
        errors=(409,),
    )
    async def trim(self, request: Request) -> Response:
        """Say what a trim would drop and what holds it back; with `apply`, drop it."""
        self._admin(request)
        only(request)
        wanted = decoded(request.body, TrimRequest)
        upto = min(await self._wanted_upto(wanted), self._log.followed)
        bound = await self._trimming.bound()
        if wanted.apply and upto > bound.upto:
            raise TrimRefused(upto, bound.upto, bound.reason)
        trimmed = self._log.trimmed_upto
        gone = await self._log.trim(upto) if wanted.apply and upto > trimmed else 0
        shown = {
            "wanted": upto,
            "allowed": bound.upto,
            "reason": bound.reason,
            "trimmed_before": trimmed,
            "trimmed": self._log.trimmed_upto,
            "entries": gone,
            "applied": wanted.apply,
            "watermarks": await self._trimming.watermarks(),
        }
        return Response(200, _encode(shown))

    async def _wanted_upto(self, wanted: TrimRequest) -> int:
        if (wanted.upto is None) == (not wanted.keep):
            raise InputInvalid("body", "must have exactly one of upto and keep")
        if wanted.upto is not None:
            if wanted.upto < 0:
                raise InputInvalid("upto", "is below 0")
            return wanted.upto
        try:
            seconds = measure(wanted.keep, "s")
        except ValueError as error:
            raise InputInvalid("keep", str(error)) from None
        if seconds < 0:
            raise InputInvalid("keep", f"{wanted.keep!r} is negative", remedy="Write 30d, or the id in upto.")
        return await aged_upto(self._log, seconds, self._context.clock.now_ms(), step=self._log.followed)

    def _admin(self, request: Request) -> None:
        self._context.caller(request).check_admin(_RIGHT)


def _shown(head: Head) -> tuple[str, int, int, int, int]:
    return head.stream, head.next_index, head.chunk, head.offset, head.last_id
