"""sps on two nodes of one cluster: one wire per device, told over the bus, and a late end that harms nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.api.auth import Authenticator, open_keys
from penstock.api.context import Context
from penstock.core.change_watch import ChangePoller, Changes
from penstock.core.clock import ManualClock
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.core.liveness import Members
from penstock.core.registry import Registry
from penstock.core.why import Why
from penstock.doors.sps import Sps
from penstock.doors.sps import wires as wires_module
from penstock.doors.sps.cluster import WireOwners
from penstock.doors.sps.wire import DeviceWire
from penstock.doors.sps.wires import Wires
from penstock.engines.memory import MemoryChanges, MemoryEngine
from penstock.errors import EngineGone
from penstock.http.listener import Listener
from penstock.http.rate_limits import Caps
from penstock.http.routing import Router
from penstock.http.timers import Wheel
from penstock.settings import ServerSettings, Settings
from penstock.testing import TooLate, wait_until_async
from penstock.values import Record
from tests.faulty_bus import Faults, FaultyBus
from tests.late_registry import LateRegistry
from tests.nodes import Network


class Node:
    """One node's door behind a real socket."""

    def __init__(self, engine: MemoryEngine, members: Members, door: Sps, listener: Listener) -> None:
        self.engine, self.members, self.door, self.listener = engine, members, door, listener
        self.change_poller: ChangePoller
        self._writers: list[asyncio.StreamWriter] = []

    async def subscribe(self, query: str) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(*self.listener.address)
        self._writers.append(writer)
        writer.write(f"GET /subscribe?{query} HTTP/1.0\r\nAuthorization: Bearer admin\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert (await line(reader))["event"] == "open"
        return reader

    async def ask(self, method: str, target: str, body: bytes = b"") -> tuple[int, Any]:
        reader, writer = await asyncio.open_connection(*self.listener.address)
        head = f"{method} {target} HTTP/1.0\r\nAuthorization: Bearer admin\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        status, _, text = answer.partition(b"\r\n\r\n")
        return int(status.split()[1]), json.loads(text) if text else None

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


async def line(reader: asyncio.StreamReader) -> Any:
    found = await asyncio.wait_for(reader.readline(), 20)
    return json.loads(found) if found else None


@asynccontextmanager
async def two(
    keys: Path, faults: Faults | None = None, changes: Callable[[MemoryEngine], Changes] = MemoryChanges
) -> AsyncIterator[tuple[Node, Node, Network]]:
    """Two nodes; each looks for changes when the test says so."""
    network = Network()
    async with MemoryEngine() as engine, AsyncExitStack() as stack:
        nodes = [
            await node(stack, engine, network, name, keys, faults or Faults(), ChangePoller(changes(engine)))
            for name in ("a", "b")
        ]
        for one in nodes:
            await one.members.watch()
        try:
            yield nodes[0], nodes[1], network
        finally:
            for one in nodes:
                one.hang_up()


async def node(
    stack: AsyncExitStack, engine: MemoryEngine, network: Network, name: str, keys: Path, faults: Faults,
    change_poller: ChangePoller,
) -> Node:  # fmt: skip
    hub = await stack.enter_async_context(Hub(engine.log))
    clock, bus = ManualClock(), FaultyBus(network.bus(name), faults)
    ledger = Ledger(engine.log, clock, node=name)
    await ledger.open(engine.registry)
    stack.push_async_callback(ledger.close)
    members = await stack.enter_async_context(Members(engine.registry, bus))
    context = Context(
        engine.log, engine.mailbox, engine.registry, bus, hub, ledger, Authenticator(open_keys(keys), "admin"), clock,
        Wheel(asyncio.get_running_loop()), 1 << 20, Caps(0), members, change_poller=change_poller,
    )  # fmt: skip
    door = await stack.enter_async_context(Sps(context, Settings()))
    listener = await stack.enter_async_context(Listener(Router(door.routes()), ServerSettings(listen="127.0.0.1:0")))
    made = Node(engine, members, door, listener)
    made.change_poller = change_poller
    return made


async def claimed(node: Node, uid: str) -> bool:
    """Whether the registry says that this node has the user's one device."""
    owners = node.door.wires.owners
    assert owners
    return list((await owners.of_user(uid)).values()) == [node.members.me]


async def presence(node: Node) -> list[str]:
    page = await node.engine.log.read_after(("/_presence",), 0)
    return [json.loads(row)["state"] for entry in page.entries for row in entry.body.splitlines()]


async def test_a_subscribe_on_one_node_replaces_the_wire_on_another(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b, _):
        old = await a.subscribe("uid=7&hid=phone")
        await wait_until_async(lambda: claimed(a, "7"))
        new = await b.subscribe("uid=7&hid=phone")

        assert (await line(old))["event"] == "replaced"
        assert await line(old) is None
        await b.ask("POST", "/notify_to_user?uid=7", b"hello")
        assert (await line(new))["data"] == "hello"
        await wait_until_async(lambda: claimed(b, "7"))
        b.hang_up()
        await wait_until_async(lambda: offline(a))
        assert await presence(a) == ["online", "offline"]  # a wire that is replaced neither comes nor goes


async def test_a_late_end_of_the_old_wire_does_not_take_the_new_one_offline(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b, network):
        await a.subscribe("uid=7")
        await wait_until_async(lambda: claimed(a, "7"))
        network.late = []  # the old node does not hear of it in time
        new = await b.subscribe("uid=7")
        await wait_until_async(lambda: claimed(b, "7"))

        a.hang_up()
        await wait_until_async(lambda: len(a.door.wires) == 0)
        network.catch_up()
        await b.ask("POST", "/notify_to_user?uid=7", b"still here")

        assert (await line(new))["data"] == "still here"
        assert await claimed(b, "7")
        assert "offline" not in await presence(a)
        b.hang_up()
        await wait_until_async(lambda: offline(a))


async def offline(node: Node) -> bool:
    return (await presence(node))[-1:] == ["offline"]


class Forgetful(WireOwners):
    """The sabotage: lets go of a device whoever has it by now."""

    async def _settle(self, key: str) -> None:
        await super()._settle(key)
        if self._local.number(*key.split("/")) is None:
            await self._owned._registry.delete(f"sps/wires/{key}")


async def test_the_same_check_finds_a_node_that_lets_go_of_others_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.doors.sps.wires.WireOwners", Forgetful)
    with pytest.raises(AssertionError):
        await test_a_late_end_of_the_old_wire_does_not_take_the_new_one_offline(tmp_path)


async def test_back_and_forth_leaves_the_newest_wire_alone(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b, network):
        await a.subscribe("uid=7")
        await wait_until_async(lambda: claimed(a, "7"))
        network.late = []
        await b.subscribe("uid=7")
        await wait_until_async(lambda: claimed(b, "7"))
        newest = await a.subscribe("uid=7")
        await wait_until_async(lambda: claimed(a, "7"))

        network.catch_up()  # "a, you were replaced": but that was the wire before
        await wait_until_async(lambda: len(b.door.wires) == 0)
        await b.ask("POST", "/notify_to_user?uid=7", b"newest")

        assert (await line(newest))["data"] == "newest"


async def test_a_wire_that_is_replaced_before_it_knows_of_its_own_claim_ends_all_the_same(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b, _):
        assert a.door.wires.owners
        slow = LateRegistry(a.engine.registry)
        a.door.wires.owners._owned._registry = cast("Any", slow)
        opening = asyncio.ensure_future(a.subscribe("uid=7"))
        await asyncio.wait_for(slow.stored.wait(), 20)
        await b.subscribe("uid=7")
        assert await claimed(b, "7")
        slow.answer.set()
        old = await opening

        assert (await line(old))["event"] == "replaced"
        assert await claimed(b, "7")


class Unsure:
    """A registry that stores and then says that it could not, until it is mended."""

    def __init__(self, inner: Registry) -> None:
        self._inner, self.mended, self.failures = inner, False, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, key: str, value: bytes, **more: Any) -> Record:
        record = await self._inner.put(key, value, **more)
        if not self.mended:
            self.failures += 1
            raise EngineGone("the answer was lost")
        return record


