"""The seam between replay and live: no gap, no duplicate, order kept, memory bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import hub as hub_module
from penstock.core import recent_entries
from penstock.core.fanout import MANY, Round
from penstock.core.feed import Feed, take_if_room
from penstock.core.hub import Find, Hub
from penstock.core.ledger import Recipient
from penstock.core.log import Log
from penstock.core.matching import matches
from penstock.engines.memory import MemoryEngine
from penstock.settings import HubSettings
from penstock.testing.waiting import TooLate, wait_until_async
from penstock.values import Batch, Draft, Entry, Kind

DEEP = "/c/d/e/f/g/h/i/j"
STREAMS = ("/a", "/b", "/c/d", DEEP)
PATTERNS = [("/a",), ("/a", "/b"), (">",), ("/c/*",), ("/a", "/c/*/e/f/g/h/i/*")]


class Reader:
    """A sink that takes what it is given until it is told to be full."""

    def __init__(self, who: Recipient | None = None) -> None:
        self.got: list[Entry] = []
        self.gaps: list[tuple[int, int]] = []
        self.full = False
        self.most = 0
        self.who = who or Recipient("test", "reader")

    def deliver(self, entries: Sequence[Entry]) -> None:
        self.most = max(self.most, len(entries))
        self.got += entries

    deliver_last = take_if_room

    def gap(self, after: int, upto: int) -> None:
        self.gaps.append((after, upto))

    def failed(self, error: Exception) -> None:
        raise error

    @property
    def ids(self) -> list[int]:
        return [entry.id for entry in self.got]


async def publish(engine: MemoryEngine, *streams: str) -> None:
    await engine.log.append(Batch(tuple(Draft(stream, b"x") for stream in streams)))


async def expected(engine: MemoryEngine, patterns: tuple[str, ...], after: int) -> list[int]:
    page = await engine.log.read_after((">",), 0, limit=100_000)
    return [e.id for e in page.entries if e.id > after and any(matches(p, e.stream) for p in patterns)]


async def settle(feed: Feed) -> None:
    """Let the hub work until the feed is live, or its sink is full."""
    for _ in range(10_000):
        if not feed.can_step:
            return
        await asyncio.sleep(0)
    raise AssertionError("the feed never came to rest")


async def test_a_reader_gets_what_it_missed_and_then_what_comes() -> None:
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        await publish(engine, "/a", "/b", "/a")
        reader = Reader()
        feed = hub.start(reader, ("/a",), after=0)
        await settle(feed)
        await publish(engine, "/b", "/a")

        assert reader.ids == await expected(engine, ("/a",), 0)
        assert feed.lag == 0


async def test_a_reader_that_asks_for_nothing_old_gets_only_what_comes() -> None:
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        await publish(engine, "/a")
        reader = Reader()
        hub.start(reader, ("/a",))
        await publish(engine, "/a")

        assert [entry.index for entry in reader.got] == [1]


async def test_one_entry_comes_once_however_many_patterns_match() -> None:
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        reader = Reader()
        hub.start(reader, ("/a", "/*", ">"), after=0)
        await publish(engine, "/a")

        assert [entry.stream for entry in reader.got] == ["/a"]


async def test_meta_entries_come_only_to_those_who_ask() -> None:
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        plain, curious = Reader(), Reader()
        hub.start(plain, ("/a",))
        hub.start(curious, ("/a",), meta=True)
        await publish(engine, "/a")

        assert [e.kind for e in plain.got] == [Kind.DATA]
        assert [e.kind for e in curious.got] == [Kind.META, Kind.DATA]


async def test_a_slow_reader_goes_behind_and_catches_up_from_the_log() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, HubSettings(recent=10, tail=5)) as hub:
        reader = Reader()
        feed = hub.start(reader, ("/a",))
        await publish(engine, "/a")
        reader.full = True
        for _ in range(50):
            await publish(engine, "/a")

        assert feed.behind
        assert hub.went_behind == 1
        assert feed.lag == 50

        reader.full = False
        feed.resume()
        await settle(feed)

        assert [entry.index for entry in reader.got] == list(range(51))


async def test_what_waits_is_never_more_than_the_hub_holds() -> None:
    async with (
        MemoryEngine() as engine,
        Hub(engine.log, HubSettings(recent=1000, recent_bytes=5_000, tail=1000)) as hub,
    ):
        reader = Reader()
        feed = hub.start(reader, ("/a",))
        await publish(engine, "/a")
        reader.full = True
        for _ in range(20):
            await engine.log.append(Batch((Draft("/a", b"x" * 1000),)))

        assert feed.behind

        reader.full = False
        feed.resume()
        await settle(feed)
        assert [entry.index for entry in reader.got] == list(range(21))


async def test_a_reader_that_asks_for_more_while_its_page_is_read_gets_it_once() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, HubSettings(recent=1, tail=1)) as hub:
        reader = Reader()
        feed = hub.start(reader, ("/a",), after=0)
        await publish(engine, "/a", "/a")
        # When it asks again at each moment of the reading
        for _ in range(10):
            feed.resume()
            await asyncio.sleep(0)
        await settle(feed)

        assert [entry.index for entry in reader.got] == [0, 1]


async def test_what_comes_together_is_handed_on_together_and_is_one_object_for_all() -> None:
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        await publish(engine, "/a")
        taken: list[Sequence[Entry]] = []

        class Keeping(Reader):
            def deliver(self, entries: Sequence[Entry]) -> None:
                taken.append(entries)

        for _ in range(2):
            hub.start(Keeping(), ("/a",))
        await publish(engine, "/a", "/a", "/a")

        assert [[entry.index for entry in entries] for entries in taken] == [[1, 2, 3], [1, 2, 3]]
        assert taken[0] is taken[1]


async def test_a_stopped_reader_gets_nothing_more() -> None:
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        reader = Reader()
        feed = hub.start(reader, ("/a",))
        feed.stop()
        await publish(engine, "/a")

        assert reader.got == []
        assert hub.feeds == ()


async def test_what_was_trimmed_is_announced_as_a_gap() -> None:
    async with MemoryEngine() as engine:
        for _ in range(5):
            await publish(engine, "/a")
        cut = (await expected(engine, ("/a",), 0))[2]
        await engine.log.trim(cut)
        async with Hub(engine.log) as hub:
            reader = Reader()
            feed = hub.start(reader, ("/a",), after=0)
            await settle(feed)

            assert reader.gaps == [(0, cut)]
            assert [entry.index for entry in reader.got] == [3, 4]


async def test_changing_the_patterns_takes_effect_at_once() -> None:
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        reader = Reader()
        feed = hub.start(reader, ("/a",))
        feed.change(("/b", "/c/*"))
        await publish(engine, "/a", "/b", "/c/d")

        assert [entry.stream for entry in reader.got] == ["/b", "/c/d"]


@pytest.mark.parametrize("full", [False, True])
async def test_a_feed_may_change_to_patterns_that_are_looked_for_in_turn_and_back(full: bool) -> None:
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        reader, quick, slow = Reader(), ("/c/d/>",), ("/c/*/e/f/g/h/*/j",)
        feed = hub.start(reader, quick)
        await publish(engine, "/a", DEEP)
        for patterns in (slow, slow, quick, slow):
            reader.full = full
            await publish(engine, DEEP, "/a")
            feed.change(patterns)
            await publish(engine, "/b", DEEP)
            reader.full = False
            feed.resume()
            await settle(feed)

        assert reader.ids == await expected(engine, (DEEP,), 0)
        assert hub.readers(DEEP) == [feed]
        feed.stop()
        assert hub.readers(DEEP) == []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.sampled_from(STREAMS), min_size=1, max_size=4)),
        st.tuples(st.just("start"), st.tuples(st.sampled_from(PATTERNS), st.integers(0, 30))),
        st.tuples(st.just("full"), st.integers(0, 3)),
        st.tuples(st.just("resume"), st.integers(0, 3)),
        st.tuples(st.just("change"), st.integers(0, 3)),
        st.tuples(st.just("turn"), st.integers(1, 5)),
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(steps, st.integers(1, 6), st.integers(1, 12), st.integers(1, 3), st.integers(1, 8))
def test_no_interleaving_makes_a_gap_or_a_duplicate(
    script: list[tuple[str, object]], tail: int, recent: int, at_once: int, looked_at: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_module, "LOOKED_AT", looked_at)
        patch.setattr(recent_entries, "LOOKED_AT", looked_at)
        asyncio.run(_play(script, tail, recent, Hub, at_once))


async def _play(
    script: list[tuple[str, object]], tail: int, recent: int, make_hub: type[Hub], at_once: int = 512
) -> None:
    settings = HubSettings(tail=tail, recent=recent)
    async with MemoryEngine() as engine, make_hub(engine.log, settings, at_once=at_once) as hub:
        readers: list[tuple[Reader, Feed, tuple[str, ...], int]] = []
        for step, argument in script:
            await _do(step, argument, engine, hub, readers)
        for _ in readers:
            await asyncio.sleep(0)  # as many rounds as the newest entry may need
        for reader, feed, patterns, after in readers:
            reader.full = False
            feed.resume()
            await settle(feed)
            feed.flush()
            assert reader.ids == await expected(engine, patterns, after)
            assert reader.most <= max(tail, 1000)


async def _do(step: str, argument: object, engine: MemoryEngine, hub: Hub, readers: list) -> None:  # type: ignore[type-arg]
    match step, argument:
        case "publish", list(streams):
            await publish(engine, *streams)
        case "start", (patterns, int(after)):
            reader = Reader()
            after = min(after, hub.position)
            readers.append((reader, hub.start(reader, patterns, after=after), patterns, after))
        case "full", int(number) if number < len(readers):
            readers[number][0].full = True
        case "resume", int(number) if number < len(readers):
            readers[number][0].full = False
            readers[number][1].resume()
        case "change", int(number) if number < len(readers):
            readers[number][1].change(readers[number][2])
        case "turn", int(turns):
            for _ in range(turns):
                await asyncio.sleep(0)


class GappyHub(Hub):
    """The sabotage: a feed goes live as if nothing had come while its page was read."""

    def _join(self, feed: Feed) -> bool:
        if not feed.can_step:
            return False
        feed.join([], self.position)
        return True


def test_the_property_finds_a_hub_with_a_gap_in_its_seam() -> None:
    script = [("publish", ["/a", "/a"]), ("start", (("/a",), 0)), ("publish", ["/a"])]
    with pytest.raises(AssertionError):
        asyncio.run(_play(script, 2, 2, GappyHub))


class StillHub(Hub):
    """The sabotage: it does not look again for those who are offered nothing."""

    def _listen(self, feed: Feed, patterns: tuple[str, ...]) -> None:
        super()._listen(feed, patterns)
        self._in_turn.look_again = lambda: None  # type: ignore[method-assign]


def test_the_property_finds_a_hub_that_does_not_look_again() -> None:
    script = [("start", (PATTERNS[-1], 0)), ("publish", [DEEP])]
    asyncio.run(_play(script, 2, 2, Hub))
    with pytest.raises(AssertionError):
        asyncio.run(_play(script, 2, 2, StillHub))


class HastyHub(Hub):
    """The sabotage: what comes next takes the place of what not everyone has had yet."""

    def _finish_round(self) -> None:
        self._round = None


def test_the_property_finds_a_hub_that_does_not_finish_its_rounds() -> None:
    script = [*[("start", (("/a",), 0))] * MANY, ("publish", ["/a"]), ("publish", ["/a"])]
    with pytest.raises(AssertionError):
        asyncio.run(_play(script, 6, 12, HastyHub, 1))


class OvertakingHub(Hub):
    """The sabotage: what few want overtakes what is on its way to many."""

    def _offer_besides(self, wanted: Sequence[Entry], turn: Round, find: Find) -> None:
        for entry in wanted:
            self._offer(entry, list(find(entry.stream)))
        self._flush_woken()


def test_the_property_finds_a_hub_in_which_entries_overtake_each_other() -> None:
    script = [("publish", ["/a", "/b"]), *[("start", (("/a", "/b"), 30))] * 9, ("publish", ["/a"]), ("publish", ["/b"])]
    asyncio.run(_play(script, 6, 12, Hub, 1))
    with pytest.raises(AssertionError):
        asyncio.run(_play(script, 6, 12, OvertakingHub, 1))


async def test_the_newest_entry_goes_round_a_few_at_a_time() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, at_once=2) as hub:
        readers = [Reader() for _ in range(5)]
        for reader in readers:
            hub.start(reader, ("/a",))
        appending = engine.log.append(Batch((Draft("/a", b"x"),)))
        seen = []
        while not seen or seen[-1] < len(readers):
            seen.append(sum(len(reader.got) for reader in readers))
            await asyncio.sleep(0)
        await appending

        assert list(dict.fromkeys(seen)) in ([0, 2, 4, 5], [2, 4, 5])


async def test_who_leaves_a_stream_still_gets_what_was_on_its_way() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, at_once=1) as hub:
        readers = [Reader() for _ in range(3)]
        feeds = [hub.start(reader, ("/a",)) for reader in readers]
        await publish(engine, "/a")
        feeds[2].change(("/b",))

        assert [len(reader.got) for reader in readers] == [1, 1, 1]


async def test_who_has_caught_up_is_told_even_if_there_was_nothing_for_it() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, HubSettings(recent=2)) as hub:
        reader, told = Reader(), list[int]()
        for _ in range(20):
            await publish(engine, "/b")
        feed = hub.start_watched(reader, ("/a",), after=0, on_live=lambda: told.append(len(reader.got)))
        assert told == []
        await settle(feed)
        assert told == [0]

        await publish(engine, "/a")
        hub.start_watched(
            other := Reader(), ("/a",), after=feed.position - 1, on_live=lambda: told.append(len(other.got))
        )

        assert told == [0, 1]


async def test_how_far_a_reader_is_leaves_out_what_is_still_on_its_way_to_it() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, at_once=1) as hub:
        seen: list[int] = []

        class Looking(Reader):
            def deliver(self, entries: Sequence[Entry]) -> None:
                super().deliver(entries)
                seen.append(hub.position - second.reached)

        hub.start(Looking(), ("/a",))
        second = hub.start(Reader(), ("/a",))
        await publish(engine, "/b")
        assert second.reached == hub.position

        await publish(engine, "/a")
        await settle(second)

        assert seen == [1]
        assert second.reached == hub.position


async def test_a_feed_whose_reader_is_away_is_no_consumer() -> None:
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        feed = hub.start_watched(reader := Reader(), ("/a",), on_live=lambda: None)
        feed.away = True
        assert hub.feeds == ()
        await publish(engine, "/a")
        assert len(reader.got) == 1

        feed.away = False

        assert hub.feeds == (feed,)


class TrustingHub(Hub):
    """Takes every reader for one that has had no more than this node."""

    def _without_seen(self, after, allow):
        return allow


class BelievingHub(Hub):
    """Believes every id that a reader says it has had."""

    def _without_seen(self, after, allow):
        return lambda entry: entry.id > after


async def read_ahead_of_its_node(kind: type[Hub], *, ahead: int, known: int) -> list[int]:
    """The ids that a reader gets, after its node's position, who says to have had *ahead* more; the log has *known*."""
    async with MemoryEngine() as engine:
        await publish(engine, "/a")
        first = engine.log.followed
        async with kind(OnItsWay(engine.log, known)) as hub:
            reader = Reader()
            hub.start(reader, ("/a",), after=first + ahead)
            for _ in range(3):
                await publish(engine, "/a")
            await wait_until_async(lambda: reader.ids[-1:] == [first + 3], within=1)
            return [id - first for id in reader.ids]


