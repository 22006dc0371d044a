"""Messages between nodes are lost, late, doubled and out of order: nothing is lost, doubled, or given to the old one.

What a lost message would have told is found by a node's next look at what has changed (`core/change_watch.py`), which
the server does twice a second. Here the test looks, so that looks are counted and no time passes. With nodes that
see nothing when they look, the same checks fail.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from cryptography.fernet import Fernet
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from penstock.api.auth import Authenticator, open_keys
from penstock.api.context import Context
from penstock.core import node_calls
from penstock.core.change_watch import ChangePoller, Changes
from penstock.core.clock import ManualClock
from penstock.core.duties import Duties
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.core.liveness import Members
from penstock.core.registry import Registry
from penstock.doors.eventhorizon import cluster as pusher_cluster
from penstock.doors.eventhorizon.cluster import Pushers
from penstock.doors.eventhorizon.subscriptions import Subscriptions
from penstock.doors.msgstream import MessageStreamDoor, stream
from penstock.doors.msgstream.connections import Handshake, Socket
from penstock.doors.sps import wires as wires_module
from penstock.doors.webpush_sender import bindings
from penstock.doors.webpush_sender.binding import BindingRecord
from penstock.doors.webpush_sender.bindings import Bindings
from penstock.doors.webpush_sender.push_client import PushClient
from penstock.doors.webpush_sender.vapid_keys import make_key, open_given
from penstock.engines.memory import MemoryChanges, MemoryEngine
from penstock.http.rate_limits import Caps
from penstock.http.requests import Request
from penstock.http.timers import Wheel
from penstock.settings import EventHorizonSettings, MsgstreamSettings, WebPushSettings
from penstock.testing import TooLate, wait_until_async
from penstock.values import Record
from penstock.wire.webpush_sender import PushKeys, PushSubscription
from penstock.wire.webpush_tokens import EndpointTokens
from tests.doors import test_sps_nodes as sps
from tests.doors.msgstream_place import NodeBus, Place, Wires, slow_engine
from tests.doors.push_service import Browser
from tests.doors.webpush_place import place
from tests.faulty_bus import Blind, Faults, FaultyBus
from tests.nodes import Network

See = Callable[[MemoryEngine], Changes]
NEVER = 3600.0  # seconds: nobody looks by himself
TURNS = 500  # of the loop, in which an answer that may be given is given
SOON = 0.5  # seconds in which a sabotaged node must not do what it should
CHANNEL = "deadbeef-0000-4000-8000-000000000000"
FAILURES = (TooLate, TimeoutError, AssertionError)


def blind(engine: MemoryEngine) -> Changes:
    """See nothing."""
    return Blind()


# ── the message stream ────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def three(keys: Path, faults: Faults, see: See = MemoryChanges) -> AsyncIterator[list[Place]]:
    clock, wires = ManualClock(), Wires()
    async with slow_engine(clock) as engine:
        nodes = [
            Place(
                engine, clock, keys, MessageStreamDoor, MsgstreamSettings(), FaultyBus(NodeBus(name, wires), faults),
                look_seconds=NEVER, changes=see(engine),
            )
            for name in ("one", "two", "three")
        ]  # fmt: skip
        for node in nodes:
            await node.start()
        for node in nodes:
            await node.members.watch()
        try:
            yield nodes
        finally:
            for node in reversed(nodes):
                await node.stop()


async def connected(node: Place) -> None:
    await wait_until_async(lambda: node.door.sessions.connected == 1)


async def heard(socket: ClientConnection, within: float) -> Any:
    return json.loads(await asyncio.wait_for(socket.recv(), within))


async def check_a_pack_comes_with_the_next_look(keys: Path, see: See, within: float) -> None:
    faults = Faults()
    async with three(keys, faults, see) as (one, two, other):
        key = await one.login("alice")
        async with connect(one.url(key)) as old, connect(two.url(key)) as new:
            await connected(two)
            faults.lose = True
            assert (await other.emit("alice", ["far"])).json == {"packs": {"alice": 1}}
            assert faults.carried, "there was nothing to lose"
            await two.change_poller.look()
            assert await heard(new, within) == {"1": [["far"]]}
            await one.change_poller.look()
            with pytest.raises(ConnectionClosedOK):
                await asyncio.wait_for(old.recv(), within)


async def check_an_end_comes_with_the_next_look(keys: Path, see: See, within: float) -> None:
    async with three(keys, Faults(lose=True), see) as (one, two, other):
        key = await one.login("alice")
        async with connect(one.url(key)) as old:
            await connected(one)
            async with connect(two.url(key)) as new:
                await connected(two)
                await one.change_poller.look()
                with pytest.raises(ConnectionClosedOK):  # another node serves it
                    await asyncio.wait_for(old.recv(), within)
                await other.ask("DELETE", "/v1/sessions/alice", reason="loggedOut")
                await two.change_poller.look()
                assert "unset" in str(await heard(new, within))


MSGSTREAM = [check_a_pack_comes_with_the_next_look, check_an_end_comes_with_the_next_look]


@pytest.mark.parametrize("check", MSGSTREAM)
async def test_a_session_hears_with_the_next_look_what_was_lost(tmp_path: Path, check: Any) -> None:
    await check(tmp_path, MemoryChanges, 20)


@pytest.mark.parametrize("check", MSGSTREAM)
async def test_the_same_check_finds_sessions_whose_node_sees_nothing(tmp_path: Path, check: Any) -> None:
    with pytest.raises(FAILURES):
        await check(tmp_path, blind, SOON)


class HeldRegistry:
    """Stores a record when it is told to."""

    def __init__(self, inner: Registry) -> None:
        self._inner, self.asked, self.go = inner, asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, key: str, value: bytes, **more: Any) -> Record:
        self.asked.set()
        await self.go.wait()
        return await self._inner.put(key, value, **more)


async def check_the_connection_that_was_opened_last_wins(keys: Path) -> None:
    """The first node's claim takes its time. Who opens the next connection after the first has opened is the newest."""
    async with three(keys, Faults()) as (one, two, other):
        key = await one.login("alice")
        slow = HeldRegistry(one.engine.registry)
        one.door.sessions.owned._registry = cast("Any", slow)
        opening = asyncio.ensure_future(connect(one.url(key)))
        await slow.asked.wait()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if opened_early := opening.done():
            async with connect(two.url(key)) as new:
                await connected(two)
                slow.go.set()
                await other.emit("alice", ["m1"])
                assert await heard(new, SOON) == {"1": [["m1"]]}
                assert "alice" in two.door.sessions.known, "the older connection has taken the session"
        slow.go.set()
        async with await opening as old, connect(two.url(key)) as new:
            assert not opened_early, "it opened before this node served the session"
            await other.emit("alice", ["m1"])
            assert await heard(new, 20) == {"1": [["m1"]]}
            with pytest.raises(ConnectionClosedOK):
                await asyncio.wait_for(old.recv(), 20)


