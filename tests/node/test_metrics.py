"""Rates and latencies on the metrics page."""

from __future__ import annotations

import re

from penstock.core.metering import Sample
from penstock.node.metrics import of_machine
from penstock.testing import RunningServer, wait_until
from tests.api.client import Tail, ask, publish


def value(server: RunningServer, name: str) -> float:
    found = re.search(rf"^penstock_{name} (\S+)$", ask(server, "GET", "/metrics").body.decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


def test_appends_and_deliveries_are_counted_and_timed(server: RunningServer) -> None:
    before = value(server, "appended_total")
    with Tail(server, "/a") as tail:
        for number in range(32):
            publish(server, "/a", b"%d" % number)
        tail.lines(32)
        wait_until(lambda: value(server, "deliveries_total") >= 32)

    assert value(server, "appended_total") - before >= 32
    assert value(server, "delivery_seconds_count") >= 1
    assert 0 <= value(server, "delivery_seconds_sum") < 30
    assert value(server, "publish_seconds_count") == 2  # one in 16


def test_lines_are_timed_as_well(server: RunningServer) -> None:
    for _ in range(3):
        publish(server, "/a", b"1\n2\n", Content_Type="application/x-ndjson")

    assert value(server, "publish_lines_seconds_count") == 3


def test_a_sample_says_that_it_is_one(server: RunningServer) -> None:
    page = ask(server, "GET", "/metrics").body.decode()

    assert re.search(r"^# HELP penstock_publish_seconds .*one in 16", page, re.MULTILINE)
    assert re.search(r"^# HELP penstock_delivery_seconds .*a sample", page, re.MULTILINE)


def test_what_fails_in_the_log_process_is_added_to_what_fails_in_workers() -> None:
    def samples(appended: int, failed: int, rounds: int, failing: int) -> list[Sample]:
        return [
            ("counter", "appended", "", appended, {}),
            ("counter", "followers_failed", "", failed, {}),
            ("counter", "background_failures", "", rounds, {"loop": "a"}),
            ("gauge", "background_failing", "", failing, {"loop": "a"}),
        ]

    shown = of_machine([*samples(5, 1, 2, 0), *samples(5, 2, 3, 1)], samples(7, 4, 1, 1))

    assert [sample[3] for sample in shown] == [1 + 2 + 4, 2 + 3 + 1, 1, 7]  # entries are counted by the log process