async def check_a_claim_without_an_answer_goes_with_its_wire(keys: Path, within: float = 20) -> None:
    async with two(keys) as (a, b, _):
        assert a.door.wires.owners
        registry = Unsure(a.engine.registry)
        a.door.wires.owners._owned._registry = cast("Any", registry)
        await a.subscribe("uid=7")
        await wait_until_async(lambda: registry.failures > 0)
        a.hang_up()
        await wait_until_async(lambda: len(a.door.wires) == 0)
        registry.mended = True

        async def nobody() -> bool:
            return not (await b.ask("GET", "/online?uid=7"))[1]["online"] and not await a.engine.registry.list(
                "sps/wires/"
            )

        await wait_until_async(nobody, within=within)


async def test_a_claim_without_an_answer_goes_with_its_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires_module, "CLAIM_SECONDS", 0.1)
    await check_a_claim_without_an_answer_goes_with_its_wire(tmp_path)


async def test_a_claim_without_an_answer_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires_module, "CLAIM_SECONDS", 0.1)
    async with two(tmp_path) as (a, _, _):
        assert a.door.wires.owners
        registry = Unsure(a.engine.registry)
        a.door.wires.owners._owned._registry = cast("Any", registry)
        await a.subscribe("uid=7")
        await wait_until_async(lambda: registry.failures > 0)
        registry.mended = True

        await wait_until_async(lambda: online(a))
        assert await claimed(a, "7")


