"""What the ledger says about a user's device: exactly what was sent to it, and what it has confirmed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.sps.spans import Span, confirm, note
from penstock.limits import UNCONFIRMED_SPANS
from penstock.testing import RunningServer, wait_until
from penstock.values import Entry, Kind
from tests.doors.sps_client import Wire, new_user, notify_id
from tests.server.api import ask


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


def entry(id: int, stream: str, index: int | None) -> Entry:
    return Entry(id, stream, index, 0, 0, 1, Kind.DATA, "", 0, None, "", b"x")


published = st.lists(st.tuples(st.sampled_from(["/a", "/b", "/c"]), st.booleans()), max_size=60)


@given(published, st.integers(0, 70))
def test_spans_cover_what_was_sent_and_nothing_else(events: list[tuple[str, bool]], upto: int) -> None:
    spans: list[Span] = []
    counts: dict[str, int] = {}
    sent, kept_back = set(), set()
    for id, (stream, for_us) in enumerate(events, 1):
        index = counts[stream] = counts.get(stream, -1) + 1
        if for_us:
            note(spans, entry(id, stream, index))
        (sent if for_us else kept_back).add((stream, id))

    confirmed, left = confirm(spans, upto)

    assert covered(spans, sent | kept_back) == sent
    assert covered(confirmed, sent | kept_back) == {(stream, id) for stream, id in sent if id <= upto}
    assert covered(left, sent | kept_back) == {(stream, id) for stream, id in sent if id > upto}


def covered(spans: list[Span], entries: set[tuple[str, int]]) -> set[tuple[str, int]]:
    return {(s, id) for s, id in entries if any(span.stream == s and span.first <= id <= span.last for span in spans)}


def test_the_oldest_spans_are_forgotten_at_the_limit() -> None:
    spans: list[Span] = []
    for number in range(UNCONFIRMED_SPANS + 10):
        note(spans, entry(number + 1, "/a", 2 * number))

    assert len(spans) == UNCONFIRMED_SPANS
    assert spans[0].first == 11


@pytest.mark.parametrize("index", [None, 4])
def test_parts_belong_to_the_entry_before_them(index: int | None) -> None:
    spans: list[Span] = []
    for part in (entry(1, "/a", 3), entry(2, "/a", None), entry(3, "/a", index)):
        note(spans, part)

    assert [(span.first, span.last) for span in spans] == [(1, 3)]
