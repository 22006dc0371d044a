"""What a request asks for, and whether it may: parameters first, then who asks, then the rights.

The order of refusals is fixed (405, 400, 401, 403), and an answer only begins when all have passed: after
the first byte of a 200 no other status can be sent.

Topics stand for streams:

    tid=earth          /rooms/earth
    tid=/orders/eu     that stream
    tid=/shop/>        every stream below /shop

A wire reads `/users/<uid>` and `/all` besides, and `/rooms` once it is in a room: what is published to
several rooms at once is one entry there, which names them in its attribute `tids`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.api.describing import LARGEST, PATTERN_FIELD, shown_as
from penstock.core.matching import matches
from penstock.core.names import ROOMS, check_pattern, is_exact
from penstock.errors import Forbidden, InputInvalid, TooLarge
from penstock.http.requests import Request
from penstock.limits import PATTERNS, USER_TOKEN_SECONDS
from penstock.settings import SpsSettings
from penstock.wire import sps

ALL = "/all"
Topics = tuple[str, ...]
Narrow = Callable[[str], bool]
"""Which streams of a wide pattern a token covers."""

# ── topics ─────────────────────────────────────────────────────────────────────────────────────


def user_stream(uid: str) -> str:
    """Where events for one user go."""
    return f"/users/{uid}"


def name_of(uid: str, hid: str) -> str:
    """A device's name, as the ledger has it."""
    return f"{uid}/{hid}" if hid else uid


def pattern_of(tid: str) -> str:
    """The stream or pattern that a topic stands for; raises `NameInvalid`."""
    if tid.startswith("/"):
        return check_pattern(tid)
    pattern = check_pattern(f"{ROOMS}/{tid}")
    if "/" in tid or not is_exact(pattern):
        raise InputInvalid("parameter tid", f"{tid!r} has a '/', '*' or '>': those belong to streams, /like/this")
    return pattern


def topics_of(params: dict[str, str]) -> Topics:
    """The patterns that `tid` stands for, each once."""
    return check_count(tuple(dict.fromkeys(map(pattern_of, sps.topics(params)))))


def check_count(topics: Topics) -> Topics:
    """*topics*, if one wire may have so many."""
    if len(topics) > PATTERNS:
        raise TooLarge("topics", len(topics), PATTERNS)
    return topics


def patterns_for(own: str, topics: Topics) -> Topics:
    """Everything that a wire reads: its user's stream, what is for all, and its topics."""
    rooms = (ROOMS,) if any(topic.startswith((ROOMS, "/*", "/>")) for topic in topics) else ()
    return (own, ALL, *rooms, *topics)


def tids_of(topics: Iterable[str]) -> list[str]:
    """Topics as their subscribers call them."""
    return [sps.topic_of(topic) or topic for topic in topics]


def first_room(tids: Iterable[str], topics: Topics) -> str | None:
    """The first of several rooms, in the publisher's order, that one of *topics* covers."""
    for tid in tids:
        room = f"{ROOMS}/{tid}"
        if room in topics or any(matches(topic, room) for topic in topics if not is_exact(topic)):
            return tid
    return ROOMS if any(matches(topic, ROOMS) for topic in topics) else None


# ── who may ────────────────────────────────────────────────────────────────────────────────────


def check_user(caller: Caller, uid: str) -> None:
    """Raise `Forbidden` unless *caller* is that user, or the admin."""
    if not caller.admin and caller.subject != uid:
        raise Forbidden(caller.subject, "user", uid)


def check_topics(caller: Caller, topics: Topics) -> Narrow | None:
    """Raise `Forbidden` for a topic that the token does not cover; a check by stream where one is needed."""
    checks = [caller.check_subscribe(topic) for topic in topics]
    return next((check for check in checks if check is not None), None)


# ── GET /subscribe ─────────────────────────────────────────────────────────────────────────────

_SUBSCRIBE = ("uid", "hid", "tid", "o", "i", "s", "format", "access_token")


@dataclass(slots=True)
class SubscribeRequest:
    """A subscribe that passed every check."""

    uid: str
    hid: str
    topics: Topics
    after: int | None
    anti_idle: float
    patience: float
    form: str
    narrow: Narrow | None = None


def read_subscribe(request: Request, context: Context, settings: SpsSettings) -> SubscribeRequest:
    """Read and check a subscribe."""
    params = sps.named(request.params, *_SUBSCRIBE)
    asked = SubscribeRequest(
        sps.user(params),
        sps.device(params),
        topics_of(params),
        _after(request, params),
        sps.seconds(params, "i", settings.anti_idle, settings.anti_idle_least, settings.anti_idle_most),
        3 * sps.seconds(params, "s", settings.subsist, settings.subsist_least, 3600),
        _form(request, params),
    )
    caller = _listener(request, context, params.get("access_token"))
    check_user(caller, asked.uid)
    asked.narrow = check_topics(caller, asked.topics)
    return asked


def _after(request: Request, params: dict[str, str]) -> int | None:
    """Where to go on: what a browser says by itself wins over what its page said at first."""
    header = request.header(b"last-event-id")
    asked = sps.opaque(params.get("o"))
    return sps.opaque(header.decode("latin-1"), "header Last-Event-ID") if header else asked


def _form(request: Request, params: dict[str, str]) -> str:
    accept = request.header(b"accept") or b""
    form = params.get("format") or ("sse" if b"text/event-stream" in accept.lower() else "lines")
    if form not in sps.FORMATS:
        raise InputInvalid("parameter format", f"{form[:40]!r} is none of {', '.join(sps.FORMATS)}")
    return form


def _listener(request: Request, context: Context, access_token: str | None) -> Caller:
    """Who subscribes. A token in a URL is written down in many places, so it may only be one that can listen."""
    if access_token is None or request.header(b"authorization") is not None:
        return context.caller(request)
    caller = context.holder(request, access_token)
    if caller.admin or caller.publish or caller.grants:
        error = Forbidden(caller.subject, "send in a URL", "a token that can do more than listen")
        error.remedy = "Use a token without --publish and further grants, or the Authorization header."
        raise error
    return caller


# ── POST /v1/tokens ────────────────────────────────────────────────────────────────────────────


class TokenRequest(msgspec.Struct, forbid_unknown_fields=True):
    """For whom, for how long, and what besides the user's own events."""

    uid: (
        Annotated[int, shown_as(minimum=-(2**63), maximum=LARGEST)]
        | Annotated[str, shown_as(pattern="^-?[0-9]{1,18}$")]
    )
    ttl: Annotated[int, shown_as(minimum=1, maximum=USER_TOKEN_SECONDS)] = 3600
    subscribe: tuple[Annotated[str, PATTERN_FIELD], ...] = ("/rooms/*",)
