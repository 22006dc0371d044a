"""The months of the mailboxes: made in advance, dropped whole when nobody is on them any more.

This month and the one before are kept, so the mailbox of a recipient that was not seen for 30 to 60 days is in a month
that is due to be dropped. First its door drops that recipient (`MonthlyDoor.leave_month`); then the month is dropped,
unless a recipient still uses it. The server does this once a day, `./penstock tables --apply` at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from penstock.api.context import Context, only
from penstock.api.describing import operation
from penstock.api.door import MonthlyDoor
from penstock.core.months import DAY_MS, month_of, months_in_use, oldest_kept
from penstock.core.registry import Registry, change
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import Route
from penstock.values import MailboxHead, Record

log = logging.getLogger("penstock.tables")

_DAILY = "tables/daily"


class MonthsPlan(msgspec.Struct, frozen=True):
    """What is to be done; or, after it was done, what was."""

    month: str
    make: list[str]
    drop: list[str]
    kept: list[str] = []  # due to go, but somebody is still on them


class _RecordMonths(msgspec.Struct):
    """What of a recipient's own registry record matters here."""

    month: str = ""
    former: str = ""


class MailboxMonths:
    """Makes the months that are missing, and drops those that nobody is on."""

    def __init__(self, context: Context, monthly_doors: Iterable[MonthlyDoor]) -> None:
        self._context, self._lodgings = context, list(monthly_doors)

    async def plan(self) -> MonthsPlan:
        """What is missing, and what is due to go."""
        now_ms = self._context.clock.now_ms()
        there = await self._context.mailbox.months()
        make = [name for name in months_in_use(now_ms) if name not in there]
        return MonthsPlan(month_of(now_ms), make, [name for name in there if name < oldest_kept(now_ms)])

    async def apply(self) -> MonthsPlan:
        """Make what is missing, and drop what nobody is on."""
        plan, mailbox = await self.plan(), self._context.mailbox
        for month in plan.make:
            await mailbox.make_month(month)
        dropped = [month for month in plan.drop if await self._leave(month)]
        if plan.make or plan.drop:
            log.info("tables.applied", extra={"made": ",".join(plan.make), "dropped": ",".join(dropped)})
        return MonthsPlan(plan.month, plan.make, dropped, [month for month in plan.drop if month not in dropped])

    async def daily(self) -> MonthsPlan | None:
        """`apply`, if no node has done so for a day."""
        now_ms = self._context.clock.now_ms()

        def note_if_due(record: Record | None) -> bytes | None:
            return b"%d" % now_ms if record is None or now_ms - int(record.value) >= DAY_MS else None

        noted = await change(self._context.registry, _DAILY, note_if_due)
        return await self.apply() if noted.written else None

    async def _leave(self, month: str) -> bool:
        for door in self._lodgings:
            await door.leave_month(month)
        if await self._somebody_is_on(month):
            return False
        return await self._context.mailbox.drop_month(month)

    async def _somebody_is_on(self, month: str) -> bool:
        after = ""
        while heads := await self._context.mailbox.recipients(month, after=after):
            after = heads[-1].recipient
            for head in heads:
                if await is_on(self._context.registry, head):
                    return True
        return False

    # ── over HTTP ─────────────────────────────────────────────────────────────────────────────

    def routes(self) -> list[Route]:
        """For `./penstock tables`."""
        return [
            Route("GET", "/v1/tables", self._show, timeout=None, door="v1"),
            Route("POST", "/v1/tables", self._apply, timeout=None, door="v1"),
        ]

    @operation("The months of mailboxes that are missing or due to go.", answers={200: MonthsPlan})
    async def _show(self, request: Request) -> Response:
        self._check(request)
        return Response(200, msgspec.json.encode(await self.plan()))

    @operation("Make the missing months, and drop those that nobody is on.", answers={200: MonthsPlan}, errors=(507,))
    async def _apply(self, request: Request) -> Response:
        self._check(request)
        return Response(200, msgspec.json.encode(await self.apply()))

    def _check(self, request: Request) -> None:
        self._context.caller(request).check_admin("tables")
        only(request)


async def is_on(registry: Registry, head: MailboxHead) -> bool:
    """Whether the recipient's own record, which has its name, says that it is on that month.

    A name without a slash is no key of a record. Its door has dropped those of its recipients that it could, so
    whoever is left is on that month.
    """
    if "/" not in head.recipient:
        return True
    record = await registry.get(head.recipient)
    if record is None:
        return False
    lives = msgspec.json.decode(record.value, type=_RecordMonths)
    return head.month in (lives.month, lives.former)
