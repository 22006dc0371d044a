"""What handlers work with, put together once at start; and how they read parameters."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from penstock.api.auth import Authenticator, Caller
from penstock.core.all_workers import OtherWorkers
from penstock.core.background import Background
from penstock.core.bus import Bus
from penstock.core.change_watch import ChangePoller
from penstock.core.clock import Clock
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.core.liveness import Membership, SingleMember
from penstock.core.log import Log
from penstock.core.mailbox import Mailbox
from penstock.core.names import check_pattern
from penstock.core.registry import Registry
from penstock.errors import InputInvalid, TooLarge
from penstock.http.rate_limits import Caps
from penstock.http.requests import Request
from penstock.http.timers import Wheel
from penstock.limits import PATTERNS
from penstock.units import parse_moment, parse_whole

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of a running node."""

    log: Log
    mailbox: Mailbox
    registry: Registry
    bus: Bus
    hub: Hub
    ledger: Ledger
    authenticator: Authenticator
    clock: Clock
    wheel: Wheel
    body_limit: int
    caps: Caps = field(default_factory=lambda: Caps(0))  # no caps on requests; it never admits connections
    members: Membership = field(default_factory=SingleMember)
    background: Background = field(default_factory=Background)
    change_poller: ChangePoller = field(default_factory=ChangePoller)
    other_workers: OtherWorkers = field(default_factory=OtherWorkers)  # the other processes of this machine

    def caller(self, request: Request) -> Caller:
        """Who sent this request, which is counted under them; raises `Unauthenticated` or `RateExceeded`.

        A live answer that is opened after this is counted under them, too, and ends with their token.
        """
        return self._count(request, self.known(request))

    def holder(self, request: Request, token: str) -> Caller:
        """As `caller`, where the token does not come in the header but in the URL."""
        return self._count(request, self.authenticator.caller_of(token.encode()))

    def _count(self, request: Request, caller: Caller) -> Caller:
        if self.caps.counts_tokens:
            self.caps.request_of_token(caller.subject, time.monotonic())
        request.caller = caller
        return caller

    def known(self, request: Request) -> Caller:
        """As `caller`, without counting the request. For checks before the body is read; the handler calls `caller`."""
        memo = request.fields_memo
        known: Caller | None = memo.get("caller")
        if known is None or memo["keys"] is not self.authenticator.keys or known.expires <= time.time():
            known = memo["caller"] = self.authenticator.caller(request.header(b"authorization"))
            memo["keys"] = self.authenticator.keys
        return known

    def admit(self, request: Request) -> None:
        """Turn strangers away before a byte of their body is read."""
        self.known(request)

    def admitting(self, check: Callable[[Caller], object]) -> Callable[[Request], None]:
        """As `admit`, with *check* called on the caller: what it raises refuses the request before its body is read."""

        def admit(request: Request) -> None:
            check(self.known(request))

        return admit


def decoded(body: bytes, kind: type[T]) -> T:
    """A body of JSON as a value of *kind*; `InputInvalid` if it is none, whatever its bytes are and however deep."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputInvalid("body", str(error)) from None


def integer(request: Request, name: str, default: int | None, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """A whole number from the query; None as default means that it is required."""
    text = request.params.get(name)
    if text is None:
        if default is None:
            raise InputInvalid(f"parameter {name}", "is missing")
        return default
    return parse_whole(f"parameter {name}", text, least=least, most=most)


def milliseconds(name: str, text: str) -> int:
    """A moment, given as ISO text (UTC if it names no zone), in milliseconds since 1970; never below 0."""
    return max(0, int(parse_moment(name, text).timestamp() * 1000))


def flag(request: Request, name: str) -> bool:
    """A yes or no from the query."""
    text = request.params.get(name, "false")
    if text not in ("true", "false"):
        raise InputInvalid(f"parameter {name}", f"{text[:40]!r} is neither true nor false")
    return text == "true"


def only(request: Request, *known: str) -> None:
    """Refuse parameters that mean nothing here: a misspelt one must not be passed over."""
    for name in request.params:
        if name not in known:
            raise InputInvalid(f"parameter {name[:40]}", f"is unknown here; known are {', '.join(known)}")


def readable(request: Request, caller: Caller) -> tuple[tuple[str, ...], Callable[[str], bool] | None]:
    """The patterns of `streams=`, and a check for each stream where the grants are narrower than a pattern."""
    patterns = tuple(dict.fromkeys(check_pattern(p) for p in request.params.get("streams", "").split(",")))
    if len(patterns) > PATTERNS:
        raise TooLarge("patterns", len(patterns), PATTERNS)
    checks = [caller.check_subscribe(pattern) for pattern in patterns]
    return patterns, next((check for check in checks if check is not None), None)
