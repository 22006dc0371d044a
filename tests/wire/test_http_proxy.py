"""What proxies in front say about the client."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PeerError
from penstock.wire.proxy import ProxyHeader, Trusted, forwarded_scheme, parse_proxy

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def version_2(source: str, *, command: int = 0x21, extra: bytes = b"") -> bytes:
    address = ip_address(source)
    block = address.packed * 2 + struct.pack("!HH", 1, 2) + extra
    return SIGNATURE + struct.pack("!BBH", command, 0x11 if address.version == 4 else 0x21, len(block)) + block


HEADERS = [
    (b"PROXY TCP4 192.0.2.7 192.0.2.1 1234 80\r\n", "192.0.2.7"),
    (b"PROXY TCP6 2001:db8::7 ::1 1234 80\r\n", "2001:db8::7"),
    (b"PROXY UNKNOWN\r\n", ""),
    (b"PROXY UNKNOWN a b c d\r\n", ""),
    (version_2("192.0.2.7"), "192.0.2.7"),
    (version_2("2001:db8::7", extra=b"\x04\x00\x01x"), "2001:db8::7"),
    (version_2("192.0.2.7", command=0x20), ""),
    (SIGNATURE + b"\x21\x00\x00\x00", ""),
]


@pytest.mark.parametrize(("raw", "address"), HEADERS)
def test_a_header_is_read_once_it_is_complete(raw: bytes, address: str) -> None:
    for size in range(len(raw)):
        assert parse_proxy(raw[:size]) is None

    assert parse_proxy(raw) == ProxyHeader(address, len(raw))
    assert parse_proxy(raw + b"GET / HTTP/1.1\r\n") == ProxyHeader(address, len(raw))


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 1234\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 1 70000\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 1 x\r\n",
        b"PROXY TCP4 192.0.2.700 192.0.2.1 1 2\r\n",
        b"PROXY  TCP4 192.0.2.7 192.0.2.1 1 2\r\n",
        b"PROXY TCP4 " + b"1" * 200,
        version_2("192.0.2.7", command=0x31),
        version_2("192.0.2.7", command=0x22),
        SIGNATURE + b"\x21\x11\x00\x04abcd",
        SIGNATURE + b"\x21\x11\xff\xff",
    ],
)
def test_a_malformed_header_is_refused(raw: bytes) -> None:
    with pytest.raises(PeerError):
        parse_proxy(raw)


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda b: SIGNATURE + b)))
def test_garbage_is_refused_or_waited_for(garbage: bytes) -> None:
    try:
        found = parse_proxy(garbage)
    except PeerError:
        return
    assert found is None or found.size <= len(garbage)


def test_only_what_trusted_proxies_added_is_believed() -> None:
    trusted = Trusted(["10.0.0.0/8", "2001:db8::1"])

    assert trusted.client("198.51.100.9", [b"1.1.1.1"]) == "198.51.100.9"
    assert trusted.client("10.0.0.1", [b"6.6.6.6, 192.0.2.7"]) == "192.0.2.7"
    assert trusted.client("10.0.0.1", [b"6.6.6.6", b"192.0.2.7, 10.1.1.1"]) == "192.0.2.7"
    assert trusted.client("10.0.0.1", [b"[2001:db8::7]:443"]) == "2001:db8::7"
    assert trusted.client("10.0.0.1", [b"192.0.2.7:5555"]) == "192.0.2.7"
    assert trusted.client("10.0.0.1", []) == "10.0.0.1"
    assert trusted.client("10.0.0.1", [b"192.0.2.7, nonsense"]) == "10.0.0.1"


def test_mapped_addresses_are_the_addresses_they_map() -> None:
    assert "::ffff:10.1.2.3" in Trusted(["10.0.0.0/8"])
    assert "nonsense" not in Trusted(["10.0.0.0/8"])
    assert "10.1.2.3" not in Trusted()


def test_the_nearest_proxy_names_the_scheme() -> None:
    assert forwarded_scheme([b"http", b"HTTPS"], "http") == "https"
    assert forwarded_scheme([b"gopher"], "http") == "http"
    assert forwarded_scheme([], "https") == "https"
