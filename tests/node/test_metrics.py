"""Rates and latencies on the metrics page."""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.core.metering import Sample
from penstock.node.metrics import labelled, of_machine
from penstock.testing import RunningServer, start_log_process, wait_until
from tests.api.client import Tail, ask, publish


def value(server: RunningServer, name: str) -> float:
    """Of several workers the sum."""
    page = ask(server, "GET", "/metrics").body.decode()
    found = re.findall(rf'^penstock_{name}(?:{{process="[^"]+"}})? (\S+)$', page, re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def counters(server: RunningServer) -> dict[tuple[str, ...], float]:
    """All that only ever grows, by name and labels."""
    page = ask(server, "GET", "/metrics").body.decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if family.type in ("counter", "histogram") and not sample.name.endswith("_created")
    }


def fallen(before: dict[tuple[str, ...], float], after: dict[tuple[str, ...], float]) -> set[str]:
    """Counters that have fallen: what Prometheus takes for a restart, and counts from 0."""
    return {name[0] for name in before.keys() & after.keys() if after[name] < before[name]}


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


def test_what_the_log_process_counts_stands_beside_the_workers_counts() -> None:
    def samples(appended: int, failed: int, rounds: int, failing: int) -> list[Sample]:
        return [
            ("counter", "appended", "", appended, {}),
            ("counter", "followers_failed", "", failed, {}),
            ("counter", "background_failures", "", rounds, {"loop": "a"}),
            ("gauge", "background_failing", "", failing, {"loop": "a"}),
        ]

    first, second = labelled(samples(5, 1, 2, 0), "first"), labelled(samples(5, 2, 3, 1), "second")
    shown = of_machine([*first, *second], samples(7, 4, 1, 0))

    found = {(name, labels.get("process")): value for _, name, _, value, labels in shown}
    assert found.pop(("appended", None)) == 7  # the log process knows better
    assert found.pop(("background_failing", None)) == 1
    assert [value for (name, _), value in found.items() if name == "followers_failed"] == [1, 2, 4]
    assert [value for (name, _), value in found.items() if name == "background_failures"] == [2, 3, 1]


class SummingWorker(RunningServer):
    """A worker that adds up what all of them have counted."""

    module = "tests.faults.summing_worker"


def check_silence_makes_no_counter_fall(folder: Path, asked: type[RunningServer]) -> None:
    """Scrape one worker before another one is stopped, meanwhile and when that one goes on."""
    with ExitStack() as stack:
        engine, workers = stack.enter_context(start_log_process(folder / "log")), []
        for name in ("first", "second"):
            workers.append(asked(folder / name, ("--engine", engine, f"--set=server.node={name}"), {}))
            stack.callback(workers[-1].stop)
        first, second = workers
        for _ in range(32):
            publish(second, "/a", b"1\n2\n", Content_Type="application/x-ndjson")
        assert (value(first, "workers"), value(first, "workers_silent")) == (2, 0)
        before = counters(first)
        second.process.send_signal(signal.SIGSTOP)
        try:
            meanwhile, silent = counters(first), value(first, "workers_silent")
        finally:
            second.process.send_signal(signal.SIGCONT)
        wait_until(lambda: value(first, "workers_silent") == 0)
        after = counters(first)

    assert silent == 1
    assert fallen(before, meanwhile) == fallen(meanwhile, after) == fallen(before, after) == set()
    counted = "penstock_publish_lines_seconds_count"
    assert (before[counted, "second"], after[counted, "second"]) == (32, 32)
    assert (counted, "second") not in meanwhile
    assert meanwhile["penstock_requests_total", "first"] > before["penstock_requests_total", "first"]


def test_a_silent_worker_makes_no_counter_fall(tmp_path: Path) -> None:
    check_silence_makes_no_counter_fall(tmp_path, RunningServer)


def test_the_same_check_finds_counters_that_are_added_up(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="penstock_publish_lines_seconds"):
        check_silence_makes_no_counter_fall(tmp_path, SummingWorker)
