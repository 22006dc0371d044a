"""`GET /v1/tail`: entries as lines of JSON, first those that were missed, then as they come."""

from __future__ import annotations

from collections.abc import Callable

from penstock.api.auth import Caller
from penstock.api.context import Context, flag, integer, only, readable
from penstock.api.describing import INTEGER, an_object, number, operation, patterns, text
from penstock.api.describing import flag as flag_parameter
from penstock.api.live import Lines, LiveWire
from penstock.api.v1.entry_json import EntryEncoder, EntryJson
from penstock.core.ledger import Ledger, Recipient
from penstock.core.names import is_exact
from penstock.errors import InputInvalid
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Response
from penstock.limits import RECIPIENT_BYTES
from penstock.wire.http_chunks import chunk
from penstock.wire.websocket_frames import text_frame

_HEADERS = (("Content-Type", "application/x-ndjson"), ("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
_GAP = an_object(gap=an_object(**{"from": INTEGER, "to": INTEGER}))


class TailLines(Lines):
    """Entries of tails in one framing."""

    def __init__(self, ledger: Ledger, shown: EntryEncoder, frame: Callable[[bytes], bytes]) -> None:
        super().__init__(ledger, lambda entries: frame(shown.lines(entries)))
        self.frame = frame


class TailWire(LiveWire):
    """One open tail: a chunked answer, one that ends with its connection (HTTP/1.0), or a WebSocket.

    A chunk or a message holds one line per entry, as many as there are at the time.
    """

    __slots__ = ("opened_ms",)

    framing: TailLines

    def __init__(self, who: Recipient, ledger: Ledger, framing: TailLines, now_ms: int) -> None:
        super().__init__(who, ledger, framing)
        self.opened_ms = now_ms

    def gap(self, after: int, upto: int) -> None:
        self.tap.put(self.framing.frame(b'{"gap":{"from":%d,"to":%d}}\n' % (after + 1, upto)))

    def received(self, message: str | bytes) -> None:
        """Nothing is expected of a peer that listens; what it says is passed over."""

    def ponged(self) -> None:
        """Nothing was asked."""


class TailApi:
    """Opens tails."""

    kind: type[TailWire] = TailWire

    def __init__(self, context: Context) -> None:
        self._context = context
        shown = EntryEncoder(context.log.server)
        self._chunks, self._plain, self._frames = (
            TailLines(context.ledger, shown, frame) for frame in (chunk, bytes, text_frame)
        )

    @operation(
        "Follow streams: a line of JSON per entry, as they come.",
        query=(
            patterns(required=True),
            flag_parameter("meta", "true also shows meta entries and tombstones."),
            number("after", "First everything after this id; without it only what comes."),
            text("consumer", "Name under which the ledger records it.", least=1, most=RECIPIENT_BYTES),
        ),
        answers={200: {"oneOf": [EntryJson, _GAP]}},
        media="application/x-ndjson",
    )
    def __call__(self, request: Request) -> Response:
        """Answer with a response that stays open, or become a WebSocket."""
        caller = self._context.caller(request)
        only(request, "streams", "after", "meta", "consumer")
        patterns, allow = readable(request, caller)
        meta = flag(request, "meta")
        after = integer(request, "after", 0) if "after" in request.params else None
        wire = self._open(request, Recipient("v1", _name(request, caller)))
        if after and "consumer" in request.params:  # who reads under a name of its own says how far it has come
            for one in patterns:
                upto = min(after, self._context.hub.position)
                self._context.ledger.confirm(wire.who, upto, one if is_exact(one) else "")
        check = None if allow is None else lambda entry: allow(entry.stream)
        wire.feed = wire.tap.reader = self._context.hub.start_wire(wire, patterns, after=after, meta=meta, allow=check)
        return LIVE

    def _open(self, request: Request, who: Recipient) -> TailWire:
        ledger, now_ms = self._context.ledger, self._context.clock.now_ms()
        if request.header(b"upgrade") is not None:
            wire = self.kind(who, ledger, self._frames, now_ms)
            wire.tap = request.accept_websocket(wire, watch=ledger.enabled)
        else:
            wire = self.kind(who, ledger, self._plain if request.http10 else self._chunks, now_ms)
            wire.tap = request.open(200, _HEADERS, owner=wire, watch=ledger.enabled)
        return wire


def _name(request: Request, caller: Caller) -> str:
    """The reader's name in the ledger. A given name stands under the token's subject, except for the admin."""
    name = request.params.get("consumer")
    if name is None:
        return caller.subject
    if not name.isprintable() or not 0 < len(name.encode()) <= RECIPIENT_BYTES:
        raise InputInvalid("parameter consumer", f"is not 1 to {RECIPIENT_BYTES} printable bytes")
    return name if caller.admin else f"{caller.subject}/{name}"
