"""`/metrics`: the counts of a running node in Prometheus' text format.

Nothing is counted for this page alone: the parts keep plain integers, and they are read here when
somebody asks. prometheus-client is imported then, not at start.

Of several workers, counters and histograms are shown for each process, and gauges are added up. A sum of counters falls
when one of the workers is silent or begins anew, and Prometheus then counts what is left of it as new.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.api.context import Context
from penstock.api.describing import operation
from penstock.core.followers import followers_failed
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.core.metering import Histogram, Sample, process_samples
from penstock.core.throughput import Throughput
from penstock.http.listener import Listener
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.node.engine import Engine
from penstock.node.housekeeping import Housekeeping

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


GREATEST = frozenset({"lag", "log_id", "log_trimmed_id", "log_queue", "log_trouble", "log_bytes", "background_failing"})
LEAST = frozenset({"disk_days_left"})
"""What all processes of a machine say of the same thing, or of the worst. All other gauges are added up."""
OF_EACH = frozenset({"followers_failed"})
"""What the process that keeps the log counts for itself alone, as each worker does."""

HistogramSample = tuple[str, str, list[int], float, dict[str, str]]
"""Name, what it means, counts, total, labels."""


class Counted(msgspec.Struct):
    """What one process has counted."""

    samples: list[Sample]
    histograms: list[HistogramSample]


class Metrics:
    """Shows what the parts have counted, of all processes of this machine together."""

    def __init__(
        self,
        context: Context,
        samples: Callable[[], Iterable[Sample]],
        histograms: dict[str, tuple[str, Histogram]],
        keeper: Callable[[], Awaitable[Iterable[Sample]]] | None = None,
        *,
        public: bool,
    ) -> None:
        """*keeper* tells of the process that keeps the log for several workers."""
        self._context, self._samples, self._histograms, self._public = context, samples, histograms, public
        self._keeper = keeper
        context.other_workers.answer("metrics", self._counted)

    @operation("Counts in Prometheus' format.", answers={200: None}, media="text/plain")
    async def __call__(self, request: Request) -> Response:
        """Answer with all of them; a token is needed unless `metrics.public` is set."""
        from prometheus_client import CONTENT_TYPE_LATEST, GC_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
        from prometheus_client.exposition import generate_latest

        if not self._public:
            self._context.caller(request)
        registry = CollectorRegistry()
        if self._keeper is None:
            for collector in (PROCESS_COLLECTOR, GC_COLLECTOR):
                registry.register(collector)
        registry.register(MetricsPage(await self._everybodys()))
        return Response(200, generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    async def _counted(self, _: bytes = b"") -> Counted:
        """What this process has counted."""
        samples, labels, node = list(self._samples()), {}, self._context.bus.node
        if self._keeper is not None:
            labels = {"process": node}
            samples = [*labelled(samples, node), *process_samples(node)]
        histograms = self._histograms.items()
        return Counted(samples, [(name, meaning, one.counts, one.total, labels) for name, (meaning, one) in histograms])

    async def _everybodys(self) -> Counted:
        """What all processes of this machine have counted."""
        if self._keeper is None:
            return await self._counted()
        others = await self._context.other_workers.ask("metrics", Counted)
        counted = [await self._counted(), *others.told]
        workers: Sample = ("gauge", "workers", "Workers that answer.", len(counted), {})
        silent: Sample = ("gauge", "workers_silent", "Workers whose counts are missing here.", others.silent, {})
        of_keeper = list(await self._keeper())
        samples = of_machine([sample for one in counted for sample in one.samples], of_keeper)
        return Counted([*samples, workers, silent], [each for one in counted for each in one.histograms])


def of_machine(of_workers: Iterable[Sample], of_keeper: Sequence[Sample]) -> list[Sample]:
    """The samples of all processes. What the one that keeps the log knows better is left out of the workers'."""
    better = {name for _, name, _, _, labels in of_keeper if not labels} - OF_EACH
    counted = [sample for sample in of_workers if sample[1] not in better]
    of_each = {sample[1] for sample in counted}
    own = labelled((sample for sample in of_keeper if sample[1] in of_each), "log")
    return merged([*counted, *own, *(sample for sample in of_keeper if sample[1] not in of_each)])


def labelled(samples: Iterable[Sample], process: str) -> Iterator[Sample]:
    """The same, with counters told apart by their process."""
    for kind, name, meaning, value, labels in samples:
        yield kind, name, meaning, value, {**labels, "process": process} if kind == "counter" else labels


