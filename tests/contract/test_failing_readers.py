"""One reader's exception ends that reader alone, on every engine: the others and the append never notice."""

from __future__ import annotations

from contextlib import suppress

import pytest

from penstock.core.feed import take_if_room
from penstock.core.followers import Followers
from penstock.core.hub import Hub
from penstock.core.ledger import Recipient
from penstock.testing import wait_until_async
from penstock.values import Batch, Draft

BATCHES = {
    "one entry": Batch((Draft("/s", b"bad"),)),
    "entries of one stream": Batch((Draft("/s", b"1"), Draft("/s", b"bad"))),
    "entries of several": Batch((Draft("/t", b"1"), Draft("/s", b"bad"), Draft("/t", b"2"))),
}


class Reader:
    """Takes what comes, unless it is *bad* and something bad comes."""

    full = False

    def __init__(self, bad: str = "") -> None:
        self.bad, self.got, self.errors = bad, [], []
        self.who = Recipient("test", bad or "good")

    def deliver(self, entries) -> None:
        if self.bad == "deliver" and any(entry.body == b"bad" for entry in entries):
            raise ValueError("the reader cannot take this")
        self.got += [entry.body for entry in entries]

    deliver_last = take_if_room

    def allow(self, entry) -> bool:
        if self.bad == "allow" and entry.body == b"bad":
            raise ValueError("the reader cannot tell")
        return True

    def gap(self, after: int, upto: int) -> None:
        raise AssertionError("nothing was trimmed")

    def failed(self, error: Exception) -> None:
        self.errors.append(error)
        if self.bad == "at its end":
            raise error


def no_guard(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(feed, error) -> None:
        raise error

    monkeypatch.setattr(hub, "_end", end)


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("bad", ["deliver", "allow"])
@pytest.mark.parametrize("sabotage", [None, no_guard])
async def test_only_the_feed_whose_reader_raises_is_ended(open_engine, kind, bad, sabotage, monkeypatch):
    async with open_engine() as engine:
        await engine.log.append(Batch((Draft("/s", b"0"), Draft("/t", b"0"))))
        async with Hub(engine.log) as hub:
            good, failing, after = Reader(), Reader(bad), Reader()
            for reader in (good, failing, after):
                hub.start(reader, ("/s", "/t"), allow=reader.allow if bad == "allow" else None)
            if sabotage:
                sabotage(hub, monkeypatch)
            await engine.log.append(BATCHES[kind])

            if sabotage:
                assert len(after.got) < len(good.got) or not good.got
                return
            bodies = [draft.body for draft in BATCHES[kind].drafts]
            assert good.got == after.got == bodies
            assert [str(error) for error in failing.errors] == [f"the reader cannot {_what(bad)}"]
            assert (hub.failed, engine.log.followers.failed, len(hub.feeds)) == (1, 0, 2)
            await engine.log.append(Batch((Draft("/s", b"next"),)))
            assert good.got == after.got == [*bodies, b"next"]
            assert b"next" not in failing.got


def _what(bad: str) -> str:
    return {"deliver": "take this", "allow": "tell"}[bad]


async def test_a_reader_that_raises_at_what_is_in_memory_ends_before_it_began(open_engine):
    async with open_engine() as engine, Hub(engine.log) as hub:
        await engine.log.append(BATCHES["one entry"])
        reader = Reader("deliver")

        feed = hub.start(reader, ("/s",), after=0)

        assert feed.stopped
        assert len(reader.errors) == hub.failed == 1
        assert not hub.feeds


async def test_a_follower_that_raises_keeps_nothing_from_the_others(open_engine):
    async with open_engine() as engine:
        told: list[int] = []

        def failing(entries) -> None:
            raise ValueError("a defect")

        engine.log.follow(failing)
        engine.log.follow(lambda entries: told.extend(entry.id for entry in entries))

        answers = [await engine.log.append(Batch((Draft("/s", b"x"),))) for _ in range(3)]

        assert [id for id in told if id >= answers[0].last.id] == [answer.last.id for answer in answers]
        assert engine.log.followed == answers[-1].last.id
        assert engine.log.followers.failed == 3


async def test_without_the_guard_of_followers_the_others_hear_nothing(open_engine, monkeypatch):
    def tell(self: Followers, entries) -> None:
        for follower in self._all:
            follower(entries)

    async with open_engine() as engine:
        asked, told = [], []

        def failing(entries) -> None:
            asked.extend(entries)
            raise ValueError("a defect")

        engine.log.follow(failing)
        engine.log.follow(told.extend)
        monkeypatch.setattr(Followers, "tell", tell)
        with suppress(ValueError):  # the one engine tells who appends, the other its log
            engine.log.append(Batch((Draft("/s", b"x"),)))
            await wait_until_async(lambda: asked)

        assert asked
        assert not told
        monkeypatch.undo()
