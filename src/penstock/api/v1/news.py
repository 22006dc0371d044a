"""Long polls for the newest id: they are answered when the log has grown. A waiting poll is a timer, not a task."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.log import Log
from penstock.core.waking import Waking
from penstock.core.wanted_streams import WantedStreams
from penstock.http.requests import Request
from penstock.http.responses import Held, Response
from penstock.http.timers import Timed, Wheel
from penstock.values import Entry

_encode = msgspec.json.Encoder().encode


class NewsPolls:
    """Tells the log's newest id, at once or when there is a newer one."""

    def __init__(self, log: Log, wheel: Wheel) -> None:
        self.log, self.wheel = log, wheel
        self.waiting: dict[NewsPoll, int] = {}  # each with the id that it knows
        self.newest = 0  # the last id that the log has told of; it says so before it counts as followed
        self._waking = Waking()
        log.follow(self._followed, WantedStreams(moved=self._moved))

    def ask(self, request: Request, after: int, seconds: float) -> Response | Held:
        """The newest id, as soon as it is above *after*; after so many seconds whatever it is then."""
        if self.log.followed > after or not seconds:
            return _answer(self.log.followed)
        waiting = NewsPoll(self, request)
        self.waiting[waiting] = after
        self.wheel.arm(waiting, seconds)
        return waiting

    def wake_all(self) -> None:
        """Answer everybody now."""
        for waiting in list(self.waiting):
            waiting.end(self.log.followed)

    def _followed(self, entries: Sequence[Entry]) -> None:
        self._moved(entries[-1].id)

    def _moved(self, newest: int) -> None:
        self.newest = newest
        for waiting in [one for one, after in self.waiting.items() if newest > after]:
            self._waking.wake(waiting.tell)


class NewsPoll(Timed, Held):
    """One request for news."""

    __slots__ = ("_news", "_request")

    def __init__(self, news: NewsPolls, request: Request) -> None:
        super().__init__()
        self._news, self._request = news, request

    def tell(self) -> None:
        """There is something newer than it knows: answer, unless that was done."""
        if self in self._news.waiting:
            self.end(self._news.newest)

    def end(self, newest: int) -> None:
        """Answer."""
        self.lost()
        self._request.answer(_answer(newest))

    def lost(self) -> None:
        """Nobody waits for the answer any more."""
        self._news.waiting.pop(self, None)
        self._news.wheel.forget(self)

    def expired(self) -> None:
        """It has waited as long as it wanted to."""
        self.end(self._news.log.followed)

    def draining(self) -> None:
        """The server stops, and must not wait for somebody who waits."""
        self.end(self._news.log.followed)


def _answer(newest: int) -> Response:
    return Response(200, _encode({"id": newest}))
