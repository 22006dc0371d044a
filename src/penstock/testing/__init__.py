"""For tests against a real server: yours, and ours.

    with start_server(tmp_path / "data", server_linger_ms=5) as server:
        wait_until(lambda: healthy(server.url))

No server imports this; of the commands only `demo`, `cluster demo` and `test` do.
"""

from penstock.testing.nats import NatsCluster, NatsServer, start_nats
from penstock.testing.programs import require_program
from penstock.testing.seaweedfs import S3Server, start_s3
from penstock.testing.servers import RunningServer, ServerFailed, start_log_process, start_nodes, start_server
from penstock.testing.waiting import TooLate, wait_until, wait_until_async

__all__ = [
    "NatsCluster",
    "NatsServer",
    "RunningServer",
    "S3Server",
    "ServerFailed",
    "TooLate",
    "require_program",
    "start_log_process",
    "start_nats",
    "start_nodes",
    "start_s3",
    "start_server",
    "wait_until",
    "wait_until_async",
]
