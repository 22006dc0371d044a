"""Mailboxes: numbering, collapse, confirmation, expiry, channels, months (core/mailbox.py)."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import InputInvalid, MailboxFull, NotFound, VersionMismatch
from penstock.limits import MAILBOX_PAGE, RECIPIENT_BYTES
from penstock.values import MailboxHead, NewItem, Room

MONTH = "2026_11"


def item(name: str, **more) -> NewItem:
    return NewItem(name, body=name.encode(), **more)


async def opened(engine, *months: str):
    for month in months or (MONTH,):
        assert await engine.mailbox.make_month(month)
    return engine.mailbox


async def pending(mailbox, recipient: str = "phone", **more) -> list[tuple[int, str]]:
    return [(found.number, found.message_id) for found in await mailbox.take(recipient, MONTH, **more)]


async def test_items_are_numbered_from_one_without_a_gap(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)

        first = await mailbox.put("phone", MONTH, [item("a"), item("b")])
        second = await mailbox.put("phone", MONTH, [item("c")])
        other = await mailbox.put("laptop", MONTH, [item("d")])

        assert [found.number for found in (*first, *second, *other)] == [1, 2, 3, 1]
        assert await pending(mailbox) == [(1, "a"), (2, "b"), (3, "c")]


async def test_concurrent_puts_leave_no_gap_and_no_double(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)

        stored = await asyncio.gather(*(mailbox.put("phone", MONTH, [item(f"{n}"), item(f"{n}+")]) for n in range(20)))

        assert sorted(found.number for items in stored for found in items) == list(range(1, 41))
        assert all(one.number + 1 == two.number for one, two in stored)


async def test_a_head_never_names_a_number_whose_item_it_has_not_seen(open_engine):
    """Who reads a head, and then what comes after it, must have everything: nothing may lie between the two."""
    async with open_engine() as engine:
        mailbox = await opened(engine)

        for number in range(1, 41):
            putting = asyncio.ensure_future(mailbox.put("phone", MONTH, [item(f"{number}")]))
            while not putting.done():
                await asyncio.sleep(0)  # one turn: an engine in memory never waits by itself
                head = await mailbox.head("phone", MONTH)
                assert head.pending == head.next_number - 1
                assert head.pending_bytes == sum(len(str(n)) for n in range(1, head.next_number))
            assert (await putting)[0].number == number


async def test_an_item_is_kept_as_it_was(open_engine, clock):
    new = NewItem("id", 17, b"\x00\xff\n", "chan", "top", '{"a":"\u00e9"}', clock.now_ms() + 1000)
    async with open_engine() as engine:
        mailbox = await opened(engine)

        [stored] = await mailbox.put("phone", MONTH, [new])

        assert await mailbox.take("phone", MONTH) == [stored]
        assert await mailbox.find("phone", MONTH, "id") == stored
        assert (stored.stored_ms, stored.entry_id, stored.body) == (clock.now_ms(), 17, b"\x00\xff\n")
        assert (stored.channel, stored.collapse, stored.attributes) == ("chan", "top", '{"a":"\u00e9"}')


async def test_take_pages_in_order(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        await mailbox.put("phone", MONTH, [item(f"{n}") for n in range(MAILBOX_PAGE + 3)])

        first = await pending(mailbox, limit=2)
        second = await pending(mailbox, after=first[-1][0], limit=2)
        whole = await pending(mailbox, limit=10**6)

        assert (first, second) == ([(1, "0"), (2, "1")], [(3, "2"), (4, "3")])
        assert len(whole) == MAILBOX_PAGE


async def test_confirmed_items_are_gone_and_returned_once(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        stored = await mailbox.put("phone", MONTH, [item("a"), item("b"), item("c")])

        assert await mailbox.confirm("phone", MONTH, [2, 3, 99]) == stored[1:]
        assert await mailbox.confirm("phone", MONTH, [2, 3]) == []

        assert await pending(mailbox) == [(1, "a")]
        assert [found.number for found in await mailbox.put("phone", MONTH, [item("d")])] == [4]


async def test_a_collapse_key_keeps_only_the_newest_edition(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        await mailbox.put("phone", MONTH, [item("a", channel="c", collapse="score"), item("x", channel="c")])
        await mailbox.put("phone", MONTH, [item("other", channel="d", collapse="score")])

        await mailbox.put("phone", MONTH, [item("b", channel="c", collapse="score")])

        assert await pending(mailbox) == [(2, "x"), (3, "other"), (4, "b")]
        assert await mailbox.confirm("phone", MONTH, [1]) == []
        assert await pending(mailbox) == [(2, "x"), (3, "other"), (4, "b")]


async def test_editions_within_one_batch_collapse_too(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)

        stored = await mailbox.put("phone", MONTH, [item("a", collapse="k"), item("b", collapse="k")])

        assert [found.number for found in stored] == [1, 2]
        assert await pending(mailbox) == [(2, "b")]


async def test_expired_items_are_left_out_and_then_removed(open_engine, clock):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        soon = clock.now_ms() + 1000
        await mailbox.put("phone", MONTH, [item("a", expires_ms=soon), item("b"), item("c", expires_ms=soon + 1)])
        assert await mailbox.expire(MONTH) == []
        clock.advance(1)

        assert await pending(mailbox) == [(2, "b"), (3, "c")]
        assert (await mailbox.find("phone", MONTH, "a")).number == 1
        gone = await mailbox.expire(MONTH)
        assert [(recipient, found.message_id) for recipient, found in gone] == [("phone", "a")]
        assert await mailbox.find("phone", MONTH, "a") is None
        assert await mailbox.expire(MONTH) == []


async def test_expiry_takes_at_most_as_many_as_asked(open_engine, clock):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        for name in ("phone", "laptop"):
            await mailbox.put(name, MONTH, [item(f"{n}", expires_ms=clock.now_ms() + 1) for n in range(3)])
        clock.advance(1)

        gone = [*await mailbox.expire(MONTH, limit=4), *await mailbox.expire(MONTH, limit=4)]

        assert len(gone) == len({(recipient, found.number) for recipient, found in gone}) == 6


async def test_the_head_tells_numbers_position_and_weight(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        assert await mailbox.head("phone", MONTH) == MailboxHead("phone", MONTH)

        await mailbox.put("phone", MONTH, [item("four"), item("a")], position=17)
        await mailbox.put("phone", MONTH, [], position=9)
        await mailbox.confirm("phone", MONTH, [2])

        assert await mailbox.head("phone", MONTH) == MailboxHead("phone", MONTH, 3, 17, (), 1, 4)


async def test_channels_come_and_go_with_their_items(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        assert await mailbox.add_channel("phone", MONTH, "a")
        assert not await mailbox.add_channel("phone", MONTH, "a")
        assert await mailbox.add_channel("phone", MONTH, "b")
        await mailbox.put("phone", MONTH, [item("x", channel="a"), item("y", channel="b")])

        assert await mailbox.remove_channel("phone", MONTH, "a")
        assert not await mailbox.remove_channel("phone", MONTH, "a")
        assert not await mailbox.remove_channel("nobody", MONTH, "a")

        assert await pending(mailbox) == [(2, "y")]
        assert (await mailbox.head("phone", MONTH)).channels == ("b",)
        await mailbox.set_channels("phone", MONTH, ["c", "d", "c"])
        assert (await mailbox.head("phone", MONTH)).channels == ("c", "d")
        assert (await mailbox.head("phone", MONTH)).next_number == 3


async def test_a_forgotten_recipient_begins_anew(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        await mailbox.put("phone", MONTH, [item("a"), item("b")], position=5)
        await mailbox.add_channel("phone", MONTH, "c")

        assert await mailbox.forget("phone", MONTH) == 2
        assert await mailbox.forget("phone", MONTH) == 0

        assert await mailbox.head("phone", MONTH) == MailboxHead("phone", MONTH)
        assert [found.number for found in await mailbox.put("phone", MONTH, [item("c")])] == [1]


async def test_recipients_are_listed_by_name_and_in_pages(open_engine):
    names = ["a", "b", "z", "\u00e9", "\U0001f600"]
    async with open_engine() as engine:
        mailbox = await opened(engine)
        for name in reversed(names):
            await mailbox.put(name, MONTH, [item("x")])

        listed, after = [], ""
        while page := await mailbox.recipients(MONTH, after=after, limit=2):
            listed += [head.recipient for head in page]
            after = listed[-1]

        assert listed == names
        assert (await mailbox.recipients(MONTH))[0] == await mailbox.head("a", MONTH)


async def test_months_are_made_and_dropped_whole(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine, "2026_12", "2026_11")
        assert not await mailbox.make_month("2026_12")
        assert await mailbox.months() == ["2026_11", "2026_12"]
        await mailbox.put("phone", "2026_11", [item("old")])
        await mailbox.put("phone", "2026_12", [item("new")])

        assert await mailbox.drop_month("2026_11")
        assert not await mailbox.drop_month("2026_11")

        assert await mailbox.months() == ["2026_12"]
        assert [found.message_id for found in await mailbox.take("phone", "2026_12")] == ["new"]
        assert await mailbox.make_month("2026_11")
        assert await mailbox.take("phone", "2026_11") == []


async def test_a_month_that_was_not_made_is_not_found(open_engine):
    async with open_engine() as engine:
        mailbox = engine.mailbox
        for attempt in (
            mailbox.put("phone", MONTH, [item("a")]),
            mailbox.take("phone", MONTH),
            mailbox.confirm("phone", MONTH, [1]),
            mailbox.find("phone", MONTH, "a"),
            mailbox.head("phone", MONTH),
            mailbox.set_channels("phone", MONTH, ["a"]),
            mailbox.add_channel("phone", MONTH, "a"),
            mailbox.remove_channel("phone", MONTH, "a"),
            mailbox.forget("phone", MONTH),
            mailbox.expire(MONTH),
            mailbox.recipients(MONTH),
        ):
            with pytest.raises(NotFound):
                await attempt


@pytest.mark.parametrize(
    "month", ["", "2026", "2026_13", "2026_1", "2026-11", "2026_11; DROP TABLE entries", "٢٠٢٦_11"]
)
async def test_a_month_that_is_none_is_refused(open_engine, month):
    async with open_engine() as engine:
        for attempt in (engine.mailbox.make_month(month), engine.mailbox.take("phone", month)):
            with pytest.raises(InputInvalid):
                await attempt


@pytest.mark.parametrize("recipient", ["", "x" * (RECIPIENT_BYTES + 1), "\ud800"])
async def test_a_recipient_without_a_proper_name_is_refused(open_engine, recipient):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        with pytest.raises(InputInvalid):
            await mailbox.put(recipient, MONTH, [item("a")])


async def test_mailboxes_survive_a_restart(open_durable):
    async with open_durable() as engine:
        mailbox = await opened(engine)
        await mailbox.put("phone", MONTH, [item("a"), item("b")], position=3)
        await mailbox.confirm("phone", MONTH, [1])
        await mailbox.add_channel("phone", MONTH, "c")
        before = await mailbox.head("phone", MONTH)
    async with open_durable() as engine:
        assert await engine.mailbox.head("phone", MONTH) == before
        assert await pending(engine.mailbox) == [(2, "b")]
        assert [found.number for found in await engine.mailbox.put("phone", MONTH, [item("c")])] == [3]


async def test_of_two_who_forward_the_same_entries_one_does(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        await mailbox.put("phone", MONTH, [NewItem("1", 1)], position=1, expect=0)
        with pytest.raises(VersionMismatch):
            await mailbox.put("phone", MONTH, [NewItem("1", 1), NewItem("2", 2)], position=2, expect=0)
        with pytest.raises(VersionMismatch):
            await mailbox.put("laptop", MONTH, [NewItem("1", 1)], position=1, expect=7)

        await mailbox.put("phone", MONTH, [NewItem("2", 2)], position=2, expect=1)

        assert await pending(mailbox) == [(1, "1"), (2, "2")]
        assert (await mailbox.head("phone", MONTH)).position == 2
        assert await mailbox.head("laptop", MONTH) == MailboxHead("laptop", MONTH)


# ── room ──────────────────────────────────────────────────────────────────────────────────────────

ROOM = Room(3, 100)


async def test_no_more_is_stored_than_there_is_room_for(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        for name in "abc":
            await mailbox.put("phone", MONTH, [item(name)], room=ROOM)

        for _ in range(2):
            with pytest.raises(MailboxFull):
                await mailbox.put("phone", MONTH, [item("d")], room=ROOM)
        await mailbox.put("laptop", MONTH, [item("d")], room=ROOM)  # it has room of its own
        await mailbox.confirm("phone", MONTH, [2])
        await mailbox.put("phone", MONTH, [item("e")], room=ROOM)

        assert await pending(mailbox) == [(1, "a"), (3, "c"), (4, "e")]  # what was refused took no number


async def test_bytes_of_bodies_and_attributes_count(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        await mailbox.put("phone", MONTH, [NewItem("a", body=b"x" * 40, attributes='{"é":""}')], room=ROOM)  # 49 bytes

        for _ in range(2):
            with pytest.raises(MailboxFull):
                await mailbox.put("phone", MONTH, [NewItem("b", body=b"x" * 52)], room=ROOM)
        await mailbox.put("phone", MONTH, [NewItem("c", body=b"x" * 51)], room=ROOM)
        with pytest.raises(MailboxFull):
            await mailbox.put("phone", MONTH, [NewItem("d", body=b"x")], room=ROOM)
        await mailbox.confirm("phone", MONTH, [1])
        await mailbox.put("phone", MONTH, [NewItem("e", body=b"x")], room=ROOM)

        assert await pending(mailbox) == [(2, "c"), (3, "e")]


async def test_what_takes_another_s_place_needs_no_room_of_its_own(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        await mailbox.put("phone", MONTH, [item("a"), item("b")])
        await mailbox.put("phone", MONTH, [NewItem("c", body=b"x" * 90, channel="1", collapse="t")], room=ROOM)

        await mailbox.put("phone", MONTH, [NewItem("d", body=b"y" * 90, channel="1", collapse="t")], room=ROOM)
        for other in ({"channel": "2", "collapse": "t"}, {"channel": "1", "collapse": "u"}, {}):
            with pytest.raises(MailboxFull):
                await mailbox.put("phone", MONTH, [item("e", **other)], room=ROOM)

        assert await pending(mailbox) == [(1, "a"), (2, "b"), (4, "d")]


async def test_who_puts_without_a_room_is_not_held_up_and_counts(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        await mailbox.put("phone", MONTH, [item("a")], room=ROOM)
        await mailbox.put("phone", MONTH, [item(name) for name in "bcdef"])

        with pytest.raises(MailboxFull):
            await mailbox.put("phone", MONTH, [item("g")], room=ROOM)

        assert len(await pending(mailbox)) == 6


async def test_of_many_puts_at_once_as_many_are_stored_as_there_is_room_for(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)

        puts = [mailbox.put(name, MONTH, [item(f"{n}")], room=ROOM) for n in range(8) for name in ("phone", "laptop")]
        results = await asyncio.gather(*puts, return_exceptions=True)

        assert sum(isinstance(one, MailboxFull) for one in results) == 10
        assert [number for number, _ in await pending(mailbox)] == [1, 2, 3]
        assert [number for number, _ in await pending(mailbox, "laptop")] == [1, 2, 3]


@pytest.mark.parametrize("emptied_by", ["expire", "remove_channel", "forget"])
async def test_whatever_goes_makes_room(open_engine, clock, emptied_by):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        await mailbox.add_channel("phone", MONTH, "1")
        soon = clock.now_ms() + 1000
        await mailbox.put("phone", MONTH, [item(n, channel="1", expires_ms=soon) for n in "abc"], room=ROOM)
        with pytest.raises(MailboxFull):
            await mailbox.put("phone", MONTH, [item("d")], room=ROOM)
        clock.advance(2)

        if emptied_by == "expire":
            await mailbox.expire(MONTH)
        elif emptied_by == "remove_channel":
            await mailbox.remove_channel("phone", MONTH, "1")
        else:
            await mailbox.forget("phone", MONTH)
        await mailbox.put("phone", MONTH, [item(n) for n in "efg"], room=ROOM)

        assert [name for _, name in await pending(mailbox)] == ["e", "f", "g"]


async def test_the_edition_of_a_topic_is_found_by_its_names_expired_or_not(open_engine, clock):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        soon = clock.now_ms() + 1000
        await mailbox.put("phone", MONTH, [item("plain", channel="1")])
        await mailbox.put("phone", MONTH, [item("old", channel="1", collapse="t")])
        [new] = await mailbox.put("phone", MONTH, [item("new", channel="1", collapse="t", expires_ms=soon)])
        clock.advance(2)

        assert await mailbox.edition("phone", MONTH, "1", "t") == new
        for names in (("2", "t"), ("1", "u"), ("1", "")):
            assert await mailbox.edition("phone", MONTH, *names) is None
        assert await mailbox.edition("nobody", MONTH, "1", "t") is None


async def test_channels_are_known_without_a_look_at_what_is_pending(open_engine):
    async with open_engine() as engine:
        mailbox = await opened(engine)
        await mailbox.set_channels("phone", MONTH, ["1", "2"])
        await mailbox.put("phone", MONTH, [item("a", channel="1")])

        assert await mailbox.channels("phone", MONTH) == ("1", "2")
        assert await mailbox.channels("nobody", MONTH) == ()
        with pytest.raises(NotFound):
            await mailbox.channels("phone", "2026_10")
