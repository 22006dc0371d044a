"""`replay`: publishes a range of the lake once more, into a stream or to one user.

The range is decided, as ids, when a replay of that name is run for the first time: what is published later is not in
it. A later run goes on where the last one ended. Every event carries the attribute `replay` = the name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from penstock.core.matching import matches
from penstock.core.names import check_name, check_pattern, is_system
from penstock.errors import InputInvalid
from penstock.pipeline.commit import watermark
from penstock.pipeline.jobs import JobOutcome, Workplace
from penstock.pipeline.publishing import NewEvent
from penstock.pipeline.resumable_publishing import TURN_SECONDS, Throttle, begin_or_resume, positive, publish_numbered
from penstock.units import parse_moment, parse_whole

OPTIONS: Mapping[str, str] = {
    "name": "of this replay; run it again under the same name to go on",
    "streams": "patterns with commas: what is replayed",
    "to": "the stream that it goes to",
    "user": "instead of --to: the user that it goes to (/users/USER)",
    "after": "ids greater than this",
    "upto": "ids up to this",
    "since": "published at or after this time, as 2026-11-15T12:00:00Z",
    "until": "published before this time",
    "rate": "events a second (1000)",
}
_LAST = str(2**63 - 1)
_ASKED = ("streams", "to", "user", "after", "upto", "since", "until")


def transform(events: DataFrame, streams: list[str], at: datetime) -> DataFrame:
    """The entries to replay: data of these streams with their parts, in order of id.

    Entries that had expired *at* the time when the replay was begun are left out: every run must find the same.
    """
    lasting = F.col("expires_at").isNull() | (F.col("expires_at") > F.lit(at))
    wanted = events.where(F.col("stream").isin(streams) & F.col("kind").isin("data", "part") & lasting)
    return wanted.select("id", "stream", "kind", "type", "attributes", "body").orderBy("id")


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Begin or go on with a replay, for one turn."""
    name = options.get("name", "")
    asked = {option: options[option] for option in _ASKED if options.get(option)}
    target, patterns = _target(asked), _patterns(asked)
    throttle = Throttle(positive(options, "rate", 1000))
    job = begin_or_resume(place.client, "replays", name, lambda: _settle(place, asked), asked)
    after, upto = max(int(job.value["after"]), job.done), int(job.value["upto"])
    begun = datetime.fromtimestamp(job.value.get("at_ms", 0) / 1000, UTC)
    rows = ReplayRows(place, after, upto, patterns, begun)
    numbered = (
        (row.id, NewEvent(target, bytes(row.body or b""), row.type or "", _attributes(row, name))) for row in rows
    )
    if not publish_numbered(job, f"replay~{name}", numbered, throttle, place.faults, TURN_SECONDS):
        said = f"replay {name}: {job.sent:,} events so far, up to id {job.done:,} of {upto:,}"
        return JobOutcome(said, {"sent": job.sent, "done": job.done, "more": True}, more=True)
    job.note(upto, finished=True)
    words = f"replay {name}: {job.sent:,} events of the ids {job.value['after'] + 1:,} to {upto:,} to {target}"
    if rows.too_large:
        words += f"; {rows.too_large:,} were left out, as they are larger than one entry may be"
    return JobOutcome(words, {"sent": job.sent, "done": upto, "too_large": rows.too_large})


# ── the options ────────────────────────────────────────────────────────────────────────────────


def _target(asked: Mapping[str, str]) -> str:
    if ("to" in asked) == ("user" in asked):
        raise InputInvalid("options", "must have exactly one of --to and --user")
    target = check_name(asked["to"] if "to" in asked else f"/users/{asked['user']}")
    if is_system(target):
        raise InputInvalid("--to", f"{target!r} is a stream of the system: nobody but the server writes there")
    return target


def _patterns(asked: Mapping[str, str]) -> list[str]:
    if "streams" not in asked:
        raise InputInvalid("--streams", "is missing", remedy="Name what is to be replayed, as '/orders/*'.")
    return [check_pattern(pattern) for pattern in asked["streams"].split(",")]


def _settle(place: Workplace, asked: Mapping[str, str]) -> dict[str, int]:
    """Turn the range that was asked for into ids."""
    after, upto = parse_whole("--after", asked.get("after", "0")), parse_whole("--upto", asked.get("upto", _LAST))
    moments = {name: parse_moment(f"--{name}", asked[name]) for name in ("since", "until") if name in asked}
    if moments:
        times = place.read("events", place.files("events")).where(F.col("index").isNotNull())
        if "since" in moments:
            times = times.where(F.col("time") >= F.lit(moments["since"]))
        if "until" in moments:
            times = times.where(F.col("time") < F.lit(moments["until"]))
        found = times.agg(F.min("id"), F.max("id")).first()
        first, last = (found[0], found[1]) if found and found[0] is not None else (1, 0)
        after, upto = max(after, first - 1), min(upto, last)
    upto = max(after, min(upto, watermark(place.client, "events")))
    return {"after": after, "upto": upto, "at_ms": int(datetime.now(UTC).timestamp() * 1000)}


# ── the rows ───────────────────────────────────────────────────────────────────────────────────


class ReplayRows:
    """The rows to replay in order of id, file by file: no more than a part of one file is held at a time."""

    def __init__(self, place: Workplace, after: int, upto: int, patterns: list[str], at: datetime) -> None:
        self._place, self._after, self._upto, self._patterns, self._at = place, after, upto, patterns, at
        self.too_large = 0

    def __iter__(self) -> Iterator[Row]:
        """Data entries that are whole in one row. An entry with parts is larger than what can be published at once."""
        held: Row | None = None
        for row in self._pieces():
            if row.kind == "part":
                self.too_large += held is not None
                held = None
                continue
            if held is not None:
                yield held
            held = row
        if held is not None:
            yield held

    def _pieces(self) -> Iterator[Row]:
        for file in self._place.files("events"):
            if not file.file.overlaps(self._after, self._upto):
                continue
            self._place.lake.check([file])
            inside = (F.col("id") > self._after) & (F.col("id") <= self._upto)
            frame = self._place.read("events", [file]).where(inside)
            streams = [row.stream for row in frame.select("stream").distinct().collect() if self._wants(row.stream)]
            if streams:
                yield from transform(frame, streams, self._at).toLocalIterator()

    def _wants(self, stream: str) -> bool:
        return any(matches(pattern, stream) for pattern in self._patterns)


def _attributes(row: Row, name: str) -> str:
    """The event's attributes, and `replay`."""
    try:
        own = json.loads(row.attributes) if row.attributes else {}
    except ValueError:
        own = {}
    own = own if isinstance(own, dict) else {}
    return json.dumps({**own, "replay": name}, separators=(",", ":"))
