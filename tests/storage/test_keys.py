"""Idempotency keys do not gather for ever; producers do."""

from __future__ import annotations

from contextlib import closing

from penstock.core.clock import ManualClock
from penstock.limits import KEY_SECONDS
from penstock.storage.sqlite import keys, open_sqlite
from penstock.storage.sqlite.connection import open_reader
from penstock.values import Batch, Draft, Key, Producer


def keyed(number: int) -> Batch:
    return Batch((Draft("/s", b"x"),), key=Key("me", "/s", str(number), b"d"))


async def append_many(engine, numbers: range) -> None:
    for future in [engine.log.append(keyed(number)) for number in numbers]:
        await future


def count_keys(engine) -> int:
    with closing(open_reader(engine.path)) as connection:
        return connection.execute("SELECT count(*) FROM keys").fetchone()[0]


async def test_keys_of_yesterday_are_dropped_while_new_ones_come(tmp_path):
    clock, many = ManualClock(), keys.PRUNE_EVERY
    async with open_sqlite(tmp_path, node="n", clock=clock) as engine:
        await append_many(engine, range(many))
        clock.advance(KEY_SECONDS + 1)
        await append_many(engine, range(many, 2 * many))

        assert count_keys(engine) == many
        assert (await engine.log.append(keyed(2 * many - 1))).repeated


async def test_the_oldest_keys_go_when_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "KEY_COUNT", 500)
    many = keys.PRUNE_EVERY
    async with open_sqlite(tmp_path, node="n", clock=ManualClock()) as engine:
        await append_many(engine, range(many))

        assert count_keys(engine) == 500
        assert (await engine.log.append(keyed(many - 1))).repeated
        assert not (await engine.log.append(keyed(0))).repeated


async def test_a_producer_is_remembered_after_a_restart(tmp_path):
    batch = Batch((Draft("/s", b"x"),), producer=Producer("spark", 7))
    async with open_sqlite(tmp_path, node="n") as engine:
        first = await engine.log.append(batch)
    async with open_sqlite(tmp_path, node="n") as engine:
        again = await engine.log.append(batch)

    assert (again.repeated, again.last) == (True, first.last)
