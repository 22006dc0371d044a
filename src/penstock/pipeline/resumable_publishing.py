"""Publishes a long list of events: throttled, and resumable at any point, with no event published twice.

Every event has a number, and the numbers rise. A request carries the number of its last event as the sequence of its
producer. The server stores that sequence together with the events, so a request that comes again adds nothing.

A request that is repeated must hold the same events as before, even if some of them were erased meanwhile. So the
job's record says where the next requests end (`cuts`) before they are sent, and a later run cuts at the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from penstock.errors import Conflict, InputInvalid
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.commit import Faults
from penstock.pipeline.publishing import NewEvent, PublishRequest, publish, requests

AFTER_REQUEST: Final = "after a request"
TURN_SECONDS: Final = 10.0
"""How long a job works before others get a turn: the driver archives in between, and the lake stays fresh."""

CUTS: Final = 200
"""Requests whose ends are written down at once. After a crash at most these are sent again, and add nothing."""

CUTS_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the events of those requests: all of them are in memory."""


class OtherOptions(Conflict):
    """A job of this name was begun with other options."""

    code = "job_begun"


class Throttle:
    """Lets so many events a second through, evenly."""

    def __init__(
        self, rate: float, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._rate, self._now, self._sleep = rate, now, sleep
        self._free_at = now()

    def take(self, events: int) -> None:
        """Wait until *events* may go."""
        now = self._now()
        if self._free_at > now:
            self._sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + events / self._rate


@dataclass(slots=True)
class JobRecord:
    """What a job does, decided when it was begun, and how far it is."""

    client: PipelineClient
    key: str
    version: int
    value: dict[str, Any]

    @property
    def done(self) -> int:
        """The number of the last event that is in the log for certain."""
        return int(self.value.get("done", 0))

    @property
    def sent(self) -> int:
        """How many events it has sent. After a crash, those that were sent again count twice."""
        return int(self.value.get("sent", 0))

    def note(self, done: int, **more: object) -> None:
        """Write down how far it is. `RecordChanged` if another run of the same job goes on with it."""
        self.value |= {"done": max(done, self.done), **more}
        try:
            self.version = self.client.put(self.key, self.value, expect=self.version).version
        except RecordChanged:
            raise RecordChanged(f"another run of {self.key} is under way, and goes on with it") from None


def begin_or_resume(
    client: PipelineClient, kind: str, name: str, settle: Callable[[], Mapping[str, Any]], asked: Mapping[str, str]
) -> JobRecord:
    """The record of the job *name*. A job that was not begun before is begun now: *settle* decides what it does.

    *asked* are the options that it depends on; `OtherOptions` if the job was begun with others.
    """
    check_job_name(name)
    key = f"pipeline/{kind}/{name}"
    kept = client.get(key)
    if not kept.version:
        value = {**settle(), "asked": dict(asked), "done": 0}
        try:
            kept = client.put(key, value, expect=0)
        except RecordChanged:  # another run of it was first
            kept = client.get(key)
    if kept.value["asked"] != dict(asked):
        error = OtherOptions(f"{kind} {name!r} was begun with {kept.value['asked']}")
        error.remedy = "Give those options to go on with it, or another --name to begin anew."
        raise error
    return JobRecord(client, key, kept.version, dict(kept.value))


def check_job_name(name: str) -> None:
    """Refuse a name that cannot be part of a record's key and of a producer's name."""
    if not name or len(name) > 64 or not all(letter.isalnum() or letter in "-._" for letter in name):
        raise InputInvalid("--name", f"{name[:40]!r} is not 1 to 64 letters, digits, '-', '.' and '_'")


def positive(options: Mapping[str, str], name: str, default: float) -> float:
    """A number above 0 from the options of a job."""
    text = options.get(name, str(default))
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not number > 0:
        raise InputInvalid(f"--{name}", f"{text[:40]!r} is not a number above 0")
    return number


def publish_numbered(
    job: JobRecord,
    producer: str,
    numbered: Iterable[tuple[int, NewEvent]],
    throttle: Throttle,
    faults: Faults,
    seconds: float = float("inf"),
) -> bool:
    """Publish what comes after the job's `done`, in order. False if *seconds* were over before the end.

    Afterwards *job* says how far it is, and how many events it has sent in all.
    """
    began = time.monotonic()
    for planned in _plans(numbered, [int(cut) for cut in job.value.get("cuts", ()) if cut > job.done]):
        job.note(job.done, cuts=[last for _, last in planned])
        for request, last in planned:
            throttle.take(len(request.events))
            publish(job.client, request, producer, last)
            faults.at(AFTER_REQUEST)
            job.value |= {"done": last, "sent": job.sent + len(request.events)}
            if time.monotonic() - began >= seconds:
                job.note(last)
                return False
    return True


def _plans(numbered: Iterable[tuple[int, NewEvent]], cuts: list[int]) -> Iterator[list[tuple[PublishRequest, int]]]:
    """Requests, each with the number of its last event, in groups: first those whose *cuts* are written down."""
    rest = iter(numbered)
    planned: list[tuple[PublishRequest, int]] = []
    held: tuple[int, NewEvent] | None = next(rest, None)
    for cut in cuts:
        request = PublishRequest()
        while held is not None and held[0] <= cut:
            request.add(held[1])
            held = next(rest, None)
        if request.events:  # all of it may have been erased
            planned.append((request, cut))
    if planned:
        yield planned
    planned, size = [], 0
    for request, last in _requests(chain(() if held is None else (held,), rest)):
        planned.append((request, last))
        size += request.size
        if len(planned) >= CUTS or size >= CUTS_BYTES:
            yield planned
            planned, size = [], 0
    if planned:
        yield planned


def _requests(numbered: Iterable[tuple[int, NewEvent]]) -> Iterator[tuple[PublishRequest, int]]:
    """Requests, each with the number of its last event."""
    numbers: list[int] = []

    def events() -> Iterator[NewEvent]:
        for number, event in numbered:
            numbers.append(number)
            yield event

    for request in requests(events()):
        count = len(request.events)
        yield request, numbers[count - 1]
        del numbers[:count]
