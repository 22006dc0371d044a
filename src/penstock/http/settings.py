"""What an operator can change about the listener. `server.*` of the configuration maps onto it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How one listener treats its connections. Times are seconds unless the name says otherwise."""

    host: str = "127.0.0.1"
    port: int = 0  # 0 is any free one
    backlog: int = 4096

    certificate: str = ""  # PEM file with the chain; empty is plain HTTP
    key: str = ""  # PEM file; empty when the certificate's file holds it too
    insecure: bool = False  # plain HTTP on an address that is not loopback

    trusted_proxies: tuple[str, ...] = ()  # addresses or CIDRs whose word about the client counts
    proxy_protocol: bool = False  # trusted peers begin every connection with a PROXY header

    connections: int = 18_000  # in all; above it a connection is closed at accept
    connections_per_address: int = 0  # 0 is no cap
    connections_per_token: int = 0  # live answers that are open under one subject; 0 is no cap
    requests_per_address: float = 0.0  # per second; 0 is no cap
    requests_per_token: float = 0.0  # per second; 0 is no cap

    head_timeout: float = 10.0  # from the first byte of a request head to its last
    body_timeout: float = 30.0  # a body must make progress in each such span
    idle_timeout: float = 75.0  # between two requests of one connection
    stall_timeout: float = 30.0  # a peer that takes no byte for so long is cut
    request_timeout: float = 30.0  # from the complete head to the answer
    drain_seconds: float = 10.0  # how long a stop waits for requests in progress

    linger_ms: int = 0  # 0..20: how long output is collected before it is written
    high_water: int = 64 * 1024  # an outlet with more bytes pending is full until all are written
    bodies_bytes: int = 256 * 1024 * 1024  # of request bodies in all
    websocket_bytes: int = 1024 * 1024  # the largest message a WebSocket may send us

    cors_origins: tuple[str, ...] = ("*",)
    cors_expose: tuple[str, ...] = ()  # response headers a page may read
