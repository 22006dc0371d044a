"""The door: its rows of the table, and what each of them does."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Self

import msgspec

from penstock.api.context import Context, only
from penstock.api.describing import INTEGER, STRING, STRING_OR_NULL, a_list, an_object, operation
from penstock.api.recipients import RecipientKind
from penstock.core.metering import Sample
from penstock.core.registry import made_once
from penstock.doors.trickle import answers, requests
from penstock.doors.trickle.channel import LiveChannel
from penstock.doors.trickle.channels import ChangeFeed, Channels
from penstock.doors.trickle.cluster import ChannelState, KnownChannel, check_membership
from penstock.doors.trickle.forwarding import Forwarder
from penstock.doors.trickle.posting import Posting
from penstock.doors.trickle.reading import SegmentReading
from penstock.doors.trickle.recipients import ChannelRecipients
from penstock.doors.trickle.requests import DOOR, CapabilityRequest, ChannelRequest, ChannelRights, SegmentRequest
from penstock.doors.trickle.streams import Streams
from penstock.errors import Conflict, PenstockError, TooLarge
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Held, Response
from penstock.http.routing import STREAM, WHOLE, Route
from penstock.settings import Settings
from penstock.wire import trickle
from penstock.wire.trickle import DELETE, PUBLISH, SUBSCRIBE, SeqInvalid, parse_seq
from penstock.wire.trickle_channel import Segment

KEY: Final = "trickle/key"
"""The record with the key of the rights in names: made once, the same for all nodes."""
_CHANNELS: Final = an_object(
    channels=a_list(
        an_object(name=STRING, epoch=INTEGER, head=INTEGER, bytes=INTEGER, readers=INTEGER, stream=STRING_OR_NULL)
    )
)
Answer = Response | Held


class Trickle:
    """Live segments over HTTP."""

    kind: type[Channels] = Channels
    forwarding: type[Forwarder] = Forwarder
    posting: type[Posting] = Posting
    reading: type[SegmentReading] = SegmentReading

    _rights: ChannelRights

    def __init__(self, context: Context, settings: Settings, time: Callable[[], float] | None = None) -> None:
        self._context, self._settings = context, settings.trickle
        self.channels = self.kind(context, settings.trickle, time)
        self._streams = Streams(context, self.channels)
        self._forwarder = self.forwarding(context.members)

    async def __aenter__(self) -> Self:
        key = await made_once(self._context.registry, KEY, lambda: secrets.token_bytes(32))
        self._rights = ChannelRights(self._context, self._settings, key)
        if self._settings.changefeed:
            ChangeFeed(self.channels)
        await self.channels.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.channels.__aexit__(*error)

    def samples(self) -> Iterable[Sample]:
        channels = self.channels
        yield "gauge", "trickle_channels", "Trickle channels that are open.", len(channels), {}
        yield "gauge", "trickle_bytes", "Memory that segments take, in bytes.", channels.held, {}
        yield "gauge", "trickle_waiting", "Readers that wait for a first byte.", channels.readers.taken, {}
        yield "counter", "trickle_relayed_bytes", "Bytes of segments that came.", channels.relayed, {}
        yield "counter", "trickle_slow_readers", "Readers cut as too slow for their window.", channels.slow, {}
        yield "counter", "trickle_timeouts", "Publishers that connected and sent nothing.", channels.timeouts, {}

    def routes(self) -> list[Route]:
        """Channels and segments under the base path; streams under `~`; and what Penstock's API has of them."""
        small, admit = WHOLE(64 * 1024), self._context.admit
        return [
            *self.internal_routes(),
            Route("POST", "/v1/capabilities", self.capability, body=small, admit=admit, door=DOOR),
            Route("GET", "/v1/channels", self.list, door=DOOR),
        ]

    def served(self) -> tuple[str, int]:
        """Readers that wait for a first byte, and publishers that are connected to a segment."""
        return DOOR, self.channels.readers.taken + self.channels.posting

    def recipient_kinds(self) -> list[RecipientKind]:
        return [ChannelRecipients(self._context, self.channels)]

    def internal_routes(self) -> list[Route]:
        """What other nodes send on: the same calls, under the same rights."""
        base, body = self._settings.base, STREAM(self._settings.segment_bytes)
        patient: dict[str, Any] = {"timeout": None, "body_timeout": None, "door": DOOR}
        return [
            Route("POST", base + "*", self.create, door=DOOR),
            Route("DELETE", base + "*", self.close, door=DOOR),
            Route("POST", base + "*/*", self.publish, body=body, **patient),
            Route("GET", base + "*/*", self.subscribe, **patient),
            Route("DELETE", base + "*/*", self.end_segment, door=DOOR),
            Route("GET", base + "~/**", self.read_stream, **patient),
        ]

    def reachable(self, address: str) -> None:
        """Other nodes reach our internal listener there."""
        self.channels.owners.address = address

    # ── channels ──────────────────────────────────────────────────────────────────────────────

    async def create(self, request: Request) -> Answer:
        """Make a channel, if there is none."""
        asked = self._rights.check(request, request.captures[0], PUBLISH)
        wanted = requests.named_channel(request, asked, self._settings)
        if not asked.trusted and not self._settings.autocreate:
            # In open mode anybody can ask: then, as in the original, only the operator's word makes channels.
            found = await self.channels.find(asked.name)
        else:
            found = await self.channels.create(wanted)
        if isinstance(found, LiveChannel):
            return answers.empty((trickle.EPOCH, str(found.epoch)))
        return await self._not_here(request, found)

    async def close(self, request: Request) -> Answer:
        asked = self._rights.check(request, request.captures[0], DELETE)
        found = await self.channels.find(asked.name)
        if isinstance(found, LiveChannel):
            await asyncio.shield(self.channels.close(found))
            return answers.empty()
        if found.state is ChannelState.ELSEWHERE:
            return await self._not_here(request, found)
        return answers.text(400, trickle.NO_CHANNEL)

    async def end_segment(self, request: Request) -> Answer:
        """Close one segment: its publisher drops it."""
        asked = self._rights.check(request, request.captures[0], DELETE)
        found = await self.channels.find(asked.name)
        if not isinstance(found, LiveChannel):
            return await self._not_here(request, found)
        try:
            if (seq := parse_seq(request.captures[1])) < 0:
                raise SeqInvalid(request.captures[1])
        except SeqInvalid as error:
            return answers.error(error)
        return answers.empty() if found.delete(seq, self.channels.time()) else answers.text(400, trickle.NO_SEGMENT)

    async def _not_here(self, request: Request, found: KnownChannel) -> Response | Held:
        """Let the node that has the channel answer, or say that there is none."""
        if found.state is ChannelState.ELSEWHERE and found.record is not None:
            return await self._forwarder.forward(request, found.record)
        return answers.no_stream()

    # ── publishing ────────────────────────────────────────────────────────────────────────────

    def publish(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        try:
            check_membership(self._context.members)
            asked = self._rights.check(request, request.captures[0], PUBLISH)
            number = parse_seq(request.captures[1])
            channel = self.channels.get(asked.name)
            if channel is None:
                return self._publish_new(request, asked, number)
            return self._post(request, channel, number)
        except PenstockError as error:
            return _refuse(request, answers.error(error))

    async def _publish_new(self, request: Request, asked: ChannelRequest, number: int) -> Answer:
        """The channel is not open here: open it again, or make it, if that is allowed."""
        try:
            found = await self.channels.find(asked.name)
            if isinstance(found, KnownChannel) and found.state is ChannelState.ELSEWHERE and found.record is not None:
                answer = await self._forwarder.forward(request, found.record, body=True)
                return answer if isinstance(answer, Held) else _refuse(request, answer)
            if isinstance(found, KnownChannel) and self._settings.autocreate:
                found = await self._make_passing(request, asked, number)
            if isinstance(found, KnownChannel):
                return _refuse(request, answers.no_stream())
            answer = self._post(request, found, number)
            self.channels.drop_unused(found)
            return answer
        except PenstockError as error:
            return _refuse(request, answers.error(error))

    async def _make_passing(self, request: Request, asked: ChannelRequest, number: int) -> LiveChannel | KnownChannel:
        """Make the channel of a segment, unless that would be refused."""
        record = requests.implied_channel(request, asked, self._settings)
        new = self.channels.kind(record, 0.0)
        self._check_room(request, new)
        self.posting(self.channels, new, request).check(number)
        return await self.channels.create(record, passing=True)

    def _post(self, request: Request, channel: LiveChannel, number: int) -> Response | Held:
        posting = self.posting(self.channels, channel, request)
        try:
            self._check_room(request, channel)
            posting.begin(number)
        except (Conflict, TooLarge) as error:
            return _refuse(request, answers.refused(error, channel, number))
        return posting

    def _check_room(self, request: Request, channel: LiveChannel) -> None:
        self.channels.check_memory(channel)
        limit, length = self.channels.segment_limit(channel), int(request.header(b"content-length") or 0)
        if length > limit:
            raise TooLarge("segment bytes", length, limit)

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def subscribe(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        """Give a segment out, as far as it is there, and the rest as it comes."""
        asked, text = self._rights.check(request, request.captures[0], SUBSCRIBE), request.captures[1]
        if asked.stream:
            return self._read_stream(request, asked, asked.stream, text)
        channel = self.channels.get(asked.name)
        if channel is None:
            return self._subscribe_closed(request, asked, text)
        try:
            return self._get(request, channel, asked, text)
        except SeqInvalid as error:
            return answers.error(error)

    def _get(
        self, request: Request, channel: LiveChannel, asked: ChannelRequest, text: str
    ) -> Answer | Coroutine[Any, Any, Answer]:
        if text == "next":
            return answers.head(channel.head)
        wanted = self._wanted(request, asked, text)
        seq = channel.position(wanted.number)
        segment = channel.find(seq, self.channels.time())
        if segment is not None:
            return self._read(request, channel, segment, wanted)
        if channel.recorder is not None and seq < channel.recorder.next:
            return self._streams.serve(request, channel.recorder.stream, seq, wanted)
        oldest = channel.oldest if channel.recorder is None else 0
        return answers.missing(self._settings.missing_status, wanted.number, channel.head, oldest)

    def _wanted(self, request: Request, asked: ChannelRequest, text: str) -> SegmentRequest:
        return requests.segment_request(request, asked, text, self._settings.wait)

    def _read(self, request: Request, channel: LiveChannel, segment: Segment, wanted: SegmentRequest) -> Answer:
        if segment.cut:
            return answers.cut_off(self._settings.missing_status, wanted.number, segment.seq)
        reading = self.reading(self.channels, channel, request, segment, wanted.who, wanted.number)
        reading.begin(wanted.wait, wanted.payer)
        return reading

    async def _subscribe_closed(self, request: Request, asked: ChannelRequest, text: str) -> Answer:
        """The channel is not open here: it may be open elsewhere, in the log, or a moment ago."""
        found = await self.channels.find(asked.name)
        try:
            if isinstance(found, LiveChannel):
                answer = self._get(request, found, asked, text)
                return await answer if isinstance(answer, Coroutine) else answer
            if found.state is ChannelState.CLOSED and found.record is not None:
                stream = trickle.stream_of(found.record.name, found.record.epoch)
                return await self._read_stream(request, asked, stream, text, closed=True)
            left = self.channels.left(asked.name)
            if left is None or found.state is ChannelState.ELSEWHERE:
                return await self._not_here(request, found)
            return self._read_left(request, left, asked, text)
        except SeqInvalid as error:
            return answers.error(error)

    def _read_left(self, request: Request, channel: LiveChannel, asked: ChannelRequest, text: str) -> Answer:
        """A channel that was closed a moment ago: a reader that was behind gets its tail, then hears of the end."""
        if text == "next":
            return answers.head(channel.head, closed=True)
        wanted = self._wanted(request, asked, text)._replace(wait=0)
        seq = channel.position(wanted.number)
        segment = channel.find(seq, self.channels.time())
        if segment is not None and not channel.is_over(segment):
            return self._read(request, channel, segment, wanted)
        if seq < channel.head:
            return answers.missing(self._settings.missing_status, wanted.number, channel.head, channel.oldest)
        return answers.nothing_more(seq, channel.head)

    def read_stream(self, request: Request) -> Coroutine[Any, Any, Answer]:
        """A stream of the log, named with its slashes: `BASE~/orders/eu/17`."""
        name, _, text = request.captures[0].rpartition("/")
        asked = self._rights.check(request, f"/{name}", SUBSCRIBE)
        return self._read_stream(request, asked, asked.stream, text)

    async def _read_stream(
        self, request: Request, asked: ChannelRequest, stream: str, text: str, *, closed: bool = False
    ) -> Answer:
        """A segment from the log; *closed* says that it is all there of a channel that was recorded."""
        if text == "next":
            head = await self._streams.next_index(stream)
            return answers.no_stream() if head is None and not closed else answers.head(head or 0, closed=closed)
        try:
            wanted = self._wanted(request, asked, text)
        except SeqInvalid as error:
            return answers.error(error)
        return await self._streams.serve(request, stream, wanted.number, wanted, closed=closed)

    # ── Penstock's API ────────────────────────────────────────────────────────────────────────

    @operation(
        "Put rights into the name of a Trickle channel, for clients without headers.",
        body=CapabilityRequest,
        answers={201: an_object(channel=STRING)},
    )
    def capability(self, request: Request) -> Response:
        """Put rights into a channel's name, for a client that cannot send a token: no more than the caller has."""
        caller = self._context.caller(request)
        wanted = requests.capability_request(request)
        for right in wanted.letters:
            requests.check_caller(caller, wanted.channel, right)
        sealed = self._rights.seal(caller, wanted.channel, wanted.letters, wanted.ttl)
        return Response(201, msgspec.json.encode({"channel": sealed}))

    @operation("List the Trickle channels that are open on this node.", answers={200: _CHANNELS})
    def list(self, request: Request) -> Response:
        """The channels that are open on this node."""
        self._context.caller(request).check_admin("channels")
        only(request)
        shown = [
            {
                "name": channel.name, "epoch": channel.epoch, "head": channel.head, "bytes": channel.size,
                "readers": sum(len(segment.readers) for segment in channel),
                "stream": channel.recorder.stream if channel.recorder else None,
            }
            for channel in self.channels.all
        ]  # fmt: skip
        return Response(200, msgspec.json.encode({"channels": shown}))


def _refuse(request: Request, response: Response) -> Response:
    """Refuse a publish: what it sends is not read."""
    request.answer(response, close=True)
    return LIVE
