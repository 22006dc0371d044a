"""TLS certificates, and how they are replaced while the server runs."""

from __future__ import annotations

import ssl

from penstock.errors import ConfigInvalid

_MMAP_THRESHOLD = -3  # mallopt's number of it; once set, the library no longer raises it by itself
_BUFFER_BYTES = 256 << 10


class Certificates:
    """The TLS side of a listener. `reload` takes effect for new connections; open ones go on as they are."""

    def __init__(self, certificate: str, key: str) -> None:
        """Raises `ConfigInvalid` when the files cannot be used."""
        self._certificate, self._key = certificate, key
        self.context = _context()
        self.reload()

    def reload(self) -> None:
        """Read the files again. What cannot be used is refused, and the old certificate stays in use."""
        self._load(_context())
        self._load(self.context)

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._key or None, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigInvalid(
                "server.tls_certificate", f"{self._certificate} cannot be used: {error}",
                remedy="Give a PEM chain and its unencrypted private key (server.tls_certificate, server.tls_key).",
            ) from None  # fmt: skip


def map_large_buffers() -> None:
    """Have the C library map what is as large as uvloop's buffer for a TLS connection, and not cut it from the heap.

    One or two pages of that buffer are ever used. Cut from the heap it also holds on to those that the handshake before
    it used and gave back: 46 KB a connection were resident instead of 24. Elsewhere than with glibc nothing happens.
    """
    from ctypes import CDLL  # 10 ms that a server without TLS does not spend

    set_option = getattr(CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, _BUFFER_BYTES)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal.
    raise ValueError("the private key is encrypted")
