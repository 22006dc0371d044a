"""All sessions: those that this node knows, how they are found, made and ended.

The registry is the truth. A node that is alone keeps copies and trusts them, for nobody else writes. Where several
nodes share the data, a session's record says which of them serves its connections: whoever gets a newer connection
writes itself down by compare-and-set and tells the other. A message that is lost is made up for by the node's
lookout (`core/lookout.py`). A copy whose version is not the record's is thrown away.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

import msgspec

from penstock.api.context import Context
from penstock.core.ledger import recipient
from penstock.core.lookout import MailboxChange, RecordChange
from penstock.core.months import begin_ms, month_of, shifted
from penstock.core.registry import NEW
from penstock.doors.msgstream import records
from penstock.doors.msgstream.packs import PackTexts, record_packs
from penstock.doors.msgstream.records import DOOR, PREFIX, mailbox_of
from penstock.doors.msgstream.requests import NewSessionRequest
from penstock.doors.msgstream.session import Session
from penstock.doors.msgstream.tasks import LedgerFlushes, Tasks
from penstock.errors import Conflict, NotFound, PenstockError, VersionMismatch
from penstock.limits import PAGE_ENTRIES, SESSIONS_KNOWN
from penstock.settings import MsgstreamSettings
from penstock.values import Item, MailboxHead, NewItem
from penstock.wire.msgstream_actions import Numbered, SessionRecord, SessionRules, pending
from penstock.wire.msgstream_session import UNKNOWN

log = logging.getLogger("penstock.msgstream")

TOPIC = "msgstream"
_NEWS, _CHANGE, _END = b"+", b"!", b"-"  # something was put into a mailbox; a record was changed; it is over
_TRIES = 5


class Sessions:
    """The sessions that this node knows, by actor."""

    kind: type[Session] = Session

    def __init__(self, context: Context, settings: MsgstreamSettings, tasks: Tasks) -> None:
        self.context, self.tasks, self._ttl = context, tasks, settings.ttl
        self.rules = SessionRules(settings.packs, settings.bytes, settings.resend == "all")
        self.texts = PackTexts(context.log)
        self.flushes = LedgerFlushes(context.ledger, tasks)
        self.alone = context.bus.alone
        self.known: dict[str, Session] = {}
        self._quiet: OrderedDict[str, Session] = OrderedDict()  # those without a connection, the latest last
        self._loading: dict[str, asyncio.Task[Session | None]] = {}
        self._month, self._month_ends_ms = "", 0
        self.ended = 0
        context.bus.listen(TOPIC, self._hear)
        context.lookout.on_record(PREFIX, self._record_changed)
        context.lookout.on_mailbox(self._mailbox_changed)

    @property
    def month(self) -> str:
        """The month whose mailboxes are in use."""
        now_ms = self.context.clock.now_ms()
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

    def close(self) -> None:
        """Let go of them all."""
        for session in list(self.known.values()):
            session.end("")

    # ── finding ───────────────────────────────────────────────────────────────────────────────

    def at_hand(self, actor: str) -> Session | None:
        """A copy that is certainly right, if there is one."""
        return self.known.get(actor) if self.alone else None

    async def find(self, actor: str) -> Session | None:
        """The session of an actor, as it is now; None if there is none."""
        if not records.is_actor(actor):
            return None
        while True:
            if not self.alone:
                await self.recheck(actor)
            session = self.known.get(actor) or await self._loaded(actor)
            if session is None or not session.machine.is_over:
                break  # one that went meanwhile was a copy that is not right any more
        if session is None or session.machine.expires_ms <= self.context.clock.now_ms():
            return None
        if not self.alone:
            session.machine.heard = UNKNOWN  # it is refreshed when it is connected, and this node serves it
        return session

    async def _loaded(self, actor: str) -> Session | None:
        """Load a session, once for all who ask at the same time."""
        loading = self._loading.get(actor)
        if loading is None:
            loading = self._loading[actor] = self.tasks.start(self._load(actor))
            loading.add_done_callback(lambda _: self._loading.pop(actor, None))
        return await asyncio.shield(loading)

    async def _load(self, actor: str) -> Session | None:
        found = await records.find(self.context.registry, actor)
        if found is None or found[0].ended:
            return None
        record, version = found
        mailbox, name = self.context.mailbox, mailbox_of(actor)
        if record.former:
            await self.bring_along(actor, record)
        head = await mailbox.head(name, record.month)
        session = self.kind(self, actor, record, version, head)
        if head.pending:
            packs = await self._pending(actor, record.month, head.next_number - 1)
            await self._drop(actor, record.month, [pack for pack in packs if pack[0] <= record.base], "replaced")
            session.machine.load([pack for pack in packs if pack[0] > record.base])
        self.known[actor] = session
        self.became_quiet(session)
        return session

    async def bring_along(self, actor: str, record: SessionRecord) -> None:
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
        who = recipient(DOOR, actor)
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
            record_packs(self.context.ledger, recipient(DOOR, actor), state, month, packs, why)
            await self.flushes.flush()
            await self.context.mailbox.confirm(mailbox_of(actor), month, [number for number, _ in packs])

    # ── making and ending ─────────────────────────────────────────────────────────────────────

    async def make(self, wanted: NewSessionRequest) -> tuple[str, SessionRecord]:
        """Begin a session; its key and record. An actor has one: the former is over, with what waited in it."""
        context, actor, month = self.context, wanted.actor_id, self.month
        now_ms, ttl, secret = context.clock.now_ms(), wanted.ttl or self._ttl, records.new_secret()
        await context.mailbox.make_month(month)
        for _ in range(_TRIES):
            found = await records.find(context.registry, actor)
            head = await context.mailbox.head(mailbox_of(actor), month)
            record = SessionRecord(
                digest=records.digest(secret), created_ms=now_ms, expires_ms=now_ms + ttl * 1000, ttl=ttl, month=month,
                base=head.next_number - 1, after=context.hub.position if wanted.after is None else wanted.after,
                node=context.bus.node, follow=wanted.follow, meta=wanted.meta,
            )  # fmt: skip
            try:
                version = await records.write(context.registry, actor, record, found[1] if found else NEW)
            except VersionMismatch:
                continue
            await self._replace(actor, found[0] if found else None, record, version, head)
            return f"{actor}:{secret}", record
        raise Conflict(f"the session of {actor!r} is being changed by others all the time")

    async def _replace(
        self, actor: str, former: SessionRecord | None, record: SessionRecord, version: int, head: MailboxHead
    ) -> None:
        if (session := self.known.get(actor)) is not None:
            session.end("keyMismatch")
        if former is None:
            # Nobody else can have put anything anywhere yet.
            session = self.kind(self, actor, record, version, head)
            self.known[actor] = session
            self.became_quiet(session)
            return
        await self._tell(former.node, _CHANGE, actor)
        months = {former.month, former.former} & set(await self.context.mailbox.months())
        for month in months:
            upto = record.base if month == record.month else 2**62
            await self._drop(actor, month, await self._pending(actor, month, upto), "replaced")

    async def end(self, actor: str, reason: str) -> bool:
        """End a session; False if there is none. Whatever breaks off in between is gone on with by the sweep."""
        for _ in range(_TRIES):
            found = await records.find(self.context.registry, actor)
            if found is None:
                return False
            record, version = found
            try:
                if not record.ended:
                    record.ended = reason
                    version = await records.write(self.context.registry, actor, record, version)
                break
            except VersionMismatch:
                continue
        else:
            raise Conflict(f"the session of {actor!r} is being changed by others all the time")
        if (session := self.known.get(actor)) is not None:
            session.end(reason)
        await self._tell(record.node, _END, f"{actor}\n{record.digest}\n{record.ended}")
        await self._clear(actor, record, version)
        return True

    async def _clear(self, actor: str, record: SessionRecord, version: int) -> None:
        """Take away what is left of a session that has ended. Doing it twice does no harm."""
        for month in {record.month, record.former} & set(await self.context.mailbox.months()):
            await self._drop(actor, month, await self._pending(actor, month, 2**62), record.ended)
        await self.context.registry.delete(PREFIX + actor, expect=version)
        self.ended += 1

    async def sweep(self) -> None:
        """End sessions whose life is over, and go on with ends that broke off."""
        after = PREFIX
        while found := await self.context.registry.list(PREFIX, after=after, limit=PAGE_ENTRIES):
            after = found[-1].key
            for one in found:
                actor, record = records.read(one)
                if record.ended or self._is_over(actor, record):
                    await self.end(actor, "expired")

    def _is_over(self, actor: str, record: SessionRecord) -> bool:
        session = self.known.get(actor) if record.node == self.context.bus.node else None
        # What is written down is a step ahead of the truth, which only the node knows that serves it.
        expires_ms = session.machine.expires_ms if session else record.expires_ms
        return expires_ms <= self.context.clock.now_ms()

    # ── storing ───────────────────────────────────────────────────────────────────────────────

    async def put(self, session: Session, new: NewItem) -> Item:
        """Store a pack of a session that is served here."""
        while True:
            month = session.record.month
            (item,) = await self.context.mailbox.put(session.mailbox, month, [new])
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
            now = await records.find(self.context.registry, actor)
            if now is None or now[0].month == record.month:
                break
            await self._moved(actor, record.month, item, now[0].month)
            record = now[0]
        if now is None or now[0].node != self.context.bus.node:
            await self._tell(now[0].node if now else record.node, _NEWS, actor)
        elif (session := self.known.get(actor)) is not None:
            session.added([item], record.month)
        return item, record

    # ── other nodes ───────────────────────────────────────────────────────────────────────────

    async def claim(self, session: Session) -> bool:
        """Serve this session's connections from here on; False if somebody else was quicker."""
        node, mine = session.record.node, self.context.bus.node
        if node == mine:
            return True
        record = msgspec.structs.replace(session.record, node=mine)
        try:
            await session.write(record)
        except VersionMismatch:
            session.end("")
            return False
        session.machine.record = record
        await self._tell(node, _CHANGE, session.actor)
        return True

    async def _tell(self, node: str, what: bytes, about: str) -> None:
        """Give another node a hint; it finds out by itself if the hint is lost."""
        if not self.alone and node != self.context.bus.node:
            await self.context.bus.send(node, TOPIC, what + about.encode())

    def _hear(self, topic: str, message: bytes) -> None:
        what, (actor, *details) = message[:1], message[1:].decode(errors="replace").split("\n")
        session = self.known.get(actor)
        if session is None:
            return
        if what == _NEWS:
            session.hear_of(UNKNOWN)
        elif what == _END and details[:1] == [session.record.digest]:
            session.end(details[-1])
        else:
            self.look_again(actor)

    def look_again(self, actor: str) -> None:
        """Compare what is known of a session with its record, soon."""
        self.tasks.start(self._look(actor))

    async def _look(self, actor: str) -> None:
        try:
            await self.recheck(actor)
        except PenstockError as error:
            log.warning("session.unchecked", extra={"actor": actor, "error": str(error)})

    async def recheck(self, actor: str) -> None:
        """Throw a copy away whose record has changed; whoever is connected hears why."""
        session = self.known.get(actor)
        if session is None:
            return
        found = await records.find(self.context.registry, actor)
        if session.machine.is_over or session.writing or (found is not None and found[1] == session.version):
            return
        if found is None or found[0].ended:
            session.end(found[0].ended if found else "noSession")
        else:
            session.end("" if found[0].digest == session.record.digest else "keyMismatch")

    def _record_changed(self, change: RecordChange) -> None:
        """What a hint may have told already. Who is not connected is looked at when somebody asks."""
        session = self.known.get(change.key.removeprefix(PREFIX))
        if session is not None and session.transport and session.version < change.version:
            self.look_again(session.actor)

    def _mailbox_changed(self, change: MailboxChange) -> None:
        session = self.known.get(change.recipient.removeprefix(PREFIX))
        if session is None or not session.transport or not change.recipient.startswith(PREFIX):
            return
        if change.month == session.record.month and change.next_number - 1 > session.machine.newest:
            session.hear_of(change.next_number - 1)

    async def record_of(self, actor: str) -> SessionRecord:
        """The record of a session that is there; raises `NotFound`."""
        found = await records.find(self.context.registry, actor)
        if found is None or found[0].ended or self._is_over(actor, found[0]):
            raise NotFound("session", actor, code="session_unknown", remedy="Make one with POST /v1/sessions.")
        return found[0]
