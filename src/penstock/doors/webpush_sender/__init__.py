"""The sender of Web Push: streams bound to browsers, whatever push service those named."""

from penstock.doors.webpush_sender.door import WebPushSender

__all__ = ["WebPushSender"]
