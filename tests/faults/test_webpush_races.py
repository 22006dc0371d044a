"""The races of reconnecting user agents: a node is paused between two of its steps, and nothing may get lost.

Each race is a function that says whether it ended well. It must for the door as it is, with nodes that talk
over the bus and over HTTP, and must not for a door from which the rule that protects it was taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from penstock.doors.webpush.agents import Agents
from penstock.doors.webpush.endpoint import Endpoint
from penstock.doors.webpush.router_table import PREFIX, RouterRecord, RouterTable
from penstock.doors.webpush.session import AgentSession
from penstock.errors import Busy
from penstock.testing import wait_until_async
from penstock.wire.retrying import RetryPolicy
from penstock.wire.webpush import NodeAnswer, PushMessage
from penstock.wire.webpush_actions import Action, Settle
from penstock.wire.webpush_session import PushSession
from tests.doors.webpush_place import Agent, NodePlace, Place, place

CHANNEL = "d9b74644-4f97-46aa-b8fa-9393985cd6cd"
Race = Callable[[Place], Awaitable[bool]]


# ── doors with a rule less ────────────────────────────────────────────────────────────────────────


class StoresWithoutLookingAgain(Endpoint):
    """The router record is not read after the message was stored."""

    async def _store(self, message: PushMessage, record: RouterRecord) -> None:
        await self._agents.messages.store(message.uaid, record.month, (message,))


class ClearsWhatever(RouterTable):
    """The node is cleared whatever session the record is of by now."""

    async def clear(self, uaid: str, seen: RouterRecord) -> bool:
        found = await self.find(uaid)
        assert found is not None
        nowhere = msgspec.structs.replace(found, node="", address="", member="")
        await self._registry.put(PREFIX + uaid, msgspec.json.encode(nowhere))
        return True


class ConnectsWhatever(RouterTable):
    """The record is overwritten by whoever comes last."""

    async def connect(self, uaid: str, at_ms: int) -> RouterRecord:
        found = await self.find(uaid)
        assert found is not None
        after = msgspec.structs.replace(found, node=self.node, address=self.address, connected_at=at_ms)
        await self._registry.put(PREFIX + uaid, msgspec.json.encode(after))
        return after


class Clearing(Agents):
    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.router.__class__ = ClearsWhatever


class Connecting(Agents):
    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.router.__class__ = ConnectsWhatever


class ForgetfulMachine(PushSession):
    """Direct notifications are not stored when the session ends."""

    def _take_unsaved(self) -> tuple[list[Action], tuple[PushMessage, ...]]:
        return [], ()


class ForgetfulSession(AgentSession):
    machine = ForgetfulMachine


class Patient(Agents):
    retry = RetryPolicy(first=0.01, longest=0.01)


class GivesUp(Agents):
    """What could not be stored is not tried again."""

    async def _save(self, uaid: str, connected_at: int, messages: Sequence[PushMessage], before: object) -> None:
        try:
            await self._store_unsaved(uaid, connected_at, messages)
        except Busy:
            pass
        finally:
            del self._saving[uaid]


class Forgetful(Agents):
    kind = ForgetfulSession


class DeafSession(AgentSession):
    """A hint that comes while the storage is read is passed over."""

    def notified(self, month: str) -> NodeAnswer:
        return NodeAnswer.LATER if self.state.at_work else super().notified(month)


class Deaf(Agents):
    kind = DeafSession


class TopicDeletingSession(AgentSession):
    """An ack deletes whatever is stored under the notification's topic, as autopush-rs does."""

    async def _settle(self, job: Settle) -> None:
        await super()._settle(job)
        mailbox, uaid, month = self.home.messages.mailbox, self.state.uaid, self.state.month
        topics = {one.message.topic for one in job.acked}
        page = await mailbox.take(uaid, month)
        await mailbox.confirm(uaid, month, [one.number for one in page if one.collapse in topics])


class TopicDeleting(Agents):
    kind = TopicDeletingSession


# ── the races ─────────────────────────────────────────────────────────────────────────────────────


