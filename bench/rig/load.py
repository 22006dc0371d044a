"""Closed-loop load from whichever generator is there: our own, or wrk (C, Debian package `wrk`).

wrk costs a fifth of our own per request, so on two cores the server gets more of them. What it cannot
do is look at each answer: `confirm` compares its count with what the log has stored.
"""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.rig.child import Child
from bench.rig.machine import QUIET, Neighbours, cpu_seconds
from bench.rig.requests import save
from penstock.testing.programs import find_program

_SCRIPT = """
local requests = {}
for line in io.lines("%(file)s") do
   requests[#requests + 1] = (line:gsub("\\\\(%%d%%d%%d)", function(code) return string.char(tonumber(code)) end))
end
local generated = %(generated)s
request = function()
   if #generated > 0 then
      return (requests[1]:gsub("STREAM", generated .. math.random(0, %(streams)d - 1), 1))
   end
   return #requests == 1 and requests[1] or requests[math.random(#requests)]
end
done = function(summary, latency, requests)
   local e = summary.errors
   print(string.format('{"requests":%%d,"us":%%d,"p50":%%.3f,"p99":%%.3f,"errors":%%d}', summary.requests,
      summary.duration, latency:percentile(50) / 1000, latency:percentile(99) / 1000,
      e.connect + e.read + e.write + e.status + e.timeout))
end
"""


class LoadFailed(Exception):
    """Some requests were not answered as they should have been."""


@dataclass(frozen=True, slots=True)
class Load:
    """What came of one run."""

    generator: str
    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    client_cpu: float  # seconds
    server_cpu: float
    neighbours: float  # cores that others on this machine used meanwhile

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def quiet(self) -> bool:
        """Neighbours took next to nothing meanwhile."""
        return self.neighbours < 2 * QUIET

    @property
    def server_us(self) -> float:
        """CPU time of all the server's threads for one request."""
        return 1e6 * self.server_cpu / self.requests


@dataclass(frozen=True, slots=True)
class Target:
    """A server under load."""

    port: int
    pid: int


def generators() -> tuple[str, ...]:
    """Those that can be used here, ours last."""
    return ("wrk", "own") if find_program("wrk") else ("own",)


def press(
    generator: str, target: Target, folder: Path, requests: Sequence[bytes], in_flight: int, seconds: float
) -> Load:
    """Keep *in_flight* requests under way for *seconds*."""
    before, neighbours = cpu_seconds(target.pid), Neighbours()
    if generator == "wrk":
        outcome = _wrk(_script(folder, requests), target.port, in_flight, seconds)
    else:
        outcome = _own(target.port, save(folder / "requests.json", *requests), in_flight, seconds)
    return _load(generator, outcome, cpu_seconds(target.pid) - before, neighbours)


def press_streams(target: Target, folder: Path, request: bytes, names: tuple[str, int], seconds: float) -> Load:
    """64 publishes under way; *request* names the stream STREAM, each one goes to another of *names*."""
    before, neighbours = cpu_seconds(target.pid), Neighbours()
    prefix, count = names
    if "wrk" in generators():
        outcome = _wrk(_script(folder, [request], prefix, count), target.port, 64, seconds)
        return _load("wrk", outcome, cpu_seconds(target.pid) - before, neighbours)
    # Our own generator takes requests that are made before; a sample stands for all.
    step = max(1, count // 50_000)
    made = [request.replace(b"STREAM", b"%b%d" % (prefix.encode(), number)) for number in range(0, count, step)]
    return press("own", target, folder, made, 64, seconds)


def undisturbed(loads: Sequence[Load]) -> list[Load]:
    """The runs during which neighbours took next to nothing; all of them if there is none."""
    return [load for load in loads if load.quiet] or list(loads)


Outcome = tuple[int, float, float, float, float]


def _load(generator: str, outcome: Outcome, server_cpu: float, neighbours: Neighbours) -> Load:
    client_cpu = outcome[-1]
    return Load(generator, *outcome, server_cpu, neighbours.cores(server_cpu + client_cpu))


def _own(port: int, file: Path, in_flight: int, seconds: float) -> Outcome:
    with Child("publishers", port, in_flight, file, "seconds", seconds) as child:
        got = child.answer()
    return got["requests"], got["seconds"], got["p50_ms"], got["p99_ms"], got["cpu"]


def _wrk(script: Path, port: int, in_flight: int, seconds: float) -> Outcome:
    command = [find_program("wrk") or "wrk", "-t1", f"-c{in_flight}", f"-d{max(1, round(seconds))}s", "-s", str(script)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = subprocess.run([*command, f"http://127.0.0.1:{port}/"], capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    got = json.loads(output.strip().splitlines()[-1])
    if got["errors"]:
        raise LoadFailed(f"wrk saw {got['errors']} errors among {got['requests']} requests")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return got["requests"], got["us"] / 1e6, got["p50"], got["p99"], cpu


def _script(folder: Path, requests: Sequence[bytes], generated: str = "", streams: int = 1) -> Path:
    """A Lua script that sends these bytes. Line ends and backslashes are written as codes in the file."""
    file, script = folder / "requests.txt", folder / "load.lua"
    file.write_text("".join(_one_line(request) + "\n" for request in requests))
    script.write_text(_SCRIPT % {"file": file, "generated": f'"{generated}"', "streams": streams})
    return script


def _one_line(request: bytes) -> str:
    return "".join(chr(byte) if byte not in b"\r\n\\" else f"\\{byte:03d}" for byte in request)
