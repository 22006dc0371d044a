"""The film of the demo: a camera publishes segments through Trickle, and a viewer reads them as they are made."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Self

from penstock.client.trickle import OLDEST, Publisher, Subscriber

CHANNEL: Final = "film"
VIEWER: Final = "viewer"
SEGMENT_BYTES: Final = 16 * 1024
_PAUSE_SECONDS: Final = 0.05
_RETRIES: Final = 120  # of up to two seconds each: longer than a server needs to come back
_JOIN_SECONDS: Final = 10.0


def picture(seq: int) -> bytes:
    """What the camera sees in a segment: other bytes in each."""
    return hashlib.sha256(b"segment %d" % seq).digest() * (SEGMENT_BYTES // 32)


class AsyncThread:
    """A coroutine in a thread with an event loop of its own. Lives in `with`, and is cancelled when that ends."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name=type(self).__name__, daemon=True)
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: it has ended by itself
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(_JOIN_SECONDS)

    def run(self) -> Coroutine[Any, Any, None]:
        raise NotImplementedError

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._guarded())
            except asyncio.CancelledError:
                pass
            except Exception as error:  # noqa: BLE001 - the story looks at it, and ends
                self.failure = error

    async def _guarded(self) -> None:
        self._task = asyncio.current_task()
        await self.run()


class Camera(AsyncThread):
    """Publishes segments of a recorded channel until it is told to stop; then it closes the channel."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__()
        self._url, self._token = url, token
        self.acknowledged: list[int] = []  # the numbers of segments that are in the log
        self.ready = threading.Event()
        self._over = threading.Event()

    def stop(self) -> None:
        """End the film after the segment that is being made."""
        self._over.set()
        self._thread.join()

    async def run(self) -> None:
        address = f"{self._url}/trickle"
        async with Publisher(address, CHANNEL, token=self._token, record=True, retries=_RETRIES) as publisher:
            self.ready.set()
            while not self._over.is_set():
                self.acknowledged.append(await publisher.send(picture(publisher.seq)))
                await asyncio.sleep(_PAUSE_SECONDS)
            await publisher.close()


class Viewer(AsyncThread):
    """Reads the film from its beginning to its end."""

    name, how = "viewer", "Trickle, film segments while they are made"

    def __init__(self, url: str, token: str) -> None:
        super().__init__()
        self._url, self._token = url, token
        self.seen: set[int] = set()  # segments whose every byte was right
        self.wrong: set[int] = set()

    async def run(self) -> None:
        address = f"{self._url}/trickle"
        film = Subscriber(
            address, CHANNEL, start=0, token=self._token, missing=OLDEST, retries=_RETRIES, consumer=VIEWER
        )
        async for segment in film:
            right = await segment.read() == picture(segment.seq)
            (self.seen if right else self.wrong).add(segment.seq)