async def subscribed(made: Place, node: int) -> tuple[Agent, str]:
    agent = await made.nodes[node].agent()
    return agent, await agent.register(CHANNEL)


@asynccontextmanager
async def sending(node: NodePlace, endpoint: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """A message on its way; what is yielded waits for its answer and returns the message's id."""
    task = asyncio.create_task(node.send(endpoint, b"x"))

    async def answered() -> str:
        reply = await task
        assert reply.status == 201, reply
        return reply.headers["location"].rpartition("/")[2]

    try:
        yield answered
    finally:
        task.cancel()


async def moved_before_the_push(made: Place) -> bool:
    """The endpoint read that the user agent is on A; it is on B before A is asked."""
    endpoint_node, _, b = made.nodes
    agent, endpoint = await subscribed(made, 1)
    stop = endpoint_node.registry.stop("after", "get")
    async with sending(endpoint_node, endpoint) as sent:
        await stop.until_reached()
        await agent.socket.close()
        again = await b.agent(agent.uaid)
        assert await again.heard() == []
        stop.go_on()
        location = await sent()
    return await again.heard() == [location]


async def node_died(made: Place) -> bool:
    """A is dead when it is asked, and the user agent is on B already: its record must not be cleared."""
    endpoint_node, a, b = made.nodes
    agent, endpoint = await subscribed(made, 1)
    stop = endpoint_node.registry.stop("after", "get")
    async with sending(endpoint_node, endpoint) as sent:
        await stop.until_reached()
        if isinstance(a.bus.cut, bool):
            a.bus.cut = True
        await a.internal.drain()
        agent.socket.transport.abort()
        again = await b.agent(agent.uaid)
        assert await again.heard() == []
        stop.go_on()
        location = await sent()
    record = await made.record(agent.uaid)
    assert record is not None
    return await again.heard() == [location] and record.node == b.name


async def connected_between_read_and_write(made: Place) -> bool:
    """The endpoint read that nobody is connected; the user agent comes and finds the storage empty."""
    endpoint_node, _, b = made.nodes
    agent, endpoint = await subscribed(made, 1)
    await agent.socket.close()
    await wait_until_async(lambda: not made.nodes[1].agents.table)
    stop = endpoint_node.mailbox.stop("before", "put")
    async with sending(endpoint_node, endpoint) as sent:
        await stop.until_reached()
        again = await b.agent(agent.uaid)
        assert await again.heard() == []
        stop.go_on()
        location = await sent()
    return await again.heard() == [location]


async def unacknowledged_on_the_old_node(made: Place) -> bool:
    """The user agent is on B while A still holds its old connection, with a direct notification unacknowledged."""
    endpoint_node, _, b = made.nodes
    agent, endpoint = await subscribed(made, 1)
    assert (await endpoint_node.send(endpoint, b"x")).status == 201
    direct = await agent.notification()

    again = await b.agent(agent.uaid)

    assert await agent.closed() == 1011
    async with made.nodes[1].agents.worker_slots:
        await made.nodes[1].agents.saved(agent.uaid, made.nodes[1].agents.next_generation())
    return await again.heard() == [direct["version"]]


async def two_hellos_at_once(made: Place) -> bool:
    """The later of two hellos wins, also when its record is written first."""
    agent, _ = await subscribed(made, 0)
    await agent.socket.close()
    earlier, later = await made.nodes[1].connect(), await made.nodes[2].connect()
    stops = []
    for one, node in ((earlier, made.nodes[1]), (later, made.nodes[2])):
        made.clock.advance(1)
        stops.append(node.registry.stop("before", "put"))
        await one.say(messageType="hello", uaid=agent.uaid)
        await stops[-1].until_reached()
    stops[1].go_on()
    assert (await later.hear())["uaid"] == agent.uaid
    stops[0].go_on()
    record = await made.record(agent.uaid)
    if record is None or record.node != made.nodes[2].name or await refused(earlier) != 1011:
        return False
    return (await made.record(agent.uaid)) == record


async def refused(agent: Agent) -> int:
    try:
        await agent.hear()
    except Exception:  # noqa: BLE001 - the connection was closed
        return agent.socket.close_code or 0
    return 0


async def stored_during_a_check(made: Place) -> bool:
    """A message is stored, and its hint comes, after the last page was read and before the check has ended."""
    endpoint_node, a, _ = made.nodes
    agent, endpoint = await subscribed(made, 1)
    await agent.socket.close()
    await wait_until_async(lambda: not a.agents.table)
    stop = a.mailbox.stop("after", "take")
    again = await a.agent(agent.uaid)
    await stop.until_reached()
    endpoint_node.door.endpoint._direct = False  # as with webpush.direct=durable: it goes through the storage
    async with sending(endpoint_node, endpoint) as sent:
        location = await sent()
    stop.go_on()
    return await again.heard() == [location]


async def acknowledged_after_it_was_replaced(made: Place) -> bool:
    """A newer message of the topic is stored between the notification and its ack: it stays, and is sent."""
    endpoint_node, a, _ = made.nodes
    agent, endpoint = await subscribed(made, 1)
    await agent.socket.close()
    await wait_until_async(lambda: not a.agents.table)
    assert (await endpoint_node.send(endpoint, b"old", Topic="t")).status == 201
    again = await a.agent(agent.uaid)
    old = await again.notification()
    newer = await endpoint_node.send(endpoint, b"new", Topic="t")
    await again.ack(old)
    return await again.heard() == [newer.headers["location"].rpartition("/")[2]]


async def dropped_between_store_and_look(made: Place) -> bool:
    """The user agent is dropped after the message was stored: the sender hears that it is gone."""
    endpoint_node = made.nodes[0]
    agent, endpoint = await subscribed(made, 1)
    await agent.socket.close()
    await wait_until_async(lambda: not made.nodes[1].agents.table)
    stop = endpoint_node.mailbox.stop("after", "put")
    task = asyncio.create_task(endpoint_node.send(endpoint, b"x"))
    await stop.until_reached()
    await made.nodes[1].agents.drop(agent.uaid, (), "test")
    stop.go_on()
    reply = await task
    return reply.status == 410 and reply.errno == 105


async def late_clear(made: Place) -> bool:
    """An endpoint clears the node of a session that was replaced meanwhile."""
    agent, _ = await subscribed(made, 1)
    old = await made.record(agent.uaid)
    assert old is not None
    await made.nodes[2].agent(agent.uaid)
    await made.nodes[0].agents.router.clear(agent.uaid, old)
    record = await made.record(agent.uaid)
    return record is not None and record.node == made.nodes[2].name


async def storage_busy_at_the_end(made: Place) -> bool:
    """The storage takes nothing at the moment when a session ends with a direct notification unacknowledged."""
    endpoint_node, a, b = made.nodes
    agent, endpoint = await subscribed(made, 1)
    assert (await endpoint_node.send(endpoint, b"x")).status == 201
    direct = await agent.notification()
    left = 3

    async def busy() -> None:
        nonlocal left
        left -= 1
        if left > 0:
            raise Busy("log.queue", 1)

    a.mailbox.pause = busy
    agent.socket.transport.abort()
    await wait_until_async(lambda: not a.agents.table and not a.agents._saving)
    again = await b.agent(agent.uaid)
    return await again.heard() == [direct["version"]]


RACES: dict[str, tuple[Race, type[Agents], type[Endpoint]]] = {
    "moved before the push": (moved_before_the_push, Agents, StoresWithoutLookingAgain),
    "node died": (node_died, Clearing, Endpoint),
    "connected between read and write": (connected_between_read_and_write, Agents, StoresWithoutLookingAgain),
    "unacknowledged on the old node": (unacknowledged_on_the_old_node, Forgetful, Endpoint),
    "storage busy at the end": (storage_busy_at_the_end, GivesUp, Endpoint),
    "two hellos at once": (two_hellos_at_once, Connecting, Endpoint),
    "stored during a check": (stored_during_a_check, Deaf, Endpoint),
    "acknowledged after it was replaced": (acknowledged_after_it_was_replaced, TopicDeleting, Endpoint),
    "dropped between store and look": (dropped_between_store_and_look, Agents, StoresWithoutLookingAgain),
    "late clear": (late_clear, Clearing, Endpoint),
}


@pytest.mark.parametrize("over", ["bus", "http"])
@pytest.mark.parametrize("name", RACES)
async def test_nothing_is_lost_in_the_race(tmp_path: Path, name: str, over: str) -> None:
    async with place(tmp_path, nodes=3, over=over, make=Patient, node_timeout=20) as made:
        assert await RACES[name][0](made)


@pytest.mark.parametrize("name", RACES)
async def test_without_its_rule_the_race_is_lost(tmp_path: Path, name: str) -> None:
    race, agents, endpoint = RACES[name]
    async with place(tmp_path, nodes=3, make=agents, endpoint=endpoint, node_timeout=20) as made:
        assert not await race(made)


# ── a node that is alone, and remembers what it has read ──────────────────────────────────────────


class KeepsToItself(Agents):
    """A session is not told of what was stored for it."""

    def notified(self, uaid: str, month: str) -> NodeAnswer:
        return NodeAnswer.ABSENT


class RemembersForEver(Agents):
    """What was read of a user agent stays, whatever is written."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.router.changed = lambda uaid: None


async def known_and_away(made: Place) -> tuple[Agent, str]:
    """A user agent that has left, and of which the node remembers its record and its channels."""
    [node] = made.nodes
    agent, endpoint = await subscribed(made, 0)
    await agent.socket.close()
    await wait_until_async(lambda: not node.agents.table)
    assert node.agents.lookup.known(agent.uaid) is not None
    return agent, endpoint


async def connected_while_it_was_stored(made: Place) -> bool:
    """The user agent comes and finds the storage empty, while a message is on its way there."""
    [node] = made.nodes
    agent, endpoint = await known_and_away(made)
    stop = node.mailbox.stop("before", "put")
    async with sending(node, endpoint) as sent:
        await stop.until_reached()
        again = await node.agent(agent.uaid)
        assert await again.heard() == []
        stop.go_on()
        location = await sent()
    return await again.heard() == [location]


async def dropped_while_it_was_stored(made: Place) -> bool:
    """The user agent is dropped while a message is on its way to the storage: the sender hears that it is gone."""
    [node] = made.nodes
    agent, endpoint = await known_and_away(made)
    stop = node.mailbox.stop("after", "put")
    task = asyncio.create_task(node.send(endpoint, b"x"))
    await stop.until_reached()
    await node.agents.drop(agent.uaid, (), "test")
    stop.go_on()
    reply = await task
    return reply.status == 410 and reply.errno == 105


async def month_dropped_before_it_was_stored(made: Place) -> bool:
    """The month that the node remembers is dropped: the sender hears that the user agent is gone."""
    [node] = made.nodes
    _, endpoint = await known_and_away(made)
    stop = node.mailbox.stop("before", "put")
    task = asyncio.create_task(node.send(endpoint, b"x"))
    await stop.until_reached()
    await made.engine.mailbox.drop_month(node.agents.month())
    stop.go_on()
    reply = await task
    return reply.status == 410 and reply.errno == 103


class NeverForgets(Agents):
    """… not even when the storage says that it is not true any more."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.lookup.forget = lambda uaid: None  # type: ignore[method-assign]


ALONE: dict[str, tuple[Race, type[Agents]]] = {
    "connected while it was stored": (connected_while_it_was_stored, KeepsToItself),
    "dropped while it was stored": (dropped_while_it_was_stored, RemembersForEver),
    "month dropped before it was stored": (month_dropped_before_it_was_stored, NeverForgets),
}


@pytest.mark.parametrize("name", ALONE)
async def test_nothing_is_lost_on_a_node_that_is_alone(tmp_path: Path, name: str) -> None:
    async with place(tmp_path) as made:
        assert await ALONE[name][0](made)


@pytest.mark.parametrize("name", ALONE)
async def test_without_its_rule_a_node_that_is_alone_loses_it(tmp_path: Path, name: str) -> None:
    race, agents = ALONE[name]
    async with place(tmp_path, make=agents) as made:
        assert not await race(made)
