"""The synchronous HTTP client, behind the Python client, the command line and the pipeline.

On nothing but the standard library: Spark's workers import it, and have none of the server's libraries.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Self
from urllib.parse import quote, urlencode, urlsplit

from penstock.errors import InputInvalid, PenstockError
from penstock.wire.retrying import parse_retry_after
from penstock.wire.urls import Url

Values = Mapping[str, object]
_FAILURES = (OSError, http.client.HTTPException)
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_URL_LOOKS = "Give --url or PENSTOCK_URL like http://127.0.0.1:8800."


class ApiError(PenstockError):
    """The server answered with an error."""

    def __init__(self, status: int, code: str, message: str, remedy: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.add_note(f"the server answered {status} {code}")
        self.status, self.code, self.remedy, self.retry_after = status, code, remedy, retry_after
        self.facts: dict[str, int] = {}  # numbers that a program goes on with


class ServerUnreachable(PenstockError):
    """There is no answer from the server. A publish may or may not have been stored: repeat it with its key."""

    code = "unreachable"

    def __init__(self, url: str, why: object) -> None:
        """*why* is a reason, or the exception that tells it."""
        self.why: str = getattr(why, "strerror", None) or str(why) or type(why).__name__
        super().__init__(f"no answer from {url}: {self.why}")
        self.remedy = "Start the server with './penstock up', or give the right --url."


def parse_server_url(url: str) -> Url:
    """Take the address of a server apart; `InputInvalid` for what is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
        parts.path.encode("ascii")
    except ValueError as error:
        raise InputInvalid("url", f"{url!r} is no address: {error}", remedy=_URL_LOOKS) from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputInvalid("url", f"{url!r} is not http://HOST:PORT", remedy=_URL_LOOKS)
    secure = parts.scheme == "https"
    return Url(secure, host, port or (443 if secure else 80), parts.path.rstrip("/"))


class HttpClient:
    """Talks to one server. Use it from one thread at a time, unless *keep* is off.

    With *keep* one connection serves all calls. Without, each has its own, and the client may be pickled.
    """

    def __init__(self, url: str, token: str = "", *, timeout: float = 30.0, keep: bool = True) -> None:
        self.url, self.token, self._timeout, self._keep = url.rstrip("/"), token, timeout, keep
        self._place = parse_server_url(url)
        self._kept: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection; the next call opens another."""
        if self._kept:
            self._kept.close()
            self._kept = None

    def send(
        self,
        method: str,
        path: str,
        query: Values | None = None,
        body: bytes = b"",
        headers: Values | None = None,
        *,
        timeout: float | None = None,
    ) -> bytes:
        """What the server answers; `ApiError` if that is an error. Headers without a value are left out."""
        target, fields = self._target(path, query or {}), self._fields(headers or {})
        # A kept connection may have been closed by the server meanwhile; then a call that is safe
        # to repeat is sent once more on a new one.
        repeatable = self._kept is not None and (method == "GET" or "Idempotency-Key" in fields)
        try:
            try:
                response, content = self._exchange(method, target, body, fields, timeout)
            except ConnectionError:
                if not repeatable:
                    raise
                self.close()
                response, content = self._exchange(method, target, body, fields, timeout)
        except _FAILURES as error:
            self.close()
            raise ServerUnreachable(self.url, error) from error
        if response.status >= 300:
            raise _refusal(response, content)
        return content

    @contextmanager
    def open(
        self, path: str, query: Values | None = None, *, timeout: float | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer to be read as it comes, on a connection of its own; *timeout* seconds without a byte end it."""
        connection = self._connect(timeout)
        try:
            connection.request("GET", self._target(path, query or {}), headers=self._fields({}))
            response = connection.getresponse()
            if response.status != 200:
                raise _refusal(response, response.read())
            yield response
        except _FAILURES as error:
            raise ServerUnreachable(self.url, error) from error
        finally:
            connection.close()

    def _exchange(
        self, method: str, target: str, body: bytes, fields: dict[str, bytes], timeout: float | None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = self._kept or self._connect(timeout or self._timeout)
        if self._keep:
            self._kept = connection
        try:
            connection.request(method, target, body or None, fields)
            response = connection.getresponse()
            return response, response.read()
        finally:
            if not self._keep:
                connection.close()

    def _connect(self, timeout: float | None) -> http.client.HTTPConnection:
        secure, host, port, _ = self._place
        if not secure:
            return http.client.HTTPConnection(host, port, timeout=timeout)
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=ssl.create_default_context())

    def _target(self, path: str, query: Values) -> str:
        # What the command line could not decode goes out as it was typed: the server says what is wrong with it.
        text = urlencode(query, quote_via=quote, safe="/*>", errors="surrogateescape")
        return self._place.target + path + ("?" + text if text else "")

    def _fields(self, headers: Values) -> dict[str, bytes]:
        given = {name: str(value) for name, value in headers.items() if value not in ("", None)}
        sent = {name: _field(f"header {name}", value) for name, value in given.items()}
        return sent | ({"Authorization": b"Bearer " + _field("the token given", self.token)} if self.token else {})


def _field(what: str, value: str) -> bytes:
    """A header's value as it is sent: UTF-8, and nothing that would end its line."""
    if _NO_TEXT.search(value):
        raise InputInvalid(what, "holds a line break or another control character", remedy="Give one line of text.")
    return value.encode()


def _refusal(response: http.client.HTTPResponse, content: bytes) -> ApiError:
    return parse_refusal(response.status, content, parse_retry_after(response.headers.get("Retry-After", "")))


def parse_refusal(status: int, content: bytes, retry_after: float | None = None) -> ApiError:
    """The error that an answer tells of, in Penstock's form or in another."""
    try:
        error = json.loads(content)["error"]
        told = ApiError(status, error["code"], error["message"], error.get("remedy", ""), retry_after)
        told.facts = {name: value for name, value in error.items() if isinstance(value, int)}
        return told
    except (ValueError, KeyError, TypeError, AttributeError):
        shown = content[:200].decode(errors="replace").strip() or "no explanation"
        remedy = "Look at the address: is this a Penstock server?"
        return ApiError(status, f"http_{status}", shown, remedy, retry_after)
