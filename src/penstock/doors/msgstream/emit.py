"""`POST /v1/emit`: messages for actors, for everybody, or into streams.

    {"actors":["alice"],"messages":[["shop.purchase",{"item":"boots"}]]}     one pack for each of them
    {"broadcast":true,"messages":[…]}                                        one pack for every session there is
    {"streams":["/shop/eu"],"messages":[…]}                                  one entry of each stream for each message

Data are checked once and then only copied, byte for byte.
"""

from __future__ import annotations

import asyncio
import secrets
from itertools import count
from typing import Annotated

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import only
from penstock.api.describing import NAME_FIELD, an_object, operation, shown_as
from penstock.core.ledger import recipient
from penstock.core.names import check_name
from penstock.doors.msgstream import records
from penstock.doors.msgstream.records import DOOR, mailbox_of
from penstock.doors.msgstream.session import BROADCAST
from penstock.doors.msgstream.sessions import Sessions
from penstock.errors import InputInvalid, TooLarge
from penstock.http.exchange import Request, Response
from penstock.limits import ACTOR_BYTES, BATCH_ENTRIES, EMIT_ACTORS, MESSAGE_TYPE_BYTES, PACK_MESSAGES
from penstock.values import Batch, Draft, Item, NewItem
from penstock.wire.msgstream import PACK_TYPE, Message, check_messages, pack

_encode = msgspec.json.Encoder().encode
OFFLINE, FULL = "offline", "full"
_MESSAGE = shown_as(
    minItems=1, maxItems=2, prefixItems=[{"type": "string", "minLength": 1, "maxLength": MESSAGE_TYPE_BYTES}]
)
_Actor = Annotated[str, shown_as(minLength=1, maxLength=ACTOR_BYTES)]
_Stream = Annotated[str, NAME_FIELD]


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an emit."""

    messages: Annotated[list[Annotated[list[msgspec.Raw], _MESSAGE]], shown_as(minItems=1, maxItems=PACK_MESSAGES)]
    actors: Annotated[list[_Actor], shown_as(maxItems=EMIT_ACTORS)] | str = ""
    streams: Annotated[list[_Stream], shown_as(maxItems=BATCH_ENTRIES)] | str = ""
    broadcast: bool = False


class Emitter:
    """Stores what is emitted, and answers when that is durable."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions, self._context = sessions, sessions.context
        self.emitted = 0  # packs
        self._life, self._calls = secrets.token_hex(6), count(1)  # of this process: its message ids are unique

    @operation(
        "Emit messages to actors, to everybody, or into streams (message stream).",
        body=Wanted,
        answers={200: an_object(packs={"type": "object"})},
        errors=(507,),
    )
    async def __call__(self, request: Request) -> Response:
        """Emit, to exactly one kind of target."""
        caller = self._context.caller(request)
        only(request)
        self.check(caller)
        wanted = _wanted(request.body)
        actors, streams = _names(wanted.actors), _names(wanted.streams)
        if (bool(actors) + bool(streams) + wanted.broadcast) != 1:
            raise InputInvalid("body", "names not exactly one of actors, streams and broadcast")
        messages = check_messages(wanted.messages)
        if streams:
            for stream in streams:
                caller.check_publish(check_name(stream))
            return await self._into_streams(streams, messages)
        caller.check_grant("emit")
        text = pack([message.encoded() for message in messages])
        return await self._broadcast(text) if wanted.broadcast else await self._to_actors(actors, text)

    def check(self, caller: Caller) -> None:
        """Raise `Forbidden` for who may emit to nobody and nowhere."""
        if not caller.publish:
            caller.check_grant("emit")

    # ── to actors ─────────────────────────────────────────────────────────────────────────────

    async def _to_actors(self, actors: list[str], text: bytes) -> Response:
        if len(actors) > EMIT_ACTORS:
            raise TooLarge("actors of an emit", len(actors), EMIT_ACTORS)
        for actor in actors:
            records.check_actor(actor)
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
        session = self._sessions.at_hand(actor) or await self._sessions.find(actor)
        if session is None or session.expires_ms <= self._context.clock.now_ms():
            return OFFLINE
        if self._is_full(len(session.packs), session.size, new):
            return FULL
        item = await self._sessions.put(session, new)
        return self._accepted(actor, session.kept.month, session.kept.base, item)

    async def _to_any_node(self, actor: str, new: NewItem) -> int | str:
        found = await records.find(self._context.registry, actor)
        if found is None or found[0].ended or found[0].expires_ms <= self._context.clock.now_ms():
            return OFFLINE
        kept = found[0]
        head = await self._context.mailbox.head(mailbox_of(actor), kept.month)
        if self._is_full(head.pending, head.pending_bytes, new):
            return FULL
        item, kept = await self._sessions.put_anywhere(actor, kept, new)
        return self._accepted(actor, kept.month, kept.base, item)

    def _is_full(self, packs: int, size: int, new: NewItem) -> bool:
        return packs >= self._sessions.limit or (packs > 0 and size + len(new.body) > self._sessions.limit_bytes)

    def _accepted(self, actor: str, month: str, base: int, item: Item) -> int:
        self.emitted += 1
        self._context.ledger.record_item(recipient(DOOR, actor), "accepted", item.message_id, month, item.number)
        return item.number - base

    # ── to everybody, and into streams ────────────────────────────────────────────────────────

    async def _broadcast(self, text: bytes) -> Response:
        """One entry; every session makes a pack of it when it is connected."""
        appended = await self._context.log.append(Batch((Draft(BROADCAST, text, PACK_TYPE),)))
        return Response(200, _encode({"packs": {}, "broadcast": appended.last.id}))

    async def _into_streams(self, streams: list[str], messages: list[Message]) -> Response:
        """All of it in one batch: everything or nothing."""
        drafts = tuple(Draft(stream, one.data or b"", one.type) for stream in streams for one in messages)
        if len(drafts) > BATCH_ENTRIES:
            raise TooLarge("entries of an emit", len(drafts), BATCH_ENTRIES)
        appended = await self._context.log.append(Batch(drafts))
        return Response(200, _encode({"packs": {}, "first": appended.first.id, "last": appended.last.id}))


def _names(given: list[str] | str) -> list[str]:
    """One name or several, each once."""
    return list(dict.fromkeys([given] if isinstance(given, str) and given else given))


def _wanted(body: bytes) -> Wanted:
    try:
        body.decode()  # what is copied byte for byte is not decoded otherwise
        return msgspec.json.decode(body, type=Wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputInvalid("body", str(error)) from None
