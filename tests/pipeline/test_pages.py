"""The queries on the pipeline's page run, on tables of a few rows."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
EARLY, LATE = (datetime(2026, 11, 17, hour, tzinfo=UTC) for hour in (9, 10))


def test_what_a_position_covers_is_found_with_the_first_time_that_it_was_said() -> None:
    # Given a device that was sent two events and has confirmed the first, twice, and one that another acknowledged
    common = {"door": "sps", "recipient": "7/phone", "stream": "/users/7"}
    sent = [{**common, "state": state, "last": last} for state, last in (("sent", 5), ("sent", 9), ("acked", 4))]
    deliveries = pa.Table.from_pylist(sent)
    said = {"door": "sps", "recipient": "7/phone", "stream": ""}
    positions = pa.Table.from_pylist([{**said, "upto": 5, "time": EARLY}, {**said, "upto": 8, "time": LATE}])
    [query] = re.findall(r"^### positions$.*?^```sql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)

    # When the page's query is asked
    with duckdb.connect() as connection:
        connection.register("deliveries", deliveries)
        connection.register("positions", positions)
        asked = f"SELECT last, epoch(acked)::BIGINT FROM ({query.strip().rstrip(';')})"
        found = connection.sql(asked).fetchall()

    # Then the first event alone is confirmed, at the first of the two times
    assert found == [(5, int(EARLY.timestamp()))]
