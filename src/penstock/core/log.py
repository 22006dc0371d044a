"""The contract of the log. `tests/contract/` runs every engine against it.

1.  `append` is done only when the batch is durable, and when this node's followers have seen it.
2.  A batch is stored whole or not at all, also over several streams.
3.  Visible order: once a reader has seen id N, no entry with an id below N ever appears.
4.  A repeated key or producer sequence stores nothing and answers as the first time.
5.  A read says how far it looked (`Page.upto`), never further than this node's followers are.
6.  Trim, expiry and erase never touch numbering: heads and the highest id survive them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from penstock.core.followers import Follower, Followers
from penstock.core.promise import Pending
from penstock.core.wanted_streams import WantedStreams
from penstock.errors import StreamExists
from penstock.limits import PAGE_BYTES, PAGE_ENTRIES
from penstock.values import Appended, Batch, Entry, Head, Page


class Log(Protocol):
    """An ordered, durable sequence of entries, each in one stream."""

    durability: str  # what an acknowledgement means here: "fsync", "memory", "quorum+fsync", "quorum"
    server: str  # the last part of every cursor: one constant for the whole log

    @property
    def followers(self) -> Followers:
        """Who is told of new entries."""
        ...

    @property
    def followed(self) -> int:
        """The highest id that this node's followers have been given."""
        ...

    async def newest(self) -> int:
        """The highest id that any node can have been told; never below `followed`."""
        ...

    @property
    def trimmed_upto(self) -> int:
        """The highest id that was trimmed; 0 if none was."""
        ...

    def append(self, batch: Batch) -> Pending[Appended]:
        """Store *batch* durably; what is returned is done when it is, in order of acceptance.

        Fails with a `CallerError` (nothing was stored), `Busy` (the queue is full), `DiskFull` or
        `EngineGone`. A caller that stops waiting does not take the batch back: it may still be stored.
        """
        ...

    def append_event(self, stream: str, body: bytes) -> Pending[Appended]:
        """As `append` of one event that asks for nothing but to be stored: most do, thousands a second."""
        ...

    def follow(self, follower: Follower, wanted: WantedStreams | None = None) -> None:
        """Call *follower* on the event loop with every entry from now on, in order of id.

        With *wanted* an engine may leave out all entries that these do not ask for.

        A follower must be quick. It sees meta entries and parts, too. One that raises misses those entries, which
        is logged and counted; the others, and whoever waits for the append, are told all the same.
        """
        ...

    async def head(self, stream: str) -> Head | None:
        """Where the stream goes on; None if there is no such stream."""
        ...

    async def heads(self, pattern: str, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[Head]:
        """Streams that match, in order of their names' UTF-8 bytes, those after *after* only."""
        ...

    async def entry(self, id: int) -> Entry | None:
        """The entry with this id, of whatever kind; None if there is none, or not any more."""
        ...

    async def read_index(
        self, stream: str, index: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES, meta: bool = False
    ) -> Page:
        """Data entries of one stream from *index* on, with the parts that belong to them.

        With *meta*, meta entries and tombstones among them as well. `NotFound` if there is no such
        stream, `Trimmed` if the entry at *index* was trimmed.
        """
        ...

    async def read_cursor(
        self, stream: str, chunk: int, offset: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES
    ) -> Page:
        """All entries of one chunk from a byte position on; never beyond the chunk.

        `NotFound` without the stream or chunk; `InputInvalid` if *offset* is beyond the end or inside
        a line; `Trimmed` if it was trimmed.
        """
        ...

    async def read_after(
        self, patterns: Sequence[str], after: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES,
        meta: bool = False, ahead: bool = False,
    ) -> Page:  # fmt: skip
        """Entries of all streams that match any of *patterns*, with ids greater than *after*.

        Looks at a bounded number of entries: a page may be empty although `more` is true. With *ahead* the caller
        will go on where this page ends, and the engine may begin with the next one.
        `Trimmed` if *after* lies below the trim point.
        """
        ...

    async def id_before(self, ms: int) -> int:
        """The highest id that was published before this time; the trim point, 0 at first, if none is left of those.

        Times hardly ever go back from one entry to the next; where they do, the answer is near. So nothing may
        be dropped because of it: see `times`.
        """
        ...

    async def times(self, after: int, limit: int = PAGE_ENTRIES) -> list[tuple[int, int]]:
        """Ids and times (`published_ms`) of the entries after *after*, of whatever kind, ascending by id.

        Begins above the trim point, and never goes further than this node's followers. Empty at the end only.
        """
        ...

    async def trim(self, upto: int) -> int:
        """Drop every entry with an id up to *upto*; return how many went."""
        ...

    async def erase(self, ids: Sequence[int]) -> int:
        """Take the bodies of these data entries away, leaving tombstones; return how many."""
        ...

    async def expire(self, limit: int = 10_000) -> int:
        """Turn entries whose time has run out into tombstones; return how many.

        Reads treat an entry as expired from its time on, whether or not this has run.
        """
        ...

    async def stored_bytes(self) -> int:
        """Bytes the log takes on its disk, roughly."""
        ...


async def prepare(log: Log) -> None:
    """See to the two streams that Event Horizon expects in an empty log."""
    for name in ("/", "/_sub"):
        if await log.head(name) is None:
            with suppress(StreamExists):  # another node of a cluster starts at the same time
                await log.append(Batch(create=name))
