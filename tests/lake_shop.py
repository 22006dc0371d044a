"""A small shop's lake, about which the questions of docs/lake.md are asked. The pipeline's own jobs make it.

The log is written with a clock that is set by hand, so the answers are always the same: events, and what the doors
record of them in the ledger, by the calls that the doors make. Then a server runs on it, and archive, ledger and rollup
make the tables, in Arrow, without Spark.
"""

from __future__ import annotations

import asyncio
import io
import re
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from penstock.cli.lake import print_table
from penstock.core.clock import ManualClock
from penstock.core.ledger import Ledger, Recipient, Recipients
from penstock.engines.sqlite.engine import SqliteEngine, open_sqlite
from penstock.iceberg.sql import SqlAnswer
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import archive, ledger, rollup
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.testing import RunningServer
from penstock.values import Batch, Draft
from penstock.wire.lake_files import RECORDS
from tests.pipeline.by_hand import make_here

PAGE = Path(__file__).parents[1] / "docs/lake.md"
QUESTIONS = re.findall(
    r"### ([^\n]+)\n(?:(?!###).)*?```sql\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL
)
"""The questions of the page: title, SQL, and the answer that it shows."""

ORDERS = 6
ACCEPTED = "accepted by the push service"

ALICE, BOB, ERIN = (Recipient("sps", name) for name in ("alice", "bob", "erin"))
TILLS = Recipients(Recipient("sps", f"till-{number:02}") for number in range(1, 21))
BOOKS = Recipient("v1", "bookkeeping")
CRM, OLD_CRM = Recipient("eventhorizon", "crm"), Recipient("eventhorizon", "old-crm")
CAROL, FRANK, GRACE, HEIDI, PEGGY = (
    Recipient("webpush", f"{name}-phone") for name in ("carol", "frank", "grace", "heidi", "peggy")
)
IVAN, JUDY, KARL = (Recipient("msgstream", name) for name in ("ivan", "judy", "karl"))


