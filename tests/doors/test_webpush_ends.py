"""What a user agent says just before it goes is carried out, however it goes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from penstock.doors.webpush.agents import Agents, Connected
from penstock.limits import PUSH_PAGE
from penstock.testing import wait_until_async
from penstock.wire.webpush import Mistake
from penstock.wire.webpush_session import PUSH_FINISH_SECONDS
from penstock.wire.webpush_session_delivery import ENDING, LEFT
from tests.doors.webpush_place import Agent, NodePlace, place

CHANNEL = "d9b74644-4f97-46aa-b8fa-9393985cd6cd"
OTHER = "deadbeef-0000-4000-8000-000000000000"
GOODBYES = ["close frame", "end of the stream", "reset", "mistake"]


@pytest.fixture
def make() -> type[Agents]:
    """What looks after the sessions; `test_webpush_worse.py` gives these checks worse ones."""
    return Agents


async def away_with(node: NodePlace, count: int) -> tuple[str, str]:
    """A user agent that is not connected, with messages in the storage: its name and its endpoint."""
    agent = await node.agent()
    endpoint = await agent.register(CHANNEL)
    await agent.socket.close()
    await wait_until_async(lambda: not node.agents.table)
    for _ in range(count):
        assert (await node.send(endpoint, b"x")).status == 201
    return agent.uaid, endpoint


async def say_and_go(agent: Agent, how: str, *commands: dict[str, object]) -> None:
    """Send *commands* and the end in one go, without waiting for anything."""
    for command in commands:
        agent.socket.protocol.send_text(json.dumps(command).encode())
    if how == "close frame":
        agent.socket.protocol.send_close(1000)
    elif how == "mistake":
        agent.socket.protocol.send_text(b"[")
    transport = agent.socket.transport
    transport.write(b"".join(agent.socket.protocol.data_to_send()))
    if how == "end of the stream":
        transport.write_eof()
    elif how == "reset":
        transport.close()
    await agent.socket.wait_closed()


def has_heard_the_end(session: Connected) -> bool:
    waiting = session.state._commands or []
    return session.state.phase in (ENDING, LEFT) or any(isinstance(one, Mistake) for one in waiting)


def ack(notification: dict[str, object]) -> dict[str, object]:
    update = {"channelID": notification["channelID"], "version": notification["version"], "code": 100}
    return {"messageType": "ack", "updates": [update]}


@pytest.mark.parametrize("how", GOODBYES)
async def test_acks_that_came_before_the_end_count(tmp_path: Path, how: str, make: type[Agents]) -> None:
    async with place(tmp_path, make=make) as made:
        node = made.nodes[0]
        uaid, _ = await away_with(node, PUSH_PAGE)
        agent = await node.agent(uaid)
        page = [await agent.notification() for _ in range(PUSH_PAGE)]

        await say_and_go(agent, how, *map(ack, page))
        again = await node.agent(uaid)

        assert again.uaid == uaid
        assert await again.heard() == []


@pytest.mark.parametrize("how", GOODBYES)
async def test_an_unregister_that_came_before_the_end_counts(tmp_path: Path, how: str, make: type[Agents]) -> None:
    async with place(tmp_path, make=make) as made:
        node = made.nodes[0]
        uaid, endpoint = await away_with(node, 3)
        agent = await node.agent(uaid)
        await agent.notification()
        session, stop = node.agents.table[uaid], node.mailbox.stop("before", "add_channel")

        first = {"messageType": "register", "channelID": OTHER}  # the end comes while this is carried out
        last = {"messageType": "unregister", "channelID": CHANNEL}
        going = asyncio.ensure_future(say_and_go(agent, how, first, last))
        await stop.until_reached()
        await wait_until_async(lambda: has_heard_the_end(session))
        stop.go_on()
        await going
        again = await node.agent(uaid)

        assert await again.heard() == []
        assert (await node.send(endpoint, b"x")).status == 410


@pytest.mark.parametrize("how", GOODBYES)
async def test_the_message_limit_holds_for_who_acknowledges_and_goes(
    tmp_path: Path, how: str, make: type[Agents]
) -> None:
    async with place(tmp_path, make=make, msg_limit=PUSH_PAGE) as made:
        node = made.nodes[0]
        uaid, endpoint = await away_with(node, PUSH_PAGE + 1)
        agent = await node.agent(uaid)
        page = [await agent.notification() for _ in range(PUSH_PAGE)]

        if how == "mistake":
            await say_and_go(agent, "close frame", *map(ack, page))
        else:
            await say_and_go(agent, how, *map(ack, page))
        again = await node.agent(uaid)

        assert again.uaid != uaid
        assert (await node.send(endpoint, b"x")).status == 410


async def test_what_was_sent_past_the_storage_and_acknowledged_at_the_last_moment_is_not_stored(
    tmp_path: Path, make: type[Agents]
) -> None:
    async with place(tmp_path, make=make, window=8) as made:
        node = made.nodes[0]
        agent = await node.agent()
        endpoint = await agent.register(CHANNEL)
        for _ in range(3):
            await node.send(endpoint, b"x", Prefer="respond-async")  # an ack of these is written down first
        sent = [await agent.notification() for _ in range(3)]

        await say_and_go(agent, "close frame", ack(sent[0]), ack(sent[2]))
        again = await node.agent(agent.uaid)

        assert await again.heard() == [sent[1]["version"]]


async def test_the_next_session_waits_for_the_end_of_the_one_before(tmp_path: Path, make: type[Agents]) -> None:
    async with place(tmp_path, make=make) as made:
        node = made.nodes[0]
        uaid, _ = await away_with(node, PUSH_PAGE)
        agent = await node.agent(uaid)
        page = [await agent.notification() for _ in range(PUSH_PAGE)]
        stop = node.mailbox.stop("before", "confirm")
        await say_and_go(agent, "close frame", *map(ack, page))
        await stop.until_reached()

        reading = node.registry.stop("before", "get")
        again = await node.connect()
        await again.say(messageType="hello", uaid=uaid)
        await wait_until_async(lambda: len(node.agents._tasks) == 2)  # both sessions have something to do
        for _ in range(20):  # more turns of the loop than it takes to look for a record
            await asyncio.sleep(0)
        assert not reading.reached.is_set()
        reading.go_on()
        stop.go_on()

        assert (await again.hear())["uaid"] == uaid
        assert await again.heard() == []


async def test_what_takes_too_long_is_given_up_and_comes_again(tmp_path: Path, make: type[Agents]) -> None:
    async with place(tmp_path, make=make) as made:
        node = made.nodes[0]
        uaid, _ = await away_with(node, PUSH_PAGE)
        agent = await node.agent(uaid)
        page = [await agent.notification() for _ in range(PUSH_PAGE)]
        stop = node.mailbox.stop("after", "confirm")
        await say_and_go(agent, "close frame", *map(ack, page))
        await stop.until_reached()

        made.time.advance(PUSH_FINISH_SECONDS)
        stop.go_on()
        again = await node.agent(uaid)

        assert await again.heard() == [one["version"] for one in page[1:]]
