"""The fixed limits that a peer can notice, with their reasons and what happens there. docs/limits.md is made of it.

A limit that operators may change is a setting (settings.py). One that only the server itself notices (how much a cache
remembers, how much is done in one turn of the loop) is a constant beside its use.
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
"""Longest time to live that a publisher may ask for, of an event or of a channel's segments; longer is as good as for
ever. Over it: 400."""

NAME_BYTES: Final = 512
"""Bytes of a stream name: it is part of every cursor and of JetStream subjects. Over it: 400."""

NAME_LEVELS: Final = 16
"""Levels of a stream name: a look-up goes level by level. Over it: 400."""

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

SHOWN_BYTES: Final = 512 * 1024
"""Body bytes that one answer to a read shows (one entry always fits): making one holds the loop, a millisecond or two.
More: the answer says so, and the caller reads the next page."""

LARGE_PAGES: Final = 256
"""Pages of `/v1/read` with 64 KiB or more that wait until their JSON is made, one after the other. Each holds 512 KiB,
or one event. Over it: 503."""

SEARCHED_STREAMS: Final = 20_000
"""Streams whose names one search looks through: some 60 ms. More: the answer says after which name to go on."""

STATS_SECONDS: Final = 15 * 60
"""Seconds that `/v1/stats` keeps: some 200 KB, and as far back as one looks when something just happened. Older ones
are forgotten; a monitoring system keeps what it scraped from `/metrics`."""

KEY_SECONDS: Final = 24 * 3600
"""How long an idempotency key is remembered. After it: the same key stores a new entry."""

KEY_COUNT: Final = 1_000_000
"""How many idempotency keys are remembered; the oldest go first."""

KEY_BYTES: Final = 256
"""Bytes of an idempotency key or a producer's name. Over it: 400."""

KEEP_LEAST_SECONDS: Final = 1
"""Youngest age for `log.keep`: nothing, or less than that, is a slip that empties the log. Under it: refused."""

KEEP_LEAST_BYTES: Final = 1024
"""Smallest size for `log.keep`, for the same reason. Under it: refused."""

CALL_BYTES: Final = 64 * 1024
"""Bytes of a request body that is one JSON object of names and numbers: decoding holds up the loop. Over it: 413."""

REPORT_BYTES: Final = 256 * 1024
"""Bytes of what a pusher elsewhere reports at once: LEDGER_REPORT_STATES reasons of LEDGER_REASON_CHARACTERS, each
character written as two escapes (12 bytes), and two names. Over it: 413."""

LENIENT_BYTES: Final = 1024 * 1024
"""Bytes of a JSON body of the Event Horizon door in which names are found whatever their case, which takes a table of
all names in it. Over it: names are matched as they are documented, and others are passed over."""

ERASE_IDS: Final = 1_000
"""Ids of one request to erase: each is looked up, and all are one entry of `/_erased`. Over it: 413."""

SCANS: Final = 1_000
"""Slices of scans over all streams that wait or run in SQLite. Over it: 503."""

READS: Final = 10_000
"""Reads that wait or run in SQLite. Over it: 503."""

EXPORTS: Final = 8
"""Plans and exports that run at once: each takes some megabytes and a good part of a core. The admin, and so the
pipeline, has as many for itself. Over it: 503."""

EXPORTS_SHARE: Final = 2
"""What one token's subject may have of EXPORTS, as a divisor: half. A client that reads slowly, or not at all, keeps
nobody else from the log. Over it: 503."""

PLAN_SLICES: Final = 10_000
"""Slices of one plan, asked for with `parts=` or made by a clock that jumps to and fro over midnight. Over it:
400 for the former, and the plan ends earlier for the latter."""

NEWS_SECONDS: Final = 60
"""Longest time that a request for news waits: shorter than the silence that proxies cut. Over it: 400."""

# ── mailboxes and registry ─────────────────────────────────────────────────────────────────────

RECIPIENT_BYTES: Final = 256
"""Bytes of a recipient's name. Over it: 400."""

MAILBOX_PAGE: Final = 500
"""Items that one look into a mailbox returns at most. Over it, in a page that the API is asked for: 400."""

MAILBOX_MONTHS: Final = 1
"""Months before the present one whose mailboxes are kept, as autopush does. After it: a user agent that was not seen
since, for 30 to 60 days, is dropped with what waits for it, and registers again."""

RECORD_BYTES: Final = 256 * 1024
"""Bytes of a registry record: records are small and read whole. Over it: 413."""

POSITION_BYTES: Final = 16 * 1024
"""Bytes of a record that a token with `export` keeps at `/v1/pipeline/records`, the position of a consumer or a sink.
Over it: 413."""