class Shop:
    """The shop at work."""

    def __init__(self, engine: SqliteEngine, clock: ManualClock) -> None:
        self.log, self.clock, self.ledger = engine.log, clock, Ledger(engine.log, clock, node="shop")
        self._registry = engine.registry

    async def at(self, month: int, day: int, hour: int, second: int = 0) -> None:
        """Write down what was recorded, and let it be this time of 2026."""
        await self.ledger.flush()
        moment = datetime(2026, month, day, hour, second // 60, second % 60, tzinfo=UTC)
        self.clock.advance((int(moment.timestamp() * 1000) - self.clock.now_ms()) / 1000)

    async def publish(self, stream: str, type: str) -> int:
        """One event; its id."""
        return (await self.log.append(Batch((Draft(stream, b"{}", type),)))).last.id

    async def run(self) -> None:
        """All that the shop has ever done."""
        await self.at(10, 16, 12)
        await self.ledger.open(self._registry)
        await self._long_ago()
        await self.at(11, 15, 12, 1)
        await self._invoice()
        await self.at(11, 15, 12, 20)
        last = await self._orders()
        await self.at(11, 15, 12, 40)
        campaign = await self._campaign()
        await self.at(11, 15, 12, 50)
        await self._messages()
        await self.at(11, 15, 13)
        await self._next_hour(last, campaign)
        await self.ledger.close()
        await self.log.append(Batch((Draft("/_ledger", b"\xff\xfenonsense"),)))  # a damaged page of the disk

    async def _long_ago(self) -> None:
        news = await self.publish("/news", "news")
        self.clock.advance(0.1)
        self._settle(OLD_CRM, "/news", news, ("sent", ""), ("acked", ""))
        await self.at(11, 7, 12)
        news = await self.publish("/news", "news")
        self.clock.advance(0.2)
        self._settle(PEGGY, "/news", news, ("sent", ACCEPTED))

    async def _invoice(self) -> None:
        """Two devices confirm it by a position, one does not; a phone is gone, and an app refuses it."""
        id = await self.publish("/invoices", "invoice")
        self.clock.advance(0.012)
        self.ledger.sent_to_all(Recipients((ALICE, BOB, ERIN)), "/invoices", id, id)
        self.ledger.sent(BOOKS, "/invoices", id, id)
        self.clock.advance(0.1)
        self._settle(CAROL, "/invoices", id, ("dead", "410 Gone"))
        for _ in range(3):
            self._settle(CRM, "/invoices", id, ("sent", ""), ("retried", "apprefused"))
            self.clock.advance(1)
        self.ledger.confirm(ALICE, id)
        self.ledger.confirm(BOOKS, id, "/invoices")

    async def _orders(self) -> int:
        """To all tills, one of which is slow; they come back, and say what they had."""
        for number in range(ORDERS):
            id = await self.publish("/orders", ("order.placed", "order.paid")[number % 2])
            self.clock.advance(0.003)
            fast = TILLS if number else Recipients(TILLS[1:])
            self.ledger.sent_to_all(fast, "/orders", id, id)
            if not number:
                self.clock.advance(0.4)
                self.ledger.sent(TILLS[0], "/orders", id, id)
            self.clock.advance(1)
        for till in TILLS:
            if till is not TILLS[6]:
                self.ledger.confirm(till, id)
        return id

    async def _campaign(self) -> int:
        """To phones by Web Push, and to devices."""
        id = await self.publish("/campaigns/winter", "news")
        self.clock.advance(0.06)
        for phone in (FRANK, HEIDI):
            self._settle(phone, "/campaigns/winter", id, ("sent", ACCEPTED))
        self._settle(GRACE, "/campaigns/winter", id, ("dropped", "413 too large"))
        for device in (BOB, ERIN):
            self.ledger.sent(device, "/campaigns/winter", id, id)
        self.clock.advance(0.18)
        self._settle(HEIDI, "/campaigns/winter", id, ("acked", "by the user agent"))
        return id

    async def _messages(self) -> None:
        """Items of mailboxes: one is confirmed, one runs out, one is left by a session that another replaces."""
        for number, (who, state, reason) in enumerate(
            ((IVAN, "acked", ""), (JUDY, "expired", ""), (KARL, "dropped", "replaced")), 1
        ):
            self.ledger.record_item(who, "accepted", f"m{number}", "2026_11", number)
            if state == "acked":
                self.ledger.record_item(who, "sent", f"m{number}", "2026_11", number)
            self.clock.advance(0.5)
            self.ledger.record_item(who, state, f"m{number}", "2026_11", number, reason=reason)

    async def _next_hour(self, last: int, campaign: int) -> None:
        """Who confirms late; and an order more."""
        self.ledger.confirm(BOB, campaign)
        self.ledger.confirm(TILLS[6], last)
        self._settle(FRANK, "/campaigns/winter", campaign, ("acked", "by the user agent"))
        await self.ledger.flush()
        order = await self.publish("/returns", "order.returned")
        self.clock.advance(0.007)
        self.ledger.sent_to_all(TILLS, "/returns", order, order)

    def _settle(self, who: Recipient, stream: str, id: int, *states: tuple[str, str]) -> None:
        for state, reason in states:
            self.ledger.record(who, state, stream, id, id, reason=reason)


def write_log(data: Path) -> None:
    """Make the data directory of a server, with the shop's log."""

    async def write() -> None:
        clock = ManualClock(int(datetime(2026, 10, 16, tzinfo=UTC).timestamp() * 1000))
        async with open_sqlite(data, node="shop", clock=clock) as engine:
            await Shop(engine, clock).run()

    data.mkdir(mode=0o700, parents=True)
    asyncio.run(write())


def make_lake(server: RunningServer, place: str) -> dict[str, str]:
    """Let the jobs make the lake of a server that has the shop's log; where its tables are."""
    client, lake = PipelineClient(server.url, server.admin_token), open_lake(place)
    bind(client, lake)
    for job in (archive, ledger, rollup):
        job.run(make_here(client, lake), {})
    return {name: at for job in RECORDS for name, at in client.get(f"lake/{job}").value["tables"].items()}


def shown(table: pa.Table) -> str:
    """An answer as `lake sql` prints it."""
    with redirect_stdout(io.StringIO()) as out:
        print_table(SqlAnswer(table, cut=False))
    return out.getvalue()
