"""Registry, mailboxes and bus on real NATS servers: what the contract suite cannot see."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.subscription import Subscription

from penstock.core.clock import ManualClock
from penstock.core.registry import NEW, Registry, made_once
from penstock.engines.jetstream.connection import NatsConnection, PubAck
from penstock.engines.jetstream.frames import NatsMessage
from penstock.engines.jetstream.mailbox import JetStreamMailbox
from penstock.engines.jetstream.newest_messages import Cells, Home
from penstock.engines.jetstream.registry import JetStreamRegistry
from penstock.engines.jetstream.subject_tokens import key_of, path
from penstock.errors import ConfigInvalid, EngineGone, TooLarge, VersionMismatch
from penstock.testing import NatsCluster, wait_until_async
from penstock.values import NewItem
from tests.cluster.homes import new_prefix, opened

MONTH = "2026_11"


@pytest.mark.parametrize("key", ["a", "a/b", "a//b", "/", "é/\U0001f600", "a.b/*/>", "=/ 2f", "x" * 300, "\n"])
def test_a_name_becomes_tokens_and_itself_again(key: str) -> None:
    tokens = path(key)

    assert key_of(tokens) == key
    assert all(part and not set(part) & set(" *>\t\r\n") for part in tokens.split("."))


async def test_a_stream_with_other_settings_is_refused(nats_alone: NatsCluster) -> None:
    async with opened(nats_alone) as here:
        other = {"name": f"{here.home.prefix}_messages_{MONTH}", "subjects": [f"{here.home.prefix}.messages_{MONTH}.>"]}
        await here.home.connection.api(f"STREAM.CREATE.{other['name']}", other)

        with pytest.raises(ConfigInvalid, match="max_msgs_per_subject"):
            await here.mailbox.make_month(MONTH)


async def test_versions_go_on_over_a_restart_of_the_servers(nats_own: NatsCluster) -> None:
    prefix = new_prefix()
    async with opened(nats_own, prefix) as here:
        last = await here.registry.put("a", b"")
        await here.registry.delete("a")  # nothing is left that could remind them of the number
    for server in nats_own.servers:
        await asyncio.to_thread(server.kill)
    for server in nats_own.servers:
        await asyncio.to_thread(server.restart)
    await asyncio.to_thread(nats_own.wait_until_ready)
    async with opened(nats_own, prefix) as here:
        assert (await here.registry.put("a", b"", expect=NEW)).version > last.version


async def test_nodes_share_records_and_mailboxes(nats_three: NatsCluster) -> None:
    prefix = new_prefix()
    async with opened(nats_three, prefix, node="a") as a, opened(nats_three, prefix, node="b") as b:
        await a.mailbox.make_month(MONTH)
        record = await a.registry.put("lease", b"a", expect=NEW)
        with pytest.raises(VersionMismatch):
            await b.registry.put("lease", b"b", expect=NEW)
        assert await b.registry.get("lease") == record

        puts = [node.mailbox.put("phone", MONTH, [NewItem(f"{n}")]) for n in range(20) for node in (a, b)]
        stored = [item.number for items in await asyncio.gather(*puts) for item in items]
        assert sorted(stored) == list(range(1, 41))
        await a.mailbox.confirm("phone", MONTH, range(1, 40))
        assert [item.number for item in await b.mailbox.take("phone", MONTH)] == [40]


async def test_a_put_beyond_one_batch_is_refused(nats_alone: NatsCluster) -> None:
    async with opened(nats_alone) as here:
        await here.mailbox.make_month(MONTH)
        with pytest.raises(TooLarge):
            await here.mailbox.put("phone", MONTH, [NewItem(f"{n}") for n in range(1000)])
        assert await here.mailbox.take("phone", MONTH) == []


async def test_names_with_dots_and_stars_stay_apart(nats_alone: NatsCluster) -> None:
    names = ["a.b", "a", "a*", "*", ">", "a.>", "a=2eb"]
    async with opened(nats_alone) as here:
        await here.mailbox.make_month(MONTH)
        for name in names:
            await here.mailbox.put(name, MONTH, [NewItem(name, collapse="x.y", channel=name)])

        assert await here.mailbox.forget("*", MONTH) == 1
        assert [head.recipient for head in await here.mailbox.recipients(MONTH)] == sorted(set(names) - {"*"})
        for name in set(names) - {"*"}:
            assert [item.message_id for item in await here.mailbox.take(name, MONTH)] == [name]


async def test_jetstream_itself_removes_what_nobody_expired(nats_alone: NatsCluster) -> None:
    clock = ManualClock()
    async with opened(nats_alone, clock=clock) as here:
        await here.registry.put("a", b"", expires_ms=clock.now_ms() + 7_000)
        cell = await Cells(here.home, "registry").get("a")

        assert cell
        assert cell.headers["Nats-TTL"] == "3607s"  # an hour more than its time


# ── answers that are lost ──────────────────────────────────────────────────────────────────────


class Losing(NatsConnection):
    """Everything is stored, and the answer to every other write is lost."""

    count = 0

    async def publish_batch(self, messages: Sequence[NatsMessage], batch: str, *, within: float = 5) -> PubAck:
        ack = await super().publish_batch(messages, batch, within=within)
        self.count += 1
        if self.count % 2:
            raise EngineGone("the answer was lost")
        return ack


async def check_one_of_each(nats: NatsCluster, kind: type[JetStreamMailbox]) -> None:
    async with opened(nats, kind=Losing) as here:
        mailbox = kind(here.home, ManualClock())
        await mailbox.make_month(MONTH)
        stored = [(await mailbox.put("phone", MONTH, [NewItem(f"{n}")]))[0] for n in range(6)]

        assert [item.number for item in stored] == [1, 2, 3, 4, 5, 6]
        assert await mailbox.take("phone", MONTH) == stored


async def test_a_put_whose_answer_was_lost_is_stored_once(nats_alone: NatsCluster) -> None:
    await check_one_of_each(nats_alone, JetStreamMailbox)


class Forgetful(JetStreamMailbox):
    """The sabotage: does not know its own writes again."""

    async def _read_head(self, recipient: str, month: str):  # type: ignore[no-untyped-def]
        known = await super()._read_head(recipient, month)
        return type(known)(known.sequence, type(known.head)(known.head.next_number, known.head.position))


async def test_the_same_check_finds_a_mailbox_that_stores_twice(nats_alone: NatsCluster) -> None:
    with pytest.raises(AssertionError):
        await check_one_of_each(nats_alone, Forgetful)


async def test_a_record_whose_answer_was_lost_is_put_once(nats_alone: NatsCluster) -> None:
    async with opened(nats_alone, kind=Losing) as here:
        first = await here.registry.put("a", b"1", expect=NEW)
        second = await here.registry.put("a", b"2", expect=first.version)
        third = await here.registry.put("a", b"3")

        assert first.version < second.version < third.version
        assert await here.registry.get("a") == third


async def test_a_late_write_does_not_undo_what_came_after_it(nats_alone: NatsCluster) -> None:
    async with opened(nats_alone) as here:
        await here.registry.put("a", b"0")
        caught: list[NatsMessage] = []
        publish = here.home.connection.publish_batch

        async def hold_back(messages: Sequence[NatsMessage], batch: str, *, within: float = 5) -> PubAck:
            if not caught:
                caught.extend(messages)  # it hangs in a server that was stopped
                raise EngineGone("no answer")
            return await publish(messages, batch, within=within)

        here.home.connection.publish_batch = hold_back  # type: ignore[method-assign]
        await here.registry.put("a", b"1")
        newest = await here.registry.put("a", b"2")
        with pytest.raises(Exception, match="wrong last sequence"):
            await here.home.connection.publish(caught[0])

        assert await here.registry.get("a") == newest


class TakesItForARefusal(JetStreamRegistry):
    """The sabotage: a record that others have changed was never stored by this call."""

    def _unknown(self, key: str) -> Any:
        return VersionMismatch(key, NEW, None)


@asynccontextmanager
async def overtaken(nats: NatsCluster, meanwhile: str, kind: type[JetStreamRegistry]) -> AsyncIterator[Registry]:
    """A registry whose next write is stored, and then deleted or changed by another node before its answer is lost."""
    prefix = new_prefix()
    async with opened(nats, prefix, node="a") as a, opened(nats, prefix, node="b") as b:
        publish, registry = a.home.connection.publish_batch, kind(a.home, ManualClock())
        await registry.put("there", b"0")

        async def lose(messages: Sequence[NatsMessage], batch: str, *, within: float = 5) -> PubAck:
            a.home.connection.publish_batch = publish  # type: ignore[method-assign]
            await publish(messages, batch, within=within)
            for key in ("there", "new"):
                if "delete" in meanwhile:
                    await b.registry.delete(key)
                if "put" in meanwhile:
                    await b.registry.put(key, b"another's")
            raise EngineGone("the answer was lost")

        a.home.connection.publish_batch = lose  # type: ignore[method-assign]
        yield registry


@pytest.mark.parametrize("kind", [JetStreamRegistry, TakesItForARefusal])
@pytest.mark.parametrize(
    ("call", "meanwhile"),
    [
        ("put", "put"),
        ("put", "delete"),
        ("put", "delete and put"),
        ("new", "put"),
        ("new", "delete"),
        ("delete", "put"),
    ],
)
async def test_what_was_stored_and_then_changed_by_another_is_never_said_to_be_refused(
    nats_alone: NatsCluster, call: str, meanwhile: str, kind: type[JetStreamRegistry]
) -> None:
    """Whoever is refused may undo what belongs to the write: nobody has seen it."""
    async with overtaken(nats_alone, meanwhile, kind) as registry:
        there = await registry.get("there")
        assert there
        calls = {
            "put": lambda: registry.put("there", b"1", expect=there.version),
            "new": lambda: registry.put("new", b"1", expect=NEW),
            "delete": lambda: registry.delete("there", expect=there.version),
        }
        with pytest.raises(EngineGone if kind is JetStreamRegistry else VersionMismatch):
            await calls[call]()


async def test_who_comes_late_is_refused_and_who_expects_nothing_goes_on(nats_alone: NatsCluster) -> None:
    """The innocent beside them: here it is known what was stored."""
    async with opened(nats_alone, kind=Losing) as here:
        await here.registry.put("a", b"1")
        with pytest.raises(VersionMismatch):
            await here.registry.put("a", b"2", expect=NEW)
        with pytest.raises(VersionMismatch):
            await here.registry.delete("a", expect=1_000)
        assert await here.registry.delete("a")
    for call in ("put", "delete"):
        async with overtaken(nats_alone, "delete and put", JetStreamRegistry) as registry:
            assert await (registry.put("there", b"1") if call == "put" else registry.delete("there"))


async def test_what_is_made_once_is_made_by_whoever_came_first(nats_alone: NatsCluster) -> None:
    async with overtaken(nats_alone, "put", JetStreamRegistry) as registry:
        assert await made_once(registry, "new", lambda: b"mine") == b"another's"


# ── leaders that stop ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_writes_go_on_under_a_new_leader(nats_own: NatsCluster, how: str) -> None:
    async with opened(nats_own) as here:
        await here.mailbox.make_month(MONTH)
        await here.mailbox.put("phone", MONTH, [NewItem("before")])
        leader = await asyncio.to_thread(nats_own.leader_of, f"{here.home.prefix}_messages_{MONTH}")
        getattr(leader, how)()

        async def put(name: str) -> bool:
            try:
                await here.mailbox.put("phone", MONTH, [NewItem(name)])
            except EngineGone:
                return False
            return True

        stored = [name for name in ("one", "two") if await wait_until_async(lambda name=name: put(name))]
        assert stored == ["one", "two"]
        if how == "pause":
            leader.resume()
        items = await here.mailbox.take("phone", MONTH)

        assert [item.number for item in items] == list(range(1, len(items) + 1))
        # A put that answered EngineGone may have been stored: the same item again, never one lost.
        assert list(dict.fromkeys(item.message_id for item in items)) == ["before", "one", "two"]


# ── the bus ────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_goes_to_one_node_and_a_hint_to_all(nats_three: NatsCluster) -> None:
    prefix, received = new_prefix(), list[tuple[str, str, bytes]]()
    async with opened(nats_three, prefix, node="a.1") as a, opened(nats_three, prefix, node="b") as b:
        for name, one in (("a", a), ("b", b)):
            one.bus.listen("wake up", lambda topic, message, name=name: received.append((name, topic, message)))

        # A server hears a moment late which subjects are listened to at another.
        await wait_until_async(lambda: a.bus.send("b", "wake up", b"1"))
        await wait_until_async(lambda: b.bus.send("a.1", "wake up", b"2"))
        assert not await a.bus.send("b", "nobody listens to this", b"")
        assert not await a.bus.send("c", "wake up", b"")
        await b.bus.hint("wake up", b"3")
        await wait_until_async(lambda: len(received) == 4)

        assert received[:2] == [("b", "wake up", b"1"), ("a", "wake up", b"2")]
        assert sorted(received[2:]) == [("a", "wake up", b"3"), ("b", "wake up", b"3")]


async def test_what_no_node_has_sent_on_the_bus_is_dropped_and_the_connection_goes_on(nats_alone: NatsCluster) -> None:
    async with opened(nats_alone) as here:
        connection, root, received = here.home.connection, f"{here.home.prefix}.bus", list[bytes]()
        here.bus.listen("wake", lambda topic, message: received.append(message))
        before = connection.client.stats["reconnects"]

        for subject in (f"{root}.all.=ff", f"{root}.to.here.=ff", f"{root}.all.\u20ac"):
            connection.send(NatsMessage(subject, b"?"))

        assert await here.bus.send("here", "wake", b"after them")
        assert received == [b"after them"]
        assert here.bus.dropped == 3
        assert connection.client.stats["reconnects"] == before


class ScannedPage(list[Any]):
    """A page of a scan, of which can be seen whether somebody still has it."""


class Watching(Cells):
    """Notes how many pages of a scan are held at once."""

    def __init__(self, home: Home, name: str) -> None:
        super().__init__(home, name)
        self.pages: list[weakref.ref[ScannedPage]] = []
        self.most = 0

    async def _scan_page(self, subscription: Subscription) -> list[Any]:
        page = ScannedPage(await super()._scan_page(subscription))
        self.pages.append(weakref.ref(page))
        self.most = max(self.most, sum(one() is not None for one in self.pages))
        return page


class Keeping(Watching):
    """The sabotage: keeps what it has seen until the end."""

    async def _scan_page(self, subscription: Subscription) -> list[Any]:
        self.__dict__.setdefault("kept", []).append(page := await super()._scan_page(subscription))
        return page


async def most_pages_of_a_scan(nats: NatsCluster, monkeypatch: pytest.MonkeyPatch, kind: type[Watching]) -> int:
    monkeypatch.setattr("penstock.engines.jetstream.newest_messages._PAGE", 7)
    clock = ManualClock()
    async with opened(nats, clock=clock) as here:
        await here.mailbox.make_month(MONTH)
        times = [clock.now_ms() + 10_000 + number * 17 % 50 for number in range(50)]
        await here.mailbox.put("a", MONTH, [NewItem(f"{n}", expires_ms=at) for n, at in enumerate(times)])
        await here.mailbox.put("b", MONTH, [NewItem("for ever")])
        cells = kind(here.home, f"messages_{MONTH}")
        for limit in (1, 10, 49, 60):
            soonest = await cells.soonest(["*.i.*"], limit)
            assert [one.expires_ms for one in soonest] == sorted(times)[:limit]
            assert all(times[int(one.subject.rpartition(".")[2]) - 1] == one.expires_ms for one in soonest)
        return cells.most


async def test_no_more_is_held_of_a_month_than_expires_first(
    nats_alone: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await most_pages_of_a_scan(nats_alone, monkeypatch, Watching) <= 2


async def test_the_same_count_finds_a_scan_that_is_held_whole(
    nats_alone: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await most_pages_of_a_scan(nats_alone, monkeypatch, Keeping) > 7