RECORD_KEY_BYTES: Final = 512
"""Bytes of a registry key. Over it: 400."""

NODE_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""Bytes of what one node or worker answers another, such as the devices of a user that listen there: whoever asked
holds it whole. Over it: 413."""

# ── the ledger ─────────────────────────────────────────────────────────────────────────────────

LEDGER_REASON_CHARACTERS: Final = 200
"""Characters of the reason that a record gives: it is for people. Over it: the rest is left out; of a report, 400."""

LEDGER_REPORT_STATES: Final = 100
"""Things that one report of a pusher elsewhere may say of one interval: it has some two or three. Over it: 413."""

# ── the lake ───────────────────────────────────────────────────────────────────────────────────

MESSAGE_ID_CHARACTERS: Final = 512
"""Characters of what `why` takes for the id of a message; those of Web Push are shorter. Over it: 400."""

WAY_RECIPIENTS: Final = 100_000
"""Recipients of one entry that the way of a message looks at: each takes some 300 bytes while it is answered. Over it:
the answer counts those, and says that it is not complete."""

WAY_LEDGER_BYTES: Final = 64 * 1024 * 1024
"""Bytes of ledger batches that are read for the way of one message, from the entry on. Over it: the answer says that
it is not complete; the lake, once the ledger is folded into it, has the rest."""

WAY_PAGE: Final = 1_000
"""Recipients on one page of the way of a message, and of the list of recipients. Over it: 400."""

TROUBLES: Final = 50_000
"""Deliveries in trouble that a node holds for who asks about them, some 500 bytes each. Over it: the oldest are
forgotten, and the answer says how many."""

TROUBLE_LEDGER_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the ledger's newest batches that are read when somebody first asks what is in trouble. Over it: the answer
says since when it is complete."""

REDRIVES: Final = 1_000
"""Deliveries that one call tries again. Over it: those that are the newest; the answer says how many are left."""

RECIPIENTS_SEEN: Final = 20_000
"""Recipients of one kind that one list looks at. Over it: the answer says that there are more; one is found by name."""

RECIPIENTS_TOLD_BYTES: Final = 512 * 1024
"""Bytes of recipients that a worker or node tells another one for one list: some 3,000, in one message, of which NATS
takes 1 MiB. Over it: the first ones in the order of the list; the answer says that there are more."""

SUMMED_HOURS: Final = 90 * 24
"""Hours that one answer of `/v1/pipeline/hours` sums up: three months. Over it: 400."""

LAKE_READS: Final = 256
"""Reads of the lake that run or wait at once: each holds a place in line for its two threads. Over it: 503."""

LAKE_SECONDS: Final = 20
"""Seconds that a question to the lake takes at most, with its wait in line: a store may be away. Over it: 503."""

SQL_AT_ONCE: Final = 2
"""Questions in SQL that one server process has answered at once: each is a process with a core of its own. Over it:
503."""

SQL_SECONDS: Final = 30
"""Seconds that a question in SQL takes at most. Over it: 413 `sql_too_large`; './penstock lake sql' has longer."""

SQL_MEMORY_MIB: Final = 512
"""MiB of memory that DuckDB may use for one question in SQL. Over it: 413 `sql_too_large`."""

SQL_ROWS: Final = 1_000
"""Rows of an answer to a question in SQL: people read it. Over it: it is cut, and says so."""

SQL_ANSWER_MIB: Final = 4
"""MiB of an answer to a question in SQL: the server holds it whole. Over it: 413 `sql_too_large`."""

TYPED_TABLES: Final = 64
"""Typed tables that are declared at once: each takes a turn of the pipeline every few seconds. Over it: 413."""

TYPED_COLUMNS: Final = 256
"""Columns of one typed table: a registry record holds all tables, compressed. Over it: 413."""

TYPED_NAME_CHARACTERS: Final = 63
"""Characters of the name of a typed table or of its column: what all readers of the lake take. Over it: 400."""

TYPED_PATH_BYTES: Final = 256
"""Bytes of the path of a column: as deep as bodies are nested by people. Over it: 400."""

# ── Event Horizon ──────────────────────────────────────────────────────────────────────────────

PUSHERS: Final = 10_000
"""Pushers that one server runs: each holds a task and a few connections. Over it: 413."""

SUBSCRIBERS: Final = 1_000
"""Subscriptions to one stream: each costs an entry whenever it grows, and all are stored in one record, which JetStream
takes up to 1 MiB. Over it: 413."""

# ── Web Push, the sender ──────────────────────────────────────────────────────────────────────

