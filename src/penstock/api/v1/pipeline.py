"""`/v1/pipeline`: what the pipeline keeps at the server, and what it waits for. docs/pipeline.md.

    GET    /v1/pipeline                     watermarks, lag, the driver, its jobs' runs and the last audit
    GET    /v1/pipeline/tables              the lake's tables, with their sizes
    GET    /v1/pipeline/hours               what was published and delivered, by hour and door, from the rollup
    GET    /v1/pipeline/news                the newest id; waits for one above `after`
    GET    /v1/pipeline/position            the last id that was published before `time`
    POST   /v1/pipeline/consumers/NAME      where a consumer begins; the first answer stays
    GET    /v1/pipeline/records?prefix=     records
    GET PUT DELETE /v1/pipeline/records/KEY one record; PUT is compare-and-set

Records are those of the registry under `lake/` and `pipeline/`. Watermarks decide what may be trimmed, so only the
admin changes them; a token with `export` keeps the positions of consumers and sinks.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from penstock.api.context import Context, decoded, integer, milliseconds, only
from penstock.api.describing import (
    BOOLEAN,
    INTEGER,
    LARGEST,
    PATH_LEVEL,
    Parameter,
    a_list,
    an_object,
    number,
    operation,
    shown_as,
    text,
)
from penstock.api.v1.news import NewsPolls
from penstock.core.epoch import KEY as EPOCH
from penstock.core.epoch import LogEpoch
from penstock.core.export import BeyondLog, History
from penstock.core.hourly_figures import HourSum, LakeFigures, TableSize
from penstock.core.registry import NEW, made_once
from penstock.errors import Conflict, InputInvalid, TooLarge
from penstock.http.requests import Request
from penstock.http.responses import Held, Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import (
    LEVEL_BYTES,
    NEWS_SECONDS,
    PAGE_BYTES,
    PAGE_ENTRIES,
    POSITION_BYTES,
    RECORD_BYTES,
    RECORD_KEY_BYTES,
    SUMMED_HOURS,
)
from penstock.values import Record
from penstock.wire.lake_files import shown_name

DRIVER_SECONDS: Final = 30
"""A driver that was silent for so long counts as gone; it says something every five."""

RUNS: Final = "pipeline/runs/"
"""Records that a driver writes after each run of a job."""

AT_ONCE: Final = 16
"""Records that are read in one go: of the largest size, no more than fits into a page."""

HOUR_MS: Final = 3600 * 1000

ANYBODY: Final = ("pipeline/consumers/", "pipeline/sinks/")
"""Records that a token with `export` may change."""

_KEY: Final = (
    Parameter("space", "Of which records.", {"type": "string", "enum": ["lake", "pipeline"]}),
    text("name", "The rest of the key; it may have further levels.", pattern=PATH_LEVEL, most=LEVEL_BYTES),
)
_RECORD: Final = an_object(version=INTEGER, value={"type": "object"})
_AFTER: Final = an_object(after=INTEGER)
_TABLES: Final = an_object(lake=BOOLEAN, tables=a_list(TableSize), ms=INTEGER)
_HOURS: Final = an_object(lake=BOOLEAN, since_ms=INTEGER, hours=a_list(HourSum), ms=INTEGER)
_encode = msgspec.json.Encoder().encode


class EpochPassed(Conflict):
    """The log was restored from a backup since the lake's driver was started."""

    code = "epoch_passed"
    remedy = "Start the driver again: it says whether its lake belongs to the log as it is now."

    def __init__(self, key: str, epoch: str) -> None:
        super().__init__(f"{key} speaks of another history of the log, which is in epoch {epoch} now")


class BeginRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/pipeline/consumers/NAME`: exactly one of the first three."""

    position: Literal["", "earliest", "latest"] = ""
    id: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)] | None = None  # begin after this id
    time: Annotated[str, shown_as(anyOf=[{"format": "date-time"}, {"maxLength": 0}])] = (
        ""  # begin with what was published at or after this time
    )
    history: bool = False  # the earliest that the lake has, not the log


class PipelineApi:
    """Answers the pipeline, and those who ask how it does."""

    def __init__(self, context: Context, figures: LakeFigures | None = None, history: History | None = None) -> None:
        self._context, self._log, self._registry = context, context.log, context.registry
        self._figures, self._history = figures, history
        self._news = NewsPolls(context.log, context.wheel)

    def routes(self) -> list[Route]:
        """Its part of the table."""
        admit = self._context.admitting(lambda caller: caller.check_grant("export"))
        record = "/v1/pipeline/records/**"
        whole = WHOLE(RECORD_BYTES)
        return [
            Route("GET", "/v1/pipeline", self.state, door="v1"),
            Route("GET", "/v1/pipeline/tables", self.tables, door="export"),
            Route("GET", "/v1/pipeline/hours", self.hours, door="export"),
            Route("GET", "/v1/pipeline/news", self.news, timeout=None, door="export"),
            Route("GET", "/v1/pipeline/position", self.position, door="export"),
            Route("POST", "/v1/pipeline/consumers/*", self.begin, body=whole, admit=admit, door="export"),
            Route("GET", "/v1/pipeline/records", self.list, door="export"),
            Route("GET", record, self.get, door="export"),
            Route("PUT", record, self.put, body=whole, admit=admit, door="export"),
            Route("DELETE", record, self.delete, door="export"),
        ]

    # ── news ──────────────────────────────────────────────────────────────────────────────────

    @operation(
        "The newest id, as soon as it is above after=.",
        query=(
            number("after", "Wait for an id above this."),
            Parameter("wait", "Seconds at most.", {"type": "number", "minimum": 0, "maximum": NEWS_SECONDS}),
        ),
        answers={200: an_object(id=INTEGER)},
    )
    def news(self, request: Request) -> Response | Held:
        """The newest id, as soon as it is above `after`; after `wait` seconds whatever it is then.

        A job that somebody hands to the driver is news, too.
        """
        self._context.caller(request).check_grant("export")
        only(request, "after", "wait")
        return self._news.ask(request, integer(request, "after", 0), _seconds(request))

    # ── where consumers begin ─────────────────────────────────────────────────────────────────

    @operation(
        "Settle where a consumer begins; the first answer stays.",
        path=(text("name", "Name of the consumer.", pattern=PATH_LEVEL, most=LEVEL_BYTES),),
        body=BeginRequest,
        answers={200: _AFTER},
        errors=(404, 507),
    )
    async def begin(self, request: Request) -> Response:
        """Settle where a consumer begins. Whoever asks first decides; everybody gets that answer."""
        self._context.caller(request).check_grant("export")
        key = _checked_key("pipeline/consumers/" + request.captures[0])
        wanted = _checked(decoded(request.body, BeginRequest))  # also where the answer is known already
        if (known := await self._registry.get(key)) is not None:
            return Response(200, known.value)
        value = _encode({"after": await self._position(wanted)})
        return Response(200, await made_once(self._registry, key, lambda: value))

    @operation(
        "The last id that was published before a time.",
        query=(Parameter("time", "Like 2026-11-15T12:00:00Z.", {"type": "string", "format": "date-time"}, True),),
        answers={200: _AFTER},
    )
    async def position(self, request: Request) -> Response:
        """The last id that was published before a time: everything after it is not older."""
        self._context.caller(request).check_grant("export")
        only(request, "time")
        after = await self._log.id_before(milliseconds("time", request.params.get("time", "")))
        return Response(200, _encode({"after": after}))

    async def _position(self, wanted: BeginRequest) -> int:
        if wanted.id is not None:
            newest = await self._log.newest()
            if wanted.id > newest:
                raise BeyondLog(wanted.id, newest)
            return wanted.id
        if wanted.time:
            return await self._log.id_before(milliseconds("time", wanted.time))
        if wanted.position == "latest":
            return self._log.followed
        if wanted.history and self._history is not None:
            return await self._history.begins_after()
        return self._log.trimmed_upto

    # ── records ───────────────────────────────────────────────────────────────────────────────

    @operation(
        "List records of the pipeline.",
        query=(
            text(
                "prefix", "Keys begin with this.", pattern="^(?:lake|pipeline)/", most=RECORD_KEY_BYTES, required=True
            ),
            text("after", "Keys after this one."),
        ),
        answers={200: an_object(records=a_list(_RECORD), more=BOOLEAN)},
    )
    async def list(self, request: Request) -> Response:
        """The records whose keys begin with `prefix`: a page of so many, or of so many bytes."""
        self._context.caller(request).check_grant("export")
        only(request, "prefix", "after")
        prefix = _checked_key(request.params.get("prefix", ""))
        after, room, more = request.params.get("after", ""), PAGE_BYTES, True
        found: list[Record] = []
        while more and room > 0 and len(found) < PAGE_ENTRIES:
            some = await self._registry.list(prefix, after=after, limit=AT_ONCE)
            found += some
            room -= sum(len(one.value) for one in some)
            after, more = found[-1].key if found else "", len(some) == AT_ONCE
        return Response(200, _encode({"records": [{"key": one.key, **_shown(one)} for one in found], "more": more}))

    @operation("One record of the pipeline; version 0 if there is none.", path=_KEY, answers={200: _RECORD})
    async def get(self, request: Request) -> Response:
        """One record; version 0 if there is none."""
        self._context.caller(request).check_grant("export")
        return Response(200, _encode(_shown(await self._registry.get(_checked_key(request.captures[0])))))

    @operation(
        "Change one record by compare-and-set.",
        path=_KEY,
        query=(number("expect", "Its version now; 0: there is none.", required=True),),
        body={"application/json": {"type": "object"}},
        answers={200: an_object(version=INTEGER)},
        errors=(409, 507),
    )
    async def put(self, request: Request) -> Response:
        """Change one record, if its version is still the one in `expect`."""
        key = self._changeable(request)
        if key.startswith(ANYBODY) and len(request.body) > POSITION_BYTES:
            raise TooLarge("record of a position", len(request.body), POSITION_BYTES)
        only(request, "expect")
        expect = integer(request, "expect", None)
        await self._check_epoch(key, decoded(request.body, dict))
        stored = await self._registry.put(key, request.body, expect=expect)
        if key.startswith("pipeline/tasks/"):
            self._news.wake_all()  # the driver waits there
        return Response(200, _encode({"version": stored.version}))

    @operation("Remove one record.", path=_KEY, answers={204: None}, errors=(507,))
    async def delete(self, request: Request) -> Response:
        await self._registry.delete(self._changeable(request))
        return Response(204)

    async def _check_epoch(self, key: str, value: dict[str, Any]) -> None:
        """Refuse what a driver has made of another history of this log: its ids stand for other entries now."""
        epoch = await self._epoch()
        if key.startswith("lake/") and not epoch.is_own(str(value.get("epoch", ""))):
            raise EpochPassed(key, epoch.epoch)

    async def _epoch(self) -> LogEpoch:
        record = await self._registry.get(EPOCH)
        return msgspec.json.decode(record.value, type=LogEpoch) if record else LogEpoch("")

    def _changeable(self, request: Request) -> str:
        caller, key = self._context.caller(request), _checked_key(request.captures[0])
        caller.check_grant("export")
        if not key.startswith(ANYBODY):
            caller.check_admin(f"change {key}")
        return key

    # ── the state ─────────────────────────────────────────────────────────────────────────────

    @operation("How far the lake is, and how the pipeline's driver and its jobs do.")
    async def state(self, request: Request) -> Response:
        """How far the lake is, and how its driver does."""
        self._context.caller(request).check_grant("export")
        only(request)
        records = await self._registry.list("lake/")
        driver = await self._record("pipeline/driver")
        seen_ms = driver.get("seen_ms", 0)
        alive = self._context.clock.now_ms() - seen_ms < 1000 * DRIVER_SECONDS
        newest = self._log.followed
        shown = {
            "newest": newest,
            "trimmed": self._log.trimmed_upto,
            "epoch": await self._epoch(),
            "tables": {_job(one.key): _table(one, newest) for one in records if one.key != "lake/id"},
            "lake": (await self._record("lake/id")).get("path", ""),
            "driver": {**driver, "alive": alive} if driver else None,
            "supervisor": await self._record("pipeline/supervisor") or None,
            "runs": await self._runs(),
            "audit": await self._record("pipeline/audit") or None,
            "ms": self._context.clock.now_ms(),
        }
        return Response(200, _encode(shown))

    async def _runs(self) -> dict[str, Any]:
        """The newest runs by job, as drivers have reported them."""
        records = await self._registry.list(RUNS)
        return {one.key.removeprefix(RUNS): msgspec.json.decode(one.value).get("runs", []) for one in records}

    @operation("The tables of the lake, with files, rows and bytes.", answers={200: _TABLES})
    async def tables(self, request: Request) -> Response:
        """How large each table is, and when its newest file was written."""
        self._context.caller(request).check_grant("export")
        only(request)
        found = await self._figures.tables() if self._figures else []
        return Response(200, _encode({"lake": self._figures is not None, "tables": found, "ms": self._now_ms()}))

    @operation(
        "What was published, sent, acked and expired, by hour and door, with latencies; from the rollup.",
        query=(number("hours", "So many hours back; 48 if it is not said.", least=1, most=SUMMED_HOURS),),
        answers={200: _HOURS},
    )
    async def hours(self, request: Request) -> Response:
        """The sums of the last hours. Latencies are upper ends of classes that double."""
        self._context.caller(request).check_grant("export")
        only(request, "hours")
        hours = integer(request, "hours", 48, least=1, most=SUMMED_HOURS)
        since_ms = (self._now_ms() // HOUR_MS - hours + 1) * HOUR_MS
        found = await self._figures.hours(since_ms) if self._figures else []
        shown = {"lake": self._figures is not None, "since_ms": since_ms, "hours": found, "ms": self._now_ms()}
        return Response(200, _encode(shown))

    def _now_ms(self) -> int:
        return self._context.clock.now_ms()

    async def _record(self, key: str) -> dict[str, Any]:
        record = await self._registry.get(key)
        return {} if record is None else msgspec.json.decode(record.value, type=dict[str, Any])


def _job(key: str) -> str:
    """What is shown of a record's key: a typed table by its name."""
    return shown_name(key.removeprefix("lake/"))


def _table(record: Record, newest: int) -> dict[str, Any]:
    value = msgspec.json.decode(record.value, type=dict[str, Any])
    done = value.get("done", 0)
    return {
        "done": done,
        "lag": max(0, newest - done),
        "done_ms": value.get("done_ms", 0),
        "fence": value.get("fence", 0),
        "working": value.get("intent") is not None,
    }


def _shown(record: Record | None) -> dict[str, Any]:
    if record is None:
        return {"version": NEW, "value": {}}
    return {"version": record.version, "value": msgspec.Raw(record.value)}


def _checked_key(key: str) -> str:
    if len(key.encode()) > RECORD_KEY_BYTES:
        raise TooLarge("key", len(key.encode()), RECORD_KEY_BYTES)
    if not key.startswith(("lake/", "pipeline/")):
        raise InputInvalid("key", f"{key[:40]!r} begins with neither lake/ nor pipeline/")
    if any(len(level.encode()) > LEVEL_BYTES for level in key.split("/")):
        raise InputInvalid("key", f"has a level of over {LEVEL_BYTES} bytes")
    return key


def _seconds(request: Request) -> float:
    text = request.params.get("wait", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= NEWS_SECONDS:
        raise InputInvalid("parameter wait", f"{text[:40]!r} is not a number of seconds from 0 to {NEWS_SECONDS}")
    return seconds


def _checked(wanted: BeginRequest) -> BeginRequest:
    given = [bool(wanted.position), wanted.id is not None, bool(wanted.time)]
    if given.count(True) != 1:
        raise InputInvalid("body", "must have exactly one of position, id and time")
    if wanted.time:
        milliseconds("time", wanted.time)
    return wanted
