"""Every batch fits into an entry, whatever was recorded; and one that cannot holds up nobody."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import ledger as ledger_module
from penstock.core.clock import ManualClock
from penstock.core.ledger import STREAM, Ledger, Recipient, decode
from penstock.core.log import Log
from penstock.engines.memory import MemoryEngine
from penstock.errors import NotRecorded
from penstock.limits import ENTRY_BYTES, LEDGER_REASON_CHARACTERS
from penstock.pipeline.ledger_rows import BatchRows
from penstock.values import Appended, Batch

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
lengths = st.sampled_from([0, 1, 300])
rows = st.tuples(texts, lengths, st.sampled_from(["sent", "acked", "dead"]), st.integers(1, 9), st.integers(1, 9))
items = st.tuples(texts, lengths, texts, st.integers(1, 9))


async def bodies(engine: MemoryEngine) -> list[bytes]:
    found, after = [], 0
    while (page := await engine.log.read_after((STREAM,), after)).entries:
        found += [entry.body for entry in page.entries]
        after = page.upto
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, max_size=12), st.lists(items, max_size=6), st.sampled_from([300, 2_000, 700 * 1024]))
def test_any_records_become_batches_that_fit_and_are_read_back(told, told_items, limit) -> None:  # type: ignore[no-untyped-def]
    """With small limits as well, so that everything is cut that can be."""

    async def scenario() -> None:
        async with MemoryEngine() as engine:
            written = Ledger(engine.log, ManualClock(), node="n1")
            expected: Counter[tuple[object, ...]] = Counter()
            for text, times, state, people, id in told:
                reason = (text * times)[:LEDGER_REASON_CHARACTERS]
                who = [Recipient("v1", f"{text}{number}") for number in range(people)]
                for one in who:
                    written.record(one, state, "/s" + text * 3, id, id, reason=text * times)
                    written.sent(one, "/s" + text * 3, id, id)
                    written.confirm(one, id)
                expected.update((state, reason, one.name, "/s" + text * 3, id, "") for one in who)
                expected.update(("sent", "", one.name, "/s" + text * 3, id, "") for one in who)
                expected.update(("confirmed", "", one.name, "", 0, "") for one in who)
            for text, times, key, number in told_items:
                written.record_item(Recipient("v1", text), "acked", key, "2026_11", number, reason=text * times)
                reason = (text * times)[:LEDGER_REASON_CHARACTERS]
                expected.update([("acked", reason, text, "", 0, key)])
            await written.flush()

            found = await bodies(engine)
            assert all(len(body) <= ENTRY_BYTES for body in found)
            # What is over the limit holds one record alone.
            assert all(len(body) <= limit or len(decode(body)[1]) == 1 for body in found)
            events = [event for body in found for event in decode(body)[1]]
            read = Counter((e.state, e.reason, e.recipient, e.stream, e.first, e.key) for e in events)
            assert read == expected
            lake = BatchRows()
            for id, body in enumerate(found):
                lake.add(id, body)
            assert lake.size == len(found) + len(events)  # each batch is a row, too
            assert [decode(body)[0].sequence for body in found] == list(range(len(found)))

    before = ledger_module.LEDGER_BATCH_BYTES
    ledger_module.LEDGER_BATCH_BYTES = limit  # type: ignore[misc]
    try:
        asyncio.run(scenario())
    finally:
        ledger_module.LEDGER_BATCH_BYTES = before  # type: ignore[misc]


@pytest.mark.parametrize("reason", ["r" * 300, "\x01" * 200, "\U0001f600" * 200])
async def test_five_thousand_long_reasons_are_written_down(reason: str) -> None:
    async with MemoryEngine() as engine:
        written = Ledger(engine.log, ManualClock(), node="n1")
        who = Recipient("eventhorizon", "/_sub/app")
        for number in range(5_000):
            written.record(who, "retried", "/a", number + 1, number + 1, reason=reason)
        await written.flush()

        assert written.recorded == 5_000
        assert written.refused == 0


async def test_three_thousand_streams_with_long_names_are_written_down() -> None:
    async with MemoryEngine() as engine:
        written = Ledger(engine.log, ManualClock(), node="n1")
        who = Recipient("v1", "alice")
        for number in range(3_000):
            written.sent(who, f"/{'x' * 120}/{'y' * 120}/{'z' * 120}/{'v' * 120}/{number}", number + 1, number + 1)
        await written.flush()

        assert written.recorded == 3_000


async def test_what_no_entry_can_hold_is_lost_alone_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    async with MemoryEngine() as engine:
        written = Ledger(engine.log, ManualClock(), node="n1")
        written.record(Recipient("v1", "x" * (ENTRY_BYTES + 1)), "acked", "/a", 1, 1)
        with pytest.raises(NotRecorded):
            await asyncio.wait_for(written.flush(), 20)
        written.record(Recipient("v1", "alice"), "acked", "/a", 1, 1)
        await asyncio.wait_for(written.flush(), 20)

        headers = [decode(body)[0] for body in await bodies(engine)]
        assert [(header.sequence, header.lost) for header in headers] == [(0, 1), (1, 0)]
        assert (written.refused, written.lost, written.recorded) == (1, 1, 1)
        assert "ledger.refused" in caplog.messages


async def test_who_waits_for_the_earlier_batch_need_not_wait_for_later_ones() -> None:
    async with MemoryEngine() as engine:
        written = Ledger(engine.log, ManualClock(), node="n1")
        order: list[str] = []

        async def confirm(name: str) -> None:
            written.record(Recipient("v1", name), "acked", "/a", 1, 1)
            await written.flush()
            order.append(name)

        await asyncio.gather(*(confirm(str(number)) for number in range(5)))

        assert order == ["0", "1", "2", "3", "4"]
        assert len(await bodies(engine)) == 5


class Surprising:
    """A log that fails once with what nobody expects of a log."""

    def __init__(self, log: Log) -> None:
        self._log, self._surprised = log, False

    def append(self, batch: Batch) -> Awaitable[Appended]:
        if not self._surprised:
            self._surprised = True
            raise OSError("an answer that nobody expects")
        return self._log.append(batch)


async def test_an_error_that_nobody_expects_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.ledger._RETRY_SECONDS", 0)
    async with MemoryEngine() as engine:
        written = Ledger(Surprising(engine.log), ManualClock(), node="n1")  # type: ignore[arg-type]
        written.record(Recipient("v1", "alice"), "acked", "/a", 1, 1)

        await asyncio.wait_for(written.flush(), 20)

        assert written.recorded == 1
