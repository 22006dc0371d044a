"""Which of autopush's numbers an error gets; `wire/webpush_errors.py` has their statuses, headers and texts."""

from __future__ import annotations

from penstock.errors import Busy, DiskFull, EngineGone, InputInvalid, MailboxFull, NotFound, PeerError, TooLarge
from penstock.http.problems import HandlerTimedOut, Problem
from penstock.http.responses import Response
from penstock.wire.webpush_errors import EndpointRefused, Errno


def autopush_form(problem: Problem) -> Response:
    """A number that senders know, and a message that ends with what to do."""
    refused = _refused(problem)
    when = tuple(header for header in problem.headers if header[0] == "Retry-After")
    return Response(refused.status, refused.body(), headers=refused.headers or when)


def _refused(problem: Problem) -> EndpointRefused:
    status, message, remedy = problem.status, problem.message, problem.remedy
    match problem.error:
        case EndpointRefused() as refused:
            return refused
        case MailboxFull():
            return EndpointRefused(Errno.OVERLOADED, "the user agent is away, and too much waits for it", status=status)
        case Busy():
            return EndpointRefused(Errno.OVERLOADED, message, status=status)
        case HandlerTimedOut():
            return EndpointRefused(Errno.TEMPORARY, message, "Try again; it may have been taken all the same.")
        case EngineGone() | DiskFull():
            return EndpointRefused(Errno.TEMPORARY, message)
        case TooLarge():
            return EndpointRefused(Errno.BODY_TOO_LARGE, message)
        case InputInvalid():
            return EndpointRefused(Errno.TOKEN, message, remedy, status)
        case NotFound():
            return EndpointRefused(Errno.TOKEN, message, "Use the URL whole, exactly as it was given.")
        case PeerError():  # autopush has no numbers for what is wrong with a request as such
            return EndpointRefused(Errno.TEMPORARY if status == 408 else Errno.TOKEN, message, remedy, status)
    return EndpointRefused(Errno.UNKNOWN, "the server failed at this request", status=status)