async def test_the_connection_that_was_opened_last_wins_however_late_a_claim_is(tmp_path: Path) -> None:
    await check_the_connection_that_was_opened_last_wins(tmp_path)


class Hasty(Handshake):
    """Answers at once, and looks for the session afterwards."""

    def __init__(self, request: Request, accept: Callable[[Request], Socket]) -> None:
        super().__init__(request, accept)
        self._socket = accept(request)

    def _open(self) -> Socket:
        return self._socket


async def test_the_same_check_finds_handshakes_that_are_answered_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "Handshake", Hasty)
    with pytest.raises((*FAILURES, ConnectionClosed)):
        await check_the_connection_that_was_opened_last_wins(tmp_path)


async def test_a_handshake_that_is_wrong_is_refused_before_the_session_is_looked_for(tmp_path: Path) -> None:
    async with three(tmp_path, Faults()) as (one, two, _):
        key = await one.login("alice")
        async with connect(one.url(key)) as socket:
            reader, writer = await asyncio.open_connection(*two.listener.address)
            target = two.url(key).partition("/msgstream")[2]
            writer.write(
                f"GET /msgstream{target} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 12\r\n\r\n".encode()
            )
            assert (await reader.readline()).startswith(b"HTTP/1.1 4")
            writer.close()
            await one.emit("alice", ["m1"])
            assert await heard(socket, 20) == {"1": [["m1"]]}


