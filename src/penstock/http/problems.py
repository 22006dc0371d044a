"""Errors become answers here.

An error has one meaning (`Problem`: status, code, what is wrong, what to do), whichever door it is told through. A door
may tell it in a form of its own; the form says how a problem is written, and no more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.errors import Forbidden, PeerError, PenstockError, Unauthenticated
from penstock.http.responses import Headers, Response

log = logging.getLogger("penstock.http")


class HandlerTimedOut(PenstockError):
    """A handler did not answer in time. What it was about may have happened."""

    code = "timeout"
    status = 503
    remedy = "Try again; if it was a change, with the same Idempotency-Key."
    retry_after = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a request, and what to do about it."""

    status: int
    code: str
    message: str
    remedy: str
    headers: Headers = ()  # that every form sends: `WWW-Authenticate`, `Retry-After`, `Upgrade`
    facts: Mapping[str, int] = field(default_factory=dict)  # numbers that a program goes on with
    error: BaseException | None = None  # what it was made of


Form = Callable[[Problem], Response]
"""How a door writes a problem."""


def penstock_form(problem: Problem) -> Response:
    """The form of Penstock's API."""
    told = {"code": problem.code, "message": problem.message, "remedy": problem.remedy, **problem.facts}
    return Response(problem.status, msgspec.json.encode({"error": told}), headers=problem.headers)


def error_response(error: BaseException, form: Form | None = None) -> Response:
    """The answer for *error*, in the form of Penstock's API or in another."""
    return (form or penstock_form)(problem_of(error))


def problem_of(error: BaseException) -> Problem:
    """What *error* means. What was not raised on purpose is logged, and the peer learns nothing of it."""
    if not isinstance(error, PenstockError) or not error.status:
        log.error("request.failed", exc_info=error)
        remedy = PenstockError.remedy
        return Problem(500, PenstockError.code, "the server failed at this request", remedy, error=error)
    message = error.detail if isinstance(error, PeerError) else str(error)
    return Problem(error.status, error.code, message, error.remedy, _headers(error), error.numbers, error)


def _headers(error: PenstockError) -> Headers:
    if error.status == 426:
        return (("Upgrade", "websocket"),)
    if isinstance(error, Unauthenticated):
        invalid = ', error="invalid_token"' if error.sent else ""
        return (("WWW-Authenticate", f'Bearer realm="penstock"{invalid}'),)
    if isinstance(error, Forbidden):
        return (("WWW-Authenticate", 'Bearer realm="penstock", error="insufficient_scope"'),)
    retry_after = getattr(error, "retry_after", None)
    return () if retry_after is None else (("Retry-After", str(retry_after)),)
