"""The rules of a channel, without sockets and with time by hand. The defects of the original are tests here."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.limits import SEGMENT_MEMORY
from penstock.wire.trickle import SeqInvalid
from penstock.wire.trickle_channel import ABANDONED, TOO_SLOW, Channel, Keep, Segment, WriteRefused, content

ROOMY = Keep(5, 10_000, 0)


class Pen:
    """A writer that remembers why it was cut."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def cut(self, reason: str) -> None:
        self.reasons.append(reason)


class Eye:
    """A reader that takes everything at once, or nothing."""

    def __init__(self, channel: Channel, segment: Segment, *, blocked: bool = False) -> None:
        self.channel, self.segment, self.blocked = channel, segment, blocked
        self.got, self.at, self.ended, self.cut, self.reason = b"", 0, False, False, ""
        segment.readers[self] = None
        self.moved()

    def moved(self) -> None:
        if self.blocked:
            return
        while self.at < self.segment.size:
            framed, self.at = self.segment.piece(self.at)
            self.got += content(framed)
        if self.segment.end:
            self.ended, self.cut = True, self.segment.cut
            self.channel.release(self.segment, self)

    def dropped(self, reason: str) -> None:
        self.reason = reason

    def renumbered(self, segment: Segment) -> None:
        self.segment = segment
        segment.readers[self] = None


def channel_at(head: int = 0, keep: Keep = ROOMY, **options: bool) -> Channel:
    return Channel("cam1", keep, 0.0, head=head, **options)


def publish(channel: Channel, body: bytes = b"x", seq: int = -1, now: float = 0.0) -> int:
    pen = Pen()
    segment = channel.take(seq, pen, now)
    try:
        if body:
            channel.write(segment, body, now)
        channel.finish(segment, now)
    except WriteRefused:
        channel.leave(segment, pen, now)
        raise
    return segment.seq


def read(channel: Channel, asked: int) -> Eye | None:
    segment = channel.find(channel.position(asked), 0.0)
    return None if segment is None else Eye(channel, segment)


# ── positions ──────────────────────────────────────────────────────────────────────────────────


def test_a_fresh_channel_lets_readers_wait_for_its_first_two() -> None:
    channel = channel_at()

    assert [read(channel, asked) is not None for asked in (0, 1, -1, -2, -9)] == [True] * 5
    assert read(channel, 2) is None


def test_negative_numbers_count_back_from_the_head() -> None:
    channel = channel_at()
    for body in (b"a", b"b", b"c"):
        publish(channel, body)

    assert [eye.got for asked in (-2, -3, -4, -5) if (eye := read(channel, asked))] == [b"c", b"b", b"a", b"a"]
    waiting = read(channel, -1)
    assert waiting is not None
    assert not waiting.ended


def test_preconnecting_moves_nothing_and_the_first_byte_does() -> None:
    channel = channel_at()
    segment = channel.take(0, Pen(), 0)

    assert channel.head == 0
    channel.write(segment, b"x", 0)
    assert channel.head == 1


def test_the_head_never_moves_back() -> None:
    channel = channel_at(3)
    late, early = channel.take(3, Pen(), 0), channel.take(4, Pen(), 0)

    channel.write(early, b"4", 0)
    channel.write(late, b"3", 0)

    assert channel.head == 5


def test_a_number_that_was_left_out_at_first_may_still_come() -> None:
    channel = channel_at()
    publish(channel, b"one", 1)
    waiting = read(channel, 0)
    assert waiting is not None

    publish(channel, b"zero", 0)

    assert waiting.got == b"zero"
    assert channel.head == 2


# ── who may write ──────────────────────────────────────────────────────────────────────────────


def refusal(attempt: Callable[[], object]) -> str:
    with pytest.raises(WriteRefused) as refused:
        attempt()
    return refused.value.code


def test_a_segment_that_ended_is_never_written_again() -> None:
    channel = channel_at()
    publish(channel, b"kept")

    assert refusal(lambda: publish(channel, b"RESTART", 0)) == "segment_closed"
    assert channel.head == 1
    eye = read(channel, 0)
    assert eye is not None
    assert eye.got == b"kept"


def test_numbers_are_not_left_out() -> None:
    channel = channel_at(3)

    assert refusal(lambda: publish(channel, seq=5)) == "seq_gap"
    assert refusal(lambda: publish(channel, b"", seq=5)) == "seq_gap"
    assert refusal(lambda: publish(channel, seq=10**12)) == "seq_gap"
    assert channel.head == 3
    assert publish(channel_at(3, gaps=True), seq=10**12) == 10**12