async def test_late_doubled_and_reordered_messages_change_nothing_for_a_session(tmp_path: Path) -> None:
    faults = Faults(hold=True, twice=True)
    async with three(tmp_path, faults) as (one, two, other):
        key = await one.login("alice")
        async with connect(one.url(key)) as first:
            await connected(one)
            await other.emit("alice", ["m1"])
            async with connect(two.url(key)) as second:
                assert await heard(second, 20) == {"1": [["m1"]]}
                await other.emit("alice", ["m2"])
                async with connect(one.url(key)) as third:
                    got = await heard(third, 20)
                    faults.release()  # of all who served it, the last first, and each twice
                    await other.emit("alice", ["m3"])
                    while "3" not in got:
                        got |= await heard(third, 20)
                    assert got == {"1": [["m1"]], "2": [["m2"]], "3": [["m3"]]}
                    await third.send("1,2,3")
                    await wait_until_async(lambda: not one.door.sessions.known["alice"].machine.packs)
                    for former in (first, second):
                        with pytest.raises(ConnectionClosedOK):  # and was given nothing more
                            await asyncio.wait_for(former.recv(), 20)
        assert (await two.poll(key)).status == 204


# ── sps ───────────────────────────────────────────────────────────────────────────────────────


async def check_a_wire_is_replaced_with_the_next_look(keys: Path, see: See, within: float) -> None:
    faults = Faults()
    async with sps.two(keys, faults, see) as (a, b, _):
        old = await a.subscribe("uid=7&hid=phone")
        await wait_until_async(lambda: sps.claimed(a, "7"))
        faults.lose = True
        new = await b.subscribe("uid=7&hid=phone")
        await wait_until_async(lambda: sps.claimed(b, "7"))
        await a.change_poller.look()
        found = await asyncio.wait_for(old.readline(), within)
        assert json.loads(found)["event"] == "replaced"
        await a.ask("POST", "/notify_to_user?uid=7", b"hello")
        assert (await sps.line(new))["data"] == "hello"
        assert await sps.presence(a) == ["online"]


async def test_a_wires_node_hears_with_the_next_look_what_was_lost(tmp_path: Path) -> None:
    await check_a_wire_is_replaced_with_the_next_look(tmp_path, MemoryChanges, 20)


async def test_the_same_check_finds_wires_whose_node_sees_nothing(tmp_path: Path) -> None:
    with pytest.raises(FAILURES):
        await check_a_wire_is_replaced_with_the_next_look(tmp_path, blind, SOON)


async def check_the_wire_that_was_opened_last_wins(keys: Path, before: bool) -> None:
    """The first node's claim takes its time. *before*: it had a wire of that device already."""
    async with sps.two(keys) as (a, b, _):
        owners = a.door.wires.owners
        assert owners
        if before:
            await a.subscribe("uid=7")
        slow = HeldRegistry(a.engine.registry)
        owners._owned._registry = cast("Any", slow)
        opening = asyncio.ensure_future(a.subscribe("uid=7"))
        await slow.asked.wait()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        opened_early = opening.done()
        if opened_early:
            await b.subscribe("uid=7")
        slow.go.set()
        old = await opening
        await wait_until_async(lambda: not owners._busy and not owners._waiting)
        new = await b.subscribe("uid=7") if not opened_early else None
        assert new is not None, "it opened before its device was claimed"
        assert (await sps.line(old))["event"] == "replaced"
        await a.ask("POST", "/notify_to_user?uid=7", b"hello")
        assert (await sps.line(new))["data"] == "hello"


@pytest.mark.parametrize("before", [False, True])
async def test_the_wire_that_was_opened_last_wins_however_late_a_claim_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    monkeypatch.setattr(wires_module, "CLAIM_SECONDS", NEVER)
    await check_the_wire_that_was_opened_last_wins(tmp_path, before)


@pytest.mark.parametrize("before", [False, True])
async def test_the_same_check_finds_wires_that_are_answered_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    monkeypatch.setattr(wires_module.Wires, "_hold_back", lambda wires, wire: None)
    with pytest.raises(FAILURES):
        await check_the_wire_that_was_opened_last_wins(tmp_path, before)


async def test_a_wire_opens_though_its_claim_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires_module, "CLAIM_SECONDS", 0.1)
    async with sps.two(tmp_path) as (a, b, _):
        assert a.door.wires.owners
        slow = HeldRegistry(a.engine.registry)
        a.door.wires.owners._owned._registry = cast("Any", slow)
        reader = await a.subscribe("uid=7")
        await b.ask("POST", "/notify_to_user?uid=7", b"hello")
        assert (await sps.line(reader))["data"] == "hello"
        slow.go.set()


