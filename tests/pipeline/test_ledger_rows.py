"""A batch of the ledger that comes again is a repeat, in whichever turn it comes."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.ledger_rows import (
    BATCH,
    LOOKED_AT,
    MOST_HEADS,
    EpochHead,
    batches_in,
    find_repeats,
    heads_from_rows,
    heads_to_rows,
)


def batches(*rows: tuple[int, str, int, int, str]) -> list[tuple[int, str, int, int]]:
    table = pa.table({name: [row[place] for row in rows] for place, name in enumerate(LOOKED_AT)})
    return [batch for piece in table.to_batches(max_chunksize=2) for batch in batches_in(piece)]


def test_a_repeat_in_a_later_turn_is_found() -> None:
    first = batches((1, "n", 1, 0, BATCH), (1, "n", 1, 0, "sent"), (2, "n", 1, 1, BATCH))
    second = batches(
        (5, "n", 1, 1, BATCH), (5, "n", 1, 1, "sent"), (6, "n", 1, 2, BATCH), (8, "m", 1, 0, BATCH),
        (9, "n", 2, 0, BATCH),
    )  # fmt: skip

    _, heads = find_repeats(first, {})
    repeats, newest = find_repeats(second, heads_from_rows(heads_to_rows(heads)))

    assert repeats == {5}
    assert newest == {("n", 1): EpochHead(2, 6), ("m", 1): EpochHead(0, 8), ("n", 2): EpochHead(0, 9)}
    assert find_repeats(second, {})[0] == frozenset(), "sabotage: who forgets the turn before does not see it"
    assert find_repeats([*second, *first], {}) == find_repeats([*first, *second], {}), "whichever task was first"


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 30))
def test_every_batch_is_taken_once_however_the_log_is_cut_into_turns(again: list[int], cut: int) -> None:
    """A node appends in order; before each batch it may append some of those before it again."""
    appended = [
        number - back for number, backs in enumerate(again) for back in (0, *range(1, backs + 1)) if number >= back
    ]
    batches = [(entry, "n", 1, sequence) for entry, sequence in enumerate(appended)]

    early, heads = find_repeats(batches[:cut], {})
    late, _ = find_repeats(batches[cut:], heads)

    left = [sequence for entry, _, _, sequence in batches if entry not in early | late]
    assert left == list(range(len(again)))


def test_of_very_many_epochs_the_newest_are_kept() -> None:
    _, heads = find_repeats([(n, "n", n, 0) for n in range(MOST_HEADS + 10)], {})

    assert min(epoch for _, epoch in heads) == 10
    assert len(heads) == MOST_HEADS
