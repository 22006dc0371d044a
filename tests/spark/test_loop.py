"""The loop of the warm driver, and the jobs that are handed to it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from penstock.pipeline import handed_jobs
from penstock.pipeline.commit import watermark
from penstock.pipeline.driver import EVERYTHING
from penstock.pipeline.jobs import JOBS, JobOutcome, Workplace, check_options, find
from penstock.pipeline.loop import LONGEST_PAUSE, PERIOD_SECONDS, Heartbeat, JobLoop, Timing
from penstock.testing import wait_until
from tests.spark.filling import differences, publish


def state(place: Workplace) -> Any:
    return place.client.call("GET", "/v1/pipeline")


def alive(place: Workplace) -> bool:
    driver = state(place)["driver"]
    return bool(driver and driver["alive"])


def run_until_done(loop: JobLoop, work: Future[Any]) -> None:
    loop.run(work.done)
    work.result()


def test_the_loop_archives_what_comes_and_does_what_it_is_handed(place: Workplace) -> None:
    loop = JobLoop(place, {"archive": 0.2, "ledger": 0.2})

    def user() -> JobOutcome:
        wait_until(lambda: alive(place), within=30)
        publish(place.client, "/orders", [b"one", b"two"])
        newest = place.client.newest()
        wait_until(lambda: watermark(place.client, "ledger") >= newest, within=120)
        assert handed_jobs.warm_driver(place.client, place.lake.place)
        assert not handed_jobs.warm_driver(place.client, "/elsewhere")
        return handed_jobs.hand_over(place.client, "compact", {"all": ""})

    with Heartbeat(place.client, loop.state, period=0.2), ThreadPoolExecutor(1) as pool:
        work = pool.submit(user)
        run_until_done(loop, work)
        shown = state(place)

    assert work.result().words.startswith("compact: ")
    assert shown["tables"]["events"]["lag"] == 0
    assert shown["driver"]["jobs"]["archive"]["words"].startswith("archive: ")
    assert differences(place.client, place.lake.place) == []
    assert place.client.list("pipeline/tasks/") == {}
    assert not alive(place)


def test_a_job_that_ran_before_those_it_builds_on_runs_again(place: Workplace) -> None:
    now = [0.0]
    loop = JobLoop(place, {"archive": 5.0, "ledger": 1.0}, clock=lambda: now[0])
    loop.round(place.client.newest())
    publish(place.client, "/orders", [b"one"])
    newest = place.client.newest()

    # When the ledger's turn comes, and the archive's does not yet
    now[0] = 2.0
    loop.round(newest)
    assert watermark(place.client, "ledger") < newest

    # Then the ledger's turn comes again after the archive's
    now[0] = 6.0
    loop.round(newest)
    assert watermark(place.client, "ledger") == newest


@pytest.mark.parametrize("apart", [False, True], ids=["honest", "sabotage: each is due after its own end"])
def test_jobs_of_one_round_are_due_together_again(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """Else the ledger would be due before the archive, and a whole round behind it."""
    now, step = [0.0], [1.0]

    def clock() -> float:
        now[0] += step[0]
        return now[0]

    loop = JobLoop(place, {"archive": 4.0, "ledger": 4.0}, clock=clock)
    if apart:
        usual = Timing.succeeded
        monkeypatch.setattr(Timing, "succeeded", lambda timing, began, *rest: usual(timing, now[0], *rest))
    publish(place.client, "/orders", [b"one"])
    loop.round(place.client.newest())
    publish(place.client, "/orders", [b"two"])

    # When it is the moment at which the archive is due
    now[0], step[0] = loop._timings[0].due, 0.0
    loop.round(newest := place.client.newest())

    assert watermark(place.client, "events") == newest
    assert (watermark(place.client, "ledger") == newest) is not apart


@pytest.mark.parametrize("seldom", [{}, {"rollup": 60.0}], ids=["honest", "sabotage: sums are made once a minute"])
def test_what_up_does_brings_the_sums_up_to_date_in_each_round(place: Workplace, seldom: dict[str, float]) -> None:
    now = [0.0]
    loop = JobLoop(place, {**EVERYTHING, **seldom}, clock=lambda: now[0])
    for number in range(2):
        now[0] += PERIOD_SECONDS
        publish(place.client, "/orders", [b"%d" % number])
        loop.round(newest := place.client.newest())

        behind = {record for record in ("events", "ledger", "rollup") if watermark(place.client, record) < newest}
        assert behind == set(seldom)


@pytest.mark.parametrize("without", ["", "compact"], ids=["honest", "sabotage: nobody compacts"])
def test_what_up_does_puts_small_files_together_by_itself(place: Workplace, without: str) -> None:
    now = [0.0]
    jobs = {name: period for name, period in EVERYTHING.items() if name != without}
    loop = JobLoop(place, jobs, clock=lambda: now[0])
    for number in range(3):
        now[0] += EVERYTHING["archive"]
        publish(place.client, "/orders", [b"%d" % number])
        loop.round(place.client.newest())
    assert len(place.files("events")) == 3

    now[0] += EVERYTHING["compact"]
    loop.round(place.client.newest())

    assert (len(place.files("events")) < 3) is not bool(without)
    assert differences(place.client, place.lake.place) == []


def test_a_job_that_fails_is_told_and_the_others_go_on(place: Workplace) -> None:
    loop = JobLoop(place, {"nonsense": 0.2, "archive": 0.2})

    loop.round(place.client.newest())

    jobs = loop.state()["jobs"]
    assert "no job 'nonsense'" in jobs["nonsense"]["error"]
    assert jobs["archive"]["words"].startswith("archive: ")


def test_a_task_that_cannot_be_done_is_told_to_whoever_asked(place: Workplace) -> None:
    def refuse(place: Workplace, name: str, options: object) -> JobOutcome:
        return find(name).run(place, {})

    with Heartbeat(place.client, lambda: {"lake": ""}, period=0.1), ThreadPoolExecutor(1) as pool:
        wait_until(lambda: alive(place))
        asking = pool.submit(handed_jobs.hand_over, place.client, "nonsense", {})
        wait_until(lambda: handed_jobs.run_all(place, refuse) or asking.done())

    with pytest.raises(handed_jobs.TaskFailed, match="no job 'nonsense'"):
        asking.result()


def test_a_task_without_a_driver_is_not_waited_for(place: Workplace) -> None:
    with pytest.raises(handed_jobs.TaskFailed, match="driver ended"):
        handed_jobs.hand_over(place.client, "compact", {})
    assert place.client.list("pipeline/tasks/") == {}


def test_failures_make_the_pauses_longer_and_success_short_again() -> None:
    timing = Timing("archive", 5)

    pauses = []
    for _ in range(6):
        timing.failed(0, ValueError("no"))
        pauses.append(timing.due)
    timing.succeeded(0, 17, "done", 1)

    assert pauses == [10, 20, 40, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert (timing.due, timing.seen, timing.failures) == (5, 17, 0)


@pytest.mark.parametrize("name", JOBS)
def test_every_job_says_which_options_it_has(name: str) -> None:
    with pytest.raises(Exception, match="is no option of the job"):
        check_options(name, {"no-such-option": "1"})
