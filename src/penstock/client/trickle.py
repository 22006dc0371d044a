"""Trickle from Python: publish segments, and read them as they come.

    async with Publisher("http://127.0.0.1:8800/trickle", "cam1", token=token) as publisher:
        await publisher.send(b"a whole segment")
        async with publisher.segment() as segment:          # or one that is still being made
            await segment.write(b"the beginning, ")
            await segment.write(b"and the rest")

    async for segment in Subscriber("http://127.0.0.1:8800/trickle", "cam1", start=-1, token=token):
        async for piece in segment:
            ...

Both connect to the next segment while the current one is under way. `client/trickle_local.py` has the same two
for channels in memory.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Self
from urllib.parse import urlencode

from penstock.client.http import ApiError, ServerUnreachable, parse_refusal
from penstock.client.trickle_http import Peer, StreamedAnswer, Upload
from penstock.wire import trickle
from penstock.wire.retrying import RetryPolicy

LIVE, OLDEST, FAIL = "live", "oldest", "fail"
"""What a subscriber does when its segment is not there any more: skip to the live edge, go on with the oldest that
is left, or raise `SegmentMissing`."""

_RETRY: Final = RetryPolicy(first=0.25, longest=2.0)
_WAIT: Final = "30"  # seconds after which a reader asks anew: a connection that died silently is noticed


class TrickleError(ApiError):
    """The server did not do what was asked."""

    def __init__(self, status: int, code: str, message: str, remedy: str = ApiError.remedy) -> None:
        super().__init__(status, code, f"{status}: {message}", remedy)


class ChannelMissing(TrickleError):
    """There is no such channel, or not any more."""


class SegmentMissing(TrickleError):
    """That segment cannot be had; the numbers say which can."""

    def __init__(self, seq: int, latest: int, oldest: int) -> None:
        super().__init__(
            trickle.MISSING, "segment_missing", f"segment {seq} is not there; {oldest} to {latest - 1} are"
        )
        self.seq, self.latest, self.oldest = seq, latest, oldest


class SegmentCut(TrickleError):
    """A segment ended before it was whole, and will never be. The subscriber can go on with the next."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(trickle.MISSING, "segment_cut", f"segment {seq} ended before it was whole: {why}")
        self.seq = seq


class Closed(TrickleError):
    """The channel was closed while it was written to."""


async def _problem(answer: StreamedAnswer) -> TrickleError:
    kind = ChannelMissing if answer.status == 404 else TrickleError
    error = parse_refusal(answer.status, await answer.read())
    if trickle.CLOSED.lower() in answer.headers:
        kind = Closed
    return kind(answer.status, error.code, str(error), error.remedy)


async def _pause(failures: int) -> None:
    await asyncio.sleep(_RETRY.delay(failures, random.random()))  # noqa: S311 - spreads retries, guards nothing


class Outgoing:
    """A segment that is being made."""

    def __init__(self, seq: int, upload: Upload) -> None:
        self.seq, self._upload = seq, upload

    async def write(self, data: bytes) -> None:
        """Send more of it. Waits while the server does not take it; raises if it has refused the segment."""
        await self._upload.write(data)
        if self._upload.answered:
            raise await _problem(await self._upload.answer())


