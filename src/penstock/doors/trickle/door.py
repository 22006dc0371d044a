"""The door: its rows of the table, and what each of them does."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Annotated, Any, Final, Self

import msgspec

from penstock.api.context import Context, decoded, flag, integer, only
from penstock.api.describing import INTEGER, STRING, STRING_OR_NULL, a_list, an_object, operation, shown_as
from penstock.core.ledger import Recipient, recipient
from penstock.core.metering import Sample
from penstock.core.registry import NEW, Registry
from penstock.doors.trickle import answers
from penstock.doors.trickle.asking import DELETE, PUBLISH, SUBSCRIBE, Asked, Gatekeeper, check_caller, consumer
from penstock.doors.trickle.changes import Changes
from penstock.doors.trickle.channels import Channels, LiveChannel
from penstock.doors.trickle.forwarding import forward
from penstock.doors.trickle.posting import Posting
from penstock.doors.trickle.reading import Reading
from penstock.doors.trickle.registry import KEY, ChannelRecord, Found, State
from penstock.doors.trickle.streams import Streams
from penstock.errors import Busy, Conflict, InputInvalid, PenstockError, TooLarge, VersionMismatch
from penstock.http.exchange import LIVE, Held, Request, Response
from penstock.http.problems import error_response
from penstock.http.routing import STREAM, WHOLE, Route
from penstock.limits import CONTENT_TYPE_BYTES
from penstock.settings import Settings
from penstock.wire import trickle
from penstock.wire.trickle import SeqInvalid, parse_seq
from penstock.wire.trickle_channel import Segment

DOOR: Final = "trickle"
LONGEST_TTL: Final = 10 * 366 * 24 * 3600
_CHANNELS: Final = an_object(
    channels=a_list(
        an_object(name=STRING, epoch=INTEGER, head=INTEGER, bytes=INTEGER, readers=INTEGER, stream=STRING_OR_NULL)
    )
)


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """What `POST /v1/capabilities` takes."""

    channel: Annotated[str, shown_as(pattern="^[^~]+$")]
    rights: Annotated[list[Annotated[str, shown_as(enum=list(trickle.RIGHTS))]], shown_as(minItems=1)]
    ttl: Annotated[int, shown_as(minimum=0, maximum=LONGEST_TTL)] = 0


class Trickle:
    """Live segments over HTTP."""

    kind: type[Channels] = Channels
    posting: type[Posting] = Posting
    reading: type[Reading] = Reading

    _gate: Gatekeeper

    def __init__(self, context: Context, settings: Settings, time: Callable[[], float] | None = None) -> None:
        self._context, self._settings = context, settings.trickle
        self.channels = self.kind(context, settings.trickle, time)
        self._streams = Streams(context, self.channels)

    async def __aenter__(self) -> Self:
        self._gate = Gatekeeper(self._context, self._settings, await _key(self._context.registry))
        if self._settings.changefeed:
            Changes(self.channels)
        await self.channels.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.channels.__aexit__(kind, error, trace)

    def samples(self) -> Iterable[Sample]:
        """What it adds to `/metrics`."""
        channels = self.channels
        yield "gauge", "trickle_channels", "Trickle channels that are open.", len(channels), {}
        yield "gauge", "trickle_bytes", "Memory that segments take, in bytes.", channels.held, {}
        yield "gauge", "trickle_waiting", "Readers that wait for a first byte.", channels.waiting, {}
        yield "counter", "trickle_relayed_bytes", "Bytes of segments that came.", channels.relayed, {}
        yield "counter", "trickle_slow_readers", "Readers cut as too slow for their window.", channels.slow, {}
        yield "counter", "trickle_timeouts", "Publishers that connected and sent nothing.", channels.timeouts, {}

    def routes(self) -> list[Route]:
        """Channels and segments under the base path; streams under `~`; and what the own API adds."""
        return [
            *self.internal_routes(),
            Route(
                "POST", "/v1/capabilities", self.capability, body=WHOLE(64 * 1024), admit=self._context.admit, door=DOOR
            ),
            Route("GET", "/v1/channels", self.list, door=DOOR),
        ]

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

    async def create(self, request: Request) -> Response | Held:
        """Make a channel, if there is none."""
        asked = self._gate.check(request, request.captures[0], PUBLISH)
        mime = _content_type(request.header(trickle.EXPECT_CONTENT))
        wanted = self._record(asked, request, mime)
        if not asked.trusted and not self._settings.autocreate:
            # In open mode anybody can ask: then, as in the original, only the operator's word makes channels.
            found = await self.channels.find(asked.name)
        else:
            found = await self.channels.create(wanted)
        if isinstance(found, LiveChannel):
            return answers.empty((trickle.EPOCH, str(found.epoch)))
        return await self._not_here(request, found)

    def _record(self, asked: Asked, request: Request | None, mime: str) -> ChannelRecord:
        """A channel as this request wants it: the settings, but for what it names."""
        settings = self._settings
        segments, size, seconds, record = settings.segments, settings.window_bytes, settings.keep_seconds, False
        if request is not None:
            segments = integer(request, "segments", segments, least=1, most=10_000)
            size = integer(request, "bytes", size, least=1, most=size)
            seconds = float(integer(request, "seconds", int(seconds), most=10**9))
            record = flag(request, "record")
        return ChannelRecord(asked.name, 0, "", segments, size, seconds, mime, record)

    async def close(self, request: Request) -> Response | Held:
        """Close a channel."""
        asked = self._gate.check(request, request.captures[0], DELETE)
        found = await self.channels.find(asked.name)
        if isinstance(found, LiveChannel):
            await asyncio.shield(self.channels.close(found))
            return answers.empty()
        if found.state is State.ELSEWHERE:
            return await self._not_here(request, found)
        return answers.text(400, trickle.NO_CHANNEL)

    async def end_segment(self, request: Request) -> Response | Held:
        """Close one segment: its publisher drops it."""
        asked = self._gate.check(request, request.captures[0], DELETE)
        found = await self.channels.find(asked.name)
        if not isinstance(found, LiveChannel):
            return await self._not_here(request, found)
        try:
            seq = parse_seq(request.captures[1])
        except SeqInvalid:
            return answers.no_seq()
        if seq < 0:
            return answers.no_seq()
        if not found.delete(seq, self.channels.time()):
            return answers.text(400, trickle.NO_SEGMENT)
        return answers.empty()

    async def _not_here(self, request: Request, found: Found) -> Response | Held:
        """Let the node that has the channel answer, or say that there is none."""
        if found.state is State.ELSEWHERE and found.record is not None:
            return await forward(request, found.record)
        return answers.no_stream()

    # ── publishing ────────────────────────────────────────────────────────────────────────────

    def publish(self, request: Request) -> Response | Held | Coroutine[Any, Any, Response | Held | None]:
        """Take a segment in."""
        try:
            if not self._context.members.holds:
                raise Busy("certainty that this node is still one of the cluster", 0)
            asked = self._gate.check(request, request.captures[0], PUBLISH)
            number = parse_seq(request.captures[1])
            channel = self.channels.get(asked.name)
            if channel is None:
                return self._publish_new(request, asked, number)
            return self._post(request, channel, number)
        except SeqInvalid:
            return _refuse(request, answers.no_seq())
        except PenstockError as error:
            return _refuse(request, error_response(error))

    async def _publish_new(self, request: Request, asked: Asked, number: int) -> Response | Held | None:
        """The channel is not open here: open it again, or make it, if that is allowed."""
        try:
            found = await self.channels.find(asked.name)
            if self._settings.autocreate and not isinstance(found, LiveChannel) and found.state is not State.ELSEWHERE:
                found = await self._make_passing(request, asked, number)
            if isinstance(found, LiveChannel):
                answer = self._post(request, found, number)
                self.channels.drop_unused(found)
                return answer
            if found.state is State.ELSEWHERE and found.record is not None:
                answer = await forward(request, found.record, body=True)
                return answer if isinstance(answer, Held) else _refuse(request, answer)
            _refuse(request, answers.no_stream())
        except SeqInvalid:
            _refuse(request, answers.no_seq())
        except PenstockError as error:
            _refuse(request, error_response(error))
        return None

    async def _make_passing(self, request: Request, asked: Asked, number: int) -> LiveChannel | Found:
        """Make the channel of a segment, unless that would be refused."""
        record = self._record(asked, None, _content_type(request.header(b"content-type")))
        new = self.channels.kind(record, 0.0)
        self._check_room(request, new)
        self.posting(self.channels, new, request).check(number)
        return await self.channels.create(record, passing=True)

    def _post(self, request: Request, channel: LiveChannel, number: int) -> Response | Held:
        posting = self.posting(self.channels, channel, request)
        try:
            self._check_room(request, channel)
            posting.begin(number)
        except SeqInvalid:
            return _refuse(request, answers.no_seq())
        except (Conflict, TooLarge) as error:
            return _refuse(request, answers.refused(error, channel, number))
        return posting

    def _check_room(self, request: Request, channel: LiveChannel) -> None:
        if self.channels.held >= self._settings.memory_bytes:
            raise Busy("trickle.memory_bytes", self._settings.memory_bytes)
        limit, length = self.channels.segment_limit(channel), int(request.header(b"content-length") or 0)
        if length > limit:
            raise TooLarge("segment bytes", length, limit)

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def subscribe(self, request: Request) -> Response | Held | Coroutine[Any, Any, Response | Held | None]:
        """Give a segment out, as far as it is there, and the rest as it comes."""
        asked = self._gate.check(request, request.captures[0], SUBSCRIBE)
        if asked.stream:
            return self._read_stream(request, asked, request.captures[1])
        channel = self.channels.get(asked.name)
        if channel is None:
            return self._subscribe_closed(request, asked)
        return self._get(request, channel, asked)

    def _get(
        self, request: Request, channel: LiveChannel, asked: Asked
    ) -> Response | Held | Coroutine[Any, Any, Response | Held | None]:
        if request.captures[1] == "next":
            return _next(channel.head)
        try:
            number = parse_seq(request.captures[1])
        except SeqInvalid:
            return answers.no_seq()
        who, wait = self._reader(request, asked)
        seq = channel.position(number)
        segment = channel.find(seq, self.channels.time())
        if segment is None:
            if channel.recorder is not None and seq < channel.recorder.next:
                return self._streams.serve(request, channel.recorder.stream, seq, who, wait=wait)
            oldest = channel.oldest if channel.recorder is None else 0
            return answers.missing(self._settings.missing_status, number, channel.head, oldest)
        return self._read(request, channel, segment, who, number, wait)

    def _read(
        self, request: Request, channel: LiveChannel, segment: Segment, who: Recipient, number: int, wait: float
    ) -> Response | Held:
        if segment.cut:
            return answers.cut_off(self._settings.missing_status, number, segment.seq)
        reading = self.reading(self.channels, channel, request, segment, who, number)
        reading.begin(wait)
        return reading

    async def _subscribe_closed(self, request: Request, asked: Asked) -> Response | Held | None:
        """The channel is not open here: it may be open elsewhere, in the log, or a moment ago."""
        text = request.captures[1]
        found = await self.channels.find(asked.name)
        if isinstance(found, LiveChannel):
            answer = self._get(request, found, asked)
            return await answer if isinstance(answer, Coroutine) else answer
        if found.state is State.CLOSED and found.record is not None:
            return await self._read_closed(request, asked, found.record)
        left = self.channels.left(asked.name)
        if left is None or found.state is State.ELSEWHERE:
            return await self._not_here(request, found)
        return _next(left.head, closed=True) if text == "next" else self._read_left(request, left, asked)

    async def _read_closed(self, request: Request, asked: Asked, record: ChannelRecord) -> Response | Held | None:
        """A recorded channel that is closed: all of it is in the log."""
        stream, text = trickle.stream_of(record.name, record.epoch), request.captures[1]
        if text == "next":
            return _next(await self._streams.next_index(stream) or 0, closed=True)
        try:
            number = parse_seq(text)
        except SeqInvalid:
            return answers.no_seq()
        who, wait = self._reader(request, asked)
        return await self._streams.serve(request, stream, number, who, wait=wait, closed=True)

    def _read_left(self, request: Request, channel: LiveChannel, asked: Asked) -> Response | Held:
        """A channel that was closed a moment ago: a reader that was behind gets its tail, then hears of the end."""
        try:
            number = parse_seq(request.captures[1])
        except SeqInvalid:
            return answers.no_seq()
        who, _ = self._reader(request, asked)
        seq = channel.position(number)
        segment = channel.find(seq, self.channels.time())
        if segment is not None and not channel.is_over(segment):
            return self._read(request, channel, segment, who, number, 0)
        if seq < channel.head:
            return answers.missing(self._settings.missing_status, number, channel.head, channel.oldest)
        return answers.nothing_more(seq, channel.head)

    def read_stream(self, request: Request) -> Coroutine[Any, Any, Response | Held | None]:
        """A stream of the log, named with its slashes: `BASE~/orders/eu/17`."""
        name, _, text = request.captures[0].rpartition("/")
        asked = self._gate.check(request, f"/{name}", SUBSCRIBE)
        return self._read_stream(request, asked, text)

    async def _read_stream(self, request: Request, asked: Asked, text: str) -> Response | Held | None:
        if text == "next":
            head = await self._streams.next_index(asked.stream)
            return answers.no_stream() if head is None else _next(head)
        try:
            number = parse_seq(text)
        except SeqInvalid:
            return answers.no_seq()
        who, wait = self._reader(request, asked)
        return await self._streams.serve(request, asked.stream, number, who, wait=wait)

    def _reader(self, request: Request, asked: Asked) -> tuple[Recipient, float]:
        """Who reads, and how long that one waits for a first byte."""
        most = self._settings.wait
        text = (request.header(trickle.WAIT) or b"").decode("latin-1")
        if text and not (text.isascii() and text.isdigit() and len(text) < 7 and int(text)):
            raise InputInvalid("header Lp-Trickle-Wait", f"{text[:20]!r} is not a number of seconds")
        wait = float(text) if text else most
        return recipient(DOOR, consumer(request, asked)), min(wait, most) if most else wait

    # ── the own API ───────────────────────────────────────────────────────────────────────────

    @operation(
        "Put rights into the name of a Trickle channel, for clients without headers.",
        body=Wanted,
        answers={201: an_object(channel=STRING)},
    )
    def capability(self, request: Request) -> Response:
        """Put rights into a channel's name, for a client that cannot send a token. Nobody gives more than he has."""
        caller = self._context.caller(request)
        wanted = decoded(request.body, Wanted)
        unknown = [right for right in wanted.rights if right not in trickle.RIGHTS]
        if unknown or not wanted.rights or not 0 <= wanted.ttl <= LONGEST_TTL or "~" in wanted.channel:
            raise InputInvalid("body", "needs a channel without '~', rights of publish, subscribe, delete, and a ttl")
        rights = "".join(letter for word, letter in trickle.RIGHTS.items() if word in wanted.rights)
        for right in rights:
            check_caller(caller, wanted.channel, right)
        sealed = self._gate.seal(wanted.channel, rights, wanted.ttl)
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


def _next(head: int, *, closed: bool = False) -> Response:
    headers = ((trickle.LATEST, str(head)),)
    return answers.text(200, str(head).encode(), headers + (((trickle.CLOSED, trickle.TERMINATED),) if closed else ()))


def _content_type(value: bytes | None) -> str:
    text = (value or b"").decode("latin-1").strip()
    if len(text) > CONTENT_TYPE_BYTES or not (text.isascii() and text.isprintable()):
        raise InputInvalid("content type", f"is not up to {CONTENT_TYPE_BYTES} printable characters")
    return text


async def _key(registry: Registry) -> bytes:
    """The key of the rights in names: made once, the same for all nodes."""
    while (stored := await registry.get(KEY)) is None:
        try:
            await registry.put(KEY, secrets.token_bytes(32), expect=NEW)
        except VersionMismatch:
            continue
    return stored.value
