"""A bus that loses, holds back, doubles and reorders messages, around any real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from penstock.core.bus import Bus, Receiver
from penstock.core.change_watch import MailboxChange, RecordChange


class Faults:
    """What happens to messages on their way. Who sends one is told that it has arrived, whatever happens."""

    def __init__(self, *, lose: bool = False, hold: bool = False, twice: bool = False) -> None:
        self.lose, self.hold, self.twice = lose, hold, twice
        self._held: list[Callable[[], None]] = []
        self.carried = 0  # messages that came this far

    def carry(self, deliver: Callable[[], None]) -> None:
        self.carried += 1
        if self.hold:
            self._held.append(deliver)
        elif not self.lose:
            for _ in range(1 + self.twice):
                deliver()

    def release(self) -> None:
        """Deliver what was held back: the last first, each as often as wanted."""
        held, self._held, self.hold = self._held, [], False
        for deliver in reversed(held):
            self.carry(deliver)


class FaultyBus:
    """`core.bus.Bus` around another one."""

    def __init__(self, bus: Bus, faults: Faults) -> None:
        self._bus, self._faults = bus, faults
        self.node, self.alone = bus.node, bus.alone

    @property
    def dropped(self) -> int:
        return self._bus.dropped

    def listen(self, topic: str, receiver: Receiver) -> None:
        self._bus.listen(topic, lambda topic, message: self._faults.carry(partial(receiver, topic, message)))

    async def send(self, node: str, topic: str, message: bytes) -> bool:
        return await self._bus.send(node, topic, message)

    async def hint(self, topic: str, message: bytes) -> None:
        await self._bus.hint(topic, message)


class Blind:
    """`core.change_watch.Changes` that sees nothing: the sabotage of every test that relies on a look."""

    async def look(self, prefixes: Sequence[str]) -> tuple[list[RecordChange], list[MailboxChange]]:
        return [], []
