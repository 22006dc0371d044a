"""What readers were not given between things that they were, on literal frames."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.audit_readers import presence, skipped, taken, without_absence
from penstock.pipeline.lake import EVENTS, LEDGER

T0 = datetime(2026, 11, 15, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def entry(id: int, stream: str, index: int | None = 0, kind: str = "data", **more: object) -> tuple[object, ...]:
    body, attributes, expires = more.get("body", b"x"), more.get("attributes"), more.get("expires")
    return (id, stream, index, 0, 0, 1, kind, None, at(id), expires, attributes, body, 1)


def record(
    door: str, who: str, state: str, stream: str, first: int, last: int, seconds: float = 0
) -> tuple[object, ...]:
    return (1, "n1", 1, 0, "", 0, at(seconds), state, "", door, who, stream, first, last, "", "", 0, None)


def frames(
    spark: SparkSession, events: list[tuple[object, ...]], records: list[tuple[object, ...]]
) -> tuple[DataFrame, DataFrame]:
    return spark.createDataFrame(events, EVENTS), spark.createDataFrame(records, LEDGER)


def told(runs: DataFrame) -> list[tuple[str, int, int, int]]:
    return sorted((row.recipient, row.first, row.last, row.entries) for row in runs.collect())


def seen(state: str, seconds: float, user: str = "", device: str = "") -> bytes:
    whose = f',"uid":"{user}","hid":"{device}"' if user else ""
    return f'{{"state":"{state}"{whose},"time":{at(seconds).timestamp():.3f}}}'.encode()


def test_an_app_that_goes_on_without_something_is_named(spark: SparkSession) -> None:
    app = "/_sub/billing"
    events, ledger = frames(
        spark,
        [
            *(entry(id, "/a") for id in (1, 3, 5, 9, 11, 13)),
            entry(7, "/a", attributes='{"hid":"phone"}'),
            entry(6, "/a", None, "meta"),
            entry(8, "/a", kind="erased"),
            entry(10, "/a", expires=at(99)),
            *(entry(id, "/b") for id in (2, 4)),
            entry(14, "/_presence", body=seen("reset", 0)),  # says nothing about apps
        ],
        [
            record("eventhorizon", app, "acked", "/a", 3, 5),  # 1 was before it began
            record("eventhorizon", app, "sent", "/a", 7, 9),  # never acknowledged
            record("eventhorizon", app, "retried", "/a", 7, 9),
            record("eventhorizon", app, "acked", "/a", 11, 11),  # 13 waits
            record("eventhorizon", "/_sub/whole", "acked", "/a", 1, 8),
            record("eventhorizon", "/_sub/whole", "dead", "/a", 9, 9),
            record("eventhorizon", "/_sub/whole", "acked", "/a", 3, 13),
            record("eventhorizon", "/_sub/whole", "acked", "/b", 2, 2),
            record("sps", "alice", "sent", "/a", 1, 1),
        ],
    )

    found = without_absence(skipped(taken(ledger), events), presence(events))

    assert told(found) == [(app, 7, 9, 2)]


def test_a_device_that_was_there_all_the_time_is_named(spark: SparkSession) -> None:
    # Given users, each with a device that was not sent the third of its entries, in an hour of its own
    hours = [3600.0 * number for number in range(5)]
    events, records = [], []
    for user, hour in enumerate(hours):
        own, device, ids = f"/users/{user}", f"{user}/phone", range(10 * user, 10 * user + 10)
        events += [entry(id, own) for id in ids[1:5]]
        events += [entry(ids[5], own, attributes='{"hid":"tv"}'), entry(ids[6], own)]
        records += [
            record("sps", device, "sent", own, ids[1], ids[2], hour + 10),
            record("sps", device, "acked", own, ids[1], ids[2], hour + 11),
            record("sps", device, "sent", own, ids[4], ids[4], hour + 20),
            record("sps", device, "sent", own, ids[6], ids[6], hour + 21),  # the fifth is for another device
            record("sps", device, "sent", "/rooms/x", ids[3], ids[3], hour + 21),
            record("sps", f"{user}/tv", "sent", own, ids[1], ids[6], hour + 12),
            record("sps", "99", "sent", own, ids[1], ids[1], hour + 12),  # as a topic: not addressed to 99
        ]
    # When of some of them is known that they came or went, or that the server was started
    known = [
        seen("online", hours[1] + 15, "1", "phone"),
        seen("offline", hours[2] + 15, "2", "tv"),
        seen("offline", hours[3] + 50, "3", "phone"),
        seen("reset", hours[4] + 15) + b"\n" + seen("online", hours[0] + 15, "98"),
    ]
    events += [entry(1000 + number, "/_presence", body=body) for number, body in enumerate(known)]
    log, ledger = frames(spark, events, records)

    found = without_absence(skipped(taken(ledger), log), presence(log))

    # Then the others are named
    assert told(found) == [("0/phone", 3, 3, 1), ("2/phone", 23, 23, 1), ("3/phone", 33, 33, 1)]
