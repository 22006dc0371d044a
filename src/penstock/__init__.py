"""A push server with proof of delivery: one durable log, five doors, a pipeline on Spark."""

__version__ = "0.1.0"
