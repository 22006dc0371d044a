"""`why` from the lake: what was folded, what is not folded yet, and nothing forgotten or told twice in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from penstock.core.clock import ManualClock
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger, LedgerEvent, Recipient
from penstock.core.why import Why
from penstock.core.why_recipients import Way, WayFilter
from penstock.engines.lake import ColdLog, Deliveries, LakeUnreadable, open_lake
from penstock.engines.lake import reader as lakes
from penstock.engines.memory import MemoryEngine
from penstock.errors import NotFound
from penstock.iceberg.files import arrow_schema
from penstock.testing import S3Server, wait_until_async
from penstock.values import Batch, Draft
from penstock.wire.lake_files import LakeFile
from tests.engines.lake_files import WrittenLake, everything

ALICE, BOB = Recipient("sps", "alice"), Recipient("webpush", "bob")


def row(who: Recipient, first: int = 0, last: int = 0, **more: object) -> dict[str, object]:
    """One row of `deliveries`, as the fold makes it."""
    at = datetime(2026, 11, 15, 12, tzinfo=UTC)
    known = {"stream": "/a" if first else "", "key": "", "month": "", "number": 0, "state": "sent", "reason": ""}
    times = {"first_time": at, "last_time": at, "sent_time": at, "acked_time": None, "attempts": 1, "expires_at": None}
    who_of = {"door": who.door, "recipient": who.name, "first": first, "last": last, "upto": 0}
    return {**known, **times, **who_of, **more}


def hour_ms(hour: int) -> int:
    return int(datetime(2026, 11, 15, hour, tzinfo=UTC).timestamp() * 1000)


class World:
    """A log with an entry, a ledger, and a lake beside them."""

    def __init__(self, place: Path | str) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(clock=self.clock)
        self.written = WrittenLake(place)
        self.lake = open_lake(str(place), self.engine.registry)
        self.log = ColdLog(self.engine.log, self.lake, self.clock)
        self.ledger = Ledger(self.engine.log, self.clock, node="n1")
        self.deliveries = Deliveries(self.lake)
        self.why = Why(self.log, self.ledger, Hub(self.log), self.deliveries)

    async def open(self) -> int:
        """Begin, with one entry of `/a`; return its id."""
        await self.ledger.open(self.engine.registry)
        return (await self.log.append(Batch((Draft("/a", b"x"),)))).last.id

    async def fold(self, rows: list[dict[str, object]], lo: int = 0) -> int:
        """Let the pipeline have folded all that is in the log into these rows; a batch comes after what it tells of."""
        await self.log.append(Batch((Draft("/_ledger", b'{"node":"n2","epoch":1,"sequence":0}\n'),)))
        done = self.log.followed
        self.write("deliveries", lo, done, rows)
        await self.publish(done)
        return done

    def write(self, table: str, lo: int, hi: int, rows: list[dict[str, object]]) -> None:
        """Make a file of a table, which nobody sees before `publish`."""
        content = pa.Table.from_pylist(rows, arrow_schema(table))
        self.written.prepare(table, [self.written.write(LakeFile(lo, hi, "2026-11-15", table), content, 3)])

    def write_positions(self, lo: int, hi: int, said: list[tuple[Recipient, str, int, int]]) -> None:
        """Make a file of `positions`, of (recipient, stream, id, hour)."""
        rows = [
            {"door": who.door, "recipient": who.name, "stream": stream, "upto": upto, "time": hour_ms(hour) * 1000}
            for who, stream, upto, hour in said
        ]
        self.write("positions", lo, hi, rows)

    async def publish(self, done: int) -> None:
        """Point at what was made, and say how far the fold is: one change of one record."""
        await self.written.publish(self.engine.registry, "ledger", done)


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a lake, of both kinds."""
    if request.param == "folder":
        return str(tmp_path)
    request.getfixturevalue("s3")
    return f"s3://lake/{uuid4().hex}"


async def test_what_is_folded_and_what_is_not_yet_make_one_story(place: str) -> None:
    world = World(place)
    async with world.lake:
        entry = await world.open()
        await world.fold([row(ALICE, entry, entry), row(BOB, entry, entry), row(ALICE, entry + 5, entry + 9)])
        world.ledger.record(ALICE, "acked", "/a", entry, entry)

        answer = await world.why.entry(entry, "alice")

        assert answer.verdict == "acked"
        assert {event.state for event in answer.events} == {"sent", "acked"}
        assert "accepted and stored at" in answer.words
        assert "sent to alice over sps at 2026-11-15T12:00:00" in answer.words
        assert (await world.why.entry(entry, "bob")).verdict == "sent"
        assert (await world.why.entry(entry, "carol")).verdict == "no_record"


