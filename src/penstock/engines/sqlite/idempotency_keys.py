"""Idempotency keys and producers: the first answer, kept for whoever asks again."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from penstock.engines.repeats import Address, check_key, first_answer, key_address, owner_of, sequence_address
from penstock.limits import KEY_COUNT, KEY_SECONDS
from penstock.values import Appended, Batch, Key, Producer

PRUNE_EVERY: Final = 1_000
"""Keys after which the oldest are looked at."""
_answers = msgspec.msgpack.Decoder(Appended)


class GroupKeys:
    """The keys of one group, in front of those in the file. Only for the writer thread.

    The answers of a producer are kept as keys without a stream; its last sequence is kept for ever.

    In files before version 2 a producer had no subject. Such a row still answers a repeat under its name, for
    anybody who has no row of their own yet: a job that was stopped before the upgrade and goes on after it would
    else store a second time what it had sent. What is stored from now on has a subject.
    """

    def __init__(self, connection: sqlite3.Connection, now_ms: int) -> None:
        self._connection, self._now_ms = connection, now_ms
        self._new: dict[Address, tuple[bytes, Appended]] = {}
        self._sequences: dict[tuple[str, str], tuple[int, Appended]] = {}  # of a subject's producer

    def find(self, batch: Batch) -> Appended | None:
        """The first answer if *batch* is a repeat; `KeyReused` if its key stands for another one."""
        if batch.key and (found := self._find_key(batch.key)):
            return found
        if batch.producer:
            return self._find_sequence(batch, batch.producer)
        return None

    def add(self, batch: Batch, appended: Appended) -> None:
        """Remember the answer to a batch that is stored in this group."""
        if batch.key:
            self._new[key_address(batch.key)] = (batch.key.digest, appended)
        if producer := batch.producer:
            self._new[sequence_address(producer)] = (b"", appended)
            self._sequences[owner_of(producer)] = (producer.sequence, appended)

    def write(self) -> None:
        """Store what was added, in the caller's transaction, and drop some of what is too old."""
        if not self._new:
            return
        execute = self._connection.execute
        for address, (digest, appended) in self._new.items():
            execute(
                "INSERT OR REPLACE INTO keys (subject, stream, key, digest, answer, made_ms) VALUES (?, ?, ?, ?, ?, ?)",
                (*address, digest, _encoded(appended), self._now_ms),
            )
        for owner, (sequence, appended) in self._sequences.items():
            execute("INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?)", (*owner, sequence, _encoded(appended)))
        newest: int = execute("SELECT max(number) FROM keys").fetchone()[0]
        if newest // PRUNE_EVERY != (newest - len(self._new)) // PRUNE_EVERY:
            self._prune(newest)

    def _find_key(self, key: Key) -> Appended | None:
        digest, answer = self._get(key_address(key))
        if answer:
            check_key(key, digest)
        return answer

    def _find_sequence(self, batch: Batch, producer: Producer) -> Appended | None:
        owner, address = owner_of(producer), sequence_address(producer)
        found = self._sequences.get(owner) or self._load("producers WHERE subject = ? AND name = ?", owner)
        if found is None:
            found = self._load("producers_without_subject WHERE name = ?", owner[1:])
            address = (producer.name, "", str(producer.sequence))
        if found is None or producer.sequence > found[0]:
            return None
        sequence, last = found
        return first_answer(
            batch, producer, self._get(address)[1], sequence, msgspec.structs.replace(last, repeated=True)
        )

    def _get(self, address: Address) -> tuple[bytes, Appended | None]:
        """A remembered answer, marked as a repeat."""
        if known := self._new.get(address):
            return known[0], msgspec.structs.replace(known[1], repeated=True)
        row = self._connection.execute(
            "SELECT digest, answer FROM keys WHERE subject = ? AND stream = ? AND key = ? AND made_ms > ?",
            (*address, self._now_ms - KEY_SECONDS * 1000),
        ).fetchone()
        return (row[0], _answers.decode(row[1])) if row else (b"", None)

    def _load(self, place: str, values: tuple[str, ...]) -> tuple[int, Appended] | None:
        row = self._connection.execute(f"SELECT sequence, answer FROM {place}", values).fetchone()  # noqa: S608
        return (row[0], _answers.decode(row[1])) if row else None

    def _prune(self, newest: int) -> None:
        """Drop up to two thousand of the oldest keys: at least as fast as they come."""
        self._connection.execute(
            "DELETE FROM keys WHERE number IN (SELECT number FROM keys WHERE number <= ? OR made_ms <= ? "
            "ORDER BY number LIMIT ?)",
            (newest - KEY_COUNT, self._now_ms - KEY_SECONDS * 1000, 2 * PRUNE_EVERY),
        )


def _encoded(appended: Appended) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(appended, repeated=True))
