"""Appends at the engine call on three NATS servers, against bare pipelined publishes of nats-py on the same ones."""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import nats
import uvloop
from nats.aio.msg import Msg

from bench.rig.report import Figure, Report, arguments, median, reporting, say, settle
from bench.rig.requests import event
from penstock.core.log import prepare
from penstock.storage.jetstream import JetStreamEngine, open_jetstream
from penstock.storage.jetstream.engine import Options
from penstock.testing.nats import NatsCluster, start_nats
from penstock.values import Batch, Draft

STREAMS = 4_000
IN_FLIGHT = 4_000
REPLICAS = 3
SYNCS = ("2m", "always")  # JetStream's `sync_interval`: its default, and an fsync before every answer


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("cluster", "Appends on NATS JetStream with three replicas.")
    parser.add_argument("--seconds", type=float, default=3, help="of each round")
    given = parser.parse_args(argv)
    with reporting("cluster", given) as (report, folder):
        for sync in SYNCS:
            with start_nats(folder / f"nats-{sync}", servers=3, sync=sync) as cluster:
                uvloop.run(_measure(cluster, sync, given, report))
    return 0


async def _measure(cluster: NatsCluster, sync: str, given: argparse.Namespace, report: Report) -> None:
    seconds, rounds = (0.5, 1) if given.quick else (given.seconds, given.rounds)
    streams = 100 if given.quick else STREAMS
    floors: list[float] = []
    rates: list[float] = []
    for number in range(rounds):
        say(f"sync_interval {sync}: round {number + 1} of {rounds}")
        settle(given)
        floors.append(await _bare(cluster, streams, seconds))
        rates.append(await _engine(cluster, streams, seconds))
    name = f"appends over {streams:,} streams, replicas {REPLICAS}, sync_interval {sync}"
    floor_of = f"bare pipelined nats-py, {IN_FLIGHT:,} in flight"
    detail = {"in_flight": IN_FLIGHT, "event_bytes": len(event()), "rounds": rounds}
    report.add(
        Figure(name, median(rates), "events/s", median(floors), floor_of, 0.5, 0.8, judged="ratio",
               higher_is_better=True, detail=detail)
    )  # fmt: skip


async def _bare(cluster: NatsCluster, streams: int, seconds: float) -> float:
    """Messages a second, each acknowledged, with one shared inbox for the acknowledgements."""
    client = await nats.connect([server.url for server in cluster.servers], pending_size=64 << 20)
    name = f"bare_{uuid.uuid4().hex}"
    await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"], num_replicas=REPLICAS)
    inbox = client.new_inbox()
    room = asyncio.Semaphore(IN_FLIGHT)

    async def acknowledged(message: Msg) -> None:
        room.release()

    await client.subscribe(inbox, cb=acknowledged, pending_msgs_limit=-1)
    body = event()

    async def one(number: int) -> None:
        await client.publish(f"{name}.s{number % streams}", body, reply=inbox)

    rate = await _timed(seconds, room, one)
    await client.jetstream().delete_stream(name)
    await client.close()
    return rate


async def _engine(cluster: NatsCluster, streams: int, seconds: float) -> float:
    """Appends a second, each durable and followed."""
    options = Options(prefix=f"bench_{uuid.uuid4().hex}", replicas=REPLICAS)
    async with open_jetstream(cluster.url, node="bench", options=options) as engine:
        await prepare(engine.log)
        batches = [Batch((Draft(f"/bench/s{number}", event()),)) for number in range(streams)]
        await asyncio.gather(*(engine.log.append(batch) for batch in batches))  # the streams are made before
        room = asyncio.Semaphore(IN_FLIGHT)
        wrong: list[BaseException] = []

        def answered(future: asyncio.Future[Any]) -> None:
            if (error := future.exception()) is not None:
                wrong.append(error)
            room.release()

        async def one(number: int) -> None:
            engine.log.append(batches[number % streams]).add_done_callback(answered)

        rate = await _timed(seconds, room, one)
        if wrong:
            raise wrong[0]
        await _drop(engine, options.prefix)
    return rate


async def _timed(seconds: float, room: asyncio.Semaphore, one: Callable[[int], Coroutine[Any, Any, None]]) -> float:
    """Call *one* as fast as there is room, and count what was answered."""
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        await room.acquire()
        await one(number)
        number += 1
        if number % 256 == 0:
            await asyncio.sleep(0)
    for _ in range(IN_FLIGHT):
        await room.acquire()
    return number / (time.perf_counter() - began)


async def _drop(engine: JetStreamEngine, prefix: str) -> None:
    for name in ("log", "registry"):
        await engine.connection.api(f"STREAM.DELETE.{prefix}_{name}")