class Publisher:
    """Writes a channel. Lives in `async with`; what it began is ended when the block ends, the channel is not.

    It begins where the channel is, also after a restart of its program: it asks for the next seq and says
    Reset, so that readers of a segment it left unfinished are not kept waiting.
    """

    def __init__(
        self,
        url: str,
        channel: str,
        *,
        token: str = "",
        content_type: str = "",
        record: bool = False,
        create: bool = True,
        retries: int = 5,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._peer, self._channel = Peer(url, token, context=context), channel
        self._content_type, self._record, self._create, self._retries = content_type, record, create, retries
        self.seq = 0  # of the next segment
        self._reset = True
        self._next: Upload | None = None  # connected ahead

    async def __aenter__(self) -> Self:
        if self._create:
            await self._ask("POST", query=urlencode({"record": "true"}) if self._record else "")
        answer = await self._peer.ask("GET", (self._channel, "next"))
        if answer.status == 200:
            self.seq = int(await answer.read())
        elif answer.status != 404 or self._create:
            raise await _problem(answer)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._drop_next()
        self._peer.close()

    async def close(self) -> None:
        """Close the channel: for its readers it is over. First the channel, so that no empty segment comes of it."""
        await self._ask("DELETE")
        await self._drop_next()

    @asynccontextmanager
    async def segment(self) -> AsyncIterator[Outgoing]:
        """A segment to write to; complete when the block ends. After an error in the block it is dropped."""
        upload, seq = await self._take()
        async with upload:
            try:
                yield Outgoing(seq, upload)
            except BaseException:
                await self._drop(seq)
                raise
            await self._check(await upload.finish())

    async def _drop(self, seq: int) -> None:
        """End a segment that will not be complete, so that its readers need not wait for more."""
        for attempt in range(3):
            try:
                await self._ask("DELETE", str(seq))
            except ServerUnreachable:
                return
            except TrickleError as error:
                if error.status != 400:
                    return  # we may not, and its readers wait until the server gives it up
                await _pause(attempt + 1)  # its first byte may still be on the way, on its own connection
            else:
                return

    async def send(self, data: bytes) -> int:
        """Publish a whole segment, and return its seq.

        Sent again after a broken connection, in such a way that the server takes every byte once. A server that is
        away is asked again, too.
        """
        upload: Upload | None
        upload, seq = await self._take_patiently()
        for attempt in range(self._retries + 1):
            try:
                if upload is None:
                    upload = await self._connect(seq, again=True)
                async with upload:
                    await upload.write(data)
                    answer = await upload.finish()
                    if await self._is_taken(answer, seq, len(data), again=attempt > 0):
                        return seq
            except ServerUnreachable:
                if attempt == self._retries:
                    raise
            upload = None
            await _pause(attempt + 1)
        raise ServerUnreachable(self._peer.url, f"segment {seq} was not taken in {self._retries + 1} attempts")

    async def _is_taken(self, answer: StreamedAnswer, seq: int, size: int, *, again: bool) -> bool:
        """The segment is the server's; False if it is to be sent once more."""
        if answer.status == 200 and trickle.CLOSED.lower() not in answer.headers:
            await answer.read()
            return True
        if again and answer.status == 409 and answer.number(trickle.SIZE) == size:
            await answer.read()  # all of it had arrived, only the answer was lost
            return True
        problem = await _problem(answer)
        if problem.status in (408, 503, 507) or problem.code == "segment_busy":
            return False
        raise problem

    async def _take_patiently(self) -> tuple[Upload, int]:
        for failures in range(1, self._retries + 1):
            with suppress(ServerUnreachable):
                return await self._take()
            await _pause(failures)
        return await self._take()

    async def _take(self) -> tuple[Upload, int]:
        """The connection for this segment, and one ahead for the next."""
        upload, self._next = self._next, None
        if upload is not None and upload.answered:  # it was ahead for too long
            await upload.__aexit__()
            upload = None
        seq = self.seq
        upload = upload or await self._connect(seq, again=False)
        self.seq += 1
        self._reset = False
        with suppress(ServerUnreachable):
            self._next = await self._connect(self.seq, again=False)
        return upload, seq

    async def _connect(self, seq: int, *, again: bool) -> Upload:
        headers = {"Content-Type": self._content_type} if self._content_type else {}
        if self._reset:
            headers["Lp-Trickle-Reset"] = "1"
        if again:
            headers["Lp-Trickle-Offset"] = "0"
        return await self._peer.upload((self._channel, str(seq)), headers)

    async def _ask(self, method: str, *levels: str, query: str = "") -> None:
        headers = {"Expect-Content": self._content_type} if method == "POST" and self._content_type else {}
        answer = await self._peer.ask(method, (self._channel, *levels), headers, query)
        await self._check(answer)

    async def _check(self, answer: StreamedAnswer) -> None:
        if answer.status != 200:
            raise await _problem(answer)
        await answer.read()

    async def _drop_next(self) -> None:
        upload, self._next = self._next, None
        if upload is not None:
            await upload.__aexit__()


class SegmentReader:
    """One segment on its way in. A connection that breaks off is replaced, and every byte comes once."""

    def __init__(self, source: Subscriber, answer: StreamedAnswer, seq: int) -> None:
        self._source, self._answer, self.seq = source, answer, seq
        latest, size = answer.number(trickle.LATEST), answer.number(trickle.SIZE)
        self.latest = seq if latest is None else latest
        self.size = size or 0
        self.content_type = answer.headers.get("content-type", "")
        self._got = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for attempt in range(self._source.retries + 1):
            try:
                if attempt:
                    self._answer = await self._source.ask_again(self.seq)
                async for piece in self._rest():
                    self._got += len(piece)
                    yield piece
                return
            except ServerUnreachable:
                if attempt == self._source.retries:
                    raise
                await _pause(attempt + 1)

    async def _rest(self) -> AsyncIterator[bytes]:
        """What comes after the bytes that were read before."""
        skip = self._got
        async for piece in self._answer:
            fresh, skip = piece[skip:], max(0, skip - len(piece))
            if fresh:
                yield fresh

    async def read(self) -> bytes:
        """All of it, when it is complete."""
        return b"".join([piece async for piece in self])


class Subscriber:
    """Reads a channel, segment by segment, until it is closed. Lives in `async with` or `async for`."""

    def __init__(
        self,
        url: str,
        channel: str,
        *,
        start: int = -1,
        token: str = "",
        missing: str = LIVE,
        retries: int = 5,
        consumer: str = "",
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._peer, self._channel = Peer(url, token, context=context), channel
        self._position, self._missing, self.retries = start, missing, retries
        self._query = urlencode({"consumer": consumer}) if consumer else ""
        self._ahead: asyncio.Task[StreamedAnswer] | None = None
        self._begun = False  # the channel was there
        self.skipped = 0  # segments that were passed over

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            for answer in await asyncio.gather(ahead, return_exceptions=True):
                if isinstance(answer, StreamedAnswer):
                    answer.close()
        self._peer.close()

    async def __aiter__(self) -> AsyncIterator[SegmentReader]:
        try:
            while (segment := await self.next()) is not None:
                yield segment
        finally:
            await self.close()

    async def next(self) -> SegmentReader | None:
        """The next segment, when its first byte is there; None when the channel is closed."""
        attempt = 0
        while True:
            try:
                answer = await self._response()
                if answer.status == 200:
                    return self._take(answer)
                if not await self._decide(answer):
                    return None
                attempt = attempt if answer.status == 503 else 0
            except ServerUnreachable:
                if attempt >= self.retries:
                    raise
            attempt += 1
            if attempt > 1:
                await _pause(attempt)

    def seek(self, seq: int) -> None:
        """Go on with another segment."""
        self._position = seq
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None

    def _take(self, answer: StreamedAnswer) -> SegmentReader | None:
        self._begun = True
        if trickle.CLOSED.lower() in answer.headers:
            answer.close()
            return None
        seq = answer.number(trickle.SEQ)
        if seq is None:
            raise TrickleError(200, "seq_missing", "the answer has no Lp-Trickle-Seq")
        self._position = seq + 1
        self._ahead = asyncio.create_task(self._get(self._position))
        return SegmentReader(self, answer, seq)

    async def _decide(self, answer: StreamedAnswer) -> bool:
        """Decide what to do without a segment: True to ask again, perhaps for another one."""
        if answer.status == 404 and self._begun:
            await answer.read()
            return False  # it was closed between two requests
        if answer.status in (408, 503):
            await answer.read()
            return True
        if answer.status != trickle.MISSING:
            raise await _problem(answer)
        await answer.read()
        latest, oldest = answer.number(trickle.LATEST) or 0, answer.number(trickle.OLDEST) or 0
        if self._missing == FAIL:
            raise SegmentMissing(self._position, latest, oldest)
        if self._position > latest:
            await _pause(1)  # ahead of the publisher, or it began anew: see which
            self._position = latest if self._begun else self._position
        else:
            wanted = latest if self._missing == LIVE else oldest
            self.skipped += max(0, wanted - max(0, self._position))
            self._position = wanted
        return True

    async def _response(self) -> StreamedAnswer:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return await self._get(self._position)
        try:
            return await ahead
        except asyncio.CancelledError:
            ahead.cancel()
            raise

    async def ask_again(self, seq: int) -> StreamedAnswer:
        """Ask for a segment that was read in part."""
        answer = await self._get(seq)
        if answer.status == trickle.MISSING:
            await answer.read()
            raise SegmentCut(seq, "it cannot be read again")
        if answer.status != 200:
            raise await _problem(answer)
        return answer

    async def _get(self, seq: int) -> StreamedAnswer:
        return await self._peer.ask("GET", (self._channel, str(seq)), {"Lp-Trickle-Wait": _WAIT}, self._query)
