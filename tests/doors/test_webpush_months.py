"""The month's switch, step by step: the seed's rules for connection nodes and for endpoints."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

from penstock.core.months import month_of, shifted
from penstock.doors.webpush.agents import Agents
from penstock.testing import wait_until_async
from penstock.wire.retrying import RetryPolicy
from penstock.wire.webpush import PushMessage
from tests.doors.webpush_place import Agent, NodePlace, Place, place

CHANNEL = "d9b74644-4f97-46aa-b8fa-9393985cd6cd"
LONG = "2592000"


async def next_month(made: Place) -> tuple[str, str]:
    """Let the month end; returns the old one and the new one."""
    old = month_of(made.clock.now_ms())
    while month_of(made.clock.now_ms()) == old:
        made.clock.advance(86_400)
    await made.engine.mailbox.make_month(shifted(old, 2))
    return old, shifted(old, 1)


async def away(made: Place, stored: int = 0) -> tuple[NodePlace, Agent, str]:
    node = made.nodes[0]
    agent = await node.agent()
    endpoint = await agent.register(CHANNEL)
    await agent.socket.close()
    await wait_until_async(lambda: not node.agents.table)
    for number in range(stored):
        assert (await node.send(endpoint, b"%d" % number, TTL=LONG)).status == 201
    return node, agent, endpoint


async def test_who_is_on_an_old_month_moves_when_it_connects_and_nothing_is_pending(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, before, endpoint = await away(made)
        old, new = await next_month(made)

        agent = await node.agent(before.uaid)
        await agent.ping_pong()

        await wait_until_async(lambda: node.agents.table[agent.uaid].state.month == new)
        record = await made.record(agent.uaid)
        assert record is not None
        assert (record.month, record.previous) == (new, old)
        assert (await made.engine.mailbox.head(agent.uaid, new)).channels == (CHANNEL,)
        assert (await node.send(endpoint, b"x")).status == 201


async def test_the_endpoint_stores_in_the_record_s_month_not_in_the_calendar_s(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, agent, endpoint = await away(made)
        old, new = await next_month(made)

        assert (await node.send(endpoint, b"x")).status == 201

        assert await made.stored(agent.uaid, old) == [b"x"]
        assert await made.stored(agent.uaid, new) == []


async def test_it_moves_only_after_everything_of_the_old_month_is_acknowledged(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, before, _ = await away(made, stored=12)
        old, new = await next_month(made)
        agent = await node.agent(before.uaid)

        page = [await agent.notification() for _ in range(10)]
        await agent.ack(*page)
        rest = [await agent.notification() for _ in range(2)]
        await agent.ack(rest[0])
        await agent.ping_pong()

        assert (await made.record(agent.uaid)).month == old  # type: ignore[union-attr]
        await agent.ack(rest[1])
        await wait_until_async(lambda: node.agents.table[agent.uaid].state.month == new)


async def test_a_connected_user_agent_is_not_moved_when_the_month_ends(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        agent = await node.agent()
        endpoint = await agent.register(CHANNEL)
        old, _ = await next_month(made)
        assert (await node.send(endpoint, b"direct")).status == 201
        assert (await node.send(endpoint, b"stored")).status == 201

        for _ in range(2):
            await agent.ack(await agent.notification())
        assert await agent.heard() == []

        assert (await made.record(agent.uaid)).month == old  # type: ignore[union-attr]


async def test_no_command_is_carried_out_between_the_copy_and_the_record(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, before, _ = await away(made)
        old, new = await next_month(made)
        copied = node.mailbox.stop("after", "set_channels")
        agent = await node.agent(before.uaid)
        await copied.until_reached()
        other = str(uuid4())
        await agent.say(messageType="register", channelID=other)
        await agent.say(messageType="unregister", channelID=CHANNEL)

        assert (await made.engine.mailbox.head(agent.uaid, old)).channels == (CHANNEL,)
        copied.go_on()

        assert (await agent.hear())["messageType"] == "register"
        assert (await agent.hear())["messageType"] == "unregister"
        assert (await made.engine.mailbox.head(agent.uaid, new)).channels == (other,)


async def test_a_node_that_dies_between_the_copy_and_the_record_leaves_everything_to_the_next(tmp_path: Path) -> None:
    async with place(tmp_path, nodes=2) as made:
        dying, other = made.nodes
        _, before, endpoint = await away(made)
        old, new = await next_month(made)
        stop = dying.mailbox.stop("after", "set_channels")
        agent = await dying.agent(before.uaid)
        await stop.until_reached()
        agent.socket.transport.abort()
        assert (await made.record(agent.uaid)).month == old  # type: ignore[union-attr]

        again = await other.agent(before.uaid)

        await wait_until_async(lambda: other.agents.table[again.uaid].state.month == new)
        assert (await other.send(endpoint, b"x")).status == 201
        assert (await again.notification())["data"] == "eA"
        moved = await made.record(agent.uaid)
        stop.go_on()  # it was not dead after all: its session is not the newest, and it changes nothing
        await wait_until_async(lambda: not dying.agents._tasks)
        assert await made.record(agent.uaid) == moved


async def test_a_message_that_reaches_the_old_month_after_the_switch_is_delivered(tmp_path: Path) -> None:
    async with place(tmp_path, nodes=2) as made:
        endpoint_node = made.nodes[1]
        node, before, endpoint = await away(made)
        old, new = await next_month(made)
        stop = endpoint_node.mailbox.stop("before", "put")
        sending = asyncio.create_task(endpoint_node.send(endpoint, b"late"))
        await stop.until_reached()
        agent = await node.agent(before.uaid)
        await wait_until_async(lambda: node.agents.table[agent.uaid].state.month == new)
        assert await agent.heard() == []

        stop.go_on()

        assert (await sending).status == 201
        assert (await agent.notification())["data"] == "bGF0ZQ"
        assert await made.stored(agent.uaid, old) == [b"late"]


async def test_what_reached_the_old_month_is_found_at_the_next_connect(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, before, _ = await away(made)
        old, new = await next_month(made)
        agent = await node.agent(before.uaid)
        await wait_until_async(lambda: node.agents.table[agent.uaid].state.month == new)
        await agent.socket.close()
        await wait_until_async(lambda: not node.agents.table)
        id = node.agents.tokens.message_id(agent.uaid, made.clock.now_ms())
        late = PushMessage(agent.uaid, CHANNEL, id, 600, made.clock.now_ms() + 600_000, b"late", encoding="aes128gcm")
        await node.agents.messages.store(agent.uaid, old, (late,))  # an endpoint that died before its hint

        again = await node.agent(agent.uaid)

        assert (await again.notification())["version"] == id


class Patient(Agents):
    retry = RetryPolicy(first=0.01, longest=0.01)


class TriesForEver(Patient):
    """The sabotage: a month that is gone is waited for, as a storage that takes nothing now."""

    async def _store_unsaved(self, uaid: str, connected_at: int, messages: list[PushMessage]) -> None:
        found = await self.router.find(uaid)
        assert found is not None
        await self.messages.store(uaid, found.month, messages)


async def _leaves_with_one_unsaved(made: Place, drop: str) -> Agent:
    """A user agent whose direct notification is to be stored when it leaves; the month *drop* is gone by then."""
    node = made.nodes[0]
    agent = await node.agent()
    endpoint = await agent.register(CHANNEL)
    assert (await node.send(endpoint, b"x", TTL=LONG)).status == 201
    await agent.notification()
    await made.engine.mailbox.drop_month(drop)
    await agent.socket.close()
    await wait_until_async(lambda: not node.agents.table)
    return agent


async def test_what_cannot_be_stored_because_its_month_is_gone_keeps_nobody_waiting(tmp_path: Path) -> None:
    async with place(tmp_path, make=Patient) as made:
        gone = await _leaves_with_one_unsaved(made, month_of(made.clock.now_ms()))

        again = await made.nodes[0].agent(gone.uaid)

        assert again.uaid != gone.uaid  # it begins anew
        last = (await made.ledger_events(gone.uaid))[-1]
        assert (last.state, last.reason) == ("dropped", "month_gone")


async def test_tried_for_ever_it_would_keep_the_next_hello_waiting(tmp_path: Path) -> None:
    async with place(tmp_path, make=TriesForEver) as made:
        gone = await _leaves_with_one_unsaved(made, month_of(made.clock.now_ms()))
        node, tries = made.nodes[0], 0

        async def counted() -> None:
            nonlocal tries
            tries += 1

        again = await node.connect()
        await again.say(messageType="hello", uaid=gone.uaid, use_webpush=True)
        node.mailbox.pause = counted
        await wait_until_async(lambda: tries > 10)

        assert gone.uaid in node.agents._saving
        assert not node.agents.table


async def test_what_is_to_be_stored_follows_its_user_agent_into_another_month(tmp_path: Path) -> None:
    async with place(tmp_path, make=Patient) as made:
        node = made.nodes[0]
        _, new = await next_month(made)
        agent = await node.agent()
        await agent.register(CHANNEL)
        session = node.agents.table[agent.uaid]
        stop = node.mailbox.stop("before", "put")
        await agent.socket.close()
        await wait_until_async(lambda: not node.agents.table)

        message = PushMessage(agent.uaid, CHANNEL, "v1", 600, made.clock.now_ms() + 600_000, b"x")
        node.agents.left(session, [message])
        await stop.until_reached()
        assert await node.agents.router.move(agent.uaid, session.state.connected_at, shifted(new, 1))
        await made.engine.mailbox.drop_month(new)
        stop.go_on()

        await wait_until_async(lambda: not node.agents._saving)
        assert len(await made.stored(agent.uaid, shifted(new, 1))) == 1
