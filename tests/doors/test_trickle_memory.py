"""What many small things cost: closed channels that linger, segments of a byte. Each with its sabotage."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from penstock.doors.trickle import Trickle
from penstock.doors.trickle.channel import LiveChannel
from penstock.doors.trickle.channels import Channels
from tests.doors.trickle_place import Place, place

KEPT = 3  # channels


class Endless(OrderedDict[str, LiveChannel]):
    """Nothing is ever taken from its beginning."""

    def popitem(self, last: bool = True) -> tuple[str, LiveChannel]:
        return next(iter(self.items()))


class Hoarding(Channels):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._left = Endless()


class HoardingDoor(Trickle):
    kind = Hoarding


async def _come_and_go(made: Place, count: int) -> None:
    """Make channels under ever new names, and delete them, beside one that is somebody else's."""
    assert await made.publish("bystander", 0, b"mine") == 200
    for number in range(count):
        assert await made.publish(f"passing{number}", 0, b"x") == 200
        assert await made.ask("DELETE", f"passing{number}") == 200


async def _statuses(made: Place, count: int) -> list[int]:
    return [await (await made.get(f"passing{number}", 0)).head() for number in range(count)]


async def test_as_many_closed_channels_linger_as_may_be_open_and_the_oldest_go_first(tmp_path: Path) -> None:
    async with place(tmp_path, channels=KEPT) as made:
        await _come_and_go(made, 2 * KEPT)

        assert await _statuses(made, 2 * KEPT) == [404] * KEPT + [200] * KEPT
        assert await made.read("bystander", 0) == b"mine"


async def test_without_that_bound_all_of_them_would_be_kept(tmp_path: Path) -> None:
    async with place(tmp_path, channels=KEPT, make=HoardingDoor) as made:
        await _come_and_go(made, 2 * KEPT)

        assert await _statuses(made, 2 * KEPT) == [200] * 2 * KEPT


async def test_those_that_linger_go_when_their_time_is_over(tmp_path: Path) -> None:
    async with place(tmp_path, linger=10.0) as made:
        await _come_and_go(made, 1)
        made.advance(9)
        assert await _statuses(made, 1) == [200]

        made.advance(3)
        assert await _statuses(made, 1) == [404]


@pytest.mark.parametrize(("counted", "status"), [(1_024, 503), (0, 200)], ids=["counted", "sabotaged"])
async def test_segments_of_a_byte_do_not_escape_the_bound_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: int, status: int
) -> None:
    monkeypatch.setattr("penstock.wire.trickle_channel.SEGMENT_MEMORY", counted)
    async with place(tmp_path, memory_bytes=20 * 1_024, segments=1_000) as made:
        assert await made.publish("bystander", 0, b"mine") == 200
        for number in range(20):
            assert await made.publish("tiny", number, b"x") == 200
        made.advance(2)  # it is looked at once a second

        assert await made.publish("tiny", 20, b"x") == status
        assert await made.read("bystander", 0) == b"mine"

        assert await made.ask("DELETE", "tiny") == 200
        made.advance(12)  # it has lingered
        assert await made.publish("bystander", 1, b"mine again") == 200
