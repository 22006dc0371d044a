"""What an engine that nodes share tells each of them about changes (core/change_watch.py)."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.change_watch import ChangePoller, MailboxChange
from penstock.core.registry import NEW
from penstock.engines.memory import MemoryChanges
from penstock.testing import wait_until_async
from penstock.values import NewItem
from tests.contract.conftest import JETSTREAM, opener

MONTH = "2026_11"


@pytest.fixture(params=["memory", "local", JETSTREAM])
def open_shared(request, tmp_path, clock):
    """Opens an engine that several nodes may share."""
    return opener(request, tmp_path, clock)


class Looking:
    """A poller that notes what it is told; a change may be told by a later look."""

    def __init__(self, engine) -> None:
        self.change_poller = ChangePoller(engine.changes or MemoryChanges(engine))
        self.records: dict[str, int] = {}
        self.heads: dict[str, MailboxChange] = {}
        self.change_poller.on_record("a/", self._record)
        self.change_poller.on_record("b/c/", self._record)
        self.change_poller.on_mailbox(self._head)

    def _record(self, change) -> None:
        self.records[change.key] = change.version

    def _head(self, change) -> None:
        self.heads[change.recipient] = change

    async def until(self, condition) -> None:
        async def looked() -> bool:
            await self.change_poller.look()
            return bool(condition())

        await wait_until_async(looked)


async def test_each_record_that_changed_is_told_with_its_newest_version(open_shared):
    async with open_shared() as engine:
        await engine.registry.put("a/before", b"")
        looking = Looking(engine)
        await engine.registry.put("a/x", b"1")
        await engine.registry.put("b/other", b"")
        last = await engine.registry.put("a/x", b"2")
        deep = await engine.registry.put("b/c/d/e", b"3")

        await looking.until(lambda: len(looking.records) >= 2)

        looking.records.pop("a/before", None)  # an engine that was opened before it may tell of it
        assert looking.records == {"a/x": last.version, "b/c/d/e": deep.version}
        looking.records.clear()
        await looking.change_poller.look()
        assert looking.records == {}


async def test_a_deleted_record_is_told_with_a_version_above_all_it_had(open_shared):
    async with open_shared() as engine:
        looking = Looking(engine)
        put = await engine.registry.put("a/x", b"1")
        await looking.until(lambda: looking.records == {"a/x": put.version})
        assert await engine.registry.delete("a/x", expect=put.version)

        await looking.until(lambda: looking.records["a/x"] > put.version)

        assert await engine.registry.get("a/x") is None
        assert await engine.registry.list("a/") == []
        assert not await engine.registry.delete("a/x")
        assert await engine.registry.expire() == 0  # what is deleted does not run out
        again = await engine.registry.put("a/x", b"2", expect=NEW)
        assert again.version > looking.records["a/x"]
        await looking.until(lambda: looking.records == {"a/x": again.version})


async def test_a_mailbox_that_got_something_is_told_with_how_far_it_is(open_shared):
    async with open_shared() as engine:
        await engine.mailbox.make_month(MONTH)
        looking = Looking(engine)
        await engine.mailbox.put("phone", MONTH, [NewItem("1", body=b"1"), NewItem("2", body=b"2")])
        await looking.until(lambda: "phone" in looking.heads)
        assert looking.heads["phone"] == MailboxChange("phone", MONTH, 3)

        await engine.mailbox.put("phone/x", MONTH, [NewItem("3", body=b"3")])
        await engine.mailbox.put("phone", MONTH, [NewItem("4", body=b"4")])
        await looking.until(lambda: looking.heads["phone"].next_number == 4 and "phone/x" in looking.heads)


async def test_many_changes_are_told_and_none_is_left_out(open_shared):
    async with open_shared() as engine:
        looking = Looking(engine)
        await asyncio.gather(*(engine.registry.put(f"a/{number}", b"") for number in range(2_500)))

        await looking.until(lambda: len(looking.records) >= 2_500)

        assert {f"a/{number}" for number in range(2_500)} == looking.records.keys()


async def test_one_who_cannot_hear_keeps_nothing_from_the_others(open_shared):
    async with open_shared() as engine:
        looking = Looking(engine)

        def broken(change) -> None:
            raise ValueError(change.key)

        change_poller = looking.change_poller
        change_poller._records["a/"].insert(0, broken)
        await engine.registry.put("a/x", b"")

        async def told() -> bool:
            try:
                await change_poller.look()
            except ValueError:
                return True
            return False

        await wait_until_async(told)
        assert "a/x" in looking.records
