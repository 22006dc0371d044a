"""What the ledger says about a user's device: exactly what was sent to it, and what it has confirmed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.doors.sps.spans import NO_MARK, Span, confirm, put_aside
from penstock.limits import UNCONFIRMED_SPANS
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


# ── spans ──────────────────────────────────────────────────────────────────────────────────────

Sent = tuple[str, str]  # a stream, and the device it is for: empty for all
events = st.lists(
    st.sampled_from([("/users/7", ""), ("/users/7", "a"), ("/users/7", "b"), ("/rooms/earth", ""), ("/all", "")]),
    max_size=25,
)


@settings(max_examples=60)
@given(st.lists(events, max_size=4), st.integers(0, 150))
def test_spans_cover_what_was_sent_and_nothing_else(batches: list[list[Sent]], upto: int) -> None:
    with TemporaryDirectory() as keys:
        spans, published = asyncio.run(spans_after(Path(keys), batches))
    sent = {(stream, id) for stream, id, hid in published if hid in ("", "a")}
    confirmed, left = confirm(spans, upto)

    assert covered(spans, published) == sent
    assert covered(confirmed, published) == {(stream, id) for stream, id in sent if id <= upto}
    assert covered(left, published) == {(stream, id) for stream, id in sent if id > upto}


async def spans_after(keys: Path, batches: list[list[Sent]]) -> tuple[list[Span], list[tuple[str, int, str]]]:
    """What a device's wire remembers after these were published, and all that was."""
    async with place(keys) as here:
        await here.subscribe("uid=7&hid=a&tid=earth")
        published = []
        for batch in filter(None, batches):
            drafts = [Draft(stream, b"x", "", f'{{"hid":"{hid}"}}' if hid else "") for stream, hid in batch]
            await here.engine.log.append(Batch(tuple(drafts)))
        page = await here.engine.log.read_after(("/users/7", "/rooms/earth", "/all"), 0)
        published = [(e.stream, e.id, e.attributes[8:-2]) for e in page.entries]
        wire = here.door.wires.find("7", "a")
        assert wire
        return wire.spans, published


def covered(spans: list[Span], published: list[tuple[str, int, str]]) -> set[tuple[str, int]]:
    return {
        (stream, id)
        for stream, id, _ in published
        if any(span.stream == stream and span.first <= id <= span.last for span in spans)
    }


def entry(id: int, index: int | None) -> Entry:
    return Entry(id, "/a", index, 0, 0, 1, Kind.DATA, "", 0, None, "", b"x")


def test_the_oldest_spans_are_forgotten_at_the_limit() -> None:
    spans: list[Span] = []
    for number in range(UNCONFIRMED_SPANS + 10):
        put_aside(spans, Span(number + 1, NO_MARK.mark(entry(number + 1, 2 * number))))

    assert len(spans) == UNCONFIRMED_SPANS
    assert spans[0].first == 11


def test_parts_belong_to_the_entry_before_them() -> None:
    first = NO_MARK.mark(entry(1, 3))
    part = first.mark(entry(2, None))

    assert first.continued_by(entry(2, None))
    assert part.continued_by(entry(3, 4))
    assert not part.continued_by(entry(3, 5))
