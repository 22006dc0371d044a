"""Questions from node to node: what is lost or cannot be read costs its own answer alone (core/node_calls.py)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock.core.bus import Receivers
from penstock.core.node_calls import Calls
from penstock.errors import TooLarge
from penstock.testing import wait_until_async
from tests.nodes import Network


async def shout(body: bytes) -> bytes:
    return body.decode("ascii").upper().encode()


async def test_a_question_is_answered_by_the_node_that_it_names() -> None:
    network = Network()
    async with Calls(network.bus("a"), "t", shout) as a, Calls(network.bus("b"), "t", shout):
        assert await a.ask("b", b"who", bytes) == b"WHO"
        network.cut.add("b")
        assert await a.ask("b", b"who", bytes) is None
        assert await a.ask("nobody", b"who", bytes) is None


async def _check_bystander(network: Network) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def answer(body: bytes) -> bytes:
        asked.set()
        await go_on.wait()
        return await shout(body)

    async with Calls(network.bus("a"), "t", shout) as a, Calls(network.bus("b"), "t", answer):
        async with asyncio.TaskGroup() as tasks:
            bystander = tasks.create_task(a.ask("b", b"who", bytes))
            await asked.wait()
            for node, topic in (("b", "t?"), ("a", "t!")):
                for bad in (b"", b"\xc1", b"\x93\x01\x02\x03", b"x" * 10_000):
                    assert network.give(node, topic, bad)
            go_on.set()
        assert bystander.result() == b"WHO"
        assert {bus.dropped for bus in network.buses.values()} == {4}


async def test_a_message_that_cannot_be_read_costs_nobody_else_an_answer() -> None:
    await _check_bystander(Network())


async def test_without_the_guard_of_the_bus_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    def pass_on(bus: Receivers, topic: str, error: Exception) -> None:
        raise error

    monkeypatch.setattr(Receivers, "drop", pass_on)
    with pytest.raises(ExceptionGroup) as raised:
        await _check_bystander(Network())
    assert raised.group_contains(msgspec.DecodeError)


async def test_what_a_letter_holds_and_cannot_be_read_counts_as_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network()
    async with Calls(network.bus("a"), "t", shout) as a, Calls(network.bus("b"), "t", shout):
        with monkeypatch.context() as patch:
            patch.setattr("penstock.core.node_calls.ANSWER_SECONDS", 0.05)
            assert await a.ask("b", b"\xff", bytes) is None  # no ASCII: the answerer fails
        assert await a.ask("b", b"who", int) is None
        assert await a.ask("b", b"7", int) == 7
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.message for record in warnings] == ["call.failed", "call.unreadable"]
    assert not any(record.exc_info for record in warnings)


class Shuffling(Network):
    """Delivers all that goes to a node twice, and in another order, when it is told to."""

    def shuffle(self) -> None:
        waiting, self.late = self.late or [], None
        for letter in reversed(waiting * 2):
            self.give(*letter)


async def test_the_parts_of_an_answer_may_come_twice_and_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.node_calls.PART_BYTES", 3)
    network = Shuffling()

    async def answer(body: bytes) -> bytes:
        network.late = []
        return await shout(body)

    async with Calls(network.bus("a"), "t", shout) as a, Calls(network.bus("b"), "t", answer):
        for said in (b"", b"abc", b"abcdefg"):
            asked = asyncio.create_task(a.ask("b", said, bytes))
            parts = max(1, -(-len(said) // 3))
            await wait_until_async(lambda parts=parts: network.late is not None and len(network.late) == parts)
            network.shuffle()
            assert await asked == said.upper()


async def test_who_asks_for_too_much_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.node_calls.NODE_ANSWER_BYTES", 5)
    network = Network()
    async with Calls(network.bus("a"), "t", shout) as a, Calls(network.bus("b"), "t", shout):
        assert await a.ask("b", b"abcde", bytes) == b"ABCDE"
        with pytest.raises(TooLarge, match="the answer of a node of 6 is over the limit of 5"):
            await a.ask("b", b"abcdef", bytes)
