"""Appends at the engine call on three NATS servers, against bare pipelined publishes of nats-py on the same ones.

The floor is the quickest way that nats-py has: `publish` with one shared inbox, where an acknowledgement is counted
and not even read. Its own interface for the same, `publish_async` with a future per message, is reported beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from bench.rig import machine
from bench.rig.report import Figure, Report, arguments, median, reporting, say, settle
from bench.rig.requests import event
from penstock.core.log import prepare
from penstock.engines.jetstream import JetStreamEngine, open_jetstream
from penstock.engines.jetstream.connection import ELECTING_SECONDS
from penstock.engines.jetstream.newest_messages import drop_stream
from penstock.http.event_loop import run_loop
from penstock.settings import LogSettings
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
    with _collecting_rarely(), reporting("cluster", given) as (report, folder):
        for sync in SYNCS:
            with start_nats(folder / f"nats-{sync}", servers=3, sync=sync) as cluster:
                run_loop(_measure(cluster, sync, given, report))
    return 0


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Look for cycles as seldom as the server does; that holds for the floors, too."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def _measure(cluster: NatsCluster, sync: str, given: argparse.Namespace, report: Report) -> None:
    seconds, rounds = (0.5, 1) if given.quick else (given.seconds, given.rounds)
    streams = 100 if given.quick else STREAMS
    bare: list[Round] = []
    futures: list[Round] = []
    engine: list[Round] = []
    for number in range(rounds):
        say(f"sync_interval {sync}: round {number + 1} of {rounds}")
        settle(given)
        bare.append(await _bare(cluster, streams, seconds))
        engine.append(await _engine(cluster, streams, seconds))
        futures.append(await _futures(cluster, streams, seconds))
    name = f"appends over {streams:,} streams, replicas {REPLICAS}, sync_interval {sync}"
    detail = {"in_flight": IN_FLIGHT, "event_bytes": len(event()), "rounds": rounds, "cpu_us": _cpu(engine)}
    floor_of = f"bare pipelined nats-py, {IN_FLIGHT:,} in flight"
    report.add(
        Figure(name, _rate(engine), "events/s", _rate(bare), floor_of, 0.5, 0.8, judged="ratio", higher_is_better=True,
               ratio=_ratio(engine, bare), detail=detail | {"cpu_us_floor": _cpu(bare)})
    )  # fmt: skip
    floor_of = f"nats-py's publish_async, {IN_FLIGHT:,} in flight"
    report.add(
        Figure(f"the same, sync_interval {sync}", _rate(engine), "events/s", _rate(futures), floor_of,
               higher_is_better=True, ratio=_ratio(engine, futures), detail=detail | {"cpu_us_floor": _cpu(futures)})
    )  # fmt: skip


class Round(NamedTuple):
    """What one way of storing reached in some seconds."""

    rate: float
    cpu_us: float  # per event, of the servers and this client together


def _rate(rounds: list[Round]) -> float:
    return median([found.rate for found in rounds])


def _cpu(rounds: list[Round]) -> float:
    return round(median([found.cpu_us for found in rounds]), 1)


def _ratio(ours: list[Round], floor: list[Round]) -> float:
    """The middle one of the rounds' own ratios: the machine's mood changes from round to round."""
    return median([one.rate / other.rate for one, other in zip(ours, floor, strict=True)])


@asynccontextmanager
async def _client(cluster: NatsCluster) -> AsyncIterator[Client]:
    """A bare client of nats-py that is closed in every case: a loop does not end well over an open socket."""
    client = await nats.connect([server.url for server in cluster.servers], pending_size=64 << 20)
    try:
        yield client
    finally:
        await client.close()


async def _bare(cluster: NatsCluster, streams: int, seconds: float) -> Round:
    """Messages a second, each acknowledged, with one shared inbox for the acknowledgements."""
    async with _client(cluster) as client:
        return await _bare_with(client, cluster, streams, seconds)


async def _bare_with(client: Client, cluster: NatsCluster, streams: int, seconds: float) -> Round:
    name = f"bare_{secrets.token_hex(4)}"
    jetstream = client.jetstream(timeout=ELECTING_SECONDS)
    await jetstream.add_stream(name=name, subjects=[f"{name}.>"], num_replicas=REPLICAS)
    inbox = client.new_inbox()
    room = asyncio.Semaphore(IN_FLIGHT)

    async def acknowledged(message: Msg) -> None:
        room.release()

    await client.subscribe(inbox, cb=acknowledged, pending_msgs_limit=-1)
    body = event()

    async def one(number: int) -> None:
        await client.publish(f"{name}.s{number % streams}", body, reply=inbox)

    found = await _timed(cluster, seconds, room, one)
    await jetstream.delete_stream(name)
    return found


async def _futures(cluster: NatsCluster, streams: int, seconds: float) -> Round:
    """The same by nats-py's own interface: a future for each message."""
    async with _client(cluster) as client:
        return await _futures_with(client, cluster, streams, seconds)


async def _futures_with(client: Client, cluster: NatsCluster, streams: int, seconds: float) -> Round:
    name = f"futures_{secrets.token_hex(4)}"
    jetstream = client.jetstream(timeout=ELECTING_SECONDS, publish_async_max_pending=2 * IN_FLIGHT)
    await jetstream.add_stream(name=name, subjects=[f"{name}.>"], num_replicas=REPLICAS)
    room, body = asyncio.Semaphore(IN_FLIGHT), event()

    def acknowledged(future: asyncio.Future[Any]) -> None:
        future.result()
        room.release()

    async def one(number: int) -> None:
        (await jetstream.publish_async(f"{name}.s{number % streams}", body)).add_done_callback(acknowledged)

    found = await _timed(cluster, seconds, room, one)
    await jetstream.delete_stream(name)
    return found


async def _engine(cluster: NatsCluster, streams: int, seconds: float) -> Round:
    """Appends a second, each durable and followed."""
    settings = LogSettings(prefix=f"bench_{secrets.token_hex(4)}", replicas=REPLICAS)
    async with open_jetstream(cluster.url, node="bench", settings=settings) as engine:
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

        found = await _timed(cluster, seconds, room, one)
        if wrong:
            raise wrong[0]
        await _drop(engine, settings.prefix)
    return found


async def _timed(
    cluster: NatsCluster, seconds: float, room: asyncio.Semaphore, one: Callable[[int], Coroutine[Any, Any, None]]
) -> Round:
    """Call *one* as fast as there is room, and count what was answered."""
    used = _used(cluster)
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        await room.acquire()
        await one(number)
        number += 1
        if number % 256 == 0:
            await asyncio.sleep(0)
    for _ in range(IN_FLIGHT):
        await room.acquire()
    taken = time.perf_counter() - began
    return Round(number / taken, 1e6 * (_used(cluster) - used) / number)


def _used(cluster: NatsCluster) -> float:
    """Seconds of CPU that the servers and this process have used."""
    return time.process_time() + sum(machine.cpu_seconds(server.process.pid) for server in cluster.servers)


async def _drop(engine: JetStreamEngine, prefix: str) -> None:
    for name in ("log", "registry"):
        await drop_stream(engine.connection, f"{prefix}_{name}")
