"""What JetStream does, where the engine is built on it. A server that does otherwise fails here first."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from penstock.engines.jetstream.connection import ELECTING_SECONDS, JetStreamRefused, NatsConnection, header, status
from penstock.engines.jetstream.frames import NatsMessage
from penstock.engines.jetstream.newest_messages import ask
from penstock.testing.nats import NatsCluster

EXPECT = b"Nats-Expected-Last-Subject-Sequence: %d\r\n"


class Stream:
    """A JetStream stream of the test's own."""

    def __init__(self, connection: NatsConnection, **config: Any) -> None:
        self.connection, self.name = connection, f"facts_{uuid.uuid4().hex}"
        self._config = {"name": self.name, "subjects": [f"{self.name}.>"], "storage": "file", "allow_atomic": True,
                        "allow_direct": True, "allow_rollup_hdrs": True, "allow_msg_ttl": True, **config}  # fmt: skip

    async def make(self) -> None:
        await ask(self.connection, f"STREAM.CREATE.{self.name}", self._config, patience=ELECTING_SECONDS)

    def message(self, subject: str, expect: int | None = None, headers: bytes = b"", body: bytes = b"x") -> NatsMessage:
        lines = headers if expect is None else headers + EXPECT % expect
        return NatsMessage(f"{self.name}.{subject}", body, lines)

    async def put(self, *messages: NatsMessage, batch: str = "") -> int:
        """Store as one batch; return the sequence of the last."""
        return (await self.connection.publish_batch(messages, batch or uuid.uuid4().hex)).seq

    async def state(self) -> dict[str, Any]:
        return msgspec.json.decode(await self.connection.api(f"STREAM.INFO.{self.name}"))["state"]


@asynccontextmanager
async def stream(nats: NatsCluster, **config: Any) -> AsyncIterator[Stream]:
    async with NatsConnection([server.url for server in nats.servers], name="facts") as connection:
        made = Stream(connection, **config)
        await made.make()
        yield made


async def test_the_duplicate_window_spans_subjects(nats_alone: NatsCluster) -> None:
    """So idempotency keys are kept by us: under another stream's name the same key would be swallowed."""
    async with stream(nats_alone) as one:
        first = await one.connection.publish(one.message("a", headers=b"Nats-Msg-Id: k\r\n"))
        second = await one.connection.publish(one.message("b", headers=b"Nats-Msg-Id: k\r\n"))

        assert second.seq == first.seq
        assert (await one.state())["messages"] == 1


async def test_a_stale_expected_sequence_is_refused_without_the_first_result(nats_alone: NatsCluster) -> None:
    """10071 names the last sequence of the subject, not what became of the first attempt."""
    async with stream(nats_alone) as one:
        first = await one.put(one.message("a", 0))
        await one.put(one.message("a", first))

        with pytest.raises(JetStreamRefused) as refused:
            await one.put(one.message("a", 0))

        assert refused.value.code == 10071
        assert str(first) not in refused.value.description


async def test_a_repeated_batch_is_refused_without_the_first_result(nats_alone: NatsCluster) -> None:
    """Its id does not matter: the expectations of its messages are stale."""
    async with stream(nats_alone) as one:
        batch = [one.message("a", 0), one.message("b", 0)]
        last = await one.put(*batch, batch="one")

        with pytest.raises(JetStreamRefused) as refused:
            await one.put(*batch, batch="one")

        assert refused.value.code == 10071
        assert (await one.state())["last_seq"] == last


async def test_a_message_id_that_comes_again_in_a_batch_is_10201(nats_alone: NatsCluster) -> None:
    async with stream(nats_alone) as one:
        batch = [one.message("a", headers=b"Nats-Msg-Id: k\r\n"), one.message("b")]
        await one.put(*batch)

        with pytest.raises(JetStreamRefused) as refused:
            await one.put(*batch)

        assert refused.value.code == 10201


async def test_a_batch_of_a_thousand_is_taken_and_a_longer_one_is_not(nats_alone: NatsCluster) -> None:
    async with stream(nats_alone) as one:
        last = await one.put(*[one.message("a")] * 1000)
        with pytest.raises(JetStreamRefused) as refused:
            await one.put(*[one.message("a")] * 1001)

        assert refused.value.code == 10199
        assert (await one.state())["last_seq"] == last == 1000


async def test_a_batch_is_stored_whole_with_consecutive_sequences_or_not_at_all(nats_alone: NatsCluster) -> None:
    async with stream(nats_alone) as one:
        last = await one.put(one.message("a", 0), one.message("b", 0), one.message("a"))
        with pytest.raises(JetStreamRefused):
            await one.put(one.message("c", 0), one.message("a", last), one.message("b", 7))

        state = await one.state()
        assert (last, state["messages"], state["num_subjects"]) == (3, 3, 2)


async def test_after_a_purge_a_stream_that_had_entries_looks_new(nats_alone: NatsCluster) -> None:
    """So a head message is stored above the trim point: else numbering could begin anew."""
    async with stream(nats_alone) as one:
        last = await one.put(one.message("a", 0), one.message("a"))
        question = {"filter": f"{one.name}.a", "seq": last + 1}
        await one.connection.api(f"STREAM.PURGE.{one.name}", question)

        assert await one.put(one.message("a", 0)) == last + 1


async def test_a_purge_by_subject_leaves_what_is_newer_and_what_is_other(nats_alone: NatsCluster) -> None:
    async with stream(nats_alone) as one:
        await one.put(one.message("e.a"), one.message("k.x"), one.message("e.a"), one.message("e.b"))
        answer = await one.connection.api(f"STREAM.PURGE.{one.name}", {"filter": f"{one.name}.e.>", "seq": 4})

        assert msgspec.json.decode(answer)["purged"] == 2
        kept = await one.connection.api(f"STREAM.INFO.{one.name}", {"subjects_filter": ">"})
        assert set(msgspec.json.decode(kept)["state"]["subjects"]) == {f"{one.name}.k.x", f"{one.name}.e.b"}


async def test_a_rollup_inside_a_batch_leaves_the_newest_of_its_subject(nats_alone: NatsCluster) -> None:
    async with stream(nats_alone) as one:
        rollup = b"Nats-Rollup: sub\r\n"
        first = await one.put(one.message("p", 0, rollup), one.message("e"))
        await one.put(one.message("p", first - 1, rollup), one.message("e"))

        kept = await one.connection.api(f"STREAM.INFO.{one.name}", {"subjects_filter": ">"})
        assert msgspec.json.decode(kept)["state"]["subjects"] == {f"{one.name}.p": 1, f"{one.name}.e": 2}


async def test_a_direct_get_does_not_say_how_far_its_server_is(nats_three: NatsCluster) -> None:
    """Any server answers it, also one that is behind. So only the leader is asked where a stream ends."""
    async with stream(nats_three, num_replicas=3) as one:
        last = await one.put(*[one.message("a", body=b"%d" % n) for n in range(20)])
        question = {"seq": 1, "batch": 5, "next_by_subj": f"{one.name}.a"}

        headers, _ = await one.connection.request(f"$JS.API.DIRECT.GET.{one.name}", msgspec.json.encode(question))

        assert status(headers) == 0
        assert header(headers, b"Nats-Sequence")
        assert str(last).encode() not in [header(headers, name) for name in (b"Nats-Last-Sequence", b"Nats-Sequence")]
        leader = await one.connection.api(f"STREAM.MSG.GET.{one.name}", {"last_by_subj": f"{one.name}.a"})
        assert msgspec.json.decode(leader)["message"]["seq"] == last
