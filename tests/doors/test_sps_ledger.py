"""What the ledger says about a user's device: exactly what was sent to it, and what it has confirmed."""

from __future__ import annotations

import asyncio
import functools
import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.ledger import LedgerEvent, decode
from penstock.doors.sps.frames import Run, join_runs, runs_of
from penstock.testing import RunningServer, wait_until
from penstock.values import Batch, Draft, Entry, Kind
from tests.api.client import ask
from tests.doors.sps_client import Wire, new_user, notify_id
from tests.doors.sps_place import place


def verdict(server: RunningServer, entry: int, recipient: str) -> str:
    answer: str = ask(server, "GET", "/v1/why", entry=entry, recipient=recipient).json["verdict"]
    return answer


def test_why_answers_for_a_device(shared_server: RunningServer) -> None:
    with Wire(shared_server, hid="phone").opened() as wire:
        id = notify_id(shared_server, "user", uid=wire.uid)
        wire.line()

        assert verdict(shared_server, id, f"{wire.uid}/phone") == "sent"
        assert verdict(shared_server, id, f"{wire.uid}/tv") == "no_record"


def test_what_was_for_another_device_is_not_sent_to_this_one(shared_server: RunningServer) -> None:
    with Wire(shared_server, hid="a").opened() as wire:
        first, other, last = (
            notify_id(shared_server, "user", uid=wire.uid, hid=hid) for hid in ("a", "b", "a")
        )  # fmt: skip
        wire.lines(2)
        assert ask(shared_server, "POST", "/subsist", uid=wire.uid, hid="a", o=last).status == 204

    device = f"{wire.uid}/a"
    assert [verdict(shared_server, id, device) for id in (first, other, last)] == ["acked", "no_record", "acked"]


def test_a_device_confirms_by_coming_back_with_what_it_knows(shared_server: RunningServer) -> None:
    room = f"room{new_user()}"
    with Wire(shared_server, tid=room).opened() as wire:
        mine = notify_id(shared_server, "user", uid=wire.uid)
        rooms = notify_id(shared_server, "room", tid=room)
        several = notify_id(shared_server, "room", tid=f"{room},other")
        late = notify_id(shared_server, "user", uid=wire.uid)
        wire.lines(4)
    wait_until(lambda: not ask(shared_server, "GET", "/online", uid=wire.uid).json["online"])
    with Wire(shared_server, uid=wire.uid, tid=room, o=several).opened() as again:
        assert again.line()["id"] == late

    verdicts = [verdict(shared_server, id, wire.uid) for id in (mine, rooms, several, late)]
    assert verdicts == ["acked", "acked", "acked", "sent"]


def test_a_device_that_replaces_its_own_wire_confirms_too(shared_server: RunningServer) -> None:
    with Wire(shared_server).opened() as wire:
        id = notify_id(shared_server, "user", uid=wire.uid)
        wire.line()
        with Wire(shared_server, uid=wire.uid, o=id).opened():
            assert verdict(shared_server, id, wire.uid) == "acked"


def test_who_comes_back_without_an_id_has_confirmed_nothing(shared_server: RunningServer) -> None:
    with Wire(shared_server).opened() as wire:
        id = notify_id(shared_server, "user", uid=wire.uid)
        wire.line()
        with Wire(shared_server, uid=wire.uid).opened():
            assert verdict(shared_server, id, wire.uid) == "sent"


def test_a_confirmation_survives_kill_9(server: RunningServer) -> None:
    with Wire(server, uid="7").opened() as wire:
        id = notify_id(server, "user", uid="7")
        wire.line()
        assert ask(server, "POST", "/subsist", uid="7", o=id).status == 204
        server.kill()
    server.restart()

    assert verdict(server, id, "7") == "acked"


