"""The SQLite log equals the memory log, whatever is done to both, and however small its folds are."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.clock import ManualClock
from penstock.engines.memory import MemoryEngine
from penstock.engines.sqlite.engine import SqliteEngine, SqliteOptions, open_sqlite
from penstock.engines.sqlite.writer import Limits
from penstock.errors import OperatorError, PenstockError
from penstock.values import Batch, Draft, Expect, Key, Kind, Page, Producer
from penstock.wire import eventhorizon

STREAMS = ["/", "/a", "/a/b", "/c", "/users/1", "/users/2", "/_sub/x"]
PATTERNS = [[">"], ["/a"], ["/a", "/users/2"], ["/users/*"], ["/a/>", "/_sub/x"], ["/none"], ["/*"]]
SUBSCRIBED = eventhorizon.subscribed("/_sub/x", eventhorizon.timestamp(0))

streams = st.sampled_from(STREAMS)
limits = {"limit": st.integers(1, 6), "limit_bytes": st.sampled_from([1, 40, 10**6])}
ahead_limits = {"limit": st.integers(1, 2), "limit_bytes": st.sampled_from([40, 10**6])}
indexes = st.integers(0, 12)
seldom = st.sampled_from([False] * 7 + [True])


@st.composite
def batches(draw) -> Batch:
    drafts = []
    for _ in range(draw(st.integers(1, 4))):
        stream = draw(streams)
        kind = draw(st.sampled_from([Kind.DATA] * 6 + [Kind.PART, Kind.META]))
        if kind is Kind.META:
            drafts.append(Draft(stream, SUBSCRIBED, draw(st.sampled_from(["Subscribed", "Unsubscribed"])), kind=kind))
            continue
        body = draw(st.sampled_from([b"", b"x", b"\xff\n\x00", b"y" * 30]))
        expires_ms = draw(st.sampled_from([None] * 4 + [ManualClock().now_ms() + 5000]))
        if kind is Kind.PART:  # belongs to an entry before it in the same batch, and expires with it
            drafts.append(Draft(stream, b"first", expires_ms=expires_ms))
        drafts.append(Draft(stream, body, draw(st.sampled_from(["", "t"])), "", expires_ms, kind))
    keys = st.builds(Key, st.just("me"), streams, st.sampled_from("klmn"), st.sampled_from([b"1", b"1", b"2"]))
    return Batch(
        tuple(drafts),
        make_missing=not draw(seldom),
        expect=draw(st.builds(Expect, st.just(drafts[0].stream), index=st.integers(0, 3))) if draw(seldom) else None,
        key=draw(keys) if draw(seldom) else None,
        producer=draw(st.builds(Producer, st.sampled_from("ab"), st.just("p"), st.integers(1, 9)))
        if draw(seldom)
        else None,
    )


changes = st.one_of(
    st.tuples(st.just("append"), st.lists(batches(), min_size=1, max_size=8)),
    st.tuples(st.just("append"), st.lists(batches(), min_size=1, max_size=8)),
    st.tuples(st.just("append"), st.lists(batches(), min_size=1, max_size=8)),
    st.tuples(st.just("create"), streams),
    st.tuples(st.just("trim"), st.integers(0, 40)),
    st.tuples(st.just("erase"), st.lists(st.integers(1, 40), max_size=4)),
    st.tuples(st.just("expire"), st.integers(1, 3)),
    st.tuples(st.just("advance"), st.sampled_from([1.0, 6.0, 90_000.0])),
    st.tuples(st.just("reopen"), st.booleans()),
)


def call(name: str, **values: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(st.just(name), st.fixed_dictionaries(values))


times = st.integers(0, 100_000).map(lambda ms: ManualClock().now_ms() + ms)
ids = st.integers(0, 40)
reads = st.one_of(
    call("read_index", stream=streams, index=indexes, meta=st.booleans(), **limits),
    call("read_line", stream=streams, line=indexes, shift=st.sampled_from([0, 0, 0, 1]), **limits),
    call("read_after", patterns=st.sampled_from(PATTERNS), after=ids, meta=st.booleans(), **limits),
    call("read_on", patterns=st.sampled_from(PATTERNS[:3]), meta=st.booleans(), **ahead_limits),
    call("heads", pattern=st.sampled_from([">", "/a", "/users/*"]), limit=st.integers(1, 5)),
    call("entry", id=ids),
    call("id_before", ms=times),
)
options = st.builds(
    SqliteOptions,
    limits=st.builds(
        Limits,
        fold_entries=st.sampled_from([1, 2, 5, 10**6]),
        fold_rows=st.sampled_from([1, 2, 1000]),
        fold_few=st.sampled_from([0, 2, 64]),
    ),
    known_streams=st.sampled_from([1, 2, 1000]),
    synchronous=st.just("OFF"),  # this is not about durability, and thousands of commits are made
)


class Pair:
    """The model and the engine, given the same calls."""

    def __init__(self, directory: Path, options: SqliteOptions) -> None:
        self.clock = ManualClock()
        self.model = MemoryEngine(clock=self.clock)
        self._directory, self._options, self._copies = directory, options, 0
        self._positions: dict[str, int] = {}  # of those who read on, page by page
        self.engine = self._open()

    def _open(self) -> SqliteEngine:
        return open_sqlite(self._directory, node="n", clock=self.clock, options=self._options)

    async def __aenter__(self) -> Pair:
        await self.engine.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.engine.__aexit__(None, None, None)

    async def change(self, name: str, value) -> None:
        if name == "advance":
            self.clock.advance(value)
        elif name == "reopen":
            await self._reopen(cleanly=value)
        elif name == "append":
            await self._both(lambda engine: answers([engine.log.append(batch) for batch in value]))
        elif name == "create":
            await self._both(lambda engine: answers([engine.log.append(Batch(create=value))]))
        else:
            await self._both(lambda engine: answers([getattr(engine.log, name)(value)]))
        assert self.model.log.followed == self.engine.log.followed
        assert self.model.log.trimmed_upto == self.engine.log.trimmed_upto

    async def read(self, name: str, values: dict) -> None:
        if name == "read_line":
            name, values = "read_cursor", self._at_line(**values)
        if name == "read_on":
            await self._read_on(values)
            return
        wanted = {key: value for key, value in values.items() if key not in ("limit", "limit_bytes", "ahead")}
        [whole], [found] = [
            await answers([getattr(self.model.log, name)(**wanted)]),
            await answers([getattr(self.engine.log, name)(**values)]),
        ]
        if isinstance(whole, Page) and isinstance(found, Page):
            check_page(found, whole, values.get("limit", 1000), values.get("limit_bytes", 10**9))
            self._upto = found.upto
            assert found.entries or not whole.entries or name == "read_after"
        elif name == "heads":
            assert found == whole[: values.get("limit")]
        else:
            assert found == whole

    async def _read_on(self, values: dict) -> None:
        """The next two pages of a replay, for which the engine reads ahead."""
        who = repr(values)
        for _ in range(2):
            after = max(self._positions.get(who, 0), self.model.log.trimmed_upto)
            await self.read("read_after", {"after": after, "ahead": True, **values})
            self._positions[who] = self._upto

    async def read_all(self) -> None:
        """Read every stream in every way, to its end."""
        for stream in STREAMS:
            first = min(
                (e.index for e in self.model.log._entries if e.stream == stream and e.index is not None), default=0
            )
            await self.read("read_index", {"stream": stream, "index": first, "meta": True})
            await self.read("read_line", {"stream": stream, "line": 0, "shift": 0})
            await self.read("read_after", {"patterns": [stream], "after": self.model.log.trimmed_upto})
            await self.read("heads", {"pattern": stream})
        await self.read("read_after", {"patterns": [">"], "after": self.model.log.trimmed_upto, "meta": True})

    def _at_line(self, stream: str, line: int, shift: int, **values) -> dict:
        """The beginning of some line, or a byte beside it."""
        lines = [entry for entry in self.model.log._entries if entry.stream == stream and entry.size]
        offset = (lines[line % len(lines)].offset if lines else 0) + shift
        return {"stream": stream, "chunk": 0, "offset": offset, **values}

    async def _both(self, do) -> None:
        expected, found = await do(self.model), await do(self.engine)
        assert found == expected

    async def _reopen(self, *, cleanly: bool) -> None:
        """Close and open again; or go on from what a crash would have left."""
        if not cleanly:
            self._copies += 1
            crashed = self._directory.with_name(f"crashed {self._copies}")
            shutil.copytree(self._directory, crashed, ignore=shutil.ignore_patterns("*-shm"))
            self._directory = crashed
        await self.engine.__aexit__(None, None, None)
        self.engine = self._open()
        await self.engine.__aenter__()


def check_page(page: Page, whole: Page, limit: int, limit_bytes: int) -> None:
    """The page is a beginning of the whole, within its limits, and does not claim to have seen more."""
    count = len(page.entries)
    assert list(page.entries) == list(whole.entries[:count])  # read ahead, they come as rows
    pieces = [entry for entry in page.entries if entry.size]  # parts do not count: they stay with their entry
    assert len(pieces) <= limit
    assert len(pieces) <= 1 or sum(len(entry.body) for entry in pieces) <= limit_bytes
    if page.more:
        beyond = whole.entries[count].id if count < len(whole.entries) else page.upto + 1
        assert max([0, *(entry.id for entry in page.entries)]) <= page.upto < beyond
    else:
        assert (count, page.upto) == (len(whole.entries), whole.upto)


async def answers(calls: list) -> list:
    """Results and the kinds of errors, comparable between engines."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert not [answer for answer in found if isinstance(answer, OperatorError)]
    return [type(answer) if isinstance(answer, PenstockError) else answer for answer in found]


@given(options=options, steps=st.lists(st.one_of(changes, changes, reads), max_size=25))
@settings(max_examples=60)
def test_the_log_on_sqlite_equals_the_model(options, steps):
    async def run(directory: Path) -> None:
        async with Pair(directory, options) as pair:
            for name, value in steps:
                if isinstance(value, dict):
                    await pair.read(name, value)
                else:
                    await pair.change(name, value)
            await pair.read_all()

    with tempfile.TemporaryDirectory() as directory:
        (home := Path(directory, "data")).mkdir()
        asyncio.run(run(home))