async def test_an_acknowledgement_that_came_long_after_counts(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.lake:
        entry = await world.open()
        done = await world.fold([row(ALICE, entry, entry)])
        await world.log.append(Batch((Draft("/b", b"later"),)))
        late = datetime(2027, 1, 10, tzinfo=UTC)
        await world.fold(
            [row(ALICE, entry, entry, state="acked", sent_time=None, acked_time=late, last_time=late)], done
        )

        answer = await world.why.entry(entry, "alice")

        assert (answer.verdict, [event.state for event in answer.events]) == ("acked", ["sent", "acked"])


async def test_a_position_confirms_what_was_sent_wherever_the_two_are(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.lake:
        entry = await world.open()
        later = (await world.log.append(Batch((Draft("/b", b"x"),)))).last.id
        world.write_positions(0, later + 1, [(ALICE, "/b", later, 11), (ALICE, "", later, 12), (ALICE, "", later, 13)])
        await world.fold([row(ALICE, entry, entry), row(BOB, entry, entry)])
        world.ledger.confirm(BOB, entry)

        answer = await world.why.entry(entry, "alice")  # both are in the lake
        assert answer.verdict == "acked"
        assert answer.words.endswith("acked to alice over sps at 2026-11-15T12:00:00Z.")
        assert (await world.why.entry(entry, "bob")).verdict == "acked"  # one is in the log
        answer = await world.why.entry(later, "alice")
        assert answer.verdict == "no_record"
        assert answer.words.endswith("alice confirmed it at 2026-11-15T11:00:00Z; no record of the sending.")


async def test_positions_are_looked_for_until_the_first_that_reaches_the_entry(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.lake:
        entry = await world.open()
        done = await world.fold([row(ALICE, entry, entry)])
        for number, upto in enumerate((entry - 1, entry, entry + 50)):
            world.write_positions(done + number, done + number + 1, [(ALICE, "", upto, 13 + number)])
        await world.publish(done + 3)

        events = (await world.why.entry(entry, "alice")).events

        assert [(event.state, event.ms) for event in events][1:] == [("acked", hour_ms(14))]
        assert len(await world.deliveries.of_entry("/a", entry, "alice")) == 2


async def test_entries_that_were_trimmed_are_explained_too(place: str) -> None:
    world = World(place)
    async with world.lake:
        entry = await world.open()
        done = await world.fold([row(ALICE, entry, entry, state="dropped", reason="overflow", sent_time=None)])
        world.written.prepare("events", world.written.write_events(await everything(world.engine.log), 0, done))
        await world.written.publish(world.engine.registry, "events", done)
        await world.engine.log.trim(done)

        answer = await world.why.entry(entry, "alice")

        assert answer.verdict == "dropped"
        assert "moved from the log to the lake" in answer.words
        assert "dropped (overflow) to alice" in answer.words


class FoldedMeanwhile(Deliveries):
    """Lets the pipeline commit between the question how far it is and the one for its rows."""

    meanwhile: Callable[[], Awaitable[None]]

    async def of_entry(self, stream: str, id: int, recipient: str) -> list[LedgerEvent]:
        await self.meanwhile()
        return await super().of_entry(stream, id, recipient)


async def test_a_record_that_is_folded_while_it_is_looked_for_is_told_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.lake:
        entry = await world.open()
        world.ledger.sent(ALICE, "/a", entry, entry)
        await world.ledger.flush()
        at = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC)
        done = world.log.followed
        world.write("deliveries", 0, done, [row(ALICE, entry, entry, sent_time=at, last_time=at)])
        folded = FoldedMeanwhile(world.lake)
        folded.meanwhile = lambda: world.publish(done)
        why = Why(world.log, world.ledger, Hub(world.log), folded)

        for asked in (await world.why.entry(entry, "alice"), await why.entry(entry, "alice")):
            assert [event.state for event in asked.events] == ["sent"]


async def test_messages_are_found_by_their_ids(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.lake:
        await world.open()
        folded = [row(BOB, key=f"m{number}", month="2026_11", number=number) for number in range(1, 9)]
        await world.fold(folded)
        world.ledger.record_item(BOB, "expired", "m7", "2026_11", 7)

        assert (await world.why.item("m3", "bob")).verdict == "sent"
        assert (await world.why.item("m7", "bob")).verdict == "expired"
        with pytest.raises(NotFound):
            await world.why.item("m3", "alice")


async def test_batches_that_cannot_be_read_hide_no_others(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.lake:
        entry = await world.open()
        span = f'{{"min":"1","max":"{2**40}","items":"1"}}'
        for attributes in (span, "nonsense", '{"min":"x"}', '{"min":[]}'):
            for body in (
                b"garbage",
                b'{"node":"n","epoch":1,"sequence":0,"rows":[[1,"sent","","/a",1,9,1]]}\n\x01\0\0\0',
            ):
                await world.log.append(Batch((Draft("/_ledger", body, attributes=attributes),)))
        world.ledger.record(ALICE, "acked", "/a", entry, entry)
        world.ledger.record_item(BOB, "expired", "m7", "2026_11", 7)

        assert (await world.why.entry(entry, "alice")).verdict == "acked"
        assert (await world.why.item("m7", "bob")).verdict == "expired"


async def test_what_no_record_points_at_is_not_told(tmp_path: Path) -> None:
    """A log that was restored from a backup has its records of then; what was folded since is of another history."""
    world = World(tmp_path)
    async with world.lake:
        entry = await world.open()
        done = await world.fold([row(ALICE, entry, entry)])
        world.write("deliveries", done, done + 50, [row(ALICE, entry, entry, state="acked")])

        assert (await world.why.entry(entry, "alice")).verdict == "sent"


async def test_the_way_to_everybody_is_told_from_lake_and_log_together(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.lake:
        entry = await world.open()
        done = await world.fold([row(ALICE, entry, entry), row(BOB, entry, entry)])
        await world.engine.log.append(Batch((Draft("/b", b"x"),)))
        world.write_positions(done, done + 1, [(ALICE, "", entry, 14)])
        await world.publish(done + 1)
        world.ledger.sent(Recipient("v1", "carol"), "/a", entry, entry)
        answer = await Way(world.engine.log, Hub(world.engine.log), world.why).entry(entry, WayFilter())

        assert answer.states == {"sent": 2, "acked": 1}
        assert [(one.recipient, one.state) for one in answer.recipients] == [
            ("carol", "sent"), ("bob", "sent"), ("alice", "acked"),
        ]  # fmt: skip


async def test_files_that_cannot_have_the_row_are_not_opened(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.lake:
        entry = await world.open()
        for lo, name in enumerate(("aaron", "alice", "zoe")):
            world.write("deliveries", lo, lo + 1, [row(Recipient("sps", name), entry, entry)])
            world.write("deliveries", lo, lo + 1, [row(Recipient("sps", name), entry + 1000, entry + 1000)])
        await world.publish(3)
        mine = [file for file in world.written.tables["deliveries"].files() if file.bounds("recipient")[0] == "alice"]
        for file in world.written.tables["deliveries"].files():
            if file.bounds("recipient")[0] != "alice" or file.bounds("first")[0] > entry:
                world.written.store.delete([world.written.store.relative(file.location)])

        assert len(mine) == 2
        assert (await world.why.entry(entry, "alice")).verdict == "sent"
        with pytest.raises(LakeUnreadable):
            await world.why.entry(entry, "zoe")


# ── the store is away ─────────────────────────────────────────────────────────────────────────────

UNREADABLE = "unreadable"


async def verdict(world: World, entry: int) -> str:
    """What `why` says, or that it cannot say anything."""
    try:
        return (await world.why.entry(entry, "alice")).verdict
    except LakeUnreadable:
        return UNREADABLE


class TakesNothingForNone(Deliveries):
    """The sabotage: rows that cannot be read count as rows that are not there."""

    async def of_entry(self, stream: str, id: int, recipient: str | None) -> list[LedgerEvent]:
        try:
            return await super().of_entry(stream, id, recipient)
        except LakeUnreadable:
            return []


@pytest.mark.parametrize(
    ("away", "deliveries", "said"),
    [
        ("pause", Deliveries, UNREADABLE),
        pytest.param("kill", Deliveries, UNREADABLE, marks=pytest.mark.long),
        ("pause", TakesNothingForNone, "no_record"),
    ],
)
async def test_while_the_store_is_away_why_says_so_and_tells_nothing_that_is_not_so(
    away: str, deliveries: type[Deliveries], said: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(f"s3://lake/{uuid4().hex}")
    world.why = Why(world.log, world.ledger, Hub(world.log), deliveries(world.lake))
    async with world.lake:
        entry = await world.open()
        await world.fold([row(ALICE, entry, entry)])
        getattr(s3, away)()
        with monkeypatch.context() as impatient:
            impatient.setattr(lakes, "LAKE_SECONDS", 1.0)
            assert await verdict(world, entry) == said
        fresh = (await world.log.append(Batch((Draft("/a", b"y"),)))).last.id  # the log needs no store
        world.ledger.record(ALICE, "acked", "/a", entry, entry)
        s3.resume() if away == "pause" else await asyncio.to_thread(s3.restart)

        async def answered() -> bool:
            return await verdict(world, entry) != UNREADABLE

        await wait_until_async(answered, within=60)
        answer = await world.why.entry(entry, "alice")
        assert {event.state for event in answer.events} == {"sent", "acked"}
        assert await verdict(world, fresh) == "no_record"
