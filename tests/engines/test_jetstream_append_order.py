"""Which appends go together: every lane is served in order, by one at a time, and nobody waits for ever."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from penstock.engines.jetstream.append_order import GROUP_MESSAGES, AppendJob, Lanes, lanes_of
from penstock.engines.jetstream.stream_heads import KnownHead, KnownHeads
from penstock.values import Batch, Draft, Head, Key, Producer

NAMES = ["/a", "/b", "/c", "k\0x", "p\0y"]
lane_sets = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple)
steps = st.lists(st.one_of(lane_sets, st.integers(0, 5)), max_size=60)  # a job comes, or some group is done


def job(*lanes: str, drafts: int = 1) -> AppendJob:
    return AppendJob(Batch((Draft("/a", b""),) * drafts), 0, asyncio.Future(loop=_loop), lanes)


_loop = asyncio.new_event_loop()


class Run:
    """What is in flight, and in which order each lane was served."""

    def __init__(self) -> None:
        self.lanes = Lanes()
        self.flying: list[list[AppendJob]] = []
        self.came: dict[str, list[AppendJob]] = {name: [] for name in NAMES}
        self.went: dict[str, list[AppendJob]] = {name: [] for name in NAMES}

    def come(self, new: AppendJob) -> None:
        for name in new.lanes:
            self.came[name].append(new)
        self.go(self.lanes.add(new))

    def done(self, number: int) -> None:
        group = self.flying.pop(number % len(self.flying))
        for more in self.lanes.free({name for one in group for name in one.lanes}):
            self.go(more)

    def go(self, group: list[AppendJob]) -> None:
        if not group:
            return
        held = {name for one in group for name in one.lanes}
        for other in self.flying:
            assert held.isdisjoint(name for one in other for name in one.lanes)
        for one in group:
            for name in one.lanes:
                self.went[name].append(one)
        self.flying.append(group)


@given(steps)
def test_lanes_are_served_in_order_and_everybody_is(steps):
    run = Run()
    for step in steps:
        if isinstance(step, tuple):
            run.come(job(*step))
        elif run.flying:
            run.done(step)
    while run.flying:
        run.done(0)

    assert run.went == run.came
    assert run.lanes._lanes == {}


def test_what_waits_is_folded_into_one_group():
    lanes = Lanes()
    first, waiting = job("/a"), [job("/a") for _ in range(5)]

    assert lanes.add(first) == [first]
    assert [lanes.add(one) for one in waiting] == [[]] * 5
    assert lanes.free(("/a",)) == [waiting]


def test_a_fold_ends_at_the_limit_of_a_batch():
    lanes = Lanes()
    lanes.add(job("/a"))
    waiting = [job("/a", drafts=400) for _ in range(3)]
    for one in waiting:
        lanes.add(one)

    (group,) = lanes.free(("/a",))

    assert group == waiting[:2]
    assert sum(one.messages for one in group) <= GROUP_MESSAGES


def test_a_repeat_waits_for_the_answer_of_the_first():
    lanes = Lanes()
    lanes.add(job("/a"))
    repeats = [job("/a", "k\0x"), job("/a", "k\0x")]
    for one in repeats:
        lanes.add(one)

    assert lanes.free(("/a",)) == [repeats[:1]]
    assert lanes.free(("/a", "k\0x")) == [repeats[1:]]


def test_a_batch_has_the_lanes_of_all_that_it_may_change():
    known = KnownHeads()
    known.put(KnownHead(Head("/shop"), 1, 1))
    batch = Batch(
        (Draft("/shop", b""), Draft("/shop/eu/new", b"")),
        key=Key("me", "/shop", "k", b""),
        producer=Producer("job", "p", 1),
    )

    found = lanes_of(batch, known)

    assert set(found) == {"/shop", "/shop/eu", "/shop/eu/new", "k\0me\0/shop\0k", "p\0job\0p"}
