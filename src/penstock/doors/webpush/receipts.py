"""Receipts of RFC 8030, on HTTP/1.1: the sender of a message can listen for its outcome.

The RFC pushes a receipt as an HTTP/2 response; here a GET on a receipt subscription stays open and brings one
line, or one event, for each outcome:

    {"message":"https://…/m/…","status":204,"time":"…"}     acknowledged by the user agent
    {"message":"https://…/m/…","status":410,"time":"…"}     expired, cancelled, replaced or dropped

In streams of the log outcomes are durable, are resumed with Last-Event-ID, and can be heard from every node. Streams
live for ever, and a stranger can have any number of receipt subscriptions; so all of these share 256 streams:

    /_receipts/00 … /_receipts/ff      entries of type ID, that of their receipt subscription
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import msgspec

from penstock.api.context import Context
from penstock.api.live import Lines, LiveWire
from penstock.core.ledger import Recipient
from penstock.errors import InputInvalid, NotFound
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Response
from penstock.values import Batch, Draft, Entry
from penstock.wire.eventhorizon import timestamp
from penstock.wire.http_chunks import chunk
from penstock.wire.webpush_errors import EndpointRefused, Errno
from penstock.wire.webpush_tokens import EndpointTokens, receipt_stream

DELIVERED, GONE = 204, 410
_FORMS = {True: "text/event-stream", False: "application/x-ndjson"}


class _ReceiptWire(LiveWire):
    """One open receipt subscription. Nothing goes to the ledger: an interval of ids would cover others' outcomes."""

    __slots__ = ()

    def deliver_last(self, entries: Sequence[Entry]) -> bool:
        """Write one outcome at once."""
        if self.tap.clear is None and self.tap.full:
            return False
        self.tap.put_last(self.framing.encode(entries))
        return True

    def _unflushed(self, entries: Sequence[Entry]) -> None:
        """Nothing is noted."""


class Receipts:
    """Writes outcomes down, and lets senders listen."""

    def __init__(self, context: Context, tokens: EndpointTokens, kept_seconds: float) -> None:
        self._context, self._tokens, self._kept_ms = context, tokens, int(kept_seconds * 1000)

    async def report(self, receipt: str, message: str, status: int) -> None:
        """Say what became of the message; durable when this returns. *receipt* is `ID ORIGIN`."""
        id, _, origin = receipt.partition(" ")
        now_ms = self._context.clock.now_ms()
        body = {"message": f"{origin}/m/{message}", "status": status, "time": timestamp(now_ms)}
        stream = receipt_stream(self._tokens.receipt_shard(id) or 0)
        draft = Draft(stream, msgspec.json.encode(body), id, expires_ms=now_ms + self._kept_ms)
        await self._context.log.append(Batch((draft,)))

    def choose(self, asked: str, origin: str) -> str:
        """The receipt subscription that a sender names, or a new one; `EndpointRefused` for a strange one."""
        if not asked:
            return self._tokens.receipt_id(secrets.randbelow(256), self._context.clock.now_ms())
        id = asked.strip().strip("<>").removeprefix(origin).removeprefix("/r/")
        if self._tokens.receipt_shard(id) is None:
            raise EndpointRefused(
                Errno.MESSAGE_UNKNOWN, "Push-Receipt names no receipt subscription of this service",
                "Use the URL from the Link header whole.",
            )  # fmt: skip
        return id

    def listen(self, request: Request) -> Response:
        """Answer with the outcomes that are kept, or those after Last-Event-ID, and stay open for new ones."""
        id = request.captures[0]
        shard = self._tokens.receipt_shard(id)
        if shard is None:
            raise NotFound("receipt subscription", id[:80], remedy="Use the URL from the Link header whole.")
        events = b"text/event-stream" in (request.header(b"accept") or b"")
        lines = Lines(self._context.ledger, _encoder(events, chunked=not request.http10))
        wire = _ReceiptWire(Recipient("webpush", f"receipts/{id[:16]}"), self._context.ledger, lines)
        headers = (("Content-Type", _FORMS[events]), ("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
        after = _after(request)
        wire.tap = request.open(200, headers, owner=wire)
        wire.feed = self._context.hub.start(
            wire, (receipt_stream(shard),), after=after, allow=lambda entry: entry.type == id
        )
        return LIVE


def _after(request: Request) -> int:
    text = (request.header(b"last-event-id") or b"0").decode("latin-1")
    if not text.isdecimal() or len(text) > 18:
        raise InputInvalid("Last-Event-ID", "is not an id that we gave")
    return int(text)


def _encoder(events: bool, *, chunked: bool) -> Callable[[Sequence[Entry]], bytes]:
    line = b"id: %d\ndata: %b\n\n" if events else b"%b\n"
    frame = chunk if chunked else bytes

    def encode(entries: Sequence[Entry]) -> bytes:
        lines = b"".join(line % ((one.id, one.body) if events else (one.body,)) for one in entries if one.body)
        return frame(lines or b"\n")  # an empty chunk would end the answer

    return encode