def test_publishers_may_connect_ahead_and_one_lost_segment_costs_no_other() -> None:
    channel, pens = channel_at(3), [Pen() for _ in range(5)]
    ahead = [channel.take(seq, pen, 0) for seq, pen in zip(range(4, 9), pens, strict=True)]
    assert refusal(lambda: channel.take(9, Pen(), 0)) == "seq_gap"

    for segment in ahead[:3]:  # 3 was lost
        channel.write(segment, b"x", 0)
    publish(channel, b"late", 3)  # and may still come
    for segment in ahead[3:]:
        channel.write(segment, b"x", 0)

    assert channel.head == 9
    assert not any(pen.reasons for pen in pens)


def test_only_the_byte_that_would_make_a_gap_is_refused_and_changes_nothing() -> None:
    channel, pen = channel_at(3), Pen()
    ahead = channel.take(6, pen, 0)

    assert refusal(lambda: channel.write(ahead, b"x", 0)) == "seq_gap"
    assert refusal(lambda: channel.finish(ahead, 0)) == "seq_gap"
    assert (channel.head, channel.size, ahead.begun) == (3, 0, False)

    between = [channel.take(seq, Pen(), 0) for seq in (4, 5)]  # who is connected will come: 3 alone is left out
    channel.write(ahead, b"x", 0)
    channel.write(between[1], b"y", 0)
    assert channel.head == 7


def test_numbers_that_were_connected_to_and_left_are_forgotten() -> None:
    channel = channel_at()
    for seq in range(1000):
        pen = Pen()
        channel.leave(channel.take(seq * 10**9, pen, 0), pen, 0)

    assert list(channel) == []


def test_few_numbers_of_a_channel_without_history_can_be_connected_to_at_once() -> None:
    channel = channel_at()
    for seq in range(6):
        channel.take(seq * 100, Pen(), 0)

    assert refusal(lambda: channel.take(600, Pen(), 0)) == "seq_gap"


def test_deleting_or_resetting_what_is_far_ahead_makes_no_gap() -> None:
    channel, first, second = channel_at(3), Pen(), Pen()
    channel.take(7, first, 0)
    channel.take(6, second, 0)

    assert channel.delete(7, 0)
    channel.take(8, Pen(), 0, reset=True)

    assert (channel.head, first.reasons, second.reasons) == (3, ["deleted"], ["reset"])


# ── a channel without history ──────────────────────────────────────────────────────────────────


def test_a_channel_without_history_takes_the_number_that_comes() -> None:
    channel = channel_at()

    assert publish(channel, b"x", 37) == 37
    assert publish(channel, b"x") == 38
    assert refusal(lambda: publish(channel, b"x", 36)) == "segment_closed"
    assert refusal(lambda: publish(channel, b"x", 41)) == "seq_gap"
    assert refusal(lambda: publish(channel_at(anywhere=False), b"x", 37)) == "seq_gap"


def test_who_waits_for_the_first_segment_hears_which_one_it_is() -> None:
    channel = channel_at()
    first, second = read(channel, 0), read(channel, -1)
    assert first is not None
    assert second is not None

    publish(channel, b"thirty-seven", 37)

    assert (first.got, second.got, first.segment.seq) == (b"thirty-seven", b"thirty-seven", 37)
    assert [segment.seq for segment in channel] == [37]


def test_publishers_that_come_back_in_the_wrong_order_lose_nothing() -> None:
    channel = channel_at()
    early, late = channel.take(7, Pen(), 0), channel.take(8, Pen(), 0)

    channel.write(late, b"8", 0)
    channel.write(early, b"7", 0)

    assert (channel.head, [segment.body() for segment in channel]) == (9, [b"7", b"8"])


@pytest.mark.parametrize("asked", [-2, -5, -(2**62)])
def test_a_publisher_cannot_count_back(asked: int) -> None:
    with pytest.raises(SeqInvalid):
        publish(channel_at(3), seq=asked)


def test_a_second_writer_waits_for_the_first_to_be_silent() -> None:
    channel, first, second = channel_at(), Pen(), Pen()
    segment = channel.take(0, first, 0)
    channel.write(segment, b"one-", 1.0)

    assert refusal(lambda: channel.take(0, second, 2.9)) == "segment_busy"
    assert channel.take(0, second, 3.1) is segment
    assert first.reasons == ["replaced"]
    channel.write(segment, b"two", 3.1)
    assert segment.body() == b"one-two"


