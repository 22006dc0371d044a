"""`./penstock cluster demo`, as somebody tries it for the first time."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from penstock.testing import wait_until


def alive(pid: str) -> bool:
    return Path("/proc", pid).exists()


def test_the_demo_shows_two_lines_that_work_and_ends_everything(tmp_path: Path) -> None:
    output, errors = tmp_path / "demo.out", tmp_path / "demo.err"
    command = [sys.executable, "-m", "penstock", "cluster", "demo", "--data", str(tmp_path / "demo")]
    with output.open("wb") as out, errors.open("wb") as err:
        demo = subprocess.Popen(command, stdout=out, stderr=err)
    try:
        wait_until(lambda: "Ctrl-C" in output.read_text() or demo.poll() is not None, within=60)
        shown = output.read_text()
        processes = re.findall(r"pid (\d+)", shown)
        assert len(processes) == 6, (shown, errors.read_text())
        assert shown.count("durability=quorum+fsync") == 3
        listen, publish = (
            found.replace("\\\n", "") for found in re.findall(r"^  (curl .*\\\n.*)$", shown, re.MULTILINE)
        )
        listen = listen.replace("streams=/demo", "streams=/demo&after=0")  # whichever of the two is quicker
        tail = subprocess.Popen(shlex.split(listen), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            sent = subprocess.run(
                [*shlex.split(publish), "-s"], capture_output=True, text=True, check=True, timeout=120
            )
            assert tail.stdout
            assert sent.stdout[:-1] in tail.stdout.readline()  # the answer's fields begin the line
        finally:
            tail.kill()
            tail.communicate()
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 0, errors.read_text()
    finally:
        demo.kill()
        demo.wait()
    assert [pid for pid in processes if alive(pid)] == []