async def online(node: Node) -> bool:
    return (await presence(node))[-1:] == ["online"]


async def test_the_same_check_finds_a_node_that_takes_no_answer_for_a_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wires_module, "CLAIM_SECONDS", 0.1)
    monkeypatch.setattr(WireOwners, "_if_ours", lambda owners, record: None)
    with pytest.raises(TooLate):
        await check_a_claim_without_an_answer_goes_with_its_wire(tmp_path, within=2)


async def test_any_node_answers_about_any_wire(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b, _):
        reader = await a.subscribe("uid=7&hid=phone&tid=earth")
        await wait_until_async(lambda: claimed(a, "7"))

        status, answer = await b.ask("GET", "/online?uid=7")
        assert (status, answer["online"], [device["hid"] for device in answer["devices"]]) == (200, True, ["phone"])
        assert await b.ask("POST", "/join?uid=7&hid=phone&tid=mars") == (200, {"tids": ["earth", "mars"]})
        assert await b.ask("POST", "/leave?uid=7&hid=phone&tid=earth") == (200, {"tids": ["mars"]})
        assert (await b.ask("POST", "/subsist?uid=7&hid=phone"))[0] == 204
        assert (await b.ask("POST", "/subsist?uid=7&hid=laptop"))[0] == 404
        assert (await b.ask("POST", "/join?uid=7&hid=laptop&tid=x"))[0] == 404
        await b.ask("POST", "/notify_to_room?tid=earth", b"no")
        await b.ask("POST", "/notify_to_room?tid=mars", b"yes")
        assert (await line(reader))["data"] == "yes"


async def test_the_devices_of_a_dead_node_go_offline(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b, network):
        await a.engine.registry.put(
            "sps/wires/9/tablet", b'{"member":"dead:1","number":3,"since_ms":0}'
        )  # of a node that was killed
        assert (await b.ask("GET", "/online?uid=9"))[1]["online"] is False

        await network.buses["a"].hint("members", b"")
        for one in (a, b):
            for change in one.members.on_change:
                change()

        await wait_until_async(lambda: offline(a))
        assert await a.engine.registry.list("sps/wires/") == []


async def verdicts(node: Node, ids: list[int], recipient: str = "7/phone") -> list[str]:
    """What this node tells of entries, by the ledger that all share."""
    wires = node.door.wires
    answers = [await Why(node.engine.log, wires.ledger, wires.hub).entry(id, recipient) for id in ids]
    return [answer.verdict for answer in answers]


