"""One user agent on its WebSocket: hello first, then commands, one after the other.

There is no task while nothing happens. A command that needs the storage starts the session's worker, which
carries out what waits and ends. Deadlines stand in the one wheel.

    open ──▶ ending ──▶ left       what was received before the end is carried out, for PUSH_FINISH_SECONDS at most

A user agent that acknowledges and goes may close in the same moment: its acks count. So whoever ends a session from
outside calls `finish`; `close` is for the worker itself, which has done what came before.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from penstock.core.ledger import recipient
from penstock.doors.webpush.delivery import Delivery
from penstock.doors.webpush.records import AlreadyConnected
from penstock.doors.webpush.tokens import Subscription
from penstock.errors import CallerError, NotFound, PenstockError
from penstock.limits import PUSH_CHANNELS, PUSH_COMMAND_BYTES, PUSH_COMMANDS, PUSH_FINISH_SECONDS, PUSH_SETTLE_SECONDS
from penstock.wire import webpush as wire
from penstock.wire.vapid import key_hash, parse_key
from penstock.wire.webpush import Close

if TYPE_CHECKING:
    from penstock.doors.webpush.agents import Agents

log = logging.getLogger("penstock.webpush")

_SLACK = 0.001  # seconds by which sums of floats may be off


class Session(Delivery):
    """A connection of a user agent. Its end, whoever brings it about, is `leave`, once."""

    __slots__ = (
        "_alive", "_asked", "_client_pinged", "_ending", "_finish_by", "_left", "_origin", "_settle_at", "_told",
        "_waiting", "_waiting_bytes", "_working",
    )  # fmt: skip

    def __init__(self, home: Agents, origin: str) -> None:
        super().__init__(home)
        self._origin = origin
        self._waiting: list[wire.Heard | wire.Mistake] | None = None
        self._waiting_bytes = 0  # of those that came since there were none
        self._working: asyncio.Task[object] | None = None
        self._ending: tuple[Close, str] | None = None  # how it is closed when what waits is done
        self._finish_by = 0.0
        self._told: dict[str, str] | None = None  # broadcasts that it wants to hear of, as it knows them
        self._left = False
        self._alive = home.time()  # when it last showed life; all times are the loop's
        self._asked = 0.0  # when it was pinged; 0 while no answer is due
        self._client_pinged = 0.0
        self._settle_at = 0.0

    # ── as the WebSocket's owner ──────────────────────────────────────────────────────────────

    def received(self, frame: str | bytes) -> None:
        """A message from the user agent."""
        self._alive, self._asked = self.home.time(), 0.0
        heard = wire.parse(frame)
        match heard:
            case wire.Ack(updates) if self.ready and not self._waiting and self.is_simple(updates):
                self.take_acks(updates)
                self.acks_taken()
            case wire.Ping() if self.ready:
                self._pinged()
            case _:
                self._command(heard, len(frame))  # a mistake, too: it ends the session after what came before it

    def ponged(self) -> None:
        """It is alive."""
        self._alive, self._asked = self.home.time(), 0.0

    def lost(self, code: int) -> None:
        """It is gone; what it said before that counts."""
        self.finish(Close.NORMAL)

    def draining(self) -> None:
        """The server stops: the user agent comes back to whoever serves it next."""
        self.finish(Close.GOING_AWAY)

    def finish(self, code: Close, reason: str = "") -> None:
        """Take no more, carry out what was received, then close. The user agent's next session waits for it."""
        if self._left or self._ending:
            return
        if self._working is None:
            self.close(code, reason)
            return
        self._ending, self.ready = (code, reason), False
        self._finish_by = self.home.time() + PUSH_FINISH_SECONDS
        self.home.wheel.forget(self)
        self.home.finishing(self, self._working)

    def close(self, code: Close, reason: str = "") -> None:
        self.leave()
        self.socket.close(code, reason)

    def leave(self) -> None:
        """Take no more; what was sent past the storage and not acknowledged is stored now."""
        if not self._left:
            self._left, self.ready, self._waiting = True, False, None
            self.home.wheel.forget(self)
            self.home.broadcasts.leave(self)
            self.home.left(self, self.take_unsaved())

    def _pinged(self) -> None:
        now = self.home.time()
        if self._client_pinged and now - self._client_pinged < self.home.settings.ping_least - _SLACK:
            self.close(Close.PINGS_TOO_OFTEN, "pings too often")
            return
        self._client_pinged = now
        self.socket.send_text(wire.PONG)

    # ── the worker ────────────────────────────────────────────────────────────────────────────

    def _command(self, heard: wire.Heard | wire.Mistake, size: int) -> None:
        if self._left or self._ending:
            return
        if not self._waiting:
            self._waiting, self._waiting_bytes = [], 0
        self._waiting_bytes += size
        if len(self._waiting) >= PUSH_COMMANDS or self._waiting_bytes > PUSH_COMMAND_BYTES:
            self.finish(Close.TOO_MUCH, "too many commands at once")
            self.socket.close(Close.TOO_MUCH, "too many commands at once")  # it need not wait for that
            return
        self._waiting.append(heard)
        self.wake()

    def wake(self) -> None:
        if self._working is None and not self._left:
            self._working = self.home.start(self._work())

    async def _work(self) -> None:
        """Carry out what waits, commands first; end when nothing is left."""
        try:
            while self._has_work:
                async with self.home.turnstile:  # for each thing anew: who has much to say lets others go between
                    if self._has_work:  # still, after the wait
                        await (self._obey(self._waiting.pop(0)) if self._waiting else self.check())
            if self._ending:
                self.close(*self._ending)
        except AlreadyConnected:
            self.close(Close.FAILED, "already_connected")
        except PenstockError as error:
            log.warning("session.failed", extra={"uaid": self.uaid, "error": str(error)})
            self.close(Close.FAILED, "try again later")
        except Exception:  # a defect ends this session and no other; the user agent comes back
            log.exception("session.broken", extra={"uaid": self.uaid})
            self.close(Close.FAILED, "InternalError")
        finally:
            self.home.finished(self.uaid, self._working)
            self._working = None

    @property
    def _has_work(self) -> bool:
        return not self._left and not self._is_late and bool(self._waiting or self.check_due)

    @property
    def _is_late(self) -> bool:
        """The session ends, and what was received for it took all the time there is for that."""
        return self._ending is not None and self.home.time() >= self._finish_by

    async def _obey(self, heard: wire.Heard | wire.Mistake) -> None:
        match heard:
            case wire.Mistake(code, reason):
                self.close(code, reason)
            case wire.Hello() if not self.uaid:
                await self._hello(heard)
            case _ if not self.uaid:
                self.close(Close.FAILED, "hello comes first")
            case wire.Hello():
                self.socket.send_text(wire.refused("hello", None, 401, "duplicate hello"))
                self.close(Close.FAILED, "duplicate hello")
            case wire.Register():
                await self._register(heard)
            case wire.Unregister():
                await self._unregister(heard)
            case wire.Ack(updates):
                await self.acknowledge(updates)
            case wire.Nack():
                self.home.counts["nacked"] += 1  # it stays unacknowledged
            case wire.BroadcastSubscribe(asked):
                if news := self._subscribe(asked):
                    self.socket.send_text(wire.broadcast(news))
            case wire.Ping():
                self._pinged()

    # ── hello ─────────────────────────────────────────────────────────────────────────────────

    async def _hello(self, hello: wire.Hello) -> None:
        """Find out who this is, be the one session it has, then answer, and only then read the storage."""
        if not wire.is_uaid(hello.uaid) or not await self._come_back(hello.uaid):
            self._be(self.home.new_uaid(), self.home.next_generation())
            self.look_into(self.home.month())
        if self._left:  # meanwhile
            self.home.left(self, [])
            return
        self.socket.send_text(wire.hello(self.uaid, self._subscribe(hello.broadcasts or {})))
        self.home.counts["hellos"] += 1
        if self._ending:  # it did not wait for the answer
            return
        self.ready = self.check_due = True
        if self.home.alone:  # then there is no other whose answer could have been out of date
            self.arm()
        else:
            self.settle_later()

    async def _come_back(self, uaid: str) -> bool:
        """Be the user agent of that name, if it is known."""
        router, generation = self.home.router, self.home.next_generation()
        await self.home.saved(uaid, generation)  # the last words of a session before may end the user agent itself
        found = await router.find(uaid)
        if found is None:
            return False
        joined = await router.connect(uaid, found, generation)
        if joined is None:
            return False
        before, record = joined
        try:
            head = await self.home.mailbox.head(uaid, record.month)
        except NotFound:  # it was away for so long that its month is gone
            await self.home.drop(uaid, (), "month_gone")
            return False
        self.channels = frozenset(head.channels)
        # Else each connection could leave one more message behind: what went past the storage is stored at its end.
        self.crowded = head.pending >= self.home.room.items or head.pending_bytes >= self.home.room.bytes
        self._be(uaid, record.connected_at)
        self.look_into(record.month, record.previous)
        self.saved, self.moves = True, record.month != self.home.month()
        self.home.joined(self)
        if before.node and before.node != router.node:
            self.home.start(self.home.peers.supersede(before, uaid))
        await self.home.saved(uaid, self.connected_at)  # what an older one here had on its way comes first
        return True

    def _be(self, uaid: str, generation: int) -> None:
        self.uaid, self.connected_at = uaid, generation
        self.who = recipient("webpush", uaid)

    # ── commands ──────────────────────────────────────────────────────────────────────────────

    async def _register(self, command: wire.Register) -> None:
        channel, said = command.channelID, self.socket.send_text
        if not wire.is_channel(channel):
            said(wire.refused("register", channel, 401, "channelID is not a UUID in lower case with dashes"))
            return
        try:
            # None alone asks for an endpoint that anybody may send to: whoever sends another key wants a lock.
            wanted = b"" if command.key is None else key_hash(parse_key(command.key))
        except (CallerError, AttributeError, TypeError):
            said(wire.refused("register", channel, 400, "key is not a P-256 public key in base64url"))
            return
        if len(self.channels) >= PUSH_CHANNELS and channel not in self.channels:
            said(wire.refused("register", channel, 413, f"more than {PUSH_CHANNELS:,} channels"))
            return
        await self._save_channel(channel)
        path = self.home.tokens.endpoint(Subscription(self.uaid, channel, wanted))
        said(wire.registered(channel, self._origin + path))

    async def _save_channel(self, channel: str) -> None:
        """Write the channel down; with the first one the user agent itself becomes known."""
        if not self.saved:
            self.look_into(self.home.month())
            await self.home.router.add(self.uaid, self.month, self.connected_at)
            self.saved = True
            self.home.joined(self)
        await self.home.mailbox.add_channel(self.uaid, self.month, channel)
        self.home.lookup.forget(self.uaid)
        self.channels |= {channel}

    async def _unregister(self, command: wire.Unregister) -> None:
        channel = command.channelID
        if not wire.is_channel(channel):
            reason = "channelID is not a UUID in lower case with dashes"
            self.socket.send_text(wire.refused("unregister", channel, 401, reason))
            return
        if channel in self.channels:
            self.channels -= {channel}
            await self.home.note_gone(self.uaid, self.month, "unregistered", channel)
            await self.home.mailbox.remove_channel(self.uaid, self.month, channel)
            self.home.lookup.forget(self.uaid)
            self.forget_channel(channel)
        self.socket.send_text(wire.unregistered(channel))

    # ── broadcasts ────────────────────────────────────────────────────────────────────────────

    def _subscribe(self, asked: dict[str, str]) -> dict[str, Any]:
        """Hear of new versions of these from now on; returns what is new already. What does not exist is not kept."""
        broadcasts = self.home.broadcasts
        found = {id: broadcasts.versions[id] for id in asked if id in broadcasts.versions}
        if found:
            self._told = {**(self._told or {}), **found}
            broadcasts.join(self)
        return wire.broadcast_news(broadcasts.versions, asked)

    def tell_broadcasts(self) -> None:
        """Say which versions have changed; a user agent that does not read hears it when it does."""
        if self._told is None or not self.ready or self.socket.full:
            return
        versions = self.home.broadcasts.versions
        news = {id: versions[id] for id, told in self._told.items() if versions.get(id, told) != told}
        if news:
            self._told |= news
            self.socket.send_text(wire.broadcast(news))

    def drained(self) -> None:
        """The user agent takes bytes again."""
        super().drained()
        self.tell_broadcasts()

    # ── deadlines ─────────────────────────────────────────────────────────────────────────────

    def settle_later(self) -> None:
        self._settle_at = self.home.time() + PUSH_SETTLE_SECONDS
        self.arm()

    def arm(self) -> None:
        """Book the next deadline."""
        if self._ending:
            return
        settings, now = self.home.settings, self.home.time()
        if not self.ready:  # a hello that is being answered has all the time it needs
            due = (now if self._working else self._alive) + settings.hello_timeout
        elif self._asked:
            due = self._asked + settings.ping_timeout
        else:
            due = self._alive + settings.ping_interval if settings.ping_interval else now + 86_400
        if self._settle_at:
            due = min(due, self._settle_at)
        self.home.wheel.arm(self, max(0.0, due - now))

    def expired(self) -> None:
        """The wheel calls: a deadline has come, unless it was put off meanwhile."""
        settings, now = self.home.settings, self.home.time() + _SLACK
        if not self.ready:
            if self._working is None and now >= self._alive + settings.hello_timeout:
                self.close(Close.FAILED, "HandshakeTimeout")
                return
        elif self._asked:
            if now >= self._asked + settings.ping_timeout:
                self.finish(Close.FAILED, "PongTimeout")
                return
        elif settings.ping_interval and now >= self._alive + settings.ping_interval:
            self._asked = now
            self.socket.ping()
            self.home.renew(self)
        if self._settle_at and now >= self._settle_at:
            self._settle_at = 0.0
            self._recheck = True
            self._look_again()
        self.arm()
