"""`retention`: reports what could go, and with `--apply` trims the part of the log that is safely in the lake.

Reports the months of the mailboxes and which of them are due to go (`./penstock tables` drops them), user agents that
were not heard of for 30 to 60 days and for longer, and the trim point. The server decides the trim point: it trims
only what it finds in the lake itself. If a watermark has not moved for long although the log has grown, the pipeline
is not running: then nothing is trimmed, and the exit code says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.errors import InputInvalid
from penstock.pipeline.jobs import JobOutcome, Workplace
from penstock.units import measure

OPTIONS: Mapping[str, str] = {
    "keep": "how much stays in the log, as an age (7d)",
    "stale": "a watermark that is this old while there is more to archive is refused (1h)",
    "apply": "trim; without it nothing changes",
}
UNSEEN_DAYS: Final = (30, 60)
"""Autopush forgets user agents that were silent for one or two months."""


def transform(activity: DataFrame, now: datetime) -> DataFrame:
    """User agents by how long they were not heard of: (days, agents), the last class open."""
    agents = activity.where(F.col("door") == "webpush")
    unseen = F.lit(None).cast("int")
    for days in UNSEEN_DAYS:
        unseen = F.when(F.col("last_time") < F.lit(now - timedelta(days=days)), days).otherwise(unseen)
    return agents.withColumn("days", unseen).where(F.col("days").isNotNull()).groupBy("days").count().orderBy("days")


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Report, and trim if told to."""
    keep, stale_seconds = options.get("keep", "7d"), _seconds("stale", options.get("stale", "1h"))
    _seconds("keep", keep)
    apply = "apply" in options
    stale = _stale(place.client.call("GET", "/v1/pipeline"), stale_seconds)
    trim = _trim(place, keep=keep)
    trim["upto"] = min(trim["wanted"], trim["allowed"])
    if apply and not stale and trim["upto"] > trim["trimmed"]:
        trim |= _trim(place, upto=trim["upto"], apply=True)
    months = place.client.call("GET", "/v1/retention/months", timeout=600)["months"]
    due = place.client.call("GET", "/v1/tables")["drop"]
    activity = place.read("activity", place.files("activity"))
    unseen = {row["days"]: row["count"] for row in transform(activity, datetime.now(UTC)).collect()}
    applied = apply and not stale
    data = {"trim": trim, "stale": stale, "months": months, "due": due, "unseen": unseen, "applied": applied}
    return JobOutcome(_words(data, apply), data, exit_code=1 if stale else 0)


def _trim(place: Workplace, **wanted: object) -> dict[str, Any]:
    return place.client.call("POST", "/v1/log/trim", body=json.dumps(wanted).encode(), timeout=600)


def _stale(state: Mapping[str, Any], limit_seconds: float) -> list[str]:
    """Tables whose watermark stands still although there is more to archive."""
    now_ms = time.time() * 1000
    found = []
    for table in ("events", "ledger"):
        known = state["tables"].get(table, {"done_ms": 0, "lag": state["newest"]})
        if known["lag"] and now_ms - known["done_ms"] > 1000 * limit_seconds:
            found.append(table)
    return found


def _seconds(option: str, text: str) -> float:
    try:
        return measure(text, "s")
    except ValueError as error:
        raise InputInvalid(f"--{option}", str(error)) from None


def _words(data: Mapping[str, Any], apply: bool) -> str:
    trim, stale = data["trim"], data["stale"]
    done = f"trimmed up to id {trim['trimmed']:,}, {trim['entries']:,} entries" if data["applied"] else "dry run"
    lines = [f"retention: {done}"]
    if stale:
        lines.append(f"  REFUSED: {' and '.join(stale)} of the lake stand still although the log has grown")
    lines.append(f"  log        could be trimmed up to id {trim['upto']:,}: {trim['reason']}")
    lines += [_month(month, month["month"] in data["due"]) for month in data["months"]]
    lines += [f"  unseen     {count:,} user agents for {_class(days)} days" for days, count in data["unseen"].items()]
    if not apply and trim["upto"] > trim["trimmed"]:
        lines.append("  --apply trims it")
    return "\n".join(lines)


def _month(month: Mapping[str, Any], due: bool) -> str:
    recipients, pending, size = month["recipients"], month["pending"], month["bytes"]
    goes = "; due to go: ./penstock tables --apply" if due else ""
    return f"  {month['month']}    {recipients:,} recipients, {pending:,} items of {size:,} bytes wait{goes}"


def _class(days: int) -> str:
    """The days that a class of user agents covers."""
    longer = [bound for bound in UNSEEN_DAYS if bound > days]
    return f"{days} to {longer[0]}" if longer else f"over {days}"
