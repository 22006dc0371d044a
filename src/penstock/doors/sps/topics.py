"""Topics and the streams they stand for.

    tid=earth          /rooms/earth
    tid=/orders/eu     that stream
    tid=/shop/>        every stream below /shop

A wire reads `/users/<uid>` and `/all` besides, and `/rooms` once it is in a room: what is published to
several rooms at once is one entry there, which names them in its attribute `tids`.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.names import ROOMS, check_pattern, is_exact, matches
from penstock.errors import InputInvalid, TooLarge
from penstock.limits import PATTERNS
from penstock.wire.sps import topic_of

ALL = "/all"


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


def chosen(tids: Iterable[str]) -> tuple[str, ...]:
    """The patterns of several topics, each once."""
    return check_count(tuple(dict.fromkeys(map(pattern_of, tids))))


def check_count(topics: tuple[str, ...]) -> tuple[str, ...]:
    """*topics*, if one wire may have so many."""
    if len(topics) > PATTERNS:
        raise TooLarge("topics", len(topics), PATTERNS)
    return topics


def patterns_for(own: str, topics: tuple[str, ...]) -> tuple[str, ...]:
    """Everything that a wire reads: its user's stream, what is for all, and its topics."""
    rooms = (ROOMS,) if any(topic.startswith((ROOMS, "/*", "/>")) for topic in topics) else ()
    return (own, ALL, *rooms, *topics)


def shown(topics: Iterable[str]) -> list[str]:
    """Topics as their subscribers call them."""
    return [topic_of(topic) or topic for topic in topics]


def first_room(tids: Iterable[str], topics: tuple[str, ...]) -> str | None:
    """The first of several rooms, in the publisher's order, that one of *topics* covers."""
    for tid in tids:
        room = f"{ROOMS}/{tid}"
        if room in topics or any(matches(topic, room) for topic in topics if not is_exact(topic)):
            return tid
    return ROOMS if any(matches(topic, ROOMS) for topic in topics) else None
