"""Trickle: live segments over HTTP."""

from penstock.doors.trickle.door import Trickle

__all__ = ["Trickle"]
