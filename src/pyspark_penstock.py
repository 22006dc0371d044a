"""Lets Spark find `format("penstock")` by itself: it imports top-level modules whose names begin with `pyspark_`."""

from penstock.pipeline.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