def test_a_second_writer_need_not_wait_with_reset() -> None:
    channel, first = channel_at(), Pen()
    segment = channel.take(0, first, 0)

    assert channel.take(0, Pen(), 0.1, reset=True) is segment
    assert first.reasons == ["replaced"]


def test_what_a_lost_writer_began_another_goes_on_with() -> None:
    channel, first = channel_at(), Pen()
    segment = channel.take(0, first, 0)
    channel.write(segment, b"one-", 0)
    eye = Eye(channel, segment)

    channel.leave(segment, first, 0)
    publish(channel, b"two", 0)

    assert (eye.got, eye.ended, first.reasons) == (b"one-two", True, [])


def test_reset_ends_what_was_left_open_before_it() -> None:
    channel, dead, ahead = channel_at(), Pen(), Pen()
    left, kept = channel.take(0, dead, 0), channel.take(1, ahead, 0)
    channel.write(left, b"Hello", 0)
    eye = Eye(channel, left)

    fresh = channel.take(-1, Pen(), 9, reset=True)

    assert (eye.got, eye.ended, dead.reasons) == (b"Hello", True, ["reset"])
    assert fresh is kept
    assert ahead.reasons == ["replaced"]


def test_a_refused_reset_resets_nothing() -> None:
    channel, pen = channel_at(), Pen()
    open_one = channel.take(0, pen, 0)
    channel.write(open_one, b"x", 0)

    assert refusal(lambda: channel.take(9, Pen(), 0, reset=True)) == "seq_gap"

    assert (open_one.end, pen.reasons) == ("", [])


# ── how segments end ───────────────────────────────────────────────────────────────────────────


def test_an_empty_segment_is_one() -> None:
    channel = channel_at()
    publish(channel, b"")

    eye = read(channel, 0)

    assert eye is not None
    assert (eye.got, eye.ended, channel.head) == (b"", True, 1)


def test_deleting_a_preconnected_segment_frees_both_sides() -> None:
    channel, pen = channel_at(), Pen()
    channel.take(0, pen, 0)
    eye = read(channel, 0)

    assert channel.delete(0, 0)
    assert not channel.delete(7, 0)
    assert eye is not None
    assert (eye.ended, pen.reasons, channel.head) == (True, ["deleted"], 1)


def test_closing_a_channel_ends_everything() -> None:
    channel, pen = channel_at(), Pen()
    segment = channel.take(0, pen, 0)
    channel.write(segment, b"x", 0)
    eyes = [Eye(channel, segment), read(channel, 1)]

    channel.close(0)

    assert [eye.ended for eye in eyes if eye] == [True, True]
    assert pen.reasons == ["closed"]
    assert channel.find(2, 0) is None


def test_a_sweep_looks_at_what_it_may_have_to_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: set[int] = set()

    class Watched(Segment):
        def __getattribute__(self, name: str) -> object:
            looked_at.add(object.__getattribute__(self, "seq") if name != "seq" else -1)
            return object.__getattribute__(self, name)

    monkeypatch.setattr("penstock.wire.trickle_channel.Segment", Watched)
    channel, pen = channel_at(keep=Keep(10_000, 10_000_000, 60)), Pen()
    for number in range(1_000):
        publish(channel, seq=number, now=number)
    segment = channel.take(-1, pen, 1_000)
    channel.write(segment, b"half", 1_000)
    channel.leave(segment, pen, 1_000)

    channel.sweep(1_000, 10)
    assert channel.oldest == 940  # ended before that: too old
    looked_at.clear()
    channel.sweep(1_001, 10)

    assert looked_at - {-1} == {940, 941, 1_000}  # one that is too old, the next, which is not, and the open one
    assert [one.seq for one in channel] == list(range(941, 1_001))


def test_a_segment_takes_no_more_memory_than_is_counted_for_it() -> None:
    channel = channel_at(keep=Keep(10_000, 10_000_000, 60))
    tracemalloc.start()
    try:
        for number in range(2_000):
            publish(channel, seq=number)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert channel.memory == 2_000 + 2_000 * SEGMENT_MEMORY
    assert channel.memory / 4 < taken < channel.memory


