"""Several nodes in one loop: they share a memory engine, and a network that can lose messages."""

from __future__ import annotations

from penstock.core.bus import Receivers


class Network:
    """Carries messages between buses at once; what goes to a node in `cut` is lost."""

    def __init__(self) -> None:
        self.buses: dict[str, NetworkBus] = {}
        self.cut: set[str] = set()
        self.late: list[tuple[str, str, bytes]] | None = None  # when it is a list, messages wait there

    def bus(self, node: str) -> NetworkBus:
        self.buses[node] = NetworkBus(self, node)
        return self.buses[node]

    def give(self, node: str, topic: str, message: bytes) -> bool:
        if node in self.cut or node not in self.buses:
            return False
        if self.late is not None:
            self.late.append((node, topic, message))
            return True
        return self.buses[node].give(topic, message)

    def catch_up(self) -> None:
        waiting, self.late = self.late or [], None
        for node, topic, message in waiting:
            self.buses[node].give(topic, message)


class NetworkBus(Receivers):
    """`core.bus.Bus` of one node."""

    alone = False

    def __init__(self, network: Network, node: str) -> None:
        super().__init__()
        self.node, self._network = node, network

    async def send(self, node: str, topic: str, message: bytes) -> bool:
        return self._network.give(node, topic, message)

    async def hint(self, topic: str, message: bytes) -> None:
        for node in list(self._network.buses):
            self._network.give(node, topic, message)
