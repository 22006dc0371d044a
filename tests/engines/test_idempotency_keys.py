"""Idempotency keys do not gather for ever; producers do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from penstock.core.clock import ManualClock
from penstock.engines.sqlite import idempotency_keys, open_sqlite, schema
from penstock.engines.sqlite.connection import open_reader
from penstock.errors import SequencePassed, SequenceReused
from penstock.limits import KEY_SECONDS
from penstock.values import Appended, Batch, Draft, Key, Place, Producer


def keyed(number: int) -> Batch:
    return Batch((Draft("/s", b"x"),), key=Key("me", "/s", str(number), b"d"))


async def append_many(engine, numbers: range) -> None:
    for future in [engine.log.append(keyed(number)) for number in numbers]:
        await future


def count_keys(engine) -> int:
    with closing(open_reader(engine.path)) as connection:
        return connection.execute("SELECT count(*) FROM keys").fetchone()[0]


async def test_keys_of_yesterday_are_dropped_while_new_ones_come(tmp_path):
    clock, many = ManualClock(), idempotency_keys.PRUNE_EVERY
    async with open_sqlite(tmp_path, node="n", clock=clock) as engine:
        await append_many(engine, range(many))
        clock.advance(KEY_SECONDS + 1)
        await append_many(engine, range(many, 2 * many))

        assert count_keys(engine) == many
        assert (await engine.log.append(keyed(2 * many - 1))).repeated


async def test_the_oldest_keys_go_when_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(idempotency_keys, "KEY_COUNT", 500)
    many = idempotency_keys.PRUNE_EVERY
    async with open_sqlite(tmp_path, node="n", clock=ManualClock()) as engine:
        await append_many(engine, range(many))

        assert count_keys(engine) == 500
        assert (await engine.log.append(keyed(many - 1))).repeated
        assert not (await engine.log.append(keyed(0))).repeated


async def test_a_producer_is_remembered_after_a_restart(tmp_path):
    batch = Batch((Draft("/s", b"x"),), producer=Producer("job", "spark", 7))
    async with open_sqlite(tmp_path, node="n") as engine:
        first = await engine.log.append(batch)
    async with open_sqlite(tmp_path, node="n") as engine:
        again = await engine.log.append(batch)

    assert (again.repeated, again.last) == (True, first.last)


def make_file_of_version_1(directory: Path) -> None:
    """One producer, `spark`, without a subject: 7 went to `/s`, and 8 to `/other`."""
    with closing(sqlite3.connect(directory / schema.FILE_NAME, isolation_level=None)) as connection:
        schema.migrate(connection, schema.MIGRATIONS[:1])
        for sequence, stream in ((7, "/s"), (8, "/other")):
            place = Place(sequence, stream, 0, 0, 10)
            answer = msgspec.msgpack.encode(Appended(1, place, place, repeated=True))
            connection.execute("INSERT OR REPLACE INTO producers VALUES ('spark', ?, ?)", (sequence, answer))
            kept = ("spark", "", str(sequence), b"", answer, ManualClock().now_ms())
            connection.execute(
                "INSERT INTO keys (subject, stream, key, digest, answer, made_ms) VALUES (?, ?, ?, ?, ?, ?)", kept
            )


async def test_a_producer_of_an_older_file_is_known_until_it_has_a_row_of_its_own(tmp_path):
    make_file_of_version_1(tmp_path)
    async with open_sqlite(tmp_path, node="n", clock=ManualClock()) as engine:
        again = await engine.log.append(numbered("job", "/s", 7))
        with pytest.raises(SequenceReused):
            await engine.log.append(numbered("mallory", "/mallory", 8))
        with pytest.raises(SequencePassed):
            await engine.log.append(numbered("mallory", "/mallory", 5))
        own = await engine.log.append(numbered("job", "/s", 9))
        others = await engine.log.append(numbered("mallory", "/mallory", 9))
    async with open_sqlite(tmp_path, node="n", clock=ManualClock()) as engine:
        known = await engine.log.append(numbered("job", "/s", 9))

    assert (again.repeated, again.last.id) == (True, 7)
    assert (own.repeated, others.repeated, known.repeated, known.last) == (False, False, True, own.last)


def numbered(subject: str, stream: str, sequence: int) -> Batch:
    return Batch((Draft(stream, b"x"),), producer=Producer(subject, "spark", sequence))
