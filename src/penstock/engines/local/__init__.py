"""The engine of several processes on one machine: one keeps the log, the others have the connections."""

from penstock.engines.local.log_process import LogServer
from penstock.engines.local.worker_engine import WorkerEngine, open_worker_engine

__all__ = ["LogServer", "WorkerEngine", "open_worker_engine"]
