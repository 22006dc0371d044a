"""The bus on core NATS: one subject per node and topic, one per topic for all.

A message to a node is a request: NATS itself says when nobody listens there, and the node's own answer says
that it has it. A node that is stopped in the middle counts as not listening after a moment.
"""

from __future__ import annotations

from penstock.core.bus import Receivers
from penstock.engines.jetstream.connection import header
from penstock.engines.jetstream.frames import NatsMessage
from penstock.engines.jetstream.newest_messages import Home
from penstock.engines.jetstream.subject_tokens import text_of, token
from penstock.errors import EngineGone

ANSWER_SECONDS = 1.0
_FROM = b"Penstock-Node"


class NatsBus(Receivers):
    """`core.bus.Bus` among the nodes of one cluster."""

    alone = False

    def __init__(self, home: Home, node: str) -> None:
        super().__init__()
        self.node, self._connection = node, home.connection
        self._root = f"{home.prefix}.bus"

    async def open(self) -> None:
        """Listen for this node, and for what goes to all."""
        await self._connection.listen(f"{self._root}.to.{token(self.node)}.*", self._received)
        await self._connection.listen(f"{self._root}.all.*", self._received)

    async def send(self, node: str, topic: str, message: bytes) -> bool:
        subject = f"{self._root}.to.{token(node)}.{token(topic)}"
        try:
            _, answer = await self._connection.request(subject, message, within=ANSWER_SECONDS)
        except EngineGone:
            return False
        return answer == b"1"

    async def hint(self, topic: str, message: bytes) -> None:
        self.give(topic, message)  # this node need not wait for its own words to come back
        lines = b"%b: %b\r\n" % (_FROM, token(self.node).encode())
        self._connection.send(NatsMessage(f"{self._root}.all.{token(topic)}", message, lines))

    def _received(self, subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
        if header(headers, _FROM) == token(self.node).encode():
            return
        try:
            topic, answer_to = text_of(subject.rpartition(b".")[2].decode()), reply.decode()
        except UnicodeError as error:  # no node of ours has sent that
            self.drop(repr(subject), error)
            return
        given = self.give(topic, data)
        if answer_to:
            self._connection.send(NatsMessage(answer_to, b"1" if given else b"0"))