async def test_who_leaves_before_its_device_is_claimed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wires_module, "CLAIM_SECONDS", NEVER)
    async with sps.two(tmp_path) as (a, _, _):
        assert a.door.wires.owners
        slow = HeldRegistry(a.engine.registry)
        a.door.wires.owners._owned._registry = cast("Any", slow)
        opening = asyncio.ensure_future(a.subscribe("uid=7"))
        await slow.asked.wait()
        a.hang_up()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await opening
        slow.go.set()
        await wait_until_async(lambda: sps.offline(a))
        assert not a.door.wires.all
        assert not a.door.wires._unclaimed
        assert await sps.presence(a) == ["online", "offline"]


async def test_a_confirmation_needs_no_message(tmp_path: Path) -> None:
    async with sps.two(tmp_path, Faults(lose=True), blind) as (a, b, _):
        reader = await a.subscribe("uid=7&hid=phone")
        await b.ask("POST", "/notify_to_user?uid=7", b"one")
        id = (await sps.line(reader))["id"]
        assert await sps.verdicts(a, [id]) == ["sent"]
        await b.subscribe(f"uid=7&hid=phone&o={id}")
        assert await sps.verdicts(b, [id]) == ["acked"]


async def test_late_doubled_and_reordered_messages_leave_the_newest_wire_alone(tmp_path: Path) -> None:
    faults = Faults(hold=True, twice=True)
    async with sps.two(tmp_path, faults) as (a, b, _):
        await a.subscribe("uid=7&hid=phone")
        await wait_until_async(lambda: sps.claimed(a, "7"))
        between = await b.subscribe("uid=7&hid=phone")
        await wait_until_async(lambda: sps.claimed(b, "7"))
        newest = await a.subscribe("uid=7&hid=phone")
        await wait_until_async(lambda: sps.claimed(a, "7"))
        faults.release()
        for node in (a, b):
            await node.change_poller.look()
        assert (await sps.line(between))["event"] == "replaced"
        await b.ask("POST", "/notify_to_user?uid=7", b"hello")
        assert (await sps.line(newest))["data"] == "hello"
        assert await sps.claimed(a, "7")


# ── Web Push ──────────────────────────────────────────────────────────────────────────────────


async def check_a_message_comes_with_the_next_look(keys: Path, see: See, within: float) -> None:
    async with place(keys, nodes=2, changes=see) as made:
        sender, node = made.nodes
        agent = await node.agent()
        endpoint = await agent.register(CHANNEL)
        node.bus.cut = True
        assert (await sender.send(endpoint, b"x")).status == 201
        node.bus.cut = False
        await node.change_poller.look()
        assert (await asyncio.wait_for(agent.notification(), within))["data"] == "eA"
        record = await made.record(agent.uaid)
        assert record is not None
        assert record.node == node.name, "the next message would go past it again"


async def check_a_former_session_ends_with_the_next_look(keys: Path, see: See, within: float) -> None:
    async with place(keys, nodes=2, changes=see) as made:
        a, b = made.nodes
        old = await a.agent()
        await old.register(CHANNEL)
        a.bus.cut = True
        await b.agent(old.uaid)
        await a.change_poller.look()
        assert await asyncio.wait_for(old.closed(), within) == 1011


WEBPUSH = [check_a_message_comes_with_the_next_look, check_a_former_session_ends_with_the_next_look]


@pytest.mark.parametrize("check", WEBPUSH)
async def test_a_user_agent_hears_with_the_next_look_what_was_lost(tmp_path: Path, check: Any) -> None:
    await check(tmp_path, MemoryChanges, 20)


@pytest.mark.parametrize("check", WEBPUSH)
async def test_the_same_check_finds_user_agents_whose_node_sees_nothing(tmp_path: Path, check: Any) -> None:
    with pytest.raises(FAILURES):
        await check(tmp_path, blind, SOON)


# ── pushers ───────────────────────────────────────────────────────────────────────────────────