def test_nobody_confirms_what_was_not_sent(shared_server: RunningServer) -> None:
    with Wire(shared_server).opened() as wire:
        assert ask(shared_server, "POST", "/subsist", uid=wire.uid, o=10**15).status == 204
        id = notify_id(shared_server, "user", uid=wire.uid)
        wire.line()

        assert verdict(shared_server, id, wire.uid) == "sent"


# ── what the ledger is told ────────────────────────────────────────────────────────────────────

Sent = tuple[str, str]  # a stream, and the device it is for: empty for all
events = st.lists(
    st.sampled_from([("/users/7", ""), ("/users/7", "a"), ("/users/7", "b"), ("/rooms/earth", ""), ("/all", "")]),
    max_size=25,
)


@settings(max_examples=60)
@given(st.lists(events, max_size=4))
def test_the_ledger_hears_of_what_was_sent_and_of_nothing_else(batches: list[list[Sent]]) -> None:
    with TemporaryDirectory() as keys:
        recorded, published = asyncio.run(recorded_after(Path(keys), batches))
    covered = {
        (stream, id)
        for stream, id, _ in published
        if any(event.stream == stream and event.first <= id <= event.last for event in recorded)
    }

    assert covered == {(stream, id) for stream, id, hid in published if hid in ("", "a")}


async def recorded_after(keys: Path, batches: list[list[Sent]]) -> tuple[list[LedgerEvent], list[tuple[str, int, str]]]:
    """What the ledger has of a device after these were published, and all that was."""
    async with place(keys) as here:
        reader, _ = await here.subscribe("uid=7&hid=a&tid=earth")
        for batch in filter(None, batches):
            drafts = [Draft(stream, b"x", "", f'{{"hid":"{hid}"}}' if hid else "") for stream, hid in batch]
            await here.engine.log.append(Batch(tuple(drafts)))
        page = await here.engine.log.read_after(("/users/7", "/rooms/earth", "/all"), 0)
        published = [(e.stream, e.id, e.attributes[8:-2]) for e in page.entries]
        for _ in range(1 + sum(hid in ("", "a") for _, _, hid in published)):
            await reader.readline()
        await here.door.wires.ledger.flush()
        found = await here.engine.log.read_after(("/_ledger",), 0)
        return [event for entry in found.entries for event in decode(entry.body)[1]], published


def entry(id: int, index: int | None, stream: str = "/a") -> Entry:
    return Entry(id, stream, index, 0, 0, 1, Kind.DATA, "", 0, None, "", b"x")


def intervals(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.first, run.last) for run in runs]


shapes = st.lists(st.tuples(st.sampled_from(["/a", "/b"]), st.booleans(), st.integers(0, 1)), max_size=30)


@given(shapes, st.sets(st.integers(1, 29)))
def test_runs_that_are_joined_are_those_of_all_at_once(shape: list[tuple[str, bool, int]], cuts: set[int]) -> None:
    next_index = {"/a": 0, "/b": 0}
    entries: list[Entry] = []
    for id, (stream, part, skipped) in enumerate(shape, 1):
        if part and entries and entries[-1].stream == stream:  # of the entry before it
            entries.append(entry(id, None, stream))
        else:
            entries.append(entry(id, next_index[stream] + skipped, stream))
            next_index[stream] += 1 + skipped
    places = [place for place in range(1, len(entries)) if place in cuts and entries[place].index is not None]
    pieces = [entries[begin:end] for begin, end in itertools.pairwise([0, *places, len(entries)])]

    joined = functools.reduce(join_runs, map(runs_of, pieces)) if entries else []

    assert intervals(joined) == intervals(runs_of(entries))


def test_parts_belong_to_the_entry_before_them() -> None:
    whole = [entry(1, 3), entry(2, None), entry(3, 4)]

    assert intervals(runs_of(whole)) == [(1, 3)]
    assert intervals(join_runs(runs_of(whole[:1]), runs_of(whole[1:2]))) == [(1, 2)]
    assert intervals(runs_of([*whole, entry(4, 6)])) == [(1, 3), (4, 4)]
