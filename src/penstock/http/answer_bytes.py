"""How answers become bytes: the fields that every answer carries, and the table's own answers (404, 405, OPTIONS)."""

from __future__ import annotations

import logging

from penstock.errors import Forbidden, NotFound, PeerError
from penstock.http.problems import error_response
from penstock.http.requests import Request
from penstock.http.responses import Headers, Response
from penstock.http.routing import Match, Route
from penstock.http.shared import Shared
from penstock.limits import URL_BYTES
from penstock.wire import http_responses
from penstock.wire.websocket_frames import handshake_answer, offered_subprotocols

log = logging.getLogger("penstock.http")
_CLOSE, _KEEP = b"Connection: close\r\n", b"Connection: keep-alive\r\n"
_BODILESS = (204, 304)
_EVERYWHERE = Match({})  # what `OPTIONS *` is about


def resolve(shared: Shared, request: Request) -> Route | Response:
    """The route for *request*, or the table's own answer. Raises what is wrong with the path."""
    if request.raw_path == "*":
        return shared.cors.options(request, _EVERYWHERE)
    match = shared.router.find(request.raw_path)
    if match is None:
        raise NotFound("path", request.path, code="path_unknown", remedy="GET /openapi.json lists the paths.")
    route = match.route(request.method)
    if route is not None:
        request.captures = match.captures
        return route
    if request.method == "OPTIONS":
        return shared.cors.options(request, match)
    allow = ", ".join(match.methods)
    error = PeerError(405, f"{request.method} is not for this path")
    error.code, error.remedy = "method_not_allowed", f"Use one of {allow}."
    answer = early_problem(shared, request, error)
    return Response(answer.status, answer.body, answer.content_type, (*answer.headers, ("Allow", allow)))


def early_problem(shared: Shared, request: Request, error: BaseException) -> Response:
    """The answer to a request that is refused before its route is asked, in the form of the door it went to."""
    return error_response(error, shared.router.form(request.raw_path))


def encode(shared: Shared, request: Request, response: Response, *, keep_alive: bool) -> bytes:
    """The whole answer to *request*."""
    try:
        if keep_alive and request.plain and not response.headers and response.status not in _BODILESS:
            return http_responses.answer(response.status, response.body, response.content_type, shared.date())
        return _encode(shared, request, response, keep_alive)
    except ValueError as error:  # a header that a handler made cannot be sent
        return _encode(shared, request, error_response(error), keep_alive)


def _encode(shared: Shared, request: Request, response: Response, keep_alive: bool) -> bytes:
    fields = _fields(shared, request, response.headers)
    if not keep_alive:
        fields += _CLOSE
    elif request.http10:
        fields += _KEEP
    status = response.status
    if status in _BODILESS:
        return http_responses.bodiless(status, fields)
    if request.method == "HEAD":
        return http_responses.answer_head(status, len(response.body), response.content_type, fields)
    return http_responses.answer(status, response.body, response.content_type, fields)


def live_head(shared: Shared, request: Request, status: int, headers: Headers, *, keep_alive: bool) -> bytes:
    """The head of an answer whose length is not known yet."""
    fields = _fields(shared, request, headers)
    if not request.http10:
        fields += b"Transfer-Encoding: chunked\r\n"
    if not keep_alive:
        fields += _CLOSE
    return http_responses.bodiless(status, fields)


def interim(status: int, headers: Headers) -> bytes:
    """An answer before the answer."""
    if not 100 <= status < 200 or status == 101:
        raise ValueError(f"{status} is no interim status")
    return http_responses.bodiless(status, http_responses.field_lines(headers))


def _fields(shared: Shared, request: Request, headers: Headers) -> bytes:
    fields = shared.date()
    if headers:
        fields += http_responses.field_lines(headers)
    origin = None if request.plain else request.header(b"origin")
    return fields if origin is None else fields + shared.cors.fields(origin)


def handshake(shared: Shared, request: Request, subprotocol: str | None) -> bytes:
    """The answer that makes a WebSocket of the connection; raises if the request does not ask for one."""
    origin = request.header(b"origin")
    if not shared.cors.allows(origin, request.header(b"host")):
        error = Forbidden("a page", "connect from", (origin or b"").decode("latin-1"))
        error.remedy = "Add its origin to server.cors_origins."
        raise error
    key = handshake_answer(request.header(b"sec-websocket-key"), request.header(b"sec-websocket-version"))
    lines = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + key.encode() + b"\r\n"
    if subprotocol is not None:
        lines += http_responses.field_lines((("Sec-WebSocket-Protocol", _offered(request, subprotocol)),))
    return http_responses.bodiless(101, shared.date() + lines)


def _offered(request: Request, subprotocol: str) -> str:
    offers = [value for name, value in request.headers if name == b"sec-websocket-protocol"]
    if subprotocol not in offered_subprotocols(offers):
        raise PeerError(400, f"the subprotocol {subprotocol} was not offered")
    return subprotocol


def refusal(shared: Shared, error: PeerError, head: bytes = b"") -> bytes:
    """The answer to a *head* that was no request; the connection ends with it.

    Such a head says at best where it was meant to go; that is enough to answer in the right form.
    """
    target = head[:URL_BYTES].partition(b"\r")[0].partition(b" ")[2].partition(b" ")[0]
    response = error_response(error, shared.router.form(target.decode("latin-1")))
    return http_responses.answer(error.status, response.body, response.content_type, shared.date() + _CLOSE)
