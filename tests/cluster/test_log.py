"""The log of several nodes on one JetStream stream: what one node does, and what the others see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from penstock.core.clock import ManualClock
from penstock.core.export import ExportRange, PlanQuestion, make_plan
from penstock.core.log import prepare
from penstock.engines.jetstream import JetStreamEngine, appending, connection, open_jetstream, reading, registry
from penstock.engines.jetstream.connection import LOST
from penstock.engines.jetstream.engine import server_urls
from penstock.errors import (
    ConfigInvalid,
    EngineGone,
    KeyReused,
    PositionMismatch,
    SequencePassed,
    StreamExists,
    Trimmed,
)
from penstock.limits import PAGE_BYTES
from penstock.settings import LogSettings
from penstock.testing import wait_until_async
from penstock.testing.nats import NatsCluster, start_nats
from penstock.values import Batch, Draft, Expect, Key, Kind, Producer
from penstock.wire import eventhorizon
from tests.cluster.homes import new_prefix

ONE = LogSettings(replicas=1)


def one(stream: str, body: bytes, **more) -> Batch:
    return Batch((Draft(stream, body),), **more)


@asynccontextmanager
async def two_nodes(nats: NatsCluster, replicas: int = 1) -> AsyncIterator[tuple[JetStreamEngine, JetStreamEngine]]:
    settings, clock = LogSettings(prefix=new_prefix(), replicas=replicas), ManualClock()
    async with (
        open_jetstream(nats.url, node="a", clock=clock, settings=settings) as first,
        open_jetstream(nats.url, node="b", clock=clock, settings=settings) as second,
    ):
        yield first, second


async def until_followed(engine: JetStreamEngine, id: int) -> None:
    await wait_until_async(lambda: engine.log.followed >= id)


async def bodies(engine: JetStreamEngine, stream: str) -> list[bytes]:
    return [entry.body for entry in (await engine.log.read_index(stream, 0)).entries]


@pytest.mark.parametrize("replicas", [1, 3])
async def test_nodes_that_write_to_one_stream_lose_and_double_nothing(
    nats_alone: NatsCluster, nats_three: NatsCluster, replicas: int
) -> None:
    nats = nats_alone if replicas == 1 else nats_three
    async with two_nodes(nats, replicas) as nodes:
        await prepare(nodes[0].log)

        async def write(node: JetStreamEngine, name: str) -> list[int]:
            return [(await node.log.append(one("/s", b"%s %d" % (name.encode(), n)))).last.id for n in range(15)]

        ids = await asyncio.gather(
            *(write(node, f"{number} {task}") for number, node in enumerate(nodes) for task in "xyz")
        )

        flat = sorted(id for some in ids for id in some)
        for node in nodes:
            await until_followed(node, flat[-1])
            page = await node.log.read_index("/s", 0)
            assert [entry.index for entry in page.entries] == list(range(90))
            assert [entry.id for entry in page.entries] == flat
            assert len({entry.body for entry in page.entries}) == 90
            offset = page.entries[0].offset
            for entry in page.entries:
                assert entry.offset == offset
                offset = entry.end


async def test_every_node_follows_in_the_same_order_with_whole_batches(nats_alone: NatsCluster) -> None:
    async with two_nodes(nats_alone) as nodes:
        seen: list[list[tuple[int, str]]] = [[], []]
        for node, list_ in zip(nodes, seen, strict=True):
            node.log.follow(lambda entries, list_=list_: list_.extend((e.id, e.stream) for e in entries))
        appends = [
            node.log.append(Batch((Draft(f"/s{n % 7}", b"1"), Draft("/t", b"2")))) for n in range(50) for node in nodes
        ]
        last = max(answer.last.id for answer in await asyncio.gather(*appends))
        for node in nodes:
            await until_followed(node, last)

        assert seen[0] == seen[1]
        assert [id for id, _ in seen[0]] == sorted(id for id, _ in seen[0])


async def test_a_key_holds_on_every_node(nats_alone: NatsCluster) -> None:
    key = Key("alice", "/s", "k", b"d")
    async with two_nodes(nats_alone) as (first, second):
        answers = await asyncio.gather(*(node.log.append(one("/s", b"1", key=key)) for node in (first, second) * 3))
        with pytest.raises(KeyReused):
            await second.log.append(one("/s", b"2", key=Key("alice", "/s", "k", b"other")))

        assert sorted(answer.repeated for answer in answers) == [False] + [True] * 5
        assert len({answer.last.id for answer in answers}) == 1
        assert await bodies(first, "/s") == [b"1"]


async def test_a_producer_is_known_on_every_node(nats_alone: NatsCluster) -> None:
    async with two_nodes(nats_alone) as (first, second):
        answers = {
            n: await first.log.append(one("/s", b"%d" % n, producer=Producer("job", "spark", n))) for n in (3, 4, 9)
        }

        for n, answer in answers.items():
            again = await second.log.append(one("/s", b"%d" % n, producer=Producer("job", "spark", n)))
            assert (again.repeated, again.last) == (True, answer.last)
        fresh = await second.log.append(one("/s", b"10", producer=Producer("job", "spark", 10)))
        late = await first.log.append(one("/s", b"10", producer=Producer("job", "spark", 10)))
        assert (fresh.repeated, late.repeated, late.last) == (False, True, fresh.last)


async def test_a_producer_that_an_older_version_kept_without_a_subject_is_still_known(nats_alone: NatsCluster) -> None:
    async with two_nodes(nats_alone) as (older, node):
        subjects = older.log._store.subjects
        subjects.producer = lambda _, name: subjects.producer_without_subject(name)  # as it was
        kept = await older.log.append(one("/s", b"4", producer=Producer("", "spark", 4)))

        again = await node.log.append(one("/s", b"4", producer=Producer("job", "spark", 4)))
        with pytest.raises(SequencePassed):
            await node.log.append(one("/t", b"3", producer=Producer("mallory", "spark", 3)))
        fresh = [await node.log.append(one("/t", b"5", producer=Producer(who, "spark", 5))) for who in ("job", "else")]

        assert (again.repeated, again.last) == (True, kept.last)
        assert [answer.repeated for answer in fresh] == [False, False]


async def test_of_writers_on_two_nodes_with_one_expectation_one_wins(nats_alone: NatsCluster) -> None:
    async with two_nodes(nats_alone) as nodes:
        await nodes[0].log.append(one("/s", b"0"))
        tries = [node.log.append(one("/s", b"1", expect=Expect("/s", index=1))) for node in nodes * 2]

        answers = await asyncio.gather(*tries, return_exceptions=True)

        assert sum(isinstance(answer, PositionMismatch) for answer in answers) == 3


async def test_an_expectation_is_not_refused_because_this_node_is_behind(nats_alone: NatsCluster) -> None:
    async with two_nodes(nats_alone) as (first, second):
        await second.log.append(one("/s", b"0"))
        second.log._learn = lambda *_: None  # heads that others move stay unknown here
        for n in (1, 2):
            await first.log.append(one("/s", b"%d" % n))

        answer = await second.log.append(one("/s", b"3", expect=Expect("/s", index=3)))

        assert answer.last.index == 3
        with pytest.raises(PositionMismatch):
            await second.log.append(one("/s", b"4", expect=Expect("/s", index=3)))


async def test_a_stream_is_made_once(nats_alone: NatsCluster) -> None:
    async with two_nodes(nats_alone) as nodes:
        await prepare(nodes[0].log)
        tries = [node.log.append(Batch(create="/new")) for node in nodes * 2]

        answers = await asyncio.gather(*tries, return_exceptions=True)

        assert sum(isinstance(answer, StreamExists) for answer in answers) == 3


async def test_subscribers_are_known_on_every_node(nats_alone: NatsCluster) -> None:
    async with two_nodes(nats_alone) as (first, second):
        await first.log.append(one("/s", b"1"))
        for number in range(5):
            payload = eventhorizon.subscribed(f"/_sub/{number}", eventhorizon.timestamp(0))
            node = (first, second)[number % 2]
            await node.log.append(Batch((Draft("/s", payload, type="Subscribed", kind=Kind.META),)))
        await first.log.append(one("/s", b"2"))

        for node in (first, second):
            assert len((await node.log.head("/s")).subscribers) == 5


async def test_a_trim_on_one_node_is_known_on_the_others_at_once(nats_alone: NatsCluster) -> None:
    async with two_nodes(nats_alone) as (first, second):
        ids = [(await first.log.append(one("/s", b"%d" % n))).last.id for n in range(10)]
        await until_followed(second, ids[-1])
        before = await second.log.head("/s")

        await first.log.trim(ids[-1])

        with pytest.raises(Trimmed):
            await second.log.read_after([">"], 0)
        assert await second.log.head("/s") == before
        answer = await second.log.append(one("/s", b"next"))
        assert answer.last.index == 10


async def test_a_stale_node_cannot_begin_a_trimmed_stream_anew(nats_alone: NatsCluster) -> None:
    """The fact about purges, made harmless by the head message: the sabotage takes that away."""
    for sabotaged in (False, True):
        async with two_nodes(nats_alone) as (first, second):
            ids = [(await first.log.append(one("/s", b"%d" % n))).last.id for n in range(3)]
            if sabotaged:
                first.log._retention._keep_heads = lambda upto: asyncio.sleep(0)
            await first.log.trim(ids[-1])
            second.log._known.forget("/s")

            answer = await second.log.append(one("/s", b"next"))

            assert (answer.last.index == 3) is not sabotaged


async def test_an_erased_entry_is_a_tombstone_on_every_node_and_after_a_restart(nats_alone: NatsCluster) -> None:
    settings = LogSettings(prefix=new_prefix(), replicas=1)
    async with (
        open_jetstream(nats_alone.url, node="a", settings=settings) as first,
        open_jetstream(nats_alone.url, node="b", settings=settings) as second,
    ):
        ids = [(await first.log.append(one("/s", b"secret %d" % n))).last.id for n in range(3)]
        assert await first.log.erase(ids[1:]) == 2  # the newest one, too: its head must survive

        await until_followed(second, first.log.followed)
        assert [entry.kind for entry in (await second.log.read_after([">"], ids[0], meta=True)).entries] == [
            Kind.ERASED,
            Kind.ERASED,
        ]
        assert (await second.log.append(one("/s", b"more"))).last.index == 3
    async with open_jetstream(nats_alone.url, node="c", settings=settings) as third:
        assert await bodies(third, "/s") == [b"secret 0", b"more"]
        assert (await third.log.entry(ids[2])).kind is Kind.ERASED
        stored = await third.connection.api(f"STREAM.INFO.{settings.prefix}_log")
        assert b"num_deleted" in stored


async def test_the_export_of_any_node_is_the_whole_log(nats_alone: NatsCluster) -> None:
    async with two_nodes(nats_alone) as (first, second):
        for n in range(30):
            await first.log.append(one(f"/s{n % 3}", b"%d" % n, key=Key("a", "/s", str(n), b"d")))
        await first.log.erase([first.log.followed])
        await until_followed(second, first.log.followed)
        upto = first.log.followed
        plans = [await make_plan(node.export, PlanQuestion(0, upto, parts=4)) for node in (first, second)]
        exports = [
            b"".join([piece async for piece in node.export.stream(ExportRange(0, upto))]) for node in (first, second)
        ]

        whole = [entry async for page in first.log.pages(0, upto) for entry in page]
        assert plans[0] == plans[1]
        assert sum(part.rows for part in plans[0].slices) == len(whole)
        assert exports[0] == exports[1]


@pytest.mark.parametrize("sabotaged", [False, True])
async def test_all_parts_are_erased_although_the_server_that_answers_is_behind(
    nats_alone: NatsCluster, sabotaged: bool
) -> None:
    """A direct get that has one part of three; the sabotage takes what it has for all that there is."""
    async with two_nodes(nats_alone) as (first, _):
        parts = (Draft("/s", b"secret", kind=Kind.PART),) * 3
        placed = await first.log.append(Batch((Draft("/s", b"secret"), *parts)))
        store = first.log._store
        direct, page = store._direct, store.page

        async def behind(subject, seq, limit, limit_bytes):
            rows, _ = await direct(subject, seq, limit, limit_bytes)
            return [row for row in rows if row.seq <= placed.first.id + 1], 0

        async def believing(*given, **more):
            rows, _ = await page(*given, **more)
            return rows, True

        store._direct = behind
        if sabotaged:
            store.page = believing

        assert await first.log.erase([placed.first.id]) == 1

        left = [id for id in range(placed.first.id, placed.first.id + 4) if await store.at(id) is not None]
        assert bool(left) is sabotaged


@pytest.mark.parametrize("sabotaged", [False, True])
async def test_an_export_holds_some_mib_of_the_log_at_a_time(
    nats_alone: NatsCluster, sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sabotaged:
        monkeypatch.setattr(reading, "PAGE_BYTES", 2**40)
    async with two_nodes(nats_alone) as (first, _):
        for _ in range(24):
            await first.log.append(one("/large", bytes(1024 * 1024 - 4096)))
        sizes = [sum(len(entry.body) for entry in page) async for page in first.log.pages(0, first.log.followed)]

    assert sum(sizes) >= 24 * (1024 * 1024 - 4096)
    assert (max(sizes) <= 2 * PAGE_BYTES) is not sabotaged


# ── lost answers ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sabotaged", [False, True])
async def test_an_append_whose_answer_is_lost_is_found_and_not_stored_again(
    nats_alone: NatsCluster, sabotaged: bool
) -> None:
    """The sabotage does not find what is there: then it is planned anew, and stored twice."""
    async with two_nodes(nats_alone) as (first, _):
        await first.log.append(one("/s", b"0"))
        appender, wire = first.log._appender, first.connection
        first.log._follower._sink = lambda messages: None  # nor does the follower tell
        ask_batch = wire.ask_batch

        def lose(messages, batch, answer):
            wire.ask_batch = ask_batch
            return ask_batch(messages, batch, lambda headers, data: answer(LOST, b""))

        wire.ask_batch = lose
        if sabotaged:
            appender._store.next = lambda subject, seq: asyncio.sleep(0, None)

        future = first.log.append(Batch((Draft("/s", b"1"), Draft("/t", b"2"))))
        await wait_until_async(lambda: appender._settled and not appender._flying)
        future.cancel()

        subject = f"{wire.prefix}.log.e.s"
        stored = await wire.api(f"STREAM.INFO.{wire.prefix}_log", {"subjects_filter": subject})
        # Created, "0", and "1" once or twice
        assert msgspec.json.decode(stored)["state"]["subjects"][subject] == (4 if sabotaged else 3)


# ── settings ───────────────────────────────────────────────────────────────────────────────────


async def test_a_log_with_other_settings_is_refused_and_left_as_it_is(nats_three: NatsCluster) -> None:
    prefix = new_prefix()
    async with open_jetstream(nats_three.url, node="a", settings=LogSettings(prefix=prefix, replicas=1)) as engine:
        await prepare(engine.log)

    with pytest.raises(ConfigInvalid) as refused:
        async with open_jetstream(nats_three.url, node="b", settings=LogSettings(prefix=prefix, replicas=3)):
            pass

    assert "num_replicas = 1, not 3" in str(refused.value)
    assert "log.replicas=1" in refused.value.remedy


async def test_too_few_servers_for_the_replicas_are_told(nats_alone: NatsCluster) -> None:
    with pytest.raises(EngineGone) as refused:
        async with open_jetstream(nats_alone.url, node="a", settings=LogSettings(prefix=new_prefix(), replicas=3)):
            pass

    assert "log.replicas" in refused.value.remedy


async def test_no_server_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.3)
    with pytest.raises(EngineGone) as refused:
        async with open_jetstream("nats://127.0.0.1:1", node="a", settings=ONE):
            pass

    assert "127.0.0.1:1" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("nats://a", ["nats://a"]),
        ("nats://a:1,b:2", ["nats://a:1", "nats://b:2"]),
        ("nats://a,nats://b", ["nats://a", "nats://b"]),
    ],
)
def test_servers_are_a_list(text: str, urls: list[str]) -> None:
    assert server_urls(text) == urls


def test_a_list_without_a_server_is_refused() -> None:
    with pytest.raises(ConfigInvalid):
        server_urls("nats://a,")


# ── servers that are behind ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sabotaged", [False, True])
async def test_a_read_is_complete_although_the_server_that_answers_is_behind(
    nats_alone: NatsCluster, sabotaged: bool
) -> None:
    """A direct get that has only the beginning of the log; the sabotage does not ask the leader for the rest."""
    async with two_nodes(nats_alone) as (first, _):
        ids = [(await first.log.append(one("/s", b"%d" % n))).last.id for n in range(10)]
        store = first.log._store
        direct = store._direct

        async def behind(subject, seq, limit, limit_bytes):
            rows, _ = await direct(subject, seq, limit, limit_bytes)
            return [row for row in rows if row.seq <= ids[3]], 0

        store._direct = behind
        if sabotaged:
            store.next = lambda subject, seq: asyncio.sleep(0, None)

        pages = [await first.log.read_after([">"], 0), await first.log.read_after(["/s"], 0)]

        whole = [[entry.id for entry in page.entries] == ids for page in pages]
        assert whole == ([False, False] if sabotaged else [True, True])


async def test_a_node_that_stops_without_servers_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a node whose servers are gone, with a publish and a record that wait for them with all patience
    for module in (appending, registry):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 3600)
    with start_nats(tmp_path) as nats:
        async with open_jetstream(nats.url, node="a", settings=ONE) as engine:
            await prepare(engine.log)
            nats.servers[0].kill()
            await wait_until_async(lambda: not engine.connection.connected)
            waiting = [engine.log.append(one("/s", b"x")), asyncio.ensure_future(engine.registry.put("key", b"value"))]
            assert not (await asyncio.wait(waiting, timeout=0.3))[0]
            # When it stops
            engine.leave()
            # Then both are told
            await wait_until_async(lambda: all(future.done() for future in waiting))
            assert [type(future.exception()) for future in waiting] == [EngineGone, EngineGone]
