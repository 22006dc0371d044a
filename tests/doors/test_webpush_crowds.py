"""Many sessions at once, or one who has a lot to say to a user agent: nobody waits for ever or is kept out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from penstock.doors.webpush.agents import Agents
from penstock.limits import PUSH_COMMAND_BYTES
from penstock.testing import wait_until_async
from tests.doors.webpush_place import Agent, NodePlace, Stop, place

CHANNEL = "d9b74644-4f97-46aa-b8fa-9393985cd6cd"
OTHER = "5f0d2c0e-6f3a-4d0b-9c39-1f6f8f2b7a11"
MSG_LIMIT = 4


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


async def test_one_site_does_not_cost_a_user_agent_the_subscriptions_of_others(
    tmp_path: Path, make: type[Agents]
) -> None:
    async with place(tmp_path, make=make, msg_limit=MSG_LIMIT) as made:
        # Given a user agent that is away, and a site that sends more to its endpoint than one may come back to
        node, away = made.nodes[0], await made.nodes[0].agent()
        loud, innocent = await away.register(CHANNEL), await away.register(OTHER)
        await away.socket.close()
        await wait_until_async(lambda: not node.agents.table)
        for number in range(3 * MSG_LIMIT):
            assert (await node.send(loud, b"%d" % number)).status == 201
        assert (await node.send(innocent, b"mine")).status == 201
        # When it comes back
        agent = await node.agent(away.uaid)
        heard = []
        for _ in range(MSG_LIMIT + 1):
            heard.append(await agent.notification())
            await agent.ack(heard[-1])
        # Then it has as much of that site as the limit, all of the other, and both subscriptions
        assert [one["channelID"] for one in heard] == [CHANNEL] * MSG_LIMIT + [OTHER]
        assert await agent.heard() == []
        assert agent.uaid == away.uaid
        for endpoint in (loud, innocent):
            assert (await node.send(endpoint, b"again")).status == 201
            await agent.ack(await agent.notification())
        assert await made.stored(agent.uaid, node.agents.month()) == []
        dropped = [event.reason for event in await made.ledger_events(agent.uaid) if event.state == "dropped"]
        assert dropped == ["msg_limit"] * 2 * MSG_LIMIT


async def test_who_waits_for_receipts_of_what_is_past_the_limit_hears_that_it_is_gone(
    tmp_path: Path, make: type[Agents]
) -> None:
    async with place(tmp_path, make=make, msg_limit=1) as made:
        node, away = made.nodes[0], await made.nodes[0].agent()
        endpoint = await away.register(CHANNEL)
        await away.register(OTHER)
        await away.socket.close()
        await wait_until_async(lambda: not node.agents.table)
        for _ in range(2):
            assert (await node.send(endpoint, Prefer="respond-async")).status == 202

        agent = await node.agent(away.uaid)
        await agent.ack(await agent.notification())

        assert await agent.heard() == []
        outcomes = (await made.engine.log.read_after(("/_receipts/*",), 0)).entries
        assert sorted(json.loads(entry.body)["status"] for entry in outcomes) == [204, 410]