BINDINGS: Final = 100_000
"""Subscriptions of browsers that one server binds to streams: each holds some 2 KB of memory. Over it: 413."""

# ── tokens ─────────────────────────────────────────────────────────────────────────────────────

SUBJECT_BYTES: Final = 256
"""Bytes of a token's subject: it is part of the ledger's records and of every idempotency key. Over it: 401."""

SUBJECT_SHARE: Final = 2
"""What one token's subject may have of PUSHERS, of BINDINGS, and of the settings `trickle.channels`, `trickle.waiting`
and `trickle.memory_bytes`, as a divisor: half, so that it keeps nobody else out. The admin may have all. A right in a
channel's name counts as its maker. Over it: as over the whole."""

SECRET_BYTES: Final = 32
"""Least bytes of an HS256 secret in keys.json: as many as its digests have (RFC 7518, 3.2). Under it: the file is
refused, at the start or when it is read again."""

ADMIN_TOKEN_CHARACTERS: Final = 16
"""Least characters of an admin token that an operator gives: fewer could be guessed. Under it: a warning."""

# ── connections ────────────────────────────────────────────────────────────────────────────────

URL_BYTES: Final = 8 * 1024
"""Bytes of a request target: no client of the doors needs more, and proxies stop there too. Over it: 414."""

HEAD_BYTES: Final = 32 * 1024
"""Bytes of a whole request head: it is held in memory until it is complete. Over it: 431."""

HEAD_FIELDS: Final = 100
"""Header fields of one request: each costs time before anybody is authenticated. Over it: 431."""

CHUNK_EXTENSION_BYTES: Final = 256
"""Bytes of one chunk's size line: extensions mean nothing here and must not cost much. Over it: 400."""

CHUNK_FRAMING_BYTES: Final = 1024 * 1024
"""Bytes by which the framing of a chunked body may outweigh the body: some hundred thousand chunks of a byte or two,
each of which costs as much as a large one. Over it: 400."""

TRAILER_BYTES: Final = 4 * 1024
"""Bytes of the trailer fields after a chunked body; they are read and dropped. Over it: 400."""

COUNTED_BODY_BYTES: Final = 16 * 1024
"""Bytes of a request body from which on it counts under `server.bodies_bytes`, until its request is answered; so does
a WebSocket message that is not complete. Smaller ones are no more than what a connection may hold in any case."""

COUNTED_ANSWER_BYTES: Final = 64 * 1024
"""Bytes of an answer from which on it counts under `server.answers_bytes`, until the peer has taken it. Smaller ones
are mostly taken by the kernel. An event of 1 MiB can be 6 MiB of JSON, and a client can ask for it on many connections
and read none of them. Over that setting: 503 in its place."""

BODIES_SHARE: Final = 4
"""One client address may hold one part in so many of `server.bodies_bytes`, and of `server.answers_bytes`, and always
one body or answer. Over it, or over the whole: 503 before the body is read (a chunked one: in the middle of it), or in
the place of the answer; WebSockets are closed with 1013."""

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

# ── answers to requests that the server sends ──────────────────────────────────────────────────

ANSWER_HEAD_BYTES: Final = 32 * 1024
"""Bytes of an answer besides its body: status lines and fields of the interim answers, of the answer itself and of its
trailer. Over it: the answer is broken, its connection is closed, and the push is tried again as after any failure."""

ANSWER_BODY_BYTES: Final = 1024 * 1024
"""Bytes of an answer's body: nobody who is pushed to has more to say. The framing of its chunks may outweigh them by
ANSWER_HEAD_BYTES. Over it: as ANSWER_HEAD_BYTES."""

# ── WebSockets ─────────────────────────────────────────────────────────────────────────────────

FRAGMENTS: Final = 1_024
"""Frames of one WebSocket message: an empty one adds nothing to its size, but has its price. Over it: closed, 1008."""

# ── sps ────────────────────────────────────────────────────────────────────────────────────────

TOPIC_BYTES: Final = 64
"""Bytes of a topic that is no stream name: the first sps cut them at 36, and long ones collided. Over it: 400."""

DEVICE_CHARACTERS: Final = 64
"""Characters of a device's name (`hid`): it is part of every record about the device. Over it: 400."""

USER_TOKEN_SECONDS: Final = 90 * 24 * 3600
"""Longest life of a user's token (`POST /v1/tokens`): it cannot be called back. Over it: 400."""

TOPIC_CHANGES: Final = 64
"""Changes of topics that an sps wire which is behind is still in for: what came before each is matched against it.
Over it: 503 `wire_behind` until the device has read on."""

FORMER_TOPICS: Final = 256
"""Topics, with those of such changes, that a wire reads under: each is looked up on a read.
Over it: as TOPIC_CHANGES."""