def merged(samples: Iterable[Sample]) -> list[Sample]:
    """Samples of several processes, each name and labels once."""
    found: dict[tuple[str, ...], Sample] = {}
    for sample in samples:
        kind, name, meaning, value, labels = sample
        key = (name, *labels.values())
        if (before := found.get(key)) is not None:
            both = (before[3], value)
            value = max(both) if name in GREATEST else min(both) if name in LEAST else sum(both)
        found[key] = (kind, name, meaning, value, labels)
    return list(found.values())


class MetricsPage:
    """What was counted, as prometheus-client wants it."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted

    def collect(self) -> Iterator[Metric]:
        """What prometheus-client asks a collector for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for kind, name, meaning, value, labels in self._counted.samples:
            family = families.get(name)
            if family is None:
                make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                family = families[name] = make(f"penstock_{name}", meaning, labels=list(labels))
            family.add_metric(list(labels.values()), value)
        yield from families.values()
        timed: dict[str, HistogramMetricFamily] = {}
        for name, meaning, counts, total, labels in self._counted.histograms:
            if name not in timed:
                timed[name] = HistogramMetricFamily(f"penstock_{name}", meaning, labels=list(labels))
            histogram = Histogram()
            histogram.counts = counts
            timed[name].add_metric(list(labels.values()), histogram.cumulative(), total)
        yield from timed.values()


def samples(
    listener: Listener, engine: Engine, hub: Hub, ledger: Ledger, rates: Throughput, housekeeping: Housekeeping
) -> Iterator[Sample]:
    """What the parts of every node have counted."""
    counters, house = listener.counters, housekeeping
    yield "gauge", "connections", "Connections that are open.", counters.opened - counters.closed, {}
    for name, count in counters.live.items():
        yield "gauge", "live", "Live answers and WebSockets that are open.", count, {"door": name}
    yield "counter", "requests", "Requests that came.", counters.requests, {}
    yield "counter", "refused", "Connections closed at once, over a cap.", counters.refused, {}
    yield "counter", "cut", "Connections cut because the peer took nothing.", counters.cut, {}
    yield "gauge", "bodies_bytes", "Bytes of larger request bodies that are held.", listener.body_bytes, {}
    yield "gauge", "unread_bytes", "Bytes of larger answers that peers have not taken.", listener.unread_bytes, {}
    yield "counter", "received_bytes", "Bytes that came.", counters.bytes_in, {}
    yield "counter", "sent_bytes", "Bytes that went out.", listener.bytes_out, {}
    yield "counter", "appended", "Entries that came into the log.", rates.appended, {}
    yield "counter", "deliveries", "Entries of a stream handed to one reader's socket.", rates.delivered, {}
    yield "counter", "ledger_records", "Records that the ledger has stored.", ledger.recorded, {}
    yield "counter", "behind", "Times that a feed fell behind.", hub.went_behind, {}
    yield "gauge", "feeds", "Feeds that are open.", len(hub.feeds), {}
    yield "gauge", "feeds_waiting", "Feeds that wait for a page of the log.", hub.waiting_line, {}
    lag = max((feed.lag for feed in hub.feeds), default=0)
    yield "gauge", "lag", "Ids between the slowest feed and the log's end.", lag, {}
    yield "gauge", "log_id", "Highest id that is visible.", hub.position, {}
    yield "gauge", "log_trimmed_id", "Highest id that was trimmed.", engine.log.trimmed_upto, {}
    yield "gauge", "log_queue", "Batches that wait for the writer.", engine.queued, {}
    yield "gauge", "log_trouble", "1 while the storage is why /ready is 503.", int(bool(engine.trouble)), {}
    yield "gauge", "log_bytes", "Bytes of the log.", house.forecast.stored_bytes, {}
    yield "gauge", "disk_days_left", "Days until the disk is full at this pace.", house.forecast.days_until_full, {}
    yield "counter", "expired", "Entries whose time ran out.", house.expired, {}
    yield "counter", "trimmed", "Entries that log.keep dropped.", house.trimmed, {}
    yield "counter", "ledger_lost", "Records that the log did not take in time.", ledger.lost, {}
    yield "counter", "feeds_failed", "Live readers that were ended by a defect.", hub.failed, {}
    yield followers_failed(engine.log.followers)
    yield "counter", "ledger_refused", "Records that the log refuses for good.", ledger.refused, {}
    dropped = engine.bus.dropped
    yield "counter", "bus_dropped", "Messages of other nodes that could not be taken.", dropped, {}
