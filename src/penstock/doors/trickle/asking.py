"""Who asks for a channel, and may they: a token, a right in the channel's name, or, in open mode, a local peer."""

from __future__ import annotations

import ipaddress
import time
from typing import NamedTuple

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.core.names import check_name
from penstock.errors import Forbidden, InputInvalid, Unauthenticated
from penstock.http.exchange import Request
from penstock.limits import RECIPIENT_BYTES
from penstock.settings import TrickleSettings
from penstock.wire import trickle
from penstock.wire.trickle import DELETE, PUBLISH, SUBSCRIBE

LOCAL = "local"
_WORDS = {letter: word for word, letter in trickle.RIGHTS.items()}


class Asked(NamedTuple):
    """A channel that somebody may use."""

    name: str
    subject: str
    trusted: bool  # known by a token or a capability, not only by being local
    admin: bool = False

    @property
    def stream(self) -> str:
        """The stream of the log that the name means; empty if it means a channel."""
        return self.name if self.name.startswith("/") else ""


class Gatekeeper:
    """Decides who may do what to which channel."""

    def __init__(self, context: Context, settings: TrickleSettings, key: bytes) -> None:
        self._context, self._settings, self._key = context, settings, key

    def check(self, request: Request, level: str, right: str) -> Asked:
        """The channel that *level* names, if whoever asks has *right*; raises `Unauthenticated` or `Forbidden`."""
        capability = trickle.parse_capability(level)
        name = level if capability is None else capability.name
        _check_channel(name, right)
        if capability is not None:
            if not trickle.holds(capability, self._key, time.time()):
                raise Unauthenticated("the right in the channel's name is not valid, or has run out")
            if right not in capability.rights:
                raise Forbidden("the right in the channel's name", _WORDS[right], name)
            # Without a subject: it is not counted as a token's, but a live answer ends with it.
            request.caller = Caller("", expires=capability.expires or float("inf"))
            return Asked(name, f"capability/{name}", trusted=True)
        if self._settings.open and request.header(b"authorization") is None and _is_local(request.peer):
            return Asked(name, LOCAL, trusted=False)
        caller = self._context.caller(request)
        check_caller(caller, name, right)
        return Asked(name, caller.subject, trusted=True, admin=caller.admin)

    def seal(self, name: str, rights: str, ttl: int) -> str:
        """The name with rights in it, for *ttl* seconds; 0 is for ever."""
        return trickle.seal(self._key, name, rights, int(time.time()) + ttl if ttl else 0)


def check_caller(caller: Caller, name: str, right: str) -> None:
    """Raise `Forbidden` unless the token covers the channel."""
    target = name if name.startswith("/") else trickle.stream_of(name)
    if right == SUBSCRIBE:
        caller.check_subscribe(target)
    else:
        caller.check_publish(target)
    if right == DELETE:
        caller.check_grant("channels")


def _check_channel(name: str, right: str) -> None:
    if name.startswith("/"):
        check_name(name)
    else:
        trickle.level_of(name)
    if right != SUBSCRIBE and name.startswith(("_", "/")):
        error = Forbidden("a publisher", _WORDS[right], name)
        error.remedy = "Such names are the server's own; streams are written to with /v1/publish."
        raise error


def _is_local(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


def consumer(request: Request, asked: Asked) -> str:
    """Who reads, as the ledger will call it: the subject, or a name under it."""
    name = request.params.get("consumer")
    if name is None:
        return asked.subject
    full = name if asked.admin else f"{asked.subject}/{name}"
    if not name.isprintable() or not 0 < len(full.encode()) <= RECIPIENT_BYTES:
        raise InputInvalid("parameter consumer", f"is not 1 to {RECIPIENT_BYTES} printable bytes")
    return full


__all__ = ["DELETE", "PUBLISH", "SUBSCRIBE", "Asked", "Gatekeeper", "check_caller", "consumer"]
