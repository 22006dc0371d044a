"""Answers of this door: the original's texts where it has one, and its headers everywhere."""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.http.problems import Problem, error_response, penstock_form
from penstock.http.responses import Headers, Response
from penstock.wire import trickle
from penstock.wire.trickle import SeqInvalid
from penstock.wire.trickle_channel import Channel

_TEXT = "text/plain; charset=utf-8"
OCTETS = "application/octet-stream"


def text(status: int, body: bytes, headers: Headers = ()) -> Response:
    """A short answer in words."""
    return Response(status, body, _TEXT, headers)


def no_stream() -> Response:
    """There is no such channel."""
    return text(404, trickle.NO_STREAM)


def error(error: PenstockError) -> Response:
    """What is wrong, in this door's form."""
    return error_response(error, _trickle_form)


def _trickle_form(problem: Problem) -> Response:
    """As Penstock's API says it, except for a seq that is no number: that gets the original's words."""
    invalid = isinstance(problem.error, SeqInvalid)
    return text(problem.status, trickle.NO_SEQ) if invalid else penstock_form(problem)


def empty(*headers: tuple[str, str]) -> Response:
    """A good answer that has nothing to say."""
    return Response(200, content_type="", headers=headers)


def head(number: int, *, closed: bool = False) -> Response:
    """The number of the segment that comes next."""
    headers = ((trickle.LATEST, str(number)),)
    return text(200, str(number).encode(), headers + (((trickle.CLOSED, trickle.TERMINATED),) if closed else ()))


def missing(status: int, asked: int, head: int, oldest: int = 0) -> Response:
    """That segment is not here: the next one is *head*, and none below *oldest* can be had."""
    headers = ((trickle.LATEST, str(head)), (trickle.SEQ, str(asked)), (trickle.OLDEST, str(oldest)))
    return text(status, trickle.NO_ENTRY, headers)


def cut_off(status: int, asked: int, seq: int) -> Response:
    """That segment ended before it was whole. Clients go on with the number that a 470 names: here the very next."""
    return missing(status, asked, seq + 1, seq + 1)


def nothing_more(seq: int, head: int) -> Response:
    """The channel is closed, and this is beyond its end."""
    ended = (trickle.CLOSED, trickle.TERMINATED)
    return empty((trickle.SEQ, str(seq)), (trickle.LATEST, str(head)), ended)


def refused(error: Exception, channel: Channel, seq: int) -> Response:
    """An error about one segment: where it was meant for, and where the channel is."""
    response = error_response(error)
    response.headers += ((trickle.SEQ, str(seq)), (trickle.LATEST, str(channel.head)))
    if (size := channel.size_of(seq)) is not None:
        response.headers += ((trickle.SIZE, str(size)),)
    if channel.closed:
        response.headers += ((trickle.CLOSED, trickle.TERMINATED),)
    return response


def timed_out(seq: int, head: int, seconds: float) -> Response:
    """Nothing came for too long; the same seq may be asked for again."""
    headers = ((trickle.TIMEOUT, f"{seconds:g}"), (trickle.SEQ, str(seq)), (trickle.LATEST, str(head)))
    why = f"no byte of segment {seq} within {seconds:g} s"
    return penstock_form(Problem(408, "segment_timeout", why, "Connect to the same seq again.", headers))
