"""Many sessions at once, of one user agent or of one who has a lot to say: nobody waits for ever or is kept out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.doors.webpush.agents import Agents
from penstock.limits import PUSH_COMMAND_BYTES
from penstock.testing import wait_until_async
from tests.doors.webpush_place import Agent, NodePlace, Stop, place

CHANNEL = "d9b74644-4f97-46aa-b8fa-9393985cd6cd"


@pytest.fixture
def make() -> type[Agents]:
    """What looks after the sessions; `test_webpush_worse.py` gives these checks worse ones."""
    return Agents


class OneAtATime(Agents):
    """User agents of which one has its commands carried out."""

    def __init__(self, *arguments, **more) -> None:
        super().__init__(*arguments, **more)
        self.worker_slots = asyncio.Semaphore(1)


async def coming_back(node: NodePlace, uaid: str) -> tuple[Agent, Stop]:
    """A session of *uaid* that is about to look for its record."""
    stop, agent = node.registry.stop("before", "get"), await node.connect()
    await agent.say(messageType="hello", uaid=uaid)
    await stop.until_reached()
    return agent, stop


async def let_in(node: NodePlace, uaid: str, stop: Stop) -> None:
    """Return when that session is its user agent's."""
    before = node.agents.table.get(uaid)
    stop.go_on()
    await wait_until_async(lambda: node.agents.table.get(uaid) is not before)


async def test_sessions_that_follow_each_other_at_once_do_not_wait_for_each_other(
    tmp_path: Path, make: type[Agents]
) -> None:
    async with place(tmp_path, make=make) as made:
        node = made.nodes[0]
        first = await node.agent()
        await node.send(await first.register(CHANNEL), b"x")
        sent = await first.notification()
        storing = node.mailbox.stop("before", "put")  # what the first one has not acknowledged

        crowd = [await coming_back(node, first.uaid) for _ in range(4)]
        for _, stop in crowd:
            await let_in(node, first.uaid, stop)
        storing.go_on()

        last = crowd[-1][0]
        assert (await last.hear())["uaid"] == first.uaid
        assert (await last.notification())["version"] == sent["version"]


@pytest.mark.parametrize("make", [OneAtATime])
async def test_who_waits_for_an_older_session_does_not_keep_it_from_its_turn(
    tmp_path: Path, make: type[Agents]
) -> None:
    async with place(tmp_path, make=make) as made:
        node = made.nodes[0]
        older = await node.agent()
        await older.register(CHANNEL)
        newer, stop = await coming_back(node, older.uaid)  # has the only turn
        await older.say(messageType="unregister", channelID=CHANNEL)
        session = node.agents.table[older.uaid]
        await wait_until_async(lambda: session.state.at_work)

        await let_in(node, older.uaid, stop)

        assert (await newer.hear())["uaid"] == older.uaid
        assert (await older.hear())["messageType"] == "unregister"


@pytest.mark.parametrize("make", [OneAtATime])
async def test_who_has_much_to_say_lets_others_have_their_turn(tmp_path: Path, make: type[Agents]) -> None:
    async with place(tmp_path, make=make) as made:
        node = made.nodes[0]
        talker, other = await node.agent(), await node.connect()
        stops = [node.mailbox.stop("before", "add_channel") for _ in range(3)]
        for number in range(3):
            await talker.say(messageType="register", channelID=CHANNEL[:-1] + str(number))
        await stops[0].until_reached()
        await other.say(messageType="hello")
        await wait_until_async(lambda: len(node.agents._tasks) == 2)  # both have something to do

        stops[0].go_on()

        assert (await other.hear())["messageType"] == "hello"
        for stop in stops:
            stop.go_on()
        assert [(await talker.hear())["status"] for _ in range(3)] == [200, 200, 200]


async def test_commands_that_wait_are_bounded_in_bytes_too(tmp_path: Path, make: type[Agents]) -> None:
    async with place(tmp_path, make=make) as made:
        node = made.nodes[0]
        agent = await node.agent()
        stop = node.mailbox.stop("before", "add_channel")
        await agent.say(messageType="register", channelID=CHANNEL)
        await stop.until_reached()
        asked = {f"{number:0999}": "1" for number in range(PUSH_COMMAND_BYTES // 8_000)}
        for _ in range(9):
            await agent.say(messageType="broadcast_subscribe", broadcasts=asked)

        assert await agent.closed() == 1008
        stop.go_on()
