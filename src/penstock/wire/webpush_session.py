"""One user agent's session, without its socket, its storage and its clock: events in, actions out.

Each event is a method that returns what must happen, in order. What has to be waited for is a `Job`: the session's one
worker takes a job from `work`, does it, and reports the result with another method. So jobs never overlap, while
frames, direct notifications and hints may come at any time. `webpush_session_delivery.py` is the half that delivers.

              a frame                  direct   hint         an end is asked for              no job is left
    SILENT    waits for the worker     ABSENT   LATER        ENDING if the worker has         –
    OPEN      the same; pings and      TAKEN    TAKEN or     something to do, else LEFT       –
              acks of direct ones      or BUSY  LATER
              are taken at once
    ENDING    passed over              ABSENT   LATER        –                                LEFT
    LEFT      passed over              ABSENT   LATER        –                                –

SILENT becomes OPEN when the hello was answered. A user agent that acknowledges and goes may close in the same moment:
its acks count. So an end that comes from outside is `finish`, which lets what was received before be carried out, for
PUSH_FINISH_SECONDS at most. `close` is for the worker, which has done what came before: it goes to LEFT at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import CallerError
from penstock.limits import PUSH_CHANNELS, PUSH_COMMAND_BYTES, PUSH_COMMANDS
from penstock.wire import webpush as wire
from penstock.wire.vapid import key_hash, parse_key
from penstock.wire.webpush import Close
from penstock.wire.webpush_actions import (
    Action,
    AgentIdentity,
    Arm,
    CloseSocket,
    Discard,
    Greet,
    Job,
    Leave,
    PushSessionRules,
    RemoveChannel,
    SaveChannel,
    SendFrame,
    Signal,
    SubscribeBroadcasts,
)
from penstock.wire.webpush_session_delivery import ENDING, LEFT, OPEN, SILENT, UNREAD, DeliveringSession
from penstock.wire.websocket_frames import text_frame

PUSH_FINISH_SECONDS: Final = 2
"""For what a user agent said just before its connection ended, and for what waits when the server stops. Over it: the
rest is dropped, so that nobody waits: those messages come again."""

PUSH_SETTLE_SECONDS: Final = 10
"""How long after a hello and after a month's switch the storage is read once more: an engine's outdated leader
may have answered, or an endpoint may still have been on its way to the old month."""

_NO_CHANNEL = "channelID is not a UUID in lower case with dashes"
_SLACK = 0.001  # seconds by which sums of floats may be off


class PushSession(DeliveringSession):
    """The session itself. All times are seconds of one clock that never goes back."""

    __slots__ = (
        "_alive", "_client_pinged", "_command_bytes", "_end", "_finish_by", "_settle_at", "_told", "connected_at",
        "pinged",
    )  # fmt: skip

    def __init__(self, rules: PushSessionRules, now: float) -> None:
        super().__init__(rules)
        self.connected_at = 0
        self._command_bytes = 0  # of the commands that came since none waited
        self._end: CloseSocket | None = None  # what ENDING leads to
        self._finish_by = 0.0
        self._told: dict[str, str] | None = None  # broadcasts that it wants to hear of, as it knows them
        self._alive = now  # when it last showed life
        self.pinged = 0.0  # when it was pinged; 0 while no answer is due
        self._client_pinged = 0.0
        self._settle_at = 0.0  # when the storage is read once more, whatever was heard

    # ── from the socket ───────────────────────────────────────────────────────────────────────

    def opened(self, now: float) -> list[Action]:
        """The WebSocket is open."""
        return [self._arm(now)]

    def received(self, frame: str | bytes, now: float) -> list[Action]:
        """A message came from the user agent."""
        self._alive, self.pinged = now, 0.0
        heard = wire.parse(frame)
        if self.phase is OPEN:
            if isinstance(heard, wire.AckUpdates) and not self._commands and self._is_simple(heard.updates):
                actions: list[Action] = []
                self._take_acks(heard.updates, actions)
                return self._and_work(actions)
            if isinstance(heard, wire.Ping):
                return self._ping(now)
        return self._queue(heard, len(frame), now)

    def ponged(self, now: float) -> None:
        """It is alive."""
        self._alive, self.pinged = now, 0.0

    def finish(self, code: Close, reason: str, now: float) -> list[Action]:
        """Take no more, carry out what was received, then close."""
        if self.phase in (ENDING, LEFT):
            return []
        if not self.at_work:
            return self.close(code, reason)
        self.phase, self._end, self._finish_by = ENDING, CloseSocket(code, reason), now + PUSH_FINISH_SECONDS
        return [Signal.AWAIT_WORKER]

    def close(self, code: Close, reason: str = "") -> list[Action]:
        """End at once."""
        if self.phase is LEFT:
            return [CloseSocket(code, reason)]
        self.phase, self._commands = LEFT, None
        actions, unsaved = self._take_unsaved()
        return [*actions, Leave(unsaved), CloseSocket(code, reason)]

    def _ping(self, now: float) -> list[Action]:
        if self._client_pinged and now - self._client_pinged < self._rules.ping_least - _SLACK:
            return self.close(Close.PINGS_TOO_OFTEN, "pings too often")
        self._client_pinged = now
        return [_text(wire.PONG)]

    def _queue(self, heard: wire.Heard | wire.Mistake, size: int, now: float) -> list[Action]:
        """Have the worker carry it out. A mistake, too: it ends the session after what came before it."""
        if self.phase in (ENDING, LEFT):
            return []
        if not self._commands:
            self._commands, self._command_bytes = [], 0
        self._command_bytes += size
        if len(self._commands) >= PUSH_COMMANDS or self._command_bytes > PUSH_COMMAND_BYTES:
            end = CloseSocket(Close.TOO_MUCH, "too many commands at once")
            return [*self.finish(end.code, end.reason, now), end]  # the socket does not wait for the worker
        self._commands.append(heard)
        return self._and_work([])

    # ── the worker ────────────────────────────────────────────────────────────────────────────

    def has_work(self, now: float, *, full: bool) -> bool:
        """There is something for the worker. *full*: the socket takes nothing now."""
        if isinstance(self._follow_up, Discard):  # the ledger has it already
            return True
        if self.phase is LEFT or (self.phase is ENDING and now >= self._finish_by):
            return False
        return bool(self._follow_up or self._commands) or (self._may_read and not full)

    def work(self, now: float, *, full: bool) -> tuple[list[Action], Job | None]:
        """The next thing to do: what follows from the last job, else a command, else a page of the storage."""
        if not self.has_work(now, full=full):
            return [], None
        job, self._follow_up = self._follow_up, None
        if job is not None:
            return [], job
        return self._obey(self._commands.pop(0), now) if self._commands else ([], self._read_on())

    def rest(self) -> list[Action]:
        """The worker has nothing left to do."""
        self.at_work = False
        return self.close(self._end.code, self._end.reason) if self.phase is ENDING and self._end else []

    def failed(self, reason: str) -> list[Action]:
        """The worker could not do its job."""
        self.at_work = False
        return self.close(Close.FAILED, reason)

    def _obey(self, heard: wire.Heard | wire.Mistake, now: float) -> tuple[list[Action], Job | None]:
        match heard:
            case wire.Mistake(code, reason):
                return self.close(code, reason), None
            case wire.Hello(uaid, broadcasts) if not self.uaid:
                return [], Greet(uaid if wire.is_uaid(uaid) else "", broadcasts or {})
            case _ if not self.uaid:
                return self.close(Close.FAILED, "hello comes first"), None
            case wire.Hello():
                refused = wire.refused("hello", None, 401, "duplicate hello")
                return [_text(refused), *self.close(Close.FAILED, "duplicate hello")], None
            case wire.Register(channel, key):
                return self._register(channel, key)
            case wire.Unregister(channel):
                return self._unregister(channel)
            case wire.AckUpdates(updates):
                return self._acknowledge(updates)
            case wire.Nack():
                return [Signal.COUNT_NACK], None  # it stays unacknowledged
            case wire.BroadcastSubscribe(asked):
                return [], SubscribeBroadcasts(asked)
            case wire.Ping():
                return self._ping(now), None

    # ── what came of jobs ─────────────────────────────────────────────────────────────────────

    def identified(self, who: AgentIdentity) -> None:
        """The user agent is this one; hints may come from now on."""
        self.uaid, self.connected_at, self.channels = who.uaid, who.connected_at, who.channels
        self.saved, self.moves, self.crowded = who.saved, who.moves, who.crowded
        self._waiting_upto = {who.previous: math.inf, who.month: who.waiting_upto}
        self._look_into(who.month, who.previous)

    def greeted(self, asked: dict[str, str], versions: Mapping[str, str], now: float, *, alone: bool) -> list[Action]:
        """It is the user agent's one session: answer, and only then read the storage."""
        if self.phase is LEFT:
            return [Leave()]  # what the job did for it is taken back
        actions, news = self._hear_of(asked, versions)
        actions.append(_text(wire.hello(self.uaid, news)))
        if self.phase is ENDING:  # it did not wait for the answer
            return actions
        self.phase = OPEN
        if self.saved:
            self.storage = UNREAD
        if not alone:  # another node's answer may have been out of date
            self._settle_at = now + PUSH_SETTLE_SECONDS
        return [*actions, self._arm(now)]

    def saved_in(self, month: str) -> None:
        """It has a router record from now on."""
        self.saved = True
        self._look_into(month)

    def _register(self, channel: Any, key: Any) -> tuple[list[Action], Job | None]:
        if not wire.is_channel(channel):
            return [_text(wire.refused("register", channel, 401, _NO_CHANNEL))], None
        try:
            # None alone asks for an endpoint that anybody may send to: whoever sends another key wants a lock.
            wanted = b"" if key is None else key_hash(parse_key(key))
        except (CallerError, AttributeError, TypeError):
            return [_text(wire.refused("register", channel, 400, "key is not a P-256 public key in base64url"))], None
        if len(self.channels) >= PUSH_CHANNELS and channel not in self.channels:
            return [_text(wire.refused("register", channel, 413, f"more than {PUSH_CHANNELS:,} channels"))], None
        return [], SaveChannel(channel, wanted)

    def registered(self, channel: str, endpoint: str) -> list[Action]:
        """The channel is written down."""
        self.channels |= {channel}
        return [Leave()] if self.phase is LEFT else [_text(wire.registered(channel, endpoint))]

    def _unregister(self, channel: Any) -> tuple[list[Action], Job | None]:
        if not wire.is_channel(channel):
            return [_text(wire.refused("unregister", channel, 401, _NO_CHANNEL))], None
        if channel not in self.channels:
            return [_text(wire.unregistered(channel))], None
        self.channels -= {channel}
        return [], RemoveChannel(channel)

    def unregistered(self, channel: str) -> list[Action]:
        """The channel is gone, and what was stored for it."""
        return [*self._forget_channel(channel), _text(wire.unregistered(channel))]

    def moved(self, month: str, now: float) -> list[Action]:
        """The router record has the new month: both are read now, and once more in a while."""
        self._move(month)
        self._settle_at = now + PUSH_SETTLE_SECONDS
        return [self._arm(now)] if self.phase is OPEN else []

    def dropped(self, reason: str) -> list[Action]:
        """The user agent is forgotten."""
        self.saved = False
        return self.close(Close.NORMAL, reason)

    # ── broadcasts ────────────────────────────────────────────────────────────────────────────

    def subscribed(self, asked: dict[str, str], versions: Mapping[str, str]) -> list[Action]:
        """These are the versions: tell what is new, and hear of newer ones."""
        actions, news = self._hear_of(asked, versions)
        return [*actions, _text(wire.broadcast(news))] if news else actions

    def _hear_of(self, asked: dict[str, str], versions: Mapping[str, str]) -> tuple[list[Action], dict[str, Any]]:
        """What does not exist is not kept."""
        found = {id: versions[id] for id in asked if id in versions}
        if found:
            self._told = {**(self._told or {}), **found}
        return [Signal.JOIN_BROADCASTS] if found else [], wire.broadcast_news(versions, asked)

    def broadcast(self, versions: Mapping[str, str]) -> list[Action]:
        """Versions may have changed. While the socket is full it is not called, but when that is over."""
        if self._told is None or self.phase is not OPEN:
            return []
        news = {id: versions[id] for id, told in self._told.items() if versions.get(id, told) != told}
        self._told |= news
        return [_text(wire.broadcast(news))] if news else []

    # ── deadlines ─────────────────────────────────────────────────────────────────────────────

    def expired(self, now: float) -> list[Action]:
        """The time of the last `Arm` has come; deadlines may have been put off meanwhile."""
        rules, actions, later = self._rules, list[Action](), now + _SLACK
        if self.phase in (ENDING, LEFT):
            return []
        if self.phase is SILENT:  # a hello that is being answered has all the time it needs
            if not self.at_work and later >= self._alive + rules.hello_timeout:
                return self.close(Close.FAILED, "HandshakeTimeout")
        elif self.pinged:
            if later >= self.pinged + rules.ping_timeout:
                return self.finish(Close.FAILED, "PongTimeout", now)
        elif rules.ping_interval and later >= self._alive + rules.ping_interval:
            self.pinged = now
            actions.append(Signal.PING)
        if self._settle_at and later >= self._settle_at:
            self._settle_at = 0.0
            self._outdate()
        return [*self._and_work(actions), self._arm(now)]

    def _arm(self, now: float) -> Arm:
        rules = self._rules
        if self.phase is SILENT:
            due = (now if self.at_work else self._alive) + rules.hello_timeout
        elif self.pinged:
            due = self.pinged + rules.ping_timeout
        else:
            due = self._alive + rules.ping_interval if rules.ping_interval else now + 86_400
        return Arm(max(0.0, (min(due, self._settle_at) if self._settle_at else due) - now))


def _text(payload: bytes) -> SendFrame:
    return SendFrame(text_frame(payload))
