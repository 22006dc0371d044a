from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from penstock.cli.processes import count_orphans

WORK_SECONDS = 0.5
ORPHANS = f"""
import os, sys, time
def is_running(process):
    try:
        with open(f"/proc/{{process}}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
read, write = os.pipe()
if os.fork():
    orphan = int(os.read(read, 20))
    while is_running(orphan):
        time.sleep(0.01)
    sys.exit(7)
if os.fork():
    os._exit(0)
while time.process_time() < {WORK_SECONDS}:
    pass
os.write(write, str(os.getpid()).encode())
"""


def seconds_of_orphans(before_exec: Callable[[], None] | None) -> float:
    """CPU seconds of a program whose work is done by an orphan, as they are told to who waits for the program."""
    program = subprocess.Popen([sys.executable, "-S", "-c", ORPHANS], preexec_fn=before_exec)
    _, status, used = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    assert program.returncode == 7
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(("before_exec", "counted"), [(count_orphans, True), (None, False)])
def test_the_work_of_orphans_is_counted(before_exec: Callable[[], None] | None, counted: bool) -> None:
    assert (seconds_of_orphans(before_exec) >= WORK_SECONDS) is counted


def test_the_program_gets_the_signals_that_it_is_sent_and_no_other() -> None:
    waits = "import signal; print(flush=True); print(signal.sigwait([signal.SIGINT, signal.SIGTERM]), flush=True)"
    blocked = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM]); {waits}"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", blocked], preexec_fn=count_orphans, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout
        program.stdout.readline()
        # When somebody else interrupts the process between, as a terminal does with all of them
        subprocess.run(["kill", "-INT", str(program.pid)], check=True)
        # Then that is not handed on, and what we send is
        program.send_signal(signal.SIGTERM)
        assert program.stdout.read().strip() == str(int(signal.SIGTERM))
    assert program.returncode == 0
