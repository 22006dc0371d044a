"""The contract of the bus: a message to a named node, a hint to all.

Both may be lost, and nothing depends on one for correctness: a hint only makes something happen
sooner that would happen anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Receiver = Callable[[str, bytes], None]  # topic, message


class Bus(Protocol):
    """Carries small messages between the nodes of one cluster."""

    node: str  # this node's name, unique while it runs
    alone: bool  # there are no other nodes: nobody need be told anything

    def listen(self, topic: str, receiver: Receiver) -> None:
        """Call *receiver* on the event loop for each message to this node or to all on *topic*."""
        ...

    async def send(self, node: str, topic: str, message: bytes) -> bool:
        """Give *message* to one node; False if that node is not known to listen."""
        ...

    async def hint(self, topic: str, message: bytes) -> None:
        """Give *message* to every node, this one included."""
        ...


class LocalBus:
    """The bus of a server that is alone: the embedded engine's."""

    alone = True

    def __init__(self, node: str) -> None:
        self.node = node
        self._receivers: dict[str, list[Receiver]] = {}

    def listen(self, topic: str, receiver: Receiver) -> None:
        self._receivers.setdefault(topic, []).append(receiver)

    async def send(self, node: str, topic: str, message: bytes) -> bool:
        receivers = self._receivers.get(topic, [])
        if node != self.node or not receivers:
            return False
        for receiver in receivers:
            receiver(topic, message)
        return True

    async def hint(self, topic: str, message: bytes) -> None:
        await self.send(self.node, topic, message)
