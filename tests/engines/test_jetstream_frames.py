"""NATS' protocol, as the cluster engine reads and writes it: how the bytes are cut does not matter."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError

from penstock.engines.jetstream.frames import LINE_BYTES, FrameParser, NatsMessage, frame, frames_of_batch

Got = tuple[bytes, bytes, bytes | None, bytes]

words = st.text("abc.$*", min_size=1, max_size=12).map(str.encode)
bodies = st.binary(max_size=60) | st.sampled_from([b"MSG a 1 3\r\nabc\r\n", b"\r\n", b"PING\r\n"])
blocks = st.sampled_from([b"NATS/1.0\r\n\r\n", b"NATS/1.0 100 Idle\r\nA: b\r\n\r\n"])
messages = st.tuples(words, st.just(b"") | words, st.none() | blocks, bodies)
cuts = st.lists(st.integers(0, 400), max_size=12)


class Client:
    """What nats-py's client would be told."""

    def __init__(self) -> None:
        self.pings = self.pongs = 0
        self.given: list[Got] = []

    async def _process_ping(self) -> None:
        self.pings += 1

    async def _process_pong(self) -> None:
        self.pongs += 1

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.given.append((subject, reply, headers, data))


class Peer:
    """A parser whose subscription 7 goes to a receiver, and every other to nats-py."""

    def __init__(self) -> None:
        self.client, self.got = Client(), list[Got]()
        self.frames = FrameParser(self.client, {7: lambda *parts: self.got.append(parts)})

    async def take(self, data: bytes, places: list[int] | None = None) -> None:
        edges = [0, *sorted(place for place in places or [] if place < len(data)), len(data)]
        for begin, end in pairwise(edges):
            await self.frames.parse(data[begin:end])


def sent(subject: bytes, sid: int, reply: bytes, headers: bytes | None, data: bytes) -> bytes:
    """A message as the server writes it."""
    middle = b" ".join([subject, b"%d" % sid, *([reply] if reply else [])])
    if headers is None:
        return b"MSG %b %d\r\n%b\r\n" % (middle, len(data), data)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (middle, len(headers), len(headers) + len(data), headers, data)


@given(st.lists(st.tuples(messages, st.sampled_from([7, 8])), max_size=8), cuts)
def test_how_the_bytes_are_cut_does_not_matter(all_sent: list[tuple[Got, int]], places: list[int]) -> None:
    peer = Peer()
    data = b"PING\r\n".join(sent(parts[0], sid, *parts[1:]) for parts, sid in all_sent) + b"PONG\r\n"

    asyncio.run(peer.take(data, places))

    assert peer.got == [parts for parts, sid in all_sent if sid == 7]
    assert peer.client.given == [parts for parts, sid in all_sent if sid == 8]
    assert (peer.client.pings, peer.client.pongs) == (max(0, len(all_sent) - 1), 1)


async def test_a_large_message_is_put_together_once() -> None:
    peer, body = Peer(), b"x" * 3_000_000
    data = sent(b"a", 7, b"", None, body)

    await peer.take(data, list(range(0, len(data), 32_768)))

    assert peer.got == [(b"a", b"", None, body)]


@pytest.mark.parametrize("nonsense", [b"MSG a\r\n", b"MSG a 7 x\r\n", b"HMSG a 7 x\r\n", b"x" * (LINE_BYTES + 1)])
async def test_what_is_no_protocol_ends_the_connection(nonsense: bytes) -> None:
    with pytest.raises(ProtocolError):
        await Peer().take(nonsense)


async def test_the_rest_of_an_old_connection_is_forgotten() -> None:
    peer = Peer()
    await peer.take(b"MSG a 7 10\r\nhalf")

    peer.frames.reset()
    await peer.take(sent(b"b", 7, b"", None, b"new"))

    assert peer.got == [(b"b", b"", None, b"new")]


def read(data: bytes) -> tuple[bytes, bytes, dict[str, str], bytes]:
    """A publish as the server reads it: subject, reply, headers, payload; nothing may be left."""
    line, _, rest = data.partition(b"\r\n")
    verb, subject, *others = line.split()
    if verb == b"PUB":
        *reply, size = others
        block = 0
    else:
        *reply, headers, size = others
        block = int(headers)
    assert len(rest) == int(size) + 2
    assert rest.endswith(b"\r\n")
    lines = rest[:block].decode().split("\r\n")
    assert lines[0] == ("NATS/1.0" if block else "")
    assert lines[-2:] == ["", ""] if block else lines == [""]
    pairs: Any = (text.split(": ") for text in lines[1:-2])
    return subject, reply[0] if reply else b"", dict(pairs), rest[block:-2]


@given(st.binary(max_size=50), st.sampled_from([b"", b"A: b\r\n"]), st.sampled_from(["", "inbox.1"]))
def test_a_message_is_sent_as_it_is_read(payload: bytes, headers: bytes, reply: str) -> None:
    found = read(frame(NatsMessage("log.e.a", payload, headers), reply))

    assert found == (b"log.e.a", reply.encode(), {"A": "b"} if headers else {}, payload)


@given(st.lists(st.tuples(st.binary(max_size=20), st.sampled_from([b"", b"A: b\r\n"])), min_size=2, max_size=20))
def test_a_batch_is_numbered_and_ends_with_a_commit(parts: list[tuple[bytes, bytes]]) -> None:
    frames = frames_of_batch([NatsMessage("s", payload, headers) for payload, headers in parts], "b-1", "inbox.9")

    found = [read(data) for data in frames]

    assert [payload for _, _, _, payload in found] == [payload for payload, _ in parts]
    assert [headers.get("A") for _, _, headers, _ in found] == ["b" if headers else None for _, headers in parts]
    assert [headers["Nats-Batch-Sequence"] for _, _, headers, _ in found] == [str(n + 1) for n in range(len(parts))]
    assert {headers["Nats-Batch-Id"] for _, _, headers, _ in found} == {"b-1"}
    assert [("Nats-Batch-Commit" in headers) for _, _, headers, _ in found] == [False] * (len(parts) - 1) + [True]
    assert [bool(reply) for _, reply, _, _ in found] == [True, *[False] * (len(parts) - 2), True]
