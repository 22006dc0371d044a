"""What is larger than a NATS server takes: it is refused or cut before it is sent, and nobody at the node notices."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

import pytest
from nats.aio.client import Client

from penstock.core import node_calls
from penstock.core.node_calls import Calls
from penstock.engines.jetstream.client import RawClient
from penstock.engines.jetstream.connection import NatsConnection
from penstock.engines.jetstream.frames import NatsMessage
from penstock.errors import TooLarge
from penstock.limits import PATTERNS
from penstock.testing import NatsCluster, RunningServer, TooLate, wait_until, wait_until_async
from tests.api.client import Tail, ask, publish
from tests.cluster.homes import new_prefix, opened
from tests.doors.sps_client import Wire, new_user

TOPIC_CHARACTERS = 108
DEVICES = 300  # with 64 such topics each: more than 2 MB


class Trusting(NatsConnection):
    """The sabotage: believes that a server takes anything."""

    @property
    def max_payload(self) -> int:
        return 1 << 40


class Question:
    """One that is being answered while something else goes on with the same connection."""

    def __init__(self, connection: NatsConnection, inbox: str) -> None:
        self._connection, self._inbox = connection, inbox
        self.asked, self._reply_to = asyncio.Event(), ""

    def hear(self, subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
        self._reply_to = reply.decode()
        self.asked.set()

    async def ask(self) -> bytes:
        return (await self._connection.request(self._inbox, b"innocent"))[1]

    def answer(self) -> None:
        self._connection.send(NatsMessage(self._reply_to, b"answered"))


@asynccontextmanager
async def beside(connection: NatsConnection) -> AsyncIterator[None]:
    """Somebody else's question is on its way until the block ends, and must be answered."""
    question = Question(connection, f"test.{secrets.token_hex(8)}")
    await connection.listen(question._inbox, question.hear)
    async with asyncio.TaskGroup() as tasks:
        bystander = tasks.create_task(question.ask())
        await question.asked.wait()
        yield
        await connection.client.flush()  # type: ignore[no-untyped-call]  # the server has read what was sent until now
        question.answer()
    assert bystander.result() == b"answered"


def plain(connection: NatsConnection, size: int) -> None:
    connection.send(NatsMessage("test.large", b"x" * size))


def with_headers(connection: NatsConnection, size: int) -> None:
    lines = b"Test: x\r\n"
    connection.send(NatsMessage("test.large", b"x" * (size - len(b"NATS/1.0\r\n\r\n" + lines)), lines))


def as_question(connection: NatsConnection, size: int) -> None:
    connection.ask(NatsMessage("test.large", b"x" * size), lambda headers, data: True)


def in_a_batch(connection: NatsConnection, size: int) -> None:
    block = b"NATS/1.0\r\nNats-Batch-Id: batch\r\nNats-Batch-Sequence: 2\r\nNats-Batch-Commit: 1\r\n\r\n"
    messages = [NatsMessage("test.large", b"x"), NatsMessage("test.large", b"x" * (size - len(block)))]
    connection.ask_batch(messages, "batch", lambda headers, data: True)


Send = Callable[[NatsConnection, int], None]
WAYS: tuple[Send, ...] = (plain, with_headers, as_question, in_a_batch)


async def check_too_large_disturbs_nobody(nats: NatsCluster, send: Send, kind: type[NatsConnection]) -> None:
    async with kind([server.url for server in nats.servers], name="test") as connection:
        largest = int(connection.client.max_payload)
        async with beside(connection):
            send(connection, largest)  # is taken
            await connection.client.flush()  # type: ignore[no-untyped-call]
        async with beside(connection):
            with pytest.raises(TooLarge, match="a message to NATS"):
                send(connection, largest + 1)


@pytest.mark.parametrize("send", WAYS)
async def test_what_is_too_large_is_refused_before_it_is_sent(nats_alone: NatsCluster, send: Send) -> None:
    await check_too_large_disturbs_nobody(nats_alone, send, NatsConnection)


async def test_nobody_waits_for_the_answer_to_a_question_that_was_refused(nats_alone: NatsCluster) -> None:
    async with opened(nats_alone) as here:
        connection = here.home.connection
        with pytest.raises(TooLarge):
            await connection.request("test.large", b"x" * (connection.max_payload + 1))
        assert not connection._answers


