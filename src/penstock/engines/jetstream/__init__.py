"""The cluster's engine: log, mailbox, registry and bus on NATS JetStream."""

from penstock.engines.jetstream.engine import JetStreamEngine, open_jetstream

__all__ = ["JetStreamEngine", "open_jetstream"]
