"""The backup that docs/cluster.md describes: servers are stopped, their stores copied, and others start on the copy."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from penstock.core.clock import ManualClock
from penstock.core.log import prepare
from penstock.engines.jetstream import JetStreamEngine, open_jetstream
from penstock.engines.jetstream.connection import JetStreamRefused, NatsConnection
from penstock.settings import LogSettings
from penstock.testing import start_nats, wait_until_async
from penstock.values import Batch, Draft, Key, NewItem

KEYED = Batch((Draft("/orders", b"keyed"),), key=Key("me", "/orders", "k", b"digest"))


def open_engine(url: str, clock: ManualClock) -> JetStreamEngine:
    return open_jetstream(url, node="here", clock=clock, settings=LogSettings(replicas=3))


async def test_servers_on_a_copy_of_the_stores_have_everything(tmp_path: Path) -> None:
    clock, before, after = ManualClock(), tmp_path / "before", tmp_path / "after"
    # Given a cluster with something of everything: entries, a key, a trim, a record, an item
    with start_nats(before, servers=3) as nats:
        async with open_engine(nats.url, clock) as engine:
            await prepare(engine.log)
            gone = await engine.log.append(Batch((Draft("/quiet", b"old"), Draft("/orders", b"old"))))
            await engine.log.trim(gone.last.id)
            kept = [await engine.log.append(Batch((Draft("/orders", b"%d" % n),))) for n in range(20)]
            keyed = await engine.log.append(KEYED)
            record = await engine.registry.put("a/b", b"value")
            month = "2026_11"
            await engine.mailbox.make_month(month)
            await engine.mailbox.put("device", month, [NewItem("m1", body=b"waits")])
        for server in nats.servers:
            server.stop()
    # When other servers start on a copy of their stores
    after.mkdir()
    for server in nats.servers:
        shutil.copytree(before / server.name, after / server.name)
    with start_nats(after, servers=3) as copy:
        async with open_engine(copy.url, clock) as engine:
            # Then everything is there, and goes on where it was
            page = await engine.log.read_index("/orders", 1)
            assert [entry.body for entry in page.entries] == [*(b"%d" % n for n in range(20)), b"keyed"]
            assert [entry.id for entry in page.entries][:-1] == [appended.last.id for appended in kept]
            assert engine.log.trimmed_upto == gone.last.id
            again = await engine.log.append(KEYED)
            assert (again.last, again.repeated) == (keyed.last, True)
            assert (await engine.log.append(Batch((Draft("/quiet", b"new"),)))).last.index == 1
            assert await engine.registry.get("a/b") == record
            assert [item.body for item in await engine.mailbox.take("device", month)] == [b"waits"]


async def test_a_log_is_made_although_the_leader_stops_with_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_nats(tmp_path, servers=3) as nats:
        report = nats.servers[0].ask("/jsz") or {}
        leader = next(one for one in nats.servers if one.name == report["meta_cluster"]["leader"])
        left = next(one for one in nats.servers if one is not leader)
        asked, api = [], NatsConnection.api

        async def stopped(
            connection: NatsConnection, subject: str, question: object = None, *, within: float = 5
        ) -> bytes:
            if subject.startswith("STREAM.CREATE."):
                asked.append(subject)
                if len(asked) == 1:
                    leader.pause()
                elif len(asked) == 2:  # what a server answers while there is no leader, if it has noticed by then
                    raise JetStreamRefused(10008, "JetStream system temporarily unavailable")
            return await api(connection, subject, question, within=within)

        monkeypatch.setattr(NatsConnection, "api", stopped)
        async with open_engine(left.url, ManualClock()) as engine:
            await prepare(engine.log)
        assert asked.count("STREAM.CREATE.penstock_log") > 2


async def test_an_engine_waits_for_servers_that_are_still_electing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_nats(tmp_path, servers=3) as nats:
        async with open_engine(nats.url, ManualClock()) as engine:
            await prepare(engine.log)
        asked, api = [], NatsConnection.api

        async def noted(
            connection: NatsConnection, subject: str, question: object = None, *, within: float = 5
        ) -> bytes:
            asked.append(subject)
            return await api(connection, subject, question, within=within)

        monkeypatch.setattr(NatsConnection, "api", noted)
        monkeypatch.setattr("penstock.engines.jetstream.newest_messages._TRY_SECONDS", 0.2)
        # Given servers without a majority, of which nobody answers for the log
        leader = nats.leader_of("penstock_log")
        left, other = (server for server in nats.servers if server is not leader)
        leader.pause()
        other.pause()
        opening = asyncio.create_task(open_engine(left.url, ManualClock()).__aenter__())
        await wait_until_async(lambda: asked.count("STREAM.INFO.penstock_log") > 3)
        assert not opening.done()
        # When they are back, it opens
        leader.resume()
        other.resume()
        opened = await opening
        await opened.__aexit__(None, None, None)