async def test_what_one_node_sent_is_confirmed_through_another(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b, _):
        reader = await a.subscribe("uid=7&hid=phone")
        await wait_until_async(lambda: claimed(a, "7"))
        await b.ask("POST", "/notify_to_user?uid=7", b"one")
        id = (await line(reader))["id"]
        assert await verdicts(a, [id]) == ["sent"]
        a.hang_up()
        await wait_until_async(lambda: len(a.door.wires) == 0)

        await b.subscribe(f"uid=7&hid=phone&o={id}")

        assert await verdicts(b, [id]) == ["acked"]


async def taken_for_dead(node: Node, other: Node, network: Network) -> None:
    """The node was stopped for so long that the other has removed it; it does not know that yet."""
    network.cut.add(node.members.me.partition(":")[0])
    await node.engine.registry.delete(f"members/{node.members.me.partition(':')[0]}")
    await other.members.watch()


async def comes_to_itself(node: Node, network: Network) -> None:
    network.cut.clear()
    before = node.members.me
    await node.members.renew()
    assert node.members.me != before
    for change in node.members.on_change:
        change()


async def test_a_node_that_was_away_lets_go_of_devices_that_went_elsewhere(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b, network):
        old = await a.subscribe("uid=7")
        await wait_until_async(lambda: claimed(a, "7"))
        await taken_for_dead(a, b, network)
        new = await b.subscribe("uid=7")
        await wait_until_async(lambda: claimed(b, "7"))

        await comes_to_itself(a, network)

        assert (await line(old))["event"] == "replaced"
        await b.ask("POST", "/notify_to_user?uid=7", b"hello")
        assert (await line(new))["data"] == "hello"
        assert await claimed(b, "7")


async def test_a_node_that_was_away_takes_up_again_the_devices_that_stayed(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b, network):
        reader = await a.subscribe("uid=7")
        await wait_until_async(lambda: claimed(a, "7"))
        await taken_for_dead(a, b, network)
        assert not (await b.ask("GET", "/online?uid=7"))[1]["online"]

        await comes_to_itself(a, network)

        await b.members.watch()
        await wait_until_async(lambda: claimed(a, "7"))
        assert (await b.ask("GET", "/online?uid=7"))[1]["online"]
        await b.ask("POST", "/notify_to_user?uid=7", b"hello")
        assert (await line(reader))["data"] == "hello"


# ── what a node that died has sent ─────────────────────────────────────────────────────────────


async def check_the_living_confirm_for_the_dead(keys: Path, *, before: bool) -> None:
    """A device of a node that dies comes to another one: *before* that one knows of the death, or after."""
    async with two(keys) as (a, b, network):
        reader = await a.subscribe("uid=7&hid=phone")
        await wait_until_async(lambda: claimed(a, "7"))
        ids = []
        for body in (b"one", b"two"):
            await b.ask("POST", "/notify_to_user?uid=7", body)
            ids.append((await line(reader))["id"])
        _, other = await b.ask("POST", "/notify_to_user?uid=7&hid=tv", b"not for the phone")
        await a.door.wires.ledger.flush()
        network.cut.add("a")
        assert await verdicts(b, ids) == ["sent", "sent"]

        if not before:
            await taken_for_dead(a, b, network)
        await b.subscribe(f"uid=7&hid=phone&o={other['id']}")

        assert await verdicts(b, [*ids, other["id"]]) == ["acked", "acked", "no_record"]


@pytest.mark.parametrize("before", [True, False])
async def test_what_a_dead_node_sent_is_confirmed_through_a_living_one(tmp_path: Path, before: bool) -> None:
    await check_the_living_confirm_for_the_dead(tmp_path, before=before)


class TrustsItself(Wires):
    """The sabotage: a device can confirm only what its open wire was sent."""

    def confirm(self, wire: DeviceWire, upto: int) -> None:
        if upto > wire.began:
            super().confirm(wire, upto)


async def test_the_same_check_finds_nodes_that_know_only_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sps, "kind", TrustsItself)
    with pytest.raises(AssertionError):
        await check_the_living_confirm_for_the_dead(tmp_path, before=False)
