"""`/console/`: the files of the console, as they are in `src/penstock/console`.

They are public and hold no data: what the console shows it asks of `/v1`, with the token that its user gave it.
The files are read once, at start, and only what was there then is ever served.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final
from urllib.parse import quote

from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import Route

FILES: Final = Path(__file__).parents[1] / "console"

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # text cannot become markup, whatever a view does
    )
)
"""What the browser lets the page do: run its own files and talk to its own server."""

_GUARDS: Final = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class ConsoleFile:
    """Serves one file. A browser that has it already, by its ETag, gets no second copy."""

    def __init__(self, path: Path) -> None:
        self._body, self._type = path.read_bytes(), _TYPES[path.suffix]
        self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:32]}"'
        self._headers = (("ETag", self._tag), ("Cache-Control", "no-cache"), *_GUARDS)

    def __call__(self, request: Request) -> Response:
        """Answer with the file."""
        if request.header(b"if-none-match") == self._tag.encode():
            return Response(304, content_type=self._type, headers=self._headers)
        return Response(200, self._body, self._type, self._headers)


def console_address(url: str, token: str) -> str:
    """Where the console of the server at *url* is, with the token that it takes out of the address again.

    What follows the # stays in the browser: neither the server nor a proxy gets to see it.
    """
    return f"{url}/console/#token={quote(token, safe='')}"


def to_the_console(request: Request) -> Response:
    """Redirect `/console` to `/console/`: the page names its files relative to that."""
    return Response(308, headers=(("Location", "/console/"),))


def console_routes() -> list[Route]:
    """A row for each file, and for the page itself."""
    files = [path for path in sorted(FILES.rglob("*")) if path.suffix in _TYPES]
    rows = [Route("GET", f"/console/{path.relative_to(FILES).as_posix()}", ConsoleFile(path)) for path in files]
    page = ConsoleFile(FILES / "index.html")
    return [Route("GET", "/console", to_the_console), Route("GET", "/console/", page), *rows]
