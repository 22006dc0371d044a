"""The Event Horizon door."""

from penstock.doors.eventhorizon.door import EventHorizon

__all__ = ["EventHorizon"]
