"""The subjects of the log's one JetStream stream.

    <prefix>.log.e.<stream>     entries and heads of one stream; its last sequence guards every append
                s.<stream>      who subscribes to it, when anybody does; only the newest is kept
                k.<digest>      an idempotency key with its first answer; gone after a day
                p.<subject>.<name>  a producer's last sequence with its answer; only the newest is kept
                p.<name>        the same of older versions, whose producers had no subject
                x               tombstones of erased entries
                c.trim          up to where the log was trimmed; only the newest is kept

They share one JetStream stream because an atomic batch cannot span two. Trimming purges `e`, and deletes those messages
of `x` that tell of trimmed entries only.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from penstock.engines.jetstream.subject_tokens import key_of, path, token


class Subjects:
    """Names of one log."""

    def __init__(self, prefix: str) -> None:
        base = f"{prefix}.log"
        self.stream = f"{prefix}_log"
        self.all = f"{base}.>"
        self.tombstones, self.trim = f"{base}.x", f"{base}.c.trim"
        self._entries, self._subscribers, self._keys, self._producers = (f"{base}.{letter}." for letter in "eskp")
        self.entries = f"{self._entries}>"
        self._size = len(base) + 1  # where the letter is

    def kind(self, subject: bytes) -> int:
        """The letter that says what a message is."""
        return subject[self._size]

    def name(self, subject: str) -> str:
        """The stream of an `e` or `s` subject."""
        return "/" + _name(subject[self._size + 2 :])

    def entry(self, stream: str) -> str:
        return self._entries + _path(stream[1:])

    def subscribers(self, stream: str) -> str:
        return self._subscribers + _path(stream[1:])

    def producer(self, subject: str, name: str) -> str:
        return f"{self._producers}{token(subject)}.{token(name)}"

    def producer_without_subject(self, name: str) -> str:
        return self._producers + token(name)

    def key(self, address: tuple[str, str, str]) -> str:
        """A digest, as a key's parts may be longer than a subject should be. It is never read back."""
        joined = b"".join(b"%d:%b" % (len(part), part) for part in (text.encode() for text in address))
        return self._keys + hashlib.blake2b(joined, digest_size=20).hexdigest()

    def matching(self, pattern: str) -> str:
        """The subjects of a pattern's streams, and of some others: `matches` decides."""
        if pattern == ">":
            return self.entries
        levels = pattern.split("/")[1:]
        return self._entries + ".".join(level if level in ("*", ">") else token(level) for level in levels)


@lru_cache(maxsize=65_536)
def _path(name: str) -> str:
    return path(name)


@lru_cache(maxsize=65_536)
def _name(path: str) -> str:
    return key_of(path)