async def test_a_message_that_is_sent_all_the_same_is_noticed(nats_alone: NatsCluster) -> None:
    with pytest.raises(BaseExceptionGroup):  # the innocent question is lost
        await check_too_large_disturbs_nobody(nats_alone, plain, Trusting)


async def send_all_the_same(nats: NatsCluster, within: float = 20) -> None:
    """Send what is too large past the guard: the server ends the connection, and another must come."""
    async with opened(nats, kind=Trusting) as here:
        connection = here.home.connection
        lost = asyncio.Event()
        connection.on_lost.append(lost.set)
        plain(connection, int(connection.client.max_payload) + 1)
        await asyncio.wait_for(lost.wait(), 20)
        await wait_until_async(lambda: connection.connected, within)
        async with beside(connection):
            pass


async def test_a_connection_that_the_server_ends_for_an_error_is_made_anew(nats_alone: NatsCluster) -> None:
    await send_all_the_same(nats_alone)


async def test_the_same_check_finds_a_connection_that_is_closed_for_good(
    nats_alone: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RawClient, "_process_err", Client._process_err)
    with pytest.raises((TimeoutError, TooLate)):
        async with asyncio.timeout(2):
            await send_all_the_same(nats_alone, within=1)


# ── answers of nodes ──────────────────────────────────────────────────────────────────────────


async def ask_for_much(nats: NatsCluster, size: int) -> bytes | str | None:
    """What one node gets that asks another for so many bytes; the other's connection serves somebody else meanwhile."""

    async def answer(question: bytes) -> bytes:
        return bytes(range(256)) * (int(question) // 256)

    prefix, lost = new_prefix(), list[str]()
    async with opened(nats, prefix, node="a") as a, opened(nats, prefix, node="b") as b:
        for one in (a, b):
            one.home.connection.on_lost.append(lambda: lost.append("lost"))
        async with Calls(a.bus, "much", answer) as calls, Calls(b.bus, "much", answer), beside(b.home.connection):
            found: bytes | str | None
            try:
                found = await calls.ask("b", b"%d" % size, bytes)
            except TooLarge as error:
                found = str(error)
        assert not lost
    return found


async def test_an_answer_of_a_node_may_be_larger_than_a_message(nats_alone: NatsCluster) -> None:
    assert await ask_for_much(nats_alone, 5 << 20) == bytes(range(256)) * (5 << 12)
    assert await ask_for_much(nats_alone, 0) == b""


async def test_an_answer_in_one_piece_is_missed_and_ends_no_connection(
    nats_alone: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_calls, "PART_BYTES", 1 << 30)
    assert await ask_for_much(nats_alone, 5 << 20) is None


async def test_an_answer_without_measure_is_refused_and_the_asker_is_told(
    nats_alone: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_calls, "NODE_ANSWER_BYTES", 1 << 20)
    said = await ask_for_much(nats_alone, (1 << 20) + 256)
    assert said == "the answer of a node of 1,048,832 is over the limit of 1,048,576"


def test_all_devices_of_a_user_are_shown_at_every_node_however_many_topics_they_have(
    nodes: list[RunningServer],
) -> None:
    uid, stream = new_user(), f"/{new_prefix()}"
    topics = ",".join(f"/{number:02}".ljust(TOPIC_CHARACTERS, "x") for number in range(PATTERNS))
    with ExitStack() as stack:
        tail = stack.enter_context(Tail(nodes[0], stream))
        for number in range(DEVICES):
            stack.enter_context(Wire(nodes[0], uid=uid, hid=f"d{number}", tid=topics).opened())
        wait_until(lambda: len(ask(nodes[0], "GET", "/online", uid=uid).json["devices"]) == DEVICES)
        for node in nodes:
            shown = wait_until(lambda node=node: _devices(node, uid))
            assert sum(len("".join(device["rooms"])) for device in shown) > 2_000_000
        assert publish(nodes[0], stream, b"still here").status == 201
        assert tail.lines(1)[0]["data"] == "still here"


def _devices(node: RunningServer, uid: str) -> list[dict[str, list[str]]]:
    answer = ask(node, "GET", "/online", uid=uid)
    assert answer.status == 200
    devices: list[dict[str, list[str]]] = answer.json["devices"]
    return devices if len(devices) == DEVICES else []
