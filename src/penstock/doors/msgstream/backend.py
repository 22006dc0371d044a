"""`/v1/sessions`, `/v1/actors` and `/v1/emit`: what a backend does about those who log in.

    {"actors":["alice"],"messages":[["shop.purchase",{"item":"boots"}]]}     one pack for each of them
    {"broadcast":true,"messages":[…]}                                        one pack for every session there is
    {"streams":["/shop/eu"],"messages":[…]}                                  one entry of each stream for each message

Data are checked once and then only copied, byte for byte.
"""

from __future__ import annotations

import asyncio
import secrets
from itertools import count

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import integer, only
from penstock.api.describing import PATH_LEVEL, STRING, STRING_OR_NULL, a_list, an_object, operation, text
from penstock.api.describing import limit as limit_parameter
from penstock.core.ledger import Recipient
from penstock.core.liveness import node_of
from penstock.doors.msgstream import records
from penstock.doors.msgstream.packs import BROADCAST
from penstock.doors.msgstream.records import DOOR, FORM, PREFIX, check_actor, mailbox_of
from penstock.doors.msgstream.requests import (
    EmitRequest,
    FindActorsRequest,
    NewSessionRequest,
    read_actors,
    read_emit,
    read_new_session,
)
from penstock.doors.msgstream.sessions import Sessions
from penstock.errors import InputInvalid, NotFound
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.limits import ACTOR_BYTES, PAGE_ENTRIES
from penstock.values import Batch, Draft, Item, NewItem
from penstock.wire.msgstream import PACK_TYPE, EmittedMessage, pack
from penstock.wire.msgstream_actions import SessionRecord

_ACTOR = text("actor", "The actor.", pattern=PATH_LEVEL, most=ACTOR_BYTES)
_encode = msgspec.json.Encoder().encode
OFFLINE, FULL = "offline", "full"


class SessionShown(msgspec.Struct, rename="camel", omit_defaults=True):
    """A session as it is shown. Its key is not: only its client has it."""

    actor_id: str
    created: float
    expires: float
    ttl: int
    node: str
    connected: str = ""  # the transport of its connection to this node
    follow: tuple[str, ...] = ()
    meta: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    last_pack: int | None = None
    waiting: int | None = None


