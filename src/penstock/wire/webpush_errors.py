"""How a sender is refused at an endpoint: autopush's numbers, each with its status, headers, remedy and JSON."""

from __future__ import annotations

from enum import IntEnum
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from penstock.errors import CallerError

_PUSH = "https://www.rfc-editor.org/rfc/rfc8030"
_ENCRYPTION = "https://www.rfc-editor.org/rfc/rfc8291"
_VAPID = "https://www.rfc-editor.org/rfc/rfc8292"


class Errno(IntEnum):
    """Why a request was refused: autopush's numbers, which senders know."""

    TOKEN = 102
    USER_AGENT_GONE = 103
    BODY_TOO_LARGE = 104
    GONE_MEANWHILE = 105
    CHANNEL_GONE = 106
    MESSAGE_UNKNOWN = 107
    ROUTER_TYPE = 108
    AUTHORIZATION = 109
    CODING = 110
    TTL_MISSING = 111
    TTL_INVALID = 112
    TOPIC = 113
    TTL_NEGATIVE = 114
    OVERLOADED = 201
    TEMPORARY = 202
    UNKNOWN = 999


class _About(NamedTuple):
    status: int
    remedy: str
    more_info: str = _PUSH


ERRNOS: dict[Errno, _About] = {
    Errno.TOKEN: _About(404, "Use the endpoint's URL whole, exactly as the user agent gave it."),
    Errno.USER_AGENT_GONE: _About(410, "Forget this endpoint: its user agent was away too long, or was reset."),
    Errno.BODY_TOO_LARGE: _About(413, "Send less, or a hint to fetch the rest; webpush.body_limit is the limit."),
    Errno.GONE_MEANWHILE: _About(410, "Forget this endpoint: its user agent was dropped while we tried."),
    Errno.CHANNEL_GONE: _About(410, "Forget this endpoint: the subscription was ended."),
    Errno.MESSAGE_UNKNOWN: _About(400, "Use the message's URL whole, as Location gave it."),
    Errno.ROUTER_TYPE: _About(400, "Only user agents on a WebSocket are served here; no bridges."),
    Errno.AUTHORIZATION: _About(401, "Correct the Authorization header.", _VAPID),
    Errno.CODING: _About(400, "Encrypt the body as RFC 8291 says, with Content-Encoding: aes128gcm.", _ENCRYPTION),
    Errno.TTL_MISSING: _About(400, "Send 'TTL: SECONDS'; 0 delivers now or never."),
    Errno.TTL_INVALID: _About(400, "Send 'TTL: SECONDS' as a whole number."),
    Errno.TOPIC: _About(400, "Send a topic of at most 32 characters of base64url."),
    Errno.TTL_NEGATIVE: _About(400, "Send a TTL of 0 or more."),
    Errno.OVERLOADED: _About(503, "Try again after the time in Retry-After; the message was not taken."),
    Errno.TEMPORARY: _About(503, "Try again soon; the message was not taken."),
    Errno.UNKNOWN: _About(500, "This is a defect of the server: please report it with the server's log."),
}
"""The table. Numbers of autopush that cannot happen here are left out: 101 (now 110) and 900 to 903 (bridges)."""

_HEADERS = {401: (("WWW-Authenticate", "vapid"),), 410: (("Cache-Control", "max-age=86400"),)}


class EndpointRefused(CallerError):
    """A sender's request is refused. Nothing was stored and nothing was sent."""

    def __init__(self, errno: Errno, message: str, remedy: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.errno, self.status = errno, status or ERRNOS[errno].status
        self.remedy = remedy or ERRNOS[errno].remedy

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """What goes with its status, besides the body."""
        return _HEADERS.get(self.status, ())

    def body(self) -> bytes:
        """The answer, in autopush's form; the message ends with what to do."""
        said = {
            "code": self.status,
            "errno": int(self.errno),
            "error": HTTPStatus(self.status).phrase,
            "message": f"{self}. {self.remedy}",
            "more_info": ERRNOS[self.errno].more_info,
        }
        return msgspec.json.encode(said)
