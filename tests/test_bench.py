from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import (
    append,
    console,
    fanout,
    idle,
    latency,
    msgstream,
    peers,
    push,
    reconnect,
    replay,
    sps,
    start,
    streams,
    trickle,
    webpush,
    workers,
)  # fmt: skip
from bench.rig import nchan
from bench.rig.bare_disk import bare_syncs
from bench.rig.child import Child, ChildFailed
from bench.rig.figures import record
from bench.rig.load import Load, undisturbed
from bench.rig.machine import CpuMeter, Neighbours, cpu_seconds, memory_kb
from bench.rig.report import Figure, of_floor, settle
from bench.rig.requests import EVENT_BYTES, MARK, event, load, save, tail
from penstock.cli.app import run
from penstock.testing import require_program, wait_until

KEYS = {"bench", "figure", "value", "unit", "floor", "ratio", "must", "aim", "met", "generator", "machine", "date"}
EVERY = {
    "append": (append, [], 6),
    "console": (console, [], 8),
    "fanout": (fanout, [], 1),
    "fanout with a linger": (fanout, ["--linger"], 3),
    "idle": (idle, [], 5),
    "latency": (latency, [], 3),
    "peers": (peers, ["--only", "nats", "--bytes", "300"], 7),
    "push": (push, [], 3),
    "replay": (replay, [], 1),
    "msgstream": (msgstream, [], 6),
    "sps": (sps, [], 14 if nchan.available() else 13),
    "start": (start, [], 2),
    "streams": (streams, [], 1),
    "trickle": (trickle, [], 4),
    "webpush": (webpush, [], 5),
    "workers": (workers, [], 6),
    "workers with a crowd": (workers, ["--crowd", "120"], 7),
}
LONG = {"workers with a crowd"}  # of more than twenty processes
BY_RATIO = {
    "emit to receive, p99 / relay": (6, 3),
    "publish meanwhile, p99 (storm) / bare": (5, 3),
    "publish meanwhile, p99 (storm after kill -9) / bare": (5, 3),
    "fan-out, one write each": (1.2, 1.08),
    "fan-out, one write each / nchan": (1.05, 1.0),
    "one write each": (1.2, 1.08),
    "one write each / nchan": (1.05, 1.0),
}
"""Must and aim of what is judged by the ratio to its floor in the same rounds."""


