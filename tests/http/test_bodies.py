"""The budget of bytes that request bodies and half messages hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Opcode

from penstock.errors import Busy
from penstock.http import receiving
from penstock.http.bodies import Booking, ByteBudget
from penstock.testing import wait_until_async
from tests.http.test_websocket import Echo, echo_route, masked, raw
from tests.http.wires import on_uvloop, site


def test_one_address_has_a_quarter_and_always_one_body() -> None:
    budget = ByteBudget("server.bodies_bytes", 400)
    budget.book("a", 60)
    with pytest.raises(Busy):
        budget.book("a", 60)
    budget.book("b", 300)  # more than a quarter, but its first
    with pytest.raises(Busy):
        budget.book("c", 60)  # the whole is taken
    budget.release("b", 300)
    budget.book("c", 60)

    assert budget.held == 120


def test_one_body_may_grow_beyond_the_share_of_its_address() -> None:
    budget = ByteBudget("server.bodies_bytes", 400)
    first, second = Booking(budget, "a"), Booking(budget, "a")
    for size in (50, 150, 300):
        first.grow(size)
    with pytest.raises(Busy):
        second.grow(10)

    assert (first.size, second.size, budget.held) == (300, 0, 300)


def test_a_body_beyond_the_whole_comes_through_when_nobody_else_is_there() -> None:
    budget = ByteBudget("server.bodies_bytes", 10)
    budget.book("a", 5000)
    with pytest.raises(Busy):
        budget.book("b", 1)
    budget.release("a", 5000)

    assert budget.held == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50)), max_size=20), st.integers(1, 200))
def test_what_ends_leaves_nothing_booked(bodies: list[tuple[str, int]], limit: int) -> None:
    budget = ByteBudget("server.bodies_bytes", limit)
    bookings = []
    for address, size in bodies:
        booking = Booking(budget, address)
        bookings.append(booking)
        try:
            booking.grow(size // 2)
            booking.grow(size)
        except Busy:
            assert budget.held  # nobody is refused for nothing

    assert budget.held == sum(booking.size for booking in bookings)
    for booking in bookings:
        booking.end()
    assert budget.held == 0


@on_uvloop
async def test_a_websocket_message_that_is_not_complete_is_counted() -> None:
    owners: list[Echo] = []
    async with site([echo_route(owners)], bodies_bytes=200_000) as place:
        first, second = await raw(place), await raw(place)
        message = masked(Opcode.BINARY, b"x" * 150_000)

        first.send(message[:100_000])
        await wait_until_async(lambda: place.listener.body_bytes > 90_000)
        second.send(message[:100_000])

        assert (await second.read(4))[2:4] == (1013).to_bytes(2, "big")
        second.leave()
        first.send(message[100_000:])
        await wait_until_async(lambda: owners[0].heard == [b"x" * 150_000])
        await wait_until_async(lambda: place.listener.body_bytes == 0)


@on_uvloop
async def test_without_the_count_any_number_of_half_messages_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "COUNTED_BODY_BYTES", 1 << 40)  # none is large enough to be counted
    owners: list[Echo] = []
    async with site([echo_route(owners)], bodies_bytes=200_000) as place:
        peers = [await raw(place) for _ in range(3)]
        message = masked(Opcode.BINARY, b"x" * 150_000)
        for peer in peers:
            peer.send(message[:100_000])
        await wait_until_async(lambda: place.listener.counters.bytes_in > 300_000)

        assert place.listener.body_bytes == 0
        for peer in peers:  # all of them were taken, and go on
            peer.send(message[100_000:])
        await wait_until_async(lambda: [owner.heard for owner in owners] == [[b"x" * 150_000]] * 3)
