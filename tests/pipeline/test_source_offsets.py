from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputInvalid
from penstock.pipeline.source_offsets import (
    Cut,
    cuts_between,
    cuts_given,
    lost_before,
    narrow,
    offset_of,
    position_of,
)
from penstock.pipeline.source_options import read_options, start_of
from penstock.wire.table_columns import NAMES

SERVER = {"url": "http://127.0.0.1:8800", "token": "t"}
rising = st.lists(st.integers(0, 2**62), min_size=2, max_size=20, unique=True).map(sorted)


@given(rising)
def test_an_offset_gives_back_the_cuts_it_was_made_with(numbers: list[int]) -> None:
    cuts = [Cut(lo, hi) for lo, hi in pairwise(numbers)]

    start, end = offset_of(numbers[0]), offset_of(numbers[-1], cuts)

    assert cuts_between(start, end) == cuts
    assert cuts_given(",".join(map(str, numbers))) == cuts
    assert position_of(end) == numbers[-1]


@given(rising)
def test_nothing_lies_between_an_offset_and_itself(numbers: list[int]) -> None:
    end = offset_of(numbers[-1], [Cut(numbers[0], numbers[-1])])

    assert cuts_between(end, end) == []


def test_a_batch_that_does_not_begin_where_the_last_one_ended_is_refused() -> None:
    with pytest.raises(InputInvalid, match="it begins at 5"):
        cuts_between(offset_of(5), offset_of(20, [Cut(0, 10), Cut(10, 20)]))


@given(rising)
def test_an_offset_tells_what_was_lost_before_its_cuts(numbers: list[int]) -> None:
    start, begin, cuts = numbers[0], numbers[1], [Cut(lo, hi) for lo, hi in pairwise(numbers[1:])]

    end = offset_of(numbers[-1], cuts, lost_before(start, begin))

    assert cuts_between(offset_of(start), end) == cuts
    assert end["lost"] == f"{start},{begin}"
    assert lost_before(begin, begin) is None
    with pytest.raises(InputInvalid, match="it begins at"):
        cuts_between(offset_of(start + 1), {**end, "upto": numbers[-1] + 2})


@pytest.mark.parametrize("text", ["", "7", "7,", "a,b", "5,5", "9,3", "-1,4", "1,²"])
def test_cuts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputInvalid):
        cuts_given(text)


@given(
    st.integers(0, 50),
    st.integers(0, 50),
    st.lists(st.tuples(st.sampled_from([">", ">=", "<", "<=", "="]), st.integers(-5, 60))),
)
def test_narrowing_never_leaves_out_a_row_that_is_wanted(after: int, upto: int, bounds: list[tuple[str, int]]) -> None:
    compare = {">": int.__gt__, ">=": int.__ge__, "<": int.__lt__, "<=": int.__le__, "=": int.__eq__}
    wanted = {id for id in range(after + 1, upto + 1) if all(compare[sign](id, value) for sign, value in bounds)}

    low, high = narrow(after, upto, bounds)

    assert wanted == {id for id in range(low + 1, high + 1) if after < id <= upto}


def test_options_are_taken_whatever_their_case() -> None:
    options = read_options({**SERVER, "maxEventsPerTrigger": "10", "startingPosition": "latest", "columns": "body, id"})

    assert options.max_rows == 10
    assert options.columns == ("id", "body")
    assert start_of(options) == {"position": "latest"}
    assert read_options(SERVER).columns == NAMES


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("url", "", "is missing"),
        ("after", "-1", "not a whole number"),
        ("after", "1e3", "not a whole number"),
        ("partitions", "0", "not a whole number"),
        ("columns", "id,bodies", "'bodies' is not one of"),
        ("maxBytesPerTrigger", "0", "not a whole number"),
        ("wait", "soon", "not a number of seconds"),
        ("wait", "nan", "not a number of seconds"),
        ("wait", "-1", "not a number of seconds"),
        ("wait", "61", "not a number of seconds"),
        ("failOnDataLoss", "maybe", "neither true nor false"),
        ("strems", "/a", "is unknown"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(option: str, value: str, said: str) -> None:
    with pytest.raises(InputInvalid, match=said):
        read_options({**SERVER, option: value})


def test_two_ways_to_say_where_to_begin_exclude_each_other() -> None:
    with pytest.raises(InputInvalid, match="exclude each other"):
        read_options({**SERVER, "after": "3", "since": "2026-11-15"})
    with pytest.raises(InputInvalid, match="exclude each other"):
        start_of(read_options({**SERVER, "after": "3", "startingPosition": "latest"}))
    with pytest.raises(InputInvalid, match="neither earliest nor latest"):
        start_of(read_options({**SERVER, "startingPosition": "newest"}))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {"position": "earliest"}),
        ({"after": "17"}, {"id": 17}),
        ({"since": "2026-11-15T00:00:00Z"}, {"time": "2026-11-15T00:00:00Z"}),
    ],
)
def test_a_stream_begins_where_its_options_say(given: dict[str, str], wanted: dict[str, object]) -> None:
    assert start_of(read_options({**SERVER, **given})) == wanted
