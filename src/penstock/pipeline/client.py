"""What the pipeline asks of the server, on nothing but the standard library: Spark's workers use it, too."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from penstock.errors import PenstockError

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 30.0
"""For how long a server that is busy, restarting or unreachable is asked again before a job gives up."""

_LONGEST_PAUSE: Final = 2.0


class ServerRefused(PenstockError):
    """The server answered with an error that asking again does not mend."""

    def __init__(self, status: int, code: str, message: str, remedy: str) -> None:
        super().__init__(f"the server answered {status} {code}: {message}")
        self.status, self.code, self.remedy = status, code, remedy


class ServerUnreachable(PenstockError):
    """The server did not answer, or was too busy to, for as long as we were willing to wait."""

    code = "unreachable"
    remedy = "Look at the server; the job goes on where it was when it is started again."


class RecordChanged(PenstockError):
    """Somebody else changed a record first."""

    code = "version_mismatch"
    remedy = "Another driver works on this table; this one has done nothing."


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record that the server keeps. Version 0 is one that is not there."""

    version: int
    value: dict[str, Any]


class Client:
    """One server, one token. Every call is a connection of its own: it may be pickled, and used from threads."""

    def __init__(self, url: str, token: str, *, patience: float = PATIENCE_SECONDS) -> None:
        self.url, self.token, self.patience = url.rstrip("/"), token, patience

    # ── the log ───────────────────────────────────────────────────────────────────────────────

    def plan(self, after: int, upto: int | None = None, **limits: int) -> dict[str, Any]:
        """Slices of the log from *after* on; *limits* are `parts`, `max_rows` and `max_bytes`."""
        wanted: dict[str, object] = {"after": after, **limits}
        return self.call("GET", "/v1/log/plan", {**wanted, **({} if upto is None else {"upto": upto})})

    def newest(self, after: int = -1, *, wait: float = 0) -> int:
        """The newest id. Waits up to *wait* seconds at the server for one above *after*."""
        asked = {"after": max(0, after), "wait": f"{wait:g}"}
        return int(self.call("GET", "/v1/pipeline/news", asked, timeout=wait + TIMEOUT_SECONDS)["id"])

    def begin(self, consumer: str, wanted: Mapping[str, str | int]) -> int:
        """The id after which *consumer* begins. Whoever asked first under that name has decided it."""
        body = json.dumps(wanted).encode()
        return int(self.call("POST", "/v1/pipeline/consumers/" + quote(consumer, safe=""), body=body)["after"])

    def position(self, time: str) -> int:
        """The last id that was published before *time*."""
        return int(self.call("GET", "/v1/pipeline/position", {"time": time})["after"])

    @contextmanager
    def open(self, path: str, parameters: Mapping[str, object]) -> Iterator[http.client.HTTPResponse]:
        """An answer to be read as it comes. Once it has begun nothing is asked again: whoever reads it decides."""
        with ExitStack() as stack:
            yield self._patiently(lambda: self._begin(path, parameters, stack), self.patience)

    def _begin(self, path: str, parameters: Mapping[str, object], stack: ExitStack) -> http.client.HTTPResponse:
        connection = self._connection(TIMEOUT_SECONDS)
        stack.callback(connection.close)
        answer = self._ask(connection, "GET", path, parameters, None, {})
        if answer.status != 200:
            raise _refusal(answer.status, answer.read())
        return answer

    # ── records ───────────────────────────────────────────────────────────────────────────────

    def get(self, key: str) -> StoredRecord:
        """The record under *key*; one that is not there has version 0 and no value."""
        answer = self.call("GET", "/v1/pipeline/records/" + quote(key))
        return StoredRecord(answer["version"], answer["value"])

    def put(self, key: str, value: Mapping[str, Any], *, expect: int) -> StoredRecord:
        """Store *value* if the record's version is *expect* still (0: if there is none); else `RecordChanged`."""
        path = "/v1/pipeline/records/" + quote(key)
        body = json.dumps(value, separators=(",", ":")).encode()
        try:
            # Asked once: an answer that was lost leaves us not knowing, and the caller must look.
            answer = self.call("PUT", path, {"expect": expect}, body, patience=0)
        except ServerRefused as error:
            if error.code == RecordChanged.code:
                raise RecordChanged(str(error)) from None
            raise
        return StoredRecord(answer["version"], dict(value))

    def delete(self, key: str) -> None:
        """Remove a record."""
        self.call("DELETE", "/v1/pipeline/records/" + quote(key))

    def list(self, prefix: str) -> dict[str, StoredRecord]:
        """The records whose keys begin with *prefix*."""
        answer = self.call("GET", "/v1/pipeline/records", {"prefix": prefix})
        return {one["key"]: StoredRecord(one["version"], one["value"]) for one in answer["records"]}

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    def call(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, object] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        patience: float | None = None,
    ) -> dict[str, Any]:
        """The JSON answer. A server that is busy or away is asked again, for as long as *patience*."""
        return self._patiently(
            lambda: self._once(method, path, parameters or {}, body, headers or {}, timeout),
            self.patience if patience is None else patience,
        )

    def _patiently(self, ask: Callable[[], T], patience: float) -> T:
        deadline = time.monotonic() + patience
        pause = 0.05
        while True:
            try:
                return ask()
            except (OSError, http.client.HTTPException) as error:
                said: PenstockError = ServerUnreachable(f"no answer from {self.url}: {error}")
            except ServerRefused as error:
                if error.status not in (429, 503):
                    raise
                said = error
            if time.monotonic() + pause > deadline:
                raise said
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _once(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, object],
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
    ) -> dict[str, Any]:
        connection = self._connection(timeout)
        try:
            answer = self._ask(connection, method, path, parameters, body, headers)
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise _refusal(answer.status, content)
        decoded: dict[str, Any] = json.loads(content) if content else {}
        return decoded

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        place = urlsplit(self.url)
        if place.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(place.netloc, timeout=timeout, context=context)
        return http.client.HTTPConnection(place.netloc, timeout=timeout)

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        parameters: Mapping[str, object],
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        target = urlsplit(self.url).path + path + ("?" + urlencode(parameters) if parameters else "")
        connection.request(method, target, body, {"Authorization": f"Bearer {self.token}", **headers})
        return connection.getresponse()


def _refusal(status: int, content: bytes) -> ServerRefused:
    try:
        error = json.loads(content)["error"]
        return ServerRefused(status, error["code"], error["message"], error["remedy"])
    except (ValueError, KeyError, TypeError):
        return ServerRefused(status, "unexpected", content[:200].decode(errors="replace"), "Is this a Penstock server?")
