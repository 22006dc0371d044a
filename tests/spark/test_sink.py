"""`format("penstock")`: batch and streaming writes."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.iceberg.store import open_store
from penstock.pipeline import register
from penstock.pipeline.client import TIMEOUT_SECONDS, PipelineClient, StoredRecord
from penstock.pipeline.publishing import EncodedRequest
from penstock.pipeline.sink import RowsNotRepeated, WriterTaken, _Sink
from penstock.pipeline.sink_files import StagedFile
from penstock.testing import RunningServer
from tests.spark.filling import publish
from tests.spark.recording import recording
from tests.spark.test_source import client, lines, streaming

__all__ = ["client"]
BODIES = StructType.fromJson(
    {"type": "struct", "fields": [{"name": "body", "type": "binary", "nullable": True, "metadata": {}}]}
)


def published(client: PipelineClient, stream: str) -> list[str]:
    asked = {"stream": stream, "from": 0, "limit": 1000}
    return [entry["data"] for entry in client.call("GET", "/v1/read", asked)["entries"]]


def writing(frame: DataFrame, client: PipelineClient, staging: Path | str, **options: object) -> None:
    writer = frame.write.format("penstock").mode("append").option("url", client.url).option("token", client.token)
    writer.options(staging=str(staging), **{name: str(value) for name, value in options.items()}).save()


def test_a_batch_that_is_written_again_adds_nothing(
    spark: SparkSession, client: PipelineClient, tmp_path: Path
) -> None:
    rows = [("/sink/batch", bytearray(line)) for line in lines(300)]
    frame = spark.createDataFrame(rows, "stream STRING, body BINARY").coalesce(1)

    for _ in range(2):
        writing(frame, client, tmp_path, writer="orders", batch=1)

    assert published(client, "/sink/batch") == [line.decode() for line in lines(300)]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_stream_is_written_once_also_when_its_checkpoint_is_lost(
    spark: SparkSession, client: PipelineClient, tmp_path: Path
) -> None:
    publish(client, "/sink/from", lines(200))
    source = streaming(spark, client, streams="/sink/from", consumer="sink", columns="kind,body").where("kind = 'data'")

    def run(checkpoint: Path) -> None:
        query = source.select("body").writeStream.format("penstock").option("checkpointLocation", str(checkpoint))
        query = query.options(url=client.url, token=client.token, writer="copy", stream="/sink/to")
        query.trigger(availableNow=True).start().awaitTermination()

    run(tmp_path / "one")
    run(tmp_path / "one")
    assert sorted(published(client, "/sink/to")) == sorted(line.decode() for line in lines(200))

    with pytest.raises(StreamingQueryException, match="in use by another query"):
        run(tmp_path / "two")
    assert len(published(client, "/sink/to")) == 200


def bodies_batch(bodies: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(bodies, pa.binary())], pa.schema([("body", pa.binary())]))


class Sink(_Sink):
    """A sink without Spark, that can be made to end after some requests."""

    def __init__(
        self, client: PipelineClient, staging: Path | str, writer: str, *, ends_after: int = 10**9, **options: object
    ) -> None:
        given = {"url": client.url, "token": client.token, "writer": writer, "stream": f"/sink/{writer}"}
        more = {name: str(value) for name, value in options.items()}
        super().__init__({**given, "staging": str(staging), "publish": "commit", **more}, BODIES)
        self._left = ends_after

    def stage_bodies(self, bodies: list[bytes], query: str = "q", partition: int = 0) -> StagedFile:
        staged = self.stage(iter([bodies_batch(bodies)]))
        return replace(staged, query=query, partition=partition)

    def run_task(self, batch: int, bodies: list[bytes], query: str = "q", partition: int = 0) -> StagedFile:
        """What a task does that publishes its own rows."""
        staged = self.stage_bodies(bodies, query, partition)
        with closing(self._sink.client()) as client:
            self._publish_partition(client, staged, batch)
        self.discard([staged])
        return staged

    def _send(self, client: PipelineClient, request: EncodedRequest, producer: str, sequence: int) -> None:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        super()._send(client, request, producer, sequence)


class Forgetful(Sink):
    """The sabotage: it publishes what came last instead of what its manifest, or its claim, says."""

    def _manifest(self, batch: int, staged: Any) -> list[StagedFile]:
        return list(staged)

    def _agreed(self, claim: StoredRecord, staged: StagedFile, batch: int) -> StoredRecord | None:
        return StoredRecord(claim.version, {**claim.value, "path": staged.path})


FIRST, SECOND = ([b"%s\n%d" % (name, number) for number in range(5)] for name in (b"a", b"b"))
"""Each of them is a request of its own, as they are no lines."""


def write_twice(sink: type[Sink], client: PipelineClient, staging: Path | str, writer: str) -> list[str]:
    """Write a batch that ends in the middle, and once more with its rows in another order."""
    ending = sink(client, staging, writer, ends_after=7)
    with pytest.raises(KeyboardInterrupt):
        ending.commit([ending.stage_bodies(FIRST), ending.stage_bodies(SECOND)], 4)
    again = sink(client, staging, writer)
    again.commit([again.stage_bodies(SECOND), again.stage_bodies(FIRST)], 4)
    return published(client, f"/sink/{writer}")


def test_a_commit_that_ended_in_the_middle_goes_on_from_its_manifest(client: PipelineClient, tmp_path: Path) -> None:
    assert write_twice(Sink, client, tmp_path, "middle") == [body.decode() for body in FIRST + SECOND]
    assert list((tmp_path / "penstock-sink").iterdir()) == []


def test_without_the_manifest_rows_are_lost_and_doubled(client: PipelineClient, tmp_path: Path) -> None:
    assert write_twice(Forgetful, client, tmp_path, "forgetful") != [body.decode() for body in FIRST + SECOND]


def left(staging: str) -> list[str]:
    """The files that lie in *staging*."""
    return [one.path for one in open_store(staging).list("")]


@pytest.mark.usefixtures("s3")
def test_staging_on_an_object_store_is_as_good_as_a_folder(client: PipelineClient) -> None:
    place, whole = f"s3://lake/{uuid4().hex}", [body.decode() for body in FIRST + SECOND]

    # A commit that ended in the middle goes on from its manifest, and a task from the file that was claimed
    assert write_twice(Sink, client, place, "middle-s3") == whole
    assert repeat_a_task(Sink, client, "claimed-s3", place, place) == whole
    assert left(place) == []
    # And the same checks find a sink that looks at neither
    assert write_twice(Forgetful, client, place, "forgetful-s3") != whole
    assert sorted(repeat_a_task(Forgetful, client, "unclaimed-s3", place, place)) != sorted(whole)


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("publish", ["tasks", "commit"])
def test_sparks_own_tasks_stage_on_an_object_store(spark: SparkSession, client: PipelineClient, publish: str) -> None:
    place, stream = f"s3://lake/{uuid4().hex}", f"/sink/{publish}-s3"
    own = spark.newSession()
    register(own)  # now that the keys are in the environment
    frame = own.createDataFrame([(bytearray(body),) for body in FIRST + SECOND], "body BINARY").repartition(2)
    for _ in range(2):
        writing(frame, client, place, writer=f"{publish}-s3", batch=1, stream=stream, publish=publish)

    assert sorted(published(client, stream)) == sorted(body.decode() for body in FIRST + SECOND)
    assert left(place) == []


# ── tasks that publish ─────────────────────────────────────────────────────────────────────────


def repeat_a_task(
    sink: type[Sink], client: PipelineClient, writer: str, first: Path | str, second: Path | str
) -> list[str]:
    """A task ends after three of its ten requests; the next attempt has its rows in another order."""
    with pytest.raises(KeyboardInterrupt):
        sink(client, first, writer, ends_after=3, publish="tasks").run_task(4, FIRST + SECOND)
    again = sink(client, second, writer, publish="tasks")
    again.commit([again.run_task(4, SECOND + FIRST)], 4)
    again.commit([again.run_task(4, SECOND + FIRST)], 4)
    return published(client, f"/sink/{writer}")


def test_a_task_that_is_run_again_publishes_what_it_had_claimed(client: PipelineClient, tmp_path: Path) -> None:
    found = repeat_a_task(Sink, client, "claimed", tmp_path, tmp_path)

    assert found == [body.decode() for body in FIRST + SECOND]
    assert list((tmp_path / "penstock-sink").iterdir()) == []


def test_without_the_claim_rows_are_lost_and_doubled(client: PipelineClient, tmp_path: Path) -> None:
    found = repeat_a_task(Forgetful, client, "unclaimed", tmp_path, tmp_path)

    assert sorted(found) != sorted(body.decode() for body in FIRST + SECOND)


def test_where_the_claimed_file_is_out_of_reach_another_order_is_refused_and_the_same_one_goes_on(
    client: PipelineClient, tmp_path: Path
) -> None:
    other = tmp_path / "other worker"
    with pytest.raises(KeyboardInterrupt):
        Sink(client, tmp_path, "apart", ends_after=3, publish="tasks").run_task(4, FIRST + SECOND)
    for staged in (tmp_path / "penstock-sink").iterdir():  # it was on a worker that is gone
        staged.unlink()
    again = Sink(client, other, "apart", publish="tasks")

    with pytest.raises(RowsNotRepeated, match="cannot be read here"):
        again.run_task(4, SECOND + FIRST)
    assert len(published(client, "/sink/apart")) == 3
    again.commit([again.run_task(4, FIRST + SECOND)], 4)
    assert published(client, "/sink/apart") == [body.decode() for body in FIRST + SECOND]


class Trusting(Sink):
    """The sabotage: it compares no rows."""

    def _agreed(self, claim: StoredRecord, staged: StagedFile, batch: int) -> StoredRecord | None:
        return None if claim.value["done"] else claim

    def _check_claims(self, client: PipelineClient, staged: Any, batch: int) -> None:
        pass


def repeat_elsewhere(sink: type[Sink], client: PipelineClient, staging: Path | str, writer: str) -> list[str]:
    """One of two tasks has published when the query ends; repeated, rows are in other partitions."""
    first = sink(client, staging, writer, publish="tasks")
    first.run_task(4, FIRST, partition=1)
    again = sink(client, staging, writer, publish="tasks")
    again.commit([again.run_task(4, SECOND, partition=1), again.run_task(4, FIRST, partition=0)], 4)
    return sorted(published(client, f"/sink/{writer}"))


def test_rows_that_move_to_another_partition_are_refused(client: PipelineClient, tmp_path: Path) -> None:
    with pytest.raises(RowsNotRepeated, match="other rows in partition 1"):
        repeat_elsewhere(Sink, client, tmp_path, "moved")

    assert published(client, "/sink/moved") == [body.decode() for body in FIRST]


def test_who_compares_no_rows_loses_and_doubles_some(client: PipelineClient, tmp_path: Path) -> None:
    assert repeat_elsewhere(Trusting, client, tmp_path, "trusting") == sorted(2 * [body.decode() for body in FIRST])


def test_a_batch_that_is_repeated_in_fewer_partitions_is_refused(client: PipelineClient, tmp_path: Path) -> None:
    sink = Sink(client, tmp_path, "fewer", publish="tasks")
    sink.run_task(0, SECOND, partition=1)

    with pytest.raises(RowsNotRepeated, match="in other partitions"):
        sink.commit([sink.run_task(0, FIRST + SECOND, partition=0)], 0)


class Meeting:
    """Holds requests to publish back until two connections have one at the same time, or *within* is over."""

    def __init__(self, within: float) -> None:
        self._both, self._within = threading.Barrier(2), within
        self.held: bool | None = None  # whether it came to pass

    def __call__(self, line: str) -> None:
        if "/v1/publish?" not in line or self.held is not None:
            return
        try:
            self._both.wait(self._within)
            self.held = True
        except threading.BrokenBarrierError:
            self.held = False


@pytest.mark.parametrize("way", ["tasks", "commit"], ids=["honest", "sabotage: the driver publishes"])
def test_tasks_publish_at_once_each_on_one_connection(
    spark: SparkSession, shared_server: RunningServer, client: PipelineClient, tmp_path: Path, way: str
) -> None:
    rows = [(bytearray(b"%d\n%d" % (number % 4, number)),) for number in range(40)]  # a request each
    frame = spark.createDataFrame(rows, "body BINARY").repartition(4)
    # Less than a client waits for an answer: one that asks again would be taken for two
    meeting, stream = Meeting(0.8 * TIMEOUT_SECONDS if way == "tasks" else 0.5), f"/sink/four-{way}"
    with recording(shared_server, asking=meeting) as server:
        writing(frame, PipelineClient(server.url, client.token), tmp_path, writer=way, stream=stream, publish=way)

    assert sorted(published(client, stream)) == sorted(row[0].decode() for row in rows)
    assert len(server.asked("/v1/publish")) == 40
    assert meeting.held is (way == "tasks")
    if way == "tasks":
        assert server.connections == 4 + 1, "a connection for each task, and one for the commit"


def test_a_batch_that_a_commit_began_is_brought_to_its_end_by_commit(client: PipelineClient, tmp_path: Path) -> None:
    ending = Sink(client, tmp_path, "switched", ends_after=7)
    with pytest.raises(KeyboardInterrupt):
        ending.commit([ending.stage_bodies(FIRST), ending.stage_bodies(SECOND)], 4)
    again = Sink(client, tmp_path, "switched", publish="tasks")

    again.commit([again.write(iter([bodies_batch(FIRST + SECOND)]), 4)], 4)

    assert published(client, "/sink/switched") == [body.decode() for body in FIRST + SECOND]


# ── both ways ──────────────────────────────────────────────────────────────────────────────────


def test_a_batch_long_gone_adds_nothing(client: PipelineClient, tmp_path: Path) -> None:
    sink = Sink(client, tmp_path, "long")
    for batch in (1, 2, 1):
        sink.commit([sink.stage_bodies([b"%d" % batch])], batch)

    assert published(client, "/sink/long") == ["1", "2"]


def test_a_writer_s_name_belongs_to_one_query_until_a_new_epoch(client: PipelineClient, tmp_path: Path) -> None:
    sink = Sink(client, tmp_path, "named")
    sink.commit([sink.stage_bodies([b"one"], "query-1")], 0)

    with pytest.raises(WriterTaken, match="in epoch 1"):
        sink.commit([sink.stage_bodies([b"two"], "query-2")], 1)
    sink = Sink(client, tmp_path, "named", epoch=2)
    sink.commit([sink.stage_bodies([b"three"], "query-2")], 0)

    assert published(client, "/sink/named") == ["one", "three"]


def test_bodies_that_are_no_lines_come_out_as_they_went_in(client: PipelineClient, tmp_path: Path) -> None:
    sink = Sink(client, tmp_path, "odd")
    odd = [b"two\nlines", b"", b"plain", b"ends\r", b"plain too"]

    sink.commit([sink.stage_bodies(odd)], 0)

    assert published(client, "/sink/odd") == [body.decode() for body in odd]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"writer": ""}, "writer"),
        ({"writer": "a/b"}, "'/'"),
        ({"stream": ""}, "column or an option"),
        ({"x": "1"}, "unknown"),
    ],
)
def test_a_write_that_cannot_be_is_refused(
    client: PipelineClient, tmp_path: Path, options: dict[str, str], said: str
) -> None:
    good = {"url": client.url, "token": client.token, "writer": "w", "stream": "/s", "staging": str(tmp_path)}

    with pytest.raises(Exception, match=said):
        _Sink({**good, **options}, BODIES)


def test_overwriting_is_refused(spark: SparkSession, client: PipelineClient, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(bytearray(b"x"),)], "body BINARY")
    writer = frame.write.format("penstock").mode("overwrite").options(url=client.url, token=client.token, writer="w")

    with pytest.raises(PySparkException, match="only added to"):
        writer.options(stream="/s", staging=str(tmp_path)).save()
