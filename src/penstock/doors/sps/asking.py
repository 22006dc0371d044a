"""What a request asks for, and whether it may: parameters first, then who asks, then the rights.

The order of refusals is fixed (405, 400, 401, 403), and an answer only begins when all have passed: after
the first byte of a 200 no other status can be sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.doors.sps.topics import chosen
from penstock.doors.sps.wire import Narrow
from penstock.errors import Forbidden, InputInvalid
from penstock.http.exchange import Request
from penstock.settings import SpsSettings
from penstock.wire import sps

_SUBSCRIBE = ("uid", "hid", "tid", "o", "i", "s", "format", "access_token")
_FORMS = ("lines", "sse", "raw")


@dataclass(slots=True)
class Subscribing:
    """A subscribe that passed every check."""

    uid: str
    hid: str
    topics: tuple[str, ...]
    after: int | None
    anti_idle: float
    patience: float
    form: str
    narrow: Narrow | None = None


def subscribing(request: Request, context: Context, settings: SpsSettings) -> Subscribing:
    """Read and check a subscribe."""
    params = sps.named(request.params, *_SUBSCRIBE)
    asked = Subscribing(
        sps.user(params),
        sps.device(params),
        chosen(sps.topics(params)),
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
    if form not in _FORMS:
        raise InputInvalid("parameter format", f"{form[:40]!r} is none of {', '.join(_FORMS)}")
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


def check_user(caller: Caller, uid: str) -> None:
    """Raise `Forbidden` unless *caller* is that user, or the admin."""
    if not caller.admin and caller.subject != uid:
        raise Forbidden(caller.subject, "user", uid)


def check_topics(caller: Caller, topics: tuple[str, ...]) -> Narrow | None:
    """Raise `Forbidden` for a topic that the token does not cover; a check by stream where one is needed."""
    checks = [caller.check_subscribe(topic) for topic in topics]
    return next((check for check in checks if check is not None), None)
