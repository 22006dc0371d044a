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

from penstock.core.ownership import RecordForm
from penstock.core.registry import Registry
from penstock.errors import InputInvalid
from penstock.limits import ACTOR_BYTES
from penstock.wire.msgstream_actions import SessionRecord

DOOR: Final = "msgstream"
PREFIX: Final = "msgstream/"
_LETTERS = string.ascii_letters + string.digits
_KEY_LETTERS = 16  # 95 bits


class _Form(RecordForm[SessionRecord]):
    def decode(self, value: bytes) -> SessionRecord:
        record = super().decode(value)
        record.month, record.owner = sys.intern(record.month), sys.intern(record.owner)  # thousands share them
        return record


FORM: Final = _Form(SessionRecord, "owner")


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


async def find(registry: Registry, actor: str) -> SessionRecord | None:
    """The session of an actor, ended or not."""
    record = await registry.get(PREFIX + actor)
    return FORM.decode(record.value) if record else None
