"""What a proxy in front says about the client: the PROXY protocol, versions 1 and 2, and X-Forwarded-*.

Only a peer that the operator named is believed. Everybody else's word is ignored, and a client's own
X-Forwarded-For is worth nothing: of the list only the part that trusted proxies added is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from penstock.errors import PeerError

_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_LONGEST_LINE = 107  # the specification's own worst case for version 1
_LONGEST_BLOCK = 2048  # addresses and TLVs of version 2; real ones are far shorter
_IPV4, _IPV6 = 0x11, 0x21  # address family and transport: TCP over IPv4, over IPv6


class ProxyHeader(NamedTuple):
    """Who the proxy speaks for, and how many bytes it took to say so."""

    address: str  # empty when the proxy speaks for itself (health checks)
    size: int


def parse_proxy(data: bytes) -> ProxyHeader | None:
    """Read the PROXY header at the beginning of a connection; None while it is not all there."""
    if data.startswith(_SIGNATURE):
        return _version_2(data)
    if data.startswith(b"PROXY "):
        return _version_1(data)
    if _SIGNATURE.startswith(data) or b"PROXY ".startswith(data):
        return None
    raise PeerError(400, "a PROXY header is required here")


def _version_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _LONGEST_LINE)
    if end < 0:
        if len(data) >= _LONGEST_LINE:
            raise PeerError(400, "malformed PROXY line")
        return None
    words = data[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return ProxyHeader("", end + 2)
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6") or not all(map(_is_port, words[4:])):
        raise PeerError(400, "malformed PROXY line")
    return ProxyHeader(_address(words[2], 4 if words[1] == b"TCP4" else 6), end + 2)


def _is_port(word: bytes) -> bool:
    return word.isdigit() and len(word) <= 5 and int(word) < 65536


def _address(word: bytes, version: int) -> str:
    try:
        address = ip_address(word.decode("ascii"))
    except ValueError:
        raise PeerError(400, "malformed address in the PROXY line") from None
    if address.version != version:
        raise PeerError(400, "address of another family in the PROXY line")
    return str(address)


def _version_2(data: bytes) -> ProxyHeader | None:
    if len(data) < 16:
        return None
    version_command, family, length = struct.unpack_from("!BBH", data, 12)
    if version_command >> 4 != 2 or version_command & 15 > 1 or length > _LONGEST_BLOCK:
        raise PeerError(400, "malformed PROXY header")
    if len(data) < 16 + length:
        return None
    if version_command & 15 == 0:  # LOCAL: the proxy's own connection
        return ProxyHeader("", 16 + length)
    return ProxyHeader(_block_address(family, data[16 : 16 + length]), 16 + length)


def _block_address(family: int, block: bytes) -> str:
    if family == _IPV4 and len(block) >= 12:
        return str(IPv4Address(block[:4]))
    if family == _IPV6 and len(block) >= 36:
        return str(IPv6Address(block[:16]))
    if family in (_IPV4, _IPV6):
        raise PeerError(400, "malformed PROXY header")
    return ""  # UNSPEC, UNIX, UDP: nothing that says who the client is


class Trusted:
    """The peers whose word about the client counts."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Raises `ValueError` for what is neither an address nor a network."""
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(text) for text in networks]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
        return any((mapped or parsed) in network for network in self._networks)

    def client(self, peer: str, forwarded_for: Iterable[bytes]) -> str:
        """The nearest address that is not a trusted proxy, counted from *peer* backwards."""
        names = b",".join(forwarded_for).split(b",")
        for name in reversed(names):
            if peer not in self:
                break
            address = _forwarded_address(name)
            if not address:
                break
            peer = address
        return peer


def _forwarded_address(name: bytes) -> str:
    """An element of X-Forwarded-For as an address, without a port; empty if it is none."""
    text = name.strip().decode("latin-1")
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return ""


def forwarded_scheme(values: Iterable[bytes], default: str) -> str:
    """The scheme the nearest proxy says the client used."""
    last = b",".join(values).split(b",")[-1].strip().lower()
    return last.decode() if last in (b"http", b"https") else default
