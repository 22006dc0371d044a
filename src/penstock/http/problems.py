"""Errors become answers here, and only here."""

from __future__ import annotations

import logging

import msgspec

from penstock.errors import (
    Busy,
    Conflict,
    DataCorrupt,
    DiskFull,
    EngineGone,
    Forbidden,
    InputInvalid,
    NotFound,
    PeerError,
    PenstockError,
    TooLarge,
    Trimmed,
    Unauthenticated,
)
from penstock.http.caps import RateExceeded, TooManyOpen
from penstock.http.exchange import Headers, Response

log = logging.getLogger("penstock.http")


class TimedOut(PenstockError):
    """A handler did not answer in time. What it was about may have happened."""

    code = "timeout"
    remedy = "Try again; if it was a change, with the same Idempotency-Key."
    retry_after = 1


_STATUS: dict[type[PenstockError], int] = {
    InputInvalid: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    Trimmed: 410,
    TooLarge: 413,
    RateExceeded: 429,
    TooManyOpen: 429,
    Busy: 503,
    TimedOut: 503,
    EngineGone: 503,
    DataCorrupt: 503,
    DiskFull: 507,
}


def error_response(error: BaseException) -> Response:
    """The answer for *error*. What was not raised on purpose is logged, and the peer learns nothing of it."""
    if isinstance(error, PeerError):
        headers = (("Upgrade", "websocket"),) if error.status == 426 else ()
        return problem(error.status, error.code, error.detail, error.remedy, headers)
    status = _status(error)
    if not isinstance(error, PenstockError) or status is None:
        log.error("request.failed", exc_info=error)
        return problem(500, PenstockError.code, "the server failed at this request", PenstockError.remedy)
    return problem(status, error.code, str(error), error.remedy, _headers(error))


def problem(status: int, code: str, message: str, remedy: str, headers: Headers = ()) -> Response:
    """An answer that says what is wrong and what to do about it."""
    body = msgspec.json.encode({"error": {"code": code, "message": message, "remedy": remedy}})
    return Response(status, body, headers=headers)


def _status(error: BaseException) -> int | None:
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    return None


def _headers(error: PenstockError) -> Headers:
    if isinstance(error, Unauthenticated):
        invalid = ', error="invalid_token"' if error.sent else ""
        return (("WWW-Authenticate", f'Bearer realm="penstock"{invalid}'),)
    if isinstance(error, Forbidden):
        return (("WWW-Authenticate", 'Bearer realm="penstock", error="insufficient_scope"'),)
    retry_after = getattr(error, "retry_after", None)
    return () if retry_after is None else (("Retry-After", str(retry_after)),)
