"""Run in a mount namespace of its own: a server on a small disk that fills up and is freed again.

Prints: a publish before, a publish when full, its code, a read when full, a publish afterwards, and whether all
that was acknowledged is there.
"""

# ruff: noqa: T201 - its output is what the test reads

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from penstock.testing import start_server, wait_until
from tests.api.client import ask, publish


def main(disk: Path) -> None:
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=True)
    ballast = disk / "ballast"
    with start_server(disk / "data") as server:
        body = b"x" * 50_000
        acknowledged = 1
        print(publish(server, "/a", body).status)
        ballast.write_bytes(b"x" * 5_000_000)
        reply = publish(server, "/a", body)
        while reply.status == 201:
            acknowledged += 1
            reply = publish(server, "/a", body)
        print(reply.status, reply.code)
        print(ask(server, "GET", "/v1/read", stream="/a", limit=1).status)
        ballast.unlink()
        wait_until(lambda: publish(server, "/b").status == 201)
        print(publish(server, "/a", body).status)
        page = ask(server, "GET", "/v1/streams", pattern="/a").json
        print("kept" if page["streams"][0]["next_index"] == acknowledged + 1 else f"lost: {page}, {acknowledged}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
