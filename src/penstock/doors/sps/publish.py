"""`/notify_to_user`, `/notify_to_room`, `/notify_to_all`: one event, one id, stored once.

Nothing is copied per recipient: an event for several rooms is one entry of `/rooms` that names them, one
for a single device is an entry of its user's stream that names the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.core.names import ROOMS, check_name, is_exact
from penstock.doors.sps.requests import ALL, name_of, topics_of, user_stream
from penstock.doors.sps.wires import Reached, Wires
from penstock.errors import InputInvalid, TooLarge
from penstock.http.requests import Request
from penstock.http.responses import Later, Response
from penstock.limits import ATTRIBUTES_BYTES, ENTRY_BYTES, EXPIRES_SECONDS, KEY_BYTES, TYPE_BYTES
from penstock.values import Appended, Batch, Draft, Key
from penstock.wire import sps
from penstock.wire.sps import topic_of

REACHED: Final = "sps.reached"
"""What the workers of a machine ask each other: how many wires have an event."""

_encode = msgspec.json.Encoder().encode


class Address(msgspec.Struct, frozen=True):
    """Where an event goes."""

    stream: str
    checked: tuple[str, ...]  # what the publisher must have a grant for
    reaches: tuple[str, ...]  # the streams whose readers get it
    attributes: str = ""
    name: str = ""  # the one device it is for
    shown: str = ""  # the target in words, for those who read text


Read = Callable[[Request], Address]


def to_user(request: Request) -> Address:
    """All devices of a user, or the one that `hid` names."""
    params = sps.named(request.params, "uid", "hid")
    uid, hid = sps.user(params), sps.device(params)
    stream = user_stream(uid)
    attributes = _encode({"hid": hid}).decode() if hid else ""
    return Address(stream, (stream,), (stream,), attributes, name_of(uid, hid) if hid else "", f"{uid} {hid}".strip())


def to_room(request: Request) -> Address:
    """One topic, or several rooms at once."""
    params = sps.named(request.params, "tid")
    streams = topics_of(params)
    if not streams:
        raise InputInvalid("parameter tid", "names no topic")
    if any(not is_exact(stream) for stream in streams):
        raise InputInvalid("parameter tid", "is a pattern: an event goes to topics with names")
    for stream in streams:
        check_name(stream)
    if len(streams) == 1:
        return Address(streams[0], streams, streams, shown=sps.topics(params)[0])
    return _to_rooms(streams)


def _to_rooms(streams: tuple[str, ...]) -> Address:
    """Several rooms share one entry."""
    if any(not stream.startswith(ROOMS + "/") or stream.count("/") > 2 for stream in streams):
        raise InputInvalid("parameter tid", "names a stream and something else: one event has one id, in one stream")
    rooms = ",".join(topic_of(stream) or "" for stream in streams)
    attributes = _encode({"tids": rooms}).decode()
    if len(attributes.encode()) > ATTRIBUTES_BYTES:
        raise TooLarge("bytes of all topics", len(rooms.encode()), ATTRIBUTES_BYTES)
    return Address(ROOMS, streams, streams, attributes, shown=rooms)


def to_all(request: Request) -> Address:
    """Everybody who listens."""
    sps.named(request.params)
    return Address(ALL, (ALL,), (ALL,), shown="all")


class Notify:
    """Publishes to what *read* makes of a request."""

    def __init__(self, context: Context, wires: Wires, read: Read) -> None:
        self._context, self._wires, self._read = context, wires, read

    def admit(self, request: Request) -> None:
        """Refuse before the body is read what its head says to refuse."""
        address = self._read(request)
        if request.header(b"content-length") in (None, b"0") and request.header(b"transfer-encoding") is None:
            raise InputInvalid("body", "is empty: an event has at least one byte")
        self._allowed(request, address)

    def __call__(self, request: Request) -> Later:
        """Publish, and answer when it is durable."""
        address = self._read(request)
        if not request.body:
            raise InputInvalid("body", "is empty: an event has at least one byte")
        if len(request.body) > ENTRY_BYTES:
            raise TooLarge("entry bytes", len(request.body), ENTRY_BYTES)
        event_type = _header(request, b"event-type", TYPE_BYTES)
        key = _header(request, b"idempotency-key", KEY_BYTES)
        caller = self._allowed(request, address)
        expires_ms = self._expiry(request)
        draft = Draft(address.stream, request.body, event_type, address.attributes, expires_ms)
        batch = Batch((draft,), key=_key(caller.subject, draft, key) if key else None)
        plain = b"text/plain" in (request.header(b"accept") or b"")
        return Later(self._context.log.append(batch), partial(self._response, address, plain))

    def _expiry(self, request: Request) -> int | None:
        """When the event's time runs out: a device that comes later does not get it any more."""
        text = _header(request, b"expires-in", 20)
        if not text:
            return None
        if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= EXPIRES_SECONDS:
            raise InputInvalid("header expires-in", f"{text!r} is not a number of seconds up to {EXPIRES_SECONDS:,}")
        return self._context.clock.now_ms() + int(text) * 1000

    def _allowed(self, request: Request, address: Address) -> Caller:
        caller = self._context.caller(request)
        for stream in address.checked:
            caller.check_publish(stream)
        return caller

    def _response(
        self, address: Address, plain: bool, appended: Appended
    ) -> Response | Coroutine[None, None, Response]:
        reached = Reached(appended.last.id, address.reaches, address.name)
        delivered = self._wires.count_reached(reached)
        if not self._context.other_workers.on_this_machine:
            return _answer(address, plain, reached.id, delivered)
        return self._response_of_all(address, plain, reached, delivered)

    async def _response_of_all(self, address: Address, plain: bool, reached: Reached, here: int) -> Response:
        """The same, with the wires of the other workers of this machine counted."""
        other_workers, about = self._context.other_workers, msgspec.msgpack.encode(reached)
        others = await other_workers.ask_readers(address.reaches, REACHED, int, about)
        return _answer(address, plain, reached.id, here + sum(others.told))


async def count_for_others(wires: Wires, about: bytes) -> int:
    """Answer another worker: how many wires here have an event."""
    return wires.count_reached(msgspec.msgpack.decode(about, type=Reached))


def _answer(address: Address, plain: bool, id: int, delivered: int) -> Response:
    if plain:
        word = "delivered" if delivered else "offline"
        return Response(200, f"{word}\n{address.shown}\n".encode(), "text/plain; charset=utf-8")
    return Response(200, _encode({"id": id, "delivered": delivered, "stored": True}))


def _header(request: Request, name: bytes, limit: int) -> str:
    """A header of printable text; empty if it is not there."""
    value = request.header(name) or b""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if len(value) > limit or not text.isprintable():
        raise InputInvalid(f"header {name.decode()}", f"is not up to {limit} bytes of printable UTF-8")
    return text


def _key(subject: str, draft: Draft, key: str) -> Key:
    digest = hashlib.sha256(b"\n".join((draft.type.encode(), draft.attributes.encode(), draft.body))).digest()
    return Key(subject, draft.stream, key, digest)
