"""Trickle as text: names of channels, sequence numbers, headers, and the right to a channel in its name.

A channel is a level of a path, `BASE/<channel>/<seq>`. Three things hide in that level:

    cam1                 a channel
    /orders/eu           a stream of the log, its slashes encoded: its index is the seq
    cam1~ps.0.MAC        a channel, and the right to publish and to subscribe, for clients without headers
    cam1~ps.0.BY.MAC     the same, and which subject has made it

`wire/trickle_channel.py` says what happens to segments.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from base64 import urlsafe_b64encode
from collections.abc import Collection
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote

from penstock.errors import InputInvalid
from penstock.limits import LEVEL_BYTES

SEQ: Final = "Lp-Trickle-Seq"  # of the segment that was read or written; in a 470 the one that was asked for
LATEST: Final = "Lp-Trickle-Latest"  # the head: the seq that will be written next
CLOSED: Final = "Lp-Trickle-Closed"  # there is nothing more, and will not be
SIZE: Final = "Lp-Trickle-Size"  # bytes that were there when the reader came
TIMEOUT: Final = "Lp-Trickle-Timeout"  # seconds that were waited for in vain: the same seq may be asked for again
EPOCH: Final = "Lp-Trickle-Epoch"  # which of the channels that had this name, one after the other
OLDEST: Final = "Lp-Trickle-Oldest"  # in a 470: the lowest seq that can be had
EXPOSED_HEADERS: Final = (SEQ, LATEST, CLOSED, SIZE, TIMEOUT, EPOCH, OLDEST)  # what a page may want to read
OFFSET: Final = (
    b"lp-trickle-offset"  # a publisher's: which byte of the segment its first one is; what is there is skipped
)
RESET: Final = b"lp-trickle-reset"  # a publisher's: whoever wrote before is not coming back
WAIT: Final = b"lp-trickle-wait"  # a reader's: seconds it waits for a first byte
EXPECT_CONTENT: Final = b"expect-content"
TERMINATED: Final = "terminated"

NO_STREAM: Final = b"Stream not found\n"
NO_SEQ: Final = b"Invalid idx\n"
NO_SEGMENT: Final = b"Nonexistent segment\n"
NO_CHANNEL: Final = b"Invalid stream\n"
NO_ENTRY: Final = b"Entry not found"
MISSING: Final = 470
CHANNELS: Final = "/channels/"  # what is recorded is below it

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
# What the name of a stream must not hold (core/names.py), and the percent sign with which it is escaped.
_UNFIT = re.compile(r"[\x00-\x20\x7f-\xa0%/:,*>\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
_GO_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


class SeqInvalid(InputInvalid):
    """The text is no sequence number, or not one that can be used so."""

    def __init__(self, text: str) -> None:
        super().__init__("seq", f"{text[:40]!r} is not a sequence number that can be used here", code="seq_invalid")


def parse_seq(text: str) -> int:
    """A whole number of 64 bits, with an optional sign."""
    if not _INTEGER.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise SeqInvalid(text)
    return int(text)


def level_of(name: str) -> str:
    """The channel's name as a level of a stream's name: what may not stand there is percent-encoded."""
    level = _UNFIT.sub(lambda found: quote(found.group(), safe=""), name)
    if not 0 < len(level.encode()) <= LEVEL_BYTES:
        raise InputInvalid("channel name", f"has not 1 to {LEVEL_BYTES} bytes", code="channel_name_invalid")
    return level


def stream_of(name: str, epoch: int | None = None) -> str:
    """The stream that records a channel's epoch; without one, the name that grants speak of."""
    return CHANNELS + level_of(name) + ("" if epoch is None else f"/{epoch}")


def changed(added: Collection[str] = (), removed: Collection[str] = ()) -> bytes:
    """One message of the feed of changes, as the original writes it."""
    said = {key: list(names) for key, names in (("added", added), ("removed", removed)) if names}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).translate(_GO_ESCAPES).encode()


# ── the right in the name ──────────────────────────────────────────────────────────────────────

PUBLISH, SUBSCRIBE, DELETE = "p", "s", "d"
RIGHTS: Final = {"publish": PUBLISH, "subscribe": SUBSCRIBE, "delete": DELETE}
_CAPABILITY = re.compile(
    r"(?P<name>.+)~(?P<rights>[psd]{1,3})\.(?P<expires>[0-9]{1,12})(\.(?P<maker>[A-Za-z0-9_-]{11}))?"
    r"\.(?P<mac>[A-Za-z0-9_-]{22})",
    re.DOTALL,
)


class Capability(NamedTuple):
    """What a name says that its holder may do."""

    name: str  # of the channel alone
    rights: str
    expires: int  # seconds since 1970; 0 is never
    mac: str
    maker: str = ""  # as `maker_of` names it; empty for the admin


def parse_capability(text: str) -> Capability | None:
    """Take a name apart; None if no right is in it."""
    found = _CAPABILITY.fullmatch(text)
    if found is None:
        return None
    return Capability(found["name"], found["rights"], int(found["expires"]), found["mac"], found["maker"] or "")


def seal(key: bytes, name: str, rights: str, expires: int, maker: str = "") -> str:
    """The channel's name with a right in it that only holders of *key* can make."""
    by = f".{maker}" if maker else ""
    return f"{name}~{rights}.{expires}{by}.{_mac(key, name, rights, expires, maker)}"


def holds(capability: Capability, key: bytes, now: float) -> bool:
    """It was made with *key*, and its time has not run out."""
    made = _mac(key, capability.name, capability.rights, capability.expires, capability.maker)
    return hmac.compare_digest(made, capability.mac) and (not capability.expires or capability.expires > now)


@lru_cache(4096)
def maker_of(key: bytes, subject: str) -> str:
    """A subject as rights name it: one for all of them, and not for strangers to read."""
    return urlsafe_b64encode(hmac.digest(key, f"maker\0{subject}".encode(), hashlib.sha256)[:8]).decode()[:11]


def _mac(key: bytes, name: str, rights: str, expires: int, maker: str) -> str:
    by = f"/{maker}" if maker else ""
    text = f"trickle{by}\0{rights}\0{expires}\0{name}".encode()
    return urlsafe_b64encode(hmac.digest(key, text, hashlib.sha256)[:17]).decode()[:22]
