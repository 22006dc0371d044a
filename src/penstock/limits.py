"""Every fixed limit, with its reason and what happens there. docs/limits.md is made from this file.

A limit that operators may change is a setting (config.py); its default is written there.
"""

from __future__ import annotations

from typing import Final

# ── the log ────────────────────────────────────────────────────────────────────────────────────

BATCH_ENTRIES: Final = 1_000
"""Entries in one atomic batch. JetStream refuses larger ones (10199), so no engine takes them.
Over it: a longer NDJSON body is split into several batches; anything else gets 413."""

BATCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of bodies in one atomic batch: one transaction must stay short. Over it: as BATCH_ENTRIES."""

ENTRY_BYTES: Final = 1024 * 1024 - 4096
"""Body bytes of one entry: 1 MiB is JetStream's largest message, 4 KiB are left for its headers.
Over it: 413."""

ATTRIBUTES_BYTES: Final = 2048
"""Bytes of an entry's attributes, as JSON: they must fit beside the body. Over it: 413."""

TYPE_BYTES: Final = 256
"""Bytes of an entry's type: it becomes a header. Over it: 400."""

EXPIRES_SECONDS: Final = 10 * 366 * 24 * 3600
"""Longest time to live that a publisher may ask for; longer is as good as for ever. Over it: 400."""

NAME_BYTES: Final = 512
"""Bytes of a stream name: it is part of every cursor and of JetStream subjects. Over it: 400."""

NAME_LEVELS: Final = 16
"""Levels of a stream name: matching costs one step per level. Over it: 400."""

LEVEL_BYTES: Final = 128
"""Bytes of one level of a name. Over it: 400."""

LINE_BYTES: Final = 65_534
"""Content bytes of an Event Horizon line: readers of that protocol cannot read a longer one back.
Over it: the entry is shown to them as a `/Bytes` meta line."""

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Bytes after which an Event Horizon chunk is sealed. At it: `Rotated`, and a new chunk begins."""

PATTERNS: Final = 64
"""Streams or patterns that one reader may ask for at once: each is looked up on a read. Over it: 413."""

PAGE_ENTRIES: Final = 1_000
"""Entries that one read returns at most. More: the caller reads the next page."""

PAGE_BYTES: Final = 4 * 1024 * 1024
"""Body bytes that one read returns at most (one entry always fits): bounds memory per reader."""

KEY_SECONDS: Final = 24 * 3600
"""How long an idempotency key is remembered. After it: the same key stores a new entry."""

KEY_COUNT: Final = 1_000_000
"""How many idempotency keys are remembered; the oldest go first."""

KEY_BYTES: Final = 256
"""Bytes of an idempotency key or a producer's name. Over it: 400."""

# ── mailboxes and registry ─────────────────────────────────────────────────────────────────────

RECIPIENT_BYTES: Final = 256
"""Bytes of a recipient's name. Over it: 400."""

MAILBOX_PAGE: Final = 500
"""Items that one `take` returns at most."""

RECORD_BYTES: Final = 256 * 1024
"""Bytes of a registry record: records are small and read whole. Over it: 413."""

RECORD_KEY_BYTES: Final = 512
"""Bytes of a registry key. Over it: 400."""

# ── the ledger ─────────────────────────────────────────────────────────────────────────────────

LEDGER_BATCH_BYTES: Final = 700 * 1024
"""Bytes of one batch of ledger records: it must fit into one entry. Over it: a further batch."""

LEDGER_WAITING: Final = 2_000_000
"""Records that wait in memory while the log takes nothing. Over it: the oldest batches are emptied
and say how many records they lost, so that an audit never takes those for undelivered."""

# ── Event Horizon ──────────────────────────────────────────────────────────────────────────────

PUSHERS: Final = 10_000
"""Pushers that one server runs: each holds a task and a few connections. Over it: 413."""

# ── connections ────────────────────────────────────────────────────────────────────────────────

URL_BYTES: Final = 8 * 1024
"""Bytes of a request target: no client of the doors needs more, and proxies stop there too. Over it: 414."""

HEAD_BYTES: Final = 32 * 1024
"""Bytes of a whole request head: it is held in memory until it is complete. Over it: 431."""

KNOWN_HEADS: Final = 4_096
"""Request heads that are remembered as parsed, of at most KNOWN_HEAD_BYTES each. Over it: all are forgotten."""

KNOWN_HEAD_BYTES: Final = 1024
"""A longer head is parsed each time: 4,096 of these are 4 MiB."""

HEAD_FIELDS: Final = 100
"""Header fields of one request: each costs time before anybody is authenticated. Over it: 431."""

CHUNK_EXTENSION_BYTES: Final = 256
"""Bytes of one chunk's size line: extensions mean nothing here and must not cost much. Over it: 400."""

TRAILER_BYTES: Final = 4 * 1024
"""Bytes of the trailer fields after a chunked body; they are read and dropped. Over it: 400."""

PIPELINED_BYTES: Final = 64 * 1024
"""Bytes kept of what a client sends before its last answer is complete. At it: no more is read."""

BODY_BUFFER_BYTES: Final = 64 * 1024
"""Bytes of a streamed body that wait for the handler. At it: no more is read until it has caught up."""

BODY_PROGRESS_BYTES: Final = 1024
"""Bytes of a body that must come in each `server.body_timeout`. Fewer: 408, and the connection is closed."""

UNREAD_BODY_BYTES: Final = 256 * 1024
"""Bytes of a body that nobody wanted which are still read, so that the answer gets through and the connection
can be used again. Over it: it is closed."""

INPUT_QUEUE_BYTES: Final = 256 * 1024
"""Output that may wait on a connection while more requests are taken from it: a client that asks and asks but
never reads is not read from until it has."""

RATE_BUCKETS: Final = 100_000
"""Addresses and tokens whose rates are remembered. Over it: those quiet for longest are forgotten, which can
only allow them a little more."""

# ── sps ────────────────────────────────────────────────────────────────────────────────────────

TOPIC_BYTES: Final = 64
"""Bytes of a topic that is no stream name: the first sps cut them at 36, and long ones collided. Over it: 400."""

DEVICE_CHARACTERS: Final = 64
"""Characters of a device's name (`hid`): it is part of every record about the device. Over it: 400."""

UNCONFIRMED_SPANS: Final = 64
"""Intervals of sent and unconfirmed events that are remembered for one wire; several only where some events
of a stream were for other devices. Over it: the oldest are forgotten and stay `sent` in the ledger."""

UNCONFIRMED_WIRES: Final = 20_000
"""Wires whose unconfirmed events are remembered after they ended. Over it: the oldest stay `sent`."""

PRESENCE_LINES: Final = 100_000
"""Changes of presence that wait while the log takes nothing. Over it: the oldest are dropped, and logged."""

USER_TOKEN_SECONDS: Final = 90 * 24 * 3600
"""Longest life of a user's token (`POST /v1/tokens`): it cannot be called back. Over it: 400."""
