"""The contract of the bus: a message to a named node, a hint to all.

Both may be lost, and nothing depends on one for correctness: a hint only makes something happen
sooner that would happen anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

log = logging.getLogger("penstock.bus")

Receiver = Callable[[str, bytes], None]  # topic, message
UNREADABLE: Final = (ValueError, msgspec.MsgspecError)  # what reading the bytes of another node may raise


class Bus(Protocol):
    """Carries small messages between the nodes of one cluster."""

    node: str  # this node's name, unique while it runs
    alone: bool  # there are no other nodes: nobody need be told anything

    @property
    def dropped(self) -> int:
        """Messages that a receiver of this node could not take."""
        ...

    def listen(self, topic: str, receiver: Receiver) -> None:
        """Call *receiver* on the event loop for each message to this node or to all on *topic*.

        If a receiver raises, its message is lost, counted and logged. Other receivers and the sender do not notice.
        """
        ...

    async def send(self, node: str, topic: str, message: bytes) -> bool:
        """Give *message* to one node; False if that node is not known to listen. `TooLarge` if it cannot be sent."""
        ...

    async def hint(self, topic: str, message: bytes) -> None:
        """Give *message* to every node, this one included."""
        ...


class Receivers:
    """Who listens on a node, and to what: the receiving half of a bus."""

    def __init__(self) -> None:
        self.dropped = 0
        self._receivers: dict[str, list[Receiver]] = {}

    def listen(self, topic: str, receiver: Receiver) -> None:
        self._receivers.setdefault(topic, []).append(receiver)

    def give(self, topic: str, message: bytes) -> bool:
        """Give a message to all who listen to *topic*; False if nobody does. Never raises."""
        receivers = self._receivers.get(topic, [])
        for receiver in receivers:
            try:
                receiver(topic, message)
            except Exception as error:  # noqa: BLE001 - it would end the connection to NATS, with all that waits there for answers
                self.drop(topic, error)
        return bool(receivers)

    def drop(self, topic: str, error: Exception) -> None:
        """Count and log a message that could not be taken."""
        self.dropped += 1
        ours = not isinstance(error, UNREADABLE)  # a mistake of ours, then
        log.warning("bus.dropped", extra={"topic": topic, "error": str(error)}, exc_info=ours)


class LocalBus(Receivers):
    """The bus of a server that is alone: the embedded engine's."""

    alone = True

    def __init__(self, node: str) -> None:
        super().__init__()
        self.node = node

    async def send(self, node: str, topic: str, message: bytes) -> bool:
        return node == self.node and self.give(topic, message)

    async def hint(self, topic: str, message: bytes) -> None:
        self.give(topic, message)
