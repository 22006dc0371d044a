"""The bystander: a well-behaved client in a process of its own, who says at its end what it noticed.

    python -m tests.bystander.client PORT TOKEN SERVER_PID[,SERVER_PID …]

It listens to one stream and publishes into it, on a connection that stays and now and then on a new one with a head
that nobody has sent before, and reads back some of what it published, until its standard input ends. Then it prints
one line of JSON (`watching.Report`).

How long it had to wait is measured twice. By the clock, which is only reported: two shared cores stand still for
reasons of their own. And by the CPU time that the server's loop spent between a request and its answer, which says
how long the loop did other work first, however busy the machine is. Of several processes that are one server, the one
counts that spent the most. What the loop may have done while the answer was
here already, and the bystander waited for a core to read it, is taken off.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

PAUSE_SECONDS = 0.01  # between two publishes: the pace of a client, not a wait for something
NEW_CONNECTION_EVERY = 3
READ_EVERY = 4
ANSWER_SECONDS = 30
STREAM = "/bystander"


class Bystander:
    """What one innocent client does and sees."""

    def __init__(self, port: int, token: str, pids: list[str]) -> None:
        self._port, self._headers = port, {"Authorization": f"Bearer {token}"}
        self._loop_cpu = [Path(f"/proc/{pid}/task/{pid}/schedstat") for pid in pids]
        self._kept = self._connect()
        self.errors: list[str] = []
        self.sent: list[str] = []
        self.heard: list[str] = []
        self.cpu_ms: list[float] = []
        self.wall_ms: list[float] = []
        self.ended = threading.Event()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS)

    def open_tail(self) -> None:
        """Listen from now on; returns when the server has answered."""
        connection = self._connect()
        connection.request("GET", f"/v1/tail?streams={quote(STREAM)}", headers=self._headers)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise SystemExit(f"the tail was refused: {answer.status} {answer.read()[:200]!r}")
        threading.Thread(target=self._listen, args=(answer,), daemon=True).start()

    def _listen(self, answer: http.client.HTTPResponse) -> None:
        try:
            while line := answer.readline():
                self.heard.append(json.loads(line)["data"])
            if not self.ended.is_set():
                self.errors.append("the tail ended")
        except Exception as error:  # noqa: BLE001 (whatever it is, it goes into the report)
            if not self.ended.is_set():
                self.errors.append(f"tail: {error!r}")

    def publish(self) -> None:
        number = len(self.sent)
        fresh = number % NEW_CONNECTION_EVERY == 0
        connection = self._connect() if fresh else self._kept
        body = f"event {number}"
        cpu, waited, begun = self._spent(), self._waited(), time.perf_counter()
        try:
            headers = self._headers | {"X-Number": str(number)} if fresh else self._headers
            connection.request("POST", f"/v1/publish?stream={quote(STREAM)}", body, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status == http.HTTPStatus.CREATED:
                self.sent.append(body)
                if number % READ_EVERY == 0:
                    self._read_back(connection, json.loads(text)["index"], body)
            else:
                self.errors.append(f"publish: {answer.status} {text[:200]!r}")
        except Exception as error:  # noqa: BLE001
            self.errors.append(f"publish{' on a new connection' if fresh else ''}: {error!r}")
            self._kept.close()
        self.wall_ms.append((time.perf_counter() - begun) * 1e3)
        most = max(after - before for after, before in zip(self._spent(), cpu, strict=True))
        self.cpu_ms.append(max(0, most - (self._waited() - waited)) / 1e6)
        if fresh:
            connection.close()

    def _read_back(self, connection: http.client.HTTPConnection, index: int, body: str) -> None:
        connection.request("GET", f"/v1/read?stream={quote(STREAM)}&from={index}&limit=1", headers=self._headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != http.HTTPStatus.OK or [one["data"] for one in json.loads(text)["entries"]] != [body]:
            self.errors.append(f"read: {answer.status} {text[:200]!r}")

    def _spent(self) -> list[int]:
        """Nanoseconds of CPU that the threads of the server's loops have used."""
        try:
            return [int(loop.read_text().split()[0]) for loop in self._loop_cpu]
        except FileNotFoundError:
            return [0] * len(self._loop_cpu)  # the server is gone: the publishes say so

    def _waited(self) -> int:
        """Nanoseconds that this process's first thread, which publishes, was ready to run and had no core."""
        return int(Path("/proc/self/schedstat").read_text().split()[1])

    def wait_for_all(self) -> None:
        """Let what is on its way come."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while len(self.heard) < len(self.sent) and not self.errors and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
        self.ended.set()

    def report(self) -> str:
        return json.dumps(
            {
                "published": len(self.sent),
                "errors": self.errors[:20],
                "heard_all": self.heard == self.sent,
                "loop_cpu_ms": round(max(self.cpu_ms, default=0), 1),
                "wall_ms": round(max(self.wall_ms, default=0), 1),
                "median_ms": round(sorted(self.wall_ms)[len(self.wall_ms) // 2], 2) if self.wall_ms else 0,
            }
        )


def main(port: str, token: str, pids: str) -> None:
    one = Bystander(int(port), token, pids.split(","))
    one.open_tail()
    one.publish()
    print("ready", flush=True)  # noqa: T201
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    one.publish()  # also beside what is over at once
    while not over.wait(PAUSE_SECONDS):
        one.publish()
    one.wait_for_all()
    print(one.report(), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
