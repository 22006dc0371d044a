"""What Event Horizon's calls ask, checked; and how a pusher is shown."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from penstock.api.describing import WEBHOOK_KEY, shown_as
from penstock.core.names import check_name
from penstock.errors import InputInvalid, TooLarge
from penstock.http.client import URL, parse_url
from penstock.limits import (
    BATCH_ENTRIES,
    LEDGER_REASON_CHARACTERS,
    LEDGER_REPORT_STATES,
    LINE_BYTES,
    PAGE_ENTRIES,
    URL_BYTES,
)
from penstock.values import Draft, Expect
from penstock.wire.eventhorizon import SUBSCRIPTIONS, Cursor, CursorInvalid, is_line, parse_cursor
from penstock.wire.webhooks import parse_secret

T = TypeVar("T")
REPORTED = ("sent", "acked", "retried", "dead")
"""States of the ledger that a pusher which runs elsewhere may report."""


class CreateStreamRequest(msgspec.Struct, rename="pascal"):
    """A stream to make."""

    name: str = ""


class AppendRequest(msgspec.Struct, rename="pascal"):
    """Lines for a stream that exists. With an expected offset only if the stream ends there."""

    stream: str = ""
    lines: list[str] = []
    expected_offset: str = ""

    def drafts(self) -> tuple[Draft, ...]:
        """The lines as drafts; refused if one of them is none."""
        if len(self.lines) > BATCH_ENTRIES:
            raise TooLarge("lines", len(self.lines), BATCH_ENTRIES)
        bodies = [line.encode() for line in self.lines]
        for number, body in enumerate(bodies):
            if len(body) > LINE_BYTES:
                raise TooLarge(f"bytes of line {number}", len(body), LINE_BYTES)
            if not is_line(body):
                raise InputInvalid(f"line {number}", "has a newline", code="line_invalid")
        return tuple(Draft(self.stream, body) for body in bodies)

    def expect(self) -> Expect | None:
        """The position at which the stream must end."""
        if not self.expected_offset:
            return None
        cursor = read_cursor("ExpectedOffset", self.expected_offset)
        if cursor.stream != self.stream:
            raise InputInvalid("ExpectedOffset", f"is a cursor of {cursor.stream!r}", code="cursor_invalid")
        return Expect(self.stream, chunk=cursor.chunk, offset=cursor.offset)


class SubscriptionRequest(msgspec.Struct, rename="pascal"):
    """A stream, and the subscription that shall hear of it, or no longer."""

    stream: str = ""
    subscription_id: str = ""

    def check(self) -> None:
        """Refuse names that are none."""
        check_name(self.stream)
        check_name(self.subscription_id)
        if not self.subscription_id.startswith(SUBSCRIPTIONS):
            raise InputInvalid("SubscriptionId", f"does not begin with {SUBSCRIPTIONS}", code="subscription_id_invalid")


class ReadRequest(msgspec.Struct, rename="pascal"):
    """Where to read, and how many lines."""

    cursor: str = ""
    max_lines_to_read: int | None = None

    def limit(self) -> int:
        """How many lines `/reader/read` may give."""
        limit = PAGE_ENTRIES if self.max_lines_to_read is None else self.max_lines_to_read
        if not 1 <= limit <= PAGE_ENTRIES:
            raise InputInvalid("MaxLinesToRead", f"is not from 1 to {PAGE_ENTRIES:,}")
        return limit


class PusherRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An app that a subscription is to be pushed into."""

    url: Annotated[str, shown_as(pattern=URL, maxLength=URL_BYTES)]
    secret: Annotated[str, shown_as(pattern=WEBHOOK_KEY)] = ""
    allow_private: bool = False

    def check(self) -> None:
        """Refuse an address or a secret that is none."""
        if len(self.url) > URL_BYTES:
            raise TooLarge("bytes of url", len(self.url), URL_BYTES)
        parse_url(self.url)
        if self.secret:
            parse_secret(self.secret)


class PusherView(msgspec.Struct):
    """A pusher as it is shown. The URL without its query: that may hold the app's token."""

    id: str
    url: str
    state: str  # running, paused, gone; of a running one: starting, pushing or failing
    subscription: str
    lag_bytes: int  # known to be there and not acknowledged yet
    behind: int  # streams that this is about
    pushes: int
    lines: int
    failures: int
    error: str
    error_time: str
    signed: bool
    owner: str
    created: str
    node: str = ""  # that runs it; of a cluster


class PushReport(msgspec.Struct, rename="pascal"):
    """What a pusher that runs elsewhere says about lines it pushed."""

    subscription_id: str
    stream: str
    ids: tuple[int, int]
    states: list[tuple[str, str]]

    def check(self, followed: int) -> None:
        """Refuse what the ledger cannot take. Ids go up to *followed*."""
        if not 0 < self.ids[0] <= self.ids[1] <= followed:
            raise InputInvalid("Ids", "are not two ids of entries, in order")
        if len(self.states) > LEDGER_REPORT_STATES:
            raise TooLarge("States", len(self.states), LEDGER_REPORT_STATES)
        fits = all(state in REPORTED and len(reason) <= LEDGER_REASON_CHARACTERS for state, reason in self.states)
        if not self.states or not fits:
            known, most = ", ".join(REPORTED), LEDGER_REASON_CHARACTERS
            raise InputInvalid("States", f"are not pairs of {known} and a reason of {most} characters at most")


def read_cursor(field: str, text: str) -> Cursor:
    """The cursor that a field of a request holds."""
    try:
        return parse_cursor(text)
    except CursorInvalid as error:
        raise InputInvalid(field, str(error), code="cursor_invalid") from None


def check_subscription(id: str) -> str:
    """Return *id* if a subscription may be called so."""
    if not check_name(id).startswith(SUBSCRIPTIONS):
        raise InputInvalid("subscription", f"does not begin with {SUBSCRIPTIONS}")
    return id


def decode_json(body: bytes, type: type[T]) -> T:
    """*body* as a value of *type*; `InputInvalid` if it is none."""
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputInvalid("body", str(error), code="json_invalid") from None
