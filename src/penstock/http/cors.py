"""What pages of other origins may do: read anything that needs no credentials of the browser's own.

Penstock's tokens travel in a header or a parameter that the page itself must know, never in a cookie, so
any origin may ask by default. With a list of origins only those may, and the server's own; WebSockets included.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import Match

EXPOSED: Final = ("Retry-After",)
"""Headers of answers that a page may read, besides those that doors add."""

_TOKENS = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z, ]{1,1024}")


class Cors:
    """The origin rules of one listener."""

    def __init__(self, origins: tuple[str, ...], expose: tuple[str, ...]) -> None:
        """Pages of these *origins* may call, and read the headers of answers that *expose* names."""
        self._any = "*" in origins
        self._origins = {origin.encode() for origin in origins}
        self._expose = f"Access-Control-Expose-Headers: {', '.join((*EXPOSED, *expose))}\r\n".encode()

    def allows(self, origin: bytes | None, host: bytes | None = None) -> bool:
        """Pages of that origin may talk to us; a client that is no page names none.

        A page that came from the *host* it talks to is our own. The scheme is not compared: a proxy in front may have
        taken TLS off.
        """
        if origin is None or self._any or origin in self._origins:
            return True
        return bool(host) and origin.partition(b"://")[2] == host

    def fields(self, origin: bytes) -> bytes:
        """Header lines for an answer to a page of that origin."""
        if self._any:
            return b"Access-Control-Allow-Origin: *\r\n" + self._expose
        if origin not in self._origins:
            return b"Vary: Origin\r\n"
        return b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n%b" % (origin, self._expose)

    def options(self, request: Request, match: Match) -> Response:
        """Answer OPTIONS from the table; for a preflight also what the page may send."""
        methods = ", ".join(match.methods)
        headers = [("Allow", methods)]
        if request.header(b"access-control-request-method") and self.allows(request.header(b"origin")):
            headers += [("Access-Control-Allow-Methods", methods), ("Access-Control-Max-Age", "600")]
            wanted = request.header(b"access-control-request-headers")
            if wanted and _TOKENS.fullmatch(wanted):
                headers.append(("Access-Control-Allow-Headers", wanted.decode()))
        return Response(204, headers=tuple(headers))
