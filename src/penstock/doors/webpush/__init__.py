"""Web Push: user agents on WebSockets, endpoints for senders, messages kept by month."""

from penstock.doors.webpush.door import WebPush

__all__ = ["WebPush"]
