"""Every setting, with its default, its unit and its reason. docs/operations.md is made from this file.

A setting is `section.name` everywhere. Adding one is one line in its section. Their values: `settings_reading.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeVar

from penstock.limits import CHANNEL_SEGMENTS

T = TypeVar("T")
ROLES = ("all", "endpoint", "connection")


def setting(
    default: T,
    description: str,
    *,
    unit: str = "",
    choices: tuple[str, ...] = (),
    least: float = 0,
    most: float = float("inf"),
    secret: bool = False,
) -> T:
    """Declare one setting of a section."""
    about = {"description": description, "unit": unit, "choices": choices, "secret": secret}
    declared: T = field(default=default, metadata={**about, "least": least, "most": most}, repr=not secret)
    return declared


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The listener and its connections."""

    listen: str = setting("127.0.0.1:8800", "Address and port for clients; port 0 takes a free one.")
    doors: tuple[str, ...] = setting(("all",), "Doors to open: all, or names with commas.")
    node: str = setting("", "This node's name in a cluster, different on each. Empty: the host's, and a random number.")
    workers: str = setting(
        "1",
        "Processes of this machine that have connections; auto: one for each core. With more than one, another keeps "
        "the log for all of them. Limits on connections and requests are those of each worker.",
    )
    roles: tuple[str, ...] = setting(
        ("all",), "What this node does, of the doors that can be split: all, or endpoint, connection with commas."
    )
    internal_listen: str = setting(
        "", "Address and port for other nodes of the cluster. Empty: none; they reach this node over the bus."
    )
    internal_address: str = setting(
        "", "How other nodes reach that listener, as http://10.0.0.5:8801. Empty: where it listens."
    )
    internal_token: str = setting(
        "", "What other nodes show there. Empty: made from the shared key of endpoints.", secret=True
    )
    linger_ms: int = setting(
        0, "How long an event may wait for others to share its write. 0: one loop turn.", unit="ms", most=20
    )
    request_timeout: float = setting(30.0, "From a request's head to the beginning of its answer.", unit="s")
    head_timeout: float = setting(
        10.0, "For a request's head, from its first byte: a slower peer is holding a slot open.", unit="s"
    )
    body_timeout: float = setting(30.0, "In each such span 1 KiB of a body must come.", unit="s")
    idle_timeout: float = setting(
        75.0,
        "Without a byte of a request, also before the first. Above the 60 s of common proxies: they close first.",
        unit="s",
    )
    stall_timeout: float = setting(
        30.0, "A subscriber that takes no byte for so long is cut; it resumes at its cursor.", unit="s"
    )
    drain_seconds: float = setting(
        10.0, "After SIGTERM, for running requests to end. Below the 30 s of common supervisors.", unit="s"
    )
    connections: int = setting(
        18_000, "Connections at once; below the common limit of 20,000 open files. Over it: closed at once.", least=1
    )
    connections_per_address: int = setting(
        0,
        "Connections at once from one address, or from a client that a PROXY line names. 0: no limit but "
        "server.connections, as a whole office may be one address. Over it: closed at once.",
    )
    connections_per_token: int = setting(
        0,
        "Live answers and WebSockets that are open at once under one token's subject, the admin's included. "
        "0: no limit. Over it: 429.",
    )
    requests_per_address: float = setting(0.0, "Requests per second from one address. 0: no limit. Over it: 429.")
    requests_per_token: float = setting(0.0, "Requests per second under one token. 0: no limit. Over it: 429.")
    trusted_proxies: tuple[str, ...] = setting(
        (), "Addresses or networks whose X-Forwarded-* and PROXY lines are believed."
    )
    proxy_protocol: bool = setting(False, "Trusted proxies begin every connection with a PROXY line.")
    cors_origins: tuple[str, ...] = setting(
        ("*",), "Origins whose pages may call. Safe as *: no cookie ever grants anything."
    )
    tls_certificate: str = setting("", "PEM file of the certificate chain. It is read again on SIGHUP, the key too.")
    tls_key: str = setting("", "PEM file of the certificate's key; empty when the certificate's file holds it too.")
    insecure: bool = setting(False, "Allow plain HTTP on other addresses than loopback: tokens travel readable.")
    write_high: int = setting(
        65_536, "Unsent bytes at which a connection's reader counts as slow. One socket buffer.", unit="bytes", least=1
    )
    websocket_bytes: int = setting(
        1024 * 1024, "Bytes of one WebSocket message from a peer: a full entry. Over it: 1009.", unit="bytes", least=1
    )
    body_limit: int = setting(
        8 * 1024 * 1024,
        "Bytes of a request body. Two full batches: longer input is sent in pieces. Over it: 413.",
        unit="bytes",
        least=1,
    )
    bodies_bytes: int = setting(
        256 * 1024 * 1024,
        "Bytes of request bodies of all connections: bounds memory. One address may hold a quarter. Over it: 503.",
        unit="bytes",
        least=1,
    )
    answers_bytes: int = setting(
        256 * 1024 * 1024,
        "Bytes of large answers that peers do not read, of all connections: bounds memory. One address may hold a "
        "quarter. Over it: 503.",
        unit="bytes",
        least=1,
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The durable log."""

    engine: str = setting(
        "sqlite",
        "Storage engine: sqlite, memory, or a cluster's NATS servers as nats://a:4222,b:4222. A worker has "
        "unix:PATH, the socket of its log process.",
    )
    prefix: str = setting("penstock", "Of a cluster: what its streams in NATS begin with. Letters, digits, - and _.")
    replicas: int = setting(3, "Of a cluster: NATS servers that keep each event.", least=1, most=5)
    credentials: str = setting("", "Of a cluster: a NATS credentials file.")
    synced: bool = setting(
        False,
        "Of a cluster: all NATS servers have sync_interval always. Nodes cannot see it; the ready line repeats it.",
    )
    keep: str = setting(
        "", "How much to keep: an age (30d; 1s at least), a size (50GiB; 1KiB at least), or empty for everything."
    )
    queue: int = setting(20_000, "Entries waiting for the writer; half a second of its work. Over it: 503.", least=1)
    queue_bytes: int = setting(
        256 * 1024 * 1024, "Bytes waiting for the writer: bounds memory. Over it: 503.", unit="bytes", least=1
    )
    fold: int = setting(
        32_768,
        "Entries that gather in memory, 32 bytes each, before their coordinates are folded into the file's indexes.",
        least=1,
    )
    readers: int = setting(2, "Threads that read: one long replay must not hold up the others.", least=1)
    gather_ms: int = setting(
        0, "How long publishes may wait for others to share their commit. Their answers wait as long.", unit="ms",
        least=0, most=20,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EventHorizonSettings:
    """The Event Horizon door."""

    server: str = setting(
        "127.0.0.1",
        "Last part of every cursor: letters, digits, '.', '-', '_', '~'. One for a cluster, fixed at the first start.",
    )
    activity_interval: float = setting(
        5.0, "Between two announcements of what moved in subscribed streams.", unit="s", least=0.01
    )
    push_timeout: float = setting(
        30.0, "For an app to answer a push. Over it: tried again later.", unit="s", least=0.01
    )
    push_retry: float = setting(1.0, "Until the first retry; doubled for each further one.", unit="s", least=0.01)
    push_retry_longest: float = setting(60.0, "Between retries at most.", unit="s", least=0.01)
    push_repeat: float = setting(
        5.0, "Until an app that did not move gets the same lines again, as the original does.", unit="s", least=0.01
    )
    push_slots: int = setting(8, "Pushes to one app at once, each of another stream.", least=1, most=256)


@dataclass(frozen=True, slots=True)
class SpsSettings:
    """The sps door."""

    anti_idle: float = setting(
        30.0, "Silence on a wire after which it gets a sign of life; below the 60 s of common proxies.", unit="s"
    )
    anti_idle_least: float = setting(5.0, "Shortest silence that a client may ask for with `i`.", unit="s", least=0.25)
    anti_idle_most: float = setting(300.0, "Longest silence that a client may ask for with `i`.", unit="s")
    subsist: float = setting(
        0.0, "Every client must show life this often, or is cut after three times as long. 0: those that promise it.",
        unit="s",
    )  # fmt: skip
    subsist_least: float = setting(5.0, "Shortest promise of life (`s`) that is taken.", unit="s", least=0.25)
    retry_ms: int = setting(2_000, "How long an EventSource waits before it comes back.", unit="ms")
    presence: bool = setting(True, "Write who comes and goes to /_presence.")
    encoded: int = setting(
        8_192, "Newest events kept as they look on the wire, so that a storm of reconnects encodes nothing.", least=1
    )
    encoded_bytes: int = setting(16 * 1024 * 1024, "Bytes of them at most, for each form.", unit="bytes", least=1)


@dataclass(frozen=True, slots=True)
class WebPushSettings:
    """The Web Push door."""

    origin: str = setting(
        "",
        "Public origin of endpoints, as https://push.example.net: what senders reach, and what VAPID's aud must say. "
        "Empty: what the user agent's or the sender's Host header says, which is right only without a proxy.",
    )
    token_keys: tuple[str, ...] = setting(
        (),
        "Fernet keys of endpoint tokens, the newest first: that one encrypts, all decrypt. "
        "Empty: one is made at the first start and kept with the data.",
        secret=True,
    )
    hello_timeout: float = setting(
        5.0, "From the WebSocket's opening to its hello. Over it: closed, 1011.", unit="s", least=0.25
    )
    ping_interval: float = setting(
        300.0, "Silence after which a user agent is pinged. Below the idle limit of the proxies in front. 0: never.",
        unit="s",
    )  # fmt: skip
    ping_timeout: float = setting(4.0, "For the answer to a ping. Over it: closed.", unit="s", least=0.25)
    ping_least: float = setting(
        45.0, "Least time between two pings `{}` of a user agent: more cost it its battery. Under it: closed, 4774.",
        unit="s",
    )  # fmt: skip
    msg_limit: int = setting(
        150,
        "Stored messages of one subscription that a user agent may come back to. The rest of them is dropped; if it "
        "has no other subscription, the user agent is, and subscribes anew. What is stored while it is connected does "
        "not count. 0: no limit.",
    )
    stored_most: int = setting(
        500,
        "Messages that are stored for one user agent: whoever knows an endpoint can send. Over it: 507 with "
        "Retry-After, nothing is taken.",
        least=1, most=100_000,
    )  # fmt: skip
    stored_bytes: int = setting(
        2 * 1024 * 1024, "Bytes that are stored for one user agent, for the same reason. Over it: 507 as well.",
        unit="bytes", least=65_536,
    )  # fmt: skip
    window: int = setting(
        1, "Unacknowledged notifications at which direct ones are stored instead; 1 is what autopush promised.",
        least=1, most=128,
    )  # fmt: skip
    direct: str = setting(
        "bypass",
        "What a notification for a connected user agent does: bypass storage, or go through it (durable).",
        choices=("bypass", "durable"),
    )
    body_limit: int = setting(
        4096, "Bytes of a message's body, as encrypted; 5630 serves senders that encode it once more. Over it: 413.",
        unit="bytes", least=4096, most=65_536,
    )  # fmt: skip
    ttl_most: float = setting(
        30 * 86_400.0, "Longest TTL: a user agent that was away for longer is forgotten. Over it: cut, and said so.",
        unit="s", least=1,
    )  # fmt: skip
    receipts_kept: float = setting(
        7 * 24 * 3600.0, "How long a sender can read in its receipt subscription what became of a message.",
        unit="s", least=60,
    )  # fmt: skip
    broadcasts: tuple[str, ...] = setting(
        (),
        "First versions of broadcasts that user agents may subscribe to, each as ID=VERSION; PUT changes them.",
    )
    node_timeout: float = setting(
        3.0, "For the internal listener of another node to answer. Over it: stored.", unit="s", least=0.1
    )
    contact: str = setting(
        "", "Where operators of push services reach you, mailto:… or https:…; it is signed into what the sender sends."
    )
    vapid_key: str = setting(
        "",
        "Private key of the sender's signatures, 32 bytes in base64url. Empty: one is made at first use and kept with "
        "the data; subscriptions that were made with it take messages of no other.",
        secret=True,
    )
    send_timeout: float = setting(30.0, "For a push service to answer the sender.", unit="s", least=0.01)
    send_retry: float = setting(
        1.0, "Until the sender's first retry; doubled for each further one.", unit="s", least=0.01
    )
    send_retry_longest: float = setting(300.0, "Between retries at most.", unit="s", least=0.01)
    send_slots: int = setting(8, "Messages on their way to one push service at once.", least=1, most=256)


@dataclass(frozen=True, slots=True)
class TrickleSettings:
    """The Trickle door."""

    base: str = setting("/trickle/", "Path under which channels are; begins and ends with a slash.")
    autocreate: bool = setting(False, "The first segment makes its channel; else POST to the channel makes it.")
    changefeed: bool = setting(False, "Write which channels come and go to the channel `_changes`.")
    open: bool = setting(False, "Local clients need no token. Only on a loopback address.")
    gaps: bool = setting(False, "Publishers may leave out numbers; not in recorded channels.")
    missing_status: int = setting(
        470, "Answer for a segment that is not there: 470, or the 404 of the protocol's text.", least=404, most=470
    )
    segments: int = setting(
        5, "Segments kept of a channel; a channel may choose another number.", least=1, most=CHANNEL_SEGMENTS
    )
    window_bytes: int = setting(
        64 * 1024 * 1024,
        "Bytes kept of a channel, slow readers' included. Over it: the oldest go.",
        unit="bytes",
        least=1,
    )
    keep_seconds: float = setting(0.0, "How long ended segments are kept. 0: as long as the other two allow.", unit="s")
    segment_bytes: int = setting(
        16 * 1024 * 1024,
        "Bytes of one segment: half a minute of video at 4 Mbit/s. Recorded ones: a batch. Over it: 413.",
        unit="bytes",
        least=1,
    )
    memory_bytes: int = setting(
        1024 * 1024 * 1024,
        "Bytes kept of all channels, with 1 KiB for each segment beside its own. Over it: new segments get 503.",
        unit="bytes",
        least=1,
    )
    channels: int = setting(
        10_000, "Channels that are open at once. Over it: 503. As many closed ones linger.", least=1
    )
    waiting: int = setting(10_000, "Readers that wait for a first byte. Over it: 503.", least=1)
    idle: float = setting(300.0, "A channel without a byte for so long is closed. 0: never.", unit="s")
    preconnect: float = setting(
        60.0, "A publisher may connect so long before its first byte. Over it: 408.", unit="s", least=0.25
    )
    sign_of_life: float = setting(
        10.0, "Between the interim answers that a connected publisher gets.", unit="s", least=0.25
    )
    wait: float = setting(
        0.0, "How long a reader waits for a first byte, unless it asks for less. 0: for ever. Over it: 408.", unit="s"
    )
    abandon: float = setting(
        10.0, "A segment whose publisher is gone ends after so long, unless another goes on with it.", unit="s"
    )
    linger: float = setting(
        10.0, "Segments of a closed channel can be read for so long: its readers may be one behind.", unit="s"
    )


@dataclass(frozen=True, slots=True)
class MsgstreamSettings:
    """The message stream."""

    heartbeat: float = setting(
        60.0, "How long a long poll without packs is held before it gets 204. 0: without an end.", unit="s"
    )
    ping: float = setting(
        30.0, "Between two pings on a WebSocket; one that was not answered ends it. Below the 60 s of common proxies.",
        unit="s", least=0.25,
    )  # fmt: skip
    ttl: int = setting(
        600, "Life of a session without a sign of life from its client, if its maker says nothing.", unit="s", least=1
    )
    sweep: float = setting(30.0, "Between two looks for sessions whose life has ended.", unit="s", least=0.05)
    packs: int = setting(
        1_000, "Packs that wait in one session. Over it: emits to it are refused as full, and what it follows waits.",
        least=1,
    )  # fmt: skip
    bytes: int = setting(
        4 * 1024 * 1024, "Bytes of emitted packs that wait in one session. Over it: as msgstream.packs.",
        unit="bytes", least=1,
    )  # fmt: skip
    resend: str = setting(
        "new",
        "What a WebSocket gets with each new pack: that pack (new), or all that are not confirmed (all, as MAGE does).",
        choices=("new", "all"),
    )


@dataclass(frozen=True, slots=True)
class HubSettings:
    """What is kept in memory for live readers."""

    recent: int = setting(8_192, "Newest entries kept in memory, so that a storm of reconnects reads no disk.", least=1)
    recent_bytes: int = setting(16 * 1024 * 1024, "Bytes of them at most.", unit="bytes", least=1)
    tail: int = setting(
        1_000, "Entries that wait for one reader. Over it: it is behind and reads on from the log.", least=1
    )


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """The record of what reached whom."""

    enabled: bool = setting(True, "Record deliveries.")
    flush_ms: float = setting(
        200.0, "How long a record of sending may wait. A crash loses at most this much of it.", unit="ms", least=1
    )


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The lake that the pipeline writes, for reading."""

    url: str = setting(
        "",
        "The lake: a directory, or s3://bucket/prefix with keys, region and endpoint from the usual AWS_ variables. "
        "Entries that were trimmed are read from there; empty: they are gone for readers.",
    )
    reader_endpoint: str = setting(
        "", "Address of the S3 store that the catalog tells its clients, as http://10.0.0.5:8333. Empty: AWS itself."
    )
    reader_region: str = setting("", "Region of the S3 store that the catalog tells its clients.")
    reader_access_key_id: str = setting(
        "",
        "Key that the catalog hands to clients with the grant export, so that they can read the store. Give one that "
        "may only read. Empty: clients bring their own. The server's own keys are never handed out.",
    )
    reader_secret_access_key: str = setting("", "The secret of that key.", secret=True)


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Who may do what. Signing keys are kept in the data directory."""

    admin_token: str = setting(
        "",
        "Token that may do everything; under 16 characters it is warned of. Empty: one is made and kept with the data.",
        secret=True,
    )
    admin_token_file: str = setting(
        "",
        "File that holds the admin token: keeps it out of the list of processes. A file that is empty is refused. "
        "Empty: auth.admin_token.",
    )


@dataclass(frozen=True, slots=True)
class LogsSettings:
    """What the server says about itself."""

    format: str = setting("human", "Lines for people, or one JSON object a line.", choices=("human", "json"))
    level: str = setting(
        "info", "The least important line that is written.", choices=("debug", "info", "warning", "error")
    )


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The metrics page."""

    public: bool = setting(False, "Serve /metrics without a token.")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one server."""

    server: ServerSettings = ServerSettings()
    log: LogSettings = LogSettings()
    eventhorizon: EventHorizonSettings = EventHorizonSettings()
    sps: SpsSettings = SpsSettings()
    trickle: TrickleSettings = TrickleSettings()
    webpush: WebPushSettings = WebPushSettings()
    msgstream: MsgstreamSettings = MsgstreamSettings()
    hub: HubSettings = HubSettings()
    ledger: LedgerSettings = LedgerSettings()
    lake: LakeSettings = LakeSettings()
    auth: AuthSettings = AuthSettings()
    logs: LogsSettings = LogsSettings()
    metrics: MetricsSettings = MetricsSettings()


DEFAULTS: Final = Settings()
"""What holds where nobody sets anything, also outside of a server: other modules take their defaults from here."""
