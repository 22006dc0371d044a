"""The loop ends though something was left open, where warnings are errors as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import asyncio, faulthandler, sys, uvloop
from penstock.http.event_loop import run_loop

async def leave_a_socket_open():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    await asyncio.open_connection(*server.sockets[0].getsockname())
    print("left open", flush=True)

faulthandler.dump_traceback_later(float(sys.argv[2]), exit=True)
{"honest": run_loop, "sabotaged": uvloop.run}[sys.argv[1]](leave_a_socket_open())
"""


@pytest.mark.parametrize(("kind", "limit"), [("honest", 20), ("sabotaged", 2)])
def test_the_loop_ends_over_an_open_socket_and_says_so(kind: str, limit: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, kind, str(limit)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert done.stdout == "left open\n"
    hung = "Timeout" in done.stderr and "in close" in done.stderr
    assert hung == (kind == "sabotaged"), done.stderr
    assert "ResourceWarning: unclosed resource <TCP" in done.stderr


def test_nothing_that_tests_run_in_their_own_process_ends_on_the_bare_loop() -> None:
    root = Path(__file__).parents[2]
    files = [*root.glob("src/**/*.py"), *root.glob("tests/**/*.py"), *root.glob("bench/*.py")]
    bare = [file for file in files if "uvloop.run(" in file.read_text().replace("return uvloop.run(main, loop", "")]

    assert [file.name for file in bare] == ["test_event_loop.py", "start.py"]  # a child each