async def check_pushers_run_with_the_next_look(keys: Path, see: See, within: float) -> None:
    """Made at one node, each runs at the one that has the duty."""
    network = Network()
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        ledger = Ledger(engine.log, ManualClock(), node="a")
        nodes: list[tuple[Pushers, ChangePoller, Members]] = []
        for name in ("a", "b"):
            bus, change_poller = FaultyBus(network.bus(name), Faults(lose=True)), ChangePoller(see(engine))
            members = await Members(engine.registry, bus).__aenter__()
            context = Context(
                engine.log, engine.mailbox, engine.registry, bus, hub, ledger, Authenticator(open_keys(keys), "admin"),
                ManualClock(), Wheel(asyncio.get_running_loop()), 1 << 20, Caps(0), members,
                change_poller=change_poller,
            )  # fmt: skip
            subscriptions = Subscriptions(engine.log, engine.registry, alone=False)
            nodes.append(
                (
                    Pushers(context, subscriptions, EventHorizonSettings(), Duties(engine.registry, members)),
                    change_poller,
                    members,
                )
            )
        for _, _, members in nodes:
            await members.watch()
        try:
            for made, _, _ in nodes:
                await made.start()
            kept = pusher_cluster.PusherRecord("http://127.0.0.1:9/", "", True, "app", True, (), 0)
            for number in range(16):
                await engine.registry.put(f"pushers/{number:016x}", pusher_cluster._encode(kept))
            for _, change_poller, _ in nodes:
                await change_poller.look()
            await wait_until_async(lambda: sum(made.running for made, _, _ in nodes) == 16, within=within)
            assert all(made.running for made, _, _ in nodes), "one node does everything"
        finally:
            for made, _, members in nodes:
                await made.stop()
                await members.__aexit__(None, None, None)


async def test_pushers_run_with_the_next_look_where_they_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pusher_cluster, "LOOK_SECONDS", NEVER)
    await check_pushers_run_with_the_next_look(tmp_path, MemoryChanges, 20)


async def test_the_same_check_finds_pushers_whose_node_sees_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pusher_cluster, "LOOK_SECONDS", NEVER)
    with pytest.raises(FAILURES):
        await check_pushers_run_with_the_next_look(tmp_path, blind, SOON)


# ── bindings of the Web Push sender ───────────────────────────────────────────────────────────


def some_binding() -> bytes:
    subscription = PushSubscription("http://127.0.0.1:9/push", PushKeys(**Browser().keys))
    return msgspec.json.encode(BindingRecord("/s", subscription, 60, "", "", True, "app", True, (), 0, 0))


async def check_bindings_run_with_the_next_look(keys: Path, see: See, within: float) -> None:
    """Made at one node, each runs at the one that has the duty; removed there, it ends."""
    network = Network()
    async with MemoryEngine() as engine, Hub(engine.log) as hub, AsyncExitStack() as stack:
        ledger = Ledger(engine.log, ManualClock(), node="a")
        tokens = EndpointTokens([Fernet.generate_key().decode()], b"test")
        nodes: list[tuple[Bindings, ChangePoller]] = []
        everybody: list[Members] = []
        for name in ("a", "b"):
            bus, change_poller = FaultyBus(network.bus(name), Faults(lose=True)), ChangePoller(see(engine))
            everybody.append(members := await stack.enter_async_context(Members(engine.registry, bus)))
            context = Context(
                engine.log, engine.mailbox, engine.registry, bus, hub, ledger, Authenticator(open_keys(keys), "admin"),
                ManualClock(), Wheel(asyncio.get_running_loop()), 1 << 20, Caps(0), members,
                change_poller=change_poller,
            )  # fmt: skip
            client = PushClient(open_given(make_key()), "", 1.0)
            nodes.append((Bindings(context, WebPushSettings(), client, tokens), change_poller))
        for members in everybody:
            await members.watch()
        for made, _ in nodes:
            await made.start()
            stack.push_async_callback(made.stop)
        for number in range(16):
            await engine.registry.put(f"{bindings.BINDINGS}{number:x}{0:015x}", some_binding())
        for _, change_poller in nodes:
            await change_poller.look()
        await wait_until_async(lambda: sum(len(made.running) for made, _ in nodes) == 16, within=within)
        for number in range(16):
            await engine.registry.delete(f"{bindings.BINDINGS}{number:x}{0:015x}")
        for _, change_poller in nodes:
            await change_poller.look()
        await wait_until_async(lambda: not any(made.running for made, _ in nodes), within=within)


async def test_bindings_run_with_the_next_look_where_they_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings, "LOOK_SECONDS", NEVER)
    await check_bindings_run_with_the_next_look(tmp_path, MemoryChanges, 20)


async def test_the_same_check_finds_bindings_whose_node_sees_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings, "LOOK_SECONDS", NEVER)
    with pytest.raises(FAILURES):
        await check_bindings_run_with_the_next_look(tmp_path, blind, SOON)


# ── questions ─────────────────────────────────────────────────────────────────────────────────


async def test_a_question_that_is_lost_costs_no_more_than_a_second() -> None:
    assert node_calls.ANSWER_SECONDS <= 1
