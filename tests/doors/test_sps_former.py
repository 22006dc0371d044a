"""What is read back from the ledger of lives that have ended, against a model made of sets."""

from __future__ import annotations

import json
from array import array
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ledger import Batched
from penstock.doors.sps.former import ROW_BYTES, Former, Interval, Window
from penstock.limits import RECALLED_BYTES

NAMES = ("1", "2/phone", "3")
STREAMS = ("/users/1", "/rooms/earth")
Row = tuple[str, str, int, int, frozenset[int]]  # state, stream, first, last, recipients

intervals = st.tuples(st.integers(1, 30), st.integers(0, 5)).map(lambda pair: (pair[0], pair[0] + pair[1]))
recipients = st.frozensets(st.integers(0, 2), min_size=1)
rows = st.builds(
    lambda state, stream, interval, who: (state, stream, *interval, who),
    st.sampled_from(["sent", "sent", "acked", "expired"]), st.sampled_from(STREAMS), intervals, recipients,
)  # fmt: skip
batches = st.lists(st.tuples(st.booleans(), st.lists(rows, max_size=4)), max_size=8)


def batch(rows: list[Row], *, epoch: int = 1, mark: str = "", door: str = "sps") -> Batched:
    header = {
        "node": "n", "epoch": epoch, "sequence": 0, "mark": mark, "who": [[door, name] for name in NAMES],
        "rows": [[0, state, "", stream, first, last, len(who)] for state, stream, first, last, who in rows],
    }  # fmt: skip
    column = array("I", [number for row in rows for number in sorted(row[4])])
    return Batched(json.dumps(header).encode() + b"\n" + column.tobytes())


def covered(found: list[Interval]) -> set[tuple[str, int]]:
    return {(row.stream, id) for row in found for id in range(row.first, row.last + 1)}


@given(batches, st.randoms(use_true_random=False), st.lists(st.integers(0, 40), min_size=1, max_size=3))
def test_a_device_confirms_what_was_sent_and_not_confirmed_in_whatever_order_batches_come(
    history: list[tuple[bool, list[Row]]], random: object, named: list[int]
) -> None:
    former = Former()
    order = list(enumerate(history))
    random.shuffle(order)  # type: ignore[attr-defined]
    for id, (ended, of_batch) in order:
        former.take(id, batch(of_batch), ended=ended)

    for number, name in enumerate(NAMES):
        every = [(ended, row) for ended, of_batch in history for row in of_batch if number in row[4]]
        confirmed = max((row[3] for _, row in every if row[0] == "acked"), default=0)
        sent = covered([Interval(*row[1:4]) for ended, row in every if row[0] == "sent" and ended])
        for upto in named:
            found = covered(former.confirm(name, upto))
            assert found == {(stream, id) for stream, id in sent if confirmed < id <= upto}
            confirmed = max(confirmed, upto)


def test_other_doors_recipients_are_no_devices() -> None:
    former = Former()
    former.take(1, batch([("sent", "/users/1", 1, 3, frozenset({0}))], door="tail"), ended=True)

    assert not former.concerns("1", 3, witness=False)
    assert former.size == 0


def test_what_no_record_tells_of_lies_after_the_last_batches_of_a_life_without_a_close() -> None:
    former = Former()
    for id, epoch, mark in (
        (10, 1, "open"),
        (20, 1, ""),
        (30, 1, ""),
        (40, 1, "close"),
        (50, 2, "open"),
        (60, 2, ""),
        (70, 2, ""),
    ):
        former.take(id, batch([], epoch=epoch, mark=mark), ended=True)
    former.take(90, batch([], epoch=3, mark="open"), ended=False)

    windows = {id: former.window("1", id) for id in (35, 45, 55, 60, 61, 75, 90, 91)}
    assert windows == dict.fromkeys((35, 45, 55, 60, 91)) | dict.fromkeys((61, 75, 90), Window(60, 90))


def test_a_device_is_a_witness_once() -> None:
    former = Former()
    former.take(10, batch([], mark="open"), ended=True)
    assert former.window("1", 15)

    former.witness("1", 15)

    assert former.window("1", 15) is None
    assert former.window("1", 16)
    assert former.window("2/phone", 15)


def test_it_takes_no_more_than_it_may_and_lets_go_of_what_is_confirmed() -> None:
    former = Former()
    everybody = frozenset(range(len(NAMES)))
    taken = 0
    while not former.full:
        taken += 1
        former.take(taken, batch([("sent", STREAMS[0], taken, taken, everybody)] * 1000), ended=True)

    assert taken == RECALLED_BYTES // (1000 * (ROW_BYTES + 4 * len(NAMES))) + 1
    for name in NAMES:
        assert len(former.confirm(name, taken)) == taken
    assert former.size == 0


def test_rows_of_several_devices_are_kept_once() -> None:
    former = Former()
    former.take(9, batch([("sent", stream, 1, 4, frozenset({0, 1, 2})) for stream in STREAMS]), ended=True)

    found = {name: former.confirm(name, 2) for name in NAMES}

    assert found == {key: [Interval(stream, 1, 2) for stream in STREAMS] for key in NAMES}
    assert {row for name, upto in product(NAMES, (3, 9)) for row in former.confirm(name, upto)} == {
        Interval(stream, *rest) for stream, rest in product(STREAMS, ((3, 3), (4, 4)))
    }
