"""How answers become bytes: the fields that every answer carries, and the table's own answers."""

from __future__ import annotations

import logging

from penstock.errors import Forbidden, NotFound, PeerError
from penstock.http.exchange import Headers, Request, Response
from penstock.http.problems import error_response
from penstock.http.routing import Match, Route
from penstock.http.service import Service
from penstock.limits import URL_BYTES
from penstock.wire import http
from penstock.wire.frames import handshake_answer, offered_subprotocols

log = logging.getLogger("penstock.http")
_CLOSE, _KEEP = b"Connection: close\r\n", b"Connection: keep-alive\r\n"
_BODILESS = (204, 304)
_EVERYWHERE = Match({})  # what `OPTIONS *` is about


def resolve(service: Service, request: Request) -> Route | Response:
    """The route for *request*, or the table's own answer. Raises what is wrong with the path."""
    if request.raw_path == "*":
        return service.cors.options(request, _EVERYWHERE)
    match = service.router.find(request.raw_path)
    if match is None:
        raise NotFound("path", request.path, code="path_unknown", remedy="GET /openapi.json lists the paths.")
    route = match.route(request.method)
    if route is not None:
        request.captures = match.captures
        return route
    if request.method == "OPTIONS":
        return service.cors.options(request, match)
    allow = ", ".join(match.methods)
    error = PeerError(405, f"{request.method} is not for this path")
    error.code, error.remedy = "method_not_allowed", f"Use one of {allow}."
    answer = early_problem(service, request, error)
    return Response(answer.status, answer.body, answer.content_type, (*answer.headers, ("Allow", allow)))


def early_problem(service: Service, request: Request, error: BaseException) -> Response:
    """The answer to a request that is refused before its route is asked, in the form of the door it went to."""
    return error_response(error, service.router.form(request.raw_path))


def encode(service: Service, request: Request, response: Response, *, keep_alive: bool) -> bytes:
    """The whole answer to *request*."""
    try:
        if keep_alive and request.plain and not response.headers and response.status not in _BODILESS:
            return http.answer(response.status, response.body, response.content_type, service.date())
        return _encode(service, request, response, keep_alive)
    except ValueError as error:  # a header that a handler made cannot be sent
        return _encode(service, request, error_response(error), keep_alive)


def _encode(service: Service, request: Request, response: Response, keep_alive: bool) -> bytes:
    fields = _fields(service, request, response.headers)
    if not keep_alive:
        fields += _CLOSE
    elif request.http10:
        fields += _KEEP
    status = response.status
    if status in _BODILESS:
        return http.bodiless(status, fields)
    if request.method == "HEAD":
        return http.answer_head(status, len(response.body), response.content_type, fields)
    return http.answer(status, response.body, response.content_type, fields)


def live_head(service: Service, request: Request, status: int, headers: Headers, *, keep_alive: bool) -> bytes:
    """The head of an answer whose length is not known yet."""
    fields = _fields(service, request, headers)
    if not request.http10:
        fields += b"Transfer-Encoding: chunked\r\n"
    if not keep_alive:
        fields += _CLOSE
    return http.bodiless(status, fields)


def interim(status: int, headers: Headers) -> bytes:
    """An answer before the answer."""
    if not 100 <= status < 200 or status == 101:
        raise ValueError(f"{status} is no interim status")
    return http.bodiless(status, http.field_lines(headers))


def _fields(service: Service, request: Request, headers: Headers) -> bytes:
    fields = service.date()
    if headers:
        fields += http.field_lines(headers)
    origin = None if request.plain else request.header(b"origin")
    return fields if origin is None else fields + service.cors.fields(origin)


def handshake(service: Service, request: Request, subprotocol: str | None, headers: Headers) -> bytes:
    """The answer that makes a WebSocket of the connection; raises if the request does not ask for one."""
    origin = request.header(b"origin")
    if not service.cors.allows(origin):
        error = Forbidden("a page", "connect from", (origin or b"").decode("latin-1"))
        error.remedy = "Add its origin to server.cors_origins."
        raise error
    key = handshake_answer(request.header(b"sec-websocket-key"), request.header(b"sec-websocket-version"))
    lines = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + key.encode() + b"\r\n"
    if subprotocol is not None:
        lines += http.field_lines((("Sec-WebSocket-Protocol", _offered(request, subprotocol)),))
    return http.bodiless(101, service.date() + http.field_lines(headers) + lines)


def _offered(request: Request, subprotocol: str) -> str:
    offers = [value for name, value in request.headers if name == b"sec-websocket-protocol"]
    if subprotocol not in offered_subprotocols(offers):
        raise PeerError(400, f"the subprotocol {subprotocol} was not offered")
    return subprotocol


def refusal(service: Service, error: PeerError, head: bytes = b"") -> bytes:
    """The answer to a *head* that was no request; the connection ends with it.

    Such a head says at best where it was meant to go; that is enough to answer in the right form.
    """
    target = head[:URL_BYTES].partition(b"\r")[0].partition(b" ")[2].partition(b" ")[0]
    response = error_response(error, service.router.form(target.decode("latin-1")))
    return http.answer(error.status, response.body, response.content_type, service.date() + _CLOSE)
