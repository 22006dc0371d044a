"""The message stream: packs of messages for sessions, kept until each is confirmed, by polling or WebSocket."""

from penstock.doors.msgstream.door import MessageStreamDoor

__all__ = ["MessageStreamDoor"]