@pytest.mark.doors
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in EVERY]
)
def test_every_benchmark_prints_its_figures_with_their_floors(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench, options, least = EVERY[name]

    assert bench.main(["--quick", "--json", "--dir", str(tmp_path), *options]) == 0

    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(figures) >= least
    for figure in figures:
        assert figure.keys() >= KEYS
        # Memory is a difference of two readings: over the few wires of a quick run it may come out as nothing, or less.
        memory = figure["unit"].startswith("KB")
        assert figure["value"] > 0 or memory
        assert figure["met"] in ("must", "aim", "no", None)
        if marks := BY_RATIO.get(figure["figure"]):
            assert (figure["judged"], figure["must"], figure["aim"]) == ("ratio", *marks)
        # nchan is a peer that may be missing; every other figure has its floor in the same run
        measured = figure["floor"] is not None if memory else figure["floor"] and figure["ratio"] is not None
        assert measured or figure["floor_of"] == "nginx with nchan"
    assert list(tmp_path.iterdir()) == []


PEERS = {
    "fan-out": {"nchan", "Mosquitto", "NATS"}, "idle": {"nchan", "Mosquitto"}, "replay": {"NATS", "Redis"},
    "replay, CPU": {"NATS", "Redis"}, "durable publish, 64 in flight": {"NATS", "Redis"},
    "durable publish, 64 in flight, CPU": {"NATS", "Redis"}, "durable publish, 256 in flight": {"NATS", "Redis"},
    "durable publish, 256 in flight, CPU": {"NATS", "Redis"},
}  # fmt: skip
PEER_MARKS = {"fan-out / nchan": (1.05, 1.0), "replay / NATS": (0.7, 1.0)}


def check_all_peers(figures: list[dict[str, Any]]) -> None:
    """Each has run in its disciplines, and stands there with its protocol, its durability and its marks."""
    assert {figure["figure"] for figure in figures} == {f"{what} / {name}" for what in PEERS for name in PEERS[what]}
    for figure in figures:
        name = figure["figure"]
        assert figure["floor_of"].startswith(name.partition(" / ")[2])
        assert figure["floor_of"].endswith(("from memory", "in files", "synced to disk before each answer"))
        assert (figure["must"], figure["aim"]) == PEER_MARKS.get(name, (None, None))
        # Memory is a difference of two readings: over twenty wires it may come out as nothing.
        assert figure["unit"].startswith("KB") or figure["ratio"] > 0


@pytest.mark.doors
@pytest.mark.long
def test_all_four_peers_run_with_the_usual_payload_and_have_their_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_program("nginx", package="libnginx-mod-nchan")
    if not nchan.available():
        pytest.skip("nginx is there without nchan; install the Debian package libnginx-mod-nchan")
    for program, package in (("mosquitto", "mosquitto"), ("redis-server", "redis-server")):
        require_program(program, package=package)

    assert peers.main(["--quick", "--json", "--dir", str(tmp_path)]) == 0

    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    check_all_peers(figures)
    # And one that were left out, or had lost its marks, would be noticed
    with pytest.raises(AssertionError):
        check_all_peers([figure for figure in figures if not figure["figure"].endswith("Redis")])
    with pytest.raises(AssertionError):
        check_all_peers([{**figure, "must": None} for figure in figures])


@pytest.mark.doors
def test_without_json_there_is_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")

    assert run(["bench", "replay", "--quick", "--dir", str(tmp_path)]) == 0

    shown = capsys.readouterr().out
    assert "replay to one reader" in shown
    assert "must" in shown


@pytest.mark.doors
def test_a_run_that_is_ended_from_outside_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "bench", "replay", "--json", "--dir", str(tmp_path)]
    bench = subprocess.Popen(command)
    try:
        ready = wait_until(lambda: [file for file in tmp_path.glob("*/data.out") if file.read_text()])
        port = int(ready[0].read_text().rpartition(" durability")[0].rpartition(":")[2])

        bench.terminate()

        assert bench.wait(60) == 128 + signal.SIGTERM
        assert list(tmp_path.iterdir()) == []
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    finally:
        bench.kill()
        bench.wait()


@pytest.mark.parametrize(
    ("value", "higher", "met"),
    [(0.9, False, "aim"), (1.2, False, "must"), (1.4, False, "no"), (1.4, True, "aim"), (1.1, True, "no")],
)
def test_a_figure_is_judged_by_its_two_lines(value: float, higher: bool, met: str) -> None:
    must, aim = (1.2, 1.3) if higher else (1.35, 1.0)

    assert Figure("x", value, "s", must=must, aim=aim, higher_is_better=higher).met == met


def test_a_ratio_is_judged_instead_of_the_value_where_that_is_promised() -> None:
    assert Figure("x", 30.0, "µs", floor=20.0, must=1.6, aim=1.2, judged="ratio").met == "must"
    assert Figure("x", 30.0, "µs", floor=None, must=1.6, aim=1.2, judged="ratio").met is None
    assert Figure("x", 30.0, "ms", aim=5.0).met == "must"
    assert Figure("x", 30.0, "ms").met is None


def test_a_figure_is_compared_with_the_floor_of_its_own_round() -> None:
    """A round in which the machine was slow is slow for both: 2 of it, and not 4 as by the medians of each."""
    figure = of_floor("x", [2.0, 40.0, 8.0], "ms", [1.0, 20.0, 2.0], "bare", 6, 3, {})

    assert (figure.value, figure.floor, figure.over_floor, figure.met) == (8.0, 2.0, 2.0, "aim")