def test_what_has_left_the_window_counts_until_its_readers_have_it() -> None:
    channel = channel_at(keep=Keep(1, 10_000, 0))
    publish(channel)
    eye = Eye(channel, next(iter(channel)), blocked=True)
    publish(channel)
    assert channel.memory == 2 + 2 * SEGMENT_MEMORY

    channel.release(eye.segment, eye)
    assert channel.memory == 1 + SEGMENT_MEMORY


def test_a_segment_nobody_writes_ends_after_a_while_but_the_next_one_waits() -> None:
    channel, pen = channel_at(), Pen()
    segment = channel.take(0, pen, 0)
    channel.write(segment, b"half", 0)
    channel.leave(segment, pen, 5)
    eye, edge = Eye(channel, segment), read(channel, 1)

    channel.sweep(14, 10)
    assert not eye.ended
    channel.sweep(16, 10)

    assert (eye.ended, eye.cut) == (True, True)
    assert edge is not None
    assert not edge.ended


@pytest.mark.parametrize(
    ("end", "cut"),
    [
        ("complete", False), ("deleted", False), ("reset", False), ("closed", False),
        ("abandoned", True), ("evicted", True), ("oversized", True),
    ],
)  # fmt: skip
def test_what_ended_by_nobodys_wish_is_cut(end: str, cut: bool) -> None:
    channel = channel_at()
    segment = channel.take(0, Pen(), 0)
    channel.write(segment, b"half", 0)

    channel.finish(segment, 0, end)

    assert segment.cut is cut


def test_a_channel_that_is_closed_without_anybodys_word_cuts_what_was_begun() -> None:
    channel = channel_at()
    channel.write(channel.take(0, Pen(), 0), b"half", 0)
    begun, edge = read(channel, 0), read(channel, 1)
    assert begun is not None
    assert edge is not None

    channel.close(0, ABANDONED)

    assert (begun.cut, edge.ended, edge.cut) == (True, True, False)


# ── the window ─────────────────────────────────────────────────────────────────────────────────


def test_the_window_is_bounded_by_count_and_a_segment_that_leaves_it_ends() -> None:
    channel, dead = channel_at(), Pen()
    orphan = channel.take(0, dead, 0)
    channel.write(orphan, b"half", 0)
    eye = Eye(channel, orphan)
    for _ in range(5):
        publish(channel)

    assert (eye.ended, eye.cut, dead.reasons) == (True, True, ["evicted"])
    assert read(channel, 0) is None
    assert [eye.got for seq in range(1, 6) if (eye := read(channel, seq))] == [b"x"] * 5
    assert channel.size == 5


def test_a_waiting_reader_takes_no_place_in_the_window() -> None:
    channel = channel_at()
    for _ in range(5):
        publish(channel)

    read(channel, 5)

    assert read(channel, 0) is not None


def test_the_window_is_bounded_by_bytes_and_a_slow_reader_is_dropped_with_the_reason() -> None:
    channel = channel_at(keep=Keep(5, 100, 0))
    first = channel.take(0, Pen(), 0)
    channel.write(first, b"a" * 40, 0)
    slow = Eye(channel, first, blocked=True)
    channel.finish(first, 0)
    publish(channel, b"b" * 40)
    assert slow.reason == ""

    publish(channel, b"c" * 40)

    assert slow.reason == TOO_SLOW
    assert (channel.size, channel.slow) == (80, 1)


def test_a_reader_of_what_left_the_window_may_finish_while_there_is_room() -> None:
    channel = channel_at(keep=Keep(1, 100, 0))
    publish(channel, b"a" * 40)
    segment = channel.find(0, 0)
    assert segment is not None
    slow = Eye(channel, segment, blocked=True)
    publish(channel, b"b" * 40)
    assert (read(channel, 0), channel.size) == (None, 80)

    slow.blocked = False
    slow.moved()

    assert (slow.got, channel.size) == (b"a" * 40, 40)


def test_the_window_is_bounded_by_age() -> None:
    channel = channel_at(keep=Keep(5, 1000, 30))
    publish(channel, now=0)
    publish(channel, now=20)

    channel.sweep(40, 10)

    assert read(channel, 0) is None
    assert read(channel, 1) is not None


