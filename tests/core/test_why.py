"""A recipient's position is joined with what it was sent: that is acked, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.all_workers import OtherWorkers
from penstock.core.bus import LocalBus
from penstock.core.clock import ManualClock
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger, LedgerEvent, Recipient
from penstock.core.liveness import SingleMember
from penstock.core.why import Why, joined
from penstock.engines.memory import MemoryEngine
from penstock.values import Batch, Draft

DOORS = ("sps", "v1")
histories = st.lists(
    st.tuples(st.sampled_from(["sent", "retried", "dead", "acked", "confirmed"]), st.sampled_from(DOORS)), max_size=12
)


@given(histories)
def test_each_door_is_joined_by_itself_and_the_first_position_counts(history: list[tuple[str, str]]) -> None:
    events = [LedgerEvent(ms, state, "", door, "alice", "/a", 1, 9) for ms, (state, door) in enumerate(history)]
    told, first = joined(events)

    assert [event.ms for event in told] == sorted(event.ms for event in told)
    assert first == next((event for event in events if event.state == "confirmed"), None)
    for door in DOORS:
        of_door = [event for event in events if event.door == door]
        states = {event.state for event in of_door}
        acked = [event.ms for event in told if event.door == door and event.state == "acked"]
        if "confirmed" in states and states & {"sent", "retried"} and not states & {"dead", "acked"}:
            assert acked == [next(event.ms for event in of_door if event.state == "confirmed")]
        else:
            assert acked == [event.ms for event in of_door if event.state == "acked"]


async def world() -> tuple[MemoryEngine, Ledger, Why]:
    engine = MemoryEngine()
    ledger = Ledger(engine.log, ManualClock(), node="n")
    await ledger.open(engine.registry)
    return engine, ledger, Why(engine.log, ledger, Hub(engine.log))


async def publish(engine: MemoryEngine, stream: str) -> int:
    return (await engine.log.append(Batch((Draft(stream, b"x"),)))).last.id


async def test_a_position_covers_all_streams_or_the_one_it_names() -> None:
    engine, ledger, why = await world()
    ids = [await publish(engine, stream) for stream in ("/a", "/b", "/a", "/b")]
    for name in ("whole", "one"):
        for id, stream in zip(ids, ("/a", "/b", "/a", "/b"), strict=True):
            ledger.sent(Recipient("sps", name), stream, id, id)
    ledger.confirm(Recipient("sps", "whole"), ids[2])
    ledger.confirm(Recipient("sps", "one"), ids[2], "/a")

    assert [(await why.entry(id, "whole")).verdict for id in ids] == ["acked", "acked", "acked", "sent"]
    assert [(await why.entry(id, "one")).verdict for id in ids] == ["acked", "sent", "acked", "sent"]


async def test_another_door_s_position_of_the_same_name_confirms_nothing() -> None:
    engine, ledger, why = await world()
    id = await publish(engine, "/a")
    ledger.sent(Recipient("v1", "alice"), "/a", id, id)
    ledger.confirm(Recipient("sps", "alice"), id)

    assert (await why.entry(id, "alice")).verdict == "sent"


class WithAnotherThatIsSilent(SingleMember):
    """No bus reaches the other one."""

    def living(self) -> tuple[str, ...]:
        return (self.me, "silent:1")


async def test_what_is_recorded_is_told_although_another_process_is_silent() -> None:
    engine, ledger, _ = await world()
    why = Why(
        engine.log, ledger, Hub(engine.log), other_workers=OtherWorkers(LocalBus("local"), WithAnotherThatIsSilent())
    )
    id, other = await publish(engine, "/a"), await publish(engine, "/b")
    ledger.confirm(Recipient("sps", "alice"), id, "/a")

    told, untold = await why.entry(id, "alice"), await why.entry(other, "alice")

    assert told.verdict == "no_record"
    assert "alice confirmed it at " in told.words
    assert told.words.endswith("one of the server's processes did not answer, and may know more.")
    assert untold.verdict == "unknown"


async def test_a_position_alone_proves_no_sending() -> None:
    engine, ledger, why = await world()
    id, later = await publish(engine, "/a"), await publish(engine, "/a")
    ledger.confirm(Recipient("sps", "alice"), later)

    answer = await why.entry(id, "alice")

    assert answer.verdict == "no_record"
    assert f"alice confirmed a later event, id {later}, at " in answer.words
    assert answer.words.endswith("no record of the sending.")


async def test_thousands_that_come_back_after_the_same_event_share_a_row() -> None:
    engine, ledger, _ = await world()
    for number in range(1, 1001):
        ledger.confirm(Recipient("sps", str(number)), 7)
        ledger.sent(Recipient("sps", str(number)), "/users/" + str(number), 8 + number, 8 + number)
    await ledger.flush()
    page = await engine.log.read_after(("/_ledger",), 0)

    assert sum(entry.body.count(b'"confirmed"') for entry in page.entries) == 1