def shown(**changed: object) -> dict[str, object]:
    """A figure as a report shows it."""
    whole = {"bench": "fanout", "figure": "linger", "value": 700.0, "unit": "1/s", "floor": 100.0, "floor_of": "nchan",
             "ratio": 7.0, "judged": "ratio", "must": 4, "aim": 6, "met": "aim", "generator": None, "date": "",
             "machine": ""}  # fmt: skip
    return {**whole, **changed}


def recorded(file: Path) -> list[float]:
    """The values of the figure that `shown` makes."""
    return [run["value"] for run in json.loads(file.read_text())["fanout"]["linger"]["runs"]]


def check_recording(file: Path) -> None:
    """What was measured without its peer is left out, and said; what is judged by its value needs its floor, too."""
    assert record([shown()], file) == []
    assert record([shown(value=900.0, floor=None, ratio=None, met=None)], file) == ["linger"]
    assert record([shown(value=900.0, floor=None, ratio=None, must=None, aim=None, met=None)], file) == ["linger"]
    assert record([shown(value=800.0), shown(figure="alone", floor_of=None, floor=None, judged="value")], file) == []
    assert recorded(file) == [700.0, 800.0]


def test_a_figure_without_what_it_is_measured_against_is_not_recorded(tmp_path: Path) -> None:
    check_recording(tmp_path / "figures.json")


def test_a_book_that_takes_everything_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.rig.figures.is_whole", lambda _figure: True)

    with pytest.raises(AssertionError):
        check_recording(tmp_path / "figures.json")


