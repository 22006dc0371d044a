"""The log on JetStream equals the memory log, whatever is done to both; only ids may skip other numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.clock import ManualClock
from penstock.engines.jetstream import JetStreamEngine, open_jetstream
from penstock.engines.jetstream.newest_messages import drop_stream
from penstock.engines.memory import MemoryEngine
from penstock.errors import OperatorError, PenstockError, Trimmed
from penstock.settings import LogSettings
from penstock.testing.nats import NatsCluster, start_nats
from penstock.values import Appended, Batch, Entry, Head, Kind
from tests.cluster.homes import new_prefix
from tests.engines.test_model import STREAMS, batches, streams

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(batches(), min_size=1, max_size=5)),
        st.tuples(st.just("append"), st.lists(batches(), min_size=1, max_size=5)),
        st.tuples(st.just("create"), streams),
        st.tuples(st.just("trim"), st.integers(0, 30)),
        st.tuples(st.just("erase"), st.lists(st.integers(0, 30), max_size=3)),
        st.tuples(st.just("advance"), st.sampled_from([1.0, 6.0, 90_000.0])),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=8,
)


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_nats(tmp_path_factory.mktemp("model"), sync="2m") as cluster:
        yield cluster


class Pair:
    """The model and the engine, given the same calls."""

    def __init__(self, nats: NatsCluster) -> None:
        self._nats, self._settings = nats, LogSettings(prefix=new_prefix(), replicas=1)
        self.clock = ManualClock()
        self.model = MemoryEngine(clock=self.clock)
        self.engine = self._open()

    def _open(self) -> JetStreamEngine:
        return open_jetstream(self._nats.url, node="n", clock=self.clock, settings=self._settings)

    async def __aenter__(self) -> Pair:
        await self.engine.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await drop_stream(self.engine.connection, f"{self._settings.prefix}_log")
        await self.engine.__aexit__(None, None, None)

    async def step(self, name: str, value: Any) -> None:
        if name == "advance":
            self.clock.advance(value)
        elif name == "reopen":
            await self.engine.__aexit__(None, None, None)
            self.engine = self._open()
            await self.engine.__aenter__()
        elif name == "append":
            for batch in value:  # one after the other: streams that are written at once may end in any order
                assert await answer(self.engine.log.append(batch)) == await answer(self.model.log.append(batch))
        elif name == "create":
            batch = Batch(create=value)
            assert await answer(self.engine.log.append(batch)) == await answer(self.model.log.append(batch))
        else:
            await self._retain(name, value)

    async def _retain(self, name: str, value: Any) -> None:
        """Trim or erase the same entries in both; entries are numbered as the model has them."""
        pairs = list(zip(await self.everything(self.model), await self.everything(self.engine), strict=True))
        if name == "trim" and value < len(pairs):
            await self.model.log.trim(pairs[value][0].id)
            await self.engine.log.trim(pairs[value][1].id)
        elif name == "erase":
            live = [pairs[n] for n in value if n < len(pairs) and pairs[n][0].kind is Kind.DATA]
            gone = [
                await self.model.log.erase([m.id for m, _ in live]),
                await self.engine.log.erase([e.id for _, e in live]),
            ]
            assert gone[0] == gone[1]

    async def everything(self, engine: Any) -> list[Entry]:
        found: list[Entry] = []
        after, more = engine.log.trimmed_upto, True
        while more:
            page = await engine.log.read_after([">", "/_sub", "/_sub/>"], after, meta=True, limit=7)
            found += page.entries
            after, more = page.upto, page.more
        return found

    async def compare(self) -> None:
        model, engine = await self.everything(self.model), await self.everything(self.engine)
        assert [without_id(entry) for entry in engine] == [without_id(entry) for entry in model]
        for stream in STREAMS:
            assert head(await self.engine.log.head(stream)) == head(await self.model.log.head(stream))
            if await self.model.log.head(stream) is not None:
                await self._compare_reads(stream)
        heads = [[head(one) for one in await each.log.heads(">")] for each in (self.engine, self.model)]
        assert heads[0] == heads[1]

    async def _compare_reads(self, stream: str) -> None:
        lines = [entry for entry in await self.everything(self.model) if entry.stream == stream and entry.size]
        for index in range(4):
            for meta in (False, True):
                found = [await pages(each.log.read_index(stream, index, limit=3, meta=meta)) for each in self._both]
                assert found[0] == found[1]
        for offset in {0, *(line.offset for line in lines), *(line.offset + 1 for line in lines[:2])}:
            found = [await pages(each.log.read_cursor(stream, 0, offset, limit=3)) for each in self._both]
            assert found[0] == found[1]

    @property
    def _both(self) -> tuple[Any, Any]:
        return self.engine, self.model


def without_id(entry: Entry) -> tuple[Any, ...]:
    return tuple(getattr(entry, name) for name in entry.__struct_fields__ if name != "id")


def head(found: Head | None) -> tuple[Any, ...] | None:
    return found and (found.stream, found.next_index, found.chunk, found.offset, found.subscribers, found.last_ms)


async def answer(appending: asyncio.Future[Appended]) -> Any:
    """Where it went, but for the id; or the kind of error."""
    try:
        found = await appending
    except OperatorError:
        raise
    except (PenstockError, ValueError) as error:
        return type(error)
    places = [(place.stream, place.index, place.chunk, place.end) for place in (found.first, found.last)]
    return found.count, found.repeated, places


async def pages(reading: Any) -> Any:
    try:
        page = await reading
    except Trimmed:
        return "trimmed"
    except PenstockError as error:
        return type(error)
    return [without_id(entry) for entry in page.entries], page.more


@given(steps=steps)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_the_log_on_jetstream_equals_the_model(nats: NatsCluster, steps: list[tuple[str, Any]]) -> None:
    async def run() -> None:
        async with Pair(nats) as pair:
            for name, value in steps:
                await pair.step(name, value)
            await pair.compare()

    asyncio.run(run())
