"""sps, the simple push server: one endless answer per user and device, with topics, resume and SSE."""

from penstock.doors.sps.door import Sps

__all__ = ["Sps"]