@pytest.mark.parametrize("change", [{"generator": "own"}, {"unit": "s"}, {"judged": "value"}], ids=str)
def test_runs_that_cannot_be_compared_do_not_stand_side_by_side(change: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    for value in (1.0, 2.0):
        record([shown(value=value, generator="wrk, own")], file)
    assert recorded(file) == [1.0, 2.0]

    record([shown(**{"value": 3.0, "generator": "wrk, own", **change})], file)

    assert recorded(file) == [3.0]


def test_a_machine_that_is_never_quiet_is_waited_for_less_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("bench.rig.machine.wait_for_quiet", lambda within: waited.append(within) or 1.5)
    given = Namespace(quick=False, patience=10.0)

    for _ in range(100):
        settle(given)

    assert waited[0] == 10
    assert sum(waited) <= 20


def test_a_payload_that_peers_cannot_be_compared_by_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for size in ("63", "65537"):
        with pytest.raises(SystemExit):
            peers.main(["--quick", "--bytes", size])
        assert "--bytes has to be 64 to 65,536" in capsys.readouterr().err


def test_an_event_has_its_size_and_one_mark() -> None:
    assert len(event()) == EVENT_BYTES
    assert event().count(MARK) == 1
    assert json.loads(event())["pad"]


def test_requests_survive_the_file(tmp_path: Path) -> None:
    requests = [tail("/bench", "secret", after=0), bytes(range(256))]

    assert load(save(tmp_path / "requests", *requests)) == requests


def test_the_disk_is_measured(tmp_path: Path) -> None:
    syncs = bare_syncs(tmp_path, 4, 200, 0.01)

    assert syncs.rate > 0
    assert syncs.p50_ms > 0


def test_a_child_is_measured_and_its_end_is_noticed() -> None:
    with Child("bare_listener") as child:
        assert child.answer()["port"] > 0
        assert child.cpu == pytest.approx(cpu_seconds(child.pid), abs=1)
        assert memory_kb(child.pid) > 1000
        child.process.terminate()
        with pytest.raises(ChildFailed, match="bare_listener"):
            child.answer()


def test_the_work_of_children_that_have_ended_is_counted() -> None:
    before, children = cpu_seconds(os.getpid()), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime

    subprocess.run([sys.executable, "-c", "sum(range(5_000_000))"], check=True)

    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - children
    assert used > 0.03
    assert cpu_seconds(os.getpid()) - before >= used - 0.02  # the kernel keeps it in steps of 10 ms


FORGETFUL = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
worker = os.fork()
if not worker:
    while time.process_time() < 0.2:
        pass
    print(flush=True)
    time.sleep(600)
sys.stdin.readline()
os.kill(worker, signal.SIGKILL)
while os.path.exists(f"/proc/{worker}"):
    time.sleep(0.01)
began = time.process_time()
while (worked := time.process_time() - began) < 0.05:
    pass
print(worked, flush=True)
sys.stdin.readline()
"""


def test_a_meter_goes_on_when_a_child_ends_whose_time_nobody_counts() -> None:
    # Given a process whose child has worked, and which takes no note of its end, as Spark's Python daemon does
    with subprocess.Popen([sys.executable, "-c", FORGETFUL], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        meter, sabotage = CpuMeter(process.pid), cpu_seconds(process.pid)
        # When that child ends, and the process works on, less than the child did
        process.stdin.write(b"\n")
        process.stdin.flush()
        worked = float(process.stdout.readline())
        # Then the meter has all of that work, and the sum over the living is less than before
        assert meter.seconds() >= worked
        assert cpu_seconds(process.pid) - sabotage < 0 < worked
        process.kill()


def test_runs_that_neighbours_disturbed_are_left_out_where_there_are_others() -> None:
    calm, disturbed = (Load("own", 1000, 1.0, 1.0, 2.0, 0.1, 0.5, neighbours) for neighbours in (0.0, 1.5))

    assert undisturbed([disturbed, calm, disturbed]) == [calm]
    assert undisturbed([disturbed]) == [disturbed]


def test_our_own_work_is_not_the_neighbours() -> None:
    neighbours = Neighbours()

    assert neighbours.cores(ours=1e9) == 0.0


def test_the_storm_that_is_reckoned_ends_and_follows_its_causes() -> None:
    """Fewer cores make it longer, and so does a slower registry; clients that wait in vain come again."""
    case = reconnect.Case(200_000, 5, 1.0)
    came = reconnect.simulate(case, 900.0)

    assert came == reconnect.simulate(case, 900.0)
    assert 0 < came.half <= came.nearly_all <= came.all <= came.claimed
    assert came.tries == 1
    slow = reconnect.simulate(replace(case, free=0.02), 900.0)
    assert slow.all > came.all
    assert slow.tries > 1
    assert reconnect.simulate(replace(case, claims=400.0), 900.0).claimed > came.claimed


def check_costs_of_reconnects(file: Path) -> None:
    """A handshake is taken as it was measured last, and as a constant only as long as none was recorded."""
    came_back = {"runs": [{"value": 150.0}, {"value": 160.0}]}
    file.write_text(json.dumps({"sps": {"storm, CPU of one that comes back": came_back}}))
    before = reconnect.costs(file)
    book = json.loads(file.read_text()) | {"idle": {idle.HANDSHAKE: {"runs": [{"value": 500.0}, {"value": 400.0}]}}}
    file.write_text(json.dumps(book))
    after = reconnect.costs(file)

    assert before == reconnect.Costs(160.0, reconnect.ASSUMED_TLS_US, measured=False)
    assert after == reconnect.Costs(160.0, 400.0, measured=True)
    assert "assumed" in str(before)
    assert "measured" in str(after)


def test_the_handshake_of_reconnects_is_the_measured_one(tmp_path: Path) -> None:
    check_costs_of_reconnects(tmp_path / "figures.json")


def test_a_handshake_that_stays_a_constant_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "HANDSHAKE", ("idle", "a figure that nobody measures"))

    with pytest.raises(AssertionError):
        check_costs_of_reconnects(tmp_path / "figures.json")
