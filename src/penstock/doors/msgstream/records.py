"""A session as the registry keeps it, under `msgstream/<actor>`: one actor has one session.

The secret half of a session key is kept as a digest only. Packs are items of the actor's mailbox, which goes on
counting over sessions and begins anew with every month; so a session keeps the difference (`base`), and its pack
ids run from 1 without a break, whatever the mailbox does.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import string
import sys
from typing import Final

import msgspec

from penstock.core.registry import Registry
from penstock.errors import InputInvalid
from penstock.limits import ACTOR_BYTES
from penstock.values import Record
from penstock.wire.msgstream_actions import SessionRecord

DOOR: Final = "msgstream"
PREFIX: Final = "msgstream/"
_LETTERS = string.ascii_letters + string.digits
_KEY_LETTERS = 16  # 95 bits

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(SessionRecord)


def new_secret() -> str:
    """The secret half of a session key."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_KEY_LETTERS))


def digest(secret: str) -> str:
    """What is kept of it."""
    return hashlib.blake2b(secret.encode(errors="replace"), digest_size=16).hexdigest()


def fits(session: SessionRecord, secret: str) -> bool:
    """The secret is this session's."""
    return hmac.compare_digest(session.digest, digest(secret))


def is_actor(name: str) -> bool:
    """Somebody may be called so."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= ACTOR_BYTES and name.isprintable()


def check_actor(name: str) -> str:
    """Return *name* if somebody may be called so."""
    if not is_actor(name):
        raise InputInvalid("actorId", f"is not 1 to {ACTOR_BYTES} printable bytes")
    return name


def mailbox_of(actor: str) -> str:
    """The recipient under which the actor's packs are kept."""
    return PREFIX + actor


def read(record: Record) -> tuple[str, SessionRecord]:
    """An actor, and the session that a record holds."""
    session = _decoder.decode(record.value)
    session.month, session.node = sys.intern(session.month), sys.intern(session.node)  # thousands share them
    return record.key.removeprefix(PREFIX), session


async def find(registry: Registry, actor: str) -> tuple[SessionRecord, int] | None:
    """The session of an actor with its version, ended or not."""
    record = await registry.get(PREFIX + actor)
    return (read(record)[1], record.version) if record else None


async def write(registry: Registry, actor: str, session: SessionRecord, expect: int) -> int:
    """Store a session if nobody else has changed it; returns its new version."""
    return (await registry.put(PREFIX + actor, _encode(session), expect=expect)).version
