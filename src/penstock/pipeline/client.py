"""What the pipeline asks of the server, on nothing but the standard library: Spark's workers use it, too."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

from penstock.client.http import ApiError, HttpClient, ServerUnreachable, Values
from penstock.errors import PenstockError
from penstock.wire.retrying import RetryPolicy
from penstock.wire.typed_tables import TypedTable

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 30.0
"""For how long a server that is busy, restarting or unreachable is asked again before a job gives up."""

_RETRY: Final = RetryPolicy(first=0.05, longest=2.0)


class RecordChanged(PenstockError):
    """Somebody else changed a record first."""

    code = "version_mismatch"
    remedy = "Another driver works on this table; this one has done nothing."


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record that the server keeps. Version 0 is one that is not there."""

    version: int
    value: dict[str, Any]


class PipelineClient:
    """One server, one token. A call has a connection of its own, so this may be pickled, and used from threads.

    With *keep* one connection serves all calls, for one thread at a time: `close` it.
    """

    def __init__(self, url: str, token: str, *, patience: float = PATIENCE_SECONDS, keep: bool = False) -> None:
        self._http = HttpClient(url, token, timeout=TIMEOUT_SECONDS, keep=keep)
        self.url, self.token, self.patience = self._http.url, token, patience

    def close(self) -> None:
        """Let go of a connection that was kept."""
        self._http.close()

    # ── the log ───────────────────────────────────────────────────────────────────────────────

    def plan(self, after: int, upto: int | None = None, **limits: int | str) -> dict[str, Any]:
        """Slices of the log from *after* on; *limits* are `parts`, `max_rows` and `max_bytes`, and `history`."""
        wanted: dict[str, object] = {"after": after, **limits}
        return self.call("GET", "/v1/log/plan", {**wanted, **({} if upto is None else {"upto": upto})})

    def newest(self, after: int = -1, *, wait: float = 0) -> int:
        """The newest id. Waits up to *wait* seconds at the server for one above *after*."""
        asked = {"after": max(0, after), "wait": f"{wait:g}"}
        return int(self.call("GET", "/v1/pipeline/news", asked, timeout=wait + TIMEOUT_SECONDS)["id"])

    def begin(self, consumer: str, wanted: Mapping[str, str | int | bool]) -> int:
        """The id after which *consumer* begins. Whoever asked first under that name has decided it."""
        body = json.dumps(wanted).encode()
        return int(self.call("POST", "/v1/pipeline/consumers/" + quote(consumer, safe=""), body=body)["after"])

    def position(self, time: str) -> int:
        """The last id that was published before *time*."""
        return int(self.call("GET", "/v1/pipeline/position", {"time": time})["after"])

    @contextmanager
    def open(self, path: str, parameters: Values) -> Iterator[http.client.HTTPResponse]:
        """An answer to be read as it comes. Once it has begun nothing is asked again: whoever reads it decides."""
        with ExitStack() as stack:
            yield self._patiently(
                lambda: stack.enter_context(self._http.open(path, parameters, timeout=TIMEOUT_SECONDS)), self.patience
            )

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
        except ApiError as error:
            if error.code == RecordChanged.code:
                raise RecordChanged(str(error)) from None
            raise
        return StoredRecord(answer["version"], dict(value))

    def delete(self, key: str) -> None:
        self.call("DELETE", "/v1/pipeline/records/" + quote(key))

    def list(self, prefix: str) -> dict[str, StoredRecord]:
        """The records whose keys begin with *prefix*."""
        found: dict[str, StoredRecord] = {}
        after: dict[str, str] = {}
        while True:
            page = self.call("GET", "/v1/pipeline/records", {"prefix": prefix, **after})
            found |= {one["key"]: StoredRecord(one["version"], one["value"]) for one in page["records"]}
            if not page["more"]:
                return found
            after = {"after": page["records"][-1]["key"]}

    def typed_tables(self) -> Sequence[TypedTable]:
        """The typed tables that are declared."""
        tables = self.call("GET", "/v1/lake/tables")["tables"]
        columns = [[{"name": name, **column} for name, column in one["columns"].items()] for one in tables]
        return [TypedTable.read({**one, "columns": found}) for one, found in zip(tables, columns, strict=True)]

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    def call(
        self,
        method: str,
        path: str,
        parameters: Values | None = None,
        body: bytes = b"",
        headers: Values | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        patience: float | None = None,
    ) -> dict[str, Any]:
        """The JSON answer. A server that is busy or away is asked again, for as long as *patience*."""
        content = self._patiently(
            lambda: self._http.send(method, path, parameters, body, headers, timeout=timeout),
            self.patience if patience is None else patience,
        )
        decoded: dict[str, Any] = json.loads(content) if content else {}
        return decoded

    def _patiently(self, ask: Callable[[], T], patience: float) -> T:
        deadline = time.monotonic() + patience
        failures = 0
        while True:
            try:
                return ask()
            except ServerUnreachable as error:
                said: PenstockError = error
                error.remedy = "Look at the server; the job goes on where it was when it is started again."
            except ApiError as error:
                if error.status not in (429, 503):
                    raise
                said = error
            failures += 1
            asked = getattr(said, "retry_after", None)
            pause = _RETRY.delay(failures, random.random(), asked)  # noqa: S311 - spreads retries, guards nothing
            if time.monotonic() + pause > deadline:
                raise said
            time.sleep(pause)
