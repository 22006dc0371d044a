"""What goes wrong at an endpoint, said in autopush's form."""

from __future__ import annotations

from penstock.errors import Busy, DiskFull, EngineGone, InputInvalid, MailboxFull, NotFound, PeerError, TooLarge
from penstock.http.exchange import Headers, Response
from penstock.http.problems import TimedOut, error_response
from penstock.wire.webpush_endpoint import EndpointRefused, Errno


def problem(error: BaseException) -> Response:
    """The answer for *error*: a number that senders know, and a message that ends with what to do."""
    refused = _meaning(error)
    headers: Headers = ()
    if refused.status == 410:
        headers = (("Cache-Control", "max-age=86400"),)
    elif refused.status == 401:
        headers = (("WWW-Authenticate", "vapid"),)
    elif retry_after := getattr(error, "retry_after", 0):
        headers = (("Retry-After", str(retry_after)),)
    return Response(refused.status, refused.body(), headers=headers)


def _meaning(error: BaseException) -> EndpointRefused:
    match error:
        case EndpointRefused():
            return error
        case MailboxFull():  # no trouble of the service: a sender must not hold back what is for others
            return EndpointRefused(Errno.OVERLOADED, "the user agent is away, and too much waits for it", status=507)
        case Busy():  # 503, or 429 for who asks too fast
            return EndpointRefused(Errno.OVERLOADED, str(error), status=error_response(error).status)
        case TimedOut():
            return EndpointRefused(Errno.TEMPORARY, str(error), "Try again; it may have been taken all the same.")
        case EngineGone() | DiskFull():
            return EndpointRefused(Errno.TEMPORARY, str(error))
        case TooLarge():
            return EndpointRefused(Errno.BODY_TOO_LARGE, str(error))
        case InputInvalid():
            return EndpointRefused(Errno.TOKEN, str(error), error.remedy, status=400)
        case NotFound():
            return EndpointRefused(Errno.TOKEN, str(error), "Use the URL whole, exactly as it was given.")
        case PeerError(status=408):
            return EndpointRefused(Errno.TEMPORARY, error.detail, error.remedy, status=error.status)
        case PeerError():  # autopush has no numbers for what is wrong with a request as such
            return EndpointRefused(Errno.TOKEN, error.detail, error.remedy, status=error.status)
    return EndpointRefused(Errno.UNKNOWN, "the server failed at this request", status=error_response(error).status)
