"""What a backend asks for: the bodies of its calls, checked."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from penstock.api.auth import Caller
from penstock.api.describing import LARGEST, NAME_FIELD, PATTERN_FIELD, shown_as
from penstock.core.names import check_name, check_pattern
from penstock.doors.msgstream.records import check_actor
from penstock.errors import Forbidden, InputInvalid, TooLarge
from penstock.limits import (
    ACTOR_BYTES,
    BATCH_ENTRIES,
    EMIT_ACTORS,
    MESSAGE_TYPE_BYTES,
    PACK_MESSAGES,
    PATTERNS,
    SESSION_META_BYTES,
    SESSION_SECONDS,
)
from penstock.wire.msgstream import EmittedMessage, check_messages

T = TypeVar("T")
_Actor = Annotated[str, shown_as(minLength=1, maxLength=ACTOR_BYTES)]
_Stream = Annotated[str, NAME_FIELD]
_MESSAGE = shown_as(
    minItems=1, maxItems=2, prefixItems=[{"type": "string", "minLength": 1, "maxLength": MESSAGE_TYPE_BYTES}]
)


class NewSessionRequest(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A session that somebody asks for."""

    actor_id: _Actor
    ttl: Annotated[int, shown_as(minimum=1, maximum=SESSION_SECONDS)] | None = None
    meta: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    follow: Annotated[tuple[Annotated[str, PATTERN_FIELD], ...], shown_as(maxItems=PATTERNS)] = ()
    after: Annotated[int, shown_as(minimum=0, maximum=LARGEST)] | None = None


class FindActorsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Whom somebody asks for."""

    actors: Annotated[list[_Actor], shown_as(maxItems=EMIT_ACTORS)]


class EmitRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Messages, and exactly one kind of target."""

    messages: Annotated[list[Annotated[list[msgspec.Raw], _MESSAGE]], shown_as(minItems=1, maxItems=PACK_MESSAGES)]
    actors: Annotated[list[_Actor], shown_as(maxItems=EMIT_ACTORS)] | str = ""
    streams: Annotated[list[_Stream], shown_as(maxItems=BATCH_ENTRIES)] | str = ""
    broadcast: bool = False


def read_new_session(body: bytes, caller: Caller) -> NewSessionRequest:
    """Read and check a request for a session. Its patterns are checked here, as a whole, and not again by stream."""
    wanted = _decode(body, NewSessionRequest)
    if wanted.ttl is not None and not 1 <= wanted.ttl <= SESSION_SECONDS:
        raise InputInvalid("ttl", f"is not a number of seconds from 1 to {SESSION_SECONDS:,}")
    if len(wanted.meta) > SESSION_META_BYTES:
        raise TooLarge("bytes of meta", len(wanted.meta), SESSION_META_BYTES)
    if wanted.after is not None and not 0 <= wanted.after <= LARGEST:
        raise InputInvalid("after", "is not the id of an entry")
    if len(wanted.follow) > PATTERNS:
        raise TooLarge("patterns to follow", len(wanted.follow), PATTERNS)
    for pattern in wanted.follow:
        if caller.check_subscribe(check_pattern(pattern)) is not None:
            error = Forbidden(caller.subject, "follow", pattern)
            error.remedy = "Name the streams: this pattern could match users' own."
            raise error
    check_actor(wanted.actor_id)
    wanted.follow = tuple(dict.fromkeys(wanted.follow))
    wanted.meta = msgspec.Raw(bytes(wanted.meta))  # a copy: a Raw keeps the whole request's body alive
    return wanted


def read_actors(body: bytes) -> list[str]:
    """The actors that somebody asks for."""
    actors = _decode(body, FindActorsRequest).actors
    if len(actors) > EMIT_ACTORS:
        raise TooLarge("actors", len(actors), EMIT_ACTORS)
    return actors


def read_emit(body: bytes, caller: Caller) -> tuple[list[EmittedMessage], list[str], list[str]]:
    """Messages, and the actors or streams they are for; without both, for everybody. The caller may emit there."""
    wanted = _decode(body, EmitRequest)
    actors, streams = _names(wanted.actors), _names(wanted.streams)
    if (bool(actors) + bool(streams) + wanted.broadcast) != 1:
        raise InputInvalid("body", "names not exactly one of actors, streams and broadcast")
    messages = check_messages(wanted.messages)
    for stream in streams:
        caller.check_publish(check_name(stream))
    if not streams:
        caller.check_grant("emit")
    if len(actors) > EMIT_ACTORS:
        raise TooLarge("actors of an emit", len(actors), EMIT_ACTORS)
    if len(streams) * len(messages) > BATCH_ENTRIES:
        raise TooLarge("entries of an emit", len(streams) * len(messages), BATCH_ENTRIES)
    for actor in actors:
        check_actor(actor)
    return messages, actors, streams


def _names(given: list[str] | str) -> list[str]:
    """One name or several, each once."""
    return list(dict.fromkeys([given] if isinstance(given, str) and given else given))


def _decode(body: bytes, type: type[T]) -> T:
    try:
        body.decode()  # what is copied byte for byte is not decoded otherwise
        return msgspec.json.decode(body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputInvalid("body", str(error)) from None