class SessionsApi:
    """For the admin, and for backends with the grant `sessions`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions, self._context = sessions, sessions.context

    @operation(
        "Begin a session of the message stream for an actor.",
        body=NewSessionRequest,
        answers={201: an_object(sessionKey=STRING, actorId=STRING, expires={"type": "number"})},
        errors=(507,),
    )
    async def create(self, request: Request) -> Response:
        """Begin a session: the former one of the actor is over."""
        wanted = read_new_session(request.body, self._caller(request))
        key, record = await self._sessions.make(wanted)
        expires = round(record.expires_ms / 1000, 3)
        return Response(201, _encode({"sessionKey": key, "actorId": wanted.actor_id, "expires": expires}))

    @operation(
        "List sessions, in order of their actors.",
        query=(text("after", "Actors after this one."), limit_parameter("Sessions at most.")),
        answers={200: an_object(sessions=a_list(SessionShown), after=STRING_OR_NULL)},
    )
    async def list(self, request: Request) -> Response:
        """Sessions in order of their actors."""
        self._caller(request)
        only(request, "after", "limit")
        limit = integer(request, "limit", 100, least=1, most=PAGE_ENTRIES)
        after = PREFIX + request.params.get("after", "")
        page = await self._context.registry.list(PREFIX, after=after, limit=limit)
        found = [(one.key.removeprefix(PREFIX), FORM.decode(one.value)) for one in page]
        shown = [self._shown(actor, record) for actor, record in found if not record.ended]
        following = found[-1][0] if len(found) == limit else None
        return Response(200, _encode({"sessions": shown, "after": following}))

    @operation("One session, with what waits in it.", path=(_ACTOR,), answers={200: SessionShown}, errors=(404,))
    async def show(self, request: Request) -> Response:
        """One session, with what waits in it."""
        self._caller(request)
        only(request)
        (actor,) = request.captures
        record = await self._sessions.record_of(actor)
        head = await self._context.mailbox.head(mailbox_of(actor), record.month)
        shown = self._shown(actor, record)
        shown.last_pack, shown.waiting = head.next_number - 1 - record.base, head.pending
        return Response(200, _encode(shown))

    @operation(
        "End a session.",
        path=(_ACTOR,),
        query=(text("reason", "What its client hears; expired.", least=1, most=64),),
        answers={204: None},
        errors=(404, 507),
    )
    async def end(self, request: Request) -> Response:
        """End a session, now; its client hears the reason."""
        self._caller(request)
        only(request, "reason")
        (actor,) = request.captures
        reason = request.params.get("reason", "expired")
        if not 0 < len(reason) <= 64 or not reason.isprintable():
            raise InputInvalid("parameter reason", "is not 1 to 64 printable characters")
        if not await self._sessions.end(actor, reason):
            raise NotFound("session", actor, code="session_unknown")
        return Response(204)

    @operation(
        "Which of these actors have a session.",
        body=FindActorsRequest,
        answers={200: an_object(online=a_list(STRING), offline=a_list(STRING))},
    )
    async def find_actors(self, request: Request) -> Response:
        """Who of these has a session, in the order they were named."""
        self._caller(request)
        answer: dict[str, list[str]] = {"online": [], "offline": []}
        for actor in read_actors(request.body):
            answer["online" if await self._is_online(actor) else "offline"].append(actor)
        return Response(200, _encode(answer))

    async def _is_online(self, actor: str) -> bool:
        try:
            await self._sessions.record_of(check_actor(actor))
        except NotFound:
            return False
        return True

    def _shown(self, actor: str, record: SessionRecord) -> SessionShown:
        session = self._sessions.known.get(actor)
        expires_ms = max(record.expires_ms, session.machine.expires_ms) if session else record.expires_ms
        return SessionShown(
            actor, record.created_ms / 1000, expires_ms / 1000, record.ttl, node_of(record.owner),
            session.transport if session else "", record.follow, record.meta,
        )  # fmt: skip

    def _caller(self, request: Request) -> Caller:
        caller = self._context.caller(request)
        self.check(caller)
        return caller

    def check(self, caller: Caller) -> None:
        """Raise `Forbidden` for who may not ask anything here."""
        caller.check_grant("sessions")


class Emitter:
    """Stores what is emitted, and answers when that is durable."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions, self._context = sessions, sessions.context
        self.emitted = 0  # packs
        self._life, self._calls = secrets.token_hex(6), count(1)  # of this process: its message ids are unique

    @operation(
        "Emit messages to actors, to everybody, or into streams (message stream).",
        body=EmitRequest,
        answers={200: an_object(packs={"type": "object"})},
        errors=(507,),
    )
    async def __call__(self, request: Request) -> Response:
        """Emit, to exactly one kind of target."""
        caller = self._context.caller(request)
        only(request)
        self.check(caller)
        messages, actors, streams = read_emit(request.body, caller)
        if streams:
            return await self._into_streams(streams, messages)
        text = pack([message.encoded() for message in messages])
        return await self._to_actors(actors, text) if actors else await self._broadcast(text)

    def check(self, caller: Caller) -> None:
        """Raise `Forbidden` for a caller that may emit to no actor and no stream."""
        if not caller.publish:
            caller.check_grant("emit")

    async def _to_actors(self, actors: list[str], text: bytes) -> Response:
        new = NewItem(f"pack-{self._life}-{next(self._calls):x}", body=text)
        outcomes = [await self._to_actor(actors[0], new)] if len(actors) == 1 else await self._to_many(actors, new)
        told = dict(zip(actors, outcomes, strict=True))
        answer: dict[str, object] = {"packs": {name: id for name, id in told.items() if isinstance(id, int)}}
        for why in (OFFLINE, FULL):
            if names := [name for name, outcome in told.items() if outcome == why]:
                answer[why] = names
        # By this id, and the actor, `/v1/why` tells what became of a pack.
        return Response(200, _encode(answer), headers=(("Message-Id", new.message_id),))

    async def _to_many(self, actors: list[str], new: NewItem) -> list[int | str]:
        """Side by side, so that they share their way to the disk. Those that were stored before one failed stay."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._to_actor(actor, new)) for actor in actors]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _to_actor(self, actor: str, new: NewItem) -> int | str:
        """The id of the pack, or why there is none."""
        if not self._sessions.alone:
            return await self._to_any_node(actor, new)
        session = self._sessions.at_hand(actor) or await self._sessions.open(actor)
        if isinstance(session, str) or self._sessions.why_not(actor, session.record, None):
            return OFFLINE
        if not self._sessions.rules.has_room(len(session.machine.packs), session.machine.size, len(new.body)):
            return FULL
        return self._accepted(actor, session.record, await self._sessions.put(session, new))

    async def _to_any_node(self, actor: str, new: NewItem) -> int | str:
        record = await records.find(self._context.registry, actor)
        if record is None or self._sessions.why_not(actor, record, None):
            return OFFLINE
        head = await self._context.mailbox.head(mailbox_of(actor), record.month)
        if not self._sessions.rules.has_room(head.pending, head.pending_bytes, len(new.body)):
            return FULL
        item, record = await self._sessions.put_anywhere(actor, record, new)
        return self._accepted(actor, record, item)

    def _accepted(self, actor: str, record: SessionRecord, item: Item) -> int:
        self.emitted += 1
        self._context.ledger.record_item(Recipient(DOOR, actor), "accepted", item.message_id, record.month, item.number)
        return item.number - record.base

    async def _broadcast(self, text: bytes) -> Response:
        """One entry; every session makes a pack of it when it is connected."""
        appended = await self._context.log.append(Batch((Draft(BROADCAST, text, PACK_TYPE),)))
        return Response(200, _encode({"packs": {}, "broadcast": appended.last.id}))

    async def _into_streams(self, streams: list[str], messages: list[EmittedMessage]) -> Response:
        """All of it in one batch: everything or nothing."""
        drafts = tuple(Draft(stream, one.data or b"", one.type) for stream in streams for one in messages)
        appended = await self._context.log.append(Batch(drafts))
        return Response(200, _encode({"packs": {}, "first": appended.first.id, "last": appended.last.id}))
