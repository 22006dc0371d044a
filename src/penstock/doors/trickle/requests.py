"""What a request asks of which channel, checked.

Who may ask: the holder of a token, of a right in the channel's name, or, in open mode, a local peer.
"""

from __future__ import annotations

import ipaddress
import time
from typing import Annotated, Final, NamedTuple

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context, decoded, flag, integer
from penstock.api.describing import shown_as
from penstock.core.ledger import Recipient
from penstock.core.names import check_name
from penstock.doors.trickle.cluster import ChannelRecord
from penstock.errors import Forbidden, InputInvalid, Unauthenticated
from penstock.http.requests import Request
from penstock.limits import CAPABILITY_SECONDS, CHANNEL_SEGMENTS, CONTENT_TYPE_BYTES, EXPIRES_SECONDS, RECIPIENT_BYTES
from penstock.settings import TrickleSettings
from penstock.wire import trickle
from penstock.wire.trickle import DELETE, SUBSCRIBE, parse_seq

DOOR: Final = "trickle"
LOCAL = "local"
_WORDS = {letter: word for word, letter in trickle.RIGHTS.items()}


class ChannelRequest(NamedTuple):
    """A channel that somebody may use."""

    name: str
    subject: str
    trusted: bool  # known by a token or a capability, not only by being local
    admin: bool = False
    payer: str = ""  # whose share of the server's room it takes; empty: nobody's

    @property
    def stream(self) -> str:
        """The stream of the log that the name means; empty if it means a channel."""
        return self.name if self.name.startswith("/") else ""


class ChannelRights:
    """Decides who may do what to which channel."""

    def __init__(self, context: Context, settings: TrickleSettings, key: bytes) -> None:
        self._context, self._settings, self._key = context, settings, key

    def check(self, request: Request, level: str, right: str) -> ChannelRequest:
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
            subject = f"capability/{name}"
            return ChannelRequest(name, subject, trusted=True, payer=capability.maker or subject)
        if self._settings.open and request.header(b"authorization") is None and _is_local(request.peer):
            return ChannelRequest(name, LOCAL, trusted=False)
        caller = self._context.caller(request)
        check_caller(caller, name, right)
        return ChannelRequest(name, caller.subject, trusted=True, admin=caller.admin, payer=self._payer(caller))

    def seal(self, caller: Caller, name: str, rights: str, ttl: int) -> str:
        """The name with rights in it, for *ttl* seconds; 0 is for ever."""
        return trickle.seal(self._key, name, rights, int(time.time()) + ttl if ttl else 0, self._payer(caller))

    def _payer(self, caller: Caller) -> str:
        """The same whether it comes with its token or with a right that it has made."""
        return trickle.maker_of(self._key, caller.sharer) if caller.sharer else ""


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


# ── what is wanted of it ───────────────────────────────────────────────────────────────────────


class CapabilityRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What `POST /v1/capabilities` takes."""

    channel: Annotated[str, shown_as(pattern="^[^~]+$")]
    rights: Annotated[list[Annotated[str, shown_as(enum=list(trickle.RIGHTS))]], shown_as(minItems=1)]
    ttl: Annotated[int, shown_as(minimum=0, maximum=CAPABILITY_SECONDS)] = 0

    @property
    def letters(self) -> str:
        """The rights as they stand in a name."""
        return "".join(letter for word, letter in trickle.RIGHTS.items() if word in self.rights)


def capability_request(request: Request) -> CapabilityRequest:
    """Rights that are to be put into a channel's name."""
    wanted = decoded(request.body, CapabilityRequest)
    unknown = [right for right in wanted.rights if right not in trickle.RIGHTS]
    if unknown or not wanted.rights or not 0 <= wanted.ttl <= CAPABILITY_SECONDS or "~" in wanted.channel:
        raise InputInvalid("body", "needs a channel without '~', rights of publish, subscribe, delete, and a ttl")
    return wanted


def named_channel(request: Request, asked: ChannelRequest, settings: TrickleSettings) -> ChannelRecord:
    """A channel that is to be made as this request says; the settings stand for what it does not name."""
    return ChannelRecord(
        asked.name, 0, "",
        segments=integer(request, "segments", settings.segments, least=1, most=CHANNEL_SEGMENTS),
        bytes=integer(request, "bytes", settings.window_bytes, least=1, most=settings.window_bytes),
        seconds=float(integer(request, "seconds", int(settings.keep_seconds), most=EXPIRES_SECONDS)),
        mime=_content_type(request.header(trickle.EXPECT_CONTENT)),
        record=flag(request, "record"), payer=asked.payer,
    )  # fmt: skip


def implied_channel(request: Request, asked: ChannelRequest, settings: TrickleSettings) -> ChannelRecord:
    """A channel that is to be made because a segment of it comes."""
    mime = _content_type(request.header(b"content-type"))
    keep = settings.segments, settings.window_bytes, settings.keep_seconds
    return ChannelRecord(asked.name, 0, "", *keep, mime, payer=asked.payer)


def _content_type(value: bytes | None) -> str:
    text = (value or b"").decode("latin-1").strip()
    if len(text) > CONTENT_TYPE_BYTES or not (text.isascii() and text.isprintable()):
        raise InputInvalid("content type", f"is not up to {CONTENT_TYPE_BYTES} printable characters")
    return text


class SegmentRequest(NamedTuple):
    """A segment that somebody wants to read."""

    number: int  # as it was given: a negative one counts from the head
    who: Recipient
    wait: float  # seconds for a first byte; 0 is for ever
    payer: str  # under whose name it waits


def segment_request(request: Request, asked: ChannelRequest, text: str, most: float) -> SegmentRequest:
    """What a reader wants; *most* is the longest that one may wait, 0 is no limit. Raises `SeqInvalid`."""
    number = parse_seq(text)
    header = (request.header(trickle.WAIT) or b"").decode("latin-1")
    if header and not (header.isascii() and header.isdigit() and len(header) < 7 and int(header)):
        raise InputInvalid("header Lp-Trickle-Wait", f"{header[:20]!r} is not a number of seconds")
    wait = float(header) if header else most
    who = Recipient(DOOR, _consumer(request, asked))
    return SegmentRequest(number, who, min(wait, most) if most else wait, asked.payer)


def _consumer(request: Request, asked: ChannelRequest) -> str:
    """Who reads, as the ledger will call it: the subject, or a name under it."""
    name = request.params.get("consumer")
    if name is None:
        return asked.subject
    full = name if asked.admin else f"{asked.subject}/{name}"
    if not name.isprintable() or not 0 < len(full.encode()) <= RECIPIENT_BYTES:
        raise InputInvalid("parameter consumer", f"is not 1 to {RECIPIENT_BYTES} printable bytes")
    return full
