"""Appending: order, atomicity, repeats, expectations (core/log.py, promises 1 to 4)."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.log import prepare
from penstock.errors import (
    InputInvalid,
    KeyReused,
    NameInvalid,
    NotFound,
    PositionMismatch,
    SequencePassed,
    SequenceReused,
    StreamExists,
    TooLarge,
)
from penstock.limits import ATTRIBUTES_BYTES, BATCH_BYTES, BATCH_ENTRIES, ENTRY_BYTES, KEY_SECONDS, TYPE_BYTES
from penstock.values import Appended, Batch, Draft, Entry, Expect, Key, Kind, Producer
from penstock.wire import eventhorizon


def one(stream: str, body: bytes, **more) -> Batch:
    return Batch((Draft(stream, body),), **more)


async def everything(log) -> list[Entry]:
    """All entries of all streams, system streams too."""
    found, after = [], log.trimmed_upto
    while True:
        page = await log.read_after([">", "/_sub", "/_sub/>"], after, meta=True)
        found += page.entries
        after = page.upto
        if not page.more:
            return found


async def test_an_append_answers_with_the_coordinates(open_engine):
    async with open_engine() as engine:
        await prepare(engine.log)

        answer = await engine.log.append(one("/orders", b"hello"))

        head = await engine.log.head("/orders")
        assert (answer.count, answer.repeated) == (1, False)
        assert answer.first == answer.last
        assert (answer.last.stream, answer.last.index, answer.last.chunk) == ("/orders", 0, 0)
        assert answer.last.end == head.offset
        assert (head.next_index, head.last_id) == (1, answer.last.id)


async def test_an_event_by_itself_is_stored_as_a_batch_of_it_would_be(open_engine):
    async with open_engine() as engine:
        # Given events and batches in turn: in a new stream and an old one, with another name, in chunks of a full size
        bodies = [b"first", b"", b"two\nlines", "日本".encode(), b"x" * ENTRY_BYTES, b"last"]
        asked = [(name, body) for body in bodies for name in ("/made/by/batch", "/made/by/event", "/caf\u00e9")]
        answers = []
        for number, (name, body) in enumerate(asked):
            batch = name == "/made/by/batch" or (name == "/caf\u00e9" and number % 2)
            answers.append(engine.log.append(one(name, body)) if batch else engine.log.append_event(name, body))
        places = [(await answer).last for answer in answers]

        # Then both have the same coordinates in their streams, in the order of the calls
        assert [place.id for place in places] == sorted(place.id for place in places)
        made = {name: await everything_of(engine.log, name) for name, _ in asked}
        assert [entry.body for entry in made["/made/by/event"]] == bodies
        assert [entry.body for entry in made["/caf\u00e9"]] == bodies
        spots = [[(entry.index, entry.chunk, entry.end) for entry in made[name]] for name in made]
        assert spots[0] == spots[1]
        assert [(place.index, place.chunk, place.end) for place in places[1::3]] == spots[1]

        # And what no engine takes is refused, without harm
        refused = engine.log.append_event("/made/by/event", b"x" * (ENTRY_BYTES + 1))
        with pytest.raises(TooLarge):
            await refused
        with pytest.raises(NameInvalid):
            await engine.log.append_event("/x/*", b"no")
        assert (await engine.log.append_event("/made/by/event", b"after")).last.index == len(bodies)


async def everything_of(log, name: str) -> list[Entry]:
    found: list[Entry] = []
    while page := (await log.read_index(name, len(found))).entries:
        found += page
    return found


async def test_what_was_appended_is_read_back_as_it_was(open_engine):
    bodies = [b"", b"text", "日本 😀".encode(), b"\x00\xff\xfe\x00", b"two\nlines", bytes(range(256)) * 300]
    async with open_engine() as engine:
        drafts = tuple(
            Draft("/s", body, type=f"typ\u00e9 {n}\0\u2028", attributes='{"a":"\\u0000\U0001f600"}')
            for n, body in enumerate(bodies)
        )
        answer = await engine.log.append(Batch(drafts))

        page = await engine.log.read_index("/s", 0)
        assert answer.count == len(bodies)
        assert [entry.body for entry in page.entries] == bodies
        assert [entry.index for entry in page.entries] == list(range(len(bodies)))
        assert [entry.type for entry in page.entries] == [draft.type for draft in drafts]
        assert {entry.attributes for entry in page.entries} == {drafts[0].attributes}
        assert [(e.id, e.end) for e in page.entries][-1] == (answer.last.id, answer.last.end)


async def test_followers_have_seen_an_entry_before_its_append_is_done(open_engine):
    async with open_engine() as engine:
        seen: list[int] = []
        engine.log.follow(lambda entries: seen.extend(entry.id for entry in entries))

        for number in range(20):
            answer = await engine.log.append(one("/s", b"%d" % number))
            assert seen[-1] == answer.last.id == engine.log.followed


async def test_entries_become_visible_in_the_order_of_their_ids(open_engine):
    """Promise 3, with many appends in flight and a reader in between."""
    async with open_engine() as engine:
        followed: list[int] = []
        engine.log.follow(lambda entries: followed.extend(entry.id for entry in entries))
        pages: list[list[int]] = []

        async def publish(name: str) -> None:
            for number in range(40):
                await engine.log.append(Batch((Draft(name, b"%d" % number), Draft("/shared", name.encode()))))

        async def read(until: asyncio.Future) -> None:
            after = 0
            while not (until.done() and after >= engine.log.followed):
                page = await engine.log.read_after([">"], after, meta=True, limit=7)
                assert page.upto <= engine.log.followed
                pages.append([entry.id for entry in page.entries])
                after = page.upto
                await asyncio.sleep(0)  # a read at the end need not wait for anything

        publishing = asyncio.gather(*(publish(f"/s/{n}") for n in range(10)))
        await asyncio.gather(publishing, read(publishing))

        assert followed == sorted(set(followed))
        assert [id for page in pages for id in page] == followed


async def test_appends_are_done_in_the_order_in_which_they_were_made(open_engine):
    kinds = (
        Draft("/s", b"plain"),
        Draft("/s", b"typed", "t"),
        Draft("/s", b"plain"),
        Draft("/s", b"", attributes="{}"),
    )
    async with open_engine() as engine:
        done: list[int] = []
        futures = [engine.log.append(Batch((kinds[n % 4],))) for n in range(50)]
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: done.append(number))

        answers = await asyncio.gather(*futures)

        assert done == list(range(50))
        assert [answer.last.index for answer in answers] == list(range(50))


async def test_who_stops_waiting_for_an_append_does_not_disturb_the_others(open_engine):
    async with open_engine() as engine:

        async def append(body: bytes) -> Appended:
            return await engine.log.append(one("/s", body))

        first, second = asyncio.create_task(append(b"1")), asyncio.create_task(append(b"2"))
        await asyncio.sleep(0)  # one turn: both have begun
        first.cancel()

        answer = await second

        assert answer.last.index in (0, 1)
        page = await engine.log.read_index("/s", 0)
        assert [entry.body for entry in page.entries] in ([b"1", b"2"], [b"2"])


async def test_a_batch_over_several_streams_is_stored_whole(open_engine):
    async with open_engine() as engine:
        groups: list[set[str]] = []
        engine.log.follow(lambda entries: groups.append({entry.stream for entry in entries if entry.index is not None}))

        answer = await engine.log.append(Batch((Draft("/a", b"1"), Draft("/b", b"2"), Draft("/a", b"3"))))

        assert groups == [{"/a", "/b"}]
        assert (answer.count, answer.first.stream, answer.first.index) == (3, "/a", 0)
        assert (answer.last.stream, answer.last.index) == ("/a", 1)


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (Batch((Draft("/a", b"ok"), Draft("/missing", b"no")), make_missing=False), NotFound),
        (Batch((Draft("/a", b"ok"), Draft("/x/*", b"no"))), NameInvalid),
        (Batch((Draft("/a", b"ok"),), create="/a"), StreamExists),
        (Batch((Draft("/a", b"ok"),), create="/none/b"), NotFound),
        (Batch((Draft("/a", b"ok"),), expect=Expect("/a", index=7)), PositionMismatch),
        (Batch((Draft("/a", b"ok"),), expect=Expect("/a", chunk=0, offset=7)), PositionMismatch),
        (Batch((Draft("/a", b"ok"), Draft("/a", b"x" * (ENTRY_BYTES + 1)))), TooLarge),
        (Batch((Draft("/a", b"x" * ENTRY_BYTES),) * (BATCH_BYTES // ENTRY_BYTES + 1)), TooLarge),
        (Batch((Draft("/a", b""),) * (BATCH_ENTRIES + 1)), TooLarge),
        (Batch((Draft("/a", b"ok"), Draft("/a", b"", type="x" * (TYPE_BYTES + 1)))), TooLarge),
        (Batch((Draft("/a", b"ok"), Draft("/a", b"", attributes="x" * (ATTRIBUTES_BYTES + 1)))), TooLarge),
        (Batch((Draft("/a", b"ok"), Draft("/a", b"", type="\ud800"))), InputInvalid),
        (Batch(), ValueError),
    ],
)
async def test_a_refused_batch_stores_nothing_and_spoils_nothing(open_engine, batch, error):
    async with open_engine() as engine:
        await engine.log.append(one("/a", b"before"))
        before = await everything(engine.log)

        refused = engine.log.append(batch)
        fine = engine.log.append(one("/a", b"after"))
        with pytest.raises(error):
            await refused

        assert (await fine).last.index == 1
        assert len(await everything(engine.log)) == len(before) + 1


async def test_the_largest_batch_is_taken(open_engine):
    async with open_engine() as engine:
        many = await engine.log.append(Batch(tuple(Draft("/a", b"%d" % n) for n in range(BATCH_ENTRIES))))
        large = await engine.log.append(Batch((Draft("/b", b"x" * ENTRY_BYTES),) * (BATCH_BYTES // ENTRY_BYTES)))

        assert (many.count, many.last.index) == (BATCH_ENTRIES, BATCH_ENTRIES - 1)
        assert large.count == BATCH_BYTES // ENTRY_BYTES


async def test_a_missing_stream_is_made_with_its_parents(open_engine):
    async with open_engine() as engine:
        await engine.log.append(one("/shop/eu/orders", b"1"))

        for name in ("/", "/shop", "/shop/eu", "/shop/eu/orders"):
            assert await engine.log.head(name), name
        parent = await engine.log.read_cursor("/shop/eu", 0, 0)
        assert [entry.type for entry in parent.entries] == ["Created", "ChildStreamCreated"]
        assert all(entry.kind is Kind.META and entry.index is None for entry in parent.entries)


async def test_users_and_rooms_are_made_without_telling_their_parent(open_engine):
    async with open_engine() as engine:
        await engine.log.append(one("/users/42", b"1"))

        users = await engine.log.read_cursor("/users", 0, 0)
        assert [entry.type for entry in users.entries] == ["Created"]


async def test_a_created_stream_must_be_new_and_have_a_parent(open_engine):
    async with open_engine() as engine:
        with pytest.raises(NotFound):
            await engine.log.append(Batch(create="/a"))
        await prepare(engine.log)
        made = await engine.log.append(Batch(create="/a"))
        with pytest.raises(StreamExists):
            await engine.log.append(Batch(create="/a"))

        assert made.count == 0
        assert (await engine.log.head("/a")).next_index == 0


async def test_two_creations_of_one_stream_in_flight_give_one_stream(open_engine):
    async with open_engine() as engine:
        await prepare(engine.log)
        futures = [engine.log.append(Batch(create="/a")) for _ in range(3)]

        answers = await asyncio.gather(*futures, return_exceptions=True)

        assert [type(answer) for answer in answers[1:]] == [StreamExists, StreamExists]
        assert len((await engine.log.read_cursor("/a", 0, 0)).entries) == 1


async def test_subscribers_are_part_of_the_head(open_engine):
    async with open_engine() as engine:
        await engine.log.append(one("/s", b"1"))
        for kind, who in (("Subscribed", "/_sub/a"), ("Subscribed", "/_sub/b"), ("Unsubscribed", "/_sub/a")):
            payload = eventhorizon.subscribed(who, eventhorizon.timestamp(0))
            await engine.log.append(Batch((Draft("/s", payload, type=kind, kind=Kind.META),)))

        assert (await engine.log.head("/s")).subscribers == ("/_sub/b",)


# ── repeats ────────────────────────────────────────────────────────────────────────────────────


async def test_a_repeated_key_stores_nothing_and_gets_the_first_answer(open_engine):
    key = Key("alice", "/s", "k1", b"digest")
    async with open_engine() as engine:
        first = await engine.log.append(one("/s", b"1", key=key))
        await engine.log.append(one("/s", b"2"))

        again = await engine.log.append(one("/s", b"1", key=key))

        assert again.repeated
        assert not first.repeated
        assert (again.count, again.first, again.last) == (first.count, first.first, first.last)
        assert (await engine.log.head("/s")).next_index == 2


async def test_a_key_repeated_while_the_first_is_in_flight_is_a_repeat_too(open_engine):
    key = Key("alice", "/s", "k1", b"digest")
    async with open_engine() as engine:
        futures = [engine.log.append(one("/s", b"1", key=key)) for _ in range(3)]

        answers = await asyncio.gather(*futures)

        assert [answer.repeated for answer in answers] == [False, True, True]
        assert {answer.last for answer in answers} == {answers[0].last}
        assert (await engine.log.head("/s")).next_index == 1


async def test_thousands_of_repeats_at_once_get_the_first_answer(open_engine):
    key = Key("alice", "/s", "k1", b"digest")
    async with open_engine() as engine:
        answers = await asyncio.gather(*(engine.log.append(one("/s", b"1", key=key)) for _ in range(2000)))

        assert {answer.last for answer in answers} == {answers[0].last}
        assert [answer.repeated for answer in answers].count(False) == 1


async def test_a_key_with_other_contents_is_refused(open_engine):
    async with open_engine() as engine:
        await engine.log.append(one("/s", b"1", key=Key("alice", "/s", "k1", b"one")))

        with pytest.raises(KeyReused):
            await engine.log.append(one("/s", b"2", key=Key("alice", "/s", "k1", b"two")))


async def test_keys_of_other_subjects_and_streams_are_other_keys(open_engine):
    async with open_engine() as engine:
        for subject, stream in (("alice", "/a"), ("bob", "/a"), ("alice", "/b")):
            answer = await engine.log.append(one(stream, b"1", key=Key(subject, stream, "k", b"digest")))
            assert not answer.repeated


async def test_a_key_is_forgotten_after_a_day(open_engine, clock):
    key = Key("alice", "/s", "k1", b"digest")
    async with open_engine() as engine:
        await engine.log.append(one("/s", b"1", key=key))
        clock.advance(KEY_SECONDS - 1)
        assert (await engine.log.append(one("/s", b"1", key=key))).repeated
        clock.advance(2)

        assert not (await engine.log.append(one("/s", b"1", key=key))).repeated


async def test_a_refused_batch_does_not_use_up_its_key(open_engine):
    key = Key("alice", "/s", "k1", b"digest")
    async with open_engine() as engine:
        with pytest.raises(PositionMismatch):
            await engine.log.append(one("/s", b"1", key=key, expect=Expect("/s", index=3)))

        assert not (await engine.log.append(one("/s", b"1", key=key))).repeated


async def test_a_repeat_succeeds_although_its_expectation_is_stale(open_engine):
    batch = one("/s", b"1", key=Key("alice", "/s", "k1", b"d"), expect=Expect("/s", index=0))
    async with open_engine() as engine:
        first = await engine.log.append(batch)

        assert (await engine.log.append(batch)).last == first.last


async def test_a_producer_that_repeats_itself_stores_nothing(open_engine, clock):
    async with open_engine() as engine:
        answers = {}
        for sequence in (3, 4, 9):
            answers[sequence] = await engine.log.append(
                one("/s", b"%d" % sequence, producer=Producer("job", "spark", sequence))
            )

        for sequence in (3, 4, 9):
            again = await engine.log.append(one("/s", b"%d" % sequence, producer=Producer("job", "spark", sequence)))
            assert again.repeated
            assert again.last == answers[sequence].last
        skipped = await engine.log.append(one("/s", b"7", producer=Producer("job", "spark", 7)))
        assert (skipped.repeated, skipped.last) == (True, answers[9].last)
        clock.advance(KEY_SECONDS * 30)
        assert (await engine.log.append(one("/s", b"9", producer=Producer("job", "spark", 9)))).repeated
        assert not (await engine.log.append(one("/s", b"1", producer=Producer("job", "other", 1)))).repeated


async def test_a_producer_of_another_subject_is_another_producer(open_engine):
    async with open_engine() as engine:
        await engine.log.append(one("/mallory", b"evil", producer=Producer("mallory", "billing", 10**18 - 1)))

        answer = await engine.log.append(one("/orders", b"order 3", producer=Producer("shop", "billing", 3)))

        assert (answer.repeated, answer.last.stream) == (False, "/orders")


@pytest.mark.parametrize("name", ["a.b", "*", ">", "a b", "=", "ä\u2028", "billing.shop"])
async def test_subjects_and_names_of_producers_are_never_taken_for_each_other(open_engine, name):
    others = [(name, "x"), ("x", name), (name, name), ("billing", "shop"), ("billing.shop", "x"), (name, f"{name}/1")]
    async with open_engine() as engine:
        for subject, other in dict.fromkeys(others):
            for sequence in (1, 2):
                answer = await engine.log.append(one("/s", b"1", producer=Producer(subject, other, sequence)))
                assert not answer.repeated


async def test_a_sequence_that_was_used_for_another_stream_is_refused(open_engine):
    async with open_engine() as engine:
        first = await engine.log.append(one("/a", b"1", producer=Producer("job", "spark", 3)))
        await engine.log.append(one("/b", b"2", producer=Producer("job", "spark", 4)))
        with pytest.raises(SequenceReused):
            await engine.log.append(one("/b", b"3", producer=Producer("job", "spark", 3)))

        again = await engine.log.append(one("/a", b"1", producer=Producer("job", "spark", 3)))

        assert (again.repeated, again.last) == (True, first.last)
        assert (await engine.log.head("/b")).next_index == 1


async def test_a_sequence_whose_answer_is_forgotten_never_gets_the_place_of_another_stream(open_engine, clock):
    async with open_engine() as engine:
        await engine.log.append(one("/a", b"1", producer=Producer("job", "spark", 3)))
        last = await engine.log.append(one("/b", b"2", producer=Producer("job", "spark", 4)))
        clock.advance(KEY_SECONDS + 1)
        with pytest.raises(SequencePassed):
            await engine.log.append(one("/a", b"1", producer=Producer("job", "spark", 3)))

        older = await engine.log.append(one("/b", b"1", producer=Producer("job", "spark", 3)))

        assert (older.repeated, older.last) == (True, last.last)
        assert (await engine.log.head("/a")).next_index == 1


# ── expectations ───────────────────────────────────────────────────────────────────────────────


async def test_an_expected_position_must_be_the_real_one(open_engine):
    async with open_engine() as engine:
        first = await engine.log.append(one("/s", b"1", expect=Expect("/s", index=0)))
        place = Expect("/s", chunk=0, offset=first.last.end)
        second = await engine.log.append(one("/s", b"2", expect=place))
        with pytest.raises(PositionMismatch) as refused:
            await engine.log.append(one("/s", b"3", expect=place))

        assert str(second.last.end) in refused.value.actual
        assert (await engine.log.append(one("/s", b"3", expect=Expect("/s", index=2)))).last.index == 2


async def test_of_two_writers_with_one_expectation_one_wins(open_engine):
    async with open_engine() as engine:
        await engine.log.append(one("/s", b"0"))
        futures = [engine.log.append(one("/s", b"%d" % n, expect=Expect("/s", index=1))) for n in range(4)]

        answers = await asyncio.gather(*futures, return_exceptions=True)

        assert [isinstance(answer, PositionMismatch) for answer in answers] == [False, True, True, True]


async def test_the_largest_batch_may_have_a_key_and_make_its_stream(open_engine):
    drafts = tuple(Draft("/new", b"%d" % n) for n in range(BATCH_ENTRIES))
    batch = Batch(drafts, key=Key("alice", "/new", "k1", b"digest"))
    async with open_engine() as engine:
        first = await engine.log.append(batch)

        again = await engine.log.append(batch)

        assert (first.count, first.repeated) == (BATCH_ENTRIES, False)
        assert (again.repeated, again.first, again.last) == (True, first.first, first.last)
        assert (await engine.log.head("/new")).next_index == BATCH_ENTRIES
