"""Publishes rows in numbered requests, so that a repeated one adds nothing, for ever.

The server keeps the last number of each producer in the very transaction that stores the events. What makes that
exact is that the same rows are always cut into the same requests: `requests` is a pure function of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.client.http import ApiError
from penstock.errors import SequencePassed
from penstock.limits import BATCH_BYTES, BATCH_ENTRIES
from penstock.pipeline.client import PipelineClient


@dataclass(frozen=True, slots=True)
class NewEvent:
    """One event to be published."""

    stream: str
    body: bytes
    type: str = ""
    attributes: str = ""  # a JSON object of strings

    @property
    def kin(self) -> tuple[str, str, str]:
        """Events that go in one request must be equal in this."""
        return self.stream, self.type, self.attributes

    @property
    def is_line(self) -> bool:
        """Whether it can be one line of a request with several, and is stored unchanged."""
        return bool(self.body) and b"\n" not in self.body and not self.body.endswith(b"\r")


@dataclass(slots=True)
class PublishRequest:
    """Events that travel together: lines of one stream, or a single event of any form."""

    events: list[NewEvent] = field(default_factory=list)
    size: int = 0

    def takes(self, event: NewEvent) -> bool:
        """Whether *event* may still be added."""
        if not self.events:
            return True
        last = self.events[-1]
        fits = len(self.events) < BATCH_ENTRIES and self.size + len(event.body) <= BATCH_BYTES
        return fits and last.is_line and event.is_line and last.kin == event.kin

    def add(self, event: NewEvent) -> None:
        self.events.append(event)
        self.size += len(event.body)


def requests(events: Iterable[NewEvent]) -> Iterator[PublishRequest]:
    """Cut *events*, in their order, into requests. The same events give the same requests."""
    current = PublishRequest()
    for event in events:
        if not current.takes(event):
            yield current
            current = PublishRequest()
        current.add(event)
    if current.events:
        yield current


PER_BATCH: Final = 2**20
"""Sequences that one batch of a producer has. Requests beyond them go under a further name of the producer."""


def sequence_of(producer: str, batch: int, number: int) -> tuple[str, int]:
    """The producer's name and sequence of request *number* within *batch*: under each name sequences only rise."""
    further, place = divmod(number, PER_BATCH)
    return f"{producer}~{further}" if further else producer, batch * PER_BATCH + place


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A request as it travels: all that is needed to send it, and nothing left to decide."""

    stream: str
    type: str
    attributes: str
    lines: bool  # whether the body is one event a line, or a single event
    body: bytes


def encode(request: PublishRequest) -> EncodedRequest:
    """The body of *request*, made once; it may then be kept, and sent as often as it must."""
    first = request.events[0]
    body = b"\n".join([event.body for event in request.events]) if first.is_line else first.body
    return EncodedRequest(first.stream, first.type, first.attributes, first.is_line, body)


def publish(client: PipelineClient, request: PublishRequest, producer: str, sequence: int) -> None:
    """Publish one request under *producer*/*sequence*. Repeating it, whenever, adds nothing."""
    send(client, encode(request), producer, sequence)


def send(client: PipelineClient, request: EncodedRequest, producer: str, sequence: int) -> None:
    """Publish what was encoded, as `publish` does."""
    headers = {
        "Producer": f"{producer}/{sequence}",
        "Event-Type": request.type,
        "Event-Attributes": request.attributes,
        "Content-Type": "application/x-ndjson" if request.lines else "application/octet-stream",
    }
    try:
        client.call("POST", "/v1/publish", {"stream": request.stream}, request.body, headers)
    except ApiError as error:
        # After a day the server no longer knows which of our streams a number went to, only that it came.
        if error.code != SequencePassed.code:
            raise