# ── bytes ──────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=60), st.data())
def test_a_reader_gets_every_byte_wherever_it_joins_and_stops(pieces: list[bytes], data: st.DataObject) -> None:
    segment, sent = Segment(0, 0), b""
    for piece in pieces:
        segment.append(piece)
        sent += piece
        at = data.draw(st.integers(0, len(sent)))
        got = b""
        position = at
        while position < segment.size:
            framed, after = segment.piece(position)
            got += content(framed)
            assert after - position == len(content(framed))
            position = after
        assert got == sent[at:]
    assert segment.body() == sent


def test_bytes_that_come_one_by_one_are_kept_in_few_pieces() -> None:
    segment = Segment(0, 0)
    for _ in range(10_000):
        segment.append(b"x")

    assert len(segment._pieces) < 20
    assert segment.body() == b"x" * 10_000


class Against(RuleBasedStateMachine):
    """A channel against a model: a dict of what was written, by seq."""

    def __init__(self) -> None:
        super().__init__()
        self.channel = channel_at(keep=Keep(4, 10_000, 0))
        self.written: dict[int, bytes] = {}
        self.open: dict[int, tuple[Segment, Pen]] = {}
        self.eyes: list[Eye] = []
        self.head = 0
        self.passed = False  # something was written

    @property
    def blank(self) -> bool:
        return not self.passed

    def left_out(self, seq: int) -> int:
        """Numbers from the head to *seq* that nobody is connected to."""
        return len(set(range(self.channel.head, seq)) - set(self.open))

    @rule(asked=st.integers(-3, 30))
    def take(self, asked: int) -> None:
        pen = Pen()
        seq = self.channel.head if asked == -1 else asked
        busy, here = seq in self.open, self.channel.size_of(seq) is not None
        try:
            segment = self.channel.take(asked, pen, 0)
        except SeqInvalid:
            assert asked < -1
            return
        except WriteRefused as refused:
            code = refused.code
        else:
            code = ""
            assert segment.seq == seq
            self.open[seq] = (segment, pen)
        # To one that somebody waits for, because a publisher was there before, another may connect however far it is.
        far = not here and (len(self.open) > 5 if self.blank else seq > self.channel.head + 5)
        right = {"segment_busy": busy, "seq_gap": far, "segment_closed": seq < self.channel.head}
        assert right[code] if code else not (busy or (far and not self.blank))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), body=st.binary(max_size=5))
    def write(self, data: st.DataObject, body: bytes) -> None:
        """Bytes, or without any the end."""
        seq = data.draw(st.sampled_from(sorted(self.open)))
        segment, gap = self.open[seq][0], not self.blank and self.left_out(seq) > 1
        code = ""
        try:
            if body:
                self.channel.write(segment, body, 0)
            else:
                self.channel.finish(segment, 0)
                del self.open[seq]
        except WriteRefused as error:
            code = error.code
        assert code == ("seq_gap" if gap and seq >= self.channel.head else "")
        if not code:
            self.passed = True
            self.written[seq] = self.written.get(seq, b"") + body
        self._forget_cut()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.open)))
        segment, pen = self.open.pop(seq)
        self.channel.leave(segment, pen, 0)

    @rule(asked=st.integers(-4, 30))
    def join(self, asked: int) -> None:
        if eye := read(self.channel, asked):
            self.eyes.append(eye)

    @rule(seq=st.integers(-1, 30))
    def delete(self, seq: int) -> None:
        before = self.channel.head
        self.channel.delete(seq, 0)
        self.passed = self.passed or self.channel.head > before
        self._forget_cut()

    @rule(patience=st.sampled_from([-1, 1]))
    def sweep(self, patience: int) -> None:
        self.channel.sweep(0, patience)

    def _forget_cut(self) -> None:
        for seq, (segment, pen) in list(self.open.items()):
            if pen.reasons:
                assert segment.end or not segment.begun
                del self.open[seq]

    @invariant()
    def readers_have_exactly_what_was_written(self) -> None:
        for eye in self.eyes:
            assert eye.got == self.written.get(eye.segment.seq, b"")
            assert eye.cut == (eye.segment.end in ("abandoned", "evicted", "oversized"))

    @invariant()
    def the_head_only_rises_and_the_window_is_bounded(self) -> None:
        assert self.channel.head >= self.head
        self.head = self.channel.head
        begun = [segment.seq for segment in self.channel if segment.seq < self.head]
        assert len(begun) <= 4
        assert all(segment.writer or segment.readers or segment.seq < self.head for segment in self.channel)
        assert self.channel.size == sum(segment.size for segment in self.channel)


Against.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestAgainstAModel = Against.TestCase
