"""User agents on their WebSocket: what they may say, what they hear, and how a connection ends."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from penstock.doors.webpush.agents import Agents
from penstock.errors import ConfigInvalid, EngineGone
from penstock.limits import PUSH_COMMANDS, PUSH_PAGE
from penstock.testing import wait_until_async
from penstock.wire import webpush as wire
from penstock.wire import webpush_session as session_module
from penstock.wire.retrying import RetryPolicy
from tests.doors.webpush_place import Agent, NodePlace, Place, place

CHANNEL = "d9b74644-4f97-46aa-b8fa-9393985cd6cd"


async def test_a_new_user_agent_gets_a_name_and_is_not_written_down_before_it_registers(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        agent = await made.nodes[0].connect()

        heard = await agent.hello()

        assert heard == {
            "messageType": "hello", "uaid": agent.uaid, "status": 200, "use_webpush": True, "broadcasts": {},
        }  # fmt: skip
        assert agent.socket.subprotocol == "push-notification"
        assert await made.record(agent.uaid) is None
        await agent.register(CHANNEL)
        assert (await made.record(agent.uaid)).node == made.nodes[0].bus.node  # type: ignore[union-attr]


async def test_who_comes_back_keeps_its_name_and_its_subscriptions(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        first = await node.agent()
        endpoint = await first.register(CHANNEL)
        await first.socket.close()

        again = await node.agent(first.uaid)

        assert again.uaid == first.uaid
        assert (await node.send(endpoint, b"x")).status == 201
        assert (await again.notification())["channelID"] == CHANNEL


@pytest.mark.parametrize("uaid", ["", "f" * 32, "no-uuid", "F" * 32, "5f0d2c0e-6f3a-4d0b-9c39-1f6f8f2b7a11", 7, None])
async def test_an_unknown_name_is_replaced(tmp_path: Path, uaid: object) -> None:
    async with place(tmp_path) as made:
        agent = await made.nodes[0].connect()

        heard = await agent.hello(uaid)  # type: ignore[arg-type]

        assert heard["status"] == 200
        assert heard["uaid"] != uaid
        assert len(heard["uaid"]) == 32


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([b"\x00binary"], 1003),
        (["no json"], 1011),
        (["[]"], 1011),
        (['{"messageType":"strange"}'], 1011),
        ([f'{{"messageType":"register","channelID":"{CHANNEL}"}}'], 1011),
        (["{}"], 1011),
        (['{"messageType":"hello"}', '{"messageType":"hello"}'], 1011),
        (['{"messageType":"hello","broadcasts":7}'], 1011),
        (['{"messageType":"hello","uaid":' + "[" * 20_000 + "]" * 20_000 + "}"], 1011),
        (['{"messageType":"hello"}', '{"messageType":"ack","updates":[{"version":7}]}'], 1011),
    ],
)
async def test_what_cannot_be_understood_ends_the_connection(
    tmp_path: Path, frames: list[str | bytes], code: int
) -> None:
    async with place(tmp_path) as made:
        agent = await made.nodes[0].connect()
        for frame in frames:
            await agent.socket.send(frame)

        assert await agent.closed() == code


async def test_commands_may_be_sent_ahead_and_are_answered_in_order(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        agent = await made.nodes[0].connect()
        channels = [str(uuid4()) for _ in range(50)]
        await agent.say(messageType="hello", uaid="")
        for channel in channels:
            await agent.say(messageType="register", channelID=channel)

        await agent.hear()

        assert [(await agent.hear())["channelID"] for _ in channels] == channels


async def test_too_many_commands_at_once_end_the_connection(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        agent = await node.agent()
        stop = node.registry.stop("before", "put")
        for _ in range(PUSH_COMMANDS + 2):
            await agent.say(messageType="register", channelID=CHANNEL)

        assert await agent.closed() == 1008
        stop.go_on()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"channelID": "D9B74644-4F97-46AA-B8FA-9393985CD6CD"}, 401),
        ({"channelID": "d9b746444f9746aab8fa9393985cd6cd"}, 401),
        ({}, 401),
        ({"channelID": 7}, 401),
        ({"channelID": CHANNEL, "key": "no key"}, 400),
        ({"channelID": CHANNEL, "key": 7}, 400),
        ({"channelID": CHANNEL, "key": []}, 400),
        ({"channelID": CHANNEL, "key": {}}, 400),
        ({"channelID": CHANNEL, "key": ""}, 400),
        ({"channelID": CHANNEL, "key": False}, 400),
        ({"channelID": CHANNEL, "key": 0}, 400),
    ],
)
async def test_a_register_that_cannot_be_is_answered_and_the_connection_goes_on(
    tmp_path: Path, fields: dict[str, object], status: int
) -> None:
    async with place(tmp_path) as made:
        agent = await made.nodes[0].agent()
        await agent.say(messageType="register", **fields)

        assert (await agent.hear())["status"] == status
        assert await agent.register(CHANNEL)


async def test_a_channel_of_nested_lists_is_refused_or_ends_the_connection_and_breaks_nothing(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        for depth in (1, 200, *range(900, 1000, 9), 5_000):
            agent = await made.nodes[0].agent()
            await agent.socket.send(f'{{"messageType":"register","channelID":{"[" * depth}{"]" * depth}}}')
            try:
                heard = await agent.hear()
                assert (heard["messageType"], heard["status"], heard["channelID"]) == ("register", 401, None)
            except ConnectionClosed:
                assert (agent.socket.close_code, agent.socket.close_reason) == (1011, "Json")


async def test_sabotage_a_key_that_is_empty_is_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = session_module.parse_key
    monkeypatch.setattr(session_module, "parse_key", lambda key: honest(key) if key else b"")

    with pytest.raises(AssertionError, match="200 == 400"):
        await test_a_register_that_cannot_be_is_answered_and_the_connection_goes_on(
            tmp_path, {"channelID": CHANNEL, "key": []}, 400
        )


async def test_sabotage_a_key_that_is_no_text_is_not_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("AttributeError", "TypeError"):
        monkeypatch.setattr(session_module, kind, KeyError, raising=False)  # the module catches another one instead

    with pytest.raises(ConnectionClosed):
        await test_a_register_that_cannot_be_is_answered_and_the_connection_goes_on(
            tmp_path, {"channelID": CHANNEL, "key": []}, 400
        )


async def test_sabotage_nested_lists_that_nobody_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "RecursionError", KeyError, raising=False)

    with pytest.raises(AssertionError):
        await test_a_channel_of_nested_lists_is_refused_or_ends_the_connection_and_breaks_nothing(tmp_path)


async def test_registering_twice_gives_two_endpoints_that_both_work(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        agent = await node.agent()
        endpoints = [await agent.register(CHANNEL) for _ in range(2)]

        for endpoint in endpoints:
            assert (await node.send(endpoint, b"x")).status == 201
            await agent.ack(await agent.notification())
        assert endpoints[0] != endpoints[1]


async def test_an_unregistered_channel_is_gone_with_what_was_stored_for_it(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        agent = await node.agent()
        endpoint, other = await agent.register(CHANNEL), await agent.register(str(uuid4()))
        await agent.socket.close()
        for target in (endpoint, other):
            assert (await node.send(target, b"stored")).status == 201
        agent = await node.agent(agent.uaid)
        first = await agent.notification()
        await agent.notification()
        await agent.say(messageType="unregister", channelID=first["channelID"], code=200)
        assert await agent.hear() == {"messageType": "unregister", "channelID": first["channelID"], "status": 200}
        await agent.socket.close()

        reply = await node.send(endpoint if first["channelID"] == CHANNEL else other, b"late")
        again = await node.agent(agent.uaid)

        assert (reply.status, reply.errno, reply.headers["cache-control"]) == (410, 106, "max-age=86400")
        assert (await again.notification())["channelID"] != first["channelID"]
        assert "dropped" in await made.states(agent.uaid)


async def test_an_unknown_channel_may_be_unregistered(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        agent = await made.nodes[0].agent()
        await agent.say(messageType="unregister", channelID=CHANNEL)

        assert (await agent.hear())["status"] == 200


async def test_a_sign_of_life_is_answered_and_too_many_end_the_connection(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        agent = await made.nodes[0].agent()
        for _ in range(2):
            await agent.socket.send("{}")
            assert await agent.hear() == {}
            made.time.advance(46)

        await agent.say(messageType="ping")
        assert await agent.hear() == {}
        await agent.socket.send("{}")

        assert await agent.closed() == 4774


async def test_who_says_no_hello_is_turned_away(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        agent = await made.nodes[0].connect()

        made.time.advance(6)

        assert await agent.closed() == 1011
        assert agent.socket.close_reason == "HandshakeTimeout"


async def test_a_hello_that_takes_long_to_answer_is_not_too_late(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        first = await node.agent()
        await first.register(CHANNEL)
        agent = await node.connect()
        stop = node.registry.stop("after", "get")
        await agent.say(messageType="hello", uaid=first.uaid)
        await stop.until_reached()

        made.time.advance(60)
        stop.go_on()

        assert (await agent.hear())["uaid"] == first.uaid


async def test_a_silent_user_agent_is_pinged_and_closed_if_it_does_not_answer(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        alive = await node.agent()
        await alive.register(CHANNEL)
        session = node.agents.table[alive.uaid]
        made.time.advance(301)
        await wait_until_async(lambda: not session.state.pinged)  # the client's library has answered the ping
        made.time.advance(5)
        await alive.ping_pong()

        made.time.advance(301)
        session.state.pinged = made.time.time()  # a ping whose answer is still due
        alive.socket.transport.pause_reading()
        made.time.advance(5)

        await wait_until_async(lambda: alive.uaid not in node.agents.table)


async def test_broadcasts_are_answered_in_hello_and_on_request(tmp_path: Path) -> None:
    async with place(tmp_path, broadcasts=("news=v2", "other=v1")) as made:
        agent = await made.nodes[0].connect()

        heard = await agent.hello(broadcasts={"news": "v1", "other": "v1", "missing": "v0"})
        await agent.say(messageType="broadcast_subscribe", broadcasts={"news": "v0"})

        assert heard["broadcasts"] == {"news": "v2", "errors": {"missing": "Broadcast not found"}}
        assert await agent.hear() == {"messageType": "broadcast", "broadcasts": {"news": "v2"}}
        await agent.say(messageType="broadcast_subscribe", broadcasts={"news": "v2"})
        await agent.ping_pong()


@pytest.mark.parametrize(
    ("name", "value"),
    [("broadcasts", ("news",)), ("broadcasts", ("=v1",)), ("broadcasts", ("news=",)), ("origin", "push.example.net")],
)
async def test_a_setting_that_would_come_to_nothing_is_refused_at_the_start(
    tmp_path: Path, name: str, value: object
) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        async with place(tmp_path, **{name: value}):
            pass

    assert f"webpush.{name}" in str(refused.value)


values = st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.sampled_from([CHANNEL, "a" * 32])
objects = st.dictionaries(
    st.sampled_from(["uaid", "channelID", "key", "updates", "version", "code", "broadcasts"]), values
)
kinds = st.sampled_from(["hello", "register", "unregister", "ack", "nack", "ping", "broadcast_subscribe"])
frames = st.lists(
    st.builds(lambda kind, more: json.dumps({"messageType": kind, **more}), kinds, objects) | st.text(max_size=20),
    max_size=8,
)


@settings(max_examples=40)
@given(frames)
def test_whatever_is_said_the_service_goes_on(said: list[str]) -> None:
    async def talk() -> tuple[int, int]:
        with TemporaryDirectory() as folder:
            async with place(Path(folder)) as made:
                node = made.nodes[0]
                strange = await node.connect()
                await strange.say(messageType="hello")
                for frame in said:
                    with suppress(ConnectionClosed):
                        await strange.socket.send(frame)
                usual = await node.agent()
                assert await usual.register(CHANNEL)
                with suppress(ConnectionClosed):
                    await strange.say(messageType="unregister", channelID=CHANNEL)
                    while (await strange.hear()).get("messageType") != "unregister":
                        pass
                return strange.socket.close_code or 0, len(node.agents._tasks)

    code, _ = asyncio.run(talk())

    assert code in (0, 1003, 1011, 4774)


# ── stored notifications ──────────────────────────────────────────────────────────────────────────


async def stored(made: Place, count: int) -> tuple[NodePlace, Agent, str]:
    """A user agent that is away while *count* messages come."""
    node = made.nodes[0]
    agent = await node.agent()
    endpoint = await agent.register(CHANNEL)
    await agent.socket.close()
    await wait_until_async(lambda: not node.agents.table)
    for number in range(count):
        assert (await node.send(endpoint, b"%d" % number)).status == 201
    return node, agent, endpoint


async def test_stored_messages_come_by_pages_in_order_and_are_deleted_one_by_one(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, before, _ = await stored(made, PUSH_PAGE + 3)
        month = node.agents.month()
        agent = await node.agent(before.uaid)
        page = [await agent.notification() for _ in range(PUSH_PAGE)]

        await agent.ack(*page[1:])  # all but one
        await agent.ping_pong()

        assert len(await made.stored(agent.uaid, month)) == 4
        await agent.ack(page[0])
        rest = [await agent.notification() for _ in range(3)]
        await agent.ack(*rest)
        await agent.ping_pong()
        assert await made.stored(agent.uaid, month) == []
        versions = [one["version"] for one in [*page, *rest]]
        assert versions == sorted(versions)


async def test_exactly_what_was_not_acknowledged_comes_again(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, before, _ = await stored(made, 3)
        agent = await node.agent(before.uaid)
        first, second, third = [await agent.notification() for _ in range(3)]
        await agent.ack(first, third)
        await agent.ping_pong()
        await agent.socket.close()

        again = await node.agent(before.uaid)

        assert await again.notification() == second
        await again.ping_pong()


async def test_a_nack_leaves_a_message_where_it_is(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node, before, _ = await stored(made, 1)
        agent = await node.agent(before.uaid)
        one = await agent.notification()
        await agent.say(messageType="nack", version=one["version"], code=301)
        await agent.say(messageType="nack")
        await agent.ping_pong()
        await agent.socket.close()

        assert await (await node.agent(before.uaid)).notification() == one
        assert node.agents.counts["nacked"] == 2


async def test_a_user_agent_that_lets_too_much_lie_is_dropped(tmp_path: Path) -> None:
    async with place(tmp_path, msg_limit=20) as made:
        node, before, endpoint = await stored(made, 21)
        agent = await node.agent(before.uaid)
        for _ in range(2):
            await agent.ack(*[await agent.notification() for _ in range(PUSH_PAGE)])

        assert await agent.closed() == 1000
        assert (await node.send(endpoint, b"x")).status == 410
        assert (await node.agent(before.uaid)).uaid != before.uaid
        assert [event.reason for event in await made.ledger_events(before.uaid) if event.state == "dropped"] == [
            "msg_limit"
        ]


async def test_as_many_as_the_limit_are_delivered(tmp_path: Path) -> None:
    async with place(tmp_path, msg_limit=20) as made:
        node, before, _ = await stored(made, 20)
        agent = await node.agent(before.uaid)

        for _ in range(2):
            await agent.ack(*[await agent.notification() for _ in range(PUSH_PAGE)])

        await agent.ping_pong()
        assert (await made.record(before.uaid)) is not None


async def test_who_is_connected_and_acknowledges_is_never_dropped_however_much_is_stored_meanwhile(
    tmp_path: Path,
) -> None:
    async with place(tmp_path, window=8, msg_limit=20) as made:
        # Given a user agent that has not yet acknowledged as many as may be on their way
        node = made.nodes[0]
        agent = await node.agent()
        endpoint = await agent.register(CHANNEL)
        for number in range(8):
            assert (await node.send(endpoint, b"%d" % number)).status == 201
        first = [await agent.notification() for _ in range(8)]
        # When more come than one may come back to: they are stored
        for number in range(8, 50):
            assert (await node.send(endpoint, b"%d" % number)).status == 201
        assert (await made.nodes[0].agents.messages.mailbox.head(agent.uaid, node.agents.month())).pending == 42
        # Then it gets all of them, one page after the other, and stays
        await agent.ack(*first)
        for _ in range(42):
            await agent.ack(await agent.notification())
        await agent.ping_pong()
        assert (await made.record(agent.uaid)) is not None


async def test_a_storm_of_commands_of_many_user_agents_is_served(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        agents = await asyncio.gather(*(node.connect() for _ in range(100)))

        await asyncio.gather(*(agent.hello() for agent in agents))
        endpoints = await asyncio.gather(*(agent.register(CHANNEL) for agent in agents))

        assert len(set(endpoints)) == 100
        assert len({agent.uaid for agent in agents}) == 100


# ── what cannot be stored when a session ends ─────────────────────────────────────────────────────


class Noting(RetryPolicy):
    """Notes the failures that it is asked about. From the fifth in a row on it waits for longer than any test."""

    asked: ClassVar[list[int]] = []

    def delay(self, failures: int, chance: float, asked: float | None = None) -> float:
        self.asked.append(failures)
        return 0.001 if failures < 5 else 3600.0


class SeldomAgain(Agents):
    retry = Noting(first=1.0, longest=10.0)


class DeafToTheStop(asyncio.Event):
    """The sabotage: who waits is not woken."""

    async def wait(self) -> Any:
        await asyncio.get_running_loop().create_future()


class SleepsThroughTheStop(SeldomAgain):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._stopping = DeafToTheStop()


async def stop_while_a_message_cannot_be_stored(tmp_path: Path, make: type[Agents]) -> list[tuple[str, str]]:
    """The node stops when the storage has refused five times; returns what the ledger says of the user agent."""

    async def refuse() -> None:
        raise EngineGone("full")

    Noting.asked.clear()
    async with place(tmp_path, make=make) as made:
        node = made.nodes[0]
        agent = await node.agent()
        endpoint = await agent.register(CHANNEL)
        assert (await node.send(endpoint, b"x")).status == 201
        await agent.notification()
        node.mailbox.pause = refuse
        await agent.socket.close()
        await wait_until_async(lambda: len(Noting.asked) == 5)
    assert Noting.asked == [1, 2, 3, 4, 5]
    return [(event.state, event.reason) for event in await made.ledger_events(agent.uaid)]


async def test_a_message_that_cannot_be_stored_is_tried_ever_more_seldom_and_does_not_hold_up_the_stop(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(60):
        assert (await stop_while_a_message_cannot_be_stored(tmp_path, SeldomAgain))[-1] == ("lost", "storage")


async def test_slept_through_the_stop_would_not_end(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await stop_while_a_message_cannot_be_stored(tmp_path, SleepsThroughTheStop)
