"""`/v1/sessions` and `/v1/actors`: what a backend does about those who log in."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import integer, only
from penstock.api.describing import (
    LARGEST,
    PATH_LEVEL,
    PATTERN_FIELD,
    STRING,
    STRING_OR_NULL,
    a_list,
    an_object,
    operation,
    shown_as,
    text,
)
from penstock.api.describing import limit as limit_parameter
from penstock.core.names import check_pattern
from penstock.doors.msgstream import records
from penstock.doors.msgstream.records import PREFIX, Kept, check_actor, mailbox_of
from penstock.doors.msgstream.sessions import Sessions
from penstock.errors import Forbidden, InputInvalid, NotFound, TooLarge
from penstock.http.exchange import Request, Response
from penstock.limits import ACTOR_BYTES, EMIT_ACTORS, PAGE_ENTRIES, PATTERNS, SESSION_META_BYTES, SESSION_SECONDS

T = TypeVar("T")
Actor = Annotated[str, shown_as(minLength=1, maxLength=ACTOR_BYTES)]
_ACTOR = text("actor", "The actor.", pattern=PATH_LEVEL, most=ACTOR_BYTES)
_encode = msgspec.json.Encoder().encode


class Wanted(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A session that somebody asks for."""

    actor_id: Actor
    ttl: Annotated[int, shown_as(minimum=1, maximum=SESSION_SECONDS)] | None = None
    meta: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    follow: Annotated[tuple[Annotated[str, PATTERN_FIELD], ...], shown_as(maxItems=PATTERNS)] = ()
    after: Annotated[int, shown_as(minimum=0, maximum=LARGEST)] | None = None


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """Whom somebody asks for."""

    actors: Annotated[list[Actor], shown_as(maxItems=EMIT_ACTORS)]


class Shown(msgspec.Struct, rename="camel", omit_defaults=True):
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


class Api:
    """For the admin, and for backends with the grant `sessions`."""

    def __init__(self, sessions: Sessions, default_ttl: int) -> None:
        self._sessions, self._context, self._ttl = sessions, sessions.context, default_ttl

    @operation(
        "Begin a session of the message stream for an actor.",
        body=Wanted,
        answers={201: an_object(sessionKey=STRING, actorId=STRING, expires={"type": "number"})},
        errors=(507,),
    )
    async def create(self, request: Request) -> Response:
        """Begin a session: the former one of the actor is over."""
        caller = self._caller(request)
        wanted = _decode(request.body, Wanted)
        ttl = self._ttl if wanted.ttl is None else wanted.ttl
        if not 1 <= ttl <= SESSION_SECONDS:
            raise InputInvalid("ttl", f"is not a number of seconds from 1 to {SESSION_SECONDS:,}")
        if len(wanted.meta) > SESSION_META_BYTES:
            raise TooLarge("bytes of meta", len(wanted.meta), SESSION_META_BYTES)
        if wanted.after is not None and not 0 <= wanted.after <= LARGEST:
            raise InputInvalid("after", "is not the id of an entry")
        follow = _check_follow(caller, wanted.follow)
        # A copy: a Raw keeps the whole request's body alive.
        meta = msgspec.Raw(bytes(wanted.meta))
        key = await self._sessions.make(check_actor(wanted.actor_id), ttl, follow, wanted.after, meta)
        expires = self._context.clock.now_ms() / 1000 + ttl
        return Response(201, _encode({"sessionKey": key, "actorId": wanted.actor_id, "expires": round(expires, 3)}))

    @operation(
        "List sessions, in order of their actors.",
        query=(text("after", "Actors after this one."), limit_parameter("Sessions at most.")),
        answers={200: an_object(sessions=a_list(Shown), after=STRING_OR_NULL)},
    )
    async def list(self, request: Request) -> Response:
        """Sessions in order of their actors."""
        self._caller(request)
        only(request, "after", "limit")
        limit = integer(request, "limit", 100, least=1, most=PAGE_ENTRIES)
        after = PREFIX + request.params.get("after", "")
        found = [records.read(r) for r in await self._context.registry.list(PREFIX, after=after, limit=limit)]
        shown = [self._shown(actor, kept) for actor, kept in found if not kept.ended]
        following = found[-1][0] if len(found) == limit else None
        return Response(200, _encode({"sessions": shown, "after": following}))

    @operation("One session, with what waits in it.", path=(_ACTOR,), answers={200: Shown}, errors=(404,))
    async def show(self, request: Request) -> Response:
        """One session, with what waits in it."""
        self._caller(request)
        only(request)
        (actor,) = request.captures
        kept = await self._sessions.kept(actor)
        head = await self._context.mailbox.head(mailbox_of(actor), kept.month)
        shown = self._shown(actor, kept)
        shown.last_pack, shown.waiting = head.next_number - 1 - kept.base, head.pending
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
        body=Asked,
        answers={200: an_object(online=a_list(STRING), offline=a_list(STRING))},
    )
    async def find_actors(self, request: Request) -> Response:
        """Who of these has a session, in the order they were named."""
        self._caller(request)
        actors = _decode(request.body, Asked).actors
        if len(actors) > EMIT_ACTORS:
            raise TooLarge("actors", len(actors), EMIT_ACTORS)
        answer: dict[str, list[str]] = {"online": [], "offline": []}
        for actor in actors:
            answer["online" if await self._is_online(actor) else "offline"].append(actor)
        return Response(200, _encode(answer))

    async def _is_online(self, actor: str) -> bool:
        try:
            await self._sessions.kept(check_actor(actor))
        except NotFound:
            return False
        return True

    def _shown(self, actor: str, kept: Kept) -> Shown:
        session = self._sessions.known.get(actor)
        expires_ms = max(kept.expires_ms, session.expires_ms) if session else kept.expires_ms
        live = session.live.transport if session and session.live else ""
        return Shown(
            actor, kept.created_ms / 1000, expires_ms / 1000, kept.ttl, kept.node, live, kept.follow, kept.meta
        )

    def _caller(self, request: Request) -> Caller:
        caller = self._context.caller(request)
        self.check(caller)
        return caller

    def check(self, caller: Caller) -> None:
        """Raise `Forbidden` for who may not ask anything here."""
        caller.check_grant("sessions")


def _check_follow(caller: Caller, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """What a session may follow is what its maker may read, as a whole: nobody looks again later."""
    if len(patterns) > PATTERNS:
        raise TooLarge("patterns to follow", len(patterns), PATTERNS)
    for pattern in patterns:
        if caller.check_subscribe(check_pattern(pattern)) is not None:
            error = Forbidden(caller.subject, "follow", pattern)
            error.remedy = "Name the streams: this pattern could match users' own."
            raise error
    return tuple(dict.fromkeys(patterns))


def _decode(body: bytes, type: type[T]) -> T:
    try:
        body.decode()
        return msgspec.json.decode(body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputInvalid("body", str(error)) from None