# ── Web Push ───────────────────────────────────────────────────────────────────────────────────

PUSH_PAGE: Final = 10
"""Stored notifications that are sent before an acknowledgement is waited for, as autopush does. More: the next
page comes when all of them are acknowledged."""

PUSH_COMMANDS: Final = 1_024
"""Commands of one user agent that wait while one of them is carried out; a distributor registers some hundred
channels in one burst. Over it: closed, 1008."""

PUSH_COMMAND_BYTES: Final = 512 * 1024
"""Bytes of the commands that one user agent sent since it last had none waiting: a command of some 150 bytes can as
well be one of a million broadcasts. Over it: closed, 1008."""

PUSH_CHANNELS: Final = 2_000
"""Channels of one user agent: they are read whole at each connect. Over it: register answers 413."""

PUSH_BODY_READ: Final = 256 * 1024
"""Bytes of a message's body that are read before it is refused. Over it: 413 at once, and the connection ends."""

BROADCASTS: Final = 100
"""Broadcasts of one server: a user agent may ask for all of them, and is told of each change. Over it: 413."""

BROADCAST_ID_CHARACTERS: Final = 128
"""Characters of a broadcast's id. Over it: 400."""

BROADCAST_VERSION_CHARACTERS: Final = 256
"""Characters of a broadcast's version: each user agent that asked for it holds the one it knows. Over it: 400."""

VAPID_SECONDS: Final = 24 * 3600
"""How far ahead the `exp` of a sender's token may be, by RFC 8292. Over it: 401, errno 109."""

VAPID_CHARACTERS: Final = 4096
"""Characters of a sender's token: more than any needs, and cheap to refuse. Over it: 401, errno 109."""

VAPID_LEEWAY_SECONDS: Final = 60
"""How far a sender's clock may be off. Over it: 401, errno 109."""

CODING_CHARACTERS: Final = 2048
"""Characters of `Encryption` and of `Crypto-Key` with the older `aesgcm`: both are stored beside the message, and real
ones have some 200. Over it: 400, errno 110."""

# ── the message stream ─────────────────────────────────────────────────────────────────────────

ACTOR_BYTES: Final = 128
"""Bytes of an actor's name: it is part of record keys and of every session key. Over it: 400."""

SESSION_META_BYTES: Final = 4096
"""Bytes of what a backend keeps with a session: records are small and read whole. Over it: 413."""

SESSION_SECONDS: Final = 90 * 24 * 3600
"""Longest life of a session without a sign of life from its client. Over it: 400."""

EMIT_ACTORS: Final = 1_000
"""Actors of one emit: each is a write of its own. Over it: 413; a broadcast has no such limit."""

MESSAGE_TYPE_BYTES: Final = 256
"""Bytes of a message's type: in a stream it is the type of an entry (TYPE_BYTES). Over it: 400."""

PACK_MESSAGES: Final = 1_000
"""Messages of one pack: emitted to a stream each is an entry of one batch (BATCH_ENTRIES). Over it: 413."""

PACK_BYTES: Final = 512 * 1024
"""Bytes of one pack's data: a pack is one item of a mailbox or one entry, and clients hold it whole. Over it: 413."""

CONFIRM_BYTES: Final = 64 * 1024
"""Bytes of one frame of pack ids: more than there can be packs. Over it: the WebSocket is closed with 1009."""

CONFIRMS: Final = 100_000
"""Pack ids of one session that wait while some are made durable, those that come again counted again. Over it: the
WebSocket is closed with 1008."""

# ── Trickle ────────────────────────────────────────────────────────────────────────────────────

CAPABILITY_SECONDS: Final = 10 * 366 * 24 * 3600
"""Longest life of a right that a channel's name carries (`POST /v1/capabilities`). Over it: 400."""

CONTENT_TYPE_BYTES: Final = 256
"""Bytes of a channel's content type: it is written beside every recorded segment. Over it: 400."""

CHANNEL_SEGMENTS: Final = 10_000
"""Segments that a channel may ask to keep, and the most that `trickle.segments` can be: each is held in memory.
Over it: 400."""

SEGMENTS_AHEAD: Final = 5
"""Numbers beyond the head that a Trickle publisher may connect to: as many as the original keeps at all. Whoever cuts
segments has a few on their way, and one that was lost must not cost the next. Over it: 409 `seq_gap`."""

SEGMENT_MEMORY: Final = 1_024
"""Bytes that a Trickle segment counts beside its own: what it takes to keep one, however small. Counts towards
`trickle.memory_bytes`, which a million segments of a byte would escape otherwise. Over that: new segments get 503."""
