"""All sessions: those that this node knows, how they are found, made and ended.

The registry is the truth. A session's record names the node that serves its connections (`core/ownership.py`): that
node keeps a copy of what there is, until somebody else changes the record. A node that is alone trusts its copies.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

import msgspec

from penstock.api.context import Context
from penstock.core.background import Tasks
from penstock.core.ledger import Recipient
from penstock.core.months import begin_ms, month_of, shifted
from penstock.core.ownership import Ownership, Rule
from penstock.core.registry import change, delete_if
from penstock.doors.msgstream import records
from penstock.doors.msgstream.cluster import SessionHints
from penstock.doors.msgstream.ledger_flushes import LedgerFlushes
from penstock.doors.msgstream.packs import PackTexts, record_packs
from penstock.doors.msgstream.records import DOOR, FORM, PREFIX, mailbox_of
from penstock.doors.msgstream.requests import NewSessionRequest
from penstock.doors.msgstream.session import Session
from penstock.errors import NotFound
from penstock.settings import MsgstreamSettings
from penstock.values import Item, MailboxHead, NewItem, Record
from penstock.wire.msgstream_actions import Numbered, SessionRecord, SessionRules, pending
from penstock.wire.msgstream_session import UNKNOWN

SESSIONS_KNOWN: Final = 20_000
"""Sessions without a connection that a node remembers, so that their polls read no disk. Over it: the one that
was quiet for longest is forgotten; its next poll reads it again."""

_ALL = 2**62  # the number of no pack


class Sessions:
    """The sessions that this node knows, by actor."""

    kind: type[Session] = Session

    def __init__(self, context: Context, settings: MsgstreamSettings, tasks: Tasks) -> None:
        self.context, self.tasks, self._ttl = context, tasks, settings.ttl
        self.rules = SessionRules(settings.packs, settings.bytes, settings.resend == "all")
        self.texts = PackTexts(context.log)
        self.flushes = LedgerFlushes(context.ledger, tasks)
        self.alone = context.members.alone
        self.known: dict[str, Session] = {}
        self._quiet: OrderedDict[str, Session] = OrderedDict()  # those without a connection, the latest last
        self._loading: dict[str, asyncio.Task[Session | None]] = {}
        self._month, self._month_ends_ms = "", 0
        self.ended = 0
        self.owned: Ownership[SessionRecord] = Ownership(
            context.registry, context.members, PREFIX, FORM, rule=Rule.NEWEST, bus=context.bus,
            change_poller=context.change_poller, background=context.background, lost=self._lost,
        )  # fmt: skip
        self._hints = SessionHints(context, self.known, self.owned)

    @property
    def month(self) -> str:
        """The month whose mailboxes are in use."""
        return self.month_at(self.context.clock.now_ms())

    def month_at(self, now_ms: int) -> str:
        """The month of a time that is about now."""
        if now_ms >= self._month_ends_ms:
            self._month = month_of(now_ms)
            self._month_ends_ms = begin_ms(shifted(self._month, 1))
        return self._month

    @property
    def connected(self) -> int:
        """Sessions with a connection to this node."""
        return len(self.known) - len(self._quiet)

    # ── which are known ───────────────────────────────────────────────────────────────────────

    def became_live(self, session: Session) -> None:
        """Somebody is connected."""
        self._quiet.pop(session.actor, None)

    def became_quiet(self, session: Session) -> None:
        """Nobody is connected any more; or somebody who asked is gone again."""
        if self.known.get(session.actor) is session:
            self._quiet[session.actor] = session
            self._quiet.move_to_end(session.actor)
            if len(self._quiet) > SESSIONS_KNOWN:
                next(iter(self._quiet.values())).end("")

    def forget(self, session: Session) -> None:
        """Know nothing of it any more; the registry does."""
        if self.known.get(session.actor) is session:
            del self.known[session.actor]
            self._quiet.pop(session.actor, None)
            self.owned.forget(session.actor)

    def close(self) -> None:
        """Let go of them all."""
        for session in list(self.known.values()):
            session.end("")

    # ── finding ───────────────────────────────────────────────────────────────────────────────

    def at_hand(self, actor: str) -> Session | None:
        """A copy that is certainly right, if there is one."""
        return self.known.get(actor) if self.alone else None

    def why_not(self, actor: str, record: SessionRecord | None, secret: str | None) -> str:
        """Why a key does not open that session; empty if it does. No secret is asked of a backend."""
        if record is None or record.ended or self._is_over(actor, record):
            return "noSession"
        return "" if secret is None or records.fits(record, secret) else "keyMismatch"

    def why_not_here(self, session: Session, secret: str) -> str:
        """The same of a session that is at hand: polls come often."""
        if session.machine.expires_ms <= self.context.clock.now_ms():
            return "noSession"
        return "" if records.fits(session.record, secret) else "keyMismatch"

    async def open(self, actor: str, secret: str | None = None) -> Session | str:
        """The session of an actor, which this node serves from now on; or the reason why there is none."""
        reason = "noSession"

        def decide(record: SessionRecord | None) -> SessionRecord | None:
            nonlocal reason
            reason = self.why_not(actor, record, secret)
            return None if reason else record

        session: Session | None = None
        while session is None and records.is_actor(actor):
            claimed = await self.owned.claim(actor, decide)
            if claimed is None:
                break
            session = self._right_copy(actor, claimed.before) or await self._loaded(actor, claimed.payload)
        if session is not None and not self.alone:
            session.machine.heard = UNKNOWN  # others may have stored packs before they knew that this node serves it
        return session or reason

    def _right_copy(self, actor: str, before: SessionRecord | None) -> Session | None:
        """What is known of a session, if nobody else has served it since."""
        session = self.known.get(actor)
        if session is None or (before is not None and before.owner == session.record.owner == self.context.members.me):
            return session
        session.end("")
        return None

    async def _loaded(self, actor: str, record: SessionRecord) -> Session | None:
        """Load a session, once for all who ask at the same time."""
        loading = self._loading.get(actor)
        if loading is None:
            loading = self._loading[actor] = self.tasks.start(self._load(actor, record), awaited=True)
            loading.add_done_callback(lambda _: self._loading.pop(actor, None))
        return await asyncio.shield(loading)

    async def _load(self, actor: str, record: SessionRecord) -> Session | None:
        """None if another node has taken it meanwhile."""
        if record.former:
            await self._bring_along(actor, record)
        head = await self.context.mailbox.head(mailbox_of(actor), record.month)
        waiting: list[Numbered] = []
        if head.pending:
            packs = await self._pending(actor, record.month, head.next_number - 1)
            await self._drop(actor, record.month, [pack for pack in packs if pack[0] <= record.base], "replaced")
            waiting = [pack for pack in packs if pack[0] > record.base]
        if self.owned.mine(actor) is None:
            return None
        return self._know(actor, record, head, waiting)

    def _know(self, actor: str, record: SessionRecord, head: MailboxHead, packs: list[Numbered]) -> Session:
        session = self.known[actor] = self.kind(self, actor, record, head)
        session.machine.load(packs)
        self.became_quiet(session)
        return session

    def _lost(self, actor: str, mine: SessionRecord, now: SessionRecord | None) -> None:
        """Somebody else has changed the record: whoever is connected hears why."""
        session = self.known.get(actor)
        if session is None:
            return
        if now is not None and not now.ended:
            session.end("" if now.digest == mine.digest else "keyMismatch")
        elif now is not None:
            session.end(now.ended)
        else:  # this node was taken for dead, or the record is gone
            session.end("noSession" if mine.owner == self.context.members.me else "")

    async def _bring_along(self, actor: str, record: SessionRecord) -> None:
        """Bring along what another node put into the month that the session has left."""
        mailbox, name = self.context.mailbox, mailbox_of(actor)
        if record.former not in await mailbox.months():
            return
        for item in await mailbox.take(name, record.former):
            if await mailbox.find(name, record.month, item.message_id) is None:
                new = NewItem(item.message_id, item.entry_id, item.body, item.channel)
                await mailbox.put(name, record.month, [new])
            await self._moved(actor, record.former, item, record.month)

    async def _moved(self, actor: str, month: str, item: Item, to: str) -> None:
        """Take an item away that waits in another month as well. The ledger says so first: every number has its end."""
        who = Recipient(DOOR, actor)
        self.context.ledger.record_item(who, "moved", item.message_id, month, item.number, reason=f"to {to}")
        await self.flushes.flush()
        await self.context.mailbox.confirm(mailbox_of(actor), month, [item.number])

    async def _pending(self, actor: str, month: str, upto: int) -> list[Numbered]:
        """All that waits in a mailbox, up to a number."""
        found: list[Numbered] = []
        after = 0
        while items := await self.context.mailbox.take(mailbox_of(actor), month, after=after):
            found += [pending(item) for item in items if item.number <= upto]
            after = items[-1].number
        return found

    async def _drop(self, actor: str, month: str, packs: list[Numbered], reason: str) -> None:
        """Take packs away that nobody can get any more, and say so in the ledger first."""
        if packs:
            state, why = ("expired", "") if reason == "expired" else ("dropped", reason)
            record_packs(self.context.ledger, Recipient(DOOR, actor), state, month, packs, why)
            await self.flushes.flush()
            await self.context.mailbox.confirm(mailbox_of(actor), month, [number for number, _ in packs])

    # ── making and ending ─────────────────────────────────────────────────────────────────────

    async def make(self, wanted: NewSessionRequest) -> tuple[str, SessionRecord]:
        """Begin a session; its key and record. An actor has one: the former is over, with what waited in it."""
        context, actor, month = self.context, wanted.actor_id, self.month
        now_ms, ttl, secret = context.clock.now_ms(), wanted.ttl or self._ttl, records.new_secret()
        await context.mailbox.make_month(month)
        head = await context.mailbox.head(mailbox_of(actor), month)
        record = SessionRecord(
            digest=records.digest(secret), created_ms=now_ms, expires_ms=now_ms + ttl * 1000, ttl=ttl, month=month,
            base=head.next_number - 1, after=context.hub.position if wanted.after is None else wanted.after,
            follow=wanted.follow, meta=wanted.meta,
        )  # fmt: skip
        claimed = await self.owned.claim(actor, lambda _: record)
        if (session := self.known.get(actor)) is not None:
            session.end("keyMismatch")
        if claimed is not None and claimed.before is None:
            self._know(actor, claimed.payload, head, [])  # nobody else can have put anything anywhere yet
        elif claimed is not None and claimed.before is not None:
            self.owned.forget(actor)
            await self._drop_all(actor, claimed.before, "replaced", record)
        return f"{actor}:{secret}", record

    async def _drop_all(
        self, actor: str, record: SessionRecord, reason: str, following: SessionRecord | None = None
    ) -> None:
        """Drop what waits in a session that is over, but nothing of the one that follows it."""
        for month in {record.month, record.former} & set(await self.context.mailbox.months()):
            upto = following.base if following is not None and following.month == month else _ALL
            await self._drop(actor, month, await self._pending(actor, month, upto), reason)

    async def end(self, actor: str, reason: str) -> bool:
        """End a session; False if there is none. If this is cut off in the middle, the next `sweep` finishes it."""

        def decide(found: Record | None) -> bytes | None:
            record = FORM.decode(found.value) if found else None
            return FORM.encode(msgspec.structs.replace(record, ended=reason)) if record and not record.ended else None

        ended = (await change(self.context.registry, PREFIX + actor, decide)).record
        if ended is None:
            return False
        record = FORM.decode(ended.value)
        if (session := self.known.get(actor)) is not None:
            session.end(reason)
        await self._hints.tell_of_end(actor, record)
        # Doing this twice does no harm.
        await self._drop_all(actor, record, record.ended)
        await delete_if(self.context.registry, PREFIX + actor, ended.version)
        self.ended += 1
        return True

    async def sweep(self) -> None:
        """End sessions whose life is over, and go on with ends that broke off."""
        async for actor, found in self.owned.each():
            if found.payload is not None and self.why_not(actor, found.payload, None):
                await self.end(actor, "expired")

    def _is_over(self, actor: str, record: SessionRecord) -> bool:
        session = self.known.get(actor) if record.owner == self.context.members.me else None
        # The record's expiry is written in advance; only the node that serves the session knows the exact one.
        expires_ms = session.machine.expires_ms if session else record.expires_ms
        return expires_ms <= self.context.clock.now_ms()

    # ── storing ───────────────────────────────────────────────────────────────────────────────

    async def put(self, session: Session, new: NewItem) -> Item:
        """Store a pack of a session that is served here."""
        while True:
            month = session.record.month
            (item,) = await self.context.mailbox.put(session.mailbox, month, [new])
            await _until_moved(session)
            if session.record.month == month:
                session.added([item], month)
                return item
            # It went on to another month meanwhile: so does the pack.
            await self._moved(session.actor, month, item, session.record.month)

    async def put_anywhere(self, actor: str, record: SessionRecord, new: NewItem) -> tuple[Item, SessionRecord]:
        """Store a pack of a session that any node may serve, and tell that node."""
        name, mailbox = mailbox_of(actor), self.context.mailbox
        while True:
            (item,) = await mailbox.put(name, record.month, [new])
            await _until_moved(self.known.get(actor))
            now = await records.find(self.context.registry, actor)
            if now is None or now.month == record.month:
                break
            await self._moved(actor, record.month, item, now.month)
            record = now
        session = self.known.get(actor)
        if session is not None and now is not None and now.owner == self.context.members.me:
            session.added([item], record.month)
        else:
            await self._hints.tell_of_packs(actor, now or record)
        return item, record

    async def record_of(self, actor: str) -> SessionRecord:
        """The record of a session that is there; raises `NotFound`."""
        record = await records.find(self.context.registry, actor)
        if record is None or self.why_not(actor, record, None):
            raise NotFound("session", actor, code="session_unknown", remedy="Make one with POST /v1/sessions.")
        return record


async def _until_moved(session: Session | None) -> None:
    """Wait while a session writes down that it goes on to another month."""
    while session is not None and session.moving is not None:
        await asyncio.shield(session.moving)
