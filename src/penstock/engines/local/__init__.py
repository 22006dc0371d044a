"""The engine of several processes on one machine: one keeps the log, the others have the connections."""

from penstock.engines.local.engine import WorkerEngine, open_worker_engine
from penstock.engines.local.server import LogServer

__all__ = ["LogServer", "WorkerEngine", "open_worker_engine"]
