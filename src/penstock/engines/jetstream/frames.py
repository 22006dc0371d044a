"""NATS' client protocol, as far as this engine's busy paths need it. The rest stays nats-py's.

nats-py's parser matches up to seven patterns against its buffer, moves the buffer twice for each message and
awaits a call per message. Here a message is found with one search and cut out of the bytes as they came;
lines that are no messages (PING, INFO, -ERR …) are given on to nats-py's parser, whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

Receiver = Callable[[bytes, bytes, bytes | None, bytes], None]  # subject, reply, headers, data

LINE_BYTES: Final = 65_536
"""A line that does not end within this is no NATS protocol: the connection is made anew."""


class NatsMessage(msgspec.Struct, frozen=True, gc=False):
    """Something to be stored: *headers* are complete lines, each with its line end."""

    subject: str
    payload: bytes
    headers: bytes = b""


class FrameParser(Parser):
    """Cuts what comes into messages; those of a subscription with a receiver go to it at once."""

    def __init__(self, client: object, receivers: dict[int, Receiver]) -> None:
        self._receivers = receivers
        self._connections = 0
        super().__init__(client)

    def reset(self) -> None:
        """Begin with a new connection."""
        super().reset()
        self._connections += 1
        self._pieces: list[bytes] = []  # the beginning of a message whose end has not come
        self._have = self._needed = 0  # bytes of it, and those that must have come before it is worth to look again

    async def parse(self, data: bytes = b"") -> None:
        """Take what the server sent, cut anyhow. `ProtocolError` if it is none of NATS' protocol."""
        if self._pieces:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._needed:
                return
            data = b"".join(self._pieces)
        connection = self._connections
        try:
            place = await self._give_on(data)
        except (ValueError, IndexError) as error:
            raise ProtocolError from error
        if connection == self._connections:  # else an error has ended it meanwhile, and this rest is the old one's
            rest = data[place:]
            self._pieces, self._have = [rest] if rest else [], len(rest)

    async def _give_on(self, data: bytes) -> int:
        """Give on all that is whole; return where the rest begins."""
        receivers, size, place = self._receivers, len(data), 0
        while (end := data.find(b"\r\n", place)) >= 0:
            letter = data[place]
            if letter != _M and letter != _H:
                await super().parse(data[place : end + 2])
                place = end + 2
                continue
            parts = data[place + 4 : end].split()  # subject, sid, perhaps a reply, perhaps the headers' size, size
            body = end + 2
            after = body + int(parts[-1])
            if after + 2 > size:
                self._needed = after + 2 - place
                return place
            place = after + 2
            headers = None
            if letter == _H:
                headers = data[body : body + int(parts.pop(-2))]
                body += len(headers)
            number, reply = int(parts[1]), parts[2] if len(parts) > 3 else b""
            if receiver := receivers.get(number):
                receiver(parts[0], reply, headers, data[body:after])
            else:
                await self.nc._process_msg(number, parts[0], reply, data[body:after], headers)
        self._needed = 0
        if size - place > LINE_BYTES:
            raise ProtocolError
        return place


_M, _H = b"MH"


def frame(message: NatsMessage, reply: str) -> bytes:
    """A message as it is sent."""
    payload, headers = message.payload, message.headers
    if not headers:
        return b"%b%b\r\n" % (f"PUB {message.subject} {reply} {len(payload)}\r\n".encode(), payload)
    block = len(headers) + _AROUND
    head = f"HPUB {message.subject} {reply} {block} {block + len(payload)}\r\nNATS/1.0\r\n".encode()
    return b"%b%b\r\n%b\r\n" % (head, headers, payload)


def frames_of_batch(messages: Sequence[NatsMessage], batch: str, reply: str) -> list[bytes]:
    """Messages as they are sent as one atomic batch. The first and the last ask for an answer."""
    frames: list[bytes] = []
    start = b"Nats-Batch-Id: %b\r\nNats-Batch-Sequence: " % batch.encode()
    count = len(messages)
    for place, message in enumerate(messages, start=1):
        ending = b"\r\nNats-Batch-Commit: 1\r\n\r\n" if place == count else b"\r\n\r\n"
        block = b"NATS/1.0\r\n%b%b%d%b" % (message.headers, start, place, ending)
        size = len(block)
        to = reply if place in (1, count) else ""
        head = f"HPUB {message.subject} {to} {size} {size + len(message.payload)}\r\n".encode()
        frames.append(b"%b%b%b\r\n" % (head, block, message.payload))
    return frames


_AROUND = len(b"NATS/1.0\r\n\r\n")