class OnItsWay:
    """A log of which this node has not heard all yet."""

    def __init__(self, log: Log, known: int) -> None:
        self._log, self._known = log, log.followed + known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def newest(self) -> int:
        return self._known


async def test_who_had_more_from_another_node_gets_nothing_twice() -> None:
    assert await read_ahead_of_its_node(Hub, ahead=2, known=2) == [3]
    assert await read_ahead_of_its_node(TrustingHub, ahead=2, known=2) == [1, 2, 3]  # the sabotage


async def test_an_id_that_the_log_never_gave_hides_nothing_new() -> None:
    assert await read_ahead_of_its_node(Hub, ahead=1000, known=0) == [1, 2, 3]
    assert await read_ahead_of_its_node(Hub, ahead=1000, known=1) == [2, 3]
    with pytest.raises(TooLate):  # the sabotage
        await read_ahead_of_its_node(BelievingHub, ahead=1000, known=0)


async def test_a_node_that_is_alone_hides_nothing() -> None:
    async with MemoryEngine() as engine, Hub(engine.log, alone=True) as hub:
        reader = Reader()
        hub.start(reader, ("/a",), after=1000)
        await publish(engine, "/a")

        assert reader.ids == [engine.log.followed]


async def test_a_reader_that_leaves_before_the_newest_id_is_known_leaves_nothing_behind() -> None:
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        feed = hub.start(Reader(), ("/a",), after=1000)
        feed.stop()
        await publish(engine, "/a")

        assert not hub._unseen
