"""One open wire: the sink of a feed, the owner of an outlet, and what is known of the device behind it.

It is not a `LiveWire`: the ledger must hear exactly what was sent, also where some events of a stream were for
other devices (`frames.Run`), and a wire has deadlines, which stand in the wheel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.core.feed import Feed, Taker
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger, Recipient
from penstock.core.matching import matches
from penstock.core.names import ROOMS
from penstock.doors.sps.frames import Audiences, EventFrames, Run, join_runs, runs_of
from penstock.doors.sps.requests import ALL, Narrow, Topics, first_room, patterns_for
from penstock.errors import Busy, NotFound
from penstock.http.live_answer import Outlet
from penstock.http.timers import Timed, Wheel
from penstock.limits import FORMER_TOPICS, TOPIC_CHANGES
from penstock.values import Entry

Change = tuple[int, Topics]
NEVER = float("inf")
_SLACK = 0.001  # seconds by which sums of floats may be off


class WireBehind(Busy):
    """A wire has too much to read under former topics to get others. Nothing has changed."""

    code = "wire_behind"

    def __init__(self) -> None:
        super().__init__("changes of topics of a wire that is behind", TOPIC_CHANGES)
        self.remedy = "Read what waits on the wire, then change its topics."


def offline(uid: str, hid: str) -> NotFound:
    """The error that says that a device has no wire."""
    return NotFound("wire", f"{uid} {hid}".strip(), code="offline", remedy="Subscribe again.")


class WireHome(Protocol):
    """What a wire needs of where it lives (`wires.py`)."""

    hub: Hub
    ledger: Ledger
    wheel: Wheel
    audiences: Audiences
    time: Callable[[], float]  # of the loop
    now_ms: Callable[[], int]

    def let_through(self, wire: DeviceWire) -> None:
        """Hold back no longer what a wire has to say."""
        ...

    def ended(self, wire: DeviceWire) -> None:
        """A wire is over."""
        ...


class DeviceWire(Timed):
    """One device that listens. `lost` and `end` are its two ends; each happens once."""

    __slots__ = (
        "_changes", "_home", "_narrow", "_plain", "_topics_since", "_untold", "_watched", "alive", "anti_idle", "began",
        "confirmed", "feed", "frames", "hid", "opened", "own", "patience", "tap", "topics", "who", "written",
    )  # fmt: skip

    feed: Feed
    tap: Outlet

    def __init__(self, home: WireHome, who: Recipient, own: str, hid: str, topics: Topics) -> None:
        super().__init__()
        self._home, self.who = home, who
        self.own, self.hid, self.topics = own, hid, topics
        self.frames: EventFrames
        self.began = 0  # the id after which it was fed
        self.confirmed = 0  # the id up to which its device has everything, as it said
        # Seconds of the loop, as all times here. `written` knows only of what was written to this wire alone.
        self.opened = self.written = self.alive = self._topics_since = home.time()
        self.anti_idle = self.patience = 0.0  # seconds without a write until we send; without a sign of life until cut
        self._narrow: Narrow | None = None  # which streams of a wide pattern its token covers
        self._changes: list[Change] | None = None  # topics up to an id, while it is behind
        self._plain = True  # neither of the two
        self._untold: list[Run] | None = None  # sent, and the ledger has not heard of it
        self._watched: Topics = ()  # its patterns, as `LastWritten` has them

    @property
    def uid(self) -> str:
        return self.own.rpartition("/")[2]

    def has(self, id: int) -> bool:
        """Whether an entry for this device, just appended, is on its way to it; not when it waits for a slow one."""
        feed = self.feed
        return self.began < id and (id <= feed.position or not feed.lag or (feed.in_turn and not self.full))

    # ── what it wants ─────────────────────────────────────────────────────────────────────────

    def wants(self, entry: Entry) -> bool:
        """Whether an entry of its streams is for this device."""
        if entry.expires_ms is not None and entry.expires_ms <= self._home.now_ms():
            self._home.ledger.record(self.who, "expired", entry.stream, entry.id, entry.id)
            return False
        if entry.stream == self.own:
            return self._home.audiences.of(entry).hid in ("", self.hid)
        if entry.stream == ALL:
            return True
        topics = self._topics_at(entry.id)
        if entry.stream == ROOMS:
            room = first_room(self._home.audiences.of(entry).tids.split(","), topics)
            if room != ROOMS or ROOMS in topics:
                return room is not None
            return self._narrow is None or self._narrow(ROOMS)  # a pattern matches it, as it matches any stream
        if entry.stream in topics:
            return True
        if not any(matches(topic, entry.stream) for topic in topics):
            return False
        return self._narrow is None or self._narrow(entry.stream)

    def _topics_at(self, id: int) -> Topics:
        """The topics that were in force when that entry came."""
        for upto, topics in self._changes or ():
            if id <= upto:
                return topics
        return self.topics

    def change(self, topics: Topics, narrow: Narrow | None) -> None:
        """Use other topics from the log's end on. A wire that is behind still gets older entries by its old topics.

        Raises `WireBehind`, and changes nothing, if too many former topics would have to be remembered.
        """
        wanted = topics
        if self.feed.behind or self.feed.lag:  # what waits may have to be found again (`Feed.serve_in_turn`)
            changes = self._changes_now()
            wanted = tuple(dict.fromkeys([*topics, *(old for _, before in changes for old in before)]))
            if len(changes) > TOPIC_CHANGES or len(wanted) > FORMER_TOPICS:
                raise WireBehind
            self._changes = changes
        self.written, self._topics_since = self.last_write, self._home.time()
        self.topics = topics
        self.narrow(narrow or self._narrow)
        if not self._plain:
            self.feed.leave_seat()
        self.feed.change(patterns_for(self.own, wanted))
        self.watch_patterns()

    def _changes_now(self) -> list[Change]:
        """What it still has to read under former topics, if it has others from now on."""
        changes = [change for change in self._changes or () if change[0] > self.feed.position]
        upto = self._home.hub.position
        if not changes or changes[-1][0] < upto:  # else nothing came under the topics that it has
            changes.append((upto, self.topics))
        return changes

    def narrow(self, narrow: Narrow | None) -> None:
        """Let only streams through which the token covers, where a topic is wider than that."""
        self._narrow = narrow
        self._plain = narrow is None and self._changes is None

    def _settle(self, newest: int) -> None:
        """Forget former topics once everything that came under them was read."""
        if self._changes is not None and newest > self._changes[-1][0]:
            self._changes = None
            self.narrow(self._narrow)
            self.feed.change(patterns_for(self.own, self.topics))

    # ── as the feed's sink ────────────────────────────────────────────────────────────────────

    @property
    def full(self) -> bool:
        """The device has not taken enough yet."""
        return self.tap.full

    @property
    def framing(self) -> EventFrames:
        """How events look on it."""
        return self.frames

    @property
    def taker(self) -> Taker | None:
        """The socket, while nothing is in the way of writing to it, and what is for all who read is for this device."""
        return self.tap.clear if self._plain else None

    def owe(self, entries: Sequence[Entry], data: bytes, sent: int) -> None:
        """A fan-out wrote to the socket, which took a part."""
        self.tap.put_rest(data, sent)
        self.written = self.frames.at
        self._tell_later(runs_of(entries))

    def count(self, written: int) -> None:
        """A fan-out wrote so much to wires like this one."""
        self.tap.wrote.bytes_out += written

    def deliver(self, entries: Sequence[Entry]) -> None:
        """Take those that are for this device."""
        together = self.frames.plain(entries) if self._plain else None
        if together is None:
            wanted = [entry for entry in entries if self.wants(entry)]
            self._settle(entries[-1].id)
            if not wanted:
                return
            together = self.frames.together(wanted, self.topics)
        self.tap.put(together.framed)
        self.written = self.frames.at
        self._tell_later(together.runs)

    def deliver_last(self, entries: Sequence[Entry]) -> bool:
        # The feed has no check of its own: nearly every entry needs none, and this is the path of a fan-out.
        tap, entry, frames = self.tap, entries[0], self.frames
        if tap.clear is None and tap.full:
            return False
        if not self._plain or (entry.id != frames.newest and not frames.single(entry)):
            self.deliver(entries)
            return True
        taken = tap.put_last(frames.framed)
        self.written = frames.at
        if taken:
            self._home.ledger.sent(self.who, entry.stream, entry.id, entry.id)
        else:
            self._tell_later(frames.runs)
        return True

    def _tell_later(self, runs: list[Run]) -> None:
        """The ledger hears of it when the kernel has taken it."""
        self._untold = join_runs(self._untold, runs) if self._untold else runs

    def say(self, framed: bytes) -> None:
        """Put words about the wire onto it; nothing is nothing."""
        if framed:
            self.tap.put(framed)
            self.written = self._home.time()

    def gap(self, after: int, upto: int) -> None:
        self.say(self.frames.words(self.frames.form.gap(after + 1, upto)))
        self._home.ledger.record(self.who, "dropped", self.own, after + 1, upto, reason="trimmed")

    def failed(self, error: Exception) -> None:
        """The log cannot be read: the device comes back with its position."""
        self.tap.abort()

    # ── as the outlet's owner ─────────────────────────────────────────────────────────────────

    def flushed(self) -> None:
        """The kernel has taken everything."""
        if self._untold is not None:
            for run in self._untold:
                self._home.ledger.sent(self.who, run.stream, run.first, run.last)
            self._untold = None

    def drained(self) -> None:
        """The device takes bytes again."""
        self.feed.resume()

    def lost(self) -> None:
        """The device is gone."""
        self._leave()

    def draining(self) -> None:
        """The server stops: a proper end, and the device comes back to whoever serves it next."""
        self.end("")

    # ── deadlines and ends ────────────────────────────────────────────────────────────────────

    @property
    def last_write(self) -> float:
        """When something was written, to it alone or to all who have the same topic."""
        together = self.frames.last_written.of(self.feed.patterns)
        return max(self.written, together) if together > self._topics_since else self.written

    def watch_patterns(self) -> None:
        """Have noted when something is written to all who have one of its patterns."""
        written = self.frames.last_written
        before, self._watched = self._watched, written.watch(self.feed.patterns)
        written.unwatch(before)

    def arm(self) -> None:
        """Book the next deadline: the patience's end, or the next sign of life."""
        due = NEVER
        if self.patience:
            due = min(due, self.alive + self.patience)
        if self.anti_idle:
            due = min(due, self.last_write + self.anti_idle)
        if due < NEVER:
            self._home.wheel.arm(self, max(0.0, due - self._home.time()))

    def expired(self) -> None:
        """The wheel calls: one of the deadlines has come, unless it was put off meanwhile."""
        now = self._home.time() + _SLACK
        if self.patience and now >= self.alive + self.patience:
            self.end("silent")
            return
        # A device that has bytes to take is not idle, and one that takes none is cut elsewhere.
        if self.anti_idle and now >= self.last_write + self.anti_idle:
            self.say(b"" if self.tap.pending else self.frames.anti_idle)
            self.written = now
        self.arm()

    def token_ended(self) -> None:
        """The device needs another token."""
        self.end("expired")

    def end(self, reason: str) -> None:
        """Say why, and end the answer."""
        if not self.feed.stopped:
            self.feed.stop()
            self._home.let_through(self)
            self.say(self.frames.words(self.frames.form.ended(reason)) if reason else b"")
            self.tap.close(hang_up=bool(reason))  # whoever is told to go has nothing more to ask here
            self._leave()

    def _leave(self) -> None:
        self.feed.stop()
        self.frames.last_written.unwatch(self._watched)
        self._watched = ()
        self._home.wheel.forget(self)
        self._home.ended(self)
