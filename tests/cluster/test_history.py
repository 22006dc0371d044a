"""The checker finds what is planted, and nothing where nothing is."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.values import Entry, Kind
from tests.cluster.history import History, Promise, problems


def entry(id: int, stream: str, index: int, body: bytes) -> Entry:
    return Entry(id, stream, index, 0, index * 10, 10, Kind.DATA, "", 0, None, "", body)


def run() -> tuple[History, list[Entry]]:
    """A sound history: two writers in two streams, and two readers."""
    final = [entry(10 + 2 * n, f"/s{n % 2}", n // 2, b"w%d %d" % (n // 2 % 2, n // 4)) for n in range(24)]
    history = History([Promise(e.stream, e.id, e.index, e.body) for e in final])
    history.reader("all").extend(final)
    history.reader("late").extend(final[7:])
    return history, final


def test_a_sound_history_has_no_problem() -> None:
    assert problems(*run()) == []


def test_a_planted_loss_is_found() -> None:
    history, final = run()
    del final[-1]
    history.seen.clear()

    assert [problem.partition(":")[0] for problem in problems(history, final)] == ["lost"]


def test_a_planted_double_is_found() -> None:
    history, final = run()
    final.append(replace(final[-2], id=final[-1].id + 2, index=12))

    assert any(problem.startswith("double") for problem in problems(history, final))


def test_a_planted_reorder_is_found() -> None:
    history, final = run()
    final[0], final[8] = replace(final[0], body=final[8].body), replace(final[8], body=final[0].body)

    assert any(problem.startswith("reordered: what") for problem in problems(history, final))


def test_a_gap_that_only_a_reader_saw_is_found() -> None:
    history, final = run()
    del history.seen["all"][5]

    assert problems(history, final) == ["all saw another log: missed [20] or had others, or in another order"]
