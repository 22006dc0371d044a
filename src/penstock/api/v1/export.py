"""`GET /v1/log/plan` and `GET /v1/log/arrow`: the log for programs that read much of it. docs/export.md."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Final

import msgspec

from penstock.api.auth import ADMIN, Caller
from penstock.api.context import Context, integer, only, readable
from penstock.api.context import flag as wants
from penstock.api.describing import flag, number, operation, patterns, text
from penstock.core.export import (
    PLAN_ROWS,
    BeyondLog,
    Export,
    ExportPlan,
    ExportRange,
    NotFollowed,
    PlanQuestion,
    Selection,
    check_not_trimmed,
    make_plan,
)
from penstock.core.names import ROOMS
from penstock.core.wanted_streams import WantedStreams
from penstock.errors import Busy, InputInvalid, NotFound
from penstock.http.requests import Request
from penstock.http.responses import Headers, Response
from penstock.limits import EXPORTS, EXPORTS_SHARE, PLAN_SLICES
from penstock.values import Entry
from penstock.wire.http_chunks import chunk
from penstock.wire.table_columns import NAMES

PATIENCE_SECONDS: Final = 5.0
"""How long a request waits for an id of the log that this node has not followed yet. After it: 503."""

_HEADERS: Final[Headers] = (("Content-Type", "application/vnd.apache.arrow.stream"), ("Cache-Control", "no-store"))
_HISTORY: Final = flag("history", "What was trimmed from the log, too, from the lake.")
_encode = msgspec.json.Encoder().encode


class ExportApi:
    """Answers plans and exports. Nothing of it is recorded in the ledger."""

    def __init__(
        self, context: Context, export: Export, history: Export | None = None, *,
        limit: int = EXPORTS, patience: float = PATIENCE_SECONDS,
    ) -> None:  # fmt: skip
        """*history* is the log together with the lake; without a lake there is none."""
        self._context, self._log, self._export, self._history = context, context.log, export, history
        self._limit, self._patience = limit, patience
        self._running: Counter[str] = Counter()  # by the subjects of their tokens
        self._waiting: dict[asyncio.Future[None], int] = {}
        context.log.follow(self._followed, WantedStreams(moved=self._moved))

    @operation(
        "Cut a range of the log into slices for a parallel export.",
        query=(
            number("after", "Ids greater than this.", required=True),
            number("upto", "Ids up to this; without it, to the end."),
            number("parts", "How many slices are wanted.", least=1, most=PLAN_SLICES),
            number("max_rows", "Rows in all at most.", least=1),
            number("max_bytes", "Bytes in all at most.", least=1),
            _HISTORY,
        ),
        answers={200: ExportPlan},
        errors=(404, 410),
    )
    async def plan(self, request: Request) -> Response:
        """Slices of the log, each of one day, about equal in rows."""
        caller = self._context.caller(request)
        caller.check_grant("export")
        only(request, "after", "upto", "parts", "max_rows", "max_bytes", "history")
        export = self._chosen(request)
        after = integer(request, "after", None)
        question = PlanQuestion(
            after,
            integer(request, "upto", max(after, self._log.followed), least=after),
            integer(request, "parts", 1, least=1, most=PLAN_SLICES),
            min(PLAN_ROWS, integer(request, "max_rows", PLAN_ROWS, least=1)),
            integer(request, "max_bytes", 2**63 - 1, least=1),
        )
        await self._check_range(export, question.after, question.upto)
        with self._turn(caller):
            plan = await make_plan(export, question)
        self._check_kept(export, after)
        return Response(200, _encode(plan))

    @operation(
        "Export a range of the log as an Arrow IPC stream that ends in a trailer.",
        query=(
            number("after", "Ids greater than this.", required=True),
            number("upto", "Ids up to this.", required=True),
            patterns(),
            text("columns", "Columns with commas; without it, all.",
                 pattern=rf"^(?:{'|'.join(NAMES)})(?:,(?:{'|'.join(NAMES)})){{0,{len(NAMES)}}}$"),
            _HISTORY,
        ),
        media="application/vnd.apache.arrow.stream",
        errors=(404, 410),
    )  # fmt: skip
    async def arrow(self, request: Request) -> None:
        """The rows of a range. What fails before the first byte is answered as such, later it cuts the connection."""
        caller = self._context.caller(request)
        caller.check_grant("export")
        only(request, "after", "upto", "columns", "streams", "history")
        export, selection, columns = self._chosen(request), _selection(request, caller), _columns(request)
        after = integer(request, "after", None)
        wanted = ExportRange(after, integer(request, "upto", None, least=after), columns, selection)
        await self._check_range(export, wanted.after, wanted.upto)
        with self._turn(caller):
            await self._send(request, export, wanted)

    async def _send(self, request: Request, export: Export, wanted: ExportRange) -> None:
        async with aclosing(export.stream(wanted)) as stream:
            piece = await anext(stream)
            wire = _ArrowAnswer(request)
            if request.method == "HEAD":
                return
            try:
                await wire.send(piece)
                async for piece in stream:
                    await wire.send(piece)
            except BaseException:
                wire.outlet.abort()  # without the last chunk: nobody can take it for the whole
                raise
            wire.outlet.close()

    # ── the range ─────────────────────────────────────────────────────────────────────────────

    def _chosen(self, request: Request) -> Export:
        """The log alone, or together with the lake."""
        if not wants(request, "history"):
            return self._export
        if self._history is None:
            remedy = "Set lake.url, or start it with up; without history=true the log alone is read."
            raise NotFound("lake", "of this server", code="lake_missing", remedy=remedy)
        return self._history

    async def _check_range(self, export: Export, after: int, upto: int) -> None:
        await self._wait_for(upto)
        self._check_kept(export, after)

    def _check_kept(self, export: Export, after: int) -> None:
        if export is self._export:
            check_not_trimmed(self._log, after)

    async def _wait_for(self, upto: int) -> None:
        """Return when this node has followed the log up to *upto*, if that is in the log; give up after a while."""
        if upto <= self._log.followed:
            return
        newest = await self._log.newest()
        if upto > newest:
            raise BeyondLog(upto, newest)
        if upto <= self._log.followed:  # it came meanwhile, and nobody would tell
            return
        followed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[followed] = upto
        try:
            async with asyncio.timeout(self._patience):
                await followed
        except TimeoutError:
            raise NotFollowed(upto, self._log.followed) from None
        finally:
            del self._waiting[followed]

    def _followed(self, entries: Sequence[Entry]) -> None:
        self._moved(entries[-1].id)

    def _moved(self, newest: int) -> None:
        for future, upto in self._waiting.items():
            if upto <= newest and not future.done():
                future.set_result(None)

    @contextmanager
    def _turn(self, caller: Caller) -> Iterator[None]:
        """A place among those that may run at once."""
        own, most = self._running[caller.subject], self._limit
        share = most if caller.admin else max(1, most // EXPORTS_SHARE)
        if own >= share:
            raise Busy(f"exports of {caller.subject} at once", share)
        if not caller.admin and self._running.total() - self._running[ADMIN] >= most:
            raise Busy("exports at once", most)
        self._running[caller.subject] += 1
        try:
            yield
        finally:
            self._running[caller.subject] -= 1
            if not self._running[caller.subject]:
                del self._running[caller.subject]


class _ArrowAnswer:
    """The open answer of one export."""

    def __init__(self, request: Request) -> None:
        self._room = asyncio.Event()
        self.outlet = request.open(200, _HEADERS, owner=self)

    async def send(self, piece: bytes) -> None:
        """Send *piece*, then wait until the peer has taken enough."""
        self.outlet.send(chunk(piece) if self.outlet.chunked else piece)
        while self.outlet.full:
            self._room.clear()
            await self._room.wait()

    def drained(self) -> None:
        self._room.set()

    def lost(self) -> None:
        """The connection cancels the request's task as well: nothing is left to do."""

    def token_ended(self) -> None:
        """Go on: what is sent was fixed by a request that was allowed, and has an end."""

    def draining(self) -> None:
        """The server stops: go on. What does not come to its end in time is cut, never ended early."""


def _selection(request: Request, caller: Caller) -> Selection:
    """Which streams: those of `streams=`, as far as the caller may read them."""
    if "streams" not in request.params:
        caller.check_admin("export without streams=")
        return Selection()
    patterns, narrowed = readable(request, caller)
    if narrowed is None:
        return Selection(patterns)
    own = f"/users/{caller.subject}"
    spelt = [grant for grant in caller.subscribe if grant.startswith("/users/")]
    return Selection(patterns, (*spelt, *([own] if narrowed(own) else [])), narrowed(ROOMS))


def _columns(request: Request) -> tuple[str, ...]:
    """The wanted columns, in their only order."""
    if "columns" not in request.params:
        return NAMES
    wanted = request.params["columns"].split(",")
    for name in wanted:
        if name not in NAMES:
            raise InputInvalid("parameter columns", f"{name[:40]!r} is not one of {', '.join(NAMES)}")
    return tuple(name for name in NAMES if name in wanted)
